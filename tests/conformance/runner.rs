//! Runs the body of a case on one of the kernels, and returns the events that it noted.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use pikake::kernel::POLL_EVERY_STEPS;
use pikake::sim::{Schedule, Sim, busy_for};
use pikake::time::{ManualClock, Ticks, clock_rate, now};
use pikake::traps::{KernelId, door};
use pikake::{Kernel, KernelHandle, TaskError, current, task};

use crate::api::{Api, Model, Pikake};
use crate::{model, reference};

/// A length of time, in milliseconds.
pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// The surroundings of a case: a list of events, and control of the clock.
#[derive(Clone)]
pub(crate) struct World {
    events: Rc<RefCell<Vec<String>>>,
    /// The time inside the kernel.
    time: fn() -> Option<Duration>,
    advance: Rc<dyn Fn(Duration)>,
}

impl World {
    fn new(advance: impl Fn(Duration) + 'static) -> Self {
        let time =
            || door::is_open().then(|| clock_rate().duration_floor(now().since(Ticks::ZERO)));
        Self { events: Rc::default(), time, advance: Rc::new(advance) }
    }

    /// Notes an event, behind the virtual time in milliseconds.
    pub(crate) fn note(&self, event: impl Display) {
        let time = (self.time)();
        let time = time.map_or("-".to_owned(), |time| time.as_millis().to_string());
        self.events.borrow_mut().push(format!("{time} {event}"));
    }

    /// Lets time pass while the current task does not suspend.
    pub(crate) fn stall(&self, milliseconds: u64) {
        (self.advance)(ms(milliseconds));
    }

    /// Notes an event when the guard is dropped.
    pub(crate) fn on_drop(&self, event: &'static str) -> OnDrop {
        OnDrop { world: self.clone(), event }
    }
}

/// Made by [`World::on_drop`].
pub(crate) struct OnDrop {
    world: World,
    event: &'static str,
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.world.note(self.event);
    }
}

/// A kernel on virtual time that starts at zero and jumps to the next timer.
pub(crate) trait Runner {
    /// The calls of the programs that it runs.
    type Api: Api;

    /// Runs a body as the main task, then shuts the kernel down and checks that nothing is left.
    fn outcome<F: Future<Output: Send> + 'static>(
        body: impl FnOnce(World) -> F + 'static,
    ) -> (Result<F::Output, TaskError>, Vec<String>);

    /// The events that a body noted.
    fn run<F: Future<Output = ()> + 'static>(
        body: impl FnOnce(World) -> F + 'static,
    ) -> Vec<String> {
        // Boxed, so that a kernel is compiled once for all cases.
        type Boxed = Pin<Box<dyn Future<Output = ()>>>;
        let body: Box<dyn FnOnce(World) -> Boxed> = Box::new(|world| Box::pin(body(world)));
        match Self::outcome(body) {
            (Ok(()), events) => events,
            (Err(TaskError::Panicked(panic)), _) => resume_unwind(panic.into_payload()),
            (Err(error), events) => panic!("the main task ended by {error} after {events:?}"),
        }
    }
}

/// The kernel that programs run on.
pub(crate) struct Real;

impl Runner for Real {
    type Api = Pikake;

    fn outcome<F: Future<Output: Send> + 'static>(
        body: impl FnOnce(World) -> F + 'static,
    ) -> (Result<F::Output, TaskError>, Vec<String>) {
        let clock = ManualClock::auto();
        let kernel = Kernel::builder().clock(clock.clone()).build().expect("a kernel");
        let world = World::new(move |length| clock.advance(length));
        let outcome = with_patience(kernel.handle(), || kernel.try_run(body(world.clone())));
        kernel.shutdown();
        assert_eq!((kernel.task_count(), kernel.socket_count()), (0, 0), "tasks, sockets left");
        (outcome, world.events.take())
    }
}

/// The real time after which the kernel of a case is stopped, so that an endless wait is a failure.
const PATIENCE: Duration = Duration::from_secs(20);

fn with_patience<T>(kernel: KernelHandle, work: impl FnOnce() -> T) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        if is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            let _ = kernel.stop();
        }
    });
    let result = work();
    drop(done);
    watch.join().expect("the watch does not panic");
    result
}

/// The kernel of `reference.rs`.
pub(crate) struct Reference;

impl Runner for Reference {
    type Api = Pikake;

    fn outcome<F: Future<Output: Send> + 'static>(
        body: impl FnOnce(World) -> F + 'static,
    ) -> (Result<F::Output, TaskError>, Vec<String>) {
        let kernel = Rc::new(reference::Reference::new());
        let world = World::new({
            let kernel = kernel.clone();
            move |length| kernel.advance(length)
        });
        let outcome = kernel.run(body(world.clone()));
        kernel.shutdown();
        assert_eq!(kernel.tasks_and_deadlines_left(), (0, 0), "tasks, deadlines left");
        (outcome, world.events.take())
    }
}

