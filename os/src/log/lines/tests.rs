//! The parts of a line that do not depend on a program.

use std::time::{Duration, UNIX_EPOCH};

use tracing::Level;

use super::{Directives, Utc};

#[test]
fn times_are_in_utc() {
    let at = |seconds, micros| {
        let since = Duration::from_secs(seconds) + Duration::from_micros(micros);
        Utc(UNIX_EPOCH + since).to_string()
    };
    assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000Z");
    assert_eq!(at(68_169_599, 999_999), "1972-02-28T23:59:59.999999Z");
    assert_eq!(at(68_169_600, 0), "1972-02-29T00:00:00.000000Z");
    assert_eq!(at(951_868_799, 0), "2000-02-29T23:59:59.000000Z");
    assert_eq!(at(1_893_455_999, 1), "2029-12-31T23:59:59.000001Z");
    assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
}

#[test]
fn longest_directive_counts() {
    let chosen = Directives::parse("warn, app::part=trace,app=off,lib").unwrap().unwrap();
    let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
    let count = |target| levels.iter().filter(|level| chosen.choose(target, level)).count();
    assert_eq!(["other", "app::part::deep", "app::other", "lib"].map(count), [2, 5, 0, 5]);
    assert!(Directives::parse(" , ").unwrap().is_none());
    assert!(Directives::parse("app=loud").is_err());
}
