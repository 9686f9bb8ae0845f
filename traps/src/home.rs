//! The wake queue: the one part of a kernel that other threads may touch.
//!
//! Another thread puts a message into the kernel's [`Home`] and, if the kernel sleeps in its
//! driver, wakes the driver. Threads share nothing else of a kernel.
//!
//! Two flags make sure that no wake is lost:
//!
//! ```text
//!   other thread                        the kernel, about to sleep
//!   ------------                        --------------------------
//!   1 put the message in                1 asleep := true
//!   2 waiting := true                   2 if waiting: asleep := false, do not block
//!   3 if this swap clears asleep:       3 block in the driver
//!       wake the driver                 4 asleep := false
//! ```
//!
//! In these steps all accesses to the flags are sequentially consistent, so at least one side sees
//! the other. Either the kernel finds `waiting`, or the thread finds `asleep`. The thread that
//! clears `asleep` makes the one system call; the rest of a burst makes none. A running kernel
//! reads `waiting` with a plain load, once a turn.
//!
//! A kernel that its owner leaves makes step 1, too ([`Home::owner_left`]). If the kernel finds
//! `waiting` in step 2, it wakes its own driver, so that the message shows on the driver's
//! descriptor.
//!
//! After [`Home::close`] a sender drops its message, so a wake after the kernel's end does nothing.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use pikake_time::Ticks;

use crate::interrupt::Interrupted;
use crate::names::KernelId;
use crate::threads::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};

/// A closure on its way to a kernel's thread.
pub type Call = Box<dyn FnOnce() + Send>;

/// A request of another thread to a kernel.
pub enum Message {
    /// Make a task ready.
    Wake(RemoteWake),
    /// Call a closure on the kernel's own thread, between two steps.
    Call(Call),
    /// Cancel the main task.
    Interrupt(Interrupted),
    /// Let `run` return without stepping another task.
    Stop,
    /// Cancel every task, newest first, and let `run` return when they have ended.
    Shutdown,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wake(_) => "Wake",
            Self::Call(_) => "Call",
            Self::Interrupt(_) => "Interrupt",
            Self::Stop => "Stop",
            Self::Shutdown => "Shutdown",
        })
    }
}

/// A wake of a task in the wake queue. The wake owns a reference to the task's cell, and its drop
/// releases the reference, on any thread. [`arrive`](Self::arrive) is in `waker.rs`.
pub struct RemoteWake {
    cell: NonNull<()>,
    release: unsafe fn(NonNull<()>),
    /// The moment of the wake, if the kernel has observers.
    sent: Option<Instant>,
}

// SAFETY: any thread may release the reference, by the promise of `new`. This file does nothing
// else with the pointer.
unsafe impl Send for RemoteWake {}

impl RemoteWake {
    /// # Safety
    ///
    /// `release` may be called with `cell`, once and on any thread, and the cell lives until then.
    pub(crate) unsafe fn new(
        cell: NonNull<()>,
        release: unsafe fn(NonNull<()>),
        sent: Option<Instant>,
    ) -> Self {
        Self { cell, release, sent }
    }

    /// The moment when the waker was called; `None` unless the kernel
    /// [asked for such moments](Home::time_wakes).
    #[inline]
    pub fn sent(&self) -> Option<Instant> {
        self.sent
    }

    pub(crate) fn cell(&self) -> NonNull<()> {
        self.cell
    }
}

impl Drop for RemoteWake {
    fn drop(&mut self) {
        // SAFETY: the promise of `new`; a drop happens once.
        unsafe { (self.release)(self.cell) };
    }
}

impl fmt::Debug for RemoteWake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteWake")
    }
}

/// A closure that makes a kernel's driver return.
type WakeDriver = Box<dyn Fn() + Send + Sync>;

