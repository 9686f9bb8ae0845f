//! What a kernel must be able to do: the contract between a program and the kernel that runs it.
//!
//! A type that implements [`TrapHandler`] is a kernel. The crate's front page says what each trap
//! means, and `wait.rs` how a wait begins and ends. A kernel knows nothing of interruption but deadlines: the
//! futures of this crate apply its rules when they are polled (`cause.rs`).
//!
//! A kernel has two halves. The *near half* is a [`Local`], the same for every kernel: the current task, the
//! ready list, the chain of scopes, the numbers of moments. A step, or a trap that the near half can answer, costs
//! no call through a vtable. The *far half* is the rest: tables of timers, queues and sockets, and the outside. A
//! kernel owns a `Local`, and [`TrapHandler::local`] lends it.
//!
//! Methods take `&self`, and one may lead to another, so a kernel runs no user code while it holds a
//! borrow of its own state (I10). User code is: a poll; the drop of a future, an output or a closure;
//! the drop of the last [`TaskRef`], and so of a [`Waiter`]; a waker's clone, call or drop.
//! [`Local::notify`] runs none; [`Local::call_wakers`] does.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::task::Waker;
use std::time::SystemTime;

use pikake_time::{Deadline, Rate, Ticks, TimerKey};

use crate::blocking_call::BlockingCall;
use crate::catch::catch_and_log;
use crate::cause::Branch;
use crate::cell::Header;
use crate::cell::flags::Flags;
use crate::cell::ready::ReadyList;
use crate::cell::reference::TaskRef;
use crate::home::{Home, LocalHome};
use crate::interrupt::Interrupted;
use crate::names::{KernelId, SeenWait, TaskId, TrapKind, WaitKey};
use crate::queue::WaitQueue;
use crate::reply::Reply;
use crate::scope::Frame;
use crate::socket::{Addresses, Attempt, OpenSocket, Opened, SocketId};
use crate::sub_waits::SubWaits;
use crate::wait::{Begun, Collected, Disarmed, Wait, WaitEvent, Waiter};

pub(crate) mod steps;

/// A kernel: executes what tasks ask for.
///
/// All methods are called on the kernel's own thread. Those marked *current* act for the task that
/// is being stepped and are called inside a step only; the others also between steps and runs.
pub trait TrapHandler {
    /// The near half: always the same one.
    fn local(&self) -> &Local;

    /// A fresh reading of the kernel's clock.
    fn now(&self) -> Ticks;

    /// How the clock's ticks relate to durations.
    fn rate(&self) -> Rate;

    // --- waits ---------------------------------------------------------------------------------

