//! What the tests of this workspace need of the system: programs and servers that are found or not.
//! And what they know of its sources: files, packages, modules, lines of code, and the code on the
//! pages of the book.
//!
//! A test asks for what it needs with [`Need::find_or_skip`] or [`Server::start_or_skip`], and
//! returns when it gets `None`. Nothing is installed for a test: `cargo xtask test` installs what
//! is missing and then runs all of them.
//!
//! ```no_run
//! use xtask::{Kind, Server, needs};
//!
//! fn a_test_of_two_servers() {
//!     let Some(openssl) = needs::OPENSSL.find_or_skip() else { return };
//!     let Some(broker) = Server::start_or_skip(Kind::RabbitMq) else { return };
//!     println!("{} talks to port {}", openssl.display(), broker.port());
//! }
//! ```

#![forbid(unsafe_code)]

pub mod budget;
pub mod needs;
pub mod pages;
mod server;
pub mod source;
pub mod tree;

use std::path::{Path, PathBuf};

pub use needs::{Kind, Need};
pub use server::{Server, fresh_redis_url, fresh_url, rabbitmq};

/// The folder of the workspace.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Cargo's target folder, into which this program was built.
pub fn target() -> PathBuf {
    let this = std::env::current_exe().unwrap_or_default();
    // Cargo keeps this file there, so the folder's place and the folders below it may be any.
    let marked = this.ancestors().find(|folder| folder.join(".rustc_info.json").is_file());
    marked.map_or_else(|| root().join("target"), Path::to_owned)
}
