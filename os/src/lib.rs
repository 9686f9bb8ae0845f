//! Signals, child processes, files and terminals.
//!
//! | for | use | feature |
//! | --- | --- | --- |
//! | signals | [`signal::Signals`] | `signals` |
//! | an interruption of the main task by a signal | [`signal::interrupt_on_signals`] | `signals` |
//! | child processes | [`process::Command`] | `process` |
//! | files and directories | [`fs`] | |
//! | changes in a directory | [`fs::watch`] | `watch` |
//! | standard input, output and error | [`stdio`] | |
//! | events of `tracing` on standard error | [`log_to_stderr`] | `log-to-stderr` |
//!
//! Objects with readiness (a pipe, a process, the pipe behind a signal handler) are descriptors:
//! the kernel *adopts* them and waits for them as for sockets. Operations that can only block (on a
//! file, a directory, a shared terminal) run on threads.
//!
//! A simulated kernel refuses all of this with [`Unsupported`](std::io::ErrorKind::Unsupported),
//! before any effect.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "signals")]
mod adopted;
#[cfg(feature = "process")]
mod child;
#[cfg(feature = "process")]
mod command;
#[cfg(feature = "signals")]
mod default_action;
#[cfg(feature = "process")]
mod exit;
mod file;
mod file_bytes;
pub mod fs;
#[cfg(feature = "signals")]
mod interrupt;
#[cfg(feature = "log-to-stderr")]
mod log;
#[cfg(feature = "process")]
mod output;
mod pool;
#[cfg(feature = "process")]
pub mod process;
#[cfg(feature = "process")]
mod reaper;
#[cfg(feature = "signals")]
pub mod signal;
#[cfg(feature = "signals")]
mod signals;
pub mod stdio;
#[cfg(feature = "signals")]
mod untaken;
#[cfg(feature = "watch")]
mod watch;

#[cfg(feature = "log-to-stderr")]
pub use log::log_to_stderr;
#[cfg(feature = "log-to-stderr")]
#[doc(hidden)]
pub use log::{is_traced, log_after_first_step};
