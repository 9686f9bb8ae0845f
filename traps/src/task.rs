//! Tasks: spawning, joining, cancelling.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::cell::locals::LocalKey;
use crate::cell::reference::{NewTask, TaskRef};
use crate::door;
use crate::interrupt::{Interrupted, TaskError};
use crate::local::{Local, Start};
use crate::names::{KernelId, TaskId};
use crate::trap::{KernelTrap, kernel_trap_at};
use crate::traps::join::JoinTrap;

/// Starts a task in the current kernel.
///
/// The task starts in a later step, after the tasks that are ready already, and inherits no scope.
///
/// # Examples
///
/// ```
/// use pikake::{TaskError, spawn};
///
/// # async fn example() -> Result<(), TaskError> {
/// let task = spawn(async { 6 * 7 });
/// assert_eq!(task.await?, 42);
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// In a kernel that is being shut down the future is dropped, and the task is cancelled from the
/// start.
///
/// # Panics
///
/// Outside a kernel.
#[doc(alias = "spawn_local")]
#[track_caller]
#[inline]
pub fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + 'static,
{
    spawn_at(future, None, Location::caller(), Start::Later)
}

/// Starts a task with more settings than [`spawn`].
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// let task = pikake::task::Builder::new().name("reader").spawn(async {});
/// assert_eq!(task.name(), "reader");
/// # });
/// ```
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until `spawn` is called"]
pub struct Builder {
    pub(crate) name: Option<Box<str>>,
    pub(crate) spawned_at: Option<&'static Location<'static>>,
    start: Start,
}

impl Builder {
    /// A task without a name.
    pub fn new() -> Self {
        Self::default()
    }

    /// The name that listings, logs and [`Task::name`] show.
    pub fn name(mut self, name: impl Into<Box<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The place that is reported as the task's spawn; by default the caller of `spawn`. For
    /// libraries that spawn for their callers.
    pub fn spawned_at(mut self, place: &'static Location<'static>) -> Self {
        self.spawned_at = Some(place);
        self
    }

    /// Starts the task inside the call of [`spawn`](Self::spawn): the task makes its first step
    /// there, and so may end there. For work that only might have to wait, such as a request to a
    /// server: a task that ends in its first step costs its caller no step and no wait.
    ///
    /// The first step is a part of the caller's: it is a poll with the new task as the current one,
    /// without the caller's scopes; its panic is the new task's; its time and its socket attempts
    /// count as the caller's. Whoever spawns such a task must hold no borrow of its own that the
    /// task might need.
    ///
    /// It is a hint. The task begins later, as any other, inside eight steps, when an aborted task
    /// waits to be dropped, outside of steps, and while the thread unwinds; and in the simulator
    /// whenever the seed says so. The drop of a task by its kernel between two steps is no step.
    ///
    /// Python's [eager tasks](https://docs.python.org/3/library/asyncio-task.html) and Kotlin's
    /// `CoroutineStart.UNDISPATCHED` are alike.
    ///
    /// # Examples
    ///
    /// ```
    /// # pikake::run(async {
    /// let task = pikake::task::Builder::new().eager().spawn(async { 6 * 7 });
    /// assert!(task.is_finished());
    /// assert_eq!(task.await.unwrap(), 42);
    /// # });
    /// ```
    pub fn eager(mut self) -> Self {
        self.start = Start::AtOnce;
        self
    }

    /// Starts the task. See [`spawn`].
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
    {
        let place = self.spawned_at.unwrap_or(Location::caller());
        spawn_at(future, self.name, place, self.start)
    }
}

#[track_caller]
#[inline]
pub(crate) fn spawn_at<F>(
    future: F,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
    start: Start,
) -> Task<F::Output>
where
    F: Future + 'static,
{
    let task = door::with(|local| {
        let parent = local.step.task().map(|task| task.id());
        NewTask::new(local.home(), name, spawned_at, parent)
    });
    let task = task.fill(future);
    if !door::with(|local| local.kernel().spawn(&task, start)) {
        refuse(&task);
    }
    Task { join: kernel_trap_at(JoinTrap { task }, spawned_at), output: PhantomData }
}

/// Ends a task that its kernel has refused.
#[cold]
fn refuse(task: &TaskRef) {
    let late = Interrupted::cancelled("spawned while the kernel was being shut down");
    task.abandon(TaskError::Cancelled(late));
}

/// A handle to a task, and the future of its outcome.
///
/// The drop of the handle detaches the task, which runs on. A panic that is not joined is logged.
///
/// # Examples
///
/// ```
/// use pikake::{TaskError, sleep, spawn};
/// use std::time::Duration;
///
/// # async fn example() -> Result<(), TaskError> {
/// let sum = spawn(async { sleep(Duration::from_secs(1)).await.map(|()| 42) });
/// let clock = spawn(async { while sleep(Duration::from_secs(1)).await.is_ok() {} });
/// let clock = clock.cancel_on_drop();
/// spawn(async { println!("on its own") }).detach();
///
/// assert_eq!(sum.await?, Ok(42));
/// drop(clock); // interrupts the other task's sleep
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// A task that returns a `Result` has two kinds of errors: the outer one says that there is no
/// value, the inner one is the task's own. So a join of such a task is followed by `??`, and so are
/// [`timeout_after`](crate::timeout_after), [`future_wait`](crate::future_wait) and
/// [`run_in_thread`](crate::blocking). Any error type that both convert into will do: that of the
/// program, a `Box<dyn Error>`, or [`io::Error`](std::io::Error), to which all errors of pikake's
/// waits convert.
///
/// ```
/// use pikake::{TaskError, sleep, spawn};
/// use std::num::ParseIntError;
/// use std::time::Duration;
///
/// #[derive(Debug)]
/// enum Failed {
///     Task(TaskError),
///     Number(ParseIntError),
/// }
///
/// impl From<TaskError> for Failed {
///     fn from(error: TaskError) -> Self {
///         Self::Task(error)
///     }
/// }
///
/// impl From<ParseIntError> for Failed {
///     fn from(error: ParseIntError) -> Self {
///         Self::Number(error)
///     }
/// }
///
/// async fn sum(one: &'static str, other: &'static str) -> Result<u32, Failed> {
///     let one = spawn(async move { one.parse::<u32>() });
///     let other = spawn(async move { other.parse::<u32>() });
///     Ok(one.await?? + other.await??)
/// }
///
/// # pikake::sim::example(async {
/// assert_eq!(sum("3", "4").await.unwrap(), 7);
/// assert!(matches!(sum("3", "four").await, Err(Failed::Number(_))));
/// # });
/// ```
///
/// # Cancellation
///
/// An interruption point. An interrupted await returns [`TaskError::Interrupted`]; the task runs
/// on, and `&mut task` may be awaited again. The drop of a waiting handle loses only the handle.
///
/// # Panics
///
/// When polled again after the outcome.
#[doc(alias = "JoinHandle")]
#[must_use = "a task that is not joined runs on detached; `drop` the handle if that is meant"]
pub struct Task<T> {
    join: KernelTrap<JoinTrap>,
    output: PhantomData<T>,
}

impl<T> Task<T> {
    #[inline(always)]
    fn task(&self) -> &TaskRef {
        &self.join.trap().task
    }

