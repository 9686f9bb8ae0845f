//! A real RabbitMQ on loopback: `scripts/real-server`, which stops it when its input ends.
//!
//! Apart, since several tests and examples have it as a module. Each case has a virtual host of its own.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

pub(crate) struct Rabbit {
    script: Child,
    port: u16,
    /// `None` once it is told to end.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    hosts: u32,
}

/// The one of the whole suite. It ends when this process does, since then its input ends.
static RABBIT: Mutex<Option<Rabbit>> = Mutex::new(None);

impl Rabbit {
    pub(crate) fn start() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/real-server");
        let mut command = Command::new(path);
        command.arg("rabbitmq").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.spawn().expect("the script can be run");
        let input = script.stdin.take();
        let mut output = BufReader::new(script.stdout.take().expect("piped")).lines();
        let ready = output.next().expect("the broker starts").expect("text");
        let port = ready.strip_prefix("ready ").expect("it says its port").parse().expect("a port");
        Self { script, port, input, output, hosts: 0 }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Gives the script a command (`kill`, `start`, `ctl …`), and tells what it printed before its answer.
    pub(crate) fn command(&mut self, command: &str) -> Vec<String> {
        writeln!(self.input.as_mut().expect("it runs"), "{command}").expect("it reads");
        let mut said = Vec::new();
        loop {
            let line = self.output.next().expect("it answers").expect("text");
            match line.as_str() {
                "done" => return said,
                "failed" => panic!("the broker's script: {command} failed: {said:?}"),
                _ => said.push(line),
            }
        }
    }

    /// The URL of a virtual host in which there is nothing.
    pub(crate) fn fresh_url(&mut self) -> String {
        self.hosts += 1;
        let host = format!("case{}", self.hosts);
        self.command(&format!("ctl add_vhost {host}"));
        self.command(&format!("ctl set_permissions -p {host} guest .* .* .*"));
        format!("amqp://guest:guest@127.0.0.1:{}/{host}", self.port)
    }
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        self.input = None;
        drop(self.script.wait());
    }
}

/// A virtual host of the suite's broker, in which there is nothing.
pub(crate) fn fresh_url() -> String {
    let mut rabbit = RABBIT.lock().unwrap_or_else(PoisonError::into_inner);
    rabbit.get_or_insert_with(Rabbit::start).fresh_url()
}
