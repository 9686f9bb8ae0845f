//! Jobs that do to their process what can be done to one.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio, id};
use std::thread::{sleep, spawn};
use std::time::Instant;

use pikake_jobs::{Definition, JobError, MemoryStore, current_job};
use pikake_kernel::Kernel;
use pikake_macros::job;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::{SECOND, add, app, children, wait_for, with_worker, with_worker_in};

/// The ways in which a process can end.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum End {
    Abort,
    Exit(i32),
    Overflow,
}

#[job(crate = pikake_jobs, process)]
fn ends(how: End) {
    match how {
        End::Abort => std::process::abort(),
        End::Exit(code) => std::process::exit(code),
        End::Overflow => drop(deep(1)),
    }
}

/// As deep as the stack is, and deeper.
fn deep(depth: u64) -> [u64; 64] {
    let mut here = [depth; 64];
    if std::hint::black_box(depth) > 0 {
        here[0] += deep(depth + 1)[1];
    }
    std::hint::black_box(here)
}

/// Leaves something behind that has its process' socket, and ends.
#[job(crate = pikake_jobs, process)]
fn leaves_a_child() {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let socket = links
        .filter(|link| {
            let target = std::fs::read_link(link.path()).unwrap_or_default();
            target.to_string_lossy().starts_with("socket:")
        })
        .find_map(|link| link.file_name().to_str()?.parse().ok())
        .unwrap();
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let socket: OwnedFd = pidfd_getfd(own, socket, PidfdGetfdFlags::empty()).unwrap();
    let child = Command::new("sleep").arg("20").stdin(Stdio::from(socket)).spawn().unwrap();
    drop(child);
    std::process::abort();
}

#[job(crate = pikake_jobs, process)]
fn long(text: String) -> String {
    text
}

#[job(crate = pikake_jobs, process, hard_limit = "10s")]
fn floods(megabytes: usize) -> usize {
    let line = "x".repeat((1 << 20) - 1);
    for _ in 0..megabytes {
        println!("{line}");
        eprintln!("{line}");
    }
    megabytes
}

/// Ends a moment after its job has. Tells how often it was begun before.
#[job(crate = pikake_jobs, process)]
fn last() -> (String, u32) {
    sleep(SECOND / 5);
    spawn(|| {
        sleep(SECOND / 5);
        std::process::exit(0);
    });
    ("x".repeat(50_000), current_job().attempt())
}

/// All of these.
pub(crate) const JOBS: [Definition; 5] =
    [ends::JOB, leaves_a_child::JOB, long::JOB, last::JOB, floods::JOB];

fn failure<T: std::fmt::Debug>(outcome: Result<T, JobError>) -> (String, String) {
    match outcome {
        Err(JobError::Failed(failure)) => (failure.kind, failure.message),
        other => panic!("not a failure: {other:?}"),
    }
}

pub(crate) fn worker_outlives_every_end_of_a_process() {
    let app = app(&MemoryStore::new());
    with_worker(&app, async |_| {
        let ways = [
            (End::Abort, "signal 6"),
            (End::Exit(0), "exited with code 0"),
            (End::Exit(7), "exited with code 7"),
            (End::Overflow, "signal 6"),
        ];
        for (how, told) in ways {
            let outcome = ends::delay(how).await.unwrap().wait().await;
            let (kind, message) = failure(outcome);
            assert_eq!(kind, "WorkerLostError", "{how:?}");
            assert!(message.contains(told), "{how:?}: {message}");
        }
        assert_eq!(add::delay(2, 3).await.unwrap().wait().await.unwrap(), 5, "the worker lives");
    });
    assert_eq!(app.stats().all.dead, 4);
    assert!(children(id()).is_empty());
}

pub(crate) fn child_of_a_process_does_not_delay_its_end() {
    let app = app(&MemoryStore::new());
    with_worker(&app, async |_| {
        let begun = Instant::now();
        let outcome = leaves_a_child::delay().await.unwrap().wait().await;
        assert_eq!(failure(outcome).0, "WorkerLostError");
        assert!(begun.elapsed() < 15 * SECOND, "{:?}", begun.elapsed());
    });
}

/// The worker comes to look at a process that has answered, and has ended since.
pub(crate) fn process_may_end_after_its_job() {
    let app = app(&MemoryStore::new()).processes(1);
    // A task has read the head of an answer, and is to come back for the rest.
    let kernel = Kernel::builder().attempts_per_step(1).build().unwrap();
    with_worker_in(&kernel, &app, async |_| {
        // There is a process.
        add::delay(2, 3).await.unwrap().wait().await.unwrap();
        let job = last::delay().await.unwrap();
        pikake_traps::sleep(SECOND / 10).await.unwrap();
        // Nothing else is done here for so long.
        sleep(SECOND);
        let (text, attempt) = job.wait().await.unwrap();
        assert_eq!((text.len(), attempt), (50_000, 0));
        assert_eq!(add::delay(2, 3).await.unwrap().wait().await.unwrap(), 5, "by another one");
    });
    assert_eq!((app.stats().all.done, app.stats().all.given_back), (3, 0));
}

pub(crate) fn big_arguments_and_values() {
    let app = app(&MemoryStore::new());
    with_worker(&app, async |_| {
        let text = "ab\u{e9}\n".repeat(20_000_000);
        let length = text.len();
        assert!(length >= 100_000_000);
        let back = long::delay(text).await.unwrap().wait().await.unwrap();
        assert_eq!(back.len(), length);
        assert_eq!(add::delay(2, 3).await.unwrap().wait().await.unwrap(), 5);
    });
}

/// What a process of [`a_flood_of_output`] does.
const FLOOD: &str = "flood";

/// Plays the role of that process, in a process of its.
pub(crate) fn play() -> bool {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(FLOOD) {
        return false;
    }
    let app = app(&MemoryStore::new());
    app.run_if_child();
    let is_read = arguments.next().as_deref() == Some("read");
    with_worker(&app, async |_| {
        let outcome = floods::delay(20).await.unwrap().wait().await;
        match is_read {
            true => assert_eq!(outcome.unwrap(), 20),
            // Nobody reads: it is stuck until its time is over, and the worker is not.
            false => assert_eq!(failure(outcome).0, "TimeLimitExceeded"),
        }
        assert_eq!(add::with(2, 3).send().await.unwrap().id().0.len(), 36);
    });
    true
}

pub(crate) fn a_flood_of_output() {
    let program = std::env::current_exe().unwrap();
    let start = |word: &str, out: Stdio, err: Stdio| {
        Command::new(&program).args([FLOOD, word]).stdout(out).stderr(err).spawn().unwrap()
    };
    let mut read = start("read", Stdio::null(), Stdio::null());
    // The worker's own last words go to the standard error.
    let mut unread = start("unread", Stdio::piped(), Stdio::null());
    wait_for(|| read.try_wait().unwrap().is_some(), "the one that is read");
    wait_for(|| unread.try_wait().unwrap().is_some(), "the one that is not read");
    assert!(read.wait().unwrap().success());
    assert!(unread.wait().unwrap().success());
}
