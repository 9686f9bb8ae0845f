//! The near half of a kernel: what every trap and every step look at.
//!
//! It is the same for every kernel and reached through one thread-local pointer, so a trap that can
//! be answered from here, and each step, cost no call through a table of functions. A kernel opens
//! the door to its near half for the length of a turn with [`door::enter`]; the thread then has a
//! current kernel, and every trap goes to that one. The door is not found through the `Waker`,
//! because combinators such as `FuturesUnordered` poll their children with wakers of their own.
//!
//! A few things must reach a kernel from outside a turn, on the same thread: a future that is dropped
//! between two runs takes its wait back, a wait queue gives its number back. For them a kernel is also
//! listed in its thread's directory for as long as it lives ([`door::register`]). Once it is gone they
//! find nothing, and do nothing.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::task::Waker;

use crate::cause::Branch;
use crate::cell::{Header, TaskId};
use crate::contract::{TrapHandler, TrapKind, Waiter};
use crate::flags::Flags;
use crate::home::{Home, KernelId, LocalHome};
use crate::interrupt::Interrupted;
use crate::quiet::quietly;
use crate::ready::ReadyList;
use crate::scope::Frame;
use crate::sub_waits::SubWaits;
use crate::task_ref::TaskRef;

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
    /// The far half, while the door is open.
    kernel: Cell<Option<NonNull<dyn TrapHandler>>>,
    /// The task whose future is being polled or dropped.
    task: Cell<Option<NonNull<Header>>>,
    /// The innermost scope that is being polled.
    pub(crate) scope: Cell<*const Frame>,
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
    pub(crate) wakes: Cell<u32>,
    /// The waits and shields of the current task that were polled in this step with its own waker, and are
    /// pending: the moment of the poll, marked if it is gone again. Kept while a wait is watched.
    pending: RefCell<Vec<u64>>,
    pub(crate) branch: Cell<Option<Branch>>,
    pub(crate) sub_waits: SubWaits,
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

    /// The far half.
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

    /// Calls `work` with the current thread's near half, if it is inside a kernel.
    #[inline(always)]
    pub(crate) fn try_with<R>(work: impl FnOnce(&Local) -> R) -> Option<R> {
        let local = DOOR.with(Cell::get)?;
        // SAFETY: the pointer was made from a borrow that `enter` holds until it has reset it, on
        // every path. `work` gets a borrow that cannot outlive the call.
        Some(work(unsafe { local.as_ref() }))
    }

    /// Calls `work` with the near half, and the task whose future is being polled; `None` outside.
    #[inline(always)]
    pub(crate) fn try_with_task<R>(work: impl FnOnce(&Local, &TaskRef) -> R) -> Option<R> {
        Self::try_with(|local| {
            let task = local.task.get()?;
            // SAFETY: whoever set it holds a reference to the task until it is reset, on every path,
            // on this thread. The reference made here is not counted, and not dropped.
            let task = std::mem::ManuallyDrop::new(unsafe { TaskRef::from_header(task) });
            Some(work(local, &task))
        })?
    }

    /// The task whose future is being polled or dropped; `None` between steps.
    pub fn current(&self) -> Option<TaskRef> {
        let task = self.task.get()?;
        // SAFETY: as in `try_with_task`; the clone is counted.
        let task = std::mem::ManuallyDrop::new(unsafe { TaskRef::from_header(task) });
        Some(TaskRef::clone(&task))
    }

    /// The number of the current task.
    #[inline]
    pub(crate) fn current_id(&self) -> Option<TaskId> {
        let task = self.task.get()?;
        // SAFETY: as in `try_with_task`.
        Some(unsafe { &(*task.as_ptr()).own.id }.get())
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

    /// Makes the task of a waker ready.
    ///
    /// # Safety
    ///
    /// This is the home thread, and the cell is live.
    #[inline(always)]
    pub(crate) unsafe fn wake_by_header(&self, header: NonNull<Header>) {
        // SAFETY: the caller's promise.
        let flags = unsafe { &(*header.as_ptr()).own.flags };
        if flags.has(Flags::ENDED) {
            return;
        }
        // SAFETY: this is the home thread, and the task has not ended. Not counted, and not dropped.
        let task = std::mem::ManuallyDrop::new(unsafe { TaskRef::from_header(header) });
        self.make_ready(&task);
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
        if waiter.sub_wait.is_none() {
            self.make_ready(&waiter.task);
        } else {
            self.notify_sub_wait(waiter);
        }
    }

    #[inline(never)]
    fn notify_sub_wait(&self, waiter: &Waiter) {
        match self.sub_waits.take_waker(waiter.sub_wait) {
            Some(waker) => self.add_wakers([waker]),
            // Its waker was called already, or it is polled with the task's own.
            None => self.make_ready(&waiter.task),
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
                quietly("a combinator's waker", || waker.wake());
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
    pub fn each_sub_wait(
        &self,
        show: impl FnMut(&TaskRef, (TrapKind, &'static Location<'static>)),
    ) {
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

    // --- steps ---------------------------------------------------------------------------------

    /// Steps a task that was taken out of the ready list and has not ended. It comes back if there is
    /// more to be done about it: it has ended, or it is [lost](Self::is_lost).
    ///
    /// # Panics
    ///
    /// Inside a step of the same task.
    #[inline(always)]
    pub fn step(&self, task: TaskRef) -> Option<TaskRef> {
        self.step.set(self.step.get() + 1);
        self.step_began.set(self.moment.get());
        self.refill();
        if task.is_watched() {
            self.watch(&task);
        }
        let ended = {
            let _stepping = Stepping::begin(self, &task);
            task.poll_step()
        };
        if self.attention.get() {
            self.end_step();
        }
        if ended {
            return Some(task);
        }
        if task.flags().has(Flags::AGAIN | Flags::CAUSE) {
            return self.after_step(task);
        }
        None
    }

    /// Does `work` with a task as the current one that is going to be stepped at once. For the kernel's
    /// observers.
    pub fn before_step(&self, task: &TaskRef, work: impl FnOnce()) {
        task.flags().set(Flags::STEPPED);
        let _current = Current::set(self, task);
        work();
    }

    /// After a step that gave the task back: why it is to be dropped. `None`: it has ended. A task is lost
    /// that was asked to end and waits on foreign futures alone, which cannot be told.
    pub fn is_lost(&self, task: &TaskRef) -> Option<Interrupted> {
        if task.is_ended() { None } else { crate::cause::of_task(task) }
    }

    /// Counts the waits and wakes of the current task from now on.
    #[inline(never)]
    pub(crate) fn watch(&self, task: &TaskRef) {
        self.wakes.set(0);
        self.pending.borrow_mut().clear();
        self.branch.set(None);
        if task.flags().has(Flags::INSPECTED) {
            task.cold().seen.borrow_mut().clear();
        }
    }

    /// Whether that is the current task.
    pub(crate) fn is_current(&self, task: &TaskRef) -> bool {
        self.task.get() == Some(task.address())
    }

    #[cold]
    fn end_step(&self) {
        let after_step = std::mem::take(&mut *self.after_step.borrow_mut());
        for waker in after_step {
            quietly("a combinator's waker", || waker.wake());
        }
        self.call_collected();
    }

    #[inline(always)]
    fn after_step(&self, task: TaskRef) -> Option<TaskRef> {
        if task.flags().has(Flags::CAUSE) && crate::cause::is_lost_after_step(self, &task) {
            return Some(task);
        }
        let flags = task.flags();
        if flags.has(Flags::AGAIN) {
            flags.clear(Flags::AGAIN);
            if !flags.has(Flags::QUEUED | Flags::ENDED) {
                self.ready.push(task);
            }
        }
        None
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

/// A task during its step, until this is dropped.
struct Stepping<'a> {
    local: &'a Local,
    task: &'a TaskRef,
}

impl<'a> Stepping<'a> {
    #[inline(always)]
    fn begin(local: &'a Local, task: &'a TaskRef) -> Self {
        task.flags().begin_step();
        local.task.set(Some(task.address()));
        Self { local, task }
    }
}

impl Drop for Stepping<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.task.flags().clear(Flags::BUSY);
        self.local.task.set(None);
        self.local.scope.set(ptr::null());
    }
}

/// Makes a task the current one, outside of all scopes, until it is dropped.
struct Current<'a> {
    local: &'a Local,
    task: Option<NonNull<Header>>,
    scope: *const Frame,
}

impl<'a> Current<'a> {
    #[inline(always)]
    fn set(local: &'a Local, task: &TaskRef) -> Self {
        let scope = local.scope.replace(ptr::null());
        Self { local, task: local.task.replace(Some(task.address())), scope }
    }
}

impl Drop for Current<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.local.task.set(self.task);
        self.local.scope.set(self.scope);
    }
}

