//! A look into a live pikake process: its tasks, what each one waits for, and where the time goes.
//!
//! A process with a console listens on a Unix socket. A client, such as the program `pikake`, sends
//! a [`Request`](protocol::Request) and gets [`Part`](protocol::Part)s, in frames that [`protocol`]
//! describes.
//!
//! # A program with a console
//!
//! `#[pikake::main(console)]` gives a program a console. In a program that is built with the
//! feature `console`, the variable `PIKAKE_CONSOLE` does so too, and takes the console away again:
//!
//! | `PIKAKE_CONSOLE` | the socket is |
//! | --- | --- |
//! | not set | in the folder of the user, with `#[pikake::main(console)]` |
//! | `1` | in the folder of the user: see [`place`] |
//! | a path | at the path |
//! | `0`, or empty | nowhere: there is no console |
//!
//! If the socket cannot be made, the program goes on, and logs a warning. A program without the
//! attribute starts a [`Console`] itself.
//!
//! ```
//! use pikake::sleep;
//! use std::time::Duration;
//!
//! #[pikake::main(console)]
//! async fn main() -> Result<(), pikake::Interrupted> {
//!     sleep(Duration::from_millis(1)).await
//! }
//! ```
//!
//! The variable `PIKAKE_RECORD` has a program leave a recording in files, also without a socket:
//! see [`record`].
//!
//! Under `#[pikake::main(console)]`, SIGUSR1 and SIGQUIT write the tasks, their waits and the
//! figures to standard error. This needs no socket.
//!
//! # Guarantees and limits
//!
//! * **Access.** The folder of the sockets admits its user alone. On Linux the console also asks
//!   the system who a client is, and closes the connections of others than its user and root.
//! * **Stuck kernels.** The console has a thread of its own. If a kernel does not answer for 250
//!   ms, the console tells which step the kernel is in, and the tasks of the last look. The answer
//!   says so ([`model::Kernel`]).
//! * **Crashes.** If the main task of `#[pikake::main]` panics and there is a console or a
//!   recording, the last 40 events of the main task's kernel are written to standard error. With
//!   `panic = "abort"` they are not.
//! * **Bounds.** A profile lasts at most 60 seconds. The console serves 100 clients at once. A
//!   client that does not take a frame within 10 seconds loses its connection, and so does a client
//!   that sends a malformed request, or more than 16 KiB during an answer. The console answers four
//!   requests for waits at once, and four traces or profiles; further ones fail. It cuts texts of
//!   the program to 4 KiB, and the owners of one wait to 1,000.
//! * **Signals.** With the feature `profile`, SIGPROF does nothing after the first profile or
//!   stack, unless the program had a handler of its own, which then comes back.
//! * **Shortage.** The console keeps a descriptor in reserve, so one client can connect to a
//!   process that is out of descriptors. Another thread of the process may be faster to take a
//!   descriptor that comes free.
//! * **Child processes.** A program that the process starts inherits no descriptor of the console.
//!   If the process forks by other means, and starts no program, the fork has no console: it has no
//!   thread that serves one, lists no kernels, and does not remove the socket at its end. But the
//!   fork keeps the socket open. So a client that connects after the end of the first process waits
//!   until its time is over, instead of being refused. A fork that lives on should close all
//!   descriptors that it does not use.

// Only the handler of a signal has any.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod answer;
pub mod client;
mod crash;
#[doc(hidden)]
pub mod for_main;
pub mod groups;
mod groups_of_kernel;
mod long_steps;
pub mod metrics;
pub mod model;
mod observed;
pub mod page;
pub mod place;
pub mod protocol;
pub mod record;
mod server;
mod socket_file;
mod stacks;
mod system;
pub mod text;
mod threads;
#[cfg(feature = "tokio-console")]
pub mod tokio_console;
pub mod trace;

pub use server::{Builder, Console};
