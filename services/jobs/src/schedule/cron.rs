//! Moments of a calendar: cron's five fields, in a time zone.
//!
//! A field is `*`, or a list of numbers, names (`JAN`, `MON`) and ranges, each with a step: `*/15`,
//! `1-5`, `10-20/2,40`. Sunday is 0 and 7. If both days are limited, either is enough, as in cron;
//! a field that begins with `*` limits nothing.
//!
//! | the zone's clock | rule |
//! | --- | --- |
//! | skips an hour, and the moment with it | the moment is as much later: 02:30 is at 03:30 |
//! | shows an hour twice | the moment is the first of both; each of them if the hour is `*` |

use std::str::FromStr;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// How far ahead a moment is looked for: 29 February may be 8 years away, on a Sunday 40.
const LONGEST_SEARCH_DAYS: u32 = 41 * 366;

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// One field: the bits of its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    bits: u64,
    /// Whether the field begins with `*`.
    is_open: bool,
}

impl Field {
    fn has(self, number: i8) -> bool {
        self.bits >> number & 1 == 1
    }

    fn numbers(self) -> impl Iterator<Item = i8> {
        (0..60).filter(move |number| self.has(*number))
    }
}

/// A schedule of five fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cron {
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    weekday: Field,
}

impl FromStr for Cron {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(format!(
                "`{text}` has {} fields: cron has minute, hour, day, month and day of the week",
                fields.len()
            ));
        };
        let mut weekday = field(weekday, "day of the week", 0, 7, &DAYS, 0)?;
        weekday.bits |= weekday.bits >> 7 & 1;
        Ok(Self {
            minute: field(minute, "minute", 0, 59, &[], 0)?,
            hour: field(hour, "hour", 0, 23, &[], 0)?,
            day: field(day, "day", 1, 31, &[], 0)?,
            month: field(month, "month", 1, 12, &MONTHS, 1)?,
            weekday,
        })
    }
}

/// Parses a field of numbers from `least` to `most`, or of names, of which the first is the number
/// `first`.
fn field(
    text: &str,
    what: &str,
    least: i8,
    most: i8,
    names: &[&str],
    first: i8,
) -> Result<Field, String> {
    let wrong = |why: &str| format!("the field `{text}` ({what}) {why}");
    let number = |text: &str| {
        let name = names.iter().position(|name| text.eq_ignore_ascii_case(name));
        let number = match name {
            Some(at) => Some(first + at as i8),
            // `+5` is a number for the standard library.
            None if text.starts_with(|c: char| c.is_ascii_digit()) => text.parse().ok(),
            None => None,
        };
        let number = number.filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| wrong(&format!("has `{text}`, which is not from {least} to {most}")))
    };
    let mut bits = 0_u64;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                let step = step.parse::<u8>().ok().filter(|step| *step > 0);
                (range, Some(step.ok_or_else(|| wrong("has a step that is not a number"))?))
            }
            None => (part, None),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (least, most),
            Some((from, to)) => (number(from)?, number(to)?),
            // With a step, one number means from there on, as in cron.
            None if step.is_some() => (number(range)?, most),
            None => (number(range)?, number(range)?),
        };
        if from > to {
            return Err(wrong("has a range that ends before it begins"));
        }
        for number in (from..=to).step_by(step.unwrap_or(1).into()) {
            bits |= 1 << number;
        }
    }
    Ok(Field { bits, is_open: text.starts_with('*') })
}

impl Cron {
    /// Checks a text, also for whether such a time ever comes.
    pub(crate) fn check(text: &str) -> Result<(), String> {
        match text.parse::<Self>()?.next(Timestamp::UNIX_EPOCH, &TimeZone::UTC) {
            Some(_) => Ok(()),
            None => Err(format!("`{text}` never comes")),
        }
    }

