//! Tests of TCP, UDP and Unix sockets on the system's loopback, of streams, also by the traits
//! of other libraries, servers, names and TLS.

#![forbid(unsafe_code)]

#[path = "../../../tests/support/mod.rs"]
mod support;

mod datagram;
mod dns;
mod foreign_io;
mod graceful;
mod names;
mod on_all;
mod serve;
mod streams;
mod tcp;
mod tls;
mod unix;
