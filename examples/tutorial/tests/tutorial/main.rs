//! Tests of the tutorial: each stage's output, and the report of the simulator.

mod found;
mod output;
