//! Tests of the HTTP server, on one kernel and on several, with axum, over TLS and in simulated
//! worlds; and of the client.

mod access;
mod anywhere;
mod client;
mod https;
mod local;
mod offers;
mod on_all;
mod refused;
mod server;
mod shed;
mod upgrade;
mod worlds;
