//! Latencies: distributions of lengths of time, and their text form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::clock::nanos;
use crate::rng::Rng;

/// A distribution of lengths of time.
///
/// # Examples
///
/// The text form is that of a fault plan:
///
/// ```
/// use pikake::sim::Latency;
/// use std::time::Duration;
///
/// let ms = Duration::from_millis;
/// assert_eq!("5ms".parse(), Ok(Latency::Fixed(ms(5))));
/// assert_eq!("1ms..40ms".parse(), Ok(Latency::Uniform(ms(1), ms(40))));
/// assert_eq!("1ms+10ms".parse(), Ok(Latency::Tail { floor: ms(1), mean: ms(10) }));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Latency {
    /// Always this length.
    Fixed(Duration),
    /// Uniformly distributed between these two lengths.
    Uniform(Duration, Duration),
    /// The sum of `floor` and an exponentially distributed length.
    Tail {
        /// The shortest length.
        floor: Duration,
        /// The mean of the exponential distribution.
        mean: Duration,
    },
}

impl Latency {
    /// Zero.
    pub const NONE: Self = Self::Fixed(Duration::ZERO);

    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        match self {
            Self::Fixed(length) => nanos(*length),
            Self::Uniform(least, most) => rng.range(nanos(*least)..nanos(*most).saturating_add(1)),
            Self::Tail { floor, mean } => {
                let more = rng.exponential() * nanos(*mean) as f64;
                nanos(*floor).saturating_add(more as u64)
            }
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(f, "{length:?}"),
            Self::Uniform(least, most) => write!(f, "{least:?}..{most:?}"),
            Self::Tail { floor, mean } => write!(f, "{floor:?}+{mean:?}"),
        }
    }
}

impl FromStr for Latency {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if let Some((least, most)) = text.split_once("..") {
            return Ok(Self::Uniform(parse_length(least)?, parse_length(most)?));
        }
        match text.split_once('+') {
            Some((floor, mean)) => {
                Ok(Self::Tail { floor: parse_length(floor)?, mean: parse_length(mean)? })
            }
            None => Ok(Self::Fixed(parse_length(text)?)),
        }
    }
}

/// A text cannot be parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    expected: &'static str,
    found: String,
}

impl ParseError {
    pub(crate) fn new(expected: &'static str, found: &str) -> Self {
        Self { expected, found: found.to_owned() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {:?}", self.expected, self.found)
    }
}

impl std::error::Error for ParseError {}

/// The units of the `Debug` output of [`Duration`], in nanoseconds.
const UNITS: [(&str, u64); 5] =
    [("ns", 1), ("µs", 1_000), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Parses the `Debug` output of [`Duration`]: `1.5ms`.
pub(crate) fn parse_length(text: &str) -> Result<Duration, ParseError> {
    let wrong = || ParseError::new("a length of time, as `1.5ms`", text);
    let text = text.trim();
    let unit = UNITS.iter().find_map(|(unit, nanos)| Some((text.strip_suffix(unit)?, *nanos)));
    let (number, nanos) = unit.ok_or_else(wrong)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let mut sum = whole.checked_mul(nanos).ok_or_else(wrong)?;
    let mut unit = nanos;
    for digit in part.chars() {
        unit /= 10;
        sum += unit * u64::from(digit.to_digit(10).ok_or_else(wrong)?);
    }
    Ok(Duration::from_nanos(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_from_their_debug_output() {
        for nanos in [0, 1, 999, 1_500, 40_000_000, 1_234_567_890, 86_400_000_000_000] {
            let length = Duration::from_nanos(nanos);
            assert_eq!(parse_length(&format!("{length:?}")), Ok(length));
        }
        assert!(parse_length("5").is_err());
        assert!(parse_length("ms").is_err());
        assert!("1ms..".parse::<Latency>().is_err());
    }

    #[test]
    fn draws_match_bounds_and_mean() {
        let ms = Duration::from_millis;
        let mut rng = Rng::split(3, "", "");
        let tail = Latency::Tail { floor: ms(1), mean: ms(10) };
        let sum: u64 = (0..10_000).map(|_| tail.draw(&mut rng)).sum();
        let mean = Duration::from_nanos(sum / 10_000);
        assert!((ms(10)..ms(12)).contains(&mean), "{mean:?}");
        let uniform = Latency::Uniform(ms(2), ms(3));
        for _ in 0..100 {
            assert!((nanos(ms(2))..=nanos(ms(3))).contains(&uniform.draw(&mut rng)));
        }
    }
}
