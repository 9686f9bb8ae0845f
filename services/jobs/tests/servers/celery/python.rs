//! Real Celery: its private environment, a process that sends, and a process that works.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use pikake_traps::blocking;
use serde_json::Value;

/// Set to leave these tests out where Celery cannot be installed.
const WITHOUT: &str = "PIKAKE_WITHOUT_CELERY";

fn here() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/celery"))
}

/// The Python that has Celery. `None`: it was said to go without.
pub(crate) fn python() -> Option<&'static str> {
    static PYTHON: OnceLock<Option<String>> = OnceLock::new();
    let python = PYTHON.get_or_init(|| {
        if std::env::var_os(WITHOUT).is_some() {
            eprintln!("{WITHOUT} is set: Celery is left out");
            return None;
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/celery");
        let made = Command::new(script).arg(env!("CARGO_TARGET_TMPDIR")).output();
        let made = made.expect("the script can be run");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(
            made.status.success(),
            "there is no Celery to test with ({}); {WITHOUT}=1 leaves it out:\n{said}",
            made.status
        );
        Some(String::from_utf8(made.stdout).expect("a path").trim().to_owned())
    });
    python.as_deref()
}

fn command(python: &str, url: &str) -> Command {
    let mut command = Command::new(python);
    command.current_dir(here()).env("PEER_URL", url).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Has Celery send these calls; tells what became of each.
pub(crate) async fn send(python: &'static str, url: &str, calls: Value) -> Vec<Value> {
    let mut command = command(python, url);
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
    pub(crate) fn start(python: &str, url: &str, queue: &str) -> Self {
        let mut command = command(python, url);
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
