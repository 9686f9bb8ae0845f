//! The contract between a program and the kernel that runs the program.
//!
//! A type that implements [`TrapHandler`] is a kernel. The crate's front page specifies each trap,
//! and `wait.rs` how a wait begins and ends. A kernel knows deadlines, and nothing else of
//! interruption: the futures of this crate apply the rules of interruption when they are polled
//! (`cause.rs`).
//!
//! A kernel has two halves. The *near half* is a [`Local`], the same for every kernel: the current
//! task, the ready list, the chain of scopes, the numbers of moments. A step, or a trap that the
//! near half can answer, costs no call through a vtable. The *far half* is the rest: tables of
//! timers, queues and sockets, and the outside. A kernel owns a `Local`, and [`TrapHandler::local`]
//! lends it.
//!
//! Methods take `&self`, and user code may call them, so a kernel runs no user code while it
//! borrows its own state (I10). User code is: a poll; the drop of a future, an output or a closure;
//! the drop of the last [`TaskRef`], and so of a [`Waiter`]; a waker's clone, call or drop.
//! [`Local::notify`] runs no user code; [`Local::call_wakers`] does.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use pikake_time::{Deadline, Rate, Ticks, TimerKey};

use crate::blocking_call::BlockingCall;
use crate::catch::catch_and_log;
use crate::cause::Branch;
use crate::cell::Header;
use crate::cell::flags::Flags;
use crate::cell::ready::ReadyList;
use crate::cell::reference::TaskRef;
use crate::figures::Kept;
use crate::home::{Home, LocalHome};
use crate::inspect::Inspect;
use crate::interrupt::Interrupted;
use crate::names::{KernelId, TaskId, TrapKind, WaitKey};
use crate::queue::WaitQueue;
use crate::reply::Reply;
use crate::scope::Frame;
use crate::seen::SeenWait;
use crate::socket::{Addresses, Attempt, OpenSocket, Opened, SocketId};
use crate::sub_waits::SubWaits;
use crate::wait::{Begun, Collected, Disarmed, Wait, WaitEvent, Waiter};

pub(crate) mod steps;

/// A kernel: executes the traps of tasks.
///
/// All methods are called on the kernel's own thread. Methods marked *current* act for the task
/// that is being stepped and are called inside a step only; the others also between steps and runs.
pub trait TrapHandler {
    /// The near half: always the same one.
    fn local(&self) -> &Local;

    /// A fresh reading of the kernel's clock.
    fn now(&self) -> Ticks;

    /// The rate that converts ticks of the clock to durations.
    fn rate(&self) -> Rate;

    // --- waits ---------------------------------------------------------------------------------

