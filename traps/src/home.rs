//! The wake queue: the one part of a kernel that other threads may touch.
//!
//! A thread that wants something of a kernel puts a message into the kernel's [`Home`] and, if the
//! kernel sleeps in its driver, wakes the driver. Nothing else of a kernel is shared.
//!
//! The two sides meet in three flags, and no wake may fall between them:
//!
//! ```text
//!   other thread                        the kernel, about to sleep
//!   ------------                        --------------------------
//!   1 put the message in                1 asleep := true
//!   2 waiting := true                   2 if waiting: asleep := false, do not block
//!   3 if asleep (and I cleared it):     3 block in the driver
//!       wake the driver                 4 asleep := false
//! ```
//!
//! All accesses of step 1 and 2 to the two flags are sequentially consistent, so that at least one
//! side sees the other: either the kernel finds `waiting`, or the thread finds `asleep`. Whoever
//! clears `asleep` makes the one system call; the rest of a burst pays none. While the kernel runs
//! it looks at `waiting` with a plain load, once a turn.
//!
//! After [`Home::close`] a message is dropped by its sender, so a wake after the kernel's end does
//! nothing.

use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use crate::calls::future_wait;
use crate::cell::CellCount;
use crate::interrupt::{Interrupted, Panic, TaskError};
use crate::reply::Reply;
use crate::task::Task;
use crate::waker::RemoteWake;

/// Names a kernel; no two kernels of a process share one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelId(pub(crate) u32);

impl KernelId {
    pub(crate) const NONE: Self = Self(0);
    /// In the place of a kernel: what waited there has its answer.
    pub(crate) const FINISHED: Self = Self(u32::MAX);

    fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(
            id != 0 && id != Self::FINISHED.0,
            "four thousand million kernels were made in one process"
        );
        Self(id)
    }
}

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A closure on its way to a kernel's thread.
pub type Call = Box<dyn FnOnce() + Send>;

/// What another thread may ask of a kernel.
#[non_exhaustive]
pub enum Message {
    /// Make a task ready.
    Wake(RemoteWake),
    /// Call this on the kernel's own thread, between two steps.
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

/// What brings a kernel out of its driver.
type WakeDriver = Box<dyn Fn() + Send + Sync>;

/// A kernel's address for other threads: its wake queue.
pub struct Home {
    id: KernelId,
    inbox: Mutex<Inbox>,
    /// The inbox may hold something. Set with the inbox locked, cleared with it locked.
    waiting: AtomicBool,
    /// The kernel blocks in its driver, or is about to; cleared by the thread that wakes it.
    asleep: AtomicBool,
    /// Gone once the kernel has ended, and with it the descriptor that it has for this.
    wake_driver: Mutex<Option<WakeDriver>>,
    /// The task cells in use on the home thread.
    pub(crate) cells: CellCount,
}

/// A [`Home`] on the thread of its kernel, where tasks may be built for it.
///
/// It cannot leave the thread it was made on, and is what makes that thread the *home thread*.
#[derive(Debug)]
pub struct LocalHome {
    home: Arc<Home>,
    _here: PhantomData<*const ()>,
}

impl LocalHome {
    /// The part that other threads may have.
    pub fn shared(&self) -> &Arc<Home> {
        &self.home
    }

    /// The home as task cells know it: the pointer of an [`Arc`].
    #[inline]
    pub(crate) fn address(&self) -> NonNull<Home> {
        NonNull::new(Arc::as_ptr(&self.home).cast_mut()).expect("an `Arc` is somewhere")
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
    /// The wake queue of a new kernel of this thread. `wake_driver` brings the kernel out of its
    /// driver; any thread may call it, at most once for each time the kernel goes to sleep.
    pub fn open(wake_driver: impl Fn() + Send + Sync + 'static) -> LocalHome {
        let home = Self {
            id: KernelId::fresh(),
            inbox: Mutex::default(),
            waiting: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wake_driver: Mutex::new(Some(Box::new(wake_driver))),
            cells: CellCount::default(),
        };
        LocalHome { home: Arc::new(home), _here: PhantomData }
    }

    /// The kernel this is the address of.
    pub fn id(&self) -> KernelId {
        self.id
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Nothing that can panic runs under the lock, so a poisoned one is whole all the same.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a message, from any thread.
    ///
    /// # Errors
    ///
    /// The kernel has ended; the message comes back, to be dropped by the caller.
    pub fn send(&self, message: Message) -> Result<(), Message> {
        {
            let mut inbox = self.inbox();
            if inbox.closed {
                return Err(message);
            }
            inbox.messages.push(message);
            self.waiting.store(true, Ordering::SeqCst);
        }
        self.nudge();
        Ok(())
    }

    /// Wakes the driver if the kernel sleeps in it, or waits to be turned by its owner.
    #[inline]
    pub fn nudge(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.wake_sleeper();
        }
    }

    #[inline(never)]
    fn wake_sleeper(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(wake) = &*self.wake_driver()
        {
            wake();
        }
    }

    fn wake_driver(&self) -> MutexGuard<'_, Option<WakeDriver>> {
        // The driver's own code runs under the lock; should it panic, the lock is good all the same.
        self.wake_driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the kernel has ended.
    pub fn is_closed(&self) -> bool {
        self.inbox().closed
    }

    /// Whether a message may be waiting: a plain load, for the kernel.
    #[inline]
    pub fn has_mail(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Moves the waiting messages, oldest first, to the end of `into`. For the kernel.
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

    /// Announces that the kernel is about to block. `false`: a message is there, do not block.
    pub fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) {
            self.wake_up();
            return false;
        }
        true
    }

