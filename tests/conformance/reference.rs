//! A kernel that is meant to be obviously right, and is meant for nothing else.
//!
//! The reference kernel is the kernel's half of the contract (`TrapHandler`), as a program on
//! virtual time that scans plain lists. It has no sockets, and calls blocking closures at once. The
//! rules of interruption are not the kernel's half; `model/` checks them.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::ToSocketAddrs;
use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use pikake::kernel::{FOREIGN_GRACE, SHUTDOWN_GRACE, SLOW_CLEANUP};
use pikake::time::{Rate, Ticks};
use pikake::traps::{
    Addresses, Attempt, BlockingCall, Closed, Graces, Home, Interrupted, Local, Message,
    OpenSocket, Opened, Outside, Parked, Passed, Quotas, Reply, SocketId, Start, TaskError, TaskId,
    TaskRef, TrapHandler, WaitKey, WaitPlace, WaitQueue, Waiter, WaiterList, borrowing, door,
    system_random, system_thread,
};

/// One tick is one nanosecond.
const RATE: Rate = Rate::NANOS;

/// More turns than a case makes that comes to an end.
const MOST_TURNS: u32 = 100_000;

/// The event that satisfies a wait.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    Moment(u64),
    /// The deadline of a scope.
    Deadline(u64),
    /// This number of permits of the queue with this number; zero for a signal.
    FromQueue(u32, usize),
    EndOf(TaskId),
    Happened,
}

#[derive(Debug)]
struct Waiting {
    event: Event,
    waiter: Waiter,
    /// Of a deadline that has passed.
    passed: Option<(u64, Ticks)>,
}

#[derive(Default, Debug)]
struct State {
    now: u64,
    last_number: u32,
    turns: u32,
    is_closing: bool,
    tasks: BTreeMap<TaskId, TaskRef>,
    doomed: VecDeque<(TaskRef, TaskError)>,
    /// By number, in the order in which the waits began.
    waits: BTreeMap<u64, Waiting>,
}

impl State {
    fn number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    fn add(&mut self, event: Event, waiter: &Waiter) -> WaitKey {
        let number = self.number().into();
        self.waits.insert(number, Waiting { event, waiter: waiter.clone(), passed: None });
        WaitKey(number)
    }

    /// The moments of the waits, each with its number, the soonest first. `of` gives the moment of
    /// an event.
    fn moments(&self, of: fn(Event) -> Option<u64>) -> Vec<(u64, u64)> {
        let all = self.waits.iter().filter_map(|(number, wait)| Some((of(wait.event)?, *number)));
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all
    }

    /// The next moment at which something is due.
    fn next_moment(&self) -> Option<u64> {
        let next = self.moments(|event| match event {
            Event::Moment(at) | Event::Deadline(at) => Some(at),
            _ => None,
        });
        next.first().map(|(at, _)| *at)
    }

    /// Satisfies the first waits for an event, `most` at most; returns their number.
    fn happen(&mut self, event: Event, most: usize, local: &Local) -> usize {
        let mut count = 0;
        for wait in self.waits.values_mut().filter(|wait| wait.event == event).take(most) {
            wait.event = Event::Happened;
            local.notify(&wait.waiter);
            count += 1;
        }
        count
    }

    fn fire_sleeps(&mut self, local: &Local) {
        let sleeps = self.moments(|event| match event {
            Event::Moment(at) => Some(at),
            _ => None,
        });
        for (_, number) in sleeps.into_iter().filter(|(at, _)| *at <= self.now) {
            let wait = self.waits.get_mut(&number).expect("listed above");
            wait.event = Event::Happened;
            local.notify(&wait.waiter);
        }
    }

    fn pass_deadlines(&mut self, local: &Local) {
        let deadlines = self.moments(|event| match event {
            Event::Deadline(at) => Some(at),
            _ => None,
        });
        for (_, number) in deadlines.into_iter().filter(|(at, _)| *at <= self.now) {
            let wait = self.waits.get_mut(&number).expect("listed above");
            wait.event = Event::Happened;
            wait.passed = Some((local.deadline_passed(&wait.waiter), Ticks::new(self.now)));
        }
    }
}

// ANCHOR: kernel
/// A kernel of this thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reference {
    kernel: Rc<Naive>,
    _listed: door::Registration,
}

impl Reference {
    pub(crate) fn new() -> Self {
        let graces = Graces {
            foreign: RATE.ticks_ceil(FOREIGN_GRACE),
            report: RATE.ticks_ceil(SLOW_CLEANUP),
            cleanup_limit: None,
        };
        let quotas = Quotas { attempts: u32::MAX, answers: u32::MAX };
        let local = Local::new(Home::open(|| {}), graces, quotas);
        let kernel = Rc::new(Naive { local, state: RefCell::default() });
        Self { _listed: door::register(kernel.clone()), kernel }
    }
    // ANCHOR_END: kernel

