//! Which workloads there are, and how each is started by name.

use crate::channels::{self, CHANNELS};
use crate::figures::Figures;
use crate::floor::{self, Floor};
use crate::load;
use crate::meeting::{hand_over, lock, messages, worst_wait};
use crate::memory::{pending_forever, sleeping};
use crate::runtime::{Common, Runtime, Slot};
use crate::scheduling::{
    AtOnce, Join16, Nested, Nested8, Nested32, WakeOneself, Yield, ping_pong, repeat, spawn_join,
};
use crate::threads::{wake, wake_floor};
use crate::timers::{Deadline, ForeignDeadline, sleeps, timeout_expired};

/// A workload by name, with its usual size.
pub struct Workload {
    pub name: &'static str,
    /// What one operation is.
    pub operation: &'static str,
    /// How many tasks (batches, pairs, timers) a run has, unless told otherwise.
    pub size: usize,
    /// How often each does it, for a measurement of time.
    pub rounds: usize,
    /// How many rounds the two runs under callgrind have, of which the difference is taken; none
    /// where instructions say nothing.
    pub slope: Option<(usize, usize)>,
    /// By how many percent pikake's instructions may grow before the gate shuts; none where it does
    /// not watch them.
    pub tolerance: Option<f64>,
}

const fn workload(
    name: &'static str,
    operation: &'static str,
    size: usize,
    rounds: usize,
    slope: Option<(usize, usize)>,
) -> Workload {
    Workload { name, operation, size, rounds, slope, tolerance: None }
}

/// A workload that the gate watches; its count varies far less from run to run than it may grow.
const fn gated(
    name: &'static str,
    operation: &'static str,
    size: usize,
    rounds: usize,
    slope: (usize, usize),
) -> Workload {
    Workload { name, operation, size, rounds, slope: Some(slope), tolerance: Some(3.0) }
}

pub const WORKLOADS: &[Workload] = &[
    gated("spawn_join", "task", 1_000, 1_000, (20, 120)),
    gated("yield", "switch", 1_000, 2_000, (20, 220)),
    gated("wake_oneself", "switch", 1_000, 2_000, (20, 220)),
    gated("ping_pong", "round trip", 1, 300_000, (1_000, 11_000)),
    gated("ping_pong_slot", "round trip", 1, 300_000, (1_000, 11_000)),
    gated("ping_pong_own", "round trip", 1, 300_000, (1_000, 11_000)),
    gated("timeout", "timeout", 1_000, 500, (10, 60)),
    gated("timeout_foreign", "timeout", 1_000, 500, (10, 60)),
    // How many are due at a time depends on real time.
    Workload { tolerance: Some(10.0), ..gated("sleeps", "sleep", 100_000, 1, (1, 4)) },
    workload("timeout_expired", "timeout", 100_000, 1, Some((1, 4))),
    workload("sleeps_sparse", "sleep", 1_000, 5, None),
    workload("sleeps_sparse_slack", "sleep", 1_000, 5, None),
    gated("at_once_1", "call", 1, 3_000_000, (10_000, 110_000)),
    gated("at_once_8", "call", 1, 3_000_000, (10_000, 110_000)),
    gated("at_once_32", "call", 1, 1_000_000, (10_000, 110_000)),
    gated("suspend_1", "suspension", 1_000, 1_000, (20, 120)),
    gated("suspend_8", "suspension", 1_000, 1_000, (20, 120)),
    gated("suspend_32", "suspension", 1_000, 500, (20, 120)),
    gated("join16", "join!", 100, 500, (20, 120)),
    gated("lock", "lock and unlock", 1, 3_000_000, (10_000, 110_000)),
    gated("hand_over_2", "hand-over", 2, 300_000, (1_000, 11_000)),
    gated("hand_over_64", "hand-over", 64, 10_000, (20, 220)),
    gated("messages_own", "message", 1, 1_000_000, (1_000, 21_000)),
    workload("worst_wait", "hand-over", 1_000, 20, None),
    workload("cross_thread_1", "wake", 1, 5_000, None),
    workload("cross_thread_64", "wake", 64, 5_000, None),
    workload("channel_thread_to_task_1", "message", 1, 1_000_000, None),
    workload("channel_thread_to_task_4", "message", 4, 250_000, None),
    workload("channel_task_to_thread_1", "message", 1, 1_000_000, None),
    workload("channel_task_to_thread_4", "message", 4, 250_000, None),
    workload("channel_kernel_to_kernel_1", "message", 1, 1_000_000, None),
    workload("channel_kernel_to_kernel_4", "message", 4, 250_000, None),
    workload("channel_thread_to_thread_1", "message", 1, 1_000_000, None),
    workload("channel_thread_to_thread_4", "message", 4, 250_000, None),
    workload("memory_sleeping", "task", 1_000_000, 1, None),
    workload("memory_pending", "task", 1_000_000, 1, None),
    workload("echo_1", "request", 1, 20_000, Some((1_000, 6_000))),
    workload("echo_50", "request", 50, 2_000, Some((50, 250))),
    workload("echo_1000", "request", 1_000, 100, Some((5, 25))),
    workload("echo_10000", "request", 10_000, 1_000, None),
    workload("stream", "64 KiB", 1, 20_000, Some((100, 1_100))),
    workload("accept", "connection", 32, 500, Some((10, 60))),
];

/// The runtimes that this was built with, the floors last.
pub const RUNTIMES: &[&str] = &[
    "pikake",
    #[cfg(feature = "tokio")]
    "tokio",
    #[cfg(feature = "smol")]
    "smol",
    #[cfg(feature = "monoio")]
    "monoio",
    #[cfg(feature = "monoio")]
    "monoio-epoll",
    #[cfg(feature = "compio")]
    "compio",
    #[cfg(feature = "compio")]
    "compio-epoll",
    #[cfg(feature = "glommio")]
    "glommio",
    "floor",
    "closures",
];

