//! Sockets on the system's loopback: TCP, UDP and Unix sockets, streams, servers, names and TLS.

#![forbid(unsafe_code)]

#[path = "../scratch/mod.rs"]
mod scratch;
#[path = "../support/mod.rs"]
mod support;

mod datagram;
#[cfg(feature = "dns")]
mod dns;
mod graceful;
mod names;
mod serve;
mod streams;
mod tcp;
#[cfg(feature = "tls")]
mod tls;
mod unix;
