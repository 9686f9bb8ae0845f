//! The calls that a kernel makes to its driver, recorded by a driver of the test's own.

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use pikake_kernel::{BlockingCall, Driver, Event, Fifo, Kernel, Token, Turn};
use pikake_time::ManualClock;
use pikake_traps::{
    Address, Addresses, Attempt, Home, KernelHandle, OpenSocket, Opened, Reply, sleep, spawn,
    yield_now,
};

/// A test whose kernel polls more often than this has failed: the kernel does not sleep.
const MOST_WAITS: usize = 100;

const SECOND: Duration = Duration::from_secs(1);

/// How long a test may take, in real time, before it counts as hung.
const HANGS_AFTER: Duration = Duration::from_secs(20);

/// A driver without sockets and threads. A wait without limit moves the clock by a second.
struct Recorder {
    clock: ManualClock,
    waits: Rc<RefCell<Vec<Option<Duration>>>>,
    /// Set by a wake, cleared by a wait.
    is_woken: Arc<AtomicBool>,
    /// The next wait fails.
    fails: Rc<Cell<bool>>,
}

impl Driver for Recorder {
    type Socket = ();

    fn waker(&self) -> Box<dyn Fn() + Send + Sync> {
        let is_woken = self.is_woken.clone();
        Box::new(move || is_woken.store(true, Ordering::SeqCst))
    }

    fn wait(&mut self, limit: Option<Duration>, _: &mut Vec<Event>) -> io::Result<()> {
        self.is_woken.store(false, Ordering::SeqCst);
        if self.fails.take() {
            return Err(io::Error::other("the test has the wait fail"));
        }
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

    fn attempt(&mut self, (): &(), _: &mut Attempt<'_>) -> Option<io::Result<usize>> {
        unreachable!()
    }

    fn accept(&mut self, (): &()) -> Option<io::Result<((), Address)>> {
        unreachable!()
    }

    fn blocking(&mut self, job: BlockingCall) -> Result<(), BlockingCall> {
        Err(job)
    }

    fn lookup(&mut self, _: &str, _: u16, reply: Reply<Addresses>) -> Result<(), BlockingCall> {
        Err(BlockingCall::new(reply, |()| unreachable!()))
    }
}

/// A kernel on a recorder.
struct Recorded {
    kernel: Kernel<ManualClock, Fifo, Recorder>,
    waits: Rc<RefCell<Vec<Option<Duration>>>>,
    is_woken: Arc<AtomicBool>,
    fails: Rc<Cell<bool>>,
}

impl Recorded {
    fn new() -> Self {
        let (clock, fails) = (ManualClock::new(), Rc::<Cell<bool>>::default());
        let (waits, is_woken) = (Rc::default(), Arc::default());
        let driver = Recorder {
            clock: clock.clone(),
            waits: Rc::clone(&waits),
            is_woken: Arc::clone(&is_woken),
            fails: fails.clone(),
        };
        Self { kernel: Kernel::builder().clock(clock).build_on(driver), waits, is_woken, fails }
    }

    fn turn(&self) -> io::Result<Turn> {
        self.kernel.turn(Some(Duration::ZERO))
    }

    /// Asserts that a message of another thread, sent now, shows on the driver.
    #[track_caller]
    fn assert_message_shows(&self) {
        let handle = self.kernel.handle();
        let send = move || handle.call_there(Box::new(|| {}));
        thread::spawn(send).join().unwrap().unwrap();
        assert!(self.is_woken(), "the message shows");
    }

    /// Whether the driver was woken since its last wait. The descriptor of a real driver is
    /// readable then.
    fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::SeqCst)
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
    recorded.turn().unwrap();
    let other = Recorded::new();
    other.kernel.run(async {
        recorded.turn().unwrap_err();
    });
    recorded.assert_message_shows();
}

