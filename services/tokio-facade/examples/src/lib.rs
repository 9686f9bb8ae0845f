//! Servers that the examples start, and that `cargo xtask server` does not have.

use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The server that imitates services of AWS.
pub const MOTO: &str = "moto[server]==5.1.22";

/// Prints the port, and runs until standard input ends, so that no server is left behind.
const SCRIPT: &str = "
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger('werkzeug').setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
";

/// A server of moto on loopback. It is stopped when this is dropped.
#[derive(Debug)]
pub struct Moto {
    child: Child,
    port: u16,
}

impl Moto {
    /// The Python of the virtual environment that has moto.
    pub fn python() -> PathBuf {
        xtask::target().join("moto/bin/python")
    }

    /// Starts a server; blocks until it listens.
    ///
    /// # Errors
    ///
    /// If it is not installed, or does not start.
    pub fn start() -> io::Result<Self> {
        let python = Self::python();
        if !python.is_file() {
            return Err(io::Error::new(io::ErrorKind::NotFound, Self::hint()));
        }
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        BufReader::new(output).read_line(&mut line)?;
        let port = line.trim().parse().map_err(|_| io::Error::other("moto did not start"))?;
        Ok(Self { child, port })
    }

    /// Starts a server for a test, which is skipped if moto is not installed.
    ///
    /// # Panics
    ///
    /// If the server is installed and does not start; if it is missing, and
    /// [`MUST_NOT_SKIP`](xtask::needs::MUST_NOT_SKIP) is set.
    #[track_caller]
    pub fn start_or_skip() -> Option<Self> {
        if !Self::python().is_file() {
            xtask::needs::skip(&format!("needs {}", Self::hint()));
            return None;
        }
        Some(Self::start().unwrap_or_else(|error| panic!("{error}")))
    }

    /// How moto is installed.
    fn hint() -> String {
        let folder = xtask::target().join("moto");
        let folder = folder.display();
        format!("moto: python3 -m venv {folder} && {folder}/bin/pip install '{MOTO}'")
    }

    /// Where the server listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        drop(self.child.wait());
    }
}
