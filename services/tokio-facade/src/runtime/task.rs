//! A task of tokio is a task of the kernel around a [`Body`], which has the future and puts its
//! result where a `JoinHandle` on any thread finds it.
//!
//! ```text
//!               poll                     result, or a drop
//!   Running ───────────▶ Running ───────────────────────────▶ Ended ──▶ Taken
//!      │ the handle is dropped                                  by the handle
//!      ▼
//!   Taken: the result is dropped where it comes
//! ```

use std::fmt;
use std::future::Future;
use std::mem;
use std::panic::{catch_unwind, AssertUnwindSafe, Location, RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{ready, Context, Poll, Waker};

use pikake_traps::future_wait_at;

use super::context;
use super::handle::Handle;
use crate::task::coop;

pub use super::names::{id, try_id, Id, JoinError};

pub(crate) type Result<T> = std::result::Result<T, JoinError>;

/// For a field of tokio's files; the kernel's tasks know the lines that spawned them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpawnLocation;

impl SpawnLocation {
    pub(crate) fn capture() -> Self {
        Self
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a waker, and returns the one before: its destructor may be user code, and must not run
/// under a lock.
fn keep(kept: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match kept {
        Some(kept) if kept.will_wake(waker) => None,
        _ => kept.replace(waker.clone()),
    }
}

/// The part of a task that requests reach from any thread.
pub(crate) struct Control {
    id: Id,
    is_aborted: AtomicBool,
    has_ended: AtomicBool,
    /// Wakes the task, so that it finds the request; `None` before its first poll and after its
    /// end.
    waker: Mutex<Option<Waker>>,
}

impl Control {
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::SeqCst);
        let waker = locked(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Keeps the task's waker for requests. Returns whether one has come.
    fn is_aborted(&self, waker: &Waker) -> bool {
        let before = keep(&mut locked(&self.waker), waker);
        drop(before);
        self.is_aborted.load(Ordering::SeqCst)
    }
}

/// The result of a task, on its way to the handle.
enum Outcome<T> {
    Running(Option<Waker>),
    Ended(Result<T>),
    /// The handle has it, or is gone.
    Taken,
}

/// Drops the result of a task as the task, and with it a panic of the destructor.
fn drop_as<T>(id: Id, result: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| context::with_task_id(id, || drop(result))));
}

struct Shared<T> {
    control: Arc<Control>,
    outcome: Mutex<Outcome<T>>,
}

impl<T> Shared<T> {
    fn new() -> Arc<Self> {
        let control = Control {
            id: Id::next(),
            is_aborted: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            waker: Mutex::new(None),
        };
        Arc::new(Self { control: Arc::new(control), outcome: Mutex::new(Outcome::Running(None)) })
    }

    /// Hands over the result; a second one is dropped.
    fn end(&self, result: Result<T>) {
        let mut outcome = locked(&self.outcome);
        let waker = match &mut *outcome {
            Outcome::Running(waker) => {
                let waker = waker.take();
                *outcome = Outcome::Ended(result);
                self.control.has_ended.store(true, Ordering::Release);
                drop(outcome);
                waker
            }
            Outcome::Ended(_) | Outcome::Taken => {
                drop(outcome);
                drop_as(self.control.id, result);
                self.control.has_ended.store(true, Ordering::Release);
                None
            }
        };
        let requests = locked(&self.control.waker).take();
        drop(requests);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn has_ended(&self) -> bool {
        self.control.has_ended()
    }
}

pin_project_lite::pin_project! {
    /// The future of a task, which always leaves a result.
    struct Body<F>
    where
        F: Future,
    {
        #[pin]
        future: Option<F>,
        shared: Arc<Shared<F::Output>>,
    }

    impl<F> PinnedDrop for Body<F>
    where
        F: Future,
    {
        fn drop(this: Pin<&mut Self>) {
            if !this.shared.has_ended() {
                this.cancel();
            }
        }
    }
}

impl<F: Future> Body<F> {
    fn new(future: F) -> (Self, JoinHandle<F::Output>) {
        let shared = Shared::new();
        let handle = JoinHandle { shared: shared.clone() };
        (Self { future: Some(future), shared }, handle)
    }

    /// Drops the future, and says that the task was cancelled.
    fn cancel(self: Pin<&mut Self>) {
        let mut this = self.project();
        let id = this.shared.control.id;
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            context::with_task_id(id, || this.future.set(None));
        }));
        this.shared.end(Err(match dropped {
            Ok(()) => JoinError::cancelled(id),
            Err(panic) => JoinError::panic(id, panic),
        }));
    }
}

impl<F: Future> Future for Body<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.control.is_aborted(cx.waker()) {
            self.cancel();
            return Poll::Ready(());
        }
        let mut this = self.project();
        let id = this.shared.control.id;
        let polled = catch_unwind(AssertUnwindSafe(|| {
            context::with_task_id(id, || {
                // Drops the future with the panic under way, as its destructors may ask.
                let mut slot = DropOnPanic(this.future.as_mut());
                let future = slot.0.as_mut().as_pin_mut().expect("the body has not ended");
                let polled = coop::budget(|| future.poll(cx));
                if polled.is_ready() {
                    slot.0.set(None);
                }
                // A thread may panic already while it runs a kernel: in a destructor.
                mem::forget(slot);
                polled
            })
        }));
        this.shared.end(match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(JoinError::panic(id, panic)),
        });
        Poll::Ready(())
    }
}

