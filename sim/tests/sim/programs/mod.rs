//! The examples' programs, unchanged: in a simulated world in which things go wrong, and on the
//! real kernel over loopback.

#[path = "../../../../examples/04_echo.rs"]
mod echo_program;
#[path = "../../../../examples/election/node.rs"]
mod node;

mod chat;
mod echo;
mod election;
