//! What the system has besides sockets: signals, child processes, files, terminals.
//!
//! | you want | use | the feature |
//! | --- | --- | --- |
//! | to hear of signals | [`signal::Signals`] | `signals` |
//! | to be told by a signal to end | [`signal::interrupt_on_signals`] | `signals` |
//! | to run a program | [`process::Command`] | `process` |
//! | files and directories | [`fs`] | |
//! | to know what happens in a directory | [`fs::watch`] | `watch` |
//! | what the process was given to read from, and to write to | [`stdio`] | |
//!
//! Two ways lead there. What the system can wait for (a pipe, a process, the pipe behind a signal
//! handler) is a descriptor that the kernel *adopts*, and is waited for as a socket. What the system
//! can only block on (a file, a directory, a terminal that others share) is done in a thread.
//!
//! None of it can be simulated: a kernel that simulates the world refuses all of this with
//! [`Unsupported`](std::io::ErrorKind::Unsupported), before anything has happened.

#![forbid(unsafe_code)]

#[cfg(feature = "signals")]
mod adopted;
#[cfg(feature = "process")]
mod child;
#[cfg(all(test, feature = "process"))]
mod child_tests;
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
#[cfg(feature = "watch")]
mod watch;