/// Does `work` with a task as the current one, as far as its kernel is entered here.
pub(crate) fn while_current(task: &TaskRef, work: impl FnOnce()) {
    let mut work = Some(work);
    Local::try_with(|local| {
        if local.id == task.kernel()
            && let Some(work) = work.take()
        {
            let _current = Current::set(local, task);
            work();
        }
    });
    if let Some(work) = work {
        work();
    }
}

thread_local! {
    static DOOR: Cell<Option<NonNull<Local>>> = const { Cell::new(None) };

    static DIRECTORY: RefCell<Vec<Rc<dyn TrapHandler>>> = const { RefCell::new(Vec::new()) };
}

/// The current kernel's id; `None` outside.
pub(crate) fn current_kernel() -> Option<KernelId> {
    Local::try_with(Local::id)
}

/// Calls `work` with the near half of the current kernel.
///
/// # Panics
///
/// Outside a kernel, with the place of the caller.
#[track_caller]
#[inline]
pub(crate) fn with<R>(work: impl FnOnce(&Local) -> R) -> R {
    match Local::try_with(work) {
        Some(result) => result,
        None => outside("this call", Location::caller()),
    }
}

/// Panics at the place that made a trap which no kernel can execute.
#[cold]
#[inline(never)]
pub(crate) fn outside(what: &str, place: &'static Location<'static>) -> ! {
    panic!(
        "{what} (at {place}) needs a pikake kernel, and this thread is not inside one: call it \
         from a task, under #[pikake::main], pikake::run or Kernel::run, and not from a thread \
         or an executor of another kind"
    )
}

