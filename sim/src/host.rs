//! A host: a kernel and the program on it.
//!
//! ```text
//!          (1)             (2)            (3)
//!   off ────────▶ running ─────▶ closing ─────▶ exited
//!    ▲               │              │             │
//!    └───────────────┴──────────────┘ (4)         │
//!    ▲                                            │
//!    └────────────────────────────────────────────┘ (5) and at once (1)
//! ```
//!
//! (1) [`Host::start`]: a fresh kernel, with the program's future as its main task; or
//! [`Host::open`], for a main task of the caller. (2) The main task has ended; the other tasks are
//! cancelled, as under `#[pikake::main]`. (3) They have ended, or the grace is over; the kernel is
//! dropped and its sockets are closed. (4) [`Host::crash`]. (5) A restart.

use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use pikake_kernel::{Kernel, Turn};
use pikake_traps::{Builder, TaskRef};

use crate::clock::SimClock;
use crate::driver::SimDriver;
use crate::log::Log;
use crate::outside::Outside;
use crate::pick::{Schedule, SimPick};
use crate::recorder::{Recorder, Watch};
use crate::rng::Rng;

pub(crate) type Program = Rc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), String>>>>>;

pub(crate) type SimKernel = Kernel<SimClock, SimPick, SimDriver>;

/// How a main task ended.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    Done,
    Failed(String),
    Panicked(String),
}

pub(crate) struct Host {
    pub(crate) name: String,
    /// `None`: the main task is a single future, given to [`Sim::run_here`](crate::Sim::run_here).
    program: Option<Program>,
    place: &'static Location<'static>,
    /// The run is over when all clients have exited.
    pub(crate) is_client: bool,
    pub(crate) kernel: Option<Rc<SimKernel>>,
    pub(crate) outside: Outside,
    pub(crate) watch: Rc<Watch>,
    main: Option<TaskRef>,
    ended: Rc<RefCell<Option<Ended>>>,
    /// The kernel is being shut down.
    is_closing: bool,
    pub(crate) is_paused: bool,
    /// A turn became due while the host was paused.
    pub(crate) has_missed: bool,
    /// The host is in the ready list of the world.
    pub(crate) is_queued: bool,
    /// The time of the next turn, as far as is known.
    pub(crate) due: Option<u64>,
    /// The program has ended, without a crash.
    pub(crate) has_exited: bool,
}

impl Host {
    pub(crate) fn new(
        name: String,
        program: Option<Program>,
        place: &'static Location<'static>,
        is_client: bool,
        outside: Outside,
        watch: Watch,
    ) -> Self {
        Self {
            name,
            program,
            place,
            is_client,
            kernel: None,
            outside,
            watch: Rc::new(watch),
            main: None,
            ended: Rc::default(),
            is_closing: false,
            is_paused: false,
            has_missed: false,
            is_queued: false,
            due: None,
            has_exited: false,
        }
    }

    /// Starts the program in a fresh kernel, if the host has one.
    pub(crate) fn start(&mut self, seed: u64, schedule: Schedule, log: &Log) {
        let Some(program) = self.program.clone() else { return };
        let kernel = self.open(seed, schedule, log);
        let main = Main { future: program(), ended: self.ended.clone() };
        let spawned = kernel
            .enter(|| Builder::new().name(self.name.as_str()).spawned_at(self.place).spawn(main));
        match spawned {
            Ok(task) => self.main = Some(task.task_ref().clone()),
            Err(nested) => panic!("a simulation cannot run here: {nested}"),
        }
    }

    /// Sets the main task of a host without a program.
    pub(crate) fn begin(&mut self, main: &TaskRef) {
        self.main = Some(main.clone());
    }

    /// Whether the main task is a future of the caller, who gets its outcome.
    pub(crate) fn is_borrowed(&self) -> bool {
        self.program.is_none()
    }

    /// Creates a fresh kernel.
    pub(crate) fn open(&mut self, seed: u64, schedule: Schedule, log: &Log) -> Rc<SimKernel> {
        let life = {
            let mut net = self.outside.net.borrow_mut();
            let node = &mut net.nodes[self.outside.host];
            node.is_up = true;
            node.life += 1;
            node.life
        };
        self.watch.restart();
        let stream = Rng::split(seed, &self.name, &format!("schedule of life {life}"));
        let recorder = Recorder {
            watch: self.watch.clone(),
            log: log.clone(),
            clock: self.outside.clock.clone(),
            host: self.outside.host,
        };
        let kernel = Kernel::builder()
            .name(self.name.as_str())
            .clock(self.outside.clock.clone())
            .pick(SimPick::new(schedule, stream))
            .observer(recorder)
            .poll_every_steps(self.watch.steps_per_turn)
            .build_on(SimDriver::new(self.outside.clone()));
        let kernel = Rc::new(kernel);
        self.ended = Rc::default();
        self.kernel = Some(kernel.clone());
        self.is_closing = false;
        self.has_exited = false;
        self.is_paused = false;
        kernel
    }

