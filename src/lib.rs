//! An async runtime in which every wait is a request to a kernel, and an interruption is an error
//! that a task can handle.
//!
//! A task hands each wait (for time, a socket, a lock) as a *trap* to the kernel that runs in its
//! thread. A timeout or a cancel is therefore an `Err` at the await, where the task can clean up,
//! and may await. The traps are specified, so a simulator can replace the kernel, and a test
//! repeats the same run by a seed.
//!
//! # First steps
//!
//! pikake needs Rust 1.85 or later and a Unix system with epoll, kqueue or poll. It is not on
//! crates.io yet:
//!
//! ```toml
//! [dependencies]
//! pikake = { git = "…" }
//! ```
//!
//! A program, and a deadline that lets it clean up:
//!
//! ```
//! use pikake::{Interrupted, TimedOut, sleep, timeout_after};
//! use std::time::Duration;
//!
//! async fn transfer() -> Result<(), Interrupted> {
//!     if let Err(interrupted) = sleep(Duration::from_secs(60)).await {
//!         sleep(Duration::from_millis(10)).await?; // the rollback, which may await
//!         return Err(interrupted);
//!     }
//!     Ok(())
//! }
//!
//! #[pikake::main]
//! async fn main() {
//!     let outcome = timeout_after(Duration::from_millis(50), transfer()).await;
//!     assert_eq!(outcome, Err(TimedOut));
//! }
//! ```
//!
//! A server. Each connection is a task, and SIGTERM or SIGINT ends the server and its connections:
//!
//! ```no_run
//! use pikake::net::{BufReader, TcpListener, TcpStream, Write, serve};
//!
//! /// Answers each line with the same line.
//! async fn echo(stream: TcpStream) -> std::io::Result<()> {
//!     let stream = BufReader::new(stream);
//!     while let Some(line) = stream.next_line().await? {
//!         stream.write_all(format!("{line}\n").as_bytes()).await?;
//!     }
//!     Ok(())
//! }
//!
//! # #[cfg(feature = "signals")]
//! #[pikake::main(signals)]
//! async fn main() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:7000").await?;
//!     serve(listener, 1000, |stream, _| async move { drop(echo(stream).await) }).await?;
//!     Ok(())
//! }
//! # #[cfg(not(feature = "signals"))]
//! # fn main() {}
//! ```
//!
//! Its test in the simulator, on two hosts with a network between them, for twenty seeds:
//!
//! ```
//! use pikake::net::{BufReader, TcpListener, TcpStream, Write, serve};
//! use pikake::sim::Runs;
//!
//! # async fn echo(stream: TcpStream) -> std::io::Result<()> {
//! #     let stream = BufReader::new(stream);
//! #     while let Some(line) = stream.next_line().await? {
//! #         stream.write_all(format!("{line}\n").as_bytes()).await?;
//! #     }
//! #     Ok(())
//! # }
//! Runs::new("echo").seeds(20).run(|sim| {
//!     sim.host("server", || async {
//!         let listener = TcpListener::bind("0.0.0.0:7000").await?;
//!         serve(listener, 1000, |stream, _| async move { drop(echo(stream).await) }).await?;
//!         Ok::<_, std::io::Error>(())
//!     });
//!     sim.client("client", || async {
//!         let stream = BufReader::new(TcpStream::connect("server:7000").await?);
//!         stream.write_all(b"hello\n").await?;
//!         assert_eq!(stream.next_line().await?.as_deref(), Some("hello"));
//!         Ok::<_, std::io::Error>(())
//!     });
//! });
//! ```
//!
//! # What is where
//!
//! | to | use |
//! | --- | --- |
//! | wait for time, or let other tasks run | [`sleep`], [`sleep_until`], [`yield_now`] |
//! | do something again and again | [`interval`] |
//! | wait for the first of several futures | [`select!`] |
//! | limit how long a future may take | [`timeout_after`]; to keep its output: [`timed`]; to get an `Option`: [`ignore_after`] |
//! | get one error of a result within results | [`Flatten`] |
//! | wait a while for the next item of a stream, a channel, a generator | [`next_timeout`] |
//! | keep a future from being interrupted | [`shield`] |
//! | start a task, and join or cancel it | [`spawn`], [`Task`]; with a name, or at once: [`task::Builder`] |
//! | start tasks that end before a block does | [`TaskGroup`], [`task_group`] |
//! | run futures in parallel, a limited number at a time | [`task::in_parallel`], [`task::ordered_map`] |
//! | share state, wait for a condition, pass values on | [`sync`] |
//! | connect, listen and serve: TCP, UDP, Unix sockets | [`net`] |
//! | speak TLS, ask DNS servers | [`net::tls`], [`net::dns`] |
//! | serve HTTP with hyper or axum | [`http`] |
//! | ask HTTP servers | [`http::Client`] |
//! | query PostgreSQL over pooled connections | [`postgres`] |
//! | call other processes, and be called | `#[pikake::service]`, [`rpc`] |
//! | call code that blocks | [`thread::run_in_thread`] and others in [`thread`] |
//! | read and write files and standard streams | [`fs`], [`stdio`] |
//! | start other programs | [`process`] |
//! | handle signals | [`signal`], `#[pikake::main(signals)]` |
//! | await a future of another library | [`future_wait`]; of one that requires tokio: [`tokio`] |
//! | use more than one processor | `#[pikake::main(threads = 4)]`, [`Kernels`] |
//! | run work later, or on another machine | [`jobs`] |
//! | read the clock, set deadlines | [`time::Instant`], [`time`] |
//! | get random numbers | [`random`] |
//! | run a test in a simulated world | `#[pikake::sim]`, [`sim`] |
//! | interrupt a program at each of its awaits in turn | [`testing`] |
//! | run tasks inside another event loop | [`Kernel::turn`] |
//! | look into a live process | [`console`] |
//! | start a task from another thread, or stop a kernel from there | [`KernelHandle`] |
//!
//! # Features
//!
//! A program without features builds 27 packages, and one with the default features 30. The columns
//! say how many a feature adds to those, on Linux, and the oldest Rust that builds it.
//!
//! | feature | default | adds | with | packages | Rust |
//! | --- | --- | --- | --- | ---: | ---: |
//! | `log-to-stderr` | yes | [`log_to_stderr`], which `#[pikake::main]` calls | | +0 | 1.85 |
//! | `signals` | yes | [`signal`], [`interrupt_on_signals`], `#[pikake::main(signals)]` | signal-hook | +3 | 1.85 |
//! | `sim` | | [`sim`], [`testing`], `#[pikake::sim]`: for `[dev-dependencies]` | rand_xoshiro | +3 | 1.85 |
//! | `process` | | [`process`] | signal-hook | +0 | 1.85 |
//! | `watch` | | [`fs::watch`] | notify | +7 | 1.85 |
//! | `tls` | | [`net::tls`]; with `http`, HTTPS; with `jobs-amqp`, `amqps://`; with `jobs-redis`, `rediss://`; with `postgres` and `rpc`, TLS | rustls with ring | +14 | 1.85 |
//! | `dns` | | [`net::dns`] | hickory-resolver | +69 | 1.88 |
//! | `peer-credentials` | | [`UnixStream::peer_credentials`](net::UnixStream) on Linux | nix | +4 | 1.85 |
//! | `io-traits` | | `AsyncRead` and `AsyncWrite` of tokio and of futures for the streams of [`net`] | futures-io, and tokio's traits, without its runtime | +2 | 1.85 |
//! | `tokio-console` | | [`console::tokio_console`]: with the variable `TOKIO_CONSOLE_BIND`, the program tokio-console can attach | console-api, tonic, hyper | +70 | 1.85 |
//! | `profile` | | stacks in [`console`]: samples of processor time and of blocked steps, and that of a thread that is stuck; turns `console` on | rustc-demangle | +24 | 1.85 |
//! | `http` | | [`http`]; turns `io-traits` on | hyper | +22 | 1.85 |
//! | `http-client` | | [`http::Client`], which decodes gzip and deflate; turns `http` on | hyper, serde_json, url, flate2 | +68 | 1.85 |
//! | `axum` | | [`http::axum`]; turns `http` on | axum | +35 | 1.85 |
//! | `postgres` | | [`postgres`]; turns `pool` on | tokio-postgres | +48 | 1.85 |
//! | `rpc` | | [`rpc`], `#[pikake::service]`; turns `peer-credentials` on | serde, postcard, serde_json | +16 | 1.85 |
//! | `pool` | | [`pool`]: objects that cost something to make | | +3 | 1.85 |
//! | `console` | | [`console`], `#[pikake::main(console)]`; [`console::metrics`]: figures of kernels, process and program as an OpenMetrics text; [`console::record`]: recordings in files | serde_json, prometheus-client, postcard | +23 | 1.85 |
//! | `tokio` | | [`tokio`] | tokio | +2 | 1.85 |
//! | `jobs` | | [`jobs`], `#[pikake::job]`, the broker `memory://` | serde, jiff | +11 | 1.85 |
//! | `jobs-sqlite` | | the broker `sqlite://`; turns `jobs` on | SQLite, which a C compiler builds | +24 | 1.89 |
//! | `jobs-amqp` | | the broker `amqp://` (RabbitMQ), [`amqp`]; turns `jobs` on | amq-protocol | +51 | 1.88 |
//! | `jobs-redis` | | [`jobs::App::results`]: outcomes in Redis, as Celery has them; turns `jobs` on | percent-encoding | +12 | 1.85 |
//!
//! # Guides
//!
//! * [`interruption`]: how timeouts and cancels reach a task, in ten rules and five programs.
//! * [`simulation`]: from a test to a bug that is found, repeated, reduced and fixed.
//! * [`jobs`]: how to write jobs, run workers, and which guarantees hold.
//!
//! The folder `examples` of the repository has programs in reading order, and one for each library
//! that is known to work.
//!
//! # For authors of primitives and kernels
//!
//! [`traps`] specifies each trap, and has what locks, channels and libraries for sockets are made
//! of. [`kernel`] is the real kernel, with a driver, a clock and an order of tasks that can be
//! replaced.
//!
// The links of items that a feature adds: without the feature, to the list of features.
#![cfg_attr(feature = "sim", doc = "[`sim`]: mod@sim")]
#![cfg_attr(not(feature = "sim"), doc = "[`sim`]: #features")]
#![cfg_attr(not(feature = "sim"), doc = "[`testing`]: #features")]
#![cfg_attr(not(feature = "tls"), doc = "[`net::tls`]: #features")]
#![cfg_attr(not(feature = "dns"), doc = "[`net::dns`]: #features")]
#![cfg_attr(not(feature = "console"), doc = "[`console`]: #features")]
#![cfg_attr(not(feature = "console"), doc = "[`console::metrics`]: #features")]
#![cfg_attr(not(feature = "console"), doc = "[`console::record`]: #features")]
#![cfg_attr(not(feature = "tokio-console"), doc = "[`console::tokio_console`]: #features")]
#![cfg_attr(not(feature = "http"), doc = "[`http`]: #features")]
#![cfg_attr(not(feature = "http-client"), doc = "[`http::Client`]: #features")]
#![cfg_attr(not(feature = "axum"), doc = "[`http::axum`]: #features")]
#![cfg_attr(not(feature = "log-to-stderr"), doc = "[`log_to_stderr`]: #features")]
#![cfg_attr(not(feature = "postgres"), doc = "[`postgres`]: #features")]
#![cfg_attr(not(feature = "pool"), doc = "[`pool`]: #features")]
#![cfg_attr(not(feature = "rpc"), doc = "[`rpc`]: #features")]
#![cfg_attr(not(feature = "process"), doc = "[`process`]: #features")]
#![cfg_attr(not(feature = "signals"), doc = "[`signal`]: #features")]
#![cfg_attr(not(feature = "signals"), doc = "[`interrupt_on_signals`]: #features")]
#![cfg_attr(not(feature = "watch"), doc = "[`fs::watch`]: #features")]
#![cfg_attr(not(feature = "jobs"), doc = "[`jobs`]: #features")]
#![cfg_attr(not(feature = "jobs"), doc = "[`jobs::App::results`]: #features")]
#![cfg_attr(not(feature = "jobs-amqp"), doc = "[`amqp`]: #features")]
#![cfg_attr(not(feature = "tokio"), doc = "[`tokio`]: #features")]
#![forbid(unsafe_code)]
// Hidden is the feature of an inner crate, which `jobs-amqp` turns on.
#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(feature = "amqp"))))]
#![cfg_attr(docsrs, expect(unexpected_cfgs, reason = "no feature of this crate"))]

