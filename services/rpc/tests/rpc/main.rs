//! Tests of calls between processes.

mod calls;
mod client;
mod evolution;
mod faults;
mod fuzz;
mod harness;
mod hostile;
mod kernels;
mod offers;
mod packets;
mod panics;
mod peers;
mod raw;
mod server;
mod services;
mod shop;
mod streams;
mod tls;
mod trace;
mod worlds;
mod writes;
