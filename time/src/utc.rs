//! Wall time as people read it.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment of wall time that is printed in UTC: to the second, or with `{:.6}` to the microsecond.
///
/// # Examples
///
/// ```
/// use pikake::time::Utc;
/// use std::time::{Duration, SystemTime};
///
/// let new_year = SystemTime::UNIX_EPOCH + Duration::from_secs(1_893_456_000);
/// assert_eq!(Utc(new_year).to_string(), "2030-01-01T00:00:00Z");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc(pub SystemTime);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
        // A year from March to February has its leap day last, and 400 years have 146,097 days.
        // `days_from_civil` of Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms".
        let days = days + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let (year, micros) = (era * 400 + year + next, since.subsec_micros());
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let fraction = f.precision().map_or(String::new(), |_| format!(".{micros:06}"));
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
    }
}
