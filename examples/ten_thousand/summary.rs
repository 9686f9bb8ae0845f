//! What the user sees at the end.

use std::time::Duration;

use crate::Place;
use crate::clients::Report;
use crate::options::Options;
use crate::progress::grouped;

/// Prints what came of it. `grown` is how much this process has for each connection.
pub(crate) fn print(
    options: &Options,
    place: Place,
    report: &Report,
    grown: Option<u64>,
    wall: Duration,
) {
    let connections = grouped(options.connections as u64);
    let messages = options.messages();
    let rate = messages as f64 / report.exchanging.as_secs_f64();
    let bytes = |count: Option<u64>| count.map_or("unknown".into(), grouped);
    let (held, memory) = match place {
        Place::ThisProcess => (
            "both ends in this process",
            format!("{} resident bytes per connection, both ends together", bytes(grown)),
        ),
        Place::ChildProcess => (
            "server and clients in a process each",
            format!(
                "{} resident bytes per connection at the server's end, {} at the client's",
                bytes(grown),
                bytes(report.resident)
            ),
        ),
    };
    println!("{connections} connections held at once, {held}");
    println!(
        "{} messages of {} bytes sent, echoed and compared: {} per second",
        grouped(messages),
        grouped(options.size as u64),
        grouped(rate as u64)
    );
    println!(
        "latency with every connection busy: p50 {:.1?}, p99 {:.1?}, slowest {:.1?}",
        report.p50, report.p99, report.slowest
    );
    println!("memory: {memory}");
    println!(
        "time: {wall:.2?} ({:.2?} to connect, {:.2?} to exchange)",
        report.connecting, report.exchanging
    );
}
