//! Tests of ticks, clocks and wall time.

mod clock;
mod system;
mod ticks;
mod wall;