pub use pikake_kernel::{Kernel, Kernels, Turn, other_kernels, run, try_run};
#[cfg(feature = "jobs")]
pub use pikake_macros::job;
#[cfg(feature = "rpc")]
pub use pikake_macros::service;
// Always there, to say which feature it needs.
#[cfg_attr(docsrs, doc(cfg(feature = "sim")))]
pub use pikake_macros::sim;
pub use pikake_macros::{main, test};
pub use pikake_task::{
    Flatten, TaskGroup, interval, interval_at, next_timeout, task_group, try_task_group,
};
pub use pikake_traps::{
    Bound, Interrupted, KernelEnded, KernelHandle, Task, TaskError, Timed, TimedOut,
    check_interrupt, current, future_wait, ignore_after, now, on_kernels, pending_interrupt,
    random, shield, sleep, sleep_until, spawn, timed, timeout_after, timeout_at, yield_now,
};

#[cfg(feature = "log-to-stderr")]
pub use pikake_os::log_to_stderr;
#[cfg(feature = "process")]
pub use pikake_os::process;
#[cfg(feature = "signals")]
pub use pikake_os::signal::{self, OnSignals, interrupt_on_signals};
pub use pikake_os::{fs, stdio};

mod select;

/// How a task is interrupted, and how it can clean up: a chapter of the book.
///
#[doc = include_str!("../docs/interruption.md")]
pub mod interruption {}