    fn inside<R>(&self, work: impl FnOnce(&Naive) -> R) -> R {
        let kernel: Rc<dyn TrapHandler> = self.kernel.clone();
        door::enter(&kernel, || work(&self.kernel)).expect("not inside a kernel")
    }

    // ANCHOR: run
    /// Runs a future as the main task; time jumps to the next timer when nothing can be done.
    pub(crate) fn run<F: Future>(&self, future: F) -> Result<F::Output, TaskError> {
        let name = Some("main".into());
        borrowing(future, self.kernel.local.home(), name, Location::caller(), |main| {
            self.inside(|kernel| {
                kernel.spawn(main, Start::Later);
                while !main.is_ended() {
                    if !kernel.turn() {
                        let next = kernel.with(|state| state.next_moment());
                        let next = next.expect("a task waits for an event that can still happen");
                        kernel.with(|state| state.now = state.now.max(next));
                    }
                }
            });
        })
    }
    // ANCHOR_END: run

    /// Asks every task to end, newest first; drops those that have not when the grace is over.
    pub(crate) fn shutdown(&self) {
        self.inside(|kernel| {
            kernel.with(|state| state.is_closing = true);
            for task in kernel.newest_first() {
                task.request_cancel(Interrupted::cancelled("the kernel is being shut down"));
            }
            let limit = kernel.now().get() + RATE.ticks_ceil(SHUTDOWN_GRACE);
            while kernel.turn() || !kernel.newest_first().is_empty() {
                if kernel.local.ready().is_empty() {
                    let next = kernel.with(|state| state.next_moment()).unwrap_or(limit);
                    kernel.with(|state| state.now = state.now.max(next.min(limit)));
                }
                if kernel.now().get() >= limit {
                    break;
                }
            }
            for task in kernel.newest_first() {
                let why = Interrupted::cancelled("the grace is over");
                kernel.abort(&task, TaskError::Cancelled(why));
            }
            kernel.bury();
            drop(kernel.local.home().close());
        });
    }

    /// Lets time pass during a step.
    pub(crate) fn advance(&self, length: Duration) {
        self.kernel.with(|state| state.now = state.now.saturating_add(RATE.ticks_ceil(length)));
    }

    pub(crate) fn tasks_and_deadlines_left(&self) -> (usize, usize) {
        self.kernel.with(|state| {
            let is_deadline =
                |wait: &&Waiting| matches!(wait.event, Event::Deadline(_)) || wait.passed.is_some();
            (state.tasks.len(), state.waits.values().filter(is_deadline).count())
        })
    }
}

/// The kernel, behind the door.
#[derive(Debug)]
struct Naive {
    local: Local,
    state: RefCell<State>,
}

impl Naive {
    fn newest_first(&self) -> Vec<TaskRef> {
        self.with(|state| state.tasks.values().rev().cloned().collect())
    }

    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        work(&mut self.state.borrow_mut())
    }

    /// So many waiters have left a queue.
    fn removed(&self, queue: &WaitQueue, count: usize) {
        queue.waiters_removed(count, queue.waiters());
    }

    /// Satisfies the waits for a task's end, and forgets the task.
    fn end(&self, task: &TaskRef) {
        let ended = self.with(|state| {
            state.happen(Event::EndOf(task.id()), usize::MAX, &self.local);
            state.tasks.remove(&task.id())
        });
        drop(ended);
        self.local.call_wakers();
    }

    /// Drops the tasks that are not to be stepped any more.
    fn bury(&self) {
        while let Some((task, outcome)) = self.with(|state| state.doomed.pop_front()) {
            if !task.is_ended() {
                task.abandon(outcome);
                self.end(&task);
            }
        }
    }

    // ANCHOR: step
    fn step(&self, task: TaskRef) {
        if task.is_ended() {
            return;
        }
        let Some(task) = self.local.step(task) else { return };
        if let Some(why) = self.local.drop_reason(&task) {
            task.abandon(TaskError::Cancelled(why));
        }
        self.end(&task);
    }
    // ANCHOR_END: step

    // ANCHOR: turn
    /// One pass of the loop; `false`: there was nothing to do.
    fn turn(&self) -> bool {
        let turns = self.with(|state| {
            state.turns += 1;
            state.turns
        });
        assert!(turns < MOST_TURNS, "the tasks wake each other for ever");
        let mut mail = Vec::new();
        self.local.home().take_mail(&mut mail);
        for message in mail {
            match message {
                Message::Wake(wake) => {
                    if let Some(task) = wake.arrive() {
                        self.local.make_ready(&task);
                    }
                }
                Message::Call(call) => call(),
                _ => {}
            }
        }
        self.with(|state| state.fire_sleeps(&self.local)); // events beat deadlines
        self.local.call_wakers();
        self.with(|state| state.pass_deadlines(&self.local));
        self.local.call_wakers();
        self.bury();
        let count = self.local.ready().len();
        for _ in 0..count {
            if let Some(task) = self.local.ready().pop() {
                self.step(task);
                self.local.clear_attention();
                self.bury();
            }
        }
        count > 0
    }
    // ANCHOR_END: turn
}

