//! Tests of the programs: the command line, its commands and examples, signals, the log, brokers
//! that are away, RabbitMQ, and the pages about a process and about a broker.

mod commands;
mod console;
mod control;
mod dashboard;
mod examples;
mod log;
mod outages;
mod rabbit;
mod replay;
mod signals;
mod support;
mod troubles;
mod watch;
mod web;