/// From a test to a bug that is found, repeated, reduced and fixed: a chapter of the book.
///
#[doc = include_str!("../docs/simulation.md")]
pub mod simulation {}

#[cfg(feature = "jobs")]
/// Typed work that runs later, in another process or on another machine.
///
#[doc = include_str!("../docs/jobs.md")]
pub mod jobs {
    pub use pikake_jobs::*;

    // By name, so that the documentation has the features.
    #[cfg(feature = "jobs-amqp")]
    pub use pikake_jobs::AmqpBroker;
    #[cfg(feature = "jobs-sqlite")]
    pub use pikake_jobs::SqliteBroker;

    /// A job, to show what `#[pikake::job]` makes of it. Exists in this documentation only.
    #[cfg(doc)]
    pub mod example {
        /// Adds two numbers, as [`add()`] of any program would.
        #[crate::job(crate = crate::jobs)]
        pub async fn add(a: i64, b: i64) -> i64 {
            a + b
        }
    }
}

#[doc(inline)]
pub use pikake_net as net;

/// Byte streams: the traits, buffers and copies of [`net`], and the standard streams of [`stdio`],
/// at the path where tokio and the standard library have theirs.
///
/// The traits [`Read`](io::Read) and [`Write`](io::Write) take `&self` and are implemented by all
/// streams here. With the feature `io-traits`, the streams of [`net`] have the traits of tokio and
/// of futures as well.
pub mod io {
    #[doc(no_inline)]
    pub use pikake_net::{BufReader, BufWriter, Lines, Read, Write, copy, copy_bidirectional};
    #[doc(no_inline)]
    pub use pikake_os::stdio::{Stderr, Stdin, Stdout, stderr, stdin, stdout};
}

