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
use pikake::time::{Deadline, Rate, Ticks, TimerKey};
use pikake::traps::{
    Addresses, Attempt, Begun, BlockingCall, Closed, Collected, Disarmed, Graces, Home,
    Interrupted, Local, Message, OpenSocket, Opened, Outside, Quotas, Reply, SocketId, TaskError,
    TaskId, TaskRef, TrapHandler, Until, Wait, WaitKey, WaitQueue, Waiter, WaiterList, borrowing,
    door, system_random, system_thread,
};

/// One tick is one nanosecond.
const RATE: Rate = Rate::NANOS;

/// More turns than a case makes that comes to an end.
const MOST_TURNS: u32 = 100_000;

/// The event that satisfies a wait.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    Moment(u64),
    /// A signal of this queue.
    SignalOf(u32),
    /// So many permits of this queue.
    PermitsOf(u32, usize),
    EndOf(TaskId),
    Happened,
}

#[derive(Debug)]
struct Waiting {
    event: Event,
    waiter: Waiter,
}

#[derive(Default, Debug)]
struct State {
    now: u64,
    last_number: u32,
    turns: u32,
    is_closing: bool,
    tasks: BTreeMap<TaskId, TaskRef>,
    doomed: VecDeque<(TaskRef, Interrupted)>,
    /// By number, in the order in which the waits began.
    waits: BTreeMap<u32, Waiting>,
    /// Armed deadlines of scopes, by number.
    deadlines: BTreeMap<u32, (u64, Waiter)>,
    passed: BTreeMap<u32, Disarmed>,
}

impl State {
    fn number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    fn add(&mut self, event: Event, waiter: &Waiter) -> WaitKey {
        let number = self.number();
        self.waits.insert(number, Waiting { event, waiter: waiter.clone() });
        WaitKey(number.into())
    }

    fn moment(&self, until: Until) -> u64 {
        match until {
            Until::After(length) => self.now.saturating_add(RATE.ticks_ceil(length)),
            Until::At(deadline) => deadline.ticks().get(),
        }
    }

    /// The next moment at which something is due.
    fn next_moment(&self) -> Option<u64> {
        let sleeps = self.waits.values().filter_map(|wait| match wait.event {
            Event::Moment(at) => Some(at),
            _ => None,
        });
        sleeps.chain(self.deadlines.values().map(|(at, _)| *at)).min()
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
        let due = self.waits.iter().filter_map(|(number, wait)| match wait.event {
            Event::Moment(at) if at <= self.now => Some((at, *number)),
            _ => None,
        });
        let mut due: Vec<_> = due.collect();
        due.sort_unstable();
        for (_, number) in due {
            let wait = self.waits.get_mut(&number).expect("listed above");
            wait.event = Event::Happened;
            local.notify(&wait.waiter);
        }
    }