    /// Executes a trap. *Current*, but for the timers of graces: a [`Wait::Sleep`] may also begin, and be
    /// collected, right after a step.
    fn begin(&self, wait: Wait<'_>, waiter: &Waiter) -> Begun;

    /// Collects the answer of a trap that waits, or binds its entry to the waiter of this poll.
    /// *Current*, as [`begin`](Self::begin).
    fn collect(&self, wait: Wait<'_>, key: WaitKey, waiter: &Waiter) -> Collected;

    /// Takes back a trap that waits.
    fn withdraw(&self, wait: Wait<'_>, key: WaitKey);

    /// Tells of a wait of a task that is [observed](TaskRef::set_observed).
    fn observe(&self, task: &TaskRef, kind: TrapKind, event: WaitEvent) {
        let _ = (task, kind, event);
    }

    /// Notifies up to `count` waiters of a queue in the order in which they came; tells how many.
    fn notify(&self, queue: &WaitQueue, count: usize) -> usize;

    /// Notifies waiters of a queue in the order in which they came, each when the permits that it waits for can be
    /// [granted](WaitQueue::grant).
    fn serve(&self, queue: &WaitQueue);

    /// The queue is dropped. Waiters that are still in it wait for ever.
    fn forget_waiters(&self, queue: &WaitQueue);

    // --- deadlines of scopes -------------------------------------------------------------------

    /// Sets a deadline. When it has passed, and the waits that were due no later have been notified,
    /// the kernel calls [`Local::deadline_passed`] with the waiter, once, and keeps the number.
    fn arm(&self, deadline: Deadline, waiter: Waiter) -> TimerKey;

    /// Whether an armed deadline has passed.
    fn has_passed(&self, timer: TimerKey) -> bool;

    /// Takes a deadline back.
    fn disarm(&self, timer: TimerKey) -> Option<Disarmed>;

    // --- tasks ---------------------------------------------------------------------------------

    /// Takes a new task in, numbers it ([`TaskRef::set_id`]) and lets it start in a later step.
    /// `false`: the kernel is shut down and will not run it.
    fn spawn(&self, task: &TaskRef) -> bool;

    /// Ends a task without another step of it: the kernel drops its future before the next step of
    /// any task.
    fn abort(&self, task: &TaskRef, reason: Interrupted);

    /// The task of that number, if it has not ended.
    fn find_task(&self, task: TaskId) -> Option<TaskRef>;

    // --- sockets -------------------------------------------------------------------------------

    /// Opens a socket, or takes one over.
    ///
    /// # Errors
    ///
    /// The system's; [`Unsupported`](io::ErrorKind::Unsupported) for what this kernel does not have.
    fn open(&self, what: OpenSocket<'_>) -> io::Result<Opened<SocketId>>;

    /// Attempts something on a socket, without waiting. `None`: it cannot be done now.
    fn attempt(&self, socket: SocketId, attempt: Attempt<'_>) -> Option<io::Result<usize>>;

    // --- the outside ---------------------------------------------------------------------------

    /// What is neither time nor sockets.
    fn outside(&self) -> &dyn Outside;
}

/// What a kernel answers for the world around it, besides time and sockets.
pub trait Outside {
    /// What the wall clock shows.
    fn wall_time(&self) -> SystemTime;

    /// Fills a buffer with random bytes.
    fn random(&self, to: &mut [u8]);

    /// Starts a thread that is not the kernel's, or refuses to.
    ///
    /// # Errors
    ///
    /// The system's; `Unsupported` where there are no threads. The closure has been dropped.
    fn start_thread(&self, name: &str, life: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// Whether the system that the process runs on is this kernel's outside: its files, processes
    /// and signals. A kernel that simulates the world refuses, with
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    ///
    /// # Errors
    ///
    /// The refusal.
    fn system(&self) -> io::Result<()>;

    /// Has the kernel let other threads run once before it sleeps next. See
    /// [`yield_thread_before_sleep`](crate::yield_thread_before_sleep). A kernel that never sleeps does nothing.
    fn yield_thread_before_sleep(&self) {}

    /// Runs a job on a helper thread, when one is free, those first that came first. It reports its
    /// end by itself. Dropped, it reports that it will not be run.
    fn blocking(&self, job: BlockingCall);

    /// Looks up the addresses of a host name.
    fn lookup(&self, host: &str, port: u16, reply: Reply<Addresses>);
}

/// How long interrupted code may still run, in ticks of the kernel's clock.
#[derive(Clone, Copy, Debug)]
pub struct Graces {
    /// How long cleanup may wait on foreign futures alone.
    pub foreign: u64,
    /// How long cleanup may take before it is reported.
    pub report: u64,
}

/// What one task may do in one step.
#[derive(Clone, Copy, Debug)]
pub struct Quotas {
    /// Attempts on sockets.
    pub attempts: u32,
    /// Waits that are answered at once.
    pub answers: u32,
}

/// Marks a moment in [`Local::pending`]: what was polled then is gone.
const GONE: u64 = 1 << 63;

/// The near half of a kernel. See the head of this file.
pub struct Local {
    home: LocalHome,
    id: KernelId,
    graces: Graces,
    quotas: Quotas,
    /// The kernel's own part, while it is entered or reached (`door.rs`).
    kernel: Cell<Option<NonNull<dyn TrapHandler>>>,
    /// The task whose future is being polled or dropped.
    task: Cell<Option<NonNull<Header>>>,
    /// The innermost scope that is being polled.
    scope: Cell<*const Frame>,
    ready: ReadyList,
    /// The number of the current or last step.
    step: Cell<u64>,
    /// The number of the last moment: a scope was opened, a cause came up, or, in a watched task, a wait was
    /// polled and is pending.
    moment: Cell<u64>,
    /// The last moment when the step began.
    step_began: Cell<u64>,
    attempts_left: Cell<u32>,
    answers_left: Cell<u32>,
    /// Something is to be done that hardly ever is; see [`Local::needs_attention`].
    attention: Cell<bool>,
    /// How often the current task was woken in this step; counted only while a wait of it is watched.
    wakes: Cell<u32>,
    /// The waits and shields of the current task that were polled in this step with its own waker, and are
    /// pending: the moment of the poll, marked if it is gone again. Kept while a wait is watched.
    pending: RefCell<Vec<u64>>,
    branch: Cell<Option<Branch>>,
    sub_waits: SubWaits,
    /// Wakers to be called as soon as nothing is borrowed.
    wakers: RefCell<Vec<Waker>>,
    /// Wakers to be called when the current step is over.
    after_step: RefCell<Vec<Waker>>,
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

    /// The kernel's own part.
    ///
    /// # Panics
    ///
    /// Outside the kernel, which whoever has a `Local` from the door is not.
    #[inline(always)]
    pub(crate) fn kernel(&self) -> &dyn TrapHandler {
        let kernel = self.kernel.get().expect("a kernel is reached through its door");
        // SAFETY: the pointer was made from an `Rc` that `enter` or `reach` borrow until they have
        // reset it, on every path. What comes back cannot outlive the borrow of `self`, and that comes
        // from the same `Rc` and ends before they reset it.
        unsafe { kernel.as_ref() }
    }

    /// The task whose future is being polled or dropped; `None` between steps.
    pub fn current(&self) -> Option<TaskRef> {
        Some(TaskRef::clone(&*self.polled()?))
    }

    /// The same, without a count: the reference must not outlive the step.
    #[inline(always)]
    pub(crate) fn polled(&self) -> Option<ManuallyDrop<TaskRef>> {
        let task = self.task.get()?;
        // SAFETY: whoever set it holds a reference to the task until it is reset, on every path,
        // on this thread. The reference made here is not counted, and not dropped.
        Some(ManuallyDrop::new(unsafe { TaskRef::from_header(task) }))
    }

    /// Whether that is the current task.
    pub(crate) fn is_current(&self, task: &TaskRef) -> bool {
        self.task.get() == Some(task.address())
    }

    /// The innermost scope that is being polled.
    pub(crate) fn innermost(&self) -> Option<&Frame> {
        // SAFETY: a frame is in the chain for the length of its poll only, during which its future
        // lends it out; what comes back cannot outlive the borrow of `self`, which whoever polls inside
        // of the scope got for less than that.
        unsafe { self.scope.get().as_ref() }
    }

    /// Makes a frame, which is being polled, the innermost scope, or what was that before.
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

    /// How often the current task was woken in this step.
    #[inline(always)]
    pub(crate) fn wakes(&self) -> u32 {
        self.wakes.get()
    }

    /// Sets the kernel's own part, or what was that before. For the door, which borrows the kernel meanwhile.
    pub(crate) fn replace_kernel(
        &self,
        kernel: Option<NonNull<dyn TrapHandler>>,
    ) -> Option<NonNull<dyn TrapHandler>> {
        self.kernel.replace(kernel)
    }

    // --- moments -------------------------------------------------------------------------------

    /// The number of a moment that comes now.
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

    #[inline(never)]
    fn make_watched_ready(&self, task: &TaskRef) {
        let flags = task.flags();
        if flags.has(Flags::WATCHED) && self.task.get() == Some(task.address()) {
            self.wakes.set(self.wakes.get() + 1);
        }
        if !flags.has(Flags::QUEUED | Flags::ENDED) {
            self.ready.push(task.clone());
        }
    }

    /// Has the current task made ready when its step is over.
    #[inline(always)]
    pub(crate) fn ask_again(&self, task: &TaskRef) {
        task.flags().set(Flags::AGAIN);
    }

    // --- notifying -----------------------------------------------------------------------------

    /// Has a waiter's future polled again: makes its task ready, or keeps its sub-wait's waker to be
    /// [called](Self::call_wakers). Runs no user code.
    #[inline(always)]
    pub fn notify(&self, waiter: &Waiter) {
        if waiter.sub_wait().is_none() {
            self.make_ready(waiter.task());
        } else {
            self.notify_sub_wait(waiter);
        }
    }

    /// [`notify`](Self::notify) of a waiter whose entry is gone. Gives back a waiter that is not needed: drop
    /// it where user code may run.
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
            // Its waker was called already, or it is polled with the task's own.
            None => self.make_ready(waiter.task()),
        }
    }

    pub(crate) fn add_wakers(&self, wakers: impl IntoIterator<Item = Waker>) {
        self.wakers.borrow_mut().extend(wakers);
        self.attention.set(true);
    }

    /// Calls the wakers that were collected. To be called after [`notify`](Self::notify), as soon as
    /// nothing of the kernel is borrowed.
    #[inline]
    pub fn call_wakers(&self) {
        if self.attention.get() {
            self.call_collected();
        }
    }

    #[cold]
    fn call_collected(&self) {
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

    /// Keeps a waker to be called when the current step is over.
    pub(crate) fn call_after_step(&self, waker: Waker) {
        self.after_step.borrow_mut().push(waker);
        self.attention.set(true);
    }

    /// Notes that something is to be done that hardly ever is. For the kernel.
    pub fn call_attention(&self) {
        self.attention.set(true);
    }

    /// Whether something may have to be done that hardly ever has: wakers to call, or what the kernel
    /// called attention to.
    #[inline(always)]
    pub fn needs_attention(&self) -> bool {
        self.attention.get()
    }

    /// The kernel has looked after all that needed it.
    pub fn attention_was_paid(&self) {
        let is_left = !self.wakers.borrow().is_empty() || !self.after_step.borrow().is_empty();
        self.attention.set(is_left);
    }

    /// Shows every pending wait that was polled with a combinator's waker.
    pub fn each_sub_wait(&self, show: impl FnMut(&TaskRef, SeenWait)) {
        self.sub_waits.each(show);
    }

    /// Notes a wait, or a shield, of the current task that was polled with its own waker and is
    /// pending. Gives the moment of the poll.
    #[inline(always)]
    pub(crate) fn note_pending(&self, task: &TaskRef) -> u64 {
        if !task.is_watched() {
            return self.moment.get();
        }
        let moment = self.next_moment();
        self.pending.borrow_mut().push(moment);
        moment
    }

    /// A wait that was polled last at that moment is over, gone, or polled again.
    pub(crate) fn forget_pending(&self, moment: u64) {
        let mut pending = self.pending.borrow_mut();
        if let Ok(place) = pending.binary_search_by_key(&moment, |noted| *noted & !GONE) {
            pending[place] |= GONE;
        }
    }

    /// Whether a wait, or a shield, was polled after that moment and is pending.
    pub(crate) fn has_pending_since(&self, moment: u64) -> bool {
        let mut pending = self.pending.borrow_mut();
        while pending.last().is_some_and(|noted| noted & GONE != 0) {
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

    /// Outside a step nobody is kept waiting.
    #[inline(always)]
    pub(crate) fn refill_outside_steps(&self) {
        if self.task.get().is_none() {
            self.refill();
        }
    }

    /// Takes one of the attempts that the current task may make in this step; `false`: none is left.
    #[inline(always)]
    pub fn take_attempt(&self) -> bool {
        take_one(&self.attempts_left)
    }

    /// Takes one of the waits that may be answered at once in this step; `false`: none is left.
    #[inline(always)]
    pub fn take_answer(&self) -> bool {
        take_one(&self.answers_left)
    }
}

#[inline(always)]
fn take_one(left: &Cell<u32>) -> bool {
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
