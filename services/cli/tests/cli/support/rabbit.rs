//! A real RabbitMQ that ends with the test process.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The script that runs it. It ends when its input does.
pub(crate) struct Rabbit {
    _script: Child,
    port: u16,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    hosts: u32,
}

static RABBIT: Mutex<Option<Rabbit>> = Mutex::new(None);

impl Rabbit {
    pub(crate) fn start() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/real-server");
        let mut command = Command::new(path);
        command.arg("rabbitmq").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.spawn().expect("the script can be run");
        let input = script.stdin.take().expect("piped");
        let mut output = BufReader::new(script.stdout.take().expect("piped")).lines();
        let ready = output.next().expect("the broker starts").expect("text");
        let port = ready.strip_prefix("ready ").expect("it says its port").parse().expect("a port");
        Self { _script: script, port, input, output, hosts: 0 }
    }

    /// The output of `rabbitmqctl`.
    pub(crate) fn control(&mut self, command: &str) -> Vec<String> {
        self.command(&format!("ctl {command}"))
    }

    /// The output of the script.
    fn command(&mut self, command: &str) -> Vec<String> {
        writeln!(self.input, "{command}").expect("it reads");
        let mut said = Vec::new();
        loop {
            match self.output.next().expect("it answers").expect("text") {
                line if line == "done" => return said,
                line if line == "failed" => panic!("{command} failed"),
                line => said.push(line),
            }
        }
    }

    /// The same virtual host over TLS, trusting an authority that the script has made.
    pub(crate) fn over_tls(&mut self, url: &str, ca: &str) -> String {
        let said = self.command("tls").concat();
        let (port, folder) = said.split_once(' ').expect("port and folder");
        let host = url.rsplit('/').next().expect("a virtual host");
        format!("amqps://guest:guest@localhost:{port}/{host}?cacertfile={folder}/{ca}")
    }

    /// The name and the URL of a virtual host in which there is nothing.
    pub(crate) fn fresh(&mut self) -> (String, String) {
        self.hosts += 1;
        let host = format!("case{}", self.hosts);
        self.control(&format!("add_vhost {host}"));
        self.control(&format!("set_permissions -p {host} guest .* .* .*"));
        let url = format!("amqp://guest:guest@127.0.0.1:{}/{host}", self.port);
        (host, url)
    }
}

/// Calls something with the one broker of this process.
pub(crate) fn with_rabbit<T>(use_it: impl FnOnce(&mut Rabbit) -> T) -> T {
    let mut rabbit: MutexGuard<'_, Option<Rabbit>> =
        RABBIT.lock().unwrap_or_else(PoisonError::into_inner);
    use_it(rabbit.get_or_insert_with(Rabbit::start))
}