    /// The kernel is back from its driver.
    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Ends deliveries, and gives up what woke the driver. The messages that were still waiting come
    /// back; drop them where user code may run.
    pub fn close(&self) -> Vec<Message> {
        drop(self.wake_driver().take());
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

/// The kernel has ended, so nothing can be asked of it any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelEnded;

impl fmt::Display for KernelEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the kernel has ended")
    }
}

impl std::error::Error for KernelEnded {}

/// Reaches a kernel from any thread. Clone it freely.
///
/// A handle keeps neither the kernel nor its tasks alive.
#[derive(Clone, Debug)]
pub struct KernelHandle {
    home: Arc<Home>,
}

impl KernelHandle {
    /// A handle to the kernel behind `home`.
    pub fn new(home: Arc<Home>) -> Self {
        Self { home }
    }

    /// A handle to the current kernel.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn current() -> Self {
        crate::local::with(|local| Self::new(local.home().shared().clone()))
    }

    /// The kernel this reaches.
    pub fn id(&self) -> KernelId {
        self.home.id()
    }

    /// Whether the kernel has ended.
    pub fn is_closed(&self) -> bool {
        self.home.is_closed()
    }

    /// Starts a task on the kernel's thread.
    ///
    /// The closure is sent there and called in the task's first step, so the future it makes need
    /// not be `Send`. The task is detached; let it send its result where it is wanted. If the
    /// kernel ends first, the closure is dropped without being called.
    ///
    /// # Errors
    ///
    /// [`KernelEnded`], with the closure dropped.
    #[track_caller]
    pub fn spawn<M, F>(&self, make: M) -> Result<(), KernelEnded>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let from = std::panic::Location::caller();
        self.call_there(Box::new(move || {
            let task: Task<()> = crate::task::spawn_at(async move { make().await }, None, from);
            drop(task);
        }))
    }

    /// Calls a closure on the kernel's thread, inside the kernel and between two steps. A panic of
    /// it is logged. If the kernel ends first, the closure is dropped without being called.
    ///
    /// # Errors
    ///
    /// [`KernelEnded`], with the closure dropped.
    pub fn call_there(&self, call: Call) -> Result<(), KernelEnded> {
        self.send(Message::Call(call))
    }

    /// Starts a task on the kernel's thread, from a task of another kernel (or the same), and waits
    /// for its result.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted or dropped, the caller gives up the result only: the task
    /// runs on, detached, and its result is dropped on its own thread.
    ///
    /// # Errors
    ///
    /// [`TaskError::Interrupted`]: the wait was. [`TaskError::Panicked`]: the task there panicked, with
    /// this payload. [`TaskError::Stopped`]: the task there was dropped before it had a result, by a
    /// cancel or because its kernel has ended.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    #[track_caller]
    pub fn call<M, F>(
        &self,
        make: M,
    ) -> impl Future<Output = Result<F::Output, TaskError>> + use<M, F>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output: Send + 'static> + 'static,
    {
        let (reply, replied) = Reply::channel();
        let task = move || async move {
            let mut future = pin!(async move { make().await });
            let outcome =
                poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
                    Ok(polled) => polled.map(Ok),
                    Err(panic) => Poll::Ready(Err(TaskError::Panicked(Panic::new(panic)))),
                });
            reply.send(outcome.await);
        };
        // Refused, the closure is dropped, and so is the reply.
        let _ = self.spawn(task);
        let waiting = future_wait(replied);
        async move { waiting.await?.unwrap_or(Err(TaskError::Stopped)) }
    }

    /// Asks the main task of the current run to end, saying why: its await returns
    /// [`Interrupted`]. The other tasks go on.
    ///
    /// What arrives between two runs interrupts the next one. A kernel that is turned by its owner,
    /// and not run, has no main task, and nothing happens.
    ///
    /// # Errors
    ///
    /// [`KernelEnded`].
    pub fn interrupt(&self, reason: &str) -> Result<(), KernelEnded> {
        self.send(Message::Interrupt(Interrupted::cancelled(reason)))
    }

    /// Asks the kernel to step no further task and to return from `run`.
    ///
    /// Its tasks stay as they are. A stop that arrives between two runs ends the next one.
    ///
    /// # Errors
    ///
    /// [`KernelEnded`].
    pub fn stop(&self) -> Result<(), KernelEnded> {
        self.send(Message::Stop)
    }

    /// Asks the kernel to cancel all its tasks, newest first, the main task last, and to return
    /// from `run` when they have ended or the shutdown grace is over.
    ///
    /// # Errors
    ///
    /// [`KernelEnded`].
    pub fn shutdown(&self) -> Result<(), KernelEnded> {
        self.send(Message::Shutdown)
    }

    fn send(&self, message: Message) -> Result<(), KernelEnded> {
        self.home.send(message).map_err(|refused| {
            drop(refused);
            KernelEnded
        })
    }
}
