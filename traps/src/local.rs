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

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use pikake_time::{Rate, Ticks};

use crate::blocking_call::BlockingCall;
use crate::cell::ready::ReadyList;
use crate::cell::reference::TaskRef;
use crate::home::{Home, LocalHome};
use crate::inspect_trait::Inspect;
use crate::interrupt::TaskError;
use crate::kind::TrapKind;
use crate::names::{KernelId, WaitKey};
use crate::peers::{OwnOffers, Peers};
use crate::queue::WaitQueue;
use crate::reply::Reply;
use crate::socket::{Addresses, Attempt, OpenSocket, Opened, SocketId};
use crate::step::{Moments, Quotas, Step};
use crate::sub_waits::SubWaits;
use crate::swallowed::Swallowed;
use crate::wait::{Parked, WaitEvent, WaitPlace, Waiter};
use crate::wakers::Wakers;

mod steps;
mod waking;

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

    /// Whether the clock is the system's, so that a wake-up has a price. With virtual time, no
    /// deadline has a slack.
    fn is_real_time(&self) -> bool {
        false
    }

    /// Whether work that another kernel may begin is offered although this kernel is on time. For a
    /// kernel that simulates, so that work moves more often than lateness alone would make it.
    fn offers_early(&self) -> bool {
        false
    }

    // --- places to wait at ---------------------------------------------------------------------

    /// Waits at a place, unless the wait is satisfied at once: the kernel makes an entry for the
    /// waiter in the table of the place. *Current*; only a [`WaitPlace::Moment`] for a grace may
    /// also be parked, and collected, right after a step.
    fn park(&self, place: WaitPlace<'_>, waiter: &Waiter) -> Parked;

    /// Removes an entry whose wait is satisfied, or binds the entry to the waiter of this poll.
    /// *Current*, as [`park`](Self::park).
    fn collect(&self, place: WaitPlace<'_>, key: WaitKey, waiter: &Waiter) -> Parked;

    /// Removes an entry. Returns whether the entry of a queue had been notified.
    fn leave(&self, place: WaitPlace<'_>, key: WaitKey) -> bool;

    /// Notifies up to `count` waiters of a queue in the order of their arrival, for as long as the
    /// queue can [grant](WaitQueue::grant) the permits that the next one wants. Returns the number
    /// notified.
    fn notify(&self, queue: &WaitQueue, count: usize) -> usize;

    /// Removes the waiters of a queue that is being dropped. These waiters wait for ever.
    fn forget(&self, queue: &WaitQueue);

    // --- what never waits ----------------------------------------------------------------------

    /// Makes an attempt on a socket, without waiting. `None`: the attempt would block, or is
    /// deferred.
    fn attempt(&self, socket: SocketId, attempt: Attempt<'_>) -> Option<io::Result<usize>>;

    /// Opens a socket, or takes one over.
    ///
    /// # Errors
    ///
    /// The system's; [`Unsupported`](io::ErrorKind::Unsupported) for a kind that this kernel does
    /// not have.
    fn open(&self, what: OpenSocket<'_>) -> io::Result<Opened<SocketId>>;

    /// Adds a new task, numbers the task ([`TaskRef::set_id`]) and starts it. `false`: the kernel
    /// is shut down and refuses the task.
    fn spawn(&self, task: &TaskRef, start: Start) -> bool;

    /// Ends a task without another step, with this outcome: the kernel drops the task's future
    /// before the next step of any task.
    fn abort(&self, task: &TaskRef, outcome: TaskError);

    /// The outside, except for the clock and sockets.
    fn outside(&self) -> &dyn Outside;

    // --- listings and observers ----------------------------------------------------------------

    /// The part of the kernel that lists its tasks; `None` if the kernel cannot be looked into.
    fn inspect(&self) -> Option<&dyn Inspect> {
        None
    }

    /// Reports an event of a wait of an [observed](TaskRef::set_observed) task.
    fn observe(&self, task: &TaskRef, kind: TrapKind, event: WaitEvent) {
        let _ = (task, kind, event);
    }

    /// Reports that an [observed](TaskRef::set_observed) task was made ready, this long ago.
    /// Nothing of the kernel is borrowed. See [`Local::report_wakes`].
    fn woken(&self, task: &TaskRef, ago: Duration) {
        let _ = (task, ago);
    }
}

/// When a new task makes its first step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// When its turn comes: the task is made ready.
    #[default]
    Later,
    /// Inside the step that spawns the task, if that [may be](Local::may_begin_at_once), no aborted
    /// task waits to be dropped, and the kernel wants to. Otherwise [`Later`](Self::Later).
    AtOnce,
    /// After its first wake.
    WhenWoken,
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

    /// Whether the kernel is being shut down, and takes no new task.
    fn is_closing(&self) -> bool;

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
    /// The time for which an owner may go on after a wait has returned its cause, until it
    /// [counts](crate::HowSwallowed::GoesOn) as one that has swallowed it. `None`: without limit.
    pub cleanup_limit: Option<u64>,
}

/// The near half of a kernel. See the head of this file.
///
/// Its parts do not know each other: the ready list, the current step, the moments, the sub-waits,
/// and the wakers to call.
pub struct Local {
    home: LocalHome,
    id: KernelId,
    graces: Graces,
    quotas: Quotas,
    /// The far half, while the kernel is entered or reached (`door.rs`).
    kernel: Cell<Option<NonNull<dyn TrapHandler>>>,
    ready: ReadyList,
    pub(crate) step: Step,
    /// The number of the last step.
    steps: Cell<u64>,
    pub(crate) moments: Moments,
    sub_waits: SubWaits,
    /// The state of the generator of [`random::fast_u64`](crate::random::fast_u64), once it is
    /// seeded.
    pub(crate) generator: Cell<Option<u64>>,
    pub(crate) wakers: Wakers,
    /// The kernels that this one belongs to. Set once, if at all.
    peers: OnceCell<Peers>,
    pub(crate) offers: OwnOffers,
    /// The first interruption that a task has swallowed.
    swallowed: OnceCell<Box<Swallowed>>,
    /// The kernel has not seen it yet.
    has_new_swallowed: Cell<bool>,
    /// What other files keep for the kernel: one value of a type.
    extensions: RefCell<Vec<Rc<dyn Any>>>,
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
            ready: ReadyList::default(),
            step: Step::default(),
            steps: Cell::new(0),
            moments: Moments::default(),
            sub_waits: SubWaits::default(),
            generator: Cell::new(None),
            wakers: Wakers::default(),
            peers: OnceCell::new(),
            offers: OwnOffers::default(),
            swallowed: OnceCell::new(),
            has_new_swallowed: Cell::default(),
            extensions: RefCell::default(),
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

    /// Makes the kernel one of these, unless it belongs to others already.
    pub fn join(&self, peers: &Peers) {
        if self.peers.set(peers.clone()).is_ok() {
            peers.add(self.home.shared());
        }
    }

    /// The kernels that this one belongs to.
    #[inline]
    pub fn peers(&self) -> Option<&Peers> {
        self.peers.get()
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

    /// Sets the far half, and returns the previous one. For the door, which borrows the kernel
    /// meanwhile.
    pub(crate) fn replace_kernel(
        &self,
        kernel: Option<NonNull<dyn TrapHandler>>,
    ) -> Option<NonNull<dyn TrapHandler>> {
        self.kernel.replace(kernel)
    }

    /// Tasks that may be stepped.
    #[inline]
    pub fn ready(&self) -> &ReadyList {
        &self.ready
    }

    #[inline(always)]
    pub(crate) fn sub_waits(&self) -> &SubWaits {
        &self.sub_waits
    }

    /// The first interruption that a task has swallowed.
    pub fn swallowed(&self) -> Option<&Swallowed> {
        self.swallowed.get().map(Box::as_ref)
    }

    /// Notes an interruption that a task has swallowed, if it is the first one, and calls attention
    /// for the kernel.
    pub(crate) fn note_swallowed(&self, swallowed: impl FnOnce() -> Swallowed) {
        if self.swallowed.get().is_none() && self.swallowed.set(Box::new(swallowed())).is_ok() {
            self.has_new_swallowed.set(true);
            self.call_attention();
        }
    }

    /// Whether [`swallowed`](Self::swallowed) is new since the last call. For the kernel.
    pub fn take_swallowed_mark(&self) -> bool {
        self.has_new_swallowed.take()
    }

    /// The kernel's value of this type, which the first call makes.
    pub(crate) fn extension<T: Default + 'static>(&self) -> Rc<T> {
        let find = |kept: &Rc<dyn Any>| kept.clone().downcast::<T>().ok();
        let known = self.extensions.borrow().iter().find_map(find);
        known.unwrap_or_else(|| {
            let made = Rc::<T>::default();
            self.extensions.borrow_mut().push(made.clone());
            made
        })
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("kernel", &self.id)
            .field("step", &self.step_number())
            .field("ready", &self.ready.len())
            .finish_non_exhaustive()
    }
}
