//! Tests of the programs: the command line, its commands and examples, signals, and RabbitMQ.

mod commands;
mod examples;
mod rabbit;
mod signals;
mod support;
