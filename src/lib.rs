#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub use pikake_kernel::{Kernel, Kernels, Turn, other_kernels, run, try_run};
#[cfg(feature = "jobs")]
pub use pikake_macros::job;
pub use pikake_macros::{main, sim, test};
pub use pikake_task::{TaskGroup, interval, interval_at, task_group, try_task_group};
pub use pikake_traps::{
    Bound, Interrupted, KernelEnded, KernelHandle, Task, TaskError, Timed, TimedOut,
    check_interrupt, current, future_wait, ignore_after, now, pending_interrupt, random, shield,
    sleep, sleep_until, spawn, timed, timeout_after, timeout_at, yield_now,
};

#[cfg(feature = "log-to-stderr")]
pub use pikake_os::log_to_stderr;
#[cfg(feature = "process")]
pub use pikake_os::process;
#[cfg(feature = "signals")]
pub use pikake_os::signal;
#[cfg(feature = "signals")]
pub use pikake_os::signal::{OnSignals, interrupt_on_signals};
pub use pikake_os::{fs, stdio};

mod select;

#[doc = include_str!("../docs/interruption.md")]
pub mod interruption {}

#[doc = include_str!("../docs/simulation.md")]
pub mod simulation {}

#[cfg(feature = "jobs")]
#[doc = include_str!("../docs/jobs.md")]
pub mod jobs {
    pub use pikake_jobs::*;
    // As for `net::tls`.
    #[cfg(feature = "jobs-amqp")]
    pub use pikake_jobs::AmqpBroker;
    #[cfg(feature = "jobs-sqlite")]
    pub use pikake_jobs::SqliteBroker;
}

/// Sockets, lines, frames, names and servers; TLS and DNS behind features.
///
/// # Examples
///
/// A server of lines and its client, in memory:
///
/// ```
/// use pikake::net::{BufReader, MemoryStream, Write};
/// use pikake::spawn;
///
/// # fn main() -> std::io::Result<()> {
/// pikake::run(async {
///     let (client, server) = MemoryStream::pair(1024);
///     spawn(async move {
///         let reader = BufReader::new(server).limit(100);
///         while let Ok(Some(line)) = reader.read_line().await {
///             let answer = format!("you said {line}\n");
///             if reader.write_all(answer.as_bytes()).await.is_err() {
///                 break;
///             }
///         }
///     })
///     .detach();
///     let client = BufReader::new(client);
///     client.write_all(b"hello\r\n").await?;
///     assert_eq!(client.read_line().await?.as_deref(), Some("you said hello"));
///     Ok(())
/// })
/// # }
/// ```
pub mod net {
    pub use pikake_net::*;
    // The compiler names the missing feature of an item that is listed here, and not of one behind `*`.
    #[cfg(feature = "dns")]
    pub use pikake_net::dns;
    #[cfg(feature = "tls")]
    pub use pikake_net::tls;
}

/// The AMQP 0-9-1 client of the jobs' RabbitMQ broker, also for a program's own exchanges, bindings and limits.
///
/// With the feature `jobs-amqp`; `amqps://` also needs `tls`.
#[cfg(feature = "jobs-amqp")]
pub mod amqp {
    pub use pikake_amqp::*;
}

/// tokio beside a kernel, for libraries that require it.
///
/// With the feature `tokio`.
#[cfg(feature = "tokio")]
pub mod tokio {
    pub use pikake_tokio::*;
}

/// HTTP: hyper on pikake's kernel, and a server whose requests are tasks.
///
/// With the feature `http`.
#[cfg(feature = "http")]
pub mod http {
    pub use pikake_http::*;
}

/// Locks, semaphores, events, queues and channels, for the tasks of one kernel.
///
/// # Examples
///
/// ```
/// use pikake::sync::mpsc;
///
/// # pikake::sim::example(async {
/// let (sender, mut receiver) = mpsc::bounded(2);
/// let producer = pikake::spawn(async move {
///     for number in 1..=10 {
///         sender.send(number).await?;
///     }
///     Ok::<_, mpsc::SendError<u32>>(())
/// });
/// let mut sum = 0;
/// while let Some(number) = receiver.recv().await? {
///     sum += number;
/// }
/// producer.await.unwrap().unwrap();
/// assert_eq!(sum, 55);
/// # Ok::<_, pikake::Interrupted>(())
/// # })
/// # .unwrap();
/// ```
pub mod sync {
    pub use pikake_sync::*;
}

