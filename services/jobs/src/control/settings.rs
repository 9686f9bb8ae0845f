//! What an application keeps for control: its worker's name, its options, and the workers that it
//! has seen.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use pikake_sync::Event;

use crate::client::app::App;
use crate::control::known::KnownWorkers;

/// The number of worker names that this process has made.
static NAMES: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
pub(crate) struct ControlSettings {
    name: RefCell<Option<String>>,
    pub(crate) sends_events: Cell<bool>,
    pub(crate) sends_sent_events: Cell<bool>,
    /// The number of jobs of which events were sent.
    pub(crate) sent_clock: Cell<u64>,
    pub(crate) state_file: RefCell<Option<PathBuf>>,
    pub(crate) known: KnownWorkers,
    /// The queues of which the worker takes no messages until they are resumed.
    pub(crate) paused: RefCell<BTreeSet<String>>,
    /// Set when the revoked jobs or the paused queues have changed, until they are saved.
    pub(crate) changed: Event,
}

impl ControlSettings {
    /// Takes over which queues are paused. Others are not: they may have been resumed while this
    /// worker was away.
    pub(crate) fn set_paused(&self, queues: BTreeSet<String>) {
        if *self.paused.borrow() != queues {
            self.paused.replace(queues);
            self.changed.set();
        }
    }
}

impl App {
    /// Sets the name of this application's worker, under which operators see it: `mail@HOST`, or
    /// `mail` for that on this host; `%h` is the host's name. By default the name is
    /// `pikake-PID@HOST`.
    ///
    /// A later call replaces an earlier one, before the worker runs. The names of a broker's
    /// workers differ. On RabbitMQ, a worker with the name of another one cannot be controlled.
    pub fn named(self, name: &str) -> Self {
        let name = match name.contains('@') {
            true => name.replace("%h", &host()),
            false => format!("{}@{}", name.replace("%h", &host()), host()),
        };
        *self.0.control.name.borrow_mut() = Some(name);
        self
    }

    /// The name of this application's worker.
    pub fn worker_name(&self) -> String {
        let made = || {
            let prefix = match NAMES.fetch_add(1, Ordering::Relaxed) {
                0 => format!("pikake-{}", std::process::id()),
                number => format!("pikake-{}-{}", std::process::id(), number + 1),
            };
            format!("{prefix}@{}", host())
        };
        self.0.control.name.borrow_mut().get_or_insert_with(made).clone()
    }

    /// Has the worker send events of its jobs from its start on, as Celery's `-E` does. Operators
    /// turn them on and off with [`Control::enable_events`](crate::Control::enable_events).
    pub fn send_events(self, on: bool) -> Self {
        self.0.control.sends_events.set(on);
        self
    }

    /// Has the worker keep revoked jobs and paused queues in a file over restarts, as Celery's
    /// `--statedb` does. Brokers in memory and in SQLite keep both themselves.
    pub fn state_file(self, path: impl Into<PathBuf>) -> Self {
        *self.0.control.state_file.borrow_mut() = Some(path.into());
        self
    }
}

/// The name of this host.
fn host() -> String {
    let name = rustix::system::uname();
    name.nodename().to_str().unwrap_or("localhost").to_owned()
}
