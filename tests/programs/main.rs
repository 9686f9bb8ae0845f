//! The examples' programs, unchanged: in a simulated world in which things go wrong, and on the real
//! kernel over loopback.

#![forbid(unsafe_code)]

#[path = "../../examples/04_echo.rs"]
mod echo_program;

#[path = "../../examples/chat/guest.rs"]
mod guest;
#[path = "../../examples/election/node.rs"]
mod node;
#[path = "../../examples/chat/server.rs"]
mod server;

mod chat;
mod echo;
mod election;
