//! A real RabbitMQ for the whole suite, and a virtual host of it for each case.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The script that runs it. It ends when this process does, since then its input ends.
struct Rabbit {
    _process: Child,
    port: u16,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    hosts: u32,
}

static RABBIT: Mutex<Option<Rabbit>> = Mutex::new(None);

impl Rabbit {
    fn start() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/real-server");
        let mut command = Command::new(path);
        command.arg("rabbitmq").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.spawn().expect("the script can be run");
        let input = script.stdin.take().expect("piped");
        let mut output = BufReader::new(script.stdout.take().expect("piped")).lines();
        let ready = output.next().expect("the broker starts").expect("text");
        let port = ready.strip_prefix("ready ").expect("it says its port").parse().expect("a port");
        Self { _process: script, port, input, output, hosts: 0 }
    }

    fn control(&mut self, command: &str) {
        writeln!(self.input, "ctl {command}").expect("it reads");
        loop {
            match self.output.next().expect("it answers").expect("text").as_str() {
                "done" => return,
                "failed" => panic!("rabbitmqctl {command} failed"),
                _ => {}
            }
        }
    }
}

/// The URL of a virtual host in which there is nothing.
pub(crate) fn fresh_url() -> String {
    let mut rabbit = RABBIT.lock().unwrap_or_else(PoisonError::into_inner);
    let rabbit = rabbit.get_or_insert_with(Rabbit::start);
    rabbit.hosts += 1;
    let host = format!("case{}", rabbit.hosts);
    rabbit.control(&format!("add_vhost {host}"));
    rabbit.control(&format!("set_permissions -p {host} guest .* .* .*"));
    format!("amqp://guest:guest@127.0.0.1:{}/{host}", rabbit.port)
}
