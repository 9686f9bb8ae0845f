//! Tests of other libraries on pikake: the examples, the traits of streams, the HTTP server and the
//! HTTP client.

mod client;
mod examples;
mod http;
mod https;
mod local;
mod on_all;
mod servers;
mod streams;
mod worlds;
