//! TLS: on both sides, against openssl's programs, among hostile peers, in simulated worlds, and
//! interrupted everywhere.

#![cfg(feature = "tls")]
#![forbid(unsafe_code)]

#[path = "../scratch/mod.rs"]
mod scratch;
#[path = "../support/mod.rs"]
mod support;

mod both;
mod certificates;
mod hostile;
mod interrupted;
mod keys;
mod openssl;
mod worlds;