impl TrapHandler for Naive {
    fn local(&self) -> &Local {
        &self.local
    }

    fn now(&self) -> Ticks {
        Ticks::new(self.with(|state| state.now))
    }

    fn rate(&self) -> Rate {
        RATE
    }

    // ANCHOR: waits
    fn park(&self, place: WaitPlace<'_>, waiter: &Waiter) -> Parked {
        let event = match place {
            WaitPlace::Moment(at) => Event::Moment(at.get()),
            WaitPlace::Deadline(at, _) => Event::Deadline(at.get()),
            WaitPlace::Queue(queue, permits) => {
                let WaiterList { mut first, last } = queue.waiters();
                if first == WaiterList::NONE {
                    first = self.with(State::number);
                }
                queue.waiters_added(1, WaiterList { first, last });
                Event::FromQueue(first, permits.unwrap_or(0))
            }
            WaitPlace::End(task) => Event::EndOf(task.id()),
            WaitPlace::Socket(_, _, outcome) => {
                outcome.set(Err(Closed.into()));
                return Parked::Satisfied;
            }
        };
        Parked::Waits(self.with(|state| state.add(event, waiter)))
    }

    fn collect(&self, place: WaitPlace<'_>, key: WaitKey, waiter: &Waiter) -> Parked {
        let is_pending = self.with(|state| {
            let wait = state.waits.get_mut(&key.0).expect("it was not collected before");
            let is_pending = wait.event != Event::Happened;
            // The waiter of a passed deadline is the one that was notified.
            is_pending.then(|| std::mem::replace(&mut wait.waiter, waiter.clone()))
        });
        if is_pending.is_some() {
            return Parked::Waits(key);
        }
        self.leave(place, key);
        Parked::Satisfied
    }

    fn leave(&self, place: WaitPlace<'_>, key: WaitKey) -> bool {
        let wait = self.with(|state| state.waits.remove(&key.0)).expect("an entry of this kernel");
        let Waiting { event, waiter, passed } = wait;
        let has_happened = event == Event::Happened;
        match place {
            WaitPlace::Queue(queue, _) => self.removed(queue, usize::from(!has_happened)),
            WaitPlace::Deadline(_, to) => {
                *to = passed.map(|(number, at)| Passed { number, at, waiter });
            }
            WaitPlace::Moment(_) | WaitPlace::End(_) | WaitPlace::Socket(..) => {}
        }
        has_happened
    }

    // ANCHOR_END: waits

    fn notify(&self, queue: &WaitQueue, count: usize) -> usize {
        let mut notified = 0;
        while notified < count {
            let number = queue.waiters().first;
            let first = self.with(|state| {
                state.waits.values().find_map(|wait| match wait.event {
                    Event::FromQueue(of, permits) if of == number => Some(permits),
                    _ => None,
                })
            });
            let Some(permits) = first.filter(|permits| queue.grant(*permits)) else { break };
            self.with(|state| state.happen(Event::FromQueue(number, permits), 1, &self.local));
            self.removed(queue, 1);
            notified += 1;
        }
        notified
    }

    fn forget(&self, _: &WaitQueue) {}

    fn spawn(&self, task: &TaskRef, start: Start) -> bool {
        let is_taken = self.with(|state| {
            let id = TaskId(state.number().into());
            task.set_id(id);
            if !state.is_closing {
                state.tasks.insert(id, task.clone());
            }
            !state.is_closing
        });
        if is_taken {
            let is_nothing_doomed = self.with(|state| state.doomed.is_empty());
            match start {
                Start::AtOnce if is_nothing_doomed && self.local.may_begin_at_once() => {
                    self.step(task.clone());
                }
                Start::AtOnce | Start::Later => self.local.start(task),
                Start::WhenWoken => self.local.start_when_woken(task),
            }
        }
        is_taken
    }

    fn abort(&self, task: &TaskRef, outcome: TaskError) {
        if !task.is_ended() {
            self.with(|state| state.doomed.push_back((task.clone(), outcome)));
        }
    }

    fn open(&self, _: OpenSocket<'_>) -> io::Result<Opened<SocketId>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn attempt(&self, _: SocketId, _: Attempt<'_>) -> Option<io::Result<usize>> {
        Some(Err(Closed.into()))
    }

    fn outside(&self) -> &dyn Outside {
        self
    }
}

impl Outside for Naive {
    fn wall_time(&self) -> SystemTime {
        SystemTime::now()
    }

    fn random(&self, to: &mut [u8]) {
        system_random(to);
    }

    fn start_thread(&self, name: &str, life: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        system_thread(name, life)
    }

    fn system(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_closing(&self) -> bool {
        self.with(|state| state.is_closing)
    }

    fn blocking(&self, mut job: BlockingCall) {
        job.run();
    }

    fn lookup(&self, host: &str, port: u16, reply: Reply<Addresses>) {
        reply.send((host, port).to_socket_addrs().map(Iterator::collect));
    }
}
