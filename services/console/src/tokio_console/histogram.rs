//! Histograms of lengths of time, as tokio-console reads them.
//!
//! The classes are those of an [HdrHistogram](https://hdrhistogram.org) with one significant digit:
//! a class for each of the first 32 nanoseconds, and sixteen for each further power of two. So a
//! length is known to a sixteenth. Only classes with a count take memory, eight bytes each. A task
//! has few of them, and never more than [`CLASSES`].

use std::time::Duration;

use console_api::tasks::DurationHistogram;

/// The greatest length in nanoseconds, which stands for all longer ones: almost five hours.
const LONGEST: u64 = (1 << 44) - 1;

/// The power of two that the number of classes of a power of two is.
const DIGIT_BITS: u32 = 4;

/// The number of classes up to [`LONGEST`].
const CLASSES: usize = class_of(LONGEST) as usize + 1;

/// The format of the serialised form: version 2, without compression, each count as a number of
/// variable length.
const COOKIE: u32 = 0x1c84_9303 | 0x10;

/// The number of significant digits.
const DIGITS: u32 = 1;

/// Counts of lengths.
#[derive(Clone, Default)]
pub(super) struct Histogram {
    /// The classes that have a count, in order.
    counts: Vec<(u16, u32)>,
}

/// The class of a length in nanoseconds.
const fn class_of(nanoseconds: u64) -> u16 {
    let bits = u64::BITS - nanoseconds.leading_zeros();
    let shift = bits.saturating_sub(DIGIT_BITS + 1);
    ((shift as u64) << DIGIT_BITS) as u16 + (nanoseconds >> shift) as u16
}

impl Histogram {
    pub(super) fn add(&mut self, length: Duration) {
        let nanoseconds = u64::try_from(length.as_nanos()).unwrap_or(LONGEST);
        let class = class_of(nanoseconds.min(LONGEST));
        match self.counts.binary_search_by_key(&class, |(class, _)| *class) {
            Ok(index) => {
                let count = &mut self.counts[index].1;
                *count = count.saturating_add(1);
            }
            Err(index) => self.counts.insert(index, (class, 1)),
        }
        debug_assert!(self.counts.len() <= CLASSES);
    }

    /// The histogram for tokio-console.
    pub(super) fn to_message(&self) -> DurationHistogram {
        DurationHistogram {
            raw_histogram: self.to_bytes(),
            max_value: LONGEST,
            high_outliers: 0,
            highest_outlier: None,
        }
    }

    /// The serialised form, "V2" of HdrHistogram: a header, and the counts of all classes up to the
    /// last one that has a count. A negative number stands for so many classes in a row without a
    /// count.
    fn to_bytes(&self) -> Vec<u8> {
        let mut counts = Vec::new();
        let mut next = 0;
        for (class, count) in &self.counts {
            match i64::from(class - next) {
                0 => {}
                1 => push_number(&mut counts, 0),
                empty => push_number(&mut counts, -empty),
            }
            push_number(&mut counts, i64::from(*count));
            next = class + 1;
        }
        let mut bytes = Vec::new();
        bytes.extend(COOKIE.to_be_bytes());
        bytes.extend((counts.len() as u32).to_be_bytes());
        bytes.extend(0_u32.to_be_bytes()); // No class stands for another one.
        bytes.extend(DIGITS.to_be_bytes());
        bytes.extend(1_u64.to_be_bytes()); // The least length.
        bytes.extend(LONGEST.to_be_bytes());
        bytes.extend(1_f64.to_be_bytes()); // The factor of all lengths.
        bytes.extend(counts);
        bytes
    }
}

/// Appends a number of variable length: the sign in the lowest bit, then seven bits a byte, the
/// lowest first.
fn push_number(to: &mut Vec<u8>, number: i64) {
    let mut left = (number.unsigned_abs() << 1) - u64::from(number < 0);
    while left > 0x7f {
        to.push(left as u8 | 0x80);
        left >>= 7;
    }
    to.push(left as u8);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CLASSES, Histogram, LONGEST, class_of};

    fn hex_of(lengths: &[Duration]) -> String {
        let mut histogram = Histogram::default();
        lengths.iter().for_each(|length| histogram.add(*length));
        histogram.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The expected form is that of the Rust library `hdrhistogram` for the same lengths, which
    /// tokio-console reads it with.
    #[test]
    fn serialised_form_is_that_of_the_library() {
        let lengths = [0, 1, 1, 3, 31, 33, 1_000, 1_000, 20_000_000, LONGEST + 1];
        let mut lengths = lengths.map(Duration::from_nanos).to_vec();
        lengths.extend([Duration::from_nanos(70_000); 100]);
        assert_eq!(
            hex_of(&lengths),
            "1c8493130000001400000000000000010000000000000001\
             00000fffffffffff3ff0000000000000\
             020400023502029b0104c101c801810202f50402"
        );
    }

    #[test]
    fn longest_length_stands_for_longer_ones() {
        assert_eq!(hex_of(&[Duration::MAX]), hex_of(&[Duration::from_nanos(LONGEST)]));
    }

    #[test]
    fn classes_have_no_gaps() {
        for bits in 0..44 {
            let power = 1_u64 << bits;
            for length in [power, power + power / 2] {
                let step = class_of(length) - class_of(length - 1);
                assert_eq!(step, 1, "{length}");
            }
        }
        assert_eq!(usize::from(class_of(LONGEST)), CLASSES - 1);
    }
}
