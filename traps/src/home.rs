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
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bound::Package;
use crate::foreign::future_wait;
use crate::interrupt::{Interrupted, TaskError};
use crate::reply::Reply;
use crate::task::Task;
use crate::waker::RemoteWake;

/// Names a kernel; no two kernels of a process share one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelId(u32);

impl KernelId {
    pub(crate) const NONE: Self = Self(0);

    fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(id != 0, "four thousand million kernels were made in one process");
        Self(id)
    }
}

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What another thread may ask of a kernel.
#[derive(Debug)]
#[non_exhaustive]
pub enum Message {
    /// Make a task ready.
    Wake(RemoteWake),
    /// Make a task on the kernel's own thread and let it run.
    Spawn(RemoteSpawn),
    /// Drop what belongs to the kernel's thread and was given up on another one.
    Drop(Package),
    /// Cancel the main task.
    Interrupt(Interrupted),
    /// Let `run` return without stepping another task.
    Stop,
    /// Cancel every task, newest first, and let `run` return when they have ended.
    Shutdown,
}

/// A closure on its way to the thread on which it becomes a task.
pub struct RemoteSpawn(Box<dyn FnOnce() + Send>);

impl RemoteSpawn {
    /// Makes the task. For the kernel, on its own thread, inside its door.
    ///
    /// The closure that was sent is called in the task's first step, not here.
    pub fn spawn(self) {
        (self.0)();
    }
}

impl fmt::Debug for RemoteSpawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteSpawn")
    }
}

/// A kernel's address for other threads: its wake queue.
pub struct Home {
    id: KernelId,
    inbox: Mutex<Inbox>,
    /// The inbox may hold something. Set with the inbox locked, cleared with it locked.
    waiting: AtomicBool,
    /// The kernel blocks in its driver, or is about to; cleared by whoever wakes it.
    asleep: AtomicBool,
    wake_driver: Box<dyn Fn() + Send + Sync>,
}

/// A [`Home`] on the thread of its kernel, where tasks may be built for it.
///
/// It cannot leave the thread it was made on, and is what makes that thread the *home thread*.
#[derive(Clone, Debug)]
pub struct LocalHome {
    home: Arc<Home>,
    _here: PhantomData<*const ()>,
}

impl LocalHome {
    /// The part that other threads may have.
    pub fn shared(&self) -> &Arc<Home> {
        &self.home
    }
}

impl Deref for LocalHome {
    type Target = Home;

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
    /// The wake queue of a new kernel of this thread, which is brought out of its driver by `wake_driver`, which is called on
    /// any thread, at most once for each time the kernel goes to sleep.
    pub fn open(wake_driver: impl Fn() + Send + Sync + 'static) -> LocalHome {
        let home = Self {
            id: KernelId::fresh(),
            inbox: Mutex::default(),
            waiting: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wake_driver: Box::new(wake_driver),
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
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            (self.wake_driver)();
        }
    }

    /// Whether the kernel has ended.
    pub fn is_closed(&self) -> bool {
        self.inbox().closed
    }

    /// Whether a message may be waiting: a plain load, for the kernel.
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

    /// Ends deliveries. What was still waiting comes back; drop it where user code may run.
    pub fn close(&self) -> Vec<Message> {
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
        crate::door::with(|kernel| Self::new(kernel.home().shared().clone()))
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
        let on_arrival = move || {
            let task: Task<()> = crate::task::spawn_at(async move { make().await }, None, from);
            drop(task);
        };
        self.send(Message::Spawn(RemoteSpawn(Box::new(on_arrival))))
    }

    /// Starts a task on the kernel's thread, from a task of another kernel (or the same), and waits
    /// for its result.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The task there runs on, and nobody gets its result.
    ///
    /// # Errors
    ///
    /// [`TaskError::Interrupted`]: the wait was. [`TaskError::Stopped`]: the task there gave no
    /// result, for it panicked, was cancelled, or its kernel has ended.
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
        // Refused, the closure is dropped, and so is the reply.
        let _ = self.spawn(move || async move { reply.send(make().await) });
        let waiting = future_wait(replied);
        async move { waiting.await?.ok_or(TaskError::Stopped) }
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

/// Delivers a wake from a thread that is not inside the task's kernel.
pub(crate) fn wake_from_elsewhere(wake: RemoteWake) {
    let home = wake.home();
    // A kernel that has ended has no task left to wake.
    drop(home.send(Message::Wake(wake)));
}