    /// Executes a trap. *Current*; only a [`Wait::Sleep`] for a grace may also begin, and be
    /// collected, right after a step.
    fn begin(&self, wait: Wait<'_>, waiter: &Waiter) -> Begun;

    /// Collects the answer of a waiting trap, or binds its entry to the waiter of this poll.
    /// *Current*, as [`begin`](Self::begin).
    fn collect(&self, wait: Wait<'_>, key: WaitKey, waiter: &Waiter) -> Collected;

    /// Withdraws a waiting trap.
    fn withdraw(&self, wait: Wait<'_>, key: WaitKey);

    /// Reports an event of a wait of an [observed](TaskRef::set_observed) task.
    fn observe(&self, task: &TaskRef, kind: TrapKind, event: WaitEvent) {
        let _ = (task, kind, event);
    }

    /// Reports that an [observed](TaskRef::set_observed) task was made ready, this long ago.
    /// Nothing of the kernel is borrowed. See [`Local::report_wakes`].
    fn woken(&self, task: &TaskRef, ago: Duration) {
        let _ = (task, ago);
    }

    /// Notifies up to `count` waiters of a queue in the order of their arrival. Returns the number
    /// notified.
    fn notify(&self, queue: &WaitQueue, count: usize) -> usize;

    /// Notifies waiters of a queue in the order of their arrival, for as long as their permits can
    /// be [granted](WaitQueue::grant).
    fn serve(&self, queue: &WaitQueue);

    /// The task of a waiter that was [granted](WaitQueue::grant) permits of a queue and has not
    /// collected them. For listings; by default, a kernel does not know it.
    fn granted_to(&self, queue: &WaitQueue) -> Option<TaskRef> {
        let _ = queue;
        None
    }

    /// The moment that ends a wait of the kind [`Wait::Sleep`] or [`Wait::Elapse`]. For listings;
    /// by default, a kernel does not know it.
    fn due(&self, key: WaitKey) -> Option<Deadline> {
        let _ = key;
        None
    }

    /// Removes the waiters of a queue that is being dropped. These waiters wait for ever.
    fn forget_waiters(&self, queue: &WaitQueue);

    // --- deadlines of scopes -------------------------------------------------------------------

    /// Sets a deadline. When the deadline has passed, the kernel first notifies the waits that were
    /// due no later. Then the kernel calls [`Local::deadline_passed`] with the waiter, once, and
    /// keeps the number.
    fn arm(&self, deadline: Deadline, waiter: Waiter) -> TimerKey;

    /// Whether an armed deadline has passed.
    fn has_passed(&self, timer: TimerKey) -> bool;

    /// Removes a deadline.
    fn disarm(&self, timer: TimerKey) -> Option<Disarmed>;

    // --- tasks ---------------------------------------------------------------------------------

    /// Adds a new task, numbers the task ([`TaskRef::set_id`]) and makes it ready. `false`: the
    /// kernel is shut down and refuses the task.
    fn spawn(&self, task: &TaskRef) -> bool;

    /// Ends a task without another step: the kernel drops the task's future before the next step of
    /// any task.
    fn abort(&self, task: &TaskRef, reason: Interrupted);

    /// The task with this number, if it has not ended. For listings; a kernel with many tasks may
    /// know only those that [`tasks_from`](crate::inspect::tasks_from) has shown.
    fn find_task(&self, task: TaskId) -> Option<TaskRef>;

    // --- sockets -------------------------------------------------------------------------------

    /// Opens a socket, or takes one over.
    ///
    /// # Errors
    ///
    /// The system's; [`Unsupported`](io::ErrorKind::Unsupported) for a kind that this kernel does
    /// not have.
    fn open(&self, what: OpenSocket<'_>) -> io::Result<Opened<SocketId>>;

    /// Makes an attempt on a socket, without waiting. `None`: the attempt would block, or is
    /// deferred.
    fn attempt(&self, socket: SocketId, attempt: Attempt<'_>) -> Option<io::Result<usize>>;

    // --- the outside ---------------------------------------------------------------------------

    /// The outside, except for the clock and sockets.
    fn outside(&self) -> &dyn Outside;

    // --- listings ------------------------------------------------------------------------------

    /// The part of the kernel that lists its tasks; `None` if the kernel cannot be looked into.
    fn inspect(&self) -> Option<&dyn Inspect> {
        None
    }
}

/// The outside of a kernel, except for its clock and sockets.
pub trait Outside {
    /// The time of the wall clock.
    fn wall_time(&self) -> SystemTime;

    /// Fills a buffer with random bytes.
    fn random(&self, to: &mut [u8]);

    /// Starts a thread of the program's own, which runs `body`.
    ///
    /// # Errors
    ///
    /// The system's; `Unsupported` where there are no threads. The closure has been dropped.
    fn start_thread(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// `Ok` if this kernel's tasks may use the system of the process: files, processes and signals.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](io::ErrorKind::Unsupported), from a kernel that simulates the world.
    fn system(&self) -> io::Result<()>;

    /// Makes the kernel let other threads run once before it sleeps next. See
    /// [`yield_thread_before_sleep`](crate::yield_thread_before_sleep). A kernel that never sleeps
    /// does nothing.
    fn yield_thread_before_sleep(&self) {}

    /// Runs a call on a helper thread, as soon as one is free, in the order of the calls. A call
    /// replies when it is dropped, also if it did not run.
    fn blocking(&self, call: BlockingCall);

    /// Looks up the addresses of a host name.
    fn lookup(&self, host: &str, port: u16, reply: Reply<Addresses>);
}

/// The time limits of interrupted code, in ticks of the kernel's clock.
#[derive(Clone, Copy, Debug)]
pub struct Graces {
    /// The longest time that cleanup may wait on foreign futures alone.
    pub foreign: u64,
    /// The time after which slow cleanup is reported.
    pub report: u64,
}

/// The limits of one task in one step.
#[derive(Clone, Copy, Debug)]
pub struct Quotas {
    /// Attempts on sockets.
    pub attempts: u32,
    /// Waits that are answered at once.
    pub answers: u32,
}

/// Marks a moment in [`Local::pending`]: the wait that was polled then is over.
const OVER: u64 = 1 << 63;

/// The near half of a kernel. See the head of this file.
pub struct Local {
    home: LocalHome,
    id: KernelId,
    graces: Graces,
    quotas: Quotas,
    /// The far half, while the kernel is entered or reached (`door.rs`).
    kernel: Cell<Option<NonNull<dyn TrapHandler>>>,
    /// The task whose future is being polled or dropped.
    task: Cell<Option<NonNull<Header>>>,
    /// The innermost scope that is being polled.
    scope: Cell<*const Frame>,
    ready: ReadyList,
    /// The number of the current or last step.
    step: Cell<u64>,
    /// The number of the last moment: a scope was opened, a cause came up, or, in a watched task, a
    /// poll of a wait was pending.
    moment: Cell<u64>,
    /// The last moment before the current step began.
    step_began: Cell<u64>,
    attempts_left: Cell<u32>,
    answers_left: Cell<u32>,
    /// Rare work is due; see [`Local::needs_attention`].
    attention: Cell<bool>,
    /// The number of wakes of the current task in this step; counted only for a watched task.
    wakes: Cell<u32>,
    /// The moments of this step's pending polls of waits and shields with the current task's own
    /// waker. A moment is marked [`OVER`] when its wait ends. Kept only for a watched task.
    pending: RefCell<Vec<u64>>,
    branch: Cell<Option<Branch>>,
    sub_waits: SubWaits,
    /// Wakers to call as soon as nothing is borrowed.
    wakers: RefCell<Vec<Waker>>,
    /// Wakers to call when the current step is over.
    after_step: RefCell<Vec<Waker>>,
    /// The figures that services keep.
    figures: RefCell<Vec<Kept>>,
    /// Wakes of observed tasks to report as soon as nothing is borrowed.
    woken: RefCell<Vec<Woken>>,
}

/// A wake of an observed task.
struct Woken {
    task: TaskRef,
    /// The reading of the kernel's clock when the task was made ready.
    at: Ticks,
    /// The moment of the call of the waker, if that was on another thread.
    sent: Option<Instant>,
}

impl Local {
    /// The near half of a new kernel.
    pub fn new(home: LocalHome, graces: Graces, quotas: Quotas) -> Self {
        Self {
            id: home.id(),
            home,
            graces,
            quotas,
            kernel: Cell::new(None),
            task: Cell::new(None),
            scope: Cell::new(ptr::null()),
            ready: ReadyList::default(),
            step: Cell::new(0),
            moment: Cell::new(0),
            step_began: Cell::new(0),
            attempts_left: Cell::new(u32::MAX),
            answers_left: Cell::new(u32::MAX),
            attention: Cell::new(false),
            wakes: Cell::new(0),
            pending: RefCell::default(),
            branch: Cell::new(None),
            sub_waits: SubWaits::default(),
            wakers: RefCell::default(),
            after_step: RefCell::default(),
            figures: RefCell::default(),
            woken: RefCell::default(),
        }
    }

    /// The kernel's address for other threads.
    #[inline]
    pub fn home(&self) -> &LocalHome {
        &self.home
    }

    #[inline(always)]
    pub(crate) fn id(&self) -> KernelId {
        self.id
    }

    pub(crate) fn graces(&self) -> Graces {
        self.graces
    }

    #[inline(always)]
    pub(crate) fn is_home(&self, home: NonNull<Home>) -> bool {
        ptr::eq(home.as_ptr(), &raw const **self.home.shared())
    }

    /// The far half.
    ///
    /// # Panics
    ///
    /// Outside the kernel; never for a `Local` from the door.
    #[inline(always)]
    pub(crate) fn kernel(&self) -> &dyn TrapHandler {
        let kernel = self.kernel.get().expect("a kernel is reached through its door");
        // SAFETY: the pointer was made from an `Rc` that `enter` or `reach` borrow until they have
        // reset the pointer, on every path. The returned borrow cannot outlive that of `self`,
        // which comes from the same `Rc` and ends before the reset.
        unsafe { kernel.as_ref() }
    }

    /// The task whose future is being polled or dropped; `None` between steps.
    pub fn current(&self) -> Option<TaskRef> {
        Some(TaskRef::clone(&*self.current_uncounted()?))
    }

    /// The current task, as an uncounted reference, which must not outlive the step.
    #[inline(always)]
    pub(crate) fn current_uncounted(&self) -> Option<ManuallyDrop<TaskRef>> {
        let task = self.task.get()?;
        // SAFETY: the code that set the pointer holds a reference to the task until it resets the
        // pointer, on every path, on this thread. The reference made here is not counted, and not
        // dropped.
        Some(ManuallyDrop::new(unsafe { TaskRef::from_header(task) }))
    }

    /// Whether the task is the current one.
    pub(crate) fn is_current(&self, task: &TaskRef) -> bool {
        self.task.get() == Some(task.address())
    }

    /// The innermost scope that is being polled.
    pub(crate) fn innermost(&self) -> Option<&Frame> {
        // SAFETY: a frame is in the chain for the length of its poll only, during which its future
        // lends it out. The returned borrow cannot outlive that of `self`, and code that is polled
        // inside of the scope borrows `self` for less than that poll.
        unsafe { self.scope.get().as_ref() }
    }

    /// Sets the innermost scope to a frame that is being polled, and returns the previous one.
    #[inline(always)]
    pub(crate) fn replace_scope(&self, frame: *const Frame) -> *const Frame {
        self.scope.replace(frame)
    }

    #[inline(always)]
    pub(crate) fn branch(&self) -> Option<Branch> {
        self.branch.get()
    }

    #[inline(always)]
    pub(crate) fn set_branch(&self, branch: Option<Branch>) {
        self.branch.set(branch);
    }

    #[inline(always)]
    pub(crate) fn sub_waits(&self) -> &SubWaits {
        &self.sub_waits
    }

    pub(crate) fn figures(&self) -> &RefCell<Vec<Kept>> {
        &self.figures
    }

    /// The number of wakes of the current task in this step.
    #[inline(always)]
    pub(crate) fn wakes(&self) -> u32 {
        self.wakes.get()
    }

    /// Sets the far half, and returns the previous one. For the door, which borrows the kernel
    /// meanwhile.
    pub(crate) fn replace_kernel(
        &self,
        kernel: Option<NonNull<dyn TrapHandler>>,
    ) -> Option<NonNull<dyn TrapHandler>> {
        self.kernel.replace(kernel)
    }

    // --- moments -------------------------------------------------------------------------------

    /// Counts one more moment, and returns its number.
    #[inline]
    pub(crate) fn next_moment(&self) -> u64 {
        let moment = self.moment.get() + 1;
        self.moment.set(moment);
        moment
    }

    #[inline(always)]
    pub(crate) fn moment(&self) -> u64 {
        self.moment.get()
    }

    /// The last moment before the current step began.
    pub(crate) fn step_began(&self) -> u64 {
        self.step_began.get()
    }

    /// The number of the current or last step.
    #[inline(always)]
    pub fn step_number(&self) -> u64 {
        self.step.get()
    }

    // --- the ready list ------------------------------------------------------------------------

    /// Tasks that may be stepped.
    #[inline]
    pub fn ready(&self) -> &ReadyList {
        &self.ready
    }

    /// Makes a task ready, unless it is ready already or has ended (I6).
    #[inline(always)]
    pub fn make_ready(&self, task: &TaskRef) {
        let flags = task.flags();
        if flags.has(Flags::QUEUED | Flags::ENDED | Flags::WATCHED) {
            return self.make_watched_ready(task);
        }
        self.ready.push(task.clone());
    }

    /// [Makes a task ready](Self::make_ready) for a wake of another thread.
    /// [`RemoteWake::sent`](crate::RemoteWake::sent) is the moment of the wake.
    #[inline]
    pub fn make_ready_by(&self, task: &TaskRef, sent: Option<Instant>) {
        match sent {
            None => self.make_ready(task),
            Some(_) => self.make_watched_ready_by(task, sent),
        }
    }

    #[inline(never)]
    fn make_watched_ready(&self, task: &TaskRef) {
        self.make_watched_ready_by(task, None);
    }

    fn make_watched_ready_by(&self, task: &TaskRef, sent: Option<Instant>) {
        let flags = task.flags();
        if flags.has(Flags::WATCHED) && self.task.get() == Some(task.address()) {
            self.wakes.set(self.wakes.get() + 1);
        }
        if !flags.has(Flags::QUEUED | Flags::ENDED) {
            // Neither a spawn nor a look is a wake.
            if flags.has(Flags::OBSERVED) && task.was_stepped() && !task.is_looked_at() {
                let at = self.kernel().now();
                self.woken.borrow_mut().push(Woken { task: task.clone(), at, sent });
                self.attention.set(true);
            }
            self.ready.push(task.clone());
        }
    }

    /// Makes the current task ready when its step is over.
    #[inline(always)]
    pub(crate) fn make_ready_after_step(&self, task: &TaskRef) {
        task.flags().set(Flags::AGAIN);
    }

    // --- notifying -----------------------------------------------------------------------------

    /// Makes a waiter's task ready, or keeps the waker of the waiter's sub-wait for
    /// [`call_wakers`](Self::call_wakers). Runs no user code.
    #[inline(always)]
    pub fn notify(&self, waiter: &Waiter) {
        if waiter.sub_wait().is_none() {
            self.make_ready(waiter.task());
        } else {
            self.notify_sub_wait(waiter);
        }
    }

    /// [Notifies](Self::notify) a waiter whose entry is gone. Drop a returned waiter where user
    /// code may run.
    #[inline(always)]
    pub fn notify_owned(&self, waiter: Waiter) -> Option<Waiter> {
        let flags = waiter.task().flags();
        if waiter.sub_wait().is_none() && !flags.has(Flags::QUEUED | Flags::ENDED | Flags::WATCHED)
        {
            self.ready.push(waiter.into_task());
            None
        } else {
            self.notify(&waiter);
            Some(waiter)
        }
    }

    #[inline(never)]
    fn notify_sub_wait(&self, waiter: &Waiter) {
        match self.sub_waits.take_waker(waiter.sub_wait()) {
            Some(waker) => self.add_wakers([waker]),
            // The sub-wait's waker was called already, or its last poll had the task's own waker.
            None => self.make_ready(waiter.task()),
        }
    }

    pub(crate) fn add_wakers(&self, wakers: impl IntoIterator<Item = Waker>) {
        self.wakers.borrow_mut().extend(wakers);
        self.attention.set(true);
    }

    /// Calls the wakers that were collected. Call this after [`notify`](Self::notify), as soon as
    /// nothing of the kernel is borrowed.
    #[inline]
    pub fn call_wakers(&self) {
        if self.attention.get() {
            self.call_collected_wakers();
        }
    }

    /// Reports wakes of observed tasks to the kernel ([`TrapHandler::woken`]). The kernel calls
    /// this right before and right after each step that observers see, and
    /// [`call_wakers`](Self::call_wakers) does. Tasks that have ended since are left out.
    #[inline(never)]
    pub fn report_wakes(&self) {
        let woken = std::mem::take(&mut *self.woken.borrow_mut());
        for Woken { task, at, sent } in woken.into_iter().filter(|woken| !woken.task.is_ended()) {
            let kernel = self.kernel();
            let here = || kernel.rate().duration_floor(kernel.now().since(at));
            kernel.woken(&task, sent.map_or_else(here, |sent| sent.elapsed()));
        }
    }

    #[cold]
    fn call_collected_wakers(&self) {
        self.report_wakes();
        loop {
            let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
            if wakers.is_empty() {
                return;
            }
            for waker in wakers {
                catch_and_log("a combinator's waker", || waker.wake());
            }
        }
    }

    /// Keeps a waker, to call it when the current step is over.
    pub(crate) fn call_after_step(&self, waker: Waker) {
        self.after_step.borrow_mut().push(waker);
        self.attention.set(true);
    }

    /// Notes that rare work is due, for example a task to drop. For the kernel.
    pub fn call_attention(&self) {
        self.attention.set(true);
    }

    /// Whether rare work may be due: wakers to call, or work for which the kernel
    /// [called attention](Self::call_attention).
    #[inline(always)]
    pub fn needs_attention(&self) -> bool {
        self.attention.get()
    }

    /// Notes that the kernel has done the work for which it had called attention.
    pub fn clear_attention(&self) {
        let is_left = !self.wakers.borrow().is_empty()
            || !self.after_step.borrow().is_empty()
            || !self.woken.borrow().is_empty();
        self.attention.set(is_left);
    }

    /// Shows every pending wait that was polled with a combinator's waker.
    pub fn each_sub_wait(&self, show: impl FnMut(&TaskRef, SeenWait)) {
        self.sub_waits.each(show);
    }

    /// Notes a pending poll of a wait or a shield of the current task, with the task's own waker.
    /// Returns the moment of the poll.
    #[inline(always)]
    pub(crate) fn note_pending(&self, task: &TaskRef) -> u64 {
        if !task.is_watched() {
            return self.moment.get();
        }
        let moment = self.next_moment();
        self.pending.borrow_mut().push(moment);
        moment
    }

    /// Marks the wait whose last poll was at this moment: it is over, dropped, or polled again.
    pub(crate) fn forget_pending(&self, moment: u64) {
        let mut pending = self.pending.borrow_mut();
        if let Ok(index) = pending.binary_search_by_key(&moment, |noted| *noted & !OVER) {
            pending[index] |= OVER;
        }
    }

    /// Whether a wait or a shield that was polled after this moment is pending.
    pub(crate) fn has_pending_since(&self, moment: u64) -> bool {
        let mut pending = self.pending.borrow_mut();
        while pending.last().is_some_and(|noted| noted & OVER != 0) {
            pending.pop();
        }
        pending.last().is_some_and(|noted| *noted > moment)
    }

    // --- quotas --------------------------------------------------------------------------------

    #[inline(always)]
    fn refill(&self) {
        self.attempts_left.set(self.quotas.attempts);
        self.answers_left.set(self.quotas.answers);
    }

    /// Refills the quotas outside of steps, where an attempt delays no task.
    #[inline(always)]
    pub(crate) fn refill_outside_steps(&self) {
        if self.task.get().is_none() {
            self.refill();
        }
    }

    /// Spends one of the attempts that the current task may make in this step; `false`: none is
    /// left.
    #[inline(always)]
    pub fn take_attempt(&self) -> bool {
        spend_one(&self.attempts_left)
    }

    /// Spends one of the answers that the current task may get at once in this step; `false`: none
    /// is left.
    #[inline(always)]
    pub fn take_answer(&self) -> bool {
        spend_one(&self.answers_left)
    }
}

#[inline(always)]
fn spend_one(left: &Cell<u32>) -> bool {
    let count = left.get();
    left.set(count.saturating_sub(1));
    count > 0
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("kernel", &self.id)
            .field("step", &self.step.get())
            .field("ready", &self.ready.len())
            .finish_non_exhaustive()
    }
}
