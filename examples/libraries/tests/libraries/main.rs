//! Runs the examples of other libraries on pikake: those that end by themselves, and the servers.

mod examples;
mod servers;
