//! Tests of the programs: the command line, its commands and examples, signals, RabbitMQ, and the page about a process.

mod commands;
mod console;
mod examples;
mod rabbit;
mod signals;
mod support;
mod web;
