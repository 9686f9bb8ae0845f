//! `--watch`: looks again and again, and shows each look in place of the last one; in a pipe, as
//! one block each.

use std::io::{self, IsTerminal};
use std::time::Duration;

use pikake::sleep;
use serde_json::Value;

use crate::output::Output;
use crate::stop::Stop;

/// Moves the cursor to the begin of the screen, and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J\u{1b}[3J";

/// What one look has seen.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) json: Value,
    pub(crate) text: String,
}

/// Shows a look; with `every`, looks again after each such time, until a signal ends the command. A
/// failed look that is not the first one is an error message, and does not end the command.
pub(crate) async fn show(
    output: Output,
    every: Option<Duration>,
    look: impl AsyncFn() -> Result<Look, Stop>,
) -> Result<(), Stop> {
    let first = look().await?;
    let Some(every) = every else { return output.answer(|| first.json, || first.text) };
    let is_screen = io::stdout().is_terminal() && !output.is_json();
    let mut seen: Result<Look, Stop> = Ok(first);
    let mut is_first = true;
    loop {
        match seen {
            Ok(Look { json, text }) => {
                let text = match (is_screen, is_first) {
                    (true, _) => format!("{CLEAR}{text}"),
                    (false, true) => text,
                    (false, false) => format!("\n{text}"),
                };
                output.answer(|| json, || text)?;
            }
            Err(stop) => drop(stop.report()),
        }
        is_first = false;
        sleep(every).await.map_err(Stop::other)?;
        seen = look().await;
        if seen.is_err() {
            // Returns the interruption, if that was the error.
            sleep(Duration::ZERO).await.map_err(Stop::other)?;
        }
    }
}
