//! Threads that may wait for their kernel: programs that block, and await in between.
//!
//! Such a thread has a task in the kernel that started the thread. The task is joined, cancelled,
//! named and listed as any other, may be a member of a group, and ends together with the thread.
//! Whenever the thread [blocks on](block_on) a future, the future runs as another task of the
//! kernel, and the thread's task joins that one.
//!
//! ```text
//!     thread                         its task                        another task
//!   ──────────                     ────────────                    ────────────────
//!   block_on ───── (1) call ──────▶ spawns ──────────────────────▶ runs the future
//!      │ blocks                        │ joins                           │
//!      ◀────────── (3) answer ─────────┴◀───────────── (2) end ──────────┘
//!     ...
//!   returns ────── (4) outcome ────▶ ends
//! ```
//!
//! A cancel of the thread's task interrupts the future that the thread is blocked on. If there is
//! none, the next call of `block_on` returns the interruption and does not begin its future. Each
//! cancel is delivered once. After that the thread may clean up, and block on further futures.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::Poll;
use std::thread;

use pikake_traps::{
    Builder, Interrupted, Replied, Reply, Task, TaskError, current, door, future_wait_at,
    start_thread,
};

/// The default name of a thread and of its task.
const NAME: &str = "pikake-thread";

thread_local! {
    /// This thread's link to its task.
    static LINK: RefCell<Option<Link>> = const { RefCell::new(None) };
}

struct Link {
    /// Sends the next call. The drop ends the calls.
    call: Reply<Call>,
    undelivered: Undelivered,
}

/// A request of a thread to its task.
struct Call {
    serve: Box<dyn FnOnce(Undelivered) -> Served + Send>,
    /// Receives the call after this one.
    next: Replied<Call>,
}

type Served = Pin<Box<dyn Future<Output = ()>>>;

/// An interruption of the thread's task that was not delivered to the thread yet.
#[derive(Clone, Default)]
struct Undelivered(Arc<Mutex<Option<Interrupted>>>);

impl Undelivered {
    fn set(&self, why: Interrupted) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(as_cancel(why));
    }

    fn take(&self) -> Option<Interrupted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// An interruption, for another task: a deadline, which belongs to a scope of this task, becomes a
/// cancel.
fn as_cancel(why: Interrupted) -> Interrupted {
    if why.is_cancel() { why } else { Interrupted::cancelled(&why.to_string()) }
}

/// Starts a task, and a thread of its own for a closure. In the closure, [`block_on`] waits for the
/// kernel.
///
/// The thread starts with the first step of the task, and has the task's name. The thread is no
/// helper thread of the kernel, and counts against no limit. The join of the task returns the
/// closure's result.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # async fn example() -> Result<(), pikake::TaskError> {
/// use pikake::thread;
///
/// let task = thread::spawn_thread(|| {
///     let sum: u64 = (0..1_000_000).sum(); // may take long, or block
///     thread::block_on(|| pikake::sleep(Duration::from_millis(10)))??;
///     Ok::<_, pikake::Interrupted>(sum)
/// });
/// let sum = task.await?;
/// assert_eq!(sum, Ok(499_999_500_000));
/// # Ok(()) }
/// # pikake::run(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// A cancel of the task is delivered to the thread, once: see [`block_on`] and [`check_interrupt`].
/// The task ends after the thread, so [`Task::cancel`] waits for the thread. A task that is
/// cancelled before its first step starts no thread.
///
/// An [abort](Task::abort) of the task, or the end of its kernel, cannot stop the thread. The
/// thread is then detached, and its calls of `block_on` return [`Interrupted`]. During the grace of
/// a kernel's shutdown, threads may still block on futures.
///
/// # Panics
///
/// Outside a kernel. The task panics with the closure's panic, or when no thread can be started; a
/// simulation starts none.
#[track_caller]
pub fn spawn_thread<F, T>(work: F) -> Task<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let place = Location::caller();
    Builder::new().name(NAME).spawned_at(place).spawn(in_thread(work))
}

