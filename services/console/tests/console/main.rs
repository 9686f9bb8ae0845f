//! Tests of the console.

mod trace;
