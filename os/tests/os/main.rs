//! Tests of files, watched directories, child processes, standard streams and signals.

#[path = "../../../tests/support/mod.rs"]
mod support;

mod crashes;
mod files;
mod log;
mod process;
mod signals;
mod sim;
mod stdio;
mod watch;
