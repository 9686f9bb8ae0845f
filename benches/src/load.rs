//! The load: a server is started in a process of its own, and loaded from this one, by the same
//! means whichever runtime it is on.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::figures::{Figures, Usage, quantile};
use crate::servers::{BLOCK, ECHO_MESSAGE};
use crate::system::{Epoll, LOAD_CORE, PATIENCE, pin, reset_when_closed};

/// Of how many connections all are used; the rest of a larger number stays open and silent.
const MOST_ACTIVE: usize = 1_000;
const ACTIVE_OF_MANY: usize = 100;

/// The part of the rounds that is done before measuring.
const WARM_UP: usize = 10;

/// How much of a load a server gets, warm-up included.
pub const PASSES: f64 = 1.0 + 1.0 / WARM_UP as f64;

/// A server in another process.
struct Server {
    process: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Server {
    /// Starts a server, by way of another program (as valgrind) if there is one.
    fn start(service: &str, runtime: &str, by_way_of: &[&str]) -> io::Result<Self> {
        let this = env::current_exe()?;
        let mut command = match by_way_of {
            [] => Command::new(this),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(this).stderr(Stdio::piped());
                command
            }
        };
        command.args(["serve", service, runtime]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let questions = process.stdin.take();
        let mut answers = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut port = String::new();
        answers.read_line(&mut port)?;
        let port = port.trim().parse().map_err(io::Error::other)?;
        Ok(Self { process, questions, answers, address: (Ipv4Addr::LOCALHOST, port).into() })
    }

    /// Processor time and resident memory so far.
    fn usage(&mut self) -> io::Result<(Usage, f64)> {
        let questions = self.questions.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        writeln!(questions, "usage")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let numbers: Vec<u64> = answer.split_whitespace().flat_map(str::parse).collect();
        let [user, system, memory] = numbers[..] else {
            return Err(io::Error::other("the server does not answer"));
        };
        let [user, system] = [user, system].map(Duration::from_micros);
        Ok((Usage { user, system }, memory as f64))
    }

    /// A connection on which nothing is waited for without end.
    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Stops it, and returns what it wrote to its error output if it was started by way of another.
    fn stop(&mut self) -> io::Result<String> {
        drop(self.questions.take());
        let mut errors = String::new();
        if let Some(mut output) = self.process.stderr.take() {
            output.read_to_string(&mut errors)?;
        }
        self.process.wait()?;
        Ok(errors)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both do nothing if it has been stopped; else it does not serve as it should.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// What was measured, and what the server wrote to its error output.
pub struct Loaded {
    pub figures: Figures,
    pub errors: String,
}

fn service(workload: &str) -> Option<&'static str> {
    match workload {
        "stream" => Some("sink"),
        "accept" => Some("greet"),
        _ => workload.starts_with("echo_").then_some("echo"),
    }
}

/// Whether a workload is one for a server.
pub fn is_load(workload: &str) -> bool {
    service(workload).is_some()
}

/// Runs a server under load. `None` if there is no such workload, or the server cannot be run.
pub fn run(
    workload: &str,
    runtime: &str,
    size: usize,
    rounds: usize,
    by_way_of: &[&str],
) -> Option<Loaded> {
    let service = service(workload)?;
    let mut server = Server::start(service, runtime, by_way_of).ok()?;
    pin(LOAD_CORE);
    let figures = match service {
        "sink" => stream(&mut server, rounds),
        "greet" => accept(&mut server, size, rounds),
        _ => echo(&mut server, size, rounds),
    };
    match figures.and_then(|figures| Ok(Loaded { figures, errors: server.stop()? })) {
        Ok(loaded) => Some(loaded),
        Err(error) => {
            eprintln!("{workload} on {runtime}: {error}");
            None
        }
    }
}

/// Has a load put on the server, and says what it cost.
fn measured(
    server: &mut Server,
    operations: usize,
    load: impl FnOnce(&mut Server) -> io::Result<()>,
) -> io::Result<Figures> {
    let (before, _) = server.usage()?;
    let start = Instant::now();
    load(server)?;
    let rate = operations as f64 / start.elapsed().as_secs_f64();
    let cost = server.usage()?.0.since(&before);
    let per = |time: Duration| time.as_secs_f64() * 1e9 / operations as f64;
    Ok(vec![
        ("rate_per_s", rate),
        ("server_ns", per(cost.user + cost.system)),
        ("server_user_ns", per(cost.user)),
        ("server_system_ns", per(cost.system)),
    ])
}

fn echo(server: &mut Server, size: usize, rounds: usize) -> io::Result<Figures> {
    let (_, memory_before) = server.usage()?;
    let mut streams = Vec::with_capacity(size);
    for _ in 0..size {
        let mut stream = server.connect()?;
        stream.set_nodelay(true)?;
        // So that the server has accepted it, and the backlog stays short.
        stream.write_all(&[0; ECHO_MESSAGE])?;
        stream.read_exact(&mut [0; ECHO_MESSAGE])?;
        stream.set_nonblocking(true)?;
        streams.push(stream);
    }
    let (_, memory) = server.usage()?;
    let active = if size > MOST_ACTIVE { ACTIVE_OF_MANY } else { size };
    // Not neighbours, which would have neighbouring memory.
    let mut active: Vec<_> = streams.iter_mut().step_by(size / active).take(active).collect();
    exchange(&mut active, rounds.div_ceil(WARM_UP))?;
    let mut latencies = Vec::new();
    let mut figures = measured(server, active.len() * rounds, |_| {
        latencies = exchange(&mut active, rounds)?;
        Ok(())
    })?;
    figures.push(("latency_p50_us", quantile(&mut latencies, 0.50)));
    figures.push(("latency_p99_us", quantile(&mut latencies, 0.99)));
    // Of few connections, memory says more about the allocator than about them.
    if size > MOST_ACTIVE {
        figures.push(("memory_B", (memory - memory_before) / size as f64));
    }
    Ok(figures)
}

/// Keeps one request under way on each connection until there were so many for each on average;
/// returns how long each took, in microseconds.
fn exchange(streams: &mut [&mut TcpStream], rounds: usize) -> io::Result<Vec<f64>> {
    let mut epoll = Epoll::new()?;
    let all = streams.len() * rounds;
    let mut latencies = Vec::with_capacity(all);
    let mut sent = Vec::with_capacity(streams.len());
    for (number, stream) in streams.iter_mut().enumerate() {
        epoll.add(*stream, number)?;
        sent.push(Instant::now());
        stream.write_all(&[0; ECHO_MESSAGE])?;
    }
    let mut under_way = streams.len();
    while latencies.len() < all {
        for number in epoll.wait()? {
            let stream = &mut *streams[number];
            // So short a message comes whole over the loopback device.
            let length = stream.read(&mut [0; ECHO_MESSAGE + 1])?;
            assert_eq!(length, ECHO_MESSAGE, "a whole answer");
            let now = Instant::now();
            latencies.push((now - sent[number]).as_secs_f64() * 1e6);
            if latencies.len() + under_way <= all {
                sent[number] = now;
                stream.write_all(&[0; ECHO_MESSAGE])?;
            } else {
                under_way -= 1;
            }
        }
    }
    Ok(latencies)
}

fn stream(server: &mut Server, rounds: usize) -> io::Result<Figures> {
    let send = |server: &mut Server, blocks: usize| {
        let mut stream = server.connect()?;
        let block = vec![0; BLOCK];
        (0..blocks).try_for_each(|_| stream.write_all(&block))?;
        stream.shutdown(Shutdown::Write)?;
        // The server hangs up when it has read everything.
        stream.read_to_end(&mut Vec::new()).map(drop)
    };
    send(server, rounds.div_ceil(WARM_UP))?;
    measured(server, rounds, |server| send(server, rounds))
}

fn accept(server: &mut Server, size: usize, rounds: usize) -> io::Result<Figures> {
    greetings(server, size, size * rounds.div_ceil(WARM_UP))?;
    measured(server, size * rounds, |server| greetings(server, size, size * rounds))
}

/// Connects so often, with so many connections at a time, and hangs up when it was greeted.
fn greetings(server: &mut Server, at_a_time: usize, all: usize) -> io::Result<()> {
    let mut epoll = Epoll::new()?;
    let connect = |epoll: &Epoll, number: usize| {
        let stream = server.connect()?;
        epoll.add(&stream, number)?;
        reset_when_closed(&stream)?;
        Ok::<_, io::Error>(stream)
    };
    let streams: io::Result<Vec<_>> = (0..at_a_time).map(|n| connect(&epoll, n)).collect();
    let mut streams = streams?;
    let mut greeted = 0;
    while greeted < all {
        let ready: Vec<usize> = epoll.wait()?.collect();
        for number in ready {
            streams[number].read_exact(&mut [0])?;
            greeted += 1;
            streams[number] = connect(&epoll, number)?;
        }
    }
    Ok(())
}
