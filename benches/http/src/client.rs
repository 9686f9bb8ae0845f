//! Requests to a server by pikake's client, or by reqwest on tokio's current-thread runtime.
//!
//! ```text
//! client <pikake | reqwest> <port> <connections> <requests>
//! ```
//!
//! Each connection has a task that asks and reads the answer, one request after the other. Prints
//! the requests, the seconds they took, and the processor time of this process, user and system, in
//! microseconds per request.

use std::time::Instant;

/// Requests of each connection before the measurement.
const WARM_UP: usize = 10;

/// User and system time of this process, in clock ticks of 10 ms.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let rest = stat.rsplit_once(')').unwrap().1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn on_pikake(url: &str, connections: usize, each: usize, began: impl FnOnce()) {
    pikake::run(async {
        let client = pikake::http::Client::builder().no_proxy().build().unwrap();
        let work = |count: usize| {
            let (client, url) = (client.clone(), url.to_owned());
            async move {
                for _ in 0..count {
                    let response = client.get(&url).send().await.unwrap();
                    assert_eq!(response.bytes().await.unwrap(), "user 7");
                }
            }
        };
        let all = async |count| {
            let tasks: Vec<_> = (0..connections).map(|_| pikake::spawn(work(count))).collect();
            for task in tasks {
                task.await.unwrap();
            }
        };
        all(WARM_UP).await;
        began();
        all(each).await;
    });
}

fn on_tokio(url: &str, connections: usize, each: usize, began: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let work = |count: usize| {
            let (client, url) = (client.clone(), url.to_owned());
            async move {
                for _ in 0..count {
                    let response = client.get(&url).send().await.unwrap();
                    assert_eq!(response.bytes().await.unwrap(), "user 7");
                }
            }
        };
        let all = async |count| {
            let tasks: Vec<_> = (0..connections).map(|_| tokio::spawn(work(count))).collect();
            for task in tasks {
                task.await.unwrap();
            }
        };
        all(WARM_UP).await;
        began();
        all(each).await;
    });
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [client, port, connections, requests] = &arguments[..] else {
        panic!("client <pikake | reqwest> <port> <connections> <requests>");
    };
    let url = format!("http://127.0.0.1:{port}/users/7");
    let (connections, requests): (usize, usize) =
        (connections.parse().unwrap(), requests.parse().unwrap());
    let each = requests / connections;
    let mut start = (Instant::now(), 0);
    let began = || start = (Instant::now(), ticks());
    match client.as_str() {
        "pikake" => on_pikake(&url, connections, each, began),
        "reqwest" => on_tokio(&url, connections, each, began),
        _ => panic!("no client {client}: pikake or reqwest"),
    }
    let (since, before) = start;
    let (count, spent) = (each * connections, ticks() - before);
    let seconds = since.elapsed().as_secs_f64();
    println!("{count}\t{seconds:.2}\t{:.2}", spent as f64 * 10_000.0 / count as f64);
}
