#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub use pikake_kernel::{Kernel, Turn};
pub use pikake_macros::{main, test};
pub use pikake_task::{TaskGroup, task_group, try_task_group};
pub use pikake_traps::{
    Interrupted, KernelEnded, KernelHandle, Task, TaskError, Timed, TimedOut, check_interrupt,
    current, future_wait, ignore_after, now, pending_interrupt, shield, sleep, sleep_until, spawn,
    timed, timeout_after, timeout_at, yield_now,
};

use std::future::Future;

mod probe;
#[cfg(feature = "signals")]
mod signals;
pub mod testing;

#[cfg(feature = "signals")]
pub use signals::{OnSignals, interrupt_on_signals};

#[doc = include_str!("../docs/interruption.md")]
pub mod interruption {}

/// Sockets.
pub mod net {
    pub use pikake_net::*;
}

/// Locks, semaphores, events, queues and channels, for the tasks of one kernel.
///
/// # Examples
///
/// ```
/// use pikake::sync::mpsc;
///
/// let sum = pikake::run(async {
///     let (sender, mut receiver) = mpsc::bounded(2);
///     let producer = pikake::spawn(async move {
///         for number in 1..=10 {
///             sender.send(number).await?;
///         }
///         Ok::<_, mpsc::SendError<u32>>(())
///     });
///     let mut sum = 0;
///     while let Some(number) = receiver.recv().await? {
///         sum += number;
///     }
///     producer.await.unwrap().unwrap();
///     Ok::<_, pikake::Interrupted>(sum)
/// });
/// assert_eq!(sum, Ok(55));
/// ```
pub mod sync {
    pub use pikake_sync::*;
}

/// What "when" means: ticks, deadlines, clocks, and the wall's time.
pub mod time {
    pub use pikake_time::{
        Clock, Deadline, ManualClock, Rate, SystemClock, Ticks, TimerHeap, TimerKey, WallTime,
    };
    pub use pikake_traps::{clock_rate, deadline_after, elapsed_since, now};
}

/// What people do with tasks.
pub mod task {
    pub use pikake_task::*;
    pub use pikake_traps::{
        Builder, CancelOnDrop, Current, Exit, Panic, Task, TaskError, TaskId,
        blocking as run_in_thread,
    };
}

/// For authors of new primitives and of new kernels: the traps themselves.
pub mod traps {
    pub use pikake_traps::*;
}

/// The parts of the real kernel that can be exchanged.
pub mod kernel {
    pub use pikake_kernel::*;
}

/// What most programs need: `use pikake::prelude::*`.
pub mod prelude {
    pub use crate::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};

    pub use crate::{
        Interrupted, Kernel, Task, TaskError, TimedOut, future_wait, sleep, spawn, timeout_after,
        yield_now,
    };
}

/// Runs a future as the main task of a fresh kernel, then shuts the kernel down.
///
/// Tasks that are left when the main task has ended are asked to end, and may clean up for as long
/// as [`SHUTDOWN_GRACE`](kernel::SHUTDOWN_GRACE).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// let answer = pikake::run(async {
///     pikake::sleep(Duration::from_millis(1)).await.unwrap();
///     6 * 7
/// });
/// assert_eq!(answer, 42);
/// ```
///
/// # Panics
///
/// With the future's panic; when the main task was cancelled or the kernel stopped before it
/// returned; inside a running kernel on the same thread; when the process is out of descriptors.
#[track_caller]
pub fn run<F: Future>(future: F) -> F::Output {
    __macros::run("main", future)
}

/// As [`run`], but reports why if the future gives no value.
///
/// # Errors
///
/// The main task panicked or was cancelled, or the kernel was stopped before it returned.
///
/// # Panics
///
/// Inside a running kernel on the same thread; when the process is out of descriptors.
#[track_caller]
pub fn try_run<F: Future>(future: F) -> Result<F::Output, TaskError> {
    let kernel = fresh_kernel("main");
    let outcome = kernel.try_run(future);
    kernel.shutdown();
    outcome
}

#[track_caller]
fn fresh_kernel(name: &str) -> Kernel {
    match Kernel::builder().name(name).build() {
        Ok(kernel) => kernel,
        Err(error) => panic!("no kernel could be made: {error}"),
    }
}

/// What the attribute macros expand to calls of.
#[doc(hidden)]
pub mod __macros {
    use std::future::Future;

    #[track_caller]
    pub fn run<F: Future>(name: &str, future: F) -> F::Output {
        let kernel = super::fresh_kernel(name);
        let output = kernel.run(future);
        kernel.shutdown();
        output
    }

    /// As `run`, with SIGINT and SIGTERM turned into an interruption of the main task.
    #[cfg(feature = "signals")]
    #[track_caller]
    pub fn run_until_signal<F: Future>(name: &str, future: F) -> F::Output {
        let kernel = super::fresh_kernel(name);
        super::signals::run_until_signal(&kernel, future)
    }
}
