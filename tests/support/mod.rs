//! Helpers for the tests of all crates: a kernel with virtual time, a recorder of kernel events, a
//! driver that fails on demand, and a time limit for tests that may hang. The modules have child
//! processes, scratch directories, programs that retry after an interruption, calls on sockets, and
//! a subscriber to warnings.
#![allow(
    dead_code,
    reason = "each test binary uses its part; an `expect` would fail in those that use all"
)]

pub(crate) mod child;
pub(crate) mod insist;
pub(crate) mod scratch;
pub(crate) mod sockets;
pub(crate) mod warnings;

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pikake::kernel::{
    BlockingCall, Builder, Driver, Event, Life, MioDriver, MioSocket, Observer, Token,
};
use pikake::time::ManualClock;
use pikake::traps::{
    Address, Addresses, Attempt, Exit, OpenSocket, Opened, Reply, TaskRef, TrapKind,
};
use pikake::{Kernel, task};

/// The number of random cases in a run: this one, or many with the variable `PIKAKE_LONG`.
pub(crate) fn cases(usual: u32) -> u32 {
    const MORE: u32 = 40;
    if std::env::var_os("PIKAKE_LONG").is_some() { MORE * usual } else { usual }
}

/// A length of time, in milliseconds.
pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A kernel whose time jumps to the next timer when nothing else is to be done.
pub(crate) fn kernel() -> Kernel<ManualClock> {
    builder().build().expect("a kernel")
}

/// The builder of [`kernel`].
pub(crate) fn builder() -> Builder<ManualClock> {
    Kernel::builder().clock(ManualClock::auto())
}

/// Runs a future on such a kernel, and checks that nothing is left of it afterwards.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    let kernel = kernel();
    // Boxed, so that the kernel is compiled once for all tests.
    let future: Pin<Box<dyn Future<Output = F::Output> + '_>> = Box::pin(future);
    let output = kernel.run(future);
    kernel.shutdown();
    assert_eq!((kernel.task_count(), kernel.socket_count()), (0, 0), "tasks and sockets left");
    output
}

/// Spawns a task with a name.
pub(crate) fn named<F: Future + 'static>(name: &str, future: F) -> task::Task<F::Output> {
    task::Builder::new().name(name).spawn(future)
}

/// A list of events, compared whole.
#[derive(Clone, Default, Debug)]
pub(crate) struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, event: impl Display) {
        self.0.borrow_mut().push(event.to_string());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut())
    }
}

/// Records into a [`Log`] what the kernel does with tasks.
#[derive(Clone, Default, Debug)]
pub(crate) struct Recorder(pub(crate) Log);

impl Observer for Recorder {
    fn created(&self, task: &TaskRef) {
        self.0.add(format_args!("created {}", task.name()));
    }

    fn stepping(&self, task: &TaskRef) {
        self.0.add(format_args!("step {}", task.name()));
    }

    fn trapped(&self, task: &TaskRef, kind: TrapKind, _: &'static std::panic::Location<'static>) {
        self.0.add(format_args!("  {} waits: {kind}", task.name()));
    }

    fn answered(&self, task: &TaskRef, kind: TrapKind, interrupted: bool) {
        let how = if interrupted { "interrupted" } else { "done" };
        self.0.add(format_args!("  {} goes on: {kind} {how}", task.name()));
    }

    fn exited(&self, task: &TaskRef, exit: Exit) {
        self.0.add(format_args!("exit {} {exit:?}", task.name()));
    }
}

/// How long a test may take, in real time, before it counts as hung.
const HANGS_AFTER: Duration = Duration::from_secs(20);

/// Runs the body of a test on a thread of its own, so that a wait that never ends is a failure.
///
/// Virtual time does not help there: a kernel without timers blocks in its driver for ever.
#[track_caller]
pub(crate) fn within(body: impl FnOnce() + Send + 'static) {
    let (alive, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let _alive = alive;
        body();
    });
    match ended.recv_timeout(HANGS_AFTER) {
        Err(RecvTimeoutError::Timeout) => panic!("the test hangs: something is waited for in vain"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Calls something when it is dropped.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Which calls of a [`Faulty`] driver fail, once each time they are set.
#[derive(Clone, Default, Debug)]
pub(crate) struct Faults {
    pub(crate) register: Rc<Cell<bool>>,
    pub(crate) wait: Rc<Cell<bool>>,
    pub(crate) start_thread: Rc<Cell<bool>>,
    /// The next lookup is not made, but left to the test to answer.
    pub(crate) keep_lookup: Rc<Cell<bool>>,
    pub(crate) lookups: Rc<RefCell<Vec<Reply<Addresses>>>>,
}

/// The real driver, but for the faults that a test sets.
pub(crate) struct Faulty {
    real: MioDriver,
    faults: Faults,
}

impl Faulty {
    pub(crate) fn new(faults: &Faults) -> Self {
        Self { real: MioDriver::new().expect("a driver"), faults: faults.clone() }
    }
}

fn fail_if(fault: &Cell<bool>) -> io::Result<()> {
    if fault.take() { Err(io::Error::other("a fault that was asked for")) } else { Ok(()) }
}

impl Driver for Faulty {
    type Socket = MioSocket;

    fn waker(&self) -> Box<dyn Fn() + Send + Sync> {
        self.real.waker()
    }

    fn wait(&mut self, limit: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        fail_if(&self.faults.wait)?;
        self.real.wait(limit, events)
    }

    fn register(&mut self, socket: &MioSocket, token: Token) -> io::Result<()> {
        fail_if(&self.faults.register)?;
        self.real.register(socket, token)
    }

    fn blocked(&mut self, socket: &MioSocket, token: Token) -> io::Result<()> {
        self.real.blocked(socket, token)
    }

    fn deregister(&mut self, socket: &MioSocket) {
        self.real.deregister(socket);
    }

    fn short_means_blocked(&self, socket: &MioSocket) -> bool {
        self.real.short_means_blocked(socket)
    }

    fn open(&mut self, what: OpenSocket<'_>) -> io::Result<Opened<MioSocket>> {
        self.real.open(what)
    }

    fn attempt(
        &mut self,
        socket: &MioSocket,
        attempt: &mut Attempt<'_>,
    ) -> Option<io::Result<usize>> {
        self.real.attempt(socket, attempt)
    }

    fn accept(&mut self, listener: &MioSocket) -> Option<io::Result<(MioSocket, Address)>> {
        self.real.accept(listener)
    }

    fn start_thread(&mut self, name: &str, life: Life) -> Result<(), (io::Error, Option<Life>)> {
        match fail_if(&self.faults.start_thread) {
            Ok(()) => self.real.start_thread(name, life),
            Err(error) => Err((error, Some(life))),
        }
    }

    fn blocking(&mut self, job: BlockingCall) -> Result<(), BlockingCall> {
        self.real.blocking(job)
    }

    fn lookup(
        &mut self,
        host: &str,
        port: u16,
        reply: Reply<Addresses>,
    ) -> Result<(), BlockingCall> {
        if self.faults.keep_lookup.take() {
            self.faults.lookups.borrow_mut().push(reply);
            return Ok(());
        }
        self.real.lookup(host, port, reply)
    }
}
