//! Where brokers are opened: the same store for several of them, on the kernel that runs here.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::broker::LocalFuture;
use pikake_jobs::{AmqpBroker, App, Broker, Deliveries, MemoryStore, SqliteBroker};
use pikake_kernel::Kernel;
use pikake_sim::{Ran, Sim};
use tempfile::TempDir;

use crate::help::IS_REPLICATED;

/// So many seeds are run where time costs nothing.
const SEEDS: u64 = 32;

/// A store for a case to open brokers on.
pub(crate) trait Place {
    /// Opens a broker; all of one place share what is stored.
    fn open(&self) -> LocalFuture<'_, Rc<dyn Broker>>;

    /// Loses a broker without a word, and its consumers.
    fn lose(&self, broker: Rc<dyn Broker>, deliveries: Vec<Box<dyn Deliveries>>) {
        drop(deliveries);
        drop(broker);
    }

    /// The distance of two moments that the broker tells apart.
    fn step(&self) -> Duration {
        Duration::from_millis(100)
    }
}

/// What a case is to a runner.
pub(crate) type Case = for<'a> fn(&'a dyn Place) -> LocalFuture<'a, ()>;

struct Memory(MemoryStore);

impl Place for Memory {
    fn open(&self) -> LocalFuture<'_, Rc<dyn Broker>> {
        Box::pin(async { Rc::new(self.0.open()) as Rc<dyn Broker> })
    }
}

pub(crate) fn memory(case: Case) {
    let place = Memory(MemoryStore::new());
    Kernel::new().unwrap().run(case(&place));
}

pub(crate) fn memory_in_sim(case: Case) {
    for seed in 0..SEEDS {
        let place = Memory(MemoryStore::new());
        match Sim::new(seed).run_here("case", case(&place)) {
            Ok(Ran { outcome, .. }) => {
                outcome.unwrap_or_else(|error| panic!("with seed {seed}: {error}"));
            }
            Err(failure) => panic!("{failure}"),
        }
    }
}

struct Sqlite(PathBuf);

impl Place for Sqlite {
    fn open(&self) -> LocalFuture<'_, Rc<dyn Broker>> {
        Box::pin(async { Rc::new(SqliteBroker::open(&self.0).await.unwrap()) as Rc<dyn Broker> })
    }
}

pub(crate) fn sqlite(case: Case) {
    let directory = TempDir::new().unwrap();
    let place = Sqlite(directory.path().join("jobs.db"));
    Kernel::new().unwrap().run(case(&place));
}

/// Queues in memory, and outcomes in a database of Redis's.
struct WithRedis(MemoryStore, String);

impl Place for WithRedis {
    fn open(&self) -> LocalFuture<'_, Rc<dyn Broker>> {
        Box::pin(async {
            let app = App::on(Rc::new(self.0.open())).results(&*self.1).unwrap();
            app.attach().await.unwrap().broker().unwrap()
        })
    }
}

pub(crate) fn memory_with_redis(case: Case) {
    let Some(url) = xtask::fresh_redis_url() else { return };
    let place = WithRedis(MemoryStore::new(), url);
    Kernel::new().unwrap().run(case(&place));
}

/// A virtual host of RabbitMQ's.
struct Amqp(String);

impl Place for Amqp {
    fn open(&self) -> LocalFuture<'_, Rc<dyn Broker>> {
        Box::pin(async { Rc::new(AmqpBroker::open(&self.0).await.unwrap()) as Rc<dyn Broker> })
    }
}

pub(crate) fn amqp(case: Case) {
    let Some(url) = xtask::fresh_url() else { return };
    let place = Amqp(url);
    Kernel::new().unwrap().run(case(&place));
}

/// The same with quorum queues.
pub(crate) fn amqp_replicated(case: Case) {
    IS_REPLICATED.set(true);
    amqp(case);
}
