//! How long things took: counts in buckets whose width grows with what they count.
//!
//! Every power of two of nanoseconds is cut into the same number of buckets, so that a reading is
//! wrong by at most one part in [`PARTS`], however long the time was, and the whole has a fixed
//! size.

use std::time::Duration;

/// Buckets for each power of two.
const PARTS: usize = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 6;

/// Enough for every number of 64 bits: the times below [`PARTS`] have a bucket each.
const BUCKETS: usize = PARTS * (u64::BITS - PARTS_BITS + 1) as usize;

pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    slowest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, slowest: 0 }
    }
}

impl Histogram {
    pub(crate) fn add(&mut self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(time)] += 1;
        self.total += 1;
        self.slowest = self.slowest.max(time);
    }

    pub(crate) fn slowest(&self) -> Duration {
        Duration::from_nanos(self.slowest)
    }

    /// The time that this share of all times does not exceed, rounded up by at most a bucket.
    pub(crate) fn below(&self, share: f64) -> Duration {
        let wanted = (self.total as f64 * share).ceil() as u64;
        let mut count = 0;
        let found = self.counts.iter().position(|bucket| {
            count += bucket;
            count >= wanted
        });
        let end = found.map_or(self.slowest, last_of);
        Duration::from_nanos(end.min(self.slowest))
    }
}

/// The bucket of a time: the number of its power of two, and then its next [`PARTS_BITS`] bits.
fn bucket(time: u64) -> usize {
    let power = (time | (PARTS as u64 - 1)).ilog2() + 1 - PARTS_BITS;
    if power == 0 {
        return time as usize;
    }
    let part = (time >> (power - 1)) as usize - PARTS;
    power as usize * PARTS + part
}

/// The longest time that belongs to a bucket.
fn last_of(bucket: usize) -> u64 {
    let (power, part) = (bucket / PARTS, bucket % PARTS);
    if power == 0 {
        return part as u64;
    }
    let first = ((PARTS + part) as u64) << (power - 1);
    first + ((1 << (power - 1)) - 1)
}
