//! Threads that may wait for their kernel: programs that block, and await in between.
//!
//! Such a thread has a task, which stands for it in the kernel that started it: it is joined,
//! cancelled, named and listed as any other, it may be a member of a group, and it ends when the
//! thread does. Whenever the thread [blocks on](block_on) a future, that runs as a task of the kernel,
//! and the thread's task waits for it.
//!
//! ```text
//!     thread                         its task                        another task
//!   ──────────                     ────────────                    ────────────────
//!   block_on ───── (1) call ──────▶ spawns it ───────────────────▶ runs the future
//!      │ blocks                        │ joins it                        │
//!      ◀────────── (3) answer ─────────┴◀───────────── (2) end ──────────┘
//!     ...
//!   returns ────── (4) outcome ────▶ ends
//! ```
//!
//! A cancel of the thread's task goes to the future that the thread is blocked on, whose await
//! returns it; and if there is none, to the next one, which is not begun. It is told once; after that
//! the thread may clean up, and block on futures as it likes.

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

/// What a thread's task is called, and the thread, where nobody has named the task.
const NAME: &str = "pikake-thread";

thread_local! {
    /// How this thread reaches its task.
    static LINE: RefCell<Option<Line>> = const { RefCell::new(None) };
}

struct Line {
    /// For the next call. Dropped, it says that there will be none.
    call: Reply<Call>,
    due: Due,
}

/// What a thread asks of its task.
struct Call {
    serve: Box<dyn FnOnce(Due) -> Served + Send>,
    /// Where the call after this one will come from.
    next: Replied<Call>,
}

type Served = Pin<Box<dyn Future<Output = ()>>>;

/// An interruption of the thread's task that the thread has not been told of.
#[derive(Clone, Default)]
struct Due(Arc<Mutex<Option<Interrupted>>>);

impl Due {
    fn set(&self, why: Interrupted) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(by_another(why));
    }

    fn take(&self) -> Option<Interrupted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// An interruption as it is told to another task: a deadline is not that one's.
fn by_another(why: Interrupted) -> Interrupted {
    if why.is_cancel() { why } else { Interrupted::cancelled(&why.to_string()) }
}

/// Starts a thread of its own for a closure, and a task that stands for it. In the closure,
/// [`block_on`] waits for the kernel.
///
/// The thread starts with the first step of the task, and has its name. It is not one of the kernel's
/// helper threads, and counts for no limit. Joining the task gives what the closure returned.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example() -> Result<(), pikake_traps::TaskError> {
/// use pikake_task::thread;
///
/// let task = thread::spawn_thread(|| {
///     let sum: u64 = (0..1_000_000).sum(); // may take its time, or block
///     thread::block_on(|| pikake_traps::sleep(Duration::from_millis(10)))??;
///     Ok::<_, pikake_traps::Interrupted>(sum)
/// });
/// let sum = task.await?;
/// # Ok(()) }
/// ```
///
/// # Cancellation
///
/// A cancel of the task is told to the thread, once: see [`block_on`] and [`check_interrupt`]. The
/// task ends when the thread has ended, so [`Task::cancel`] waits for that. A task that was cancelled
/// before its first step has started no thread.
///
/// An [abort](Task::abort) of the task, or the end of its kernel, cannot stop the thread: it is
/// detached, and whatever it blocks on then is an [`Interrupted`]. When a kernel is shut down its
/// threads have the shutdown's grace to end before that, in which they may still block on futures.
///
/// # Panics
///
/// Outside a kernel. The task panics with what the closure panics with, or when no thread can be
/// started; a simulation starts none.
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
/// This is what the task of [`spawn_thread`] runs: for a member of a group, or for a task with a
/// name, which is then the thread's, too.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), pikake_task::GroupError> {
/// use pikake_task::{TaskGroup, thread};
///
/// let mut group = TaskGroup::new();
/// for number in 1..=3 {
///     group.spawn(thread::in_thread(move || number * number));
/// }
/// assert_eq!(group.join_all().await?, [1, 4, 9]);
/// # Ok(()) }
/// ```
///
/// # Cancellation
///
/// An interruption of the awaiting task is told to the thread, and this returns when the thread has
/// ended. Dropped, it detaches the thread.
///
/// # Panics
///
/// With the closure's panic. When no thread can be started; a simulation starts none. When polled outside a task of a kernel.
#[track_caller]
pub fn in_thread<F, T>(work: F) -> impl Future<Output = T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let place = Location::caller();
    async move {
        let due = Due::default();
        let (call, mut calls) = Reply::channel();
        let (end, ended) = Reply::channel();
        let line = Line { call, due: due.clone() };
        let life = move || {
            LINE.set(Some(line));
            let outcome = catch_unwind(AssertUnwindSafe(work));
            // From here on nothing that is dropped in this thread can reach the task.
            drop(LINE.take());
            end.send(outcome);
        };
        let name = match current().name() {
            "" => NAME.to_owned(),
            name => name.to_owned(),
        };
        if let Err(error) = start_thread(&name, life) {
            panic!("no thread could be started: {error}");
        }
        while let Some(Call { serve, next }) = reply(&mut calls, &due, place).await {
            calls = next;
            serve(due.clone()).await;
        }
        let mut ended = ended;
        match reply(&mut ended, &due, place).await {
            Some(Ok(value)) => value,
            Some(Err(panic)) => resume_unwind(panic),
            None => unreachable!("a thread that has started reports how it ends"),
        }
    }
}