/// The model of `model/`, whose programs make other calls.
pub(crate) struct Modelled;

impl Runner for Modelled {
    type Api = Model;

    fn outcome<F: Future<Output: Send> + 'static>(
        body: impl FnOnce(World) -> F + 'static,
    ) -> (Result<F::Output, TaskError>, Vec<String>) {
        let world = World { time: model::now, ..World::new(model::stall) };
        let outcome = model::run(body(world.clone()));
        let outcome = outcome
            .map_err(|why| TaskError::Cancelled(pikake::Interrupted::cancelled(&why.to_string())));
        (outcome, world.events.take())
    }
}

/// A host of a simulated world, by the seed and in the order of [`drawn`]; a step takes no time.
pub(crate) struct Simulated;

thread_local! {
    static DRAWN: Cell<(u64, Schedule)> = const { Cell::new((0, Schedule::Fifo)) };
}

impl Runner for Simulated {
    type Api = Pikake;

    fn outcome<F: Future<Output: Send> + 'static>(
        body: impl FnOnce(World) -> F + 'static,
    ) -> (Result<F::Output, TaskError>, Vec<String>) {
        let world = World::new(busy_for);
        match drawn_sim().run_here("main", body(world.clone())) {
            Ok(ran) => (ran.outcome, world.events.take()),
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// A host of two kernels, as [`Simulated`]. The body is work that either of them may begin.
pub(crate) struct Taken;

thread_local! {
    /// The body and its world, which cross to the kernel that begins it: another one of this
    /// thread.
    static BODY: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
    /// How often a body has begun at home, and elsewhere.
    static BEGUN: Cell<[usize; 2]> = const { Cell::new([0; 2]) };
}

impl Runner for Taken {
    type Api = Pikake;

    fn outcome<F: Future<Output: Send> + 'static>(
        body: impl FnOnce(World) -> F + 'static,
    ) -> (Result<F::Output, TaskError>, Vec<String>) {
        fn make<B: FnOnce(World) -> F + 'static, F>(
            _: &B,
        ) -> impl FnOnce(KernelId) -> F + Send + use<B, F> {
            |home| {
                let body = BODY.take().expect("a body begins once").downcast::<(B, World)>();
                let (body, world) = *body.expect("it is the body of this run");
                let [at_home, elsewhere] = BEGUN.get();
                let is_home = current().kernel() == home;
                BEGUN.set([at_home + usize::from(is_home), elsewhere + usize::from(!is_home)]);
                body(world)
            }
        }
        let make = make(&body);
        let world = World::new(busy_for);
        let events = world.events.clone();
        BODY.set(Some(Box::new((body, world))));
        let outcome = Rc::new(RefCell::new(None));
        let (noted, make) = (outcome.clone(), RefCell::new(Some(make)));
        let mut sim = drawn_sim();
        sim.client("main", move || {
            let (noted, make) = (noted.clone(), make.take().expect("the host starts once"));
            async move {
                let home = current().kernel();
                let outcome = task::spawn_anywhere(move || make(home)).await;
                *noted.borrow_mut() = Some(outcome);
            }
        });
        sim.kernels("main", 2);
        if let Err(failure) = sim.run() {
            panic!("{failure}");
        }
        let outcome = outcome.take().expect("the main task has ended");
        (outcome, events.take())
    }
}

/// A simulated world by the seed and in the order of [`drawn`].
fn drawn_sim() -> Sim {
    let (seed, schedule) = DRAWN.get();
    let mut sim = Sim::new(seed);
    sim.schedule(schedule).step_cost(Duration::ZERO).tolerate_panics().cleanup_limit(None);
    if schedule == Schedule::Fifo {
        sim.steps_per_turn(POLL_EVERY_STEPS);
    }
    sim
}

/// The number of seeds for each case and each order of tasks.
pub(crate) const SEEDS: u64 = 64;

/// The number of seeds on two kernels, about half of which move the case.
const TAKEN_SEEDS: u64 = 16;

/// The orders of tasks of a case on the simulated kernel.
pub(crate) const IN_ORDER: &[Schedule] = &[Schedule::Fifo];

/// Like [`IN_ORDER`], for a case that notes the same events in each order.
pub(crate) const IN_ANY_ORDER: &[Schedule] =
    &[Schedule::Fifo, Schedule::Random, Schedule::Priorities { changes: 3 }];

/// Has [`Simulated`] use this seed and this order of tasks during `work`.
pub(crate) fn drawn<T>(seed: u64, schedule: Schedule, work: impl FnOnce() -> T) -> T {
    DRAWN.set((seed, schedule));
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => {
            eprintln!("this was on the simulated kernel, by seed {seed}, {schedule:?}");
            resume_unwind(panic);
        }
    }
}

