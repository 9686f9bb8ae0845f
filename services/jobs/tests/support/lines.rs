//! The lines of the log in a test.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// The lines of this thread from [`Lines::collect`] on, each with level, message and fields.
#[derive(Clone)]
pub(crate) struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    level: Level,
    targets: &'static [&'static str],
}

impl Lines {
    /// Collects the lines of targets that begin like this, down to a level.
    pub(crate) fn collect(targets: &'static [&'static str], level: Level) -> (Self, DefaultGuard) {
        let lines = Self { lines: Arc::default(), level, targets };
        let guard = set_default(lines.clone());
        (lines, guard)
    }

    /// The lines so far, which are forgotten.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }
}

struct Fields {
    message: String,
    others: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.others, " {}={value}", field.name()).unwrap();
    }

    /// Whole numbers: those of tests are lengths of virtual time.
    fn record_f64(&mut self, field: &Field, value: f64) {
        write!(self.others, " {}={value:.0}", field.name()).unwrap();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => write!(self.others, " {name}={value:?}").unwrap(),
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_of = |target| metadata.target().starts_with(target);
        *metadata.level() <= self.level && self.targets.iter().copied().any(is_of)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields { message: String::new(), others: String::new() };
        event.record(&mut fields);
        let level = event.metadata().level().as_str().to_lowercase();
        self.lines.lock().unwrap().push(format!("{level} {}:{}", fields.message, fields.others));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