/// What the thread says, whatever interrupts the wait for it.
async fn reply<R>(
    replied: &mut Replied<R>,
    due: &Due,
    place: &'static Location<'static>,
) -> Option<R> {
    loop {
        match future_wait_at(&mut *replied, place).await {
            Ok(reply) => return reply,
            Err(why) => due.set(why),
        }
    }
}

/// Runs a future as a task of the kernel that this thread was started from, and blocks the thread
/// until it has ended.
///
/// The closure is called, and the future it makes is polled, on the kernel's thread, so the future
/// need not be `Send`. A panic of the future goes on in this thread.
///
/// # Cancellation
///
/// When the [thread's task](spawn_thread) is cancelled, so is the task of this future: its await
/// returns an [`Interrupted`], and what the future makes of that is returned here. If the thread was
/// not blocked on anything then, the next call returns the interruption without beginning. Either way
/// it is told once.
///
/// # Errors
///
/// [`Interrupted`], when the future gave no output: the thread's task was cancelled before the future
/// was begun, or while it waited on foreign futures alone; or that task was aborted, or its kernel has
/// ended, and then every call gives this.
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
        "`block_on` was called inside a kernel, all of whose tasks it would stop: await the future \
         instead"
    );
    let place = Location::caller();
    check_interrupt()?;
    let (answer, answered) = mpsc::channel();
    let (next_call, next) = Reply::channel();
    let (call, due) = LINE.with_borrow_mut(|line| {
        let line = line.as_mut().expect("it was there just now");
        (std::mem::replace(&mut line.call, next_call), line.due.clone())
    });
    let serve = move |due| -> Served { Box::pin(serve(make, answer, due, place)) };
    call.send(Call { serve: Box::new(serve), next });
    match answered.recv() {
        Ok(Ok(Ok(output))) => Ok(output),
        Ok(Ok(Err(panic))) => resume_unwind(panic),
        Ok(Err(why)) => Err(why),
        Err(mpsc::RecvError) => Err(due.take().unwrap_or_else(|| {
            Interrupted::cancelled("this thread's task was aborted, or its kernel has ended")
        })),
    }
}

/// What a future came to that a thread blocks on: its output or its panic; or why there is neither.
type Answer<T> = Result<thread::Result<T>, Interrupted>;

/// Runs the future that a thread blocks on, and answers.
async fn serve<M, F>(
    make: M,
    answer: mpsc::Sender<Answer<F::Output>>,
    due: Due,
    place: &'static Location<'static>,
) where
    M: FnOnce() -> F + 'static,
    F: Future<Output: 'static> + 'static,
{
    let came_to = match due.take() {
        Some(why) => Err(why),
        None => run(make, place).await,
    };
    // The thread waits for this, and for nothing else.
    drop(answer.send(came_to));
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
    if task.is_finished()
        && let Some(make) = make.take()
    {
        // A kernel that is being shut down takes no task. But cleanup may wait.
        return Ok(run_here(async move { make().await }).await);
    }
    let mut task = task.cancel_on_drop();
    let mut is_told_from_here = false;
    let outcome = loop {
        match (&mut task).await {
            Err(TaskError::Interrupted(why)) => {
                is_told_from_here = true;
                task.task_ref().request_cancel(by_another(why));
            }
            outcome => break outcome,
        }
    };
    if task.task_ref().was_asked_to_end() && !is_told_from_here {
        // The kernel is being shut down and has asked both, and the thread is to be told once.
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

/// Collects a cancel of this thread's task that the thread was not told of yet, if there is one.
///
/// For a thread that computes, and wants to know before it goes on.
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
    match LINE.with_borrow(|line| line.as_ref().map(|line| line.due.clone())) {
        Some(due) => due.take().map_or(Ok(()), Err),
        None => panic!(
            "this thread has no kernel to wait for: only a thread that was started by \
             `spawn_thread` or `in_thread` has one; elsewhere, `pikake::run` makes one"
        ),
    }
}

/// Whether this thread was started by [`spawn_thread`] or [`in_thread`], so that it can
/// [`block_on`] futures.
pub fn has_kernel() -> bool {
    LINE.with_borrow(Option::is_some)
}
