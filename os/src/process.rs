//! Child processes: start programs, communicate with them, wait for their end.
//!
//! | for | use |
//! | --- | --- |
//! | the output of a program | [`Command::output`] |
//! | the exit status of a program | [`Command::status`] |
//! | a conversation with a program | [`Command::spawn`], and the pipes of the [`Child`] |
//! | the end of a child | [`Child::wait`], [`Child::stop`], [`Child::signal`] |
//!
//! ```no_run
//! use pikake::process::Command;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let output = Command::new("git").args(["log", "--oneline"]).output().await?;
//! println!("{}: {}", output.status, String::from_utf8_lossy(&output.stdout));
//! # Ok(()) }
//! ```
//!
//! # The end of a child
//!
//! | event | effect on the child |
//! | --- | --- |
//! | [`output`](Command::output) or [`status`](Command::status) is interrupted | SIGTERM, SIGKILL after its [grace](Command::grace), and a wait for its end; the error has its output |
//! | the future of one of them is dropped | SIGKILL |
//! | a [`Child`] is dropped | none, or SIGKILL with [`kill_on_drop`](Command::kill_on_drop) |
//! | [`Child::wait`] is interrupted or dropped | none; wait again |
//! | [`Child::stop`] | SIGTERM, then SIGKILL |
//!
//! No child stays a zombie: a thread waits for dropped children, as long as there are any.
//!
//! Signals go to the child only, not to its own children. If one of these holds a pipe open,
//! `output` waits for its end, up to the caller's deadline.

pub use std::process::{ExitStatus, Output, Stdio};

pub use crate::child::Child;
pub use crate::command::{Command, DEFAULT_GRACE};
pub use crate::output::{CommandError, TooMuchOutput};
