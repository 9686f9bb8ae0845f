//! What jobs suffer from a RabbitMQ that is short of memory, and from one that is gone for a while.
//!
//! ```text
//! cargo run --release -p pikake-jobs --example outages
//! ```
//!
//! Starts a RabbitMQ, which `cargo xtask install` installs. Prints how many jobs were done in each
//! second of an alarm, with one connection and with two, in an application that sends a job now and
//! then; and how long it takes from the moment at which the broker's port answers again to the next
//! job, after the broker was killed and after the connection was cut by a proxy.

#[path = "../tests/support/server.rs"]
mod server;

use std::cell::Cell;
use std::error::Error;
use std::time::Duration;

use pikake_jobs::{App, QueueOptions};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_net::{TcpListener, TcpStream, copy_bidirectional};
use pikake_traps::{CancelOnDrop, elapsed_since, now, sleep, spawn};
use xtask::Kind;

use server::Server;

type Done<T> = Result<T, Box<dyn Error>>;

/// How many jobs there are for each measurement: more than can be done.
const JOBS: u32 = 30_000;
const AT_A_TIME: usize = 4;
/// What a job takes, so that there are no more than 2,000 in a second.
const WORK: Duration = Duration::from_millis(2);
const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(2);
/// How long an alarm lasts, and an outage.
const OUTAGE: u32 = 5;
/// How often the application sends something.
const NOW_AND_THEN: Duration = Duration::from_millis(200);
const TRIES: usize = 3;

thread_local! {
    static COUNT: Cell<u32> = const { Cell::new(0) };
}

#[job(crate = pikake_jobs, ignore_result)]
async fn work(_number: u32) {
    drop(sleep(WORK).await);
    COUNT.set(COUNT.get() + 1);
}

fn app(url: &str) -> Done<App> {
    Ok(App::new(url)?.jobs([work::JOB]).default_queue("work").concurrency(AT_A_TIME))
}

/// Fills the queue.
async fn fill(server: &Server) -> Done<()> {
    let app = app(server.url())?.connect().await?;
    app.broker()?.purge("work").await?;
    let mut sending = Vec::new();
    for number in 0..JOBS {
        let call = work::with(number).on(&app);
        sending.push(spawn(async move { call.send().await.map(drop) }));
        if sending.len() == 500 {
            for sent in sending.drain(..) {
                sent.await??;
            }
        }
    }
    for sent in sending {
        sent.await??;
    }
    Ok(app.close().await?)
}

/// How many jobs are done in a length of time.
async fn done_in(length: Duration) -> Done<u32> {
    let before = COUNT.get();
    sleep(length).await?;
    Ok(COUNT.get() - before)
}

/// How long it takes from here to the next job that ends.
async fn next_job() -> Done<Duration> {
    let (before, begun) = (COUNT.get(), now());
    while COUNT.get() == before {
        sleep(MOMENT).await?;
    }
    Ok(elapsed_since(begun))
}

async fn alarm(server: &Server, connections: usize) -> Done<()> {
    fill(server).await?;
    let app = app(server.url())?.connections(connections).prefetch(8).connect().await?;
    app.declare("elsewhere", &QueueOptions::default()).await?;
    // What is sent is not waited for: each is held back in turn.
    let sender = app.clone();
    let sending = spawn(async move {
        while sleep(NOW_AND_THEN).await.is_ok() {
            let call = work::with(0).queue("elsewhere").on(&sender);
            spawn(async move { drop(call.send().await) }).detach();
        }
    });
    let worker = spawn(app.worker().queues(["work"]).run());
    next_job().await?;
    let before = done_in(SECOND).await?;
    server.alarm(true).await;
    let mut meanwhile = Vec::new();
    for _ in 0..OUTAGE {
        meanwhile.push(done_in(SECOND).await?);
    }
    let state = app.broker()?.state();
    server.alarm(false).await;
    let next = next_job().await?;
    let after = done_in(SECOND).await?;
    println!(
        "{connections} connection(s): {before} jobs in the second before the alarm; {meanwhile:?} in those of the alarm \
         ({state}); the next job {next:.1?} after it; {after} in a second then"
    );
    drop(sending.cancel_on_drop());
    worker.request_cancel("it is measured");
    worker.await??;
    Ok(())
}

/// Waits until somebody listens, and then until a job is done.
async fn back(port: u16) -> Done<(Duration, u32)> {
    while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        sleep(MOMENT).await?;
    }
    let next = next_job().await?;
    Ok((next, done_in(SECOND).await?))
}

async fn killed(server: &Server) -> Done<()> {
    fill(server).await?;
    let app = app(server.url())?;
    let worker = spawn(app.run_worker());
    next_job().await?;
    for _ in 0..TRIES {
        server.command("kill".to_owned()).await;
        sleep(OUTAGE * SECOND).await?;
        let port = server.port();
        let back = spawn(async move { back(port).await.map_err(|error| error.to_string()) });
        server.command("start".to_owned()).await;
        let (next, after) = back.await??;
        println!(
            "killed: the next job {next:.1?} after its port answers; {after} in a second then"
        );
    }
    worker.request_cancel("it is measured");
    worker.await??;
    Ok(())
}

/// Passes connections on to a port. Dropped, it cuts them all.
async fn proxy(from: u16, to: u16) -> Done<(u16, CancelOnDrop<()>)> {
    let listener = TcpListener::bind(("127.0.0.1", from)).await?;
    let port = listener.local_addr()?.port();
    let passing = spawn(async move {
        let mut connections = Vec::new();
        while let Ok((client, _)) = listener.accept().await {
            let passing = async move {
                if let Ok(broker) = TcpStream::connect(("127.0.0.1", to)).await {
                    drop(copy_bidirectional(client, broker).await);
                }
            };
            connections.push(spawn(passing).cancel_on_drop());
        }
    });
    Ok((port, passing.cancel_on_drop()))
}

async fn cut(server: &Server) -> Done<()> {
    fill(server).await?;
    let (port, mut passing) = proxy(0, server.port()).await?;
    let url = server.url().replace(&server.port().to_string(), &port.to_string());
    let app = app(&url)?;
    let worker = spawn(app.run_worker());
    next_job().await?;
    for _ in 0..TRIES {
        drop(passing);
        sleep(OUTAGE * SECOND).await?;
        passing = proxy(port, server.port()).await?.1;
        let next = next_job().await?;
        let after = done_in(SECOND).await?;
        println!("cut: the next job {next:.1?} after somebody listens; {after} in a second then");
    }
    worker.request_cancel("it is measured");
    worker.await??;
    Ok(())
}

fn main() -> Done<()> {
    Kernel::new()?.run(async {
        let server = Server::of(xtask::Server::start(Kind::RabbitMq)?);
        alarm(&server, 1).await?;
        alarm(&server, 2).await?;
        killed(&server).await?;
        cut(&server).await
    })
}