/// Calls `work` with the near half of a kernel of this thread, inside or outside its turn.
///
/// `None`: it has ended, or is not of this thread.
#[inline]
pub(crate) fn reach<R>(id: KernelId, work: impl FnOnce(&Local) -> R) -> Option<R> {
    let mut work = Some(work);
    let inside = Local::try_with(|local| match local.id == id {
        true => work.take().map(|work| work(local)),
        false => None,
    });
    match inside.flatten() {
        Some(result) => Some(result),
        None => reach_from_outside(id, work?),
    }
}

#[cold]
#[inline(never)]
fn reach_from_outside<R>(id: KernelId, work: impl FnOnce(&Local) -> R) -> Option<R> {
    let find = |directory: &RefCell<Vec<Rc<dyn TrapHandler>>>| {
        directory.borrow().iter().find(|kernel| kernel.local().id == id).cloned()
    };
    let kernel = DIRECTORY.try_with(find).ok()??;
    let local = kernel.local();
    let _far = Far::set(local, &kernel);
    let result = work(local);
    if !local.ready.is_empty() || local.attention.get() {
        // A foreign loop that watches the kernel's descriptor is to see that there is work.
        local.home.nudge();
    }
    Some(result)
}

/// Sets the far half of a kernel until it is dropped.
struct Far<'a> {
    local: &'a Local,
    before: Option<NonNull<dyn TrapHandler>>,
}

impl<'a> Far<'a> {
    fn set(local: &'a Local, kernel: &'a Rc<dyn TrapHandler>) -> Self {
        let kernel = NonNull::new(Rc::as_ptr(kernel).cast_mut());
        Self { local, before: local.kernel.replace(kernel) }
    }
}

impl Drop for Far<'_> {
    fn drop(&mut self) {
        self.local.kernel.set(self.before);
    }
}

pub mod door {
    //! The door to a kernel: for kernels, which open it, and for who wants to know whether it is open.

    use super::*;

    /// Another kernel is running on this thread already.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct NestedRun;

    impl fmt::Display for NestedRun {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "a kernel cannot be run inside a running kernel on the same thread: \
                 spawn a task and await it, or run the other kernel on a thread of its own",
            )
        }
    }

    impl std::error::Error for NestedRun {}

    /// Makes `kernel` the thread's current kernel while `inside` runs.
    ///
    /// # Errors
    ///
    /// [`NestedRun`] if the thread is inside a kernel already; `inside` is not called.
    pub fn enter<R>(
        kernel: &Rc<dyn TrapHandler>,
        inside: impl FnOnce() -> R,
    ) -> Result<R, NestedRun> {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                DOOR.set(None);
            }
        }

        // Asked first: the kernel's own code may panic, and must find the door as it was.
        let local = kernel.local();
        if DOOR.get().is_some() {
            return Err(NestedRun);
        }
        let _far = Far::set(local, kernel);
        DOOR.set(Some(NonNull::from(local)));
        let _leave = Leave;
        Ok(inside())
    }

    /// Whether the thread is inside a kernel, so that traps have somewhere to go.
    pub fn is_open() -> bool {
        current_kernel().is_some()
    }

    /// Lists a kernel in its thread's directory; the returned guard takes it out again.
    pub fn register(kernel: Rc<dyn TrapHandler>) -> Registration {
        let id = kernel.local().id;
        DIRECTORY.with(|directory| directory.borrow_mut().push(kernel));
        Registration { id, _home: std::marker::PhantomData }
    }

    /// A kernel's entry in its thread's directory.
    #[derive(Debug)]
    pub struct Registration {
        id: KernelId,
        /// The entry is one of this thread.
        _home: std::marker::PhantomData<*const ()>,
    }

    impl Drop for Registration {
        fn drop(&mut self) {
            // At the thread's end the directory may be gone before the kernel is, entry included.
            let kernel = DIRECTORY.try_with(|directory| {
                let mut directory = directory.borrow_mut();
                let place = directory.iter().position(|kernel| kernel.local().id == self.id)?;
                Some(directory.swap_remove(place))
            });
            drop(kernel);
        }
    }
}

/// The kernel that is running here, and the task whose future it is polling or dropping.
#[inline]
pub(crate) fn polling() -> (KernelId, TaskId) {
    let found = Local::try_with_task(|local, task| (local.id, task.id()));
    found.unwrap_or((KernelId::NONE, TaskId(0)))
}
