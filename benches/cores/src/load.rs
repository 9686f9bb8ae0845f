//! Clients of the servers: one thread on bare epoll, on no runtime.
//!
//! ```text
//! load accept <port> <connections>    the number of connections of each kernel, the largest first
//! load skew <port> <requests a second> <anywhere | one kernel> <seconds> <seed>
//!     the median and the 99th percentile of light and of heavy requests, in microseconds
//! ```
//!
//! Requests are sent at random moments, independent of the answers: the gaps are exponential. A
//! latency counts from the moment when the request was to be sent.

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

const CONNECTIONS: usize = 400;
const LIGHT: &str = "/light";
const HEAVY: &str = "/spin/5000";
/// One request of this many is heavy.
const HEAVY_EVERY: u64 = 10;
const WARM_UP: Duration = Duration::from_secs(1);

struct Connection {
    stream: TcpStream,
    kernel: String,
    answer: Vec<u8>,
    /// The request that is under way.
    request: Option<Request>,
}

#[derive(Clone, Copy)]
struct Request {
    due: Instant,
    is_heavy: bool,
}

impl Connection {
    fn open(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, kernel: String::new(), answer: Vec::new(), request: None }
    }

    fn send(&mut self, path: &str) {
        self.answer.clear();
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.stream.write_all(head.as_bytes()).unwrap();
    }

    /// Reads what is there. Returns the status and the body once it is complete.
    fn receive(&mut self) -> Option<(&str, &str)> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => panic!("the server has closed a connection"),
            Ok(length) => self.answer.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => panic!("{error}"),
        }
        let (head, body) = std::str::from_utf8(&self.answer).unwrap().split_once("\r\n\r\n")?;
        let status = &head["HTTP/1.1 ".len()..][..3];
        assert!(["200", "503"].contains(&status), "{head}");
        let (_, length) = head.split_once("content-length: ").unwrap();
        let length: usize = length.lines().next().unwrap().parse().unwrap();
        (body.len() == length).then_some((status, body))
    }

    /// Finds the kernel of the connection.
    fn ask(&mut self) {
        self.send("/kernel");
        self.kernel = loop {
            if let Some((_, kernel)) = self.receive() {
                break kernel.to_owned();
            }
        };
    }
}

fn open(port: u16, count: usize) -> Vec<Connection> {
    let mut connections: Vec<_> = (0..count).map(|_| Connection::open(port)).collect();
    connections.iter_mut().for_each(Connection::ask);
    connections
}

fn accept(port: u16, count: usize) {
    let mut kernels = BTreeMap::new();
    for connection in open(port, count) {
        *kernels.entry(connection.kernel).or_insert(0) += 1;
    }
    let mut counts: Vec<usize> = kernels.into_values().collect();
    counts.sort_by(|one, other| other.cmp(one));
    println!("{counts:?}");
}

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn gap(&mut self, rate: f64) -> Duration {
        let uniform = (self.below(1 << 32) + 1) as f64 / (1u64 << 32) as f64;
        Duration::from_secs_f64(-uniform.ln() / rate)
    }
}

fn skew(port: u16, rate: f64, is_anywhere: bool, length: Duration, seed: u64) {
    rustix::thread::set_current_timer_slack(std::num::NonZero::new(1)).unwrap();
    let mut connections = open(port, CONNECTIONS);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    for (index, connection) in connections.iter().enumerate() {
        connection.stream.set_nonblocking(true).unwrap();
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&epoll, &connection.stream, data, epoll::EventFlags::IN).unwrap();
    }
    let all: Vec<usize> = (0..CONNECTIONS).collect();
    let of_one = |&index: &usize| connections[index].kernel == connections[0].kernel;
    let for_heavy = all.iter().copied().filter(|index| is_anywhere || of_one(index)).collect();
    let targets: [Vec<usize>; 2] = [all, for_heavy];

    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut due, mut waiting) = (Instant::now(), VecDeque::new());
    let (counted_from, end) = (due + WARM_UP, due + WARM_UP + length);
    let mut took: [Vec<u64>; 2] = Default::default();
    let (mut sent, mut answered, mut shed) = (0, 0, 0);
    let mut events = Vec::with_capacity(CONNECTIONS);
    while due < end || answered < sent || !waiting.is_empty() {
        let now = Instant::now();
        while due <= now && due < end {
            waiting.push_back(Request { due, is_heavy: random.below(HEAVY_EVERY) == 0 });
            due += random.gap(rate);
        }
        while let Some(&request) = waiting.front() {
            let targets = &targets[usize::from(request.is_heavy)];
            let pick = |_| targets[random.below(targets.len() as u64) as usize];
            let is_idle = |index: &usize| connections[*index].request.is_none();
            let Some(index) = (0..1_000).map(pick).find(is_idle) else { break };
            connections[index].send(if request.is_heavy { HEAVY } else { LIGHT });
            connections[index].request = waiting.pop_front();
            sent += 1;
        }
        let limit = due.min(end).saturating_duration_since(Instant::now());
        let limit = if due < end { limit } else { Duration::from_millis(10) };
        events.clear();
        let buffer = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&epoll, buffer, Some(&Timespec::try_from(limit).unwrap())).unwrap();
        for event in &events {
            let connection = &mut connections[event.data.u64() as usize];
            let Some((status, _)) = connection.receive() else { continue };
            let is_shed = status == "503";
            let Request { due, is_heavy } = connection.request.take().expect("a request");
            answered += 1;
            if due >= counted_from && is_shed {
                shed += 1;
            } else if due >= counted_from {
                took[usize::from(is_heavy)].push(due.elapsed().as_micros() as u64);
            }
        }
    }
    for took in &mut took {
        took.sort_unstable();
        print!("{} {} ", took[took.len() / 2], took[took.len() * 99 / 100]);
    }
    println!("{shed}");
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |index: usize| -> u64 { arguments[index].parse().expect("a number") };
    let port = number(1) as u16;
    match arguments[0].as_str() {
        "accept" => accept(port, number(2) as usize),
        "skew" => {
            let is_anywhere = arguments[3] == "anywhere";
            skew(port, number(2) as f64, is_anywhere, Duration::from_secs(number(4)), number(5));
        }
        other => panic!("no load {other}: accept or skew"),
    }
}
