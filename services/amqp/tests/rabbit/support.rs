//! Real RabbitMQs for these tests.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pikake_amqp::{Address, Connection, Options};
use pikake_kernel::Kernel;
use xtask::{Kind, Server};

/// What has not happened by then never will.
pub(crate) const HANG: Duration = Duration::from_secs(90);

/// One test at a time, whichever broker it uses.
static TURN: Mutex<()> = Mutex::new(());

/// A broker for several tests, started by the first of them.
pub(crate) struct Shared(Mutex<Option<Server>>);

impl Shared {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The broker. `None`: RabbitMQ is missing, and the test is skipped.
    #[track_caller]
    pub(crate) fn get(&self) -> Option<Held> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut broker = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if broker.is_none() {
            *broker = Server::start_or_skip(Kind::RabbitMq);
        }
        Some(Held { broker: broker.clone()?, _turn: turn })
    }
}

/// The broker, while no other test has it.
pub(crate) struct Held {
    broker: Server,
    _turn: MutexGuard<'static, ()>,
}

impl Held {
    pub(crate) fn address(&self) -> Address {
        format!("amqp://127.0.0.1:{}", self.port()).parse().expect("an address")
    }
}

impl Deref for Held {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.broker
    }
}

/// Runs a test on a real kernel, within [`HANG`].
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let kernel = Kernel::new().expect("a kernel");
    kernel.run(async { pikake_traps::timeout_after(HANG, test).await }).expect("it hangs")
}

pub(crate) async fn connect(address: &Address) -> Connection {
    Connection::open(address, Options::default()).await.expect("the broker lets us in")
}

/// The version of RabbitMQ: the first two numbers.
pub(crate) fn version(connection: &Connection) -> (u32, u32) {
    let version = connection.server_version().expect("RabbitMQ says its version");
    let mut numbers = version.split('.').map(|number| number.parse().expect("a number"));
    (numbers.next().expect("major"), numbers.next().expect("minor"))
}
