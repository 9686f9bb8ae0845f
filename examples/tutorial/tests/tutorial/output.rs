//! Runs the program at each of its stages, and compares its output with what the tutorial shows.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pikake::net::tls::TlsConnector;
use rustix::process::{Pid, Signal, kill_process};

/// Runs a stage that ends by itself. Its standard output must be the file that the tutorial shows.
#[track_caller]
fn prints(program: &str, expected: &str) -> Output {
    let output = Command::new(program).stdin(Stdio::null()).output().expect("the stage runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{errors}");
    assert!(output.status.success(), "{}: {errors}", output.status);
    output
}

/// A stage that runs until it gets SIGINT.
struct Running {
    process: Child,
    output: BufReader<ChildStdout>,
    directory: PathBuf,
}

impl Running {
    /// Starts a stage in an empty directory of its own.
    fn start(stage: &str, program: &str, arguments: &[String]) -> Self {
        Self::start_with(stage, program, arguments, Stdio::inherit())
    }

    /// The same, with this standard error.
    fn start_with(stage: &str, program: &str, arguments: &[String], errors: Stdio) -> Self {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(stage);
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        // The console of a stage is not in the folder in which those of other tests look.
        command.env("PIKAKE_CONSOLE", directory.join("console"));
        let mut process = command.spawn().expect("the stage starts");
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        Self { process, output, directory }
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line of text");
        line
    }

    /// Reads the address of the page, which the stage prints first.
    fn address(&mut self) -> SocketAddr {
        let line = self.next_line();
        let address = line.rsplit([' ', '/']).next().expect("a word");
        address.trim().parse().unwrap_or_else(|_| panic!("{line:?} has no address"))
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.process);
        kill_process(process, signal).expect("the stage runs");
    }

    /// Ends the stage as Ctrl-C does, and returns the rest of its output.
    fn end(mut self) -> String {
        self.signal(Signal::INT);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("text");
        let status = self.process.wait().expect("the stage ends");
        assert!(status.success(), "{status}");
        rest
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a service that answers each `ping` with `pong`.
fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut ping = [0; 5];
            if stream.read_exact(&mut ping).is_ok() {
                let _ = stream.write_all(b"pong\n");
            }
        }
    });
    address
}

/// A port that no service uses.
const NOWHERE: &str = "127.0.0.1:1";

#[test]
fn hello() {
    let output = prints(env!("CARGO_BIN_EXE_hello"), include_str!("../../output/hello.txt"));
    assert!(output.stderr.is_empty());
}

#[test]
fn children() {
    prints(env!("CARGO_BIN_EXE_children"), include_str!("../../output/children.txt"));
}

#[test]
fn timeout() {
    prints(env!("CARGO_BIN_EXE_timeout"), include_str!("../../output/timeout.txt"));
}

#[test]
fn cancel() {
    let mut stage = Running::start("cancel", env!("CARGO_BIN_EXE_cancel"), &[]);
    let page: String = (0..3).map(|_| stage.next_line()).collect();
    let next_round = stage.next_line();
    let saved = stage.directory.join("page.txt");
    let rest = stage.end();
    assert_eq!(format!("{page}{next_round}{rest}"), include_str!("../../output/cancel.txt"));
    assert_eq!(std::fs::read_to_string(saved).expect("it is saved"), page);
}

/// Reads the page until it has these lines: the first check takes a moment.
#[track_caller]
fn has_page(address: SocketAddr, expected: &str) {
    loop {
        let mut page = String::new();
        let mut stream = TcpStream::connect(address).expect("the server listens");
        stream.read_to_string(&mut page).expect("text");
        if page == expected {
            return;
        }
        let is_begin = page.lines().all(|line| expected.contains(line));
        assert!(is_begin && page.lines().count() < expected.lines().count(), "{page}");
        thread::yield_now();
    }
}

#[test]
fn server() {
    let arguments =
        ["127.0.0.1:0".to_owned(), format!("db={}", service()), format!("web={NOWHERE}")];
    let mut stage = Running::start("server", env!("CARGO_BIN_EXE_server"), &arguments);
    has_page(stage.address(), include_str!("../../output/server.txt"));
    assert_eq!(stage.end(), "the server was interrupted: cancelled: SIGINT\n");
}

