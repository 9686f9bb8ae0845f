//! The examples that are servers, as processes: asked over HTTP, and ended by a signal.
//!
//! Cargo builds their binaries with a whole `cargo test`.

use std::collections::BTreeSet;
use std::env::consts::EXE_SUFFIX;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use pikake::net::tls::TlsConnector;
use rustix::process::{Pid, Signal, kill_process};

/// A limit for anything that should happen.
const HANG: Duration = Duration::from_secs(60);

struct Server {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Server {
    fn start(example: &str) -> Self {
        Self::start_with(example, &[])
    }

    fn start_with(example: &str, arguments: &[&std::path::Path]) -> Self {
        let this = std::env::current_exe().expect("a path to this test");
        let target = this.ancestors().nth(2).expect("tests are built in target/<profile>/deps");
        let binary = target.join("examples").join(format!("{example}{EXE_SUFFIX}"));
        let mut command = Command::new(&binary);
        command.arg("127.0.0.1:0").args(arguments);
        let started = command.stdout(Stdio::piped()).spawn();
        let mut process = started.unwrap_or_else(|error| {
            panic!("{}: {error}; run the whole `cargo test`", binary.display())
        });
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let line = lines.next().expect("it says where it listens").expect("text");
        let (_, address) = line.split_once("://").expect("a URL");
        let address = address.to_owned();
        Self { process, lines, address }
    }

    fn connect(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(HANG)).expect("a stream");
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        stream
    }

    fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        self.connect(path).read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        body.to_owned()
    }

    /// Asks it to end, and gives the rest of what it printed.
    fn end(mut self) -> Vec<String> {
        let process = Pid::from_child(&self.process);
        kill_process(process, Signal::TERM).expect("it runs");
        let rest = self.lines.by_ref().map(|line| line.expect("text")).collect();
        assert!(self.process.wait().expect("a child").success());
        rest
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[test]
fn axum_interrupts_abandoned_handlers_and_shuts_down() {
    let server = Server::start("axum");
    assert_eq!(server.get("/"), "hello from pikake\n");
    let begun = Instant::now();
    let client = server.connect("/slow");
    while server.get("/orders") != "[1,0]" {
        assert!(begun.elapsed() < HANG, "the order is not begun");
    }
    drop(client);
    while server.get("/orders") != "[0,1]" {
        assert!(begun.elapsed() < HANG, "the order is not rolled back");
    }
    let last = server.end();
    assert!(last[0].ends_with("requests were answered; ended: cancelled: SIGTERM"), "{last:?}");
}

#[test]
fn every_core_serves_and_shuts_down() {
    const MOST: usize = 1000;
    let server = Server::start("cores");
    let mut threads = BTreeSet::new();
    for _ in 0..MOST {
        threads.insert(server.get("/"));
        if threads.len() == 4 {
            break;
        }
    }
    assert_eq!(threads.len(), 4, "{threads:?}");
    let rest = server.end();
    let reports: Vec<_> = rest.iter().filter(|line| line.starts_with("kernel ")).collect();
    assert_eq!(reports.len(), 4, "{rest:?}");
    let all_ended = reports.iter().all(|line| line.ends_with("; ended: cancelled: SIGTERM"));
    assert!(all_ended, "{reports:?}");
}

#[test]
fn https_serves_and_shuts_down() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("localhost.pem");
    let server = Server::start_with("https", &[&file]);
    let certificate = std::fs::read(&file).expect("it is written before");
    let address = server.address.clone();
    let answer = pikake::run(async move {
        let connector = TlsConnector::builder().roots_pem(&certificate)?.build()?;
        let stream = pikake::net::TcpStream::connect(address).await?;
        let stream = connector.connect("localhost", stream).await?;
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await?;
        let (mut all, mut buffer) = (Vec::new(), [0; 1000]);
        while let length @ 1.. = stream.read(&mut buffer).await? {
            all.extend(&buffer[..length]);
        }
        std::io::Result::Ok(String::from_utf8_lossy(&all).into_owned())
    });
    let answer = answer.expect("it answers");
    assert!(answer.ends_with("hello 127.0.0.1 over HTTP/1.1\n"), "{answer}");
    assert_eq!(server.end(), ["1 requests were answered; ended: cancelled: SIGTERM"]);
}
