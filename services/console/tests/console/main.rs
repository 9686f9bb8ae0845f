//! Tests of the console.

#[path = "../../../../tests/support/mod.rs"]
mod support;

mod live;
mod page;
mod served;
mod text;
mod trace;
