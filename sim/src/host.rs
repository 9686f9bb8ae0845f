//! A host: a kernel, the program on it, and what became of both.
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
//! (1) [`Host::start`]: a fresh kernel, with the program's future as its main task; or [`Host::open`],
//! and somebody else brings that. (2) The main task
//! has ended; the others are asked to, as under `#[pikake::main]`. (3) They have, or the grace is
//! over; the kernel is dropped and its sockets are closed. (4) [`Host::crash`]. (5) A restart.

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
    /// `None`: its main task is a future of whoever runs the simulation, and there is but one.
    program: Option<Program>,
    place: &'static Location<'static>,
    /// The run is over when all of these have exited.
    pub(crate) is_client: bool,
    pub(crate) kernel: Option<Rc<SimKernel>>,
    pub(crate) outside: Outside,
    pub(crate) watch: Rc<Watch>,
    main: Option<TaskRef>,
    ended: Rc<RefCell<Option<Ended>>>,
    /// The kernel is being shut down.
    is_closing: bool,
    pub(crate) is_paused: bool,
    /// Something came up while it was paused.
    pub(crate) has_missed: bool,
    /// It is among those to be turned now.
    pub(crate) is_queued: bool,
    /// When it is to be turned next, as far as is known.
    pub(crate) due: Option<u64>,
    /// The program has ended by itself.
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

    /// Starts the program in a fresh kernel, unless it is brought by somebody else.
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

    /// The future of somebody else is the main task.
    pub(crate) fn begin(&mut self, main: &TaskRef) {
        self.main = Some(main.clone());
    }

    /// Whether the main task is somebody else's, who is told how it ended.
    pub(crate) fn is_borrowed(&self) -> bool {
        self.program.is_none()
    }

    /// Has a fresh kernel.
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

    /// Turns the kernel once: one step, if a task is ready. `None`: there is none.
    pub(crate) fn turn(&mut self) -> Option<Turn> {
        let kernel = self.kernel.as_ref()?;
        let turn = || kernel.turn(Some(std::time::Duration::ZERO));
        match self.outside.clock.while_here(turn) {
            Ok(turn) => Some(turn),
            Err(error) => panic!("a simulated host could not be turned: {error}"),
        }
    }

    /// Asks the other tasks to end once the main task has. `true`: the program has exited.
    pub(crate) fn close_if_ended(&mut self) -> bool {
        let Some(kernel) = &self.kernel else { return false };
        if !self.has_ended() {
            return false;
        }
        if !std::mem::replace(&mut self.is_closing, true) {
            // It has not ended, as it is here.
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

    /// Whether the program is over, and its other tasks are asked to end. What they do then is their
    /// own business, as it is under `#[pikake::main]`.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// How the main task ended, told once.
    pub(crate) fn take_ended(&self) -> Option<Ended> {
        self.ended.borrow_mut().take()
    }

    /// Ends the program in mid-step, as it were: nothing its tasks do when they are dropped gets out.
    pub(crate) fn crash(&mut self, resets: bool) {
        let host = self.outside.host;
        let jobs = self.outside.net.borrow_mut().sever(host, resets);
        self.main = None;
        self.kernel = None;
        let more_jobs = self.outside.net.borrow_mut().sever(host, false);
        // They are user code, which the network does not run.
        drop((jobs, more_jobs));
        self.is_closing = false;
        self.due = None;
    }
}

/// A program's future, which tells how it ended.
struct Main {
    future: Pin<Box<dyn Future<Output = Result<(), String>>>>,
    ended: Rc<RefCell<Option<Ended>>>,
}

impl Future for Main {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // A panic goes on; whoever sees the future afterwards is the kernel, which drops it.
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

/// What a program may return: nothing, or a result that says why it failed.
pub trait Outcome {
    /// What went wrong, if something did.
    ///
    /// # Errors
    ///
    /// Its text.
    fn outcome(self) -> Result<(), String>;
}

impl Outcome for () {
    fn outcome(self) -> Result<(), String> {
        Ok(())
    }
}

/// The type of what never returns, as a server's endless loop, which has no other name as yet.
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
