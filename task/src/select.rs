//! The order in which a `select!` polls its branches.

use pikake_traps::random;

/// The distance between two states of the generator: 2⁶⁴ divided by the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Orders for the polls of one `select!`, each as likely as any other.
///
/// The kernel gives one random number. The generator SplitMix64 (Steele, Lea and Flood 2014) makes
/// the others.
#[derive(Debug, Default)]
pub struct BranchOrder(Option<u64>);

impl BranchOrder {
    /// No order yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The order for the next poll of `N` branches.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn shuffled<const N: usize>(&mut self) -> [usize; N] {
        let mut order = std::array::from_fn(|branch| branch);
        if N < 2 {
            return order;
        }
        // Not by `unwrap_or_else`, which would hide the caller's line from a panic.
        let mut state = match self.0 {
            Some(state) => state,
            None => random::u64(),
        };
        for last in (1..N).rev() {
            state = state.wrapping_add(STEP);
            order.swap(last, below(last + 1, mix(state)));
        }
        self.0 = Some(state);
        order
    }
}

/// The output of the generator in a state.
fn mix(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A number below `limit`, by the high bits of a random number. For small limits all are equally
/// likely, up to a difference that nobody can measure.
fn below(limit: usize, random: u64) -> usize {
    ((u128::from(random) * limit as u128) >> u64::BITS) as usize
}