#[cfg(feature = "jobs-amqp")]
#[doc(inline)]
pub use pikake_amqp as amqp;

#[cfg(any(feature = "console", feature = "tokio-console"))]
#[doc(inline)]
pub use pikake_console as console;

#[cfg(feature = "tokio")]
#[doc(inline)]
pub use pikake_tokio as tokio;

#[cfg(feature = "http")]
#[doc(inline)]
pub use pikake_http as http;

#[cfg(feature = "pool")]
#[doc(inline)]
pub use pikake_pool as pool;

#[cfg(feature = "postgres")]
#[doc(inline)]
pub use pikake_postgres as postgres;

#[cfg(feature = "rpc")]
#[doc(inline)]
pub use pikake_rpc as rpc;

#[doc(inline)]
pub use pikake_sync as sync;

/// Moments, lengths and clocks: what the scheduler counts, and the time of day.
///
/// A task waits with [`sleep`] and [`timeout_after`], which take a
/// [`Duration`](std::time::Duration). All moments are those of the kernel's clock, so they are
/// virtual in a simulation.
///
/// | to | use |
/// | --- | --- |
/// | set one deadline for several waits | [`Instant::now`](time::Instant::now)` + length` with [`sleep_until`], [`timeout_at`] |
/// | measure a time | [`Instant::elapsed`](time::Instant::elapsed) |
/// | do something again and again | [`interval`] |
/// | get the date and the time of day | [`wall_time`](time::wall_time) |
/// | convert readings | [`Ticks`](time::Ticks), [`Rate`](time::Rate), [`clock_rate`](time::clock_rate) |
/// | give a kernel another clock | [`ManualClock`](time::ManualClock), which tests move; [`Clock`](time::Clock) |
/// | write a kernel | [`TimerHeap`](time::TimerHeap), [`WallTime`](time::WallTime) |
///
/// # Examples
///
/// ```
/// use pikake::time::Instant;
/// use pikake::{sleep, sleep_until, timeout_at};
/// use std::time::Duration;
///
/// # pikake::sim::example(async {
/// let begin = Instant::now();
/// let deadline = begin + Duration::from_secs(2);
/// sleep_until(deadline).await?;
/// assert!(begin.elapsed() >= Duration::from_secs(2));
/// // The deadline has passed, so a body may run until its first wait, and no longer.
/// assert!(timeout_at(deadline, sleep(Duration::from_secs(1))).await.is_err());
/// # Ok::<_, pikake::Interrupted>(())
/// # })
/// # .unwrap();
/// ```
pub mod time {
    pub use std::time::Duration;

