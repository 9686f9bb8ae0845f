//! A subscriber of `tracing` that prints each event that it is asked for as a line.
//!
//! ```text
//! 2030-01-01T00:00:00.000000Z  WARN shop::cart: sold out article="pen"
//! ```
//!
//! It costs no package, and has neither spans nor colours. A program that wants those sets a
//! subscriber of `tracing-subscriber`.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::time::SystemTime;

use pikake_time::Utc;
use tracing::field::{Field, Visit};
use tracing::level_filters::{LevelFilter, ParseLevelFilterError};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[cfg(test)]
mod tests;

/// The least severe level for the targets that begin with a text.
#[derive(Debug)]
pub(super) struct Directives(Vec<(String, LevelFilter)>);

impl Directives {
    /// The same level for all targets.
    pub(super) fn all(level: LevelFilter) -> Self {
        Self(vec![(String::new(), level)])
    }

    /// Reads `level`, `target` or `target=level`, separated by commas. `None` for an empty text.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, ParseLevelFilterError> {
        let directives = text.split(',').map(str::trim).filter(|directive| !directive.is_empty());
        let directive = |directive: &str| match directive.split_once('=') {
            Some((target, level)) => Ok((target.to_owned(), level.parse()?)),
            None => Ok(match directive.parse() {
                Ok(level) => (String::new(), level),
                Err(_) => (directive.to_owned(), LevelFilter::TRACE),
            }),
        };
        let read: Vec<_> = directives.map(directive).collect::<Result<_, _>>()?;
        Ok((!read.is_empty()).then_some(Self(read)))
    }

    /// Whether the directive with the longest match, of several the last one, asks for the level.
    pub(super) fn choose(&self, target: &str, level: &Level) -> bool {
        let matching = self.0.iter().filter(|(begin, _)| target.starts_with(begin));
        matching.max_by_key(|(begin, _)| begin.len()).is_some_and(|(_, least)| level <= least)
    }
}

pub(super) struct Lines(pub(super) Directives);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.0.choose(metadata.target(), metadata.level())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.0.0.iter().map(|(_, least)| *least).max()
    }

    fn event(&self, event: &Event<'_>) {
        let (metadata, time) = (event.metadata(), Utc(SystemTime::now()));
        let mut line = format!("{time:.6} {:>5} {}:", metadata.level(), metadata.target());
        event.record(&mut Fields(&mut line));
        line.push('\n');
        // In one piece, so that lines of several threads do not mix. A line may be lost.
        let _ = io::stderr().write_all(line.as_bytes());
    }

    // No span is enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Writes fields to a line, each after a space.
struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(Escaped(self.0), " {value:?}"),
            name => write!(Escaped(self.0), " {name}={value:?}"),
        };
    }
}

/// Escapes what a terminal would obey: a text may be a peer's.
struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            match letter.is_control() && !matches!(letter, '\n' | '\t') {
                true => self.0.extend(letter.escape_default()),
                false => self.0.push(letter),
            }
        }
        Ok(())
    }
}
