//! Tests of TCP, UDP and Unix sockets on the system's loopback, of streams, servers, names and TLS.

#![forbid(unsafe_code)]

#[path = "../../../tests/support/mod.rs"]
mod support;

mod datagram;
mod dns;
mod graceful;
mod names;
mod on_all;
mod serve;
mod streams;
mod tcp;
mod tls;
mod unix;
