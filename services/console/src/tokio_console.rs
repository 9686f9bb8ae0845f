//! The program [`tokio-console`](https://github.com/tokio-rs/console), attached to a pikake
//! process.
//!
//! ```text
//!   a kernel ──observer──▶ records of its tasks ◀──looks, once a second── a thread with a kernel of its own ◀──▶ tokio-console
//!       ▲                                                                       │
//!       └───────────────────── questions for waits, once a second ──────────────┘
//! ```
//!
//! The records are behind a lock for each kernel. The thread holds such a lock for some thousand
//! tasks at a time, and never while it sends. So a slow client delays no kernel. The records of
//! ended tasks are limited, and so is a message.
//!
//! | tokio-console shows | which is |
//! | --- | --- |
//! | polls, busy | the steps of the task, and their time |
//! | wakes | the wakes that made the task ready. Further wakes before its next step do not count, and the spawn does not |
//! | self wakes | the wakes in a step of the task itself, as by `yield_now` |
//! | scheduled | the time from each wake, and from the spawn, to the step. The wake of another thread counts from the call of the waker, also if the kernel is in a long step meanwhile; a timer fires when the kernel finds that it is due |
//! | histograms of a task | all its polls and scheduled times since its spawn, to a sixteenth. They take some hundred bytes a task, and at most ten kilobytes |
//! | wakers | one for each task that has not ended: the kernel can wake the task |
//! | resources | what tasks wait for: locks, queues, semaphores, sockets, tasks, timers, foreign futures |
//! | async ops | the waits of tasks: the trap, the place of the await, the task |
//!
//! # Resources and async ops
//!
//! While a client watches, the thread asks each kernel once a second for the waits of its tasks, as
//! the program `pikake` does. So these figures are samples:
//!
//! * A resource is known while a look finds a task that waits for it. Its age counts from the first
//!   of these looks, and its place is that of an await. A lock that nobody waits for is not shown,
//!   and neither is a wait between two looks.
//! * Waits for the same wait queue, socket or task are for one resource. Each timer and foreign
//!   future is a resource of its own. A queue has two resources if tasks wait to put and to get.
//! * A task that waits at the same place at two looks has one async op for both, even if it went on
//!   meanwhile. Polls of async ops are not counted.
//! * Each look has each task of a kernel polled once more, up to 2,000 tasks. Such a poll counts
//!   neither as poll nor as wake, unless the task goes on in it. Without a client there are no
//!   looks.
//! * At most 1,000 resources and 4,000 async ops are known at a time, those of the oldest kernels
//!   and of the first tasks in the kernels' tables. The others are left out.
//! * A kernel that is stuck in a step does not answer. Its tasks then wait for what they waited for
//!   at the look before.
//!
//! # Starting it
//!
//! A program with the feature `tokio-console` and `#[pikake::main]` serves it if the variable
//! `TOKIO_CONSOLE_BIND` is set: to an address, or to `1` for the one that tokio-console looks for.
//! There is no password: each user of the machine may connect, and everybody who reaches an address
//! of another network. Another program calls [`start`] by itself, before it builds its kernels:
//!
//! ```
//! use pikake::console::tokio_console;
//!
//! // Or `start()`, at the address that tokio-console looks for by itself.
//! let address = tokio_console::start_at("127.0.0.1:0".parse().unwrap())?;
//! println!("now call: tokio-console http://{address}");
//! pikake::run(async { /* … */ });
//! # Ok::<(), std::io::Error>(())
//! ```

mod histogram;
mod records;
mod service;
mod waits;

use std::cell::Cell;
use std::env;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread;

use pikake_kernel::{Kernel, Observer, observe_new_kernels};
use pikake_net::TcpListener;
use pikake_traps::spawn;

use records::{Recorder, Records};
use waits::{Waits, sample};

/// The address that tokio-console looks for without an argument.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6669);

/// The variable that sets the address, as `127.0.0.1:7000`; `1` is [`DEFAULT_ADDRESS`]. tokio's own
/// programs have it as well. Under `#[pikake::main]` nothing is served without it, nor with `0`.
pub const ADDRESS_VARIABLE: &str = "TOKIO_CONSOLE_BIND";

/// The greatest number of connections at a time. Each has a few streams.
const CONNECTIONS: usize = 32;

thread_local! {
    /// Whether this thread serves tokio-console: its kernel is not shown.
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Serves tokio-console from a thread of its own until the process ends, and observes the kernels
/// that are built from now on.
///
/// The address is that of [`ADDRESS_VARIABLE`], or [`DEFAULT_ADDRESS`]. A client needs no password:
/// each user of the machine can read the names of tasks and the places of their spawns.
///
/// # Errors
///
/// The variable holds no address. The system's: the address is in use, the process is out of
/// threads or descriptors. Kernels are not observed then.
pub fn start() -> io::Result<SocketAddr> {
    start_at(asked_address()?.unwrap_or(DEFAULT_ADDRESS))
}

/// As [`start`] if the variable asks for it. What `#[pikake::main]` calls.
#[doc(hidden)]
pub fn start_if_asked() -> io::Result<()> {
    asked_address()?.map_or(Ok(()), |address| start_at(address).map(drop))
}

/// The address of the variable.
fn asked_address() -> io::Result<Option<SocketAddr>> {
    match env::var(ADDRESS_VARIABLE).as_deref() {
        Ok("" | "0") | Err(env::VarError::NotPresent) => Ok(None),
        Ok("1") => Ok(Some(DEFAULT_ADDRESS)),
        Ok(text) => {
            let address = text.parse();
            address
                .map(Some)
                .map_err(|_| invalid(&format!("`{text}` is not like `{DEFAULT_ADDRESS}`")))
        }
        Err(error) => Err(invalid(&error.to_string())),
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{ADDRESS_VARIABLE}: {why}"))
}

/// As [`start`], at this address. With port 0 the system chooses one, which is in the returned
/// address.
///
/// # Errors
///
/// The system's, as for [`start`].
pub fn start_at(address: SocketAddr) -> io::Result<SocketAddr> {
    let records = Arc::new(Records::new());
    let (sender, bound) = mpsc::channel();
    let seen = records.clone();
    thread::Builder::new()
        .name("tokio-console".into())
        .spawn(move || serve(address, seen, &sender))?;
    let address = bound.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
    observe_new_kernels(move || {
        let is_shown = !SERVES.get();
        is_shown.then(|| Box::new(Recorder::new(&records)) as Box<dyn Observer>)
    });
    Ok(address)
}

fn serve(address: SocketAddr, records: Arc<Records>, bound: &mpsc::Sender<io::Result<SocketAddr>>) {
    SERVES.set(true);
    let kernel = match Kernel::builder().name("tokio-console").build() {
        Ok(kernel) => kernel,
        Err(error) => return drop(bound.send(Err(error))),
    };
    let outcome = kernel.try_run(async {
        let listener = TcpListener::bind(address).await;
        let listener = match listener.and_then(|l| l.local_addr().map(|address| (l, address))) {
            Ok((listener, address)) => {
                let _ = bound.send(Ok(address));
                listener
            }
            Err(error) => return drop(bound.send(Err(error))),
        };
        let waits = Arc::new(Waits::default());
        spawn(sample(records.clone(), waits.clone())).detach();
        let server = pikake_http::serve(listener, service::service(records, waits));
        if let Err(error) = server.connections(CONNECTIONS).await {
            tracing::error!(%error, "tokio-console is not served any more");
        }
    });
    if let Err(error) = outcome {
        tracing::error!(%error, "tokio-console is not served any more");
    }
}
