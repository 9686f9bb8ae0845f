//! Real Celery: its private environment, a process that sends, and a process that works.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pikake_traps::blocking;
use serde_json::Value;

fn here() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/celery"))
}

fn command(python: &Path, url: &str) -> Command {
    let mut command = Command::new(python);
    command.current_dir(here()).env("PEER_URL", url).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Has Celery send these calls; tells what became of each.
pub(crate) async fn send(python: &Path, url: &str, calls: Value) -> Vec<Value> {
    outcomes(command(python, url), calls).await
}

/// The same from a Celery with quorum queues.
pub(crate) async fn send_quorum(python: &Path, url: &str, calls: Value) -> Vec<Value> {
    let mut command = command(python, url);
    command.env("PEER_QUORUM", "1");
    outcomes(command, calls).await
}

/// The same from a Celery with results in Redis.
pub(crate) async fn send_with_redis(
    python: &Path,
    url: &str,
    redis: &str,
    calls: Value,
) -> Vec<Value> {
    let mut command = command(python, url);
    command.env("PEER_RESULTS", redis);
    outcomes(command, calls).await
}

async fn outcomes(mut command: Command, calls: Value) -> Vec<Value> {
    let said = blocking(move || {
        command.arg("peer.py").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut peer = command.spawn().expect("Python runs");
        let mut input = peer.stdin.take().expect("piped");
        input.write_all(calls.to_string().as_bytes()).expect("it reads");
        drop(input);
        let output = peer.wait_with_output().expect("it ends");
        assert!(output.status.success(), "Celery's side has failed");
        output.stdout
    });
    serde_json::from_slice(&said.await.expect("it is not interrupted")).expect("JSON")
}

/// A Celery worker in one process, killed when it is dropped.
pub(crate) struct Worker(Child);

impl Worker {
    pub(crate) fn start(python: &Path, url: &str, queue: &str) -> Self {
        Self::of(command(python, url), queue)
    }

    /// The same with quorum queues.
    pub(crate) fn start_quorum(python: &Path, url: &str, queue: &str) -> Self {
        let mut command = command(python, url);
        command.env("PEER_QUORUM", "1");
        Self::of(command, queue)
    }

    /// The same with results in Redis.
    pub(crate) fn start_with_redis(python: &Path, url: &str, redis: &str, queue: &str) -> Self {
        let mut command = command(python, url);
        command.env("PEER_RESULTS", redis);
        Self::of(command, queue)
    }

    fn of(mut command: Command, queue: &str) -> Self {
        command.args(["-m", "celery", "-A", "peer", "worker", "-P", "solo", "-l", "warning"]);
        command.args(["-Q", queue, "--without-gossip", "--without-mingle"]);
        command.env("PEER_QUEUE", queue).stdout(Stdio::null());
        Self(command.spawn().expect("Celery runs"))
    }

    /// Whether it has ended by itself, which it is not to do.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("it is a child").is_some()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
