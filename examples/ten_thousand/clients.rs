//! The clients' end: opens the connections, a few at a time, and exchanges messages on all.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::TcpStream;
use pikake::time::{Ticks, elapsed_since};
use pikake::{Kernel, now, spawn, timeout_after};

use crate::histogram::Histogram;
use crate::options::Options;
use crate::server::{GO, WELCOME};
use crate::tally::Tally;
use crate::{Failure, TIME_LIMIT, per_connection, system};

/// Connections being made at a time. Well below the usual limit of a listener's backlog (4,096 on
/// Linux, 128 elsewhere): a connection that finds it full is tried again after a whole second.
const CONNECTING_AT_A_TIME: usize = 100;

/// What the clients found out.
pub(crate) struct Report {
    pub(crate) connecting: Duration,
    pub(crate) exchanging: Duration,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) slowest: Duration,
    /// Growth of the resident set of the clients' process for each connection, in bytes.
    pub(crate) resident: Option<u64>,
}

struct Fleet {
    tally: Tally,
    server: SocketAddr,
    latency: RefCell<Histogram>,
    /// When the first client was told to go.
    started: Cell<Option<Ticks>>,
    /// Those whose exchange is over, held until all are.
    streams: RefCell<Vec<TcpStream>>,
}

/// Runs all clients in a kernel of this thread.
pub(crate) fn run(server: SocketAddr, options: &Options) -> Result<Report, Failure> {
    let kernel = Kernel::builder().name("clients").build()?;
    let fleet = Rc::new(Fleet {
        tally: Tally::new(options),
        server,
        latency: RefCell::default(),
        started: Cell::new(None),
        streams: RefCell::default(),
    });
    let outcome = kernel.run(timeout_after(TIME_LIMIT, conduct(&fleet)));
    fleet.streams.take();
    kernel.shutdown();
    outcome.unwrap_or_else(|timed_out| Err(timed_out.into()))
}

async fn conduct(fleet: &Rc<Fleet>) -> Result<Report, Failure> {
    let (tally, start, before) = (&fleet.tally, now(), system::resident_bytes());
    for first in 0..CONNECTING_AT_A_TIME {
        drop(spawn(connect_some(fleet.clone(), first)));
    }
    tally.all_joined().await?;
    let connecting = elapsed_since(start);
    tally.all_finished().await?;
    let exchanging = elapsed_since(fleet.started.get().unwrap_or(start));
    let latency = fleet.latency.borrow();
    Ok(Report {
        connecting,
        exchanging,
        p50: latency.below(0.50),
        p99: latency.below(0.99),
        slowest: latency.slowest(),
        resident: per_connection(before, system::resident_bytes(), &tally.options),
    })
}

/// Opens every so-manyth connection, one after the other.
async fn connect_some(fleet: Rc<Fleet>, first: usize) {
    for number in (first..fleet.tally.options.connections).step_by(CONNECTING_AT_A_TIME) {
        match connect(fleet.server).await {
            Ok(stream) => drop(spawn(attend(stream, number, fleet.clone()))),
            Err(why) => {
                return fleet.tally.fail(format!("client {number}, connecting: {why}"));
            }
        }
    }
}

async fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    expect(&stream, WELCOME).await?;
    Ok(stream)
}

async fn attend(stream: TcpStream, number: usize, fleet: Rc<Fleet>) {
    fleet.tally.join();
    match exchange(&stream, number, &fleet).await {
        Ok(()) => {
            fleet.streams.borrow_mut().push(stream);
            fleet.tally.finish();
        }
        Err(why) => fleet.tally.fail(format!("client {number}: {why}")),
    }
}

async fn exchange(stream: &TcpStream, number: usize, fleet: &Fleet) -> io::Result<()> {
    let Options { rounds, size, .. } = fleet.tally.options;
    expect(stream, GO).await?;
    if fleet.started.get().is_none() {
        fleet.started.set(Some(now()));
    }
    let (mut message, mut answer) = (vec![0; size], vec![0; size]);
    for round in 0..rounds {
        fill(&mut message, number, round);
        let sent = now();
        stream.write_all(&message).await?;
        stream.read_exact(&mut answer).await?;
        fleet.latency.borrow_mut().add(elapsed_since(sent));
        if answer != message {
            let wrong = format!("message {round} came back as another one");
            return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
        }
    }
    Ok(())
}

/// Reads one byte, which must be that one.
async fn expect(stream: &TcpStream, wanted: u8) -> io::Result<()> {
    let mut byte = [0];
    stream.read_exact(&mut byte).await?;
    if byte == [wanted] {
        return Ok(());
    }
    let wrong = format!("the server said {:?} instead of {:?}", byte[0] as char, wanted as char);
    Err(io::Error::new(io::ErrorKind::InvalidData, wrong))
}

/// Fills a message with bytes that no other round and no other client sends (a Weyl sequence with
/// the finalizer of MurmurHash3).
fn fill(message: &mut [u8], number: usize, round: usize) {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = (number as u64) << u32::BITS | round as u64;
    for part in message.chunks_mut(size_of::<u64>()) {
        state = state.wrapping_add(GOLDEN);
        let mut word = (state ^ state >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        part.copy_from_slice(&(word ^ word >> 33).to_le_bytes()[..part.len()]);
    }
}

impl Report {
    /// The report as one line, for another process.
    pub(crate) fn to_line(&self) -> String {
        let times = [self.connecting, self.exchanging, self.p50, self.p99, self.slowest];
        let mut words: Vec<String> = times.iter().map(|time| time.as_nanos().to_string()).collect();
        words.extend(self.resident.map(|bytes| bytes.to_string()));
        words.join(" ")
    }

    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
        let mut time = || numbers.next().map(Duration::from_nanos);
        let (connecting, exchanging) = (time()?, time()?);
        let (p50, p99, slowest) = (time()?, time()?, time()?);
        Some(Self { connecting, exchanging, p50, p99, slowest, resident: numbers.next() })
    }
}
