//! Calls with an argument of 64 bytes that come back, by pikake's rpc, tonic and tarpc. See the
//! README of the folder above.
//!
//! ```text
//! rpc [ROUNDS [STACK …]]        measures, and prints tables
//! rpc server STACK ADDRESS      a server, until it is killed
//! rpc client STACK ADDRESS      a client; see the source for the lines it follows
//! rpc together STACK TASKS EACH a server and a client in one thread: `EACH` calls from each of `TASKS` tasks
//! ```

mod client;
mod on_pikake;
#[cfg(feature = "tarpc")]
mod on_tarpc;
#[cfg(feature = "tonic")]
mod on_tonic;
mod processes;
mod stacks;

use std::{env, fs, io, process};

use crate::processes::{Process, Proxy};

const STACKS: &[&str] = &[
    "pikake",
    #[cfg(feature = "tonic")]
    "tonic",
    #[cfg(feature = "tarpc")]
    "tarpc",
];
const TRANSPORTS: [&str; 2] = ["tcp", "unix"];

/// Calls under way, and calls of a measurement, which take about a second.
const LOADS: [(usize, usize); 3] = [(1, 10_000), (10, 50_000), (1_000, 100_000)];

/// Of a measurement's calls, the part that is made before.
const WARM_UP: usize = 10;

/// The calls of which the bytes are counted.
const COUNTED: usize = 10_000;
const OPEN_SECONDS: usize = 2;
const IDLE: usize = 10_000;

#[cfg(any(feature = "tarpc", feature = "tonic"))]
fn on_tokio<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("tokio runs").block_on(future)
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["server", "pikake", address] => on_pikake::serve(address),
        #[cfg(feature = "tonic")]
        ["server", "tonic", address] => on_tokio(on_tonic::serve(address)),
        #[cfg(feature = "tarpc")]
        ["server", "tarpc", address] => on_tokio(on_tarpc::serve(address)),
        ["client", "pikake", address] => {
            let address = address.to_owned();
            pikake::run(async move { client::follow::<on_pikake::Pikake>(&address).await });
        }
        #[cfg(feature = "tonic")]
        ["client", "tonic", address] => on_tokio(client::follow::<on_tonic::Tonic>(address)),
        #[cfg(feature = "tarpc")]
        ["client", "tarpc", address] => on_tokio(client::follow::<on_tarpc::Tarpc>(address)),
        ["together", stack, tasks, each] => {
            let number = |text: &str| text.parse().expect("a number");
            together(stack, number(tasks), number(each));
        }
        [] => measure(5, STACKS),
        [rounds, ref stacks @ ..] => {
            let stacks = if stacks.is_empty() { STACKS } else { stacks };
            measure(rounds.parse().expect("a number of rounds"), stacks);
        }
    }
}

/// Server and client in one thread, over TCP. Prints the processor time of a call in nanoseconds.
fn together(stack: &str, tasks: usize, each: usize) {
    match stack {
        "pikake" => pikake::run(async move {
            let address = on_pikake::start().await;
            client::together::<on_pikake::Pikake>(&address, tasks, each).await;
        }),
        #[cfg(feature = "tonic")]
        "tonic" => on_tokio(async {
            let (address, serving) = on_tonic::bind();
            tokio::spawn(serving);
            client::together::<on_tonic::Tonic>(&address, tasks, each).await;
        }),
        #[cfg(feature = "tarpc")]
        "tarpc" => on_tokio(async {
            let (address, serving) = on_tarpc::bind().await;
            tokio::spawn(serving);
            client::together::<on_tarpc::Tarpc>(&address, tasks, each).await;
        }),
        _ => panic!("{stack} is no stack"),
    }
}

