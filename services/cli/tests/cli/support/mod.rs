//! Runs programs to their end, or in the background until a signal.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) mod broker;
pub(crate) mod rabbit;

/// A limit for anything that should happen.
pub(crate) const HANG: Duration = Duration::from_secs(90);
/// How often something is looked at.
const MOMENT: Duration = Duration::from_millis(10);

/// The program `pikake`.
pub(crate) fn pikake() -> PathBuf {
    env!("CARGO_BIN_EXE_pikake").into()
}

/// An example of this package.
pub(crate) fn example(name: &str) -> PathBuf {
    let folder = pikake().parent().expect("target/<profile>").join("examples");
    let path = folder.join(name);
    assert!(path.exists(), "{} is missing: run the package's whole `cargo test`", path.display());
    path
}

/// The application of the tests.
pub(crate) fn application() -> PathBuf {
    example("cli_test_app")
}

/// A folder, and the URL of a database in it.
pub(crate) struct Place {
    folder: TempDir,
    url: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite://{}", folder.path().join("jobs.db").display());
        Self { folder, url }
    }

    /// The same with another broker.
    pub(crate) fn at(url: String) -> Self {
        Self { url, ..Self::new() }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder, as an argument of a job.
    pub(crate) fn argument(&self) -> String {
        format!("\"{}\"", self.folder().display())
    }

    /// How many files in the folder end like this.
    pub(crate) fn count(&self, end: &str) -> usize {
        let names = std::fs::read_dir(self.folder()).expect("it is there");
        names
            .filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().ends_with(end))
            .count()
    }

    pub(crate) fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("PIKAKE_BROKER", &self.url).stdin(Stdio::null());
        command
    }

    #[track_caller]
    pub(crate) fn run(&self, program: &Path, arguments: &[&str]) -> Ended {
        run(self.command(program, arguments))
    }

    /// Runs `pikake`, which has to end well; gives what it printed.
    #[track_caller]
    pub(crate) fn pikake(&self, arguments: &[&str]) -> String {
        self.run(&pikake(), arguments).good()
    }

    /// The numbers of a queue.
    #[track_caller]
    pub(crate) fn counts(&self, queue: &str) -> Value {
        let status = self.run(&pikake(), &["status", queue, "--json"]).json();
        status["queues"][0].clone()
    }

    pub(crate) fn worker(&self, program: &Path, arguments: &[&str]) -> Running {
        let mut worker = Running::start(self.command(program, arguments));
        worker.until("the worker is ready");
        worker
    }
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn good(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out.trim_end().to_owned()
    }

    /// One JSON document.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The code, and all of these in what it said.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for said in said {
            assert!(self.err.contains(said), "`{said}` is not in {self:?}");
        }
    }
}

#[track_caller]
pub(crate) fn run(command: Command) -> Ended {
    Running::start(command).end()
}

/// A program in the background. Dropped, it is killed.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    out: Option<thread::JoinHandle<String>>,
    err: String,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (sender, lines) = channel();
        let err = BufReader::new(child.stderr.take().expect("piped"));
        thread::spawn(move || {
            err.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut stdout = child.stdout.take().expect("piped");
        let out = thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).expect("text");
            text
        });
        Self { child, lines, out: Some(out), err: String::new() }
    }

    /// Waits for a line with these words on its standard error, and returns it.
    #[track_caller]
    pub(crate) fn until(&mut self, words: &str) -> String {
        loop {
            match self.lines.recv_timeout(HANG) {
                Ok(line) => {
                    self.err += &line;
                    self.err.push('\n');
                    if line.contains(words) {
                        return line;
                    }
                }
                Err(_) => panic!("it never said `{words}`, but: {}", self.err),
            }
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = Pid::from_child(&self.child);
        kill_process(id, signal).expect("it runs");
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        let mut status: Option<ExitStatus> = None;
        wait_for("the end of a program", || {
            status = self.child.try_wait().expect("it can be waited for");
            status.is_some()
        });
        while let Ok(line) = self.lines.recv_timeout(HANG) {
            self.err += &line;
            self.err.push('\n');
        }
        let out = self.out.take().expect("once").join().expect("text");
        Ended {
            code: status.and_then(|status| status.code()),
            out,
            err: std::mem::take(&mut self.err),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[track_caller]
pub(crate) fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_there() {
        assert!(begin.elapsed() < HANG, "waited in vain for {what}");
        thread::sleep(MOMENT);
    }
}