/// Runs a case on the simulated kernel, in so many worlds.
pub(crate) fn by_seed(schedules: &[Schedule], case: fn()) {
    for schedule in schedules {
        (0..SEEDS).for_each(|seed| drawn(seed, *schedule, case));
    }
}

/// As [`by_seed`], for work of two kernels: each of them begins some bodies.
pub(crate) fn by_seed_taken(schedules: &[Schedule], case: fn()) {
    BEGUN.set([0; 2]);
    for schedule in schedules {
        (0..TAKEN_SEEDS).for_each(|seed| drawn(seed, *schedule, case));
    }
    assert!(BEGUN.get().iter().all(|count| *count > 0), "{:?}", BEGUN.get());
}

/// Declares the tests of a file's cases, each on every kernel. `with_sockets` leaves out the
/// reference kernel. `by_one_seed`, for large cases, does so too, and uses one seed.
///
/// On the simulated kernel a case must note the same events by every seed. `in_order` keeps tasks
/// in the order in which they became ready, as on the other kernels; `in_any_order` tries other
/// orders. Both also run as work that another kernel may begin ([`Taken`]), unless they are
/// `of_the_main_task`, whose end is that of its kernel.
macro_rules! on_every_kernel {
    (by_one_seed { $($case:ident)* }) => {
        mod real {
            $(#[test] fn $case() { super::$case::<crate::runner::Real>(); })*
        }
        mod simulated {
            use crate::runner::{IN_ORDER, Simulated, drawn};

            $(#[test] fn $case() { drawn(0, IN_ORDER[0], super::$case::<Simulated>); })*
        }
    };
    (
        with_sockets $(in_order { $($ordered:ident)* })? $(in_any_order { $($any:ident)* })?
        $(of_the_main_task { $($main:ident)* })?
    ) => {
        mod real {
            $($(#[test] fn $main() { super::$main::<crate::runner::Real>(); })*)?
            $($(#[test] fn $ordered() { super::$ordered::<crate::runner::Real>(); })*)?
            $($(#[test] fn $any() { super::$any::<crate::runner::Real>(); })*)?
        }
        mod simulated {
            use crate::runner::{self, Simulated, by_seed};

            $($(#[test] fn $main() {
                by_seed(runner::IN_ORDER, super::$main::<Simulated>);
            })*)?
            $($(#[test] fn $ordered() {
                by_seed(runner::IN_ORDER, super::$ordered::<Simulated>);
            })*)?
            $($(#[test] fn $any() {
                by_seed(runner::IN_ANY_ORDER, super::$any::<Simulated>);
            })*)?
        }
        mod taken {
            use crate::runner::{self, Taken, by_seed_taken};

            $($(#[test] fn $ordered() {
                by_seed_taken(runner::IN_ORDER, super::$ordered::<Taken>);
            })*)?
            $($(#[test] fn $any() {
                by_seed_taken(runner::IN_ANY_ORDER, super::$any::<Taken>);
            })*)?
        }
    };
    (
        $(in_order { $($ordered:ident)* })? $(in_any_order { $($any:ident)* })?
        $(of_the_main_task { $($main:ident)* })?
    ) => {
        crate::runner::on_every_kernel! {
            with_sockets $(in_order { $($ordered)* })? $(in_any_order { $($any)* })?
            $(of_the_main_task { $($main)* })?
        }
        mod reference {
            $($(#[test] fn $main() { super::$main::<crate::runner::Reference>(); })*)?
            $($(#[test] fn $ordered() { super::$ordered::<crate::runner::Reference>(); })*)?
            $($(#[test] fn $any() { super::$any::<crate::runner::Reference>(); })*)?
        }
    };
}
pub(crate) use on_every_kernel;

/// Starts a task with a name.
pub(crate) fn named<F: Future + 'static>(name: &str, future: F) -> task::Task<F::Output> {
    task::Builder::new().name(name).spawn(future)
}

/// Starts a task inside the current step, if it may.
pub(crate) fn spawn_eagerly<F: Future + 'static>(future: F) -> task::Task<F::Output> {
    task::Builder::new().eager().spawn(future)
}

/// Suspends once, as a future of another library does.
pub(crate) async fn next_step() {
    let mut was_polled = false;
    std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut was_polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The answer of a wait, in a few words.
pub(crate) fn describe<T>(answer: Result<T, impl Display>) -> String {
    match answer {
        Ok(_) => "ok".to_owned(),
        Err(interrupted) => interrupted.to_string(),
    }
}

/// One poll of a future, which may go on waiting elsewhere.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx))).await
}
