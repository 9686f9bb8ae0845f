//! Output: the answer on standard output, as text or JSON; notes and a spinner on standard error.

use std::io::{self, Write};
use std::time::Duration;

use indicatif::ProgressBar;
pub(crate) use pikake::console::text::table;
use serde_json::Value;

use crate::log::write_line;
use crate::stop::Stop;

/// How often the spinner moves.
const TICK: Duration = Duration::from_millis(100);

/// Writes answers as text or as JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    is_json: bool,
}

impl Output {
    pub(crate) fn new(is_json: bool) -> Self {
        Self { is_json }
    }

    /// The same, but as JSON if that is asked for.
    pub(crate) fn or_json(self, is_json: bool) -> Self {
        Self { is_json: self.is_json || is_json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.is_json
    }

    /// Writes the answer to standard output.
    pub(crate) fn answer(
        self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> Result<(), Stop> {
        let answer = if self.is_json { json().to_string() } else { text() };
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(answer.trim_end().as_bytes());
        let written = written.and_then(|()| stdout.write_all(b"\n")).and_then(|()| stdout.flush());
        written.map_err(|error| Stop::output(&error))
    }
}

/// Writes a line for people to standard error.
pub(crate) fn note(text: &str) {
    write_line("INFO", text);
}

/// `1 job`, `2 jobs`.
pub(crate) fn jobs_text(count: u64) -> String {
    match count {
        1 => "1 job".to_owned(),
        count => format!("{count} jobs"),
    }
}

/// A spinner on a terminal, removed on drop.
#[derive(Debug)]
pub(crate) struct Spinner(ProgressBar);

impl Spinner {
    pub(crate) fn new(message: String) -> Self {
        let bar = ProgressBar::new_spinner().with_message(message);
        bar.enable_steady_tick(TICK);
        Self(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
