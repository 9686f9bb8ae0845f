//! What the system has besides sockets and signals: files, watched directories, child processes and
//! standard streams.

#[path = "../scratch/mod.rs"]
mod scratch;

mod files;
#[cfg(feature = "process")]
mod process;
mod sim;
mod stdio;
#[cfg(feature = "watch")]
mod watch;
