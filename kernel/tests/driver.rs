//! The calls that a kernel makes to its driver, recorded by a driver of the test's own.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pikake_kernel::{Driver, Event, Fifo, Job, Kernel, Token};
use pikake_time::ManualClock;
use pikake_traps::{Addresses, Attempt, Done, OpenSocket, Opened, Reply, sleep, spawn, yield_now};

/// A test whose kernel polls more often than this has failed: the kernel does not sleep.
const MOST_WAITS: usize = 100;

const SECOND: Duration = Duration::from_secs(1);

/// A driver without sockets and threads. A wait without limit moves the clock by a second.
struct Recorder {
    clock: ManualClock,
    waits: Rc<RefCell<Vec<Option<Duration>>>>,
    wakes: Arc<AtomicUsize>,
}

impl Driver for Recorder {
    type Socket = ();

    fn waker(&self) -> Box<dyn Fn() + Send + Sync> {
        let wakes = self.wakes.clone();
        Box::new(move || {
            wakes.fetch_add(1, Ordering::SeqCst);
        })
    }

    fn wait(&mut self, limit: Option<Duration>, _: &mut Vec<Event>) -> io::Result<()> {
        self.waits.borrow_mut().push(limit);
        assert!(self.waits.borrow().len() < MOST_WAITS, "the kernel does not sleep");
        if limit.is_none() {
            self.clock.advance(SECOND);
        }
        Ok(())
    }

    fn register(&mut self, (): &(), _: Token) -> io::Result<()> {
        unreachable!()
    }

    fn blocked(&mut self, (): &(), _: Token) -> io::Result<()> {
        unreachable!()
    }

    fn deregister(&mut self, (): &()) {}

    fn short_means_blocked(&self, (): &()) -> bool {
        false
    }

    fn open(&mut self, _: OpenSocket<'_>) -> io::Result<Opened<()>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn attempt(&mut self, (): &(), _: Attempt<'_>) -> Option<io::Result<Done<()>>> {
        unreachable!()
    }

    fn blocking(&mut self, job: Job) -> Result<(), Job> {
        Err(job)
    }

    fn lookup(&mut self, _: &str, _: u16, reply: Reply<Addresses>) -> Result<(), Job> {
        Err(Job::new(reply, |()| unreachable!()))
    }
}

/// A kernel on a recorder.
struct Recorded {
    kernel: Kernel<ManualClock, Fifo, Recorder>,
    waits: Rc<RefCell<Vec<Option<Duration>>>>,
    wakes: Arc<AtomicUsize>,
}

impl Recorded {
    fn new() -> Self {
        let (clock, waits, wakes) = (ManualClock::new(), Rc::default(), Arc::default());
        let driver =
            Recorder { clock: clock.clone(), waits: Rc::clone(&waits), wakes: Arc::clone(&wakes) };
        Self { kernel: Kernel::builder().clock(clock).build_on(driver), waits, wakes }
    }

    fn wakes(&self) -> usize {
        self.wakes.load(Ordering::SeqCst)
    }
}

#[test]
fn shutdown_sleeps_while_tasks_clean_up() {
    let recorded = Recorded::new();
    let handle = recorded.kernel.handle();
    let outcome = recorded.kernel.try_run(async {
        spawn(async {
            sleep(100 * SECOND).await.unwrap_err();
            sleep(SECOND * 3).await.unwrap();
        })
        .detach();
        yield_now().await.unwrap();
        handle.shutdown().unwrap();
        sleep(100 * SECOND).await.unwrap_err();
        "the main task ends first"
    });
    assert_eq!(outcome.unwrap(), "the main task ends first");
    let blocked = recorded.waits.borrow().iter().filter(|limit| limit.is_none()).count();
    assert_eq!(blocked, 3, "{:?}", recorded.waits);
}

#[test]
fn turn_does_not_block_after_the_main_task() {
    let recorded = Recorded::new();
    let outcome = recorded.kernel.try_run_by(async { 42 }, |main| {
        while !main.is_ended() {
            recorded.kernel.turn(None).unwrap();
        }
        recorded.kernel.turn(None).unwrap();
    });
    assert_eq!(outcome.unwrap(), 42);
    assert!(!recorded.waits.borrow().contains(&None), "{:?}", recorded.waits);
}

#[test]
fn main_task_is_interrupted_after_an_inner_run() {
    let Recorded { kernel, .. } = Recorded::new();
    let outcome = kernel.try_run_by(sleep(200 * SECOND), |main| {
        kernel.turn(Some(Duration::ZERO)).unwrap();
        kernel.run(async {});
        kernel.handle().interrupt("the outer main task").unwrap();
        while !main.is_ended() {
            kernel.turn(None).unwrap();
        }
    });
    let interrupted = outcome.unwrap().unwrap_err();
    assert!(interrupted.to_string().contains("the outer main task"), "{interrupted}");
}

#[test]
fn refused_turn_leaves_the_kernel_wakeable() {
    let recorded = Recorded::new();
    recorded.kernel.turn(Some(Duration::ZERO)).unwrap();
    let other = Recorded::new();
    other.kernel.run(async {
        recorded.kernel.turn(Some(Duration::ZERO)).unwrap_err();
    });
    let before = recorded.wakes();
    recorded.kernel.handle().stop().unwrap();
    assert_eq!(recorded.wakes() - before, 1, "a wake shows on the driver");
}

#[test]
fn shutdown_stays_over_after_the_last_task() {
    let recorded = Recorded::new();
    assert!(!recorded.kernel.is_shut_down());
    recorded.kernel.shutdown();
    assert!(recorded.kernel.is_shut_down());
}