/// A kernel's address for other threads: its wake queue.
pub struct Home {
    id: KernelId,
    inbox: Mutex<Inbox>,
    /// The inbox may have messages. Set and cleared with the inbox locked.
    waiting: AtomicBool,
    /// The kernel blocks in its driver, is about to, or was left by its owner. The thread that
    /// wakes the driver clears the flag.
    asleep: AtomicBool,
    /// `None` after the kernel's end, which closes the descriptor of the closure.
    wake_driver: Mutex<Option<WakeDriver>>,
    /// Wakes carry the moment when they were sent.
    times_wakes: AtomicBool,
    /// See [`late_from`](Self::late_from).
    late_from: AtomicU64,
    /// The task cells in use on the home thread.
    cells: CellCount,
}

/// The number of a home's task cells with a local side, which share one reference of the home.
#[derive(Default)]
struct CellCount(Cell<usize>);

// SAFETY: the count is private, and only `Home::add_cell` and `Home::remove_cell` use it. Both are
// unsafe and demand the home thread.
unsafe impl Sync for CellCount {}

/// A [`Home`] on the thread of its kernel, where the kernel's tasks may be built.
///
/// A `LocalHome` cannot leave the thread where it was made, which is the *home thread*.
#[derive(Debug)]
pub struct LocalHome {
    home: Arc<Home>,
    _here: PhantomData<*const ()>,
}

impl LocalHome {
    /// The home, for other threads.
    pub fn shared(&self) -> &Arc<Home> {
        &self.home
    }

    /// The pointer of the home's [`Arc`], for task cells.
    #[inline]
    pub(crate) fn address(&self) -> NonNull<Home> {
        NonNull::new(Arc::as_ptr(&self.home).cast_mut())
            .expect("the pointer of an `Arc` is not null")
    }
}

impl Deref for LocalHome {
    type Target = Home;

    #[inline]
    fn deref(&self) -> &Home {
        &self.home
    }
}

#[derive(Default)]
struct Inbox {
    messages: Vec<Message>,
    closed: bool,
}

impl Home {
    /// The wake queue of a new kernel of this thread. `wake_driver` makes the kernel's driver
    /// return. Any thread may call it, at most once for each time that the kernel goes to sleep or
    /// is left.
    pub fn open(wake_driver: impl Fn() + Send + Sync + 'static) -> LocalHome {
        let home = Self {
            id: KernelId::fresh(),
            inbox: Mutex::default(),
            waiting: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wake_driver: Mutex::new(Some(Box::new(wake_driver))),
            times_wakes: AtomicBool::new(false),
            late_from: AtomicU64::new(0),
            cells: CellCount::default(),
        };
        LocalHome { home: Arc::new(home), _here: PhantomData }
    }

    /// Counts one more cell with a local side.
    ///
    /// # Safety
    ///
    /// This is the home thread.
    #[inline]
    pub(crate) unsafe fn add_cell(self: &Arc<Self>) {
        let count = &self.cells.0;
        if count.get() == 0 {
            std::mem::forget(self.clone());
        }
        count.set(count.get() + 1);
    }

    /// Takes a cell with a local side off the count.
    ///
    /// # Safety
    ///
    /// This is the home thread, and the cell was counted by [`add_cell`](Self::add_cell).
    #[inline]
    pub(crate) unsafe fn remove_cell(home: NonNull<Self>) {
        // SAFETY: the counted cells share a reference, which is released below at the earliest.
        let count = unsafe { &home.as_ref().cells.0 };
        count.set(count.get() - 1);
        if count.get() == 0 {
            // SAFETY: the pointer is that of an `Arc`, and the reference is the one forgotten in
            // `add_cell`.
            unsafe { Arc::decrement_strong_count(home.as_ptr()) };
        }
    }

