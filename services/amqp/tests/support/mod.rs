//! A real RabbitMQ for a test file: `scripts/real-server`, which stops it when its input ends.

#![allow(dead_code, reason = "not every test file needs all of it")]
#![allow(unreachable_pub, reason = "a module of several test files")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use pikake_amqp::{Address, Connection, Options};
use pikake_kernel::Kernel;

/// What has not happened by then never will.
pub const HANG: Duration = Duration::from_secs(90);

/// A broker on loopback.
pub struct Broker {
    script: Option<(Child, ChildStdin, Lines<BufReader<ChildStdout>>)>,
    port: u16,
}

impl Broker {
    pub fn start() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/real-server");
        let mut command = Command::new(path);
        command.arg("rabbitmq").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.spawn().expect("the script can be run");
        let input = script.stdin.take().expect("piped");
        let mut output = BufReader::new(script.stdout.take().expect("piped")).lines();
        let ready = output.next().expect("the broker starts").expect("text");
        let port = ready.strip_prefix("ready ").expect("it says its port").parse().expect("a port");
        Self { script: Some((script, input, output)), port }
    }

    /// In the place of one that is lent.
    pub fn none() -> Self {
        Self { script: None, port: 0 }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> Address {
        format!("amqp://127.0.0.1:{}", self.port).parse().expect("an address")
    }

    /// Where it speaks TLS, and the folder of the certificates; see the script.
    pub fn tls(&mut self) -> (u16, String) {
        let said = self.command("tls").concat();
        let (port, folder) = said.split_once(' ').expect("port and folder");
        (port.parse().expect("a port"), folder.to_owned())
    }

    /// Gives the script a command, and tells what it printed before its answer.
    pub fn command(&mut self, command: &str) -> Vec<String> {
        let (_, input, output) = self.script.as_mut().expect("it runs");
        writeln!(input, "{command}").expect("it reads");
        let mut said = Vec::new();
        loop {
            let line = output.next().expect("it answers").expect("text");
            match line.as_str() {
                "done" => return said,
                "failed" => panic!("the broker's script: {command} failed"),
                _ => said.push(line),
            }
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some((mut script, input, _)) = self.script.take() {
            drop(input);
            drop(script.wait());
        }
    }
}

/// The one broker of a test file, started once, for one test at a time.
pub struct Shared(OnceLock<Mutex<Broker>>);

impl Shared {
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    pub fn get(&self) -> MutexGuard<'_, Broker> {
        let broker = self.0.get_or_init(|| Mutex::new(Broker::start()));
        broker.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Runs a test on a real kernel, within [`HANG`].
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let kernel = Kernel::new().expect("a kernel");
    kernel.run(async { pikake_traps::timeout_after(HANG, test).await }).expect("it hangs")
}

pub async fn connect(address: &Address) -> Connection {
    Connection::open(address, Options::default()).await.expect("the broker lets us in")
}
