//! `cargo xtask server`: a real PostgreSQL, RabbitMQ or Redis on loopback for as long as somebody
//! holds the standard input.
//!
//! Data, logs and the Erlang cookie are in a folder of their own, and ports are free ones. Nothing
//! is left at the end: the servers are stopped by process group when the standard input ends (the
//! caller has ended, however), by a signal and on failure. When the server answers, one line is
//! printed:
//!
//! ```text
//! ready <port>
//! ```
//!
//! RabbitMQ takes commands, a line each, and answers each with `done` or `failed`:
//!
//! ```text
//! kill          ends the broker at once (SIGKILL)
//! start         starts it again, with its port and its data
//! ctl <args>    rabbitmqctl <args>, whose output comes before the answer
//! tls           prints `<port> <folder>`: where it speaks TLS, as localhost and 127.0.0.1, and the folder with
//!               ca.pem, which vouches for it, client.pem and client.key, by which the user `client` logs in
//!               (EXTERNAL), and other-ca.pem, which vouches for nobody
//! ```
//!
//! Redis takes `kill`, `start` and `tls`.

mod certificates;
mod place;
mod postgres;
mod rabbitmq;
mod redis;

use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use xtask::needs::Kind;

use crate::Result;
use crate::group::LOOK;
use crate::run::is_told_to_end;
use place::Place;

/// RabbitMQ takes ten seconds of this on an idle machine.
const READY: Duration = Duration::from_secs(180);

/// A free port may be taken by another in between, so several are tried.
const TRIES: u32 = 5;

/// Whether standard input has ended.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

pub(crate) fn serve(arguments: &[String]) -> Result {
    let kinds = [Kind::Postgres, Kind::RabbitMq, Kind::Redis];
    let kind = match arguments {
        [name] => kinds.into_iter().find(|kind| kind.name() == name),
        _ => None,
    };
    let kind = kind.ok_or("which server? cargo xtask server postgres|rabbitmq|redis")?;
    if let Some(need) = kind.needs().iter().find(|need| need.find().is_none()) {
        return Err(format!("missing {}", need.hint()).into());
    }
    let lines = read_lines();
    let place = Place::new(kind)?;
    let served = match kind {
        Kind::Postgres => serve_postgres(&place, &lines),
        Kind::RabbitMq => serve_rabbitmq(&place, &lines),
        Kind::Redis => serve_redis(&place, &lines),
    };
    if served.is_err() && !is_over() {
        eprintln!("{}", place.end_of_log());
    }
    served
}

fn serve_postgres(place: &Place, lines: &Receiver<String>) -> Result {
    let postgres = postgres::Postgres::start(place)?;
    say(&format!("ready {}", postgres.port()))?;
    while let Some(line) = next(lines) {
        eprintln!("PostgreSQL takes no commands: {line}");
    }
    Ok(())
}

fn serve_rabbitmq(place: &Place, lines: &Receiver<String>) -> Result {
    let mut broker = rabbitmq::Broker::start(place)?;
    say(&format!("ready {}", broker.port()))?;
    take_commands(place, lines, |line| {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("kill") => {
                broker.kill();
                Ok(())
            }
            Some("start") => broker.start_again(place),
            Some("ctl") => broker.control(place, words),
            Some("tls") => say(&broker.tls(place)),
            _ => Err(format!("there is no command `{line}`").into()),
        }
    })
}

fn serve_redis(place: &Place, lines: &Receiver<String>) -> Result {
    let mut redis = redis::Redis::start(place)?;
    say(&format!("ready {}", redis.port()))?;
    take_commands(place, lines, |line| match line.trim() {
        "kill" => {
            redis.kill();
            Ok(())
        }
        "start" => redis.start_again(place),
        "tls" => say(&redis.tls(place)),
        _ => Err(format!("there is no command `{line}`").into()),
    })
}

/// Carries out commands, and answers each, until there are no more.
fn take_commands(
    place: &Place,
    lines: &Receiver<String>,
    mut take: impl FnMut(&str) -> Result,
) -> Result {
    while let Some(line) = next(lines) {
        let done = take(&line);
        if let Err(error) = &done {
            eprintln!("{}\nerror: {line}: {error}", place.end_of_log());
        }
        say(if done.is_ok() { "done" } else { "failed" })?;
    }
    Ok(())
}

fn say(line: &str) -> Result {
    let mut out = io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The lines of standard input, read by a thread: also while a server starts, its end is noticed.
fn read_lines() -> Receiver<String> {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(io::Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
        HAS_ENDED.store(true, Ordering::Relaxed);
    });
    lines
}

/// The next line. `None`: there is none, or a signal asks for the end.
fn next(lines: &Receiver<String>) -> Option<String> {
    while !is_told_to_end() {
        match lines.recv_timeout(LOOK) {
            Ok(line) => return Some(line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}

/// Whether nobody wants the server any more.
fn is_over() -> bool {
    is_told_to_end() || HAS_ENDED.load(Ordering::Relaxed)
}

/// Looks until something is so, for a limited time and for as long as the server is wanted and
/// could come to it.
fn until(
    limit: Duration,
    mut is_so: impl FnMut() -> bool,
    mut may_be: impl FnMut() -> bool,
) -> bool {
    let since = Instant::now();
    while since.elapsed() < limit && !is_over() && may_be() {
        if is_so() {
            return true;
        }
        std::thread::sleep(LOOK);
    }
    false
}
