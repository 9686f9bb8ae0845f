//! Signals, as a stream or as an interruption of the main task.
//!
//! | for | use |
//! | --- | --- |
//! | a program that cleans up after SIGINT or SIGTERM | `#[pikake::main(signals)]`; in a kernel of your own: [`interrupt_on_signals`] |
//! | one SIGINT, in a `select!` | [`ctrl_c`] |
//! | signals one by one, such as SIGHUP | [`Signals`] |
//! | the name of a signal | [`signal_name`] |
//!
//! ```no_run
//! use pikake::signal::{SIGHUP, SIGTERM, Signals};
//!
//! # async fn example() -> std::io::Result<()> {
//! let mut signals = Signals::new([SIGHUP, SIGTERM])?;
//! loop {
//!     match signals.next().await? {
//!         SIGHUP => println!("reading the configuration again"),
//!         _ => return Ok(()),
//!     }
//! }
//! # }
//! ```

pub use signal_hook::consts::signal::*;
pub use signal_hook::low_level::signal_name;

pub use crate::interrupt::{OnSignals, interrupt_on_signals};
pub use crate::signals::{Signals, ctrl_c};
