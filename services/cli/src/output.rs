//! Output: the answer on standard output, as text or JSON; notes and a spinner on standard error.

use std::io::{self, Write};
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::Value;

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
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "{text}");
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

/// A cell with its control characters escaped, since a message may come from an untrusted sender.
fn escaped(cell: &str) -> String {
    let escape = |c: char| match c.is_control() {
        true => c.escape_debug().to_string(),
        false => c.to_string(),
    };
    cell.chars().map(escape).collect()
}

/// A table with columns as wide as their widest cell; numbers are aligned right.
pub(crate) fn table(head: &[&str], is_number: &[bool], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| escaped(cell)).collect()).collect();
    let width_of = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width_of).collect();
    let mut text = String::new();
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    for row in [&head].into_iter().chain(&rows) {
        let cells = row.iter().zip(&widths).zip(is_number);
        let cells: Vec<String> = cells
            .map(|((cell, width), is_number)| match is_number {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            })
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}
