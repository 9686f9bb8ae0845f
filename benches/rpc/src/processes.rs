//! The processes of a measurement, and what the system says about them.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::stacks::is_path;

/// This program as a server or a client, on a core of its own.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts it, and returns its first line.
    pub fn start(core: usize, arguments: &[&str]) -> io::Result<(Self, String)> {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string()]).arg(env::current_exe()?).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut process = Self { child, input, output };
        let line = process.line()?;
        Ok((process, line))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim().to_owned()),
        }
    }

    /// Sends a line, and waits for the line that answers it.
    pub fn ask(&mut self, line: &str) -> io::Result<Vec<f64>> {
        writeln!(self.input, "{line}")?;
        let answer = self.line()?;
        Ok(answer.split(' ').flat_map(str::parse).collect())
    }

    /// Processor time of all its threads, in seconds.
    pub fn processor_time(&self) -> io::Result<f64> {
        Ok(processor_nanos(&self.child.id().to_string())? as f64 / 1e9)
    }

    /// Resident memory, in bytes.
    pub fn resident(&self) -> io::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        Ok(kib.expect("a number") * 1024.0)
    }
}

/// Processor time of all threads of a process, in nanoseconds.
pub fn processor_nanos(process: &str) -> io::Result<u64> {
    let mut nanos = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = text.split(' ').next().and_then(|text| text.parse::<u64>().ok());
        nanos += first.expect("a number");
    }
    Ok(nanos)
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Passes the bytes of one connection on to a server, and counts them.
pub struct Proxy {
    pub address: String,
    bytes: Arc<AtomicU64>,
}

impl Proxy {
    pub fn start(server: &str) -> io::Result<Self> {
        let bytes = Arc::<AtomicU64>::default();
        let (counted, server) = (bytes.clone(), server.to_owned());
        let address = if is_path(&server) {
            let path = format!("{server}.proxy");
            let listener = UnixListener::bind(&path)?;
            thread::spawn(move || {
                let (near, _) = listener.accept()?;
                let far = UnixStream::connect(server)?;
                pass(near.try_clone()?, far.try_clone()?, &counted);
                pass(far, near, &counted);
                io::Result::Ok(())
            });
            path
        } else {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?.to_string();
            thread::spawn(move || {
                let (near, _) = listener.accept()?;
                let far = TcpStream::connect(server)?;
                near.set_nodelay(true)?;
                far.set_nodelay(true)?;
                pass(near.try_clone()?, far.try_clone()?, &counted);
                pass(far, near, &counted);
                io::Result::Ok(())
            });
            address
        };
        Ok(Self { address, bytes })
    }

    /// The bytes so far, of both directions.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

fn pass(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    counted: &Arc<AtomicU64>,
) {
    let counted = counted.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            counted.fetch_add(length as u64, Ordering::Relaxed);
            if to.write_all(&buffer[..length]).is_err() {
                return;
            }
        }
    });
}
