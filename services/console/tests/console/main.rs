//! Tests of the console, of its figures as an OpenMetrics text, and of its server for the program
//! tokio-console.

#[path = "../../../../tests/support/mod.rs"]
mod support;

mod live;
mod metrics;
mod page;
mod served;
mod text;
mod tokio_console;
mod trace;
