//! A real RabbitMQ for a test file.

#![allow(dead_code, reason = "not every test file needs all of it")]
#![allow(unreachable_pub, reason = "a module of several test files")]

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pikake_amqp::{Address, Connection, Options};
use pikake_kernel::Kernel;
use xtask::Server;

/// What has not happened by then never will.
pub const HANG: Duration = Duration::from_secs(90);

/// For one test at a time.
pub struct Shared(Mutex<()>);

impl Shared {
    pub const fn new() -> Self {
        Self(Mutex::new(()))
    }

    /// The broker of this test file. `None`: there is none, and the test is skipped.
    #[track_caller]
    pub fn get(&self) -> Option<Held<'_>> {
        let turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Held { broker: xtask::rabbitmq()?, _turn: turn })
    }
}

/// The broker, while no other test has it.
pub struct Held<'a> {
    broker: Server,
    _turn: MutexGuard<'a, ()>,
}

impl Held<'_> {
    pub fn address(&self) -> Address {
        format!("amqp://127.0.0.1:{}", self.port()).parse().expect("an address")
    }
}

impl Deref for Held<'_> {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.broker
    }
}

/// Runs a test on a real kernel, within [`HANG`].
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let kernel = Kernel::new().expect("a kernel");
    kernel.run(async { pikake_traps::timeout_after(HANG, test).await }).expect("it hangs")
}

pub async fn connect(address: &Address) -> Connection {
    Connection::open(address, Options::default()).await.expect("the broker lets us in")
}
