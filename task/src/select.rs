//! The order in which a `select!` polls its branches.

use pikake_traps::random;

/// An order for a poll of `N` branches; all are equally likely.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn branch_order<const N: usize>() -> [usize; N] {
    let mut order = std::array::from_fn(|branch| branch);
    for last in (1..N).rev() {
        order.swap(last, below(last + 1, random::fast_u64()));
    }
    order
}

/// A number below `limit`, by the high bits of a random number. For small limits all are equally
/// likely, up to a difference that nobody can measure.
fn below(limit: usize, random: u64) -> usize {
    ((u128::from(random) * limit as u128) >> u64::BITS) as usize
}