/// All measurements, stack by stack in each round, and the tables.
fn measure(rounds: usize, stacks: &[&str]) {
    // Row, metric, stack, values.
    let mut figures: Vec<(String, String, Vec<f64>)> = Vec::new();
    for round in 0..rounds {
        for transport in TRANSPORTS {
            for &stack in stacks {
                let measured = one_round(stack, transport, round == 0)
                    .unwrap_or_else(|error| panic!("{stack} over {transport}: {error}"));
                for (row, value) in measured {
                    println!("{round}\t{row}\t{stack}\t{value:.2}");
                    let known = figures.iter_mut().find(|(r, s, _)| *r == row && s == stack);
                    match known {
                        Some((_, _, values)) => values.push(value),
                        None => figures.push((row, stack.to_owned(), vec![value])),
                    }
                }
            }
        }
    }
    println!("\n| | {} |", stacks.join(" | "));
    println!("| --- |{}", " ---: |".repeat(stacks.len()));
    let rows: Vec<&String> =
        figures.iter().filter(|(_, stack, _)| stack == stacks[0]).map(|(row, ..)| row).collect();
    for row in rows {
        let of = |stack: &str| figures.iter().find(|(r, s, _)| r == row && s == stack);
        let cell = |stack: &&str| match of(stack) {
            Some((.., values)) => {
                let mut values = values.clone();
                values.sort_by(f64::total_cmp);
                let (least, most) = (values[0], values[values.len() - 1]);
                let median = median(&values);
                format!("{median:.0} ({least:.0} to {most:.0})")
            }
            None => "-".to_owned(),
        };
        let cells: Vec<String> = stacks.iter().map(cell).collect();
        println!("| {row} | {} |", cells.join(" | "));
    }
}

/// The median of values in order: of an even number, the mean of the two in the middle.
fn median(values: &[f64]) -> f64 {
    let half = values.len() / 2;
    match values.len() % 2 {
        0 => (values[half - 1] + values[half]) / 2.0,
        _ => values[half],
    }
}

/// The figures of one stack over one transport.
fn one_round(stack: &str, transport: &str, is_first: bool) -> io::Result<Vec<(String, f64)>> {
    let path = env::temp_dir().join(format!("pikake-rpc-bench-{}", process::id()));
    let path = path.to_str().expect("a path of text").to_owned();
    let remove = || {
        for path in [path.clone(), format!("{path}.proxy")] {
            fs::remove_file(path).ok();
        }
    };
    remove();
    let wanted = if transport == "unix" { &*path } else { "127.0.0.1:0" };
    let start = || Process::start(0, &["server", stack, wanted]);
    let mut figures = Vec::new();
    let mut rate = 0.0;
    {
        let (server, address) = start()?;
        let (mut client, _) = Process::start(1, &["client", stack, &address])?;
        for (tasks, calls) in LOADS {
            let each = calls / tasks;
            client.ask(&format!("closed {tasks} {}", each.div_ceil(WARM_UP)))?;
            let before = [server.processor_time()?, client.processor_time()?];
            let seconds = client.ask(&format!("closed {tasks} {each}"))?[0];
            let server_time = server.processor_time()? - before[0];
            let client_time = client.processor_time()? - before[1];
            rate = calls as f64 / seconds;
            let mut note = |metric: &str, value| {
                figures.push((format!("{transport}, {tasks} under way: {metric}"), value));
            };
            note("calls per processor second", calls as f64 / (server_time + client_time));
            note("server ns", server_time / calls as f64 * 1e9);
            note("client ns", client_time / calls as f64 * 1e9);
            note("calls per second", rate);
        }
        let rate = (rate / 2.0) as usize;
        let latency = client.ask(&format!("open {rate} {OPEN_SECONDS}"))?;
        for (metric, value) in
            [("rate", rate as f64), ("p50 µs", latency[0]), ("p99 µs", latency[1])]
        {
            figures.push((format!("{transport}, half load: {metric}"), value));
        }
    }
    remove();
    if is_first {
        {
            let (_server, address) = start()?;
            let proxy = Proxy::start(&address)?;
            let (mut client, _) = Process::start(1, &["client", stack, &proxy.address])?;
            let before = proxy.bytes();
            client.ask(&format!("closed 10 {}", COUNTED / 10))?;
            let bytes = (proxy.bytes() - before) as f64 / COUNTED as f64;
            figures.push((format!("{transport}: bytes per call"), bytes));
        }
        remove();
        let (server, address) = start()?;
        let (mut client, _) = Process::start(1, &["client", stack, &address])?;
        let before = [server.resident()?, client.resident()?];
        client.ask(&format!("idle {IDLE}"))?;
        let grown = [server.resident()? - before[0], client.resident()? - before[1]];
        for (side, grown) in ["server", "client"].into_iter().zip(grown) {
            let row = format!("{transport}: {side}, bytes per idle connection");
            figures.push((row, grown / IDLE as f64));
        }
    }
    remove();
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn median_of_an_even_number_is_a_mean() {
        assert_eq!(median(&[1.0]), 1.0);
        assert_eq!(median(&[1.0, 4.0]), 2.5);
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
    }
}
