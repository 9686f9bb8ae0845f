//! A shop whose work is done by jobs: a few hundred of them, of all kinds, in one command.
//!
//! ```sh
//! cargo run --release -p pikake-cli --example shop                            # on a database of its own
//! PIKAKE_BROKER=amqp://localhost cargo run --release -p pikake-cli --example shop   # on RabbitMQ
//! ```
//!
//! Tasks ask for prices, threads make labels, and processes of this program make catalogues. Some
//! charges fail and are retried, one fails for good, and one job is unknown to the worker. The
//! program prints the results and exits.
//!
//! With arguments, the program is the application's command line: `shop worker`,
//! `shop send shop.price 3`.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pikake::jobs::{App, Call, Handle, JobError, JobStats, SendError, current_job};
use pikake::task::ordered_map;
use pikake::{Kernel, interrupt_on_signals, sleep, spawn};

const PRICES: u64 = 240;
const LABELS: u64 = 120;
const CATALOGUES: u64 = 8;
const CHARGES: u64 = 60;
/// Prices, labels, catalogues and charges, and the one unknown job.
const ALL: u64 = PRICES + LABELS + CATALOGUES + CHARGES + 1;

/// How many jobs are on their way to the broker at a time.
const SENDING: usize = 64;

/// How often the progress bar moves.
const BAR_INTERVAL: Duration = Duration::from_millis(50);

/// The price of an order in cents, after a wait as for another service.
#[pikake::job(name = "shop.price", queue = "shop")]
async fn price(order: u64) -> Result<u64, pikake::Interrupted> {
    sleep(Duration::from_millis(20)).await?;
    Ok(100 + order * 37 % 900)
}

/// The label of a parcel. This job blocks, as printers do.
#[pikake::job(name = "shop.label", queue = "shop")]
fn label(order: u64) -> String {
    std::thread::sleep(Duration::from_millis(5));
    format!("parcel {order:04}")
}

/// How many goods a catalogue has: the primes below a number. This job keeps a processor busy, so
/// it runs in a process.
#[pikake::job(name = "shop.catalogue", queue = "shop", process)]
fn catalogue(below: u64) -> u64 {
    let is_prime = |n: &u64| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    (2..below).filter(is_prime).count() as u64
}

/// Charges for an order. The first try of every tenth order fails, and each try of order 13.
#[pikake::job(
    name = "shop.charge",
    queue = "shop",
    retries = 2,
    backoff(first = "200ms", cap = "1s")
)]
async fn charge(order: u64) -> Result<u64, String> {
    sleep(Duration::from_millis(10)).await.map_err(|why| why.to_string())?;
    match order {
        13 => Err("the bank does not answer".into()),
        _ if order.is_multiple_of(10) && current_job().retries() == 0 => {
            Err("the bank is busy".into())
        }
        _ => Ok(current_job().retries().into()),
    }
}

fn app() -> Result<App, Box<dyn Error>> {
    let default = format!("sqlite://{}", std::env::temp_dir().join("pikake-shop.db").display());
    Ok(App::new(default)?.default_queue("shop").jobs([
        price::JOB,
        label::JOB,
        catalogue::JOB,
        charge::JOB,
    ]))
}