#[test]
fn shutdown_stays_over_after_the_last_task() {
    let recorded = Recorded::new();
    assert!(!recorded.kernel.is_shut_down());
    recorded.kernel.shutdown();
    assert!(recorded.kernel.is_shut_down());
}

#[test]
fn message_before_the_first_turn_shows() {
    let recorded = Recorded::new();
    assert!(!recorded.is_woken(), "a new kernel has no work");
    recorded.assert_message_shows();
}

#[test]
fn spawn_before_the_first_turn_shows() {
    let recorded = Recorded::new();
    recorded.kernel.enter(|| spawn(async {}).detach()).unwrap();
    assert!(recorded.is_woken());
}

/// The run sleeps in the driver, and so ends the sleep that the turn has announced.
#[test]
fn message_after_a_run_between_turns_shows() {
    let recorded = Recorded::new();
    recorded.turn().unwrap();
    recorded.kernel.run(async { sleep(SECOND).await.unwrap() });
    assert!(!recorded.is_woken(), "the run leaves no work");
    recorded.assert_message_shows();
}

#[test]
fn message_at_the_end_of_a_run_shows() {
    let recorded = Recorded::new();
    let handle = recorded.kernel.handle();
    recorded.kernel.run(async { handle.interrupt("the next main task").unwrap() });
    assert!(recorded.is_woken());
}

#[test]
fn tasks_that_a_run_leaves_ready_show() {
    let recorded = Recorded::new();
    recorded.turn().unwrap();
    recorded.kernel.run(async { spawn(async {}).detach() });
    assert_eq!(recorded.kernel.task_count(), 1, "the run has ended before the task's step");
    assert!(recorded.is_woken());
    while recorded.turn().unwrap().is_ready {}
    assert!(!recorded.is_woken(), "the turns have seen it");
}

#[test]
fn message_after_a_stopped_run_shows() {
    let recorded = Recorded::new();
    let handle = recorded.kernel.handle();
    let outcome = recorded.kernel.try_run(async {
        sleep(SECOND).await.unwrap();
        handle.stop().unwrap();
        sleep(SECOND).await.unwrap();
    });
    outcome.unwrap_err();
    assert!(!recorded.is_woken(), "the run leaves no work");
    recorded.assert_message_shows();
}

#[test]
fn message_after_a_failed_run_shows() {
    let recorded = Recorded::new();
    recorded.turn().unwrap();
    recorded.fails.set(true);
    let run = || recorded.kernel.run(async { sleep(SECOND).await.unwrap() });
    catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    recorded.assert_message_shows();
}

/// The turn says that a task is ready. The owner may look at the descriptor all the same.
#[test]
fn message_after_a_busy_turn_shows() {
    let recorded = Recorded::new();
    let spin = async { while yield_now().await.is_ok() {} };
    recorded.kernel.enter(|| spawn(spin).detach()).unwrap();
    assert!(recorded.turn().unwrap().is_ready);
    recorded.assert_message_shows();
}

#[test]
fn message_after_a_failed_turn_shows() {
    let recorded = Recorded::new();
    recorded.turn().unwrap();
    recorded.fails.set(true);
    recorded.kernel.turn(None).unwrap_err();
    recorded.assert_message_shows();
}

/// The closure that wakes a driver may own anything, for example a handle.
#[test]
fn waker_is_dropped_outside_the_lock() {
    /// Sends a message when it is dropped.
    struct SendsLast(Arc<OnceLock<KernelHandle>>);

    impl Drop for SendsLast {
        fn drop(&mut self) {
            self.0.get().unwrap().stop().unwrap();
        }
    }

    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || {
        let handle = Arc::default();
        let sends_last = SendsLast(Arc::clone(&handle));
        let home = Home::open(move || {
            let _ = &sends_last;
        });
        handle.set(KernelHandle::new(home.shared().clone())).unwrap();
        assert!(home.fall_asleep());
        ended.send(home.close().len()).unwrap();
    });
    assert_eq!(has_ended.recv_timeout(HANGS_AFTER), Ok(1));
}
