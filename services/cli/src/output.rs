//! Standard output: one answer, as text or as JSON; and what moves on a terminal meanwhile.

use std::io::{self, Write};
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::Value;

use crate::stop::Stop;

/// How often something moves.
const TICK: Duration = Duration::from_millis(100);

/// Where answers go.
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

    /// Gives an answer, in the form that was asked for.
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

/// Says what is going on, to people.
pub(crate) fn remark(text: &str) {
    // Nobody may be there to read it.
    let _ = writeln!(io::stderr(), "{text}");
}

/// `1 job`, `2 jobs`.
pub(crate) fn of_jobs(count: u64) -> String {
    match count {
        1 => "1 job".to_owned(),
        count => format!("{count} jobs"),
    }
}

/// Moves on a terminal for as long as it lives, and leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Waiting(ProgressBar);

impl Waiting {
    pub(crate) fn for_(what: String) -> Self {
        let bar = ProgressBar::new_spinner().with_message(what);
        bar.enable_steady_tick(TICK);
        Self(bar)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// In one line, and without what a terminal obeys: anybody may have sent it.
fn harmless(cell: &str) -> String {
    let escaped = |c: char| match c.is_control() {
        true => c.escape_debug().to_string(),
        false => c.to_string(),
    };
    cell.chars().map(escaped).collect()
}

/// Columns, as wide as what is in them; the first is text, the others are numbers where `is_number` says so.
pub(crate) fn table(head: &[&str], is_number: &[bool], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| harmless(cell)).collect()).collect();
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
