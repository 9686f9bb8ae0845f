//! Tests of other libraries on pikake: the examples, the traits of streams, and the HTTP server.

mod examples;
mod http;
mod https;
mod local;
mod on_all;
mod servers;
mod streams;
mod worlds;
