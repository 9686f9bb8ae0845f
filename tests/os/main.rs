//! What the system has besides sockets and signals: files, watched directories, child processes and
//! standard streams.

#[path = "../scratch/mod.rs"]
mod scratch;

mod files;
#[cfg(all(feature = "process", feature = "signals"))]
mod process;
mod sim;
mod stdio;
#[cfg(feature = "watch")]
mod watch;