    /// The id of the kernel.
    pub fn id(&self) -> KernelId {
        self.id
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // No code that can panic runs under the lock, so the inbox behind a poisoned lock is whole.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a message, from any thread.
    ///
    /// # Errors
    ///
    /// The kernel has ended; the error is the message, for the caller to drop.
    pub fn send(&self, message: Message) -> Result<(), Message> {
        {
            let mut inbox = self.inbox();
            if inbox.closed {
                return Err(message);
            }
            inbox.messages.push(message);
            self.waiting.store(true, Ordering::SeqCst);
        }
        self.wake_if_asleep();
        Ok(())
    }

    /// Wakes the driver if the kernel sleeps there, or was left by its owner. Returns whether this
    /// call has woken the driver.
    #[inline]
    pub fn wake_if_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) && self.wake_sleeper()
    }

    #[inline(never)]
    fn wake_sleeper(&self) -> bool {
        if !self.asleep.swap(false, Ordering::SeqCst) {
            return false;
        }
        let wake = self.wake_driver();
        wake.iter().for_each(|wake| wake());
        wake.is_some()
    }

    fn wake_driver(&self) -> MutexGuard<'_, Option<WakeDriver>> {
        // The driver's code runs under the lock, and cannot change the `Option`, so a poisoned lock
        // is fine.
        self.wake_driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the kernel has ended.
    pub fn is_closed(&self) -> bool {
        self.inbox().closed
    }

    /// Makes each wake of another thread carry its moment from now on, for observers.
    pub fn time_wakes(&self) {
        self.times_wakes.store(true, Ordering::Relaxed);
    }

    /// The moment of a wake that is being sent, if the kernel wants to know the moment.
    #[inline]
    pub(crate) fn moment_of_wake(&self) -> Option<Instant> {
        self.times_wakes.load(Ordering::Relaxed).then(Instant::now)
    }

    /// Shows from which moment on the kernel is late: [`LATE`](crate::LATE) after the moment since
    /// which the task that is stepped next may have waited. For a kernel with
    /// [`Peers`](crate::Peers): another moment for each batch of tasks that it finds ready;
    /// [`Ticks::MAX`] while it has nothing to do, and zero while its owner has left it.
    pub fn set_late_from(&self, moment: Ticks) {
        self.late_from.store(moment.get(), Ordering::Relaxed);
    }

    /// The moment from which on the kernel is late. From any thread.
    pub fn late_from(&self) -> Ticks {
        Ticks::new(self.late_from.load(Ordering::Relaxed))
    }

    /// Whether there may be a message: a plain load, for the kernel.
    #[inline]
    pub fn has_mail(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Moves the messages, oldest first, to the end of `into`. For the kernel.
    pub fn take_mail(&self, into: &mut Vec<Message>) {
        if !self.has_mail() {
            return;
        }
        let mut inbox = self.inbox();
        self.waiting.store(false, Ordering::SeqCst);
        if into.is_empty() {
            std::mem::swap(into, &mut inbox.messages);
        } else {
            into.append(&mut inbox.messages);
        }
    }

    /// Announces that the kernel is about to block. `false`: there is a message, do not block.
    pub fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) {
            self.wake_up();
            return false;
        }
        true
    }

    /// Announces that the owner has left the kernel, until [`wake_up`](Self::wake_up). A present
    /// message wakes the driver at once, or else the next message does.
    pub fn owner_left(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) {
            self.wake_sleeper();
        }
    }

    /// Announces that the kernel is back from its driver, or that its owner is back.
    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Ends deliveries, and drops the closure that wakes the driver. Returns the messages that were
    /// not taken; drop them where user code may run.
    pub fn close(&self) -> Vec<Message> {
        // The drop runs the driver's code, which may send a message, so the lock is free by then.
        let wake_driver = self.wake_driver().take();
        drop(wake_driver);
        // An ended kernel is late for ever.
        self.set_late_from(Ticks::ZERO);
        let mut inbox = self.inbox();
        inbox.closed = true;
        self.waiting.store(false, Ordering::SeqCst);
        std::mem::take(&mut inbox.messages)
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").field("id", &self.id).finish_non_exhaustive()
    }
}