/// Time: moments, deadlines, clocks, and wall time.
///
/// [`Instant`](time::Instant) says which type is for what.
pub mod time {
    pub use pikake_task::{Interval, MissedTicks, interval, interval_at};
    pub use pikake_time::{
        Clock, Deadline, ManualClock, Rate, SystemClock, Ticks, TimerHeap, TimerKey, WallTime,
    };
    pub use pikake_traps::{Instant, clock_rate, deadline_after, elapsed_since, now, wall_time};
}

/// Groups of tasks, futures in parallel, task locals, and threads that may await.
///
/// # Examples
///
/// ```
/// use pikake::task::{GroupError, ordered_map};
/// use pikake::{TaskGroup, sleep};
/// use std::time::Duration;
///
/// # pikake::sim::example(async {
/// // At most two members run at a time; `spawn` waits for room.
/// let mut group = TaskGroup::bounded(2);
/// for number in 1..=4_u64 {
///     let member = async move { sleep(Duration::from_secs(number)).await.map(|()| number) };
///     group.spawn(member).await?;
/// }
/// assert_eq!(group.try_join_all().await?, [1, 2, 3, 4]);
///
/// // The results of an async function in the order of the items, two at a time.
/// let mut squares = ordered_map(1..=4, 2, async |number| number * number);
/// while let Some(square) = squares.next_outcome().await? {
///     println!("{}", square.unwrap());
/// }
/// # Ok::<_, GroupError>(())
/// # })
/// # .unwrap();
/// ```
pub mod task {
    pub use pikake_task::*;
    pub use pikake_traps::{
        Blocking, Builder, CancelFlag, CancelOnDrop, Current, Exit, Panic, Task, TaskError, TaskId,
        blocking as run_in_thread, blocking_with as run_in_thread_with,
    };
}

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

/// Simulated worlds: the same program, deterministic, with faults.
pub mod sim {
    pub use pikake_sim::*;
}

/// Tests that interrupt a program at each of its awaits in turn.
pub mod testing {
    pub use pikake_sim::testing::*;
}

/// For authors of new primitives and of new kernels: the traps themselves.
pub mod traps {
    pub use pikake_traps::*;
}

/// The real kernel, and its exchangeable parts: driver, clock, order of steps, observers.
pub mod kernel {
    pub use pikake_kernel::*;
}

/// The names that most programs need: `use pikake::prelude::*`.
pub mod prelude {
    pub use crate::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};

    pub use crate::{
        Interrupted, Kernel, Task, TaskError, TimedOut, future_wait, sleep, spawn, timeout_after,
        yield_now,
    };
}

/// The functions that the expanded attribute macros call.
#[doc(hidden)]
pub mod __macros {
    use std::future::Future;

    use pikake_kernel::{fresh_kernel, run_on};
    #[cfg(feature = "log-to-stderr")]
    use pikake_os::log_after_first_step;

    use super::Kernel;

    pub use pikake_kernel::with_threads;
    pub use pikake_macros::select;
    pub use pikake_sim::simulate;
    pub use pikake_task::select::BranchOrder;

    /// Runs a test.
    #[track_caller]
    pub fn run_test<F: Future>(name: &str, future: F) -> F::Output {
        run_on(fresh_kernel(Kernel::builder().name(name)), future)
    }

    /// Runs a program.
    #[track_caller]
    pub fn run_main<F: Future>(name: &str, future: F) -> F::Output {
        run_on(main_kernel(name), log_after_first_step(future))
    }

    /// As `run_main`, with SIGINT and SIGTERM turned into an interruption of the main task.
    #[cfg(feature = "signals")]
    #[track_caller]
    pub fn run_main_until_signal<F: Future>(name: &str, future: F) -> F::Output {
        let kernel = main_kernel(name);
        let on_signals = super::interrupt_on_signals(&kernel.handle())
            .unwrap_or_else(|error| panic!("signals cannot be handled: {error}"));
        let outcome = kernel.try_run(log_after_first_step(future));
        if let Err(super::TaskError::Panicked(panic)) = outcome {
            std::panic::resume_unwind(panic.into_payload());
        }
        kernel.shutdown();
        outcome.unwrap_or_else(|error| {
            if error.is_cancelled() {
                // The interrupted main task gave no exit code, so the process ends by the signal.
                pikake_kernel::end_other_kernels();
                on_signals.end_process();
            }
            panic!("the main task gave no value: {error}")
        })
    }

    #[track_caller]
    fn main_kernel(name: &str) -> Kernel {
        pikake_traps::note_panic_places();
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