    /// Waits for the task's end, as awaiting the task does.
    ///
    /// # Errors
    ///
    /// As for awaiting the task.
    pub fn join(self) -> Self {
        self
    }

    /// The number that the kernel assigned to the task.
    pub fn id(&self) -> TaskId {
        self.task().id()
    }

    /// The task's name; empty for a task without a name.
    pub fn name(&self) -> &str {
        self.task().name()
    }

    /// The task that spawned this one; `None` if no task did. The parent may have ended since.
    pub fn parent(&self) -> Option<TaskId> {
        self.task().parent()
    }

    /// The task itself, without a claim on its outcome.
    pub fn task_ref(&self) -> &TaskRef {
        self.task()
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.task().is_ended()
    }

    /// Takes the outcome of the task, if the task has ended and its outcome was not taken; does not
    /// wait.
    ///
    /// # Errors
    ///
    /// The inner error: the task gave no value.
    pub fn try_join(&mut self) -> Option<Result<T, TaskError>> {
        // SAFETY: a `Task<T>` is made in `spawn_at` only, around a future whose output is `T`.
        unsafe { self.task().take_outcome::<T>() }
    }

    /// Asks the task to end and waits for its end. The outcome can be joined afterwards.
    ///
    /// The task's current await returns [`Interrupted`], and the task may clean up. A task that was
    /// never stepped is dropped unpolled.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example() -> Result<(), pikake::Interrupted> {
    /// use std::time::Duration;
    ///
    /// let task = pikake::spawn(async {
    ///     match pikake::sleep(Duration::from_secs(60)).await {
    ///         Ok(()) => "slept",
    ///         Err(_) => "woken",
    ///     }
    /// });
    /// pikake::yield_now().await?;
    /// task.cancel().await?;
    /// assert_eq!(task.await.unwrap(), "woken");
    /// # Ok(()) }
    /// # pikake::sim::example(example()).unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// An interruption point. The request is not taken back.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], when the caller was interrupted before the task had ended.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    #[track_caller]
    pub fn cancel(&self) -> impl Future<Output = Result<(), Interrupted>> + use<T> {
        self.end_at(None, Location::caller())
    }