    pub use pikake_task::{Interval, MissedTickBehavior, interval, interval_at};
    pub use pikake_time::{
        Clock, Deadline, INITIAL_DRIFT_BOUND_PPM, ManualClock, PRUNE_SLACK, REFINED_BASELINE,
        REFINED_DRIFT_BOUND_PPM, Rate, SystemClock, Ticks, TimerHeap, TimerKey, Utc, WallTime,
    };
    pub use pikake_traps::{
        Instant, clock_rate, deadline_after, elapsed_since, now, sleep, sleep_until, timeout_after,
        timeout_at, wall_time, with_timer_slack,
    };
}

#[doc(inline)]
pub use pikake_task as task;

/// Code that blocks: closures, objects and whole threads beside a kernel.
///
/// | you have | use |
/// | --- | --- |
/// | a closure that blocks | [`run_in_thread`](thread::run_in_thread) |
/// | a closure that blocks and checks a cancel flag | [`run_in_thread_with`](thread::run_in_thread_with) |
/// | an object whose methods block, and which is used more than once | [`ThreadProxy`](thread::ThreadProxy) |
/// | a program that blocks, and awaits in between | [`spawn_thread`](thread::spawn_thread), [`block_on`](thread::block_on) |
///
/// # Examples
///
/// ```
/// use pikake::thread::{ThreadProxy, block_on, run_in_thread, run_in_thread_with, spawn_thread};
/// use pikake::{TaskError, sleep, timeout_after};
/// use std::collections::BTreeMap;
/// use std::time::Duration;
///
/// const MOMENT: Duration = Duration::from_millis(5);
///
/// # fn main() -> Result<(), TaskError> {
/// pikake::run(async {
///     // A closure that blocks. All other tasks go on meanwhile.
///     let manifest = run_in_thread(|| std::fs::read_to_string("Cargo.toml")).await?;
///     assert!(manifest.unwrap().contains("pikake"));
///
///     // A closure that stops when no task waits for its result any more.
///     let endless = run_in_thread_with(|cancel| {
///         while !cancel.is_cancelled() {
///             std::thread::yield_now();
///         }
///     });
///     assert!(timeout_after(MOMENT, endless).await.is_err());
///
///     // An object that lives in a thread.
///     let stock = ThreadProxy::open(|| Ok::<_, std::io::Error>(BTreeMap::new())).await?.unwrap();
///     stock.call(|stock| stock.insert("apples", 3)).await?;
///     assert_eq!(stock.call(|stock| stock["apples"]).await?, 3);
///     stock.close().await?;
///
///     // A thread that awaits, and its result.
///     let task = spawn_thread(|| {
///         let awaited = block_on(|| async {
///             sleep(MOMENT).await?;
///             Ok(6 * 7)
///         });
///         awaited.and_then(|answer: Result<u32, pikake::Interrupted>| answer)
///     });
///     assert_eq!(task.await?, Ok(42));
///     Ok(())
/// })
/// # }
/// ```
pub mod thread {
    pub use pikake_task::ThreadProxy;
    pub use pikake_task::thread::*;
    pub use pikake_traps::{
        Blocking, CancelFlag, blocking as run_in_thread, blocking_with as run_in_thread_with,
    };
}

