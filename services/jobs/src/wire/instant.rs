//! Points in time as Celery writes them: ISO 8601 in UTC.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use pikake_traps::wall_time;

/// The format for writing.
const FORMAT: &str = "%Y-%m-%dT%H:%M:%S%.6f+00:00";

/// For example `2026-11-20T23:38:52.628371+00:00`; `None` outside the years that can be written.
pub(crate) fn write(moment: SystemTime) -> Option<String> {
    Some(Timestamp::try_from(moment).ok()?.strftime(FORMAT).to_string())
}

/// Reads a time with an offset, with `Z`, or without a zone, which means UTC.
pub(crate) fn read(text: &str) -> Option<SystemTime> {
    let stamp = match text.parse::<Timestamp>() {
        Ok(stamp) => stamp,
        Err(_) => text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp(),
    };
    Some(stamp.into())
}

/// The time `length` after now, or the last one that can be written.
pub(crate) fn after(length: Duration) -> SystemTime {
    wall_time().checked_add(length).map_or_else(last, |moment| moment.min(last()))
}

/// The last time that can be written: the end of the year 9999.
pub(crate) fn last() -> SystemTime {
    Timestamp::MAX.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn all_formats_are_read() {
        let moment = UNIX_EPOCH + Duration::from_micros(1_795_217_932_628_371);
        for text in [
            "2026-11-20T23:38:52.628371+00:00",
            "2026-11-20T23:38:52.628371Z",
            "2026-11-20T23:38:52.628371",
            "2026-11-21T00:38:52.628371+01:00",
        ] {
            assert_eq!(read(text), Some(moment), "{text}");
        }
        assert_eq!(write(moment).unwrap(), "2026-11-20T23:38:52.628371+00:00");
    }

    #[test]
    fn other_formats_are_not_read() {
        for text in ["", "tomorrow", "2026-13-20T23:38:52", "1795217872", "2026-11-20T23:38:52Zz"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