    fn pass_deadlines(&mut self, local: &Local) {
        let due = self.deadlines.iter().filter(|(_, (at, _))| *at <= self.now);
        let mut due: Vec<_> = due.map(|(number, (at, _))| (*at, *number)).collect();
        due.sort_unstable();
        for (_, number) in due {
            let (_, waiter) = self.deadlines.remove(&number).expect("listed above");
            let passed = Some((local.deadline_passed(&waiter), Ticks::new(self.now)));
            self.passed.insert(number, Disarmed { waiter, passed });
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
                kernel.spawn(main);
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
                kernel.abort(&task, Interrupted::cancelled("the grace is over"));
            }
            kernel.bury();
            drop(kernel.local.home().close());
        });
    }

    /// Lets time pass during a step.
    pub(crate) fn advance(&self, length: Duration) {
        self.kernel.with(|state| state.now = state.now.saturating_add(RATE.ticks_ceil(length)));
    }

    pub(crate) fn tasks_and_waits_left(&self) -> (usize, usize) {
        self.kernel.with(|state| (state.tasks.len(), state.deadlines.len() + state.passed.len()))
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

    /// The number of a queue, and one waiter more in it: for permits, or for a signal.
    fn enter(&self, queue: &WaitQueue, is_for_permits: bool) -> u32 {
        queue.join_kernel(self.local.home().id());
        let number = queue.waiters().first;
        let is_other = |wait: &Waiting| match wait.event {
            Event::SignalOf(of) => is_for_permits && of == number,
            Event::PermitsOf(of, _) => !is_for_permits && of == number,
            _ => false,
        };
        assert!(
            !self.with(|state| state.waits.values().any(is_other)),
            "a wait queue cannot serve waiters for signals and for permits at once"
        );
        let WaiterList { mut first, last } = queue.waiters();
        if first == WaiterList::NONE {
            first = self.with(State::number);
        }
        queue.waiters_added(1, WaiterList { first, last });
        first
    }

    /// So many waiters have left a queue.
    fn leave(&self, queue: &WaitQueue, count: usize) {
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
        while let Some((task, why)) = self.with(|state| state.doomed.pop_front()) {
            if !task.is_ended() {
                task.abandon(TaskError::Cancelled(why));
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
    fn begin(&self, wait: Wait<'_>, waiter: &Waiter) -> Begun {
        let event = match wait {
            Wait::Sleep(until) | Wait::Elapse(until) => {
                let (at, now) = self.with(|state| (state.moment(until), state.now));
                match (at <= now, wait) {
                    (true, Wait::Sleep(_)) => return Begun::NextStep,
                    (true, _) => return Begun::Answered,
                    (false, _) => Event::Moment(at),
                }
            }
            Wait::Park(queue) => Event::SignalOf(self.enter(queue, false)),
            Wait::Take(queue, count) => {
                queue.join_kernel(self.local.home().id());
                if queue.try_take(count) {
                    return Begun::Answered;
                }
                Event::PermitsOf(self.enter(queue, true), count)
            }
            Wait::Join(task) if task.is_ended() => return Begun::Answered,
            Wait::Join(task) => Event::EndOf(task.id()),
            Wait::Attempt(_, _, outcome) => {
                outcome.set(Err(Closed.into()));
                return Begun::Answered;
            }
            _ => return Begun::Never,
        };
        Begun::Entry(self.with(|state| state.add(event, waiter)))
    }

    fn collect(&self, wait: Wait<'_>, key: WaitKey, waiter: &Waiter) -> Collected {
        let number = key.0 as u32;
        let (collected, left) = self.with(|state| {
            let wait = state.waits.get_mut(&number).expect("it was not collected before");
            if wait.event == Event::Happened {
                let left = state.waits.remove(&number).map(|wait| wait.waiter);
                return (Collected::Answered, left);
            }
            let before = std::mem::replace(&mut wait.waiter, waiter.clone());
            (Collected::Pending, Some(before))
        });
        drop(left);
        if let (Wait::Take(queue, count), Collected::Answered) = (wait, collected) {
            queue.collected(count);
        }
        collected
    }

    fn withdraw(&self, wait: Wait<'_>, key: WaitKey) {
        let left = self.with(|state| state.waits.remove(&(key.0 as u32)));
        let has_happened = left.as_ref().is_some_and(|left| left.event == Event::Happened);
        match wait {
            Wait::Park(queue) if has_happened => {
                self.notify(queue, 1);
            }
            Wait::Take(queue, count) if has_happened => queue.returned(count),
            Wait::Park(queue) | Wait::Take(queue, _) => self.leave(queue, 1),
            _ => {}
        }
        drop(left);
        self.local.call_wakers();
    }

    // ANCHOR_END: waits

    fn notify(&self, queue: &WaitQueue, count: usize) -> usize {
        let event = Event::SignalOf(queue.waiters().first);
        let notified = self.with(|state| state.happen(event, count, &self.local));
        self.leave(queue, notified);
        notified
    }

    fn serve(&self, queue: &WaitQueue) {
        let number = queue.waiters().first;
        loop {
            let first = self.with(|state| {
                state.waits.values().find_map(|wait| match wait.event {
                    Event::PermitsOf(of, count) if of == number => Some(count),
                    _ => None,
                })
            });
            let Some(count) = first.filter(|count| queue.grant(*count)) else { return };
            self.with(|state| state.happen(Event::PermitsOf(number, count), 1, &self.local));
            self.leave(queue, 1);
        }
    }

    fn forget_waiters(&self, _: &WaitQueue) {}

    fn arm(&self, deadline: Deadline, waiter: Waiter) -> TimerKey {
        self.with(|state| {
            let number = state.number();
            state.deadlines.insert(number, (deadline.ticks().get(), waiter));
            TimerKey::from_bits(u64::from(number) << u32::BITS).expect("numbers start at one")
        })
    }

    fn has_passed(&self, timer: TimerKey) -> bool {
        self.with(|state| state.passed.contains_key(&number_of(timer)))
    }

    fn disarm(&self, timer: TimerKey) -> Option<Disarmed> {
        self.with(|state| match state.deadlines.remove(&number_of(timer)) {
            Some((_, waiter)) => Some(Disarmed { waiter, passed: None }),
            None => state.passed.remove(&number_of(timer)),
        })
    }

    fn spawn(&self, task: &TaskRef) -> bool {
        let is_taken = self.with(|state| {
            let id = TaskId(state.number().into());
            task.set_id(id);
            if !state.is_closing {
                state.tasks.insert(id, task.clone());
            }
            !state.is_closing
        });
        if is_taken {
            self.local.make_ready(task);
        }
        is_taken
    }

    fn abort(&self, task: &TaskRef, reason: Interrupted) {
        self.with(|state| state.doomed.push_back((task.clone(), reason)));
    }

    fn find_task(&self, task: TaskId) -> Option<TaskRef> {
        self.with(|state| state.tasks.get(&task).cloned())
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

fn number_of(timer: TimerKey) -> u32 {
    (timer.to_bits() >> u32::BITS) as u32
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

    fn blocking(&self, mut job: BlockingCall) {
        job.run();
    }

    fn lookup(&self, host: &str, port: u16, reply: Reply<Addresses>) {
        reply.send((host, port).to_socket_addrs().map(Iterator::collect));
    }
}
