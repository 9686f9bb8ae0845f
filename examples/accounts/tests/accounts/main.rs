//! Tests of the accounts: in simulated worlds, and as a program.

mod faults;
mod output;
