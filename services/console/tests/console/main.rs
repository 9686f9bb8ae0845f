//! Tests of the console.

mod page;
mod text;
mod trace;
