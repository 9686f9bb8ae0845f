//! Callers that ask PostgreSQL over pools of ten connections together, on two kernels of pikake or
//! on two worker threads of tokio.
//!
//! ```text
//! kernels <pools> <port of PostgreSQL> <callers of one kernel>,<of the other> <seconds>
//! ```
//!
//! Prints requests per second, microseconds of this process's processor time per request, and new
//! connections per 1,000 requests, after a second of warm-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deadpool_postgres::{Hook, ManagerConfig, RecyclingMethod, Runtime};
use pikake::pool::Limit;
use pikake::postgres::{Config, Manager, Pool, Reset};

/// Connections of all pools.
const LIMIT: usize = 10;
const KERNELS: usize = 2;
const TEXT: &str = "SELECT $1::INTEGER + 1";
const WARM_UP: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    connections: AtomicU64,
    is_over: AtomicBool,
}

impl Counts {
    fn read(&self) -> (Instant, u64, u64, Duration) {
        let [requests, connections] =
            [&self.requests, &self.connections].map(|count| count.load(Ordering::Relaxed));
        (Instant::now(), requests, connections, processor_time())
    }

    /// Prints what happens after the warm-up, and ends the callers.
    fn measure(&self, length: Duration) {
        std::thread::sleep(WARM_UP);
        let before = self.read();
        std::thread::sleep(length);
        let after = self.read();
        self.is_over.store(true, Ordering::Relaxed);
        let requests = (after.1 - before.1) as f64;
        println!(
            "{:.0}\t{:.1}\t{:.2}",
            requests / (after.0 - before.0).as_secs_f64(),
            (after.3 - before.3).as_secs_f64() * 1e6 / requests,
            (after.2 - before.2) as f64 * 1e3 / requests,
        );
    }
}

/// The processor time of this process.
fn processor_time() -> Duration {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path().join("schedstat");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        sum += text.split(' ').next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    }
    Duration::from_nanos(sum)
}

/// The callers of one kernel.
async fn call(pool: Pool, callers: usize, counts: Arc<Counts>) {
    let tasks: Vec<_> = (0..callers as i32)
        .map(|number| {
            let (pool, counts) = (pool.clone(), counts.clone());
            pikake::spawn(async move {
                while !counts.is_over.load(Ordering::Relaxed) {
                    let connection = pool.get().await.unwrap();
                    let row = connection.query_one(TEXT, &[&number]).await.unwrap();
                    assert_eq!(row.get::<_, i32>(0), number + 1);
                    counts.requests.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut created = 0;
    while !counts.is_over.load(Ordering::Relaxed) {
        pikake::sleep(Duration::from_millis(10)).await.unwrap();
        let now = pool.stats().created;
        counts.connections.fetch_add(now - created, Ordering::Relaxed);
        created = now;
    }
    for task in tasks {
        task.await.unwrap();
    }
}

fn on_pikake(
    database: &str,
    reset: Reset,
    is_common: bool,
    callers: [usize; KERNELS],
    length: Duration,
) {
    let (counts, limit) = (Arc::<Counts>::default(), Limit::new(LIMIT));
    let config: Config = database.parse().unwrap();
    let kernels = callers.map(|callers| {
        let (counts, limit, config) = (counts.clone(), limit.clone(), config.clone().reset(reset));
        std::thread::spawn(move || {
            pikake::run(async move {
                let builder = Pool::builder(Manager::new(config));
                let pool = match is_common {
                    true => builder.limit(LIMIT).common_limit(&limit).build(),
                    false => builder.limit(LIMIT / KERNELS).build(),
                };
                call(pool, callers, counts).await;
            });
        })
    });
    counts.measure(length);
    kernels.into_iter().for_each(|kernel| kernel.join().unwrap());
}

fn on_tokio(database: &str, recycling_method: RecyclingMethod, callers: usize, length: Duration) {
    let counts = Arc::<Counts>::default();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(KERNELS).enable_all().build().unwrap();
    let manager = deadpool_postgres::Manager::from_config(
        database.parse().unwrap(),
        tokio_postgres::NoTls,
        ManagerConfig { recycling_method },
    );
    let counted = counts.clone();
    let pool = deadpool_postgres::Pool::builder(manager)
        .max_size(LIMIT)
        .runtime(Runtime::Tokio1)
        .post_create(Hook::sync_fn(move |_, _| {
            counted.connections.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }))
        .build()
        .unwrap();
    let tasks: Vec<_> = (0..callers as i32)
        .map(|number| {
            let (pool, counts) = (pool.clone(), counts.clone());
            runtime.spawn(async move {
                while !counts.is_over.load(Ordering::Relaxed) {
                    let connection = pool.get().await.unwrap();
                    let statement = connection.prepare_cached(TEXT).await.unwrap();
                    let row = connection.query_one(&statement, &[&number]).await.unwrap();
                    assert_eq!(row.get::<_, i32>(0), number + 1);
                    counts.requests.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    counts.measure(length);
    tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap());
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pools, port, callers, seconds] = &arguments[..] else {
        panic!("pools, the port of PostgreSQL, callers, seconds")
    };
    let database = format!("host=127.0.0.1 port={port} user=pikake dbname=postgres");
    let callers: Vec<usize> = callers.split(',').map(|count| count.parse().unwrap()).collect();
    let callers = <[usize; KERNELS]>::try_from(callers).expect("callers of two kernels");
    let all = callers.iter().sum();
    let length = Duration::from_secs(seconds.parse().unwrap());
    match pools.as_str() {
        "common" => on_pikake(&database, Reset::Transaction, true, callers, length),
        "split" => on_pikake(&database, Reset::Transaction, false, callers, length),
        "deadpool" => on_tokio(&database, RecyclingMethod::Fast, all, length),
        "common-session" => on_pikake(&database, Reset::Session, true, callers, length),
        "split-session" => on_pikake(&database, Reset::Session, false, callers, length),
        "deadpool-clean" => on_tokio(&database, RecyclingMethod::Clean, all, length),
        _ => panic!("pools are common, split or deadpool, or with -session or -clean"),
    }
}
