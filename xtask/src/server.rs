//! The caller's side of `cargo xtask server`: a server that runs for as long as somebody holds it.
//!
//! The server belongs to a process of its own, which stops the server when its standard input ends.
//! So nothing is left however the caller ends, also by SIGKILL. Cargo runs that process, since it
//! knows where the program is and whether the program is up to date.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::needs::Kind;

/// How many virtual hosts are made at a time, at most.
const MOST_HOSTS: u32 = 16;

/// A server on loopback. It is stopped when the last clone is dropped, or this process ends.
#[derive(Clone, Debug)]
pub struct Server {
    kind: Kind,
    port: u16,
    process: Arc<Mutex<Process>>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    /// `None` once the process is to end.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    /// How many virtual hosts or databases were given out.
    hosts: u32,
    /// How many virtual hosts were made.
    made: u32,
}

impl Server {
    /// Starts a server; blocks until it answers. The search for its programs is the caller's.
    ///
    /// # Errors
    ///
    /// If it is not installed or does not start. More is on standard error.
    pub fn start(kind: Kind) -> io::Result<Self> {
        if let Some(need) = kind.needs().iter().find(|need| need.find().is_none()) {
            return Err(io::Error::new(io::ErrorKind::NotFound, need.hint()));
        }
        let mut command = Command::new(env!("CARGO"));
        command.args(["run", "--quiet", "--package", "xtask", "--manifest-path"]);
        command.arg(crate::root().join("Cargo.toml"));
        command.arg("--target-dir").arg(crate::target());
        command.args(["--", "server", kind.name()]);
        // The end of its input ends it. A SIGKILL of the caller's group would leave the server and
        // its folder behind.
        command.process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut output = BufReader::new(output).lines();
        let line = output.next().transpose()?.unwrap_or_default();
        match line.strip_prefix("ready ").and_then(|port| port.parse().ok()) {
            Some(port) => {
                let process = Process { child, input, output, hosts: 0, made: 0 };
                Ok(Self { kind, port, process: Arc::new(Mutex::new(process)) })
            }
            None => {
                let status = child.wait()?;
                Err(io::Error::other(format!("{} did not start: {status}", kind.name())))
            }
        }
    }

    /// Starts a server for a test; blocks until it answers. If its programs are missing, the test
    /// is skipped.
    ///
    /// # Panics
    ///
    /// If the server is installed and does not start; if it is missing, and
    /// [`MUST_NOT_SKIP`](crate::needs::MUST_NOT_SKIP) is set.
    #[track_caller]
    pub fn start_or_skip(kind: Kind) -> Option<Self> {
        for need in kind.needs() {
            need.find_or_skip()?;
        }
        Some(Self::start(kind).unwrap_or_else(|error| panic!("{error}")))
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Gives RabbitMQ or Redis a command (`kill`, `start`, `ctl …`), and returns the lines that it
    /// prints.
    ///
    /// # Panics
    ///
    /// If the command fails.
    pub fn command(&self, command: &str) -> Vec<String> {
        self.process().command(command)
    }

    /// The URL of an empty virtual host of RabbitMQ's, or an empty database of Redis's.
    ///
    /// # Panics
    ///
    /// If this is a PostgreSQL, or RabbitMQ does not answer.
    pub fn fresh_url(&self) -> String {
        assert_ne!(self.kind, Kind::Postgres, "its tests make databases themselves");
        let mut process = self.process();
        process.hosts += 1;
        if self.kind == Kind::Redis {
            return format!("redis://:pikake@127.0.0.1:{}/{}", self.port, process.hosts);
        }
        if process.hosts > process.made {
            process.make_hosts();
        }
        format!("amqp://guest:guest@127.0.0.1:{}/case{}", self.port, process.hosts)
    }

    /// Where RabbitMQ or Redis speaks TLS, and the folder of the certificates: `ca.pem` signs the
    /// server's, `client.pem` and `client.key` log `client` in at RabbitMQ, and `other-ca.pem`
    /// signs none.
    ///
    /// # Panics
    ///
    /// If this is a PostgreSQL.
    pub fn tls(&self) -> (u16, String) {
        let said = self.command("tls").concat();
        let (port, folder) = said.split_once(' ').expect("port and folder");
        (port.parse().expect("a port"), folder.to_owned())
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Makes as many virtual hosts as there are, with one command: each start of `rabbitmqctl`
    /// takes its time.
    fn make_hosts(&mut self) {
        let (first, last) = (self.made + 1, self.made + self.made.clamp(1, MOST_HOSTS));
        let add = "rabbit_vhost:add(H,<<\"guest\">>)";
        let all = "<<\".*\">>";
        let permit = format!(
            "rabbit_auth_backend_internal:set_permissions(<<\"guest\">>,H,{all},{all},{all},<<\"guest\">>)"
        );
        let hosts =
            format!("N<-lists:seq({first},{last}),H<-[<<\"case\",(integer_to_binary(N))/binary>>]");
        self.command(&format!("ctl eval [{{{add},{permit}}}||{hosts}]."));
        self.made = last;
    }

    fn command(&mut self, command: &str) -> Vec<String> {
        writeln!(self.input.as_mut().expect("it runs"), "{command}").expect("it reads");
        let mut said = Vec::new();
        loop {
            let line = self.output.next().expect("it answers").expect("text");
            match line.as_str() {
                "done" => return said,
                "failed" => panic!("the server: {command} failed: {said:?}"),
                _ => said.push(line),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.input = None;
        drop(self.child.wait());
    }
}

/// The RabbitMQ that the tests of this process share; it ends with the process. If it is missing,
/// the test is skipped.
///
/// # Panics
///
/// As [`Server::start_or_skip`].
#[track_caller]
pub fn rabbitmq() -> Option<Server> {
    static SHARED: OnceLock<Server> = OnceLock::new();
    for need in Kind::RabbitMq.needs() {
        need.find_or_skip()?;
    }
    let start = || Server::start(Kind::RabbitMq).unwrap_or_else(|error| panic!("{error}"));
    Some(SHARED.get_or_init(start).clone())
}

/// The URL of an empty virtual host of [`rabbitmq`].
///
/// # Panics
///
/// As [`Server::start_or_skip`].
#[track_caller]
pub fn fresh_url() -> Option<String> {
    rabbitmq().map(|server| server.fresh_url())
}

/// The URL of an empty database of the Redis that the tests of this process share. If it is
/// missing, the test is skipped.
///
/// # Panics
///
/// As [`Server::start_or_skip`].
#[track_caller]
pub fn fresh_redis_url() -> Option<String> {
    static SHARED: OnceLock<Server> = OnceLock::new();
    for need in Kind::Redis.needs() {
        need.find_or_skip()?;
    }
    let start = || Server::start(Kind::Redis).unwrap_or_else(|error| panic!("{error}"));
    Some(SHARED.get_or_init(start).fresh_url())
}