#[cfg(feature = "sim")]
#[doc(inline)]
pub use pikake_sim as sim;

#[cfg(feature = "sim")]
#[doc(inline)]
pub use pikake_sim::testing;

#[doc(inline)]
pub use pikake_traps as traps;

#[doc(inline)]
pub use pikake_kernel as kernel;

/// The names that most programs need: `use pikake::prelude::*`.
pub mod prelude {
    pub use crate::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};

    pub use crate::{
        Interrupted, Kernel, Task, TaskError, TimedOut, future_wait, sleep, spawn, timeout_after,
        yield_now,
    };
}

/// The examples of the README are tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The other chapters of the book, whose examples are tested with those of this crate.
#[cfg(doctest)]
mod book {
    #[cfg(feature = "jobs")]
    #[doc = include_str!("../docs/celery.md")]
    mod celery {}

    #[doc = include_str!("../docs/cores.md")]
    mod cores {}

    #[cfg(feature = "pool")]
    #[doc = include_str!("../docs/pools.md")]
    mod pools {}

    #[cfg(feature = "rpc")]
    #[doc = include_str!("../docs/rpc.md")]
    mod rpc {}

    #[doc = include_str!("../docs/retry.md")]
    mod retry {}

    #[doc = include_str!("../docs/shutdown.md")]
    mod shutdown {}

    #[doc = include_str!("../docs/tokio.md")]
    mod tokio {}
}

/// The functions that the expanded attribute macros call.
#[doc(hidden)]
pub mod __macros {
    use std::future::Future;
    use std::time::Duration;

    use pikake_kernel::{fresh_kernel, run_on};
    #[cfg(feature = "log-to-stderr")]
    use pikake_os::log_after_first_step;