/// Runs a closure in a thread of its own, in which [`block_on`] waits for the kernel.
///
/// The future of [`spawn_thread`]'s task, for a member of a group, or for a task with a name. The
/// thread has the task's name.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake::task::GroupError> {
/// use pikake::{TaskGroup, thread};
///
/// let mut group = TaskGroup::new();
/// for number in 1..=3 {
///     group.spawn(thread::in_thread(move || number * number));
/// }
/// assert_eq!(group.join_all().await?, [1, 4, 9]);
/// # Ok(()) }
/// # pikake::run(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption of the awaiting task is delivered to the thread, and the future waits for the
/// thread's end. The drop of the future detaches the thread.
///
/// # Panics
///
/// With the closure's panic. When no thread can be started; a simulation starts none. When polled
/// outside a task of a kernel.
#[track_caller]
pub fn in_thread<F, T>(work: F) -> impl Future<Output = T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let place = Location::caller();
    async move {
        let undelivered = Undelivered::default();
        let (call, mut calls) = Reply::channel();
        let (end, ended) = Reply::channel();
        let link = Link { call, undelivered: undelivered.clone() };
        let body = move || {
            LINK.set(Some(link));
            let outcome = catch_unwind(AssertUnwindSafe(work));
            // From here on no destructor in this thread can reach the task.
            drop(LINK.take());
            end.send(outcome);
        };
        let name = match current().name() {
            "" => NAME.to_owned(),
            name => name.to_owned(),
        };
        if let Err(error) = start_thread(&name, body) {
            panic!("no thread could be started: {error}");
        }
        while let Some(Call { serve, next }) = receive(&mut calls, &undelivered, place).await {
            calls = next;
            serve(undelivered.clone()).await;
        }
        let mut ended = ended;
        match receive(&mut ended, &undelivered, place).await {
            Some(Ok(value)) => value,
            Some(Err(panic)) => resume_unwind(panic),
            None => unreachable!("a thread that has started reports its end"),
        }
    }
}

/// Waits for a reply of the thread, and keeps interruptions for delivery.
async fn receive<R>(
    replied: &mut Replied<R>,
    undelivered: &Undelivered,
    place: &'static Location<'static>,
) -> Option<R> {
    loop {
        match future_wait_at(&mut *replied, place).await {
            Ok(reply) => return reply,
            Err(why) => undelivered.set(why),
        }
    }
}

/// Runs a future as a task of the kernel that this thread was started from, and blocks the thread
/// until the future has ended.
///
/// The closure is called, and its future is polled, on the kernel's thread, so the future need not
/// be `Send`. A panic of the future goes on in this thread.
///
/// # Cancellation
///
/// A cancel of the [thread's task](spawn_thread) also cancels the task of the future: its await
/// returns an [`Interrupted`], and the call returns the future's output. If the thread is not
/// blocked on a future, the next call returns the interruption and begins no future. Each cancel is
/// delivered once.
///
/// # Errors
///
/// [`Interrupted`], when there is no output: the thread's task was cancelled before the future
/// began, or while the future waited on foreign futures alone. When the thread's task was aborted,
/// or its kernel has ended, every call returns this error.
///
/// # Panics
///
/// In a thread that was not started by [`spawn_thread`] or [`in_thread`]; with the future's panic.
#[track_caller]
pub fn block_on<M, F>(make: M) -> Result<F::Output, Interrupted>
where
    M: FnOnce() -> F + Send + 'static,
    F: Future<Output: Send + 'static> + 'static,
{
    assert!(
        !door::is_open(),
        "`block_on` was called inside a kernel, where it would stop all tasks: await the future \
         instead"
    );
    let place = Location::caller();
    check_interrupt()?;
    let (answer, answered) = mpsc::channel();
    let (next_call, next) = Reply::channel();
    let (call, undelivered) = LINK.with_borrow_mut(|link| {
        let link = link.as_mut().expect("`check_interrupt` found the link");
        (std::mem::replace(&mut link.call, next_call), link.undelivered.clone())
    });
    let serve = move |undelivered| -> Served { Box::pin(serve(make, answer, undelivered, place)) };
    call.send(Call { serve: Box::new(serve), next });
    match answered.recv() {
        Ok(Ok(Ok(output))) => Ok(output),
        Ok(Ok(Err(panic))) => resume_unwind(panic),
        Ok(Err(why)) => Err(why),
        Err(mpsc::RecvError) => Err(undelivered.take().unwrap_or_else(|| {
            Interrupted::cancelled("this thread's task was aborted, or its kernel has ended")
        })),
    }
}