/// The files of a certificate for `localhost` and of its key, for the stage of this name.
fn certificate(stage: &str) -> [PathBuf; 2] {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let files = ["crt", "key"]
        .map(|kind| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{stage}.{kind}")));
    std::fs::write(&files[0], made.cert.pem()).expect("the certificate is written");
    std::fs::write(&files[1], made.signing_key.serialize_pem()).expect("the key is written");
    files
}

/// The arguments of a stage with HTTPS: its address, its certificate, its key, and two services.
fn https_arguments([certificate, key]: &[PathBuf; 2], web: impl Display) -> [String; 5] {
    let [certificate, key] = [certificate, key].map(|file| file.display().to_string());
    let services = [format!("db={}", service()), format!("web={web}")];
    let [db, web] = services;
    ["127.0.0.1:0".to_owned(), certificate, key, db, web]
}

/// Reads the page over HTTPS.
async fn fetch(address: SocketAddr, roots: &[u8]) -> io::Result<String> {
    let connector = TlsConnector::builder().roots_pem(roots)?.alpn(["http/1.1"]).build()?;
    let stream = pikake::net::TcpStream::connect(address).await?;
    let stream = connector.connect("localhost", stream).await?;
    let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await?;
    let (mut response, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        match stream.read(&mut buffer).await? {
            0 => break,
            length => response.extend_from_slice(&buffer[..length]),
        }
    }
    let response = String::from_utf8(response).map_err(io::Error::other)?;
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    Ok(body.to_owned())
}

#[test]
fn https() {
    let files = certificate("https");
    let roots = std::fs::read(&files[0]).expect("the certificate");
    for (stage, program) in
        [("https", env!("CARGO_BIN_EXE_https")), ("simulated", env!("CARGO_BIN_EXE_simulated"))]
    {
        let mut stage = Running::start(stage, program, &https_arguments(&files, NOWHERE));
        let address = stage.address();
        let expected = include_str!("../../output/https.txt");
        pikake::run(async { while fetch(address, &roots).await.expect("a page") != expected {} });
        let report = stage.end();
        assert!(report.contains("answered"), "{report}");
    }
}

/// A service that accepts connections and never answers.
fn silent_service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let streams: Vec<_> = listener.incoming().collect();
        drop(streams);
    });
    address
}

/// A list with one line `…` in place of waits in the libraries, and `…` in place of what differs
/// from run to run.
fn shown(list: &[String]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in list {
        let line = match line.contains(" examples/") {
            true => {
                let mut line = line.clone();
                for (before, after) in [
                    ("waiting for ", ","),
                    ("timer, ", " left"),
                    ("deadline with ", " left"),
                    ("socket ", ")"),
                ] {
                    elide(&mut line, before, after);
                }
                line
            }
            false => "…".to_owned(),
        };
        lines.push(line);
    }
    lines.dedup();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Puts `…` between two texts of a line, if it has the first.
fn elide(line: &mut String, before: &str, after: &str) {
    if let Some((head, rest)) = line.split_once(before) {
        let (_, rest) = rest.split_once(after).expect("the other text");
        *line = format!("{head}{before}…{after}{rest}");
    }
}

#[test]
fn live() {
    let arguments = https_arguments(&certificate("live"), silent_service());
    let (errors, of_stage) = UnixStream::pair().expect("a pair of sockets");
    let errors_of_stage = Stdio::from(OwnedFd::from(of_stage));
    let live = env!("CARGO_BIN_EXE_live");
    let mut stage = Running::start_with("live", live, &arguments, errors_of_stage);
    stage.address();
    let mut errors = BufReader::new(errors).lines().map(|line| line.expect("a line of text"));
    // Ask until `db` has answered and `web` is asked: most of the time both checks pause.
    let expected = include_str!("../../output/live.txt");
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        stage.signal(Signal::USR1);
        errors.by_ref().find(|line| line.starts_with("pikake: live")).expect("a list");
        let list: Vec<_> = errors.by_ref().take_while(|line| !line.contains(" tasks: ")).collect();
        let list = shown(&list);
        if list == expected {
            break;
        }
        assert!(Instant::now() < end, "the list is now:\n{list}");
    }
    stage.end();
}
