//! Real servers for examples and tests: `scripts/real-server`, run and stopped.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

/// A server on loopback that is stopped when this is dropped, or this process ends.
#[derive(Debug)]
pub struct RealServer {
    script: Child,
    stdin: Option<ChildStdin>,
    port: u16,
}

impl RealServer {
    /// Starts `postgres` or `rabbitmq`, installing it if it is not there; blocks until it answers.
    ///
    /// # Errors
    ///
    /// The script's, whose own words are on standard error.
    pub fn start(which: &str) -> io::Result<Self> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/real-server");
        let mut command = Command::new(path);
        command.arg(which).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.spawn()?;
        let stdin = script.stdin.take();
        let stdout = script.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let port = line.trim().strip_prefix("ready ").and_then(|port| port.parse().ok());
        match port {
            Some(port) => Ok(Self { script, stdin, port }),
            None => {
                let status = script.wait()?;
                Err(io::Error::other(format!("{path} {which} did not start it: {status}")))
            }
        }
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            // Its end is what the script waits for.
            drop(stdin.flush());
        }
        drop(self.script.wait());
    }
}
