//! Tests that interrupt programs at every suspension.
//!
//! Most programs retry in a loop until they are done, and [`support::insist::Insistent`] counts the
//! interruptions. A wrong result shows work that is lost or done twice; a wrong count shows an
//! interruption that is lost or reported twice.

mod amqp;
mod book;
mod connections;
mod datagrams;
mod examples;
mod groups;
mod injector;
mod lost;
mod pieces;
#[cfg(feature = "jobs")]
mod sqlite;
mod streams;
#[path = "../support/mod.rs"]
mod support;
#[cfg(all(feature = "process", feature = "watch"))]
mod system;
mod threads;
mod waits;