    /// Turns the kernel once: one step, if a task is ready. `None` if the host has no kernel.
    pub(crate) fn turn(&self) -> Option<Turn> {
        let kernel = self.kernel.as_ref()?;
        let turn = || kernel.turn(Some(std::time::Duration::ZERO));
        match self.outside.clock.while_here(turn) {
            Ok(turn) => Some(turn),
            Err(error) => panic!("a simulated host could not be turned: {error}"),
        }
    }

    /// Shuts the kernel down once the main task has ended. `true`: the program has exited.
    pub(crate) fn close_if_ended(&mut self) -> bool {
        let Some(kernel) = &self.kernel else { return false };
        if !self.has_ended() {
            return false;
        }
        if !std::mem::replace(&mut self.is_closing, true) {
            // The kernel exists, so its handle works.
            let _ = kernel.handle().shutdown();
        }
        if kernel.task_count() > 0 && !kernel.is_shut_down() {
            return false;
        }
        kernel.shutdown();
        self.main = None;
        self.kernel = None;
        self.due = None;
        self.has_exited = true;
        true
    }

    /// Whether the main task has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.main.as_ref().is_some_and(TaskRef::is_ended)
    }

    /// Whether the main task has ended and the other tasks are being shut down. Their panics are no
    /// failure then, as under `#[pikake::main]`.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Takes the outcome of the main task.
    pub(crate) fn take_ended(&self) -> Option<Ended> {
        self.ended.borrow_mut().take()
    }

    /// Crashes the program: its sockets close first, so nothing that its tasks do when they are
    /// dropped leaves the host.
    pub(crate) fn crash(&mut self, resets: bool) {
        let host = self.outside.host;
        let calls = self.outside.net.borrow_mut().close_all(host, resets);
        self.main = None;
        self.kernel = None;
        let more_calls = self.outside.net.borrow_mut().close_all(host, false);
        // Dropping closures runs user code, so it happens without a borrow of the network.
        drop((calls, more_calls));
        self.is_closing = false;
        self.due = None;
    }
}

/// A program's future, which stores its outcome.
struct Main {
    future: Pin<Box<dyn Future<Output = Result<(), String>>>>,
    ended: Rc<RefCell<Option<Ended>>>,
}

impl Future for Main {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Unwind safe: the panic is resumed, and the kernel only drops the future afterwards.
        let ended = match catch_unwind(AssertUnwindSafe(|| self.future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(Ok(()))) => Ended::Done,
            Ok(Poll::Ready(Err(text))) => Ended::Failed(text),
            Err(payload) => {
                *self.ended.borrow_mut() = Some(Ended::Panicked(text_of(&*payload)));
                resume_unwind(payload);
            }
        };
        *self.ended.borrow_mut() = Some(ended);
        Poll::Ready(())
    }
}

/// The text of a panic.
pub(crate) fn text_of(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text").to_owned()
}

/// The return type of a program: `()`, or a result with its failure.
pub trait Outcome {
    /// Converts the outcome.
    ///
    /// # Errors
    ///
    /// The text of the failure.
    fn outcome(self) -> Result<(), String>;
}

impl Outcome for () {
    fn outcome(self) -> Result<(), String> {
        Ok(())
    }
}

/// The never type, as the type of a server's endless loop, which stable Rust cannot name yet.
type Never = <fn() -> ! as never::Returns>::Output;

mod never {
    pub trait Returns {
        type Output;
    }

    impl<T> Returns for fn() -> T {
        type Output = T;
    }
}

impl Outcome for Never {
    fn outcome(self) -> Result<(), String> {
        self
    }
}

impl<T: Outcome, E: std::fmt::Debug> Outcome for Result<T, E> {
    fn outcome(self) -> Result<(), String> {
        match self {
            Ok(value) => value.outcome(),
            Err(error) => Err(format!("{error:?}")),
        }
    }
}
