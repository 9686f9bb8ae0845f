//! The parts of a line that do not depend on a program.

use tracing::Level;

use super::Directives;

#[test]
fn longest_directive_counts() {
    let chosen = Directives::parse("warn, app::part=trace,app=off,lib").unwrap().unwrap();
    let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
    let count = |target| levels.iter().filter(|level| chosen.choose(target, level)).count();
    assert_eq!(["other", "app::part::deep", "app::other", "lib"].map(count), [2, 5, 0, 5]);
    assert!(Directives::parse(" , ").unwrap().is_none());
    assert!(Directives::parse("app=loud").is_err());
}