struct DropOnPanic<'a, F>(Pin<&'a mut Option<F>>);

impl<F> Drop for DropOnPanic<'_, F> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

impl Handle {
    /// Starts a task in the kernel.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        spawn(self, future, Location::caller())
    }
}

/// Starts a task in a handle's kernel.
pub(crate) fn spawn<F>(
    handle: &Handle,
    future: F,
    place: &'static Location<'static>,
) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (body, join) = Body::new(future);
    if handle.is_here() {
        start(body, place);
    } else {
        // A kernel that has ended drops the body, which says so.
        let _ = handle.kernel.call_there(Box::new(move || start(body, place)));
    }
    join
}

/// Starts a task in the current kernel.
pub(crate) fn spawn_here<F>(future: F, place: &'static Location<'static>) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    let (start, join) = prepare(future, place);
    start();
    join
}

/// A task to be started in a kernel, and its handle.
pub(crate) fn prepare<F>(
    future: F,
    place: &'static Location<'static>,
) -> (impl FnOnce(), JoinHandle<F::Output>)
where
    F: Future + 'static,
{
    let (body, join) = Body::new(future);
    (move || start(body, place), join)
}

fn start<F: Future + 'static>(body: Body<F>, place: &'static Location<'static>) {
    // An interruption drops the future, as a tokio that is shut down does.
    let task = async move { drop(future_wait_at(body, place).await) };
    pikake_traps::Builder::new().spawned_at(place).spawn(task).detach();
}

/// A result that another thread gives, with the handle that waits for it. The task's end is the
/// drop of the ending.
pub(crate) fn promise<T>() -> (Ending<T>, JoinHandle<T>) {
    let shared = Shared::new();
    (Ending { shared: shared.clone() }, JoinHandle { shared })
}

/// Owes the result of a blocking task.
pub(crate) struct Ending<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Ending<T> {
    /// Calls `work` as the task, and hands over its result.
    pub(crate) fn end_by(self, work: impl FnOnce() -> T) {
        let id = self.shared.control.id;
        let result = catch_unwind(AssertUnwindSafe(|| context::with_task_id(id, work)));
        self.shared.end(result.map_err(|panic| JoinError::panic(id, panic)));
    }

    /// Whether an abort came before the start.
    pub(crate) fn is_aborted(&self) -> bool {
        self.shared.control.is_aborted.load(Ordering::SeqCst)
    }
}

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        if !self.shared.has_ended() {
            self.shared.end(Err(JoinError::cancelled(self.shared.control.id)));
        }
    }
}

/// The result of a task, from any thread. Its drop detaches the task.
pub struct JoinHandle<T> {
    shared: Arc<Shared<T>>,
}

impl<T> UnwindSafe for JoinHandle<T> {}
impl<T> RefUnwindSafe for JoinHandle<T> {}
impl<T> Unpin for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// Asks the task to end: its future is dropped at its next step.
    pub fn abort(&self) {
        self.shared.control.abort();
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.shared.has_ended()
    }

    /// A handle that can abort the task, and no more.
    #[must_use = "abort handles do nothing unless `.abort` is called"]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { control: self.shared.control.clone() }
    }

    /// The task's id.
    pub fn id(&self) -> Id {
        self.shared.control.id
    }

    /// Has `waker` called at the task's end, or now if that has come.
    pub(crate) fn set_join_waker(&mut self, waker: &Waker) {
        let before = match &mut *locked(&self.shared.outcome) {
            Outcome::Running(kept) => Some(keep(kept, waker)),
            Outcome::Ended(_) | Outcome::Taken => None,
        };
        if before.is_none() {
            waker.wake_by_ref();
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let coop = ready!(coop::poll_proceed(cx));
        let mut outcome = locked(&self.shared.outcome);
        match &mut *outcome {
            Outcome::Running(kept) => {
                let before = keep(kept, cx.waker());
                drop(outcome);
                drop(before);
                Poll::Pending
            }
            Outcome::Ended(_) => {
                coop.made_progress();
                match mem::replace(&mut *outcome, Outcome::Taken) {
                    Outcome::Ended(result) => Poll::Ready(result),
                    Outcome::Running(_) | Outcome::Taken => unreachable!("it has ended"),
                }
            }
            Outcome::Taken => panic!("JoinHandle polled after completion"),
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let outcome = mem::replace(&mut *locked(&self.shared.outcome), Outcome::Taken);
        drop_as(self.id(), outcome);
    }
}

impl<T: fmt::Debug> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("id", &self.id()).finish()
    }
}

/// Aborts a task, from any thread.
#[derive(Clone)]
pub struct AbortHandle {
    control: Arc<Control>,
}

impl UnwindSafe for AbortHandle {}
impl RefUnwindSafe for AbortHandle {}

impl AbortHandle {
    /// As [`JoinHandle::abort`].
    pub fn abort(&self) {
        self.control.abort();
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.control.has_ended()
    }

    /// The task's id.
    pub fn id(&self) -> Id {
        self.control.id
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("id", &self.id()).finish()
    }
}