    /// As [`cancel`](Self::cancel), and aborts the task if it has not ended after the grace.
    ///
    /// The grace counts from the first poll of this call. If the task was asked to end before, its
    /// cleanup goes on without a second interruption; of several graces the first that ends counts.
    /// When the grace is over, the task is polled once more, and [aborted](Self::abort) unless it
    /// ends there: shields and waits do not protect it. A join then returns
    /// [`TaskError::Cancelled`].
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example() -> Result<(), pikake::Interrupted> {
    /// use std::time::Duration;
    ///
    /// let task = pikake::spawn(async {
    ///     while pikake::sleep(Duration::from_secs(60)).await.is_ok() {}
    ///     pikake::sleep(Duration::from_secs(60)).await // a cleanup that takes too long
    /// });
    /// pikake::yield_now().await?;
    /// task.cancel_within(Duration::from_secs(5)).await?;
    /// assert!(task.await.is_err_and(|error| error.is_cancelled()));
    /// # Ok(()) }
    /// # pikake::sim::example(example()).unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// An interruption point. Neither the request nor the grace is taken back.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], when the caller was interrupted before the task had ended.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    #[track_caller]
    pub fn cancel_within(
        &self,
        grace: Duration,
    ) -> impl Future<Output = Result<(), Interrupted>> + use<T> {
        self.end_at(Some(grace), Location::caller())
    }

    fn end_at(
        &self,
        grace: Option<Duration>,
        place: &'static Location<'static>,
    ) -> impl Future<Output = Result<(), Interrupted>> + use<T> {
        let task = self.task().clone();
        async move {
            task.request_end(Interrupted::cancelled(""), grace);
            while !task.is_ended() {
                kernel_trap_at(JoinTrap { task: task.clone() }, place).await?;
            }
            Ok(())
        }
    }

    /// Asks the task to end, with a reason, and does not wait. See [`cancel`](Self::cancel).
    ///
    /// A second request changes nothing: it never interrupts the cleanup that the first one caused.
    pub fn request_cancel(&self, reason: &str) {
        self.task().request_cancel(Interrupted::cancelled(reason));
    }

    /// Ends the task without another step: the kernel drops the task's future before the next step
    /// of any task.
    pub fn abort(&self) {
        self.task().request_abort(Interrupted::cancelled("aborted"));
    }

    /// Drops the handle; the task runs on.
    pub fn detach(self) {}

    /// A handle whose drop asks the task to end, instead of detaching it.
    pub fn cancel_on_drop(self) -> CancelOnDrop<T> {
        CancelOnDrop(self)
    }
}

impl<T> Unpin for Task<T> {}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskError>;

    #[track_caller]
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.join.set_place(Location::caller());
        match Pin::new(&mut this.join).poll(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(interrupted)) => {
                // The handle can be awaited again.
                this.join.reset();
                return Poll::Ready(Err(TaskError::Interrupted(interrupted)));
            }
        }
        Poll::Ready(this.try_join().expect("a task has its outcome when it has ended (I1)"))
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.task().fmt(f)
    }
}

/// A handle whose drop asks its task to end. Made by [`Task::cancel_on_drop`].
#[derive(Debug)]
#[must_use = "dropping it at once asks the task to end at once"]
pub struct CancelOnDrop<T>(Task<T>);

impl<T> Deref for CancelOnDrop<T> {
    type Target = Task<T>;

    fn deref(&self) -> &Task<T> {
        &self.0
    }
}

impl<T> Future for CancelOnDrop<T> {
    type Output = Result<T, TaskError>;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        if !self.0.is_finished() {
            self.0.request_cancel("its owner was dropped");
        }
    }
}

/// The task that is being stepped. See [`current`].
#[derive(Clone, Debug)]
pub struct Current(TaskRef);

impl Current {
    /// The number that the kernel assigned to the task.
    pub fn id(&self) -> TaskId {
        self.0.id()
    }

    /// The task's name; empty for a task without a name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The place where the task was spawned.
    pub fn spawned_at(&self) -> &'static Location<'static> {
        self.0.spawned_at()
    }

    /// The task that spawned this one; `None` if no task did.
    pub fn parent(&self) -> Option<TaskId> {
        self.0.parent()
    }

    /// The task itself, for requests from elsewhere.
    pub fn task_ref(&self) -> &TaskRef {
        &self.0
    }

    /// The kernel that runs the task.
    pub fn kernel(&self) -> KernelId {
        self.0.kernel()
    }

    /// The task's value under a key. For implementations of task locals.
    pub fn local(&self, key: LocalKey) -> Option<Rc<dyn Any>> {
        self.0.local(key)
    }

    /// Sets the task's value under a key, until the task ends; returns the previous value. For
    /// implementations of task locals.
    ///
    /// The values are dropped after the task's future, with the task still current.
    ///
    /// # Errors
    ///
    /// The value itself, if the task's values have been dropped already.
    pub fn set_local(
        &self,
        key: LocalKey,
        value: Rc<dyn Any>,
    ) -> Result<Option<Rc<dyn Any>>, Rc<dyn Any>> {
        self.0.set_local(key, value)
    }

    /// Asks the task to end: its next wait that suspends is interrupted.
    pub fn request_cancel(&self, reason: &str) {
        self.0.request_cancel(Interrupted::cancelled(reason));
    }
}

/// The current task.
///
/// # Panics
///
/// Outside a task of a kernel.
#[doc(alias = "id")]
#[track_caller]
pub fn current() -> Current {
    match door::with(Local::current) {
        Some(task) => Current(task),
        None => panic!(
            "`current` (at {}) was called inside a kernel but outside a task, as between two steps \
             or in `Kernel::enter`: call it from a task",
            Location::caller()
        ),
    }
}

/// The current task, if there is one: inside a step of a kernel.
#[doc(alias = "try_id")]
pub fn try_current() -> Option<Current> {
    door::try_with(Local::current).flatten().map(Current)
}