    use super::Kernel;

    #[cfg(feature = "console")]
    pub use pikake_console::for_main::with_console;
    pub use pikake_macros::select;
    #[cfg(feature = "sim")]
    pub use pikake_sim::simulate;
    pub use pikake_task::select::branch_order;

    /// Runs a test.
    #[track_caller]
    pub fn run_test<F: Future>(name: &str, future: F) -> F::Output {
        let builder = Kernel::builder().name(name).cleanup_limit(Some(Duration::MAX));
        run_on(fresh_kernel(builder), future)
    }

    /// Runs a program.
    #[track_caller]
    pub fn run_main<F: Future>(name: &str, future: F) -> F::Output {
        run_on(main_kernel(name), with_reports(future))
    }

    /// As `run_main`, with SIGINT and SIGTERM turned into an interruption of the main task.
    #[cfg(feature = "signals")]
    #[track_caller]
    pub fn run_main_until_signal<F: Future>(name: &str, future: F) -> F::Output {
        let kernel = main_kernel(name);
        let on_signals = super::interrupt_on_signals(&kernel.handle())
            .unwrap_or_else(|error| panic!("signals cannot be handled: {error}"));
        let outcome = kernel.try_run(with_reports(future));
        if let Err(super::TaskError::Panicked(panic)) = outcome {
            std::panic::resume_unwind(panic.into_payload());
        }
        kernel.shutdown();
        outcome.unwrap_or_else(|error| {
            if error.is_cancelled() {
                // The interrupted main task gave no exit code, so the process ends by the signal.
                pikake_kernel::end_other_kernels();
                #[cfg(feature = "console")]
                pikake_console::for_main::end_console();
                on_signals.end_process();
            }
            panic!("the main task gave no value: {error}")
        })
    }

    /// Calls a closure beside `threads - 1` other kernels.
    #[track_caller]
    pub fn with_threads<R>(threads: usize, work: impl FnOnce() -> R) -> R {
        #[cfg(feature = "tokio-console")]
        serve_tokio_console();
        pikake_kernel::with_threads(threads, work)
    }

    /// Serves tokio-console if the program is asked for it, once. The kernels that are built later
    /// are seen there.
    #[cfg(feature = "tokio-console")]
    fn serve_tokio_console() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            if let Err(error) = pikake_console::tokio_console::start_if_asked() {
                // The program's log begins later.
                eprintln!("pikake: tokio-console cannot be served: {error}");
            }
        });
    }

    /// Calls `work`, without a console.
    #[cfg(not(feature = "console"))]
    pub fn with_console<R>(_: bool, work: impl FnOnce() -> R) -> R {
        work()
    }

    /// The future, with a log from its first step on.
    #[cfg(feature = "console")]
    fn with_reports<F: Future>(future: F) -> impl Future<Output = F::Output> {
        pikake_console::for_main::with_reports(log_after_first_step(future))
    }

    /// The future, with a log from its first step on.
    #[cfg(not(feature = "console"))]
    fn with_reports<F: Future>(future: F) -> impl Future<Output = F::Output> {
        log_after_first_step(future)
    }

    #[track_caller]
    fn main_kernel(name: &str) -> Kernel {
        pikake_traps::note_panic_places();
        #[cfg(feature = "tokio-console")]
        serve_tokio_console();
        let builder = Kernel::builder().name(name);
        // The kernel asks the subscriber when it is built, and the program's log begins later.
        #[cfg(feature = "log-to-stderr")]
        let builder = match pikake_os::is_traced(pikake_kernel::Tracer::TARGET) {
            true => builder.observer(pikake_kernel::Tracer),
            false => builder,
        };
        fresh_kernel(builder)
    }

    /// The future itself: without the feature, a program without a subscriber has no log.
    #[cfg(not(feature = "log-to-stderr"))]
    fn log_after_first_step<F>(future: F) -> F {
        future
    }
}
