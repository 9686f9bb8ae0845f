//! Ten thousand connections, both ends of each, in one kernel per end.
//!
//! `cargo run --release --example ten_thousand` starts an echo server, opens 10,000 connections to
//! it, holds them all, and only then lets every one exchange messages, all at the same time. Each
//! message is compared byte by byte with its echo. The server runs in the kernel of the main
//! thread, the clients in a kernel of a second thread; nothing but the connections joins them.
//!
//! Both ends of 10,000 connections are 20,000 descriptors. Where the system does not allow one
//! process so many, the clients run in a second process of the same binary.
//!
//! While it runs, its progress is on the error output. At the end it prints, for example, with the
//! clients in a second process:
//!
//! ```text
//! 10,000 connections held at once, server and clients in a process each
//! 100,000 messages of 64 bytes sent, echoed and compared: 89,406 per second
//! latency with every connection busy: p50 108.0ms, p99 121.6ms, slowest 121.9ms
//! memory: 738 resident bytes per connection at the server's end, 885 at the client's
//! time: 1.64s (370.11ms to connect, 1.12s to exchange)
//! ```
//!
//! *Latency* is from before a message is written until its echo has been read, with every other
//! connection waiting for its own. *Memory* is the growth of the process's resident set, without
//! what the operating system keeps for a socket. The status is 0; 1 with the reason if a connection
//! failed, a byte was wrong or it took too long; 2 for options it does not know.

mod clients;
mod histogram;
mod options;
mod progress;
mod server;
mod summary;
mod system;
mod tally;

use std::error::Error;
use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::Duration;

use pikake::net::TcpListener;
use pikake::time::elapsed_since;
use pikake::traps::blocking;
use pikake::{now, spawn, timeout_after};

use clients::Report;
use options::{Options, Role};
use progress::grouped;
use tally::Tally;

type Failure = Box<dyn Error + Send + Sync>;

/// No run hangs. Many times what a slow machine takes for the default.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Descriptors for everything but connections: the standard three, two per kernel, a listener.
const OTHER_DESCRIPTORS: u64 = 64;

fn main() -> ExitCode {
    let outcome = match options::parse(std::env::args().skip(1)) {
        Ok(Role::Help) => {
            print!("{}", options::USAGE);
            Ok(())
        }
        Ok(Role::Both(options)) => both_ends(&options),
        Ok(Role::ClientsOf(server, options)) => only_clients(server, &options),
        Err(wrong) => {
            eprint!("ten_thousand: {wrong}\n{}", options::USAGE);
            return ExitCode::from(options::BAD_OPTIONS);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("ten_thousand: {why}");
            ExitCode::FAILURE
        }
    }
}

fn both_ends(options: &Options) -> Result<(), Failure> {
    let place = Place::find(options.connections as u64)?;
    pikake::run(async {
        let timed = timeout_after(TIME_LIMIT, exchange(options, place)).await;
        timed.unwrap_or_else(|_| Err(format!("not done after {TIME_LIMIT:?}").into()))
    })
}

fn only_clients(server: SocketAddr, options: &Options) -> Result<(), Failure> {
    system::allow_descriptors(options.connections as u64 + OTHER_DESCRIPTORS);
    println!("{}", clients::run(server, options)?.to_line());
    Ok(())
}

/// Where the clients run.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    ThisProcess,
    ChildProcess,
}

impl Place {
    fn find(connections: u64) -> Result<Self, Failure> {
        let one_end = connections + OTHER_DESCRIPTORS;
        let both_ends = one_end + connections;
        let allowed = system::allow_descriptors(both_ends);
        if allowed >= both_ends {
            return Ok(Self::ThisProcess);
        }
        let allowed = grouped(allowed);
        if system::allow_descriptors(one_end) < one_end {
            let needed = grouped(one_end);
            return Err(format!(
                "this process may open {allowed} files, and one end of the connections takes \
                 {needed}: raise the limit (ulimit -n), or ask for fewer with --connections"
            )
            .into());
        }
        eprintln!(
            "this process may open {allowed} files, and both ends take {}: \
             the clients run in a process of their own",
            grouped(both_ends)
        );
        Ok(Self::ChildProcess)
    }
}

async fn exchange(options: &Options, place: Place) -> Result<(), Failure> {
    let start = now();
    let before = system::resident_bytes();
    let tally = Rc::new(Tally::new(options));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = spawn(server::run(listener, tally.clone()));
    let progress = spawn(progress::show(tally.clone()));

    // A kernel has a thread to itself, and the clients' is one that may block.
    let asked = options.clone();
    let report = blocking(move || match place {
        Place::ThisProcess => clients::run(address, &asked),
        Place::ChildProcess => clients_in_a_child(address, &asked),
    });
    let report = report.await.map_err(|why| why.to_string())?;
    progress.cancel().await?;
    let report = match (tally.failure(), report) {
        // What fails at one end shows up at the other, without its reason.
        (Err(server), Err(clients)) => return Err(format!("{server}; {clients}").into()),
        (server, clients) => server.and(clients)?,
    };
    server.await.map_err(|why| why.to_string())??;

    let grown = per_connection(before, tally.resident_at_the_end(), options);
    summary::print(options, place, &report, grown, elapsed_since(start));
    Ok(())
}

fn clients_in_a_child(server: SocketAddr, options: &Options) -> Result<Report, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(options.for_clients_of(server));
    let ended = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !ended.status.success() {
        return Err(format!("the clients' process failed: {}", ended.status).into());
    }
    Report::from_line(&String::from_utf8_lossy(&ended.stdout))
        .ok_or_else(|| "the clients' process ended without a report".into())
}

/// How much a process has grown for each connection; `None` where the system does not tell.
fn per_connection(before: Option<u64>, after: Option<u64>, options: &Options) -> Option<u64> {
    Some(after?.saturating_sub(before?) / options.connections as u64)
}