/// Whether a runtime or a channel can do a workload at all.
pub fn can(runtime: &str, workload: &str) -> bool {
    if channels::is_between(workload) {
        return CHANNELS.contains(&runtime);
    }
    RUNTIMES.contains(&runtime)
        && (runtime != "closures" || matches!(workload, "spawn_join" | "yield"))
}

/// Whatever has figures: runtimes, then channels.
pub fn columns() -> impl Iterator<Item = &'static str> {
    let channels = CHANNELS.iter().filter(|channel| !RUNTIMES.contains(channel));
    RUNTIMES.iter().chain(channels).copied()
}

/// Evaluates an expression with a type in the place of a runtime's name; `None` if there is none
/// of that name.
macro_rules! on_runtime {
    ($name:expr, $Runtime:ident => $do:expr $(, $own_name:pat $(if $if:expr)? => $own:expr)*) => {
        match $name {
            "pikake" => {
                type $Runtime = $crate::runtime::pikake::Pikake;
                Some($do)
            }
            #[cfg(feature = "tokio")]
            "tokio" => {
                type $Runtime = $crate::runtime::tokio::Tokio;
                Some($do)
            }
            #[cfg(feature = "smol")]
            "smol" => {
                type $Runtime = $crate::runtime::smol::Smol;
                Some($do)
            }
            #[cfg(feature = "monoio")]
            "monoio" => {
                type $Runtime = $crate::runtime::monoio::Monoio<$crate::runtime::monoio::Best>;
                Some($do)
            }
            #[cfg(feature = "monoio")]
            "monoio-epoll" => {
                type $Runtime = $crate::runtime::monoio::Monoio<$crate::runtime::monoio::Epoll>;
                Some($do)
            }
            #[cfg(feature = "compio")]
            "compio" => {
                type $Runtime = $crate::runtime::compio::Compio<false>;
                Some($do)
            }
            #[cfg(feature = "compio")]
            "compio-epoll" => {
                type $Runtime = $crate::runtime::compio::Compio<true>;
                Some($do)
            }
            #[cfg(feature = "glommio")]
            "glommio" => {
                type $Runtime = $crate::runtime::glommio::Glommio;
                Some($do)
            }
            $($own_name $(if $if)? => $own,)*
            _ => None,
        }
    };
}
pub(crate) use on_runtime;

/// Runs a workload in this process. `None` where the runtime has no such thing.
pub fn run(workload: &str, runtime: &str, size: usize, rounds: usize) -> Option<Figures> {
    if !can(runtime, workload) {
        return None;
    }
    if channels::is_between(workload) {
        return channels::run(workload, runtime, size, rounds);
    }
    if load::is_load(workload) {
        return load::run(workload, runtime, size, rounds, &[]).map(|loaded| loaded.figures);
    }
    on_runtime!(
        runtime,
        R => run_on::<R>(workload, size, rounds)?,
        "floor" if workload.starts_with("cross_thread_") => Some(wake_floor(size, rounds)),
        "floor" => run_on::<Floor>(workload, size, rounds),
        "closures" => floor::closures(workload, size, rounds)
    )
}

fn run_on<R: Runtime>(workload: &str, size: usize, rounds: usize) -> Option<Figures> {
    Some(match workload {
        "spawn_join" => R::run(spawn_join::<R>(size, rounds)),
        "yield" => R::run(repeat::<R, Yield<R>>(size, rounds)),
        "wake_oneself" => R::run(repeat::<R, WakeOneself>(size, rounds)),
        "ping_pong" => R::run(ping_pong::<R, Common>(size, rounds)),
        "ping_pong_own" => R::run(ping_pong::<R, R::Channel>(size, rounds)),
        "lock" => R::run(lock::<R>(rounds)),
        "hand_over_2" | "hand_over_64" => R::run(hand_over::<R>(size, rounds)),
        "worst_wait" => R::run(worst_wait::<R>(size, rounds)),
        "messages_own" => R::run(messages::<R>(size, rounds)),
        "ping_pong_slot" => R::run(ping_pong::<R, Slot>(size, rounds)),
        "timeout_foreign" => R::run(repeat::<R, ForeignDeadline<R>>(size, rounds)),
        "timeout" => R::run(repeat::<R, Deadline<R>>(size, rounds)),
        "timeout_expired" => R::run(timeout_expired::<R>(size, rounds)),
        "sleeps" | "sleeps_sparse" => R::run(sleeps::<R>(size, rounds)),
        "sleeps_sparse_slack" => R::run_with_slack(sleeps::<R>(size, rounds)),
        "at_once_1" => R::run(repeat::<R, Nested<AtOnce<R>>>(size, rounds)),
        "at_once_8" => R::run(repeat::<R, Nested8<AtOnce<R>>>(size, rounds)),
        "at_once_32" => R::run(repeat::<R, Nested32<AtOnce<R>>>(size, rounds)),
        "suspend_1" => R::run(repeat::<R, Nested<Yield<R>>>(size, rounds)),
        "suspend_8" => R::run(repeat::<R, Nested8<Yield<R>>>(size, rounds)),
        "suspend_32" => R::run(repeat::<R, Nested32<Yield<R>>>(size, rounds)),
        "join16" => R::run(repeat::<R, Join16<Yield<R>>>(size, rounds)),
        "cross_thread_1" | "cross_thread_64" => R::run(wake::<R>(size, rounds)),
        "memory_sleeping" => R::run(sleeping::<R>(size, rounds)),
        "memory_pending" => R::run(pending_forever::<R>(size, rounds)),
        _ => return None,
    })
}
