//! A host: its kernels and the program on them.
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
//! (1) [`Host::start`]: fresh kernels, the first with the program's future as its main task; or
//! [`Host::open`], for a main task of the caller. (2) The main task has ended; the other tasks of
//! its kernel are cancelled, as under `#[pikake::main]`. (3) They have ended, or the grace is over;
//! the kernel is dropped and its sockets are closed. Then the host's other kernels are shut down in
//! the same way, all at once. (4) [`Host::crash`]. (5) A restart.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use pikake_kernel::{Kernel, Turn, WAITS_FOR_WORK, wait_for_work};
use pikake_traps::{Builder, Peers, TaskRef};

use crate::clock::{SimClock, WallClock};
use crate::driver::SimDriver;
use crate::log::{HostName, Log};
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

/// A kernel of a host, as the world sees it.
pub(crate) struct HostKernel {
    /// `None` while the host is off, and once this kernel was shut down.
    pub(crate) kernel: Option<Rc<SimKernel>>,
    pub(crate) outside: Outside,
    pub(crate) watch: Rc<Watch>,
    /// A turn became due while the host was paused.
    pub(crate) has_missed: bool,
    /// The kernel is in the ready list of the world.
    pub(crate) is_queued: bool,
    /// The time of the next turn, as far as is known.
    pub(crate) due: Option<u64>,
}

impl HostKernel {
    pub(crate) fn new(outside: Outside, watch: Watch) -> Self {
        let watch = Rc::new(watch);
        Self { kernel: None, outside, watch, has_missed: false, is_queued: false, due: None }
    }

    /// Turns the kernel once: one step, if a task is ready. `None` if there is no kernel.
    pub(crate) fn turn(&self) -> Option<Turn> {
        let kernel = self.kernel.as_ref()?;
        let turn = || kernel.turn(Some(Duration::ZERO));
        match self.outside.clock.while_here(self.outside.key.host, turn) {
            Ok(turn) => Some(turn),
            Err(error) => panic!("a simulated host could not be turned: {error}"),
        }
    }

    /// Whether nothing is left to run, so that the kernel can be dropped.
    fn is_done(&self) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.is_shut_down())
    }

    fn ask_to_shut_down(&self) {
        if let Some(kernel) = &self.kernel {
            // The kernel exists, so its handle works.
            let _ = kernel.handle().shutdown();
        }
    }

    /// Drops the kernel, and first the tasks that are left.
    fn end(&mut self) {
        if let Some(kernel) = &self.kernel {
            kernel.shutdown();
        }
        self.kernel = None;
        self.due = None;
    }
}

pub(crate) struct Host {
    pub(crate) name: HostName,
    /// `None`: the main task is a single future, given to [`Sim::run_here`](crate::Sim::run_here).
    program: Option<Program>,
    place: &'static Location<'static>,
    /// The run is over when all clients have exited.
    pub(crate) is_client: bool,
    /// The main kernel, and the others.
    pub(crate) kernels: Vec<HostKernel>,
    pub(crate) wall: Rc<RefCell<WallClock>>,
    /// Additional virtual time of the next step.
    pub(crate) long_step: Rc<Cell<Duration>>,
    main: Option<TaskRef>,
    ended: Rc<RefCell<Option<Ended>>>,
    /// The main kernel is being shut down, or the others after it.
    is_closing: bool,
    pub(crate) is_paused: bool,
    /// The program has ended, without a crash.
    pub(crate) has_exited: bool,
}

impl Host {
    pub(crate) fn new(
        (name, program): (HostName, Option<Program>),
        place: &'static Location<'static>,
        is_client: bool,
        wall: Rc<RefCell<WallClock>>,
        long_step: Rc<Cell<Duration>>,
        kernels: Vec<HostKernel>,
    ) -> Self {
        Self {
            name,
            program,
            place,
            is_client,
            kernels,
            wall,
            long_step,
            main: None,
            ended: Rc::default(),
            is_closing: false,
            is_paused: false,
            has_exited: false,
        }
    }

