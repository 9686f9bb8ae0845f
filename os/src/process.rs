//! Child processes: run a program, talk with it, wait for its end.
//!
//! ```no_run
//! use pikake_os::process::Command;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let output = Command::new("git").args(["log", "--oneline"]).output().await?;
//! println!("{}: {}", output.status, String::from_utf8_lossy(&output.stdout));
//! # Ok(()) }
//! ```
//!
//! # Who ends a child, and who waits for it
//!
//! | what happens | what becomes of the child |
//! | --- | --- |
//! | [`output`](Command::output) or [`status`](Command::status) is interrupted | it is asked to end by SIGTERM, killed when its [grace](Command::grace) is over, and waited for; the error has what it had written |
//! | one of them is dropped half-way | it is killed |
//! | a [`Child`] is dropped | it goes on, unless it is to be [killed then](Command::kill_on_drop) |
//! | [`Child::wait`] is interrupted or dropped | nothing; wait again |
//! | [`Child::stop`] | SIGTERM, then SIGKILL |
//!
//! No child stays a zombie: those that nobody waits for any more are waited for by a thread of the
//! process, which is there for as long as there are any.
//!
//! Only the child itself is signalled, not what it has started. A grandchild that holds a pipe open
//! keeps `output` waiting for its end, up to the caller's deadline.

pub use std::process::{ExitStatus, Output, Stdio};

pub use crate::child::Child;
pub use crate::command::{Command, DEFAULT_GRACE};
pub use crate::output::{CommandError, TooMuchOutput};
