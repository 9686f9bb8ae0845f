//! Consoles of real processes: this binary runs one of its tests as a child, and looks into the
//! child.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pikake::console::answer::Answer;
use pikake::console::client::{Client, ClientError};
use pikake::console::model::{Task, TaskKey};
use pikake::console::protocol::Request;
use tempfile::TempDir;

use crate::support::child;

#[cfg(target_os = "linux")]
mod children;
mod costs;
mod crashes;
mod ends;
mod hostile;
mod leaks;
mod places;
mod shortage;
mod signals;
mod sizes;
mod states;
mod stuck;

/// Long enough for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The line of a child whose program is where the test wants it.
const READY: &str = "the program is ready";

/// A child process, killed by the drop.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Program {
    /// Runs a test of this binary in a child, and waits until it is [`ready`].
    fn start(test: &str) -> Self {
        Self::start_by(test, |_| {})
    }

    fn start_by(test: &str, change: impl FnOnce(&mut Command)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = child::child(&format!("served::{test}"));
        command.env("XDG_RUNTIME_DIR", folder.path());
        command.env_remove("PIKAKE_CONSOLE").env_remove("TOKIO_CONSOLE_BIND");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Self { child, output, folder };
        program.wait_for(READY);
        program
    }

    /// Reads the child's output up to a line that ends with this text.
    fn wait_for(&mut self, text: &str) {
        let mut seen = String::new();
        loop {
            let begin = seen.len();
            let read = self.output.read_line(&mut seen).unwrap();
            assert!(read > 0, "the child has ended: {seen}");
            if seen[begin..].trim_end().ends_with(text) {
                return;
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(format!("pikake/{}.sock", self.child.id()))
    }

    fn client(&self) -> Client {
        Client::connect_to(self.path(), PATIENCE).unwrap()
    }

    fn ask(&self, request: &Request) -> Answer {
        ask(&mut self.client(), request)
    }

    /// Lets the child go on past [`ready`], and end.
    fn finish(mut self) -> String {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(client: &mut Client, request: &Request) -> Answer {
    Answer::of(client.ask(request).unwrap()).unwrap()
}

/// The reason of a request that fails.
#[track_caller]
fn refusal(client: &mut Client, request: &Request) -> String {
    match client.ask(request) {
        Err(ClientError::Failed(why)) => why,
        other => panic!("the request does not fail: {other:?}"),
    }
}

/// The task with this name.
#[track_caller]
fn named<'a>(answer: &'a Answer, name: &str) -> &'a Task {
    let mut found = answer.tasks.iter().filter(|task| task.name == name);
    let task = found.next().unwrap_or_else(|| panic!("no task {name} in {answer:?}"));
    assert!(found.next().is_none(), "two tasks {name}");
    task
}

fn key(kernel: u32, task: u64) -> TaskKey {
    TaskKey { kernel, task }
}

/// Tells the parent that the program is where the test wants it.
fn say_ready() {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{READY}").unwrap();
    output.flush().unwrap();
}

/// Blocks until the parent lets the child end, or has ended itself.
fn wait_for_parent() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Tells the parent that the program is where the test wants it, and waits until the parent lets it
/// end.
async fn ready() {
    say_ready();
    pikake::thread::run_in_thread(wait_for_parent).await.unwrap();
}

/// Ends the process when the parent ends, also if the main thread is stuck.
fn end_with_parent() {
    thread::spawn(|| {
        wait_for_parent();
        std::process::exit(1);
    });
}

/// Repeats a look until it finds what the test waits for.
#[track_caller]
fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "it does not come to that");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A bare connection, after the introduction of the process.
fn bare(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let greeting: Option<pikake::console::model::Process> =
        pikake::console::protocol::read_frame(&mut stream).unwrap();
    assert!(greeting.is_some());
    stream
}
