//! Random numbers, determined by the seed and split by purpose.
//!
//! Each random decision has its own stream: the order of tasks on a host, the latencies of a link,
//! the numbers that a program draws. A stream is seeded by the seed of the run, the name of its
//! owner, and its purpose, so an additional fault does not shift the numbers of other streams.
//!
//! The generator is xoshiro256++, from a crate that keeps its numbers across versions. This file
//! converts the numbers to ranges and distributions by exact integer and floating-point arithmetic.
//! So a seed gives the same run in later versions.

use std::ops::Range;

use rand_core::{Rng as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The number of fraction bits of an `f64`.
const FRACTION_BITS: u32 = 53;

/// Start and factor of FNV-1a, a short hash that suffices to separate streams and to compare runs.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_FACTOR: u64 = 0x0000_0100_0000_01b3;

/// Mixes bytes into a hash.
pub(crate) fn mix(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_FACTOR))
}

/// The start of a hash for [`mix`].
pub(crate) const MIX_START: u64 = FNV_START;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// The stream of a seed for one purpose of an owner.
    pub fn split(seed: u64, owner: &str, purpose: &str) -> Self {
        let hash = mix(MIX_START, &seed.to_le_bytes());
        let hash = mix(mix(hash, owner.as_bytes()), b"\0");
        Self(Xoshiro256PlusPlus::seed_from_u64(mix(hash, purpose.as_bytes())))
    }

    /// A uniformly distributed number.
    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Random bytes.
    pub fn fill(&mut self, to: &mut [u8]) {
        self.0.fill_bytes(to);
    }

    /// A uniformly distributed number from a range; the start of an empty range.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        let span = range.end.saturating_sub(range.start).max(1);
        // The upper half of the product; its bias is negligible.
        let scaled = (u128::from(self.u64()) * u128::from(span)) >> u64::BITS;
        range.start + scaled as u64
    }

    /// A random index below `length`.
    pub fn index(&mut self, length: usize) -> usize {
        self.range(0..length as u64) as usize
    }

    /// A number in `0.0..1.0`.
    pub fn fraction(&mut self) -> f64 {
        (self.u64() >> (u64::BITS - FRACTION_BITS)) as f64 / (1_u64 << FRACTION_BITS) as f64
    }

    /// `true` with this probability. Draws no number for probability zero.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.fraction() < probability
    }

    /// An exponentially distributed number with mean one.
    pub(crate) fn exponential(&mut self) -> f64 {
        // `1.0 - fraction` is above zero, so its logarithm exists.
        -logarithm(1.0 - self.fraction())
    }
}

/// The natural logarithm of a number above zero and up to one. Unlike a library's logarithm, its
/// result is the same on every machine.
fn logarithm(number: f64) -> f64 {
    const LN_2: f64 = std::f64::consts::LN_2;
    /// The terms of the series, for numbers between one and two.
    const TERMS: u32 = 20;
    let (mut mantissa, mut halvings) = (number, 0_u32);
    while mantissa < 1.0 {
        mantissa *= 2.0;
        halvings += 1;
    }
    // ln m = 2 (z + z³/3 + z⁵/5 + …) with z = (m - 1) / (m + 1).
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let (mut power, mut sum) = (z, 0.0);
    for term in 0..TERMS {
        sum += power / f64::from(2 * term + 1);
        power *= square;
    }
    2.0 * sum - f64::from(halvings) * LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_starts_with_fixed_numbers() {
        let mut rng = Rng::split(1, "host", "purpose");
        let drawn: Vec<u64> = (0..3).map(|_| rng.u64()).collect();
        assert_eq!(drawn, FIRST_OF_A_STREAM, "recorded seeds would give other runs");
    }

    const FIRST_OF_A_STREAM: [u64; 3] =
        [16_899_487_747_965_537_590, 14_737_343_039_295_642_762, 6_518_945_606_700_827_885];

    #[test]
    fn streams_differ_by_seed_owner_and_purpose() {
        let firsts = [(1, "a", "b"), (2, "a", "b"), (1, "ab", ""), (1, "", "ab"), (1, "a", "c")];
        let mut firsts: Vec<u64> = firsts
            .iter()
            .map(|(seed, owner, purpose)| Rng::split(*seed, owner, purpose).u64())
            .collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 5);
    }

    #[test]
    fn range_is_uniform_within_its_bounds() {
        let mut rng = Rng::split(7, "", "");
        let mut seen = [0_u32; 3];
        for _ in 0..3_000 {
            seen[rng.range(5..8) as usize - 5] += 1;
        }
        assert!(seen.iter().all(|count| (800..1_200).contains(count)), "{seen:?}");
        assert_eq!(rng.range(4..4), 4);
    }

    #[test]
    fn logarithm_agrees_with_the_library() {
        for number in [1.0, 0.75, 0.5, 0.1, 1e-3, 1e-9] {
            assert!((logarithm(number) - f64::ln(number)).abs() < 1e-12, "{number}");
        }
    }
}