fn main() -> ExitCode {
    match app().and_then(open) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(app: App) -> Result<ExitCode, Box<dyn Error>> {
    if std::env::args_os().len() > 1 {
        return Ok(pikake_cli::run(app));
    }
    // A process that makes catalogues never gets past this call.
    app.run_if_child();
    let kernel = Kernel::new()?;
    // Before the folder is created, so that a signal does not end this process without removing the
    // folder.
    let on_signals = interrupt_on_signals(&kernel.handle())?;
    let folder = tempfile::tempdir()?;
    let url = match std::env::var("PIKAKE_BROKER") {
        Ok(url) => url,
        Err(_) => format!("sqlite://{}", folder.path().join("shop.db").display()),
    };
    let ended = kernel.run(run_all(app.at(url)?));
    kernel.shutdown();
    match (ended, on_signals.taken()) {
        (Ok(()), _) => Ok(ExitCode::SUCCESS),
        // The exit code of a process that a signal ends, as in shells.
        (Err(_), Some(signal)) => Ok(ExitCode::from(u8::try_from(128 + signal)?)),
        (Err(error), None) => Err(error),
    }
}

/// Sends all jobs, waits for their outcomes, and prints them.
async fn run_all(app: App) -> Result<(), Box<dyn Error>> {
    let app = app.connect().await?;
    println!("{ALL} jobs through {}", app.redacted_url());
    let begin = Instant::now();
    let worker = spawn(app.run_worker());
    let progress = spawn(progress(app.clone())).cancel_on_drop();

    let prices = send((0..PRICES).map(price::with)).await?;
    let labels = send((0..LABELS).map(label::with)).await?;
    let catalogues = send((1..=CATALOGUES).map(|n| catalogue::with(n * 50_000))).await?;
    let charges = send((0..CHARGES).map(charge::with)).await?;
    let wrapping = Call::<String>::named("shop.gift_wrap", (7,)).queue("shop").send().await?;

    let mut income = 0;
    for handle in &prices {
        income += handle.wait().await?;
    }
    let mut last = String::new();
    for handle in &labels {
        last = handle.wait().await?;
    }
    let mut goods = Vec::new();
    for handle in &catalogues {
        goods.push(handle.wait().await?);
    }
    let (mut retried, mut unpaid) = (0, Vec::new());
    for handle in &charges {
        match handle.wait().await {
            Ok(retries) => retried += retries,
            Err(JobError::Failed(failure)) => unpaid.push(failure.message),
            Err(error) => return Err(error.into()),
        }
    }
    let unwrapped = match wrapping.wait().await {
        Err(JobError::Failed(failure)) => failure.to_string(),
        other => return Err(format!("the unknown job did not fail: {other:?}").into()),
    };
    let seconds = begin.elapsed().as_secs_f64();
    drop(progress);
    worker.request_cancel("the shop closes");
    let report = worker.await??;

    let mut out = io::stdout().lock();
    writeln!(out, "shop.price      {PRICES} orders for {}.{:02}", income / 100, income % 100)?;
    writeln!(out, "shop.label      the last one says `{last}`")?;
    writeln!(out, "shop.catalogue  {goods:?} goods")?;
    writeln!(out, "shop.charge     {retried} were tried again; not paid: {}", unpaid.join(", "))?;
    writeln!(out, "shop.gift_wrap  {unwrapped}")?;
    writeln!(out)?;
    writeln!(out, "{:<16}{:>6}{:>9}{:>8}{:>6}", "job", "done", "retried", "failed", "dead")?;
    let all = ("all", report.stats.all);
    for (name, stats) in report.stats.by_job.into_iter().chain([all]) {
        let JobStats { done, retried, failed, dead, .. } = stats;
        writeln!(out, "{name:<16}{done:>6}{retried:>9}{failed:>8}{dead:>6}")?;
    }
    writeln!(out, "{seconds:.2} seconds, {:.0} jobs/s", ALL as f64 / seconds)?;
    Ok(())
}

/// Sends jobs, many at a time, and returns when the broker has confirmed all.
async fn send<T: 'static>(
    calls: impl IntoIterator<Item = Call<T>>,
) -> Result<Vec<Handle<T>>, Box<dyn Error>> {
    let mut sent = ordered_map(calls, SENDING, async |call: Call<T>| call.send().await);
    let mut handles = Vec::new();
    while let Some(outcome) = sent.next_outcome().await? {
        handles.push(outcome?.map_err(|error: SendError| error.to_string())?);
    }
    Ok(handles)
}

/// Shows how many jobs have ended, on a terminal.
async fn progress(app: App) {
    let bar = ProgressBar::new(ALL);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} jobs, {msg}") {
        bar.set_style(style);
    }
    loop {
        let JobStats { running, done, retried, failed, dead, .. } = app.stats().all;
        bar.set_position(done + failed + dead);
        bar.set_message(format!("{running} running, {retried} retried"));
        if sleep(BAR_INTERVAL).await.is_err() {
            break;
        }
    }
    bar.finish_and_clear();
}
