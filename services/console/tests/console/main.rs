//! Tests of the console.

mod text;
mod trace;