    /// The first moment after another one.
    pub(crate) fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        // A day earlier, since a skipped day moves to the next one.
        let mut date = zone.to_datetime(after).date().yesterday().ok()?;
        for _ in 0..LONGEST_SEARCH_DAYS {
            if self.has_day(date) {
                if let Some(moment) = self.moments(date, zone).find(|moment| *moment > after) {
                    return Some(moment);
                }
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    fn has_day(&self, date: Date) -> bool {
        let is_day = self.day.has(date.day());
        let is_weekday = self.weekday.has(date.weekday().to_sunday_zero_offset());
        let is_either = match self.day.is_open || self.weekday.is_open {
            true => is_day && is_weekday,
            false => is_day || is_weekday,
        };
        self.month.has(date.month()) && is_either
    }

    /// The moments of a day, in their order.
    fn moments(&self, date: Date, zone: &TimeZone) -> impl Iterator<Item = Timestamp> {
        let mut moments = Vec::new();
        for hour in self.hour.numbers() {
            for minute in self.minute.numbers() {
                let time: DateTime = date.at(hour, minute, 0, 0);
                let both = zone.to_ambiguous_timestamp(time);
                // In a gap: as much later as the clock skips.
                moments.extend(both.compatible());
                if both.is_ambiguous() && self.hour.is_open {
                    moments.extend(both.later());
                }
            }
        }
        moments.sort();
        moments.into_iter()
    }
}

/// The zone of this name.
pub(crate) fn zone(name: &str) -> Result<TimeZone, String> {
    match name {
        "UTC" => Ok(TimeZone::UTC),
        name => TimeZone::get(name).map_err(|error| {
            format!(
                "there is no time zone `{name}` here: is the package `tzdata` installed? ({error})"
            )
        }),
    }
}

/// The first moment of an interval after another one, counted from `since`; `None` for an interval
/// of zero.
pub(crate) fn next_of_interval(
    since: Timestamp,
    interval: std::time::Duration,
    after: Timestamp,
) -> Option<Timestamp> {
    let passed = u128::try_from(after.as_nanosecond() - since.as_nanosecond()).unwrap_or(0);
    let intervals = passed.checked_div(interval.as_nanos())? + 1;
    let ahead = intervals.checked_mul(interval.as_nanos())?;
    since.checked_add(i64::try_from(ahead).ok()?.nanoseconds()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(cron: &str, zone_name: &str, after: &str, count: usize) -> Vec<String> {
        let (cron, zone): (Cron, _) = (cron.parse().unwrap(), zone(zone_name).unwrap());
        let mut after: Timestamp = after.parse().unwrap();
        let mut moments = Vec::new();
        for _ in 0..count {
            after = cron.next(after, &zone).unwrap();
            moments.push(after.to_zoned(zone.clone()).strftime("%a %m-%d %H:%M %z").to_string());
        }
        moments
    }

    #[test]
    fn lists_ranges_steps_and_names() {
        let begin = "2026-01-01T00:00:00Z";
        for (cron, expected) in [
            ("0 7 * * MON-FRI", ["Thu 01-01 07:00", "Fri 01-02 07:00", "Mon 01-05 07:00"]),
            ("*/25 * * * *", ["Thu 01-01 00:25", "Thu 01-01 00:50", "Thu 01-01 01:00"]),
            ("5-9/2 3 * * *", ["Thu 01-01 03:05", "Thu 01-01 03:07", "Thu 01-01 03:09"]),
            ("50/5 23 * * *", ["Thu 01-01 23:50", "Thu 01-01 23:55", "Fri 01-02 23:50"]),
            ("0 0 1 feb,Dec *", ["Sun 02-01 00:00", "Tue 12-01 00:00", "Mon 02-01 00:00"]),
            ("0 0 * * 7", ["Sun 01-04 00:00", "Sun 01-11 00:00", "Sun 01-18 00:00"]),
            ("0 0 29 2 *", ["Tue 02-29 00:00", "Sun 02-29 00:00", "Fri 02-29 00:00"]),
        ] {
            let moments = moments(cron, "UTC", begin, 3);
            assert_eq!(moments, expected.map(|moment| format!("{moment} +0000")), "{cron}");
        }
    }

    #[test]
    fn two_limited_days_are_either() {
        let begin = "2026-01-01T00:00:00Z";
        let either = ["Fri 01-02 00:00 +0000", "Fri 01-09 00:00 +0000", "Tue 01-13 00:00 +0000"];
        assert_eq!(moments("0 0 13 * FRI", "UTC", begin, 3), either);
        // A field that begins with `*` limits nothing by itself.
        let both = ["Fri 01-09 00:00 +0000", "Fri 01-23 00:00 +0000", "Fri 02-13 00:00 +0000"];
        assert_eq!(moments("0 0 */2 * FRI", "UTC", begin, 3), both);
    }

    #[test]
    fn skipped_hours_are_later_and_repeated_ones_once() {
        let berlin = "Europe/Berlin";
        let spring = "2026-03-28T12:00:00Z";
        let skipped = ["Sun 03-29 03:30 +0200", "Mon 03-30 02:30 +0200"];
        assert_eq!(moments("30 2 * * *", berlin, spring, 2), skipped);
        let hours = ["Sun 03-29 01:00 +0100", "Sun 03-29 03:00 +0200", "Sun 03-29 04:00 +0200"];
        assert_eq!(moments("0 * * * *", berlin, "2026-03-28T23:30:00Z", 3), hours);
        let autumn = "2026-10-24T12:00:00Z";
        let once = ["Sun 10-25 02:30 +0200", "Mon 10-26 02:30 +0100"];
        assert_eq!(moments("30 2 * * *", berlin, autumn, 2), once);
        let hours = ["Sun 10-25 02:00 +0200", "Sun 10-25 02:00 +0100", "Sun 10-25 03:00 +0100"];
        assert_eq!(moments("0 * * * *", berlin, "2026-10-24T23:30:00Z", 3), hours);
        // Samoa had no 30 December 2011 at all.
        let day = ["Sat 12-31 12:00 +1400", "Sat 12-31 12:00 +1400"];
        let after = "2011-12-30T00:00:00Z";
        assert_eq!(moments("0 12 * * *", "Pacific/Apia", after, 1), day[..1]);
    }

    #[test]
    fn mistakes_are_named() {
        for (cron, part) in [
            ("0 7 * *", "has 4 fields"),
            ("60 7 * * *", "`60` (minute)"),
            ("0 7 * * FRY", "`FRY` (day of the week)"),
            ("0 7 * 0 *", "`0` (month)"),
            ("0 9-7 * * *", "ends before it begins"),
            ("*/0 * * * *", "step"),
            ("0 0 30 2 *", "never comes"),
            ("+5 * * * *", "`+5` (minute)"),
            (", * * * *", "`,` (minute)"),
        ] {
            let error = Cron::check(cron).unwrap_err();
            assert!(error.contains(part), "{cron}: {error}");
        }
        assert!(zone("Europe/Pikake").is_err());
    }

    #[test]
    fn intervals_are_counted_from_their_begin() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let ten = std::time::Duration::from_secs(10);
        for (after, next) in [(100, 110), (109, 110), (110, 120), (95, 110), (157, 160)] {
            assert_eq!(next_of_interval(at(100), ten, at(after)), Some(at(next)), "{after}");
        }
        assert_eq!(next_of_interval(at(100), std::time::Duration::ZERO, at(110)), None);
    }
}