/// The outcome of a future that a thread blocks on: its output or its panic, or an interruption.
type Answer<T> = Result<thread::Result<T>, Interrupted>;

/// Runs the future that a thread blocks on, and answers.
async fn serve<M, F>(
    make: M,
    answer: mpsc::Sender<Answer<F::Output>>,
    undelivered: Undelivered,
    place: &'static Location<'static>,
) where
    M: FnOnce() -> F + 'static,
    F: Future<Output: 'static> + 'static,
{
    let outcome = match undelivered.take() {
        Some(why) => Err(why),
        None => run(make, place).await,
    };
    // The thread waits for the answer, so the send does not fail.
    drop(answer.send(outcome));
}

async fn run<M, F>(make: M, place: &'static Location<'static>) -> Answer<F::Output>
where
    M: FnOnce() -> F + 'static,
    F: Future<Output: 'static> + 'static,
{
    let make = Rc::new(Cell::new(Some(make)));
    let inside = make.clone();
    let future = async move {
        let make = inside.take().expect("a task begins once");
        make().await
    };
    let task = Builder::new().name(current().name()).spawned_at(place).spawn(future);
    if task.is_finished() {
        if let Some(make) = make.take() {
            // A kernel that is being shut down takes no task, but the thread's cleanup may wait.
            return Ok(run_here(async move { make().await }).await);
        }
    }
    let mut task = task.cancel_on_drop();
    let mut was_cancelled_here = false;
    let outcome = loop {
        match (&mut task).await {
            Err(TaskError::Interrupted(why)) => {
                was_cancelled_here = true;
                task.task_ref().request_cancel(as_cancel(why));
            }
            outcome => break outcome,
        }
    };
    if task.task_ref().was_asked_to_end() && !was_cancelled_here {
        // A shutdown has cancelled both tasks. The thread has seen one cancel, so the other is
        // dropped.
        let _ = pikake_traps::check_interrupt();
    }
    match outcome {
        Ok(output) => Ok(Ok(output)),
        Err(TaskError::Panicked(panic)) => Ok(Err(panic.into_payload())),
        Err(TaskError::Cancelled(why)) => Err(why),
        Err(other) => Err(Interrupted::cancelled(&other.to_string())),
    }
}

/// Runs a future in the current task, and catches its panic.
async fn run_here<F: Future>(future: F) -> thread::Result<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Collects a cancel of this thread's task that was not delivered yet, if there is one.
///
/// For long computations between calls of [`block_on`].
///
/// # Errors
///
/// [`Interrupted`]; the next [`block_on`] does not return it any more.
///
/// # Panics
///
/// In a thread that was not started by [`spawn_thread`] or [`in_thread`].
#[track_caller]
pub fn check_interrupt() -> Result<(), Interrupted> {
    match LINK.with_borrow(|link| link.as_ref().map(|link| link.undelivered.clone())) {
        Some(undelivered) => undelivered.take().map_or(Ok(()), Err),
        None => panic!(
            "this thread has no kernel to wait for: only a thread that was started by \
             `spawn_thread` or `in_thread` has one; elsewhere, `pikake::run` makes one"
        ),
    }
}

/// Whether this thread was started by [`spawn_thread`] or [`in_thread`], so that it can
/// [`block_on`] futures.
pub fn has_kernel() -> bool {
    LINK.with_borrow(Option::is_some)
}