    /// Starts the program in fresh kernels, if the host has one.
    pub(crate) fn start(&mut self, seed: u64, schedule: Schedule, log: &Log) {
        let Some(program) = self.program.clone() else { return };
        let kernel = self.open(seed, schedule, log);
        let main = Main { future: program(), ended: self.ended.clone() };
        let name = self.name.host.as_str();
        let spawned = kernel.enter(|| Builder::new().name(name).spawned_at(self.place).spawn(main));
        match spawned {
            Ok(task) => self.main = Some(task.task_ref().clone()),
            Err(nested) => panic!("a simulation cannot run here: {nested}"),
        }
        for other in self.kernels[1..].iter().filter_map(|other| other.kernel.as_ref()) {
            let builder = || Builder::new().name(WAITS_FOR_WORK).spawned_at(self.place);
            let spawned = other.enter(|| builder().spawn(wait_for_work()).detach());
            spawned.expect("the main kernel was entered here, and left");
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

    /// Whether the host has a kernel.
    pub(crate) fn is_running(&self) -> bool {
        self.kernels.iter().any(|one| one.kernel.is_some())
    }

    /// Creates fresh kernels, and returns the main one.
    pub(crate) fn open(&mut self, seed: u64, schedule: Schedule, log: &Log) -> Rc<SimKernel> {
        let life = {
            let Outside { net, key, .. } = &self.kernels[0].outside;
            let mut net = net.borrow_mut();
            let node = &mut net.nodes[key.host];
            node.is_up = true;
            node.life += 1;
            node.life
        };
        let peers = Peers::new();
        for one in &mut self.kernels {
            one.watch.restart();
            let number = one.outside.key.kernel;
            let (purpose, name) = match number {
                0 => (format!("schedule of life {life}"), self.name.host.as_str()),
                _ => (format!("schedule of kernel {number} in life {life}"), WAITS_FOR_WORK),
            };
            let recorder = Recorder {
                watch: one.watch.clone(),
                log: log.clone(),
                clock: one.outside.clock.clone(),
                key: one.outside.key,
            };
            let kernel = Kernel::builder()
                .name(name)
                .clock(one.outside.clock.clone())
                .pick(SimPick::new(schedule, Rng::split(seed, &self.name.host, &purpose)))
                .observer(recorder)
                .poll_every_steps(one.watch.steps_per_turn)
                .cleanup_limit(one.watch.cleanup_limit)
                .peers(&peers)
                .build_on(SimDriver::new(one.outside.clone()));
            one.kernel = Some(Rc::new(kernel));
        }
        self.ended = Rc::default();
        self.is_closing = false;
        self.has_exited = false;
        self.is_paused = false;
        self.kernels[0].kernel.clone().expect("the loop has built it")
    }

    /// Shuts the kernels down once the main task has ended: first the main kernel, then the others.
    /// `true`: the program has exited.
    pub(crate) fn close_if_ended(&mut self) -> bool {
        let [main, others @ ..] = &mut self.kernels[..] else { return false };
        // A task may have asked for the shutdown of one of the others.
        others.iter_mut().filter(|other| other.is_done()).for_each(HostKernel::end);
        let has_ended = self.main.as_ref().is_some_and(TaskRef::is_ended);
        if let Some(kernel) = main.kernel.as_ref().filter(|_| has_ended) {
            if !std::mem::replace(&mut self.is_closing, true) {
                main.ask_to_shut_down();
            }
            if kernel.task_count() > 0 && !kernel.is_shut_down() {
                return false;
            }
            main.end();
            self.main = None;
            others.iter().for_each(HostKernel::ask_to_shut_down);
        }
        if self.is_running() || !self.is_closing {
            return false;
        }
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
        let Outside { net, key, .. } = self.kernels[0].outside.clone();
        let calls = net.borrow_mut().close_all(key.host, resets);
        self.main = None;
        for one in &mut self.kernels {
            one.kernel = None;
            one.due = None;
        }
        let more_calls = net.borrow_mut().close_all(key.host, false);
        // Dropping closures runs user code, so it happens without a borrow of the network.
        drop((calls, more_calls));
        self.is_closing = false;
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
