//! What the user sees while it runs.

use std::io::{self, IsTerminal, Write};
use std::rc::Rc;
use std::time::Duration;

use pikake::{Interrupted, sleep};

use crate::tally::Tally;

/// A line that is drawn over again.
const ON_A_TERMINAL: Duration = Duration::from_millis(100);

/// Lines that stay.
const IN_A_FILE: Duration = Duration::from_secs(2);

/// Back to the beginning of the line, and clear it.
const DRAW_OVER: &str = "\r\x1b[K";

/// Shows how far the server has come, until the task is asked to end.
pub(crate) async fn show(tally: Rc<Tally>) {
    let terminal = io::stderr().is_terminal();
    if terminal {
        // The interruption is how this ends.
        drop(show_every(ON_A_TERMINAL, |text| eprint!("{DRAW_OVER}{text}"), &tally).await);
        eprint!("{DRAW_OVER}");
        // What cannot be shown is not worth a failure.
        drop(io::stderr().flush());
    } else {
        drop(show_every(IN_A_FILE, |text| eprintln!("{text}"), &tally).await);
    }
}

async fn show_every(
    interval: Duration,
    print: impl Fn(String),
    tally: &Tally,
) -> Result<(), Interrupted> {
    loop {
        sleep(interval).await?;
        let (connections, messages) = (tally.options.connections, tally.options.messages());
        print(if tally.joined() < connections {
            let joined = grouped(tally.joined() as u64);
            format!("connecting: {joined} of {}", grouped(connections as u64))
        } else {
            let (held, done) = (grouped(tally.held() as u64), grouped(tally.messages()));
            format!("{held} connections held, {done} of {} messages echoed", grouped(messages))
        });
    }
}

/// A number as people write it: 10,000.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
