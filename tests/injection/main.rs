//! An interruption at every suspension of everything that suspends.
//!
//! Most programs here do something in a loop until it is done, however often it is interrupted:
//! [`insist::Insistent`] counts how often that was. What has been lost or done twice shows in the
//! result, and an interruption that was lost, or told twice, shows in the count.

mod amqp;
#[cfg(feature = "jobs")]
mod brokers;
mod connections;
mod datagrams;
mod examples;
mod groups;
mod injector;
mod insist;
#[cfg(feature = "jobs")]
mod jobs;
mod lost;
mod pieces;
#[path = "../scratch/mod.rs"]
mod scratch;
mod streams;
#[cfg(all(feature = "process", feature = "watch"))]
mod system;
mod threads;
mod waits;
