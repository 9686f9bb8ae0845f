//! Tasks whose futures are not `Send`: every task of a kernel stays on its thread, so a set is no
//! more than a list of tasks that end with it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe, Location};
use std::pin::Pin;
use std::rc::{Rc, Weak};

use std::task::{Context, Poll, Waker};

use super::JoinHandle;
use crate::runtime::task::{spawn_here, AbortHandle};
use crate::runtime::Runtime;

/// The shortest list that is searched for tasks that have ended.
const PRUNE_FROM: usize = 32;

/// A task that waits for its kernel: the set was made outside of one.
type Start = Box<dyn FnOnce()>;

#[derive(Default)]
struct Tasks {
    /// Tasks that may have ended, each with its future.
    tasks: Vec<(AbortHandle, Weak<dyn Clear>)>,
    /// The number of tasks at which those that have ended are next removed.
    prune_at: usize,
    unstarted: Vec<Start>,
    waker: Option<Waker>,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|(task, _)| task.abort());
        for future in self.tasks.iter().filter_map(|(_, future)| future.upgrade()) {
            future.clear();
        }
    }
}

/// The future of a task, which the set drops with itself.
struct Slot<F> {
    future: RefCell<Option<Pin<Box<F>>>>,
    /// The panic of that drop, for the task.
    panic: Cell<Option<Box<dyn Any + Send>>>,
}

trait Clear {
    /// Drops the future, unless this is called in its poll.
    fn clear(&self);
}

impl<F> Clear for Slot<F> {
    fn clear(&self) {
        let future = self.future.try_borrow_mut().ok().and_then(|mut future| future.take());
        self.panic.set(catch_unwind(AssertUnwindSafe(|| drop(future))).err());
    }
}

thread_local! {
    /// The sets that are entered.
    static ENTERED: RefCell<Vec<Rc<RefCell<Tasks>>>> = const { RefCell::new(Vec::new()) };
}

/// Starts a task whose future need not be `Send`, in the current kernel.
///
/// # Panics
///
/// Outside of a kernel.
#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let entered = ENTERED.with_borrow(|entered| entered.last().cloned());
    match entered {
        Some(tasks) => spawn_in(&tasks, future, Location::caller()),
        None if pikake_traps::door::current_kernel().is_some() => {
            spawn_here(future, Location::caller())
        }
        None => panic!(
            "`spawn_local` called from outside of a `task::LocalSet` or `runtime::LocalRuntime`"
        ),
    }
}

fn spawn_in<F>(
    tasks: &Rc<RefCell<Tasks>>,
    future: F,
    place: &'static Location<'static>,
) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    let last = Last(tasks.clone());
    let future = RefCell::new(Some(Box::pin(future)));
    let slot = Rc::new(Slot { future, panic: Cell::new(None) });
    let future: Rc<dyn Clear> = slot.clone();
    let future = Rc::downgrade(&future);
    let inside = Inside { tasks: tasks.clone(), future: Cleared(slot) };
    let task = async move {
        let _last = last;
        inside.await
    };
    let (start, join) = crate::runtime::task::prepare(task, place);
    let mut list = tasks.borrow_mut();
    if list.tasks.len() >= list.prune_at {
        list.tasks.retain(|(task, _)| !task.is_finished());
        list.prune_at = PRUNE_FROM.max(2 * list.tasks.len());
    }
    list.tasks.push((join.abort_handle(), future));
    if pikake_traps::door::current_kernel().is_some() {
        drop(list);
        start();
    } else {
        list.unstarted.push(Box::new(start));
    }
    join
}

/// Polls a future that the set may have dropped: its task is then about to be aborted.
struct Cleared<F>(Rc<Slot<F>>);

impl<F: Future> Future for Cleared<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match &mut *self.0.future.borrow_mut() {
            Some(future) => future.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Cleared<F> {
    fn drop(&mut self) {
        if let Some(panic) = self.0.panic.take() {
            // The task, which drops this, gives the panic to its handle.
            if !std::thread::panicking() {
                resume_unwind(panic);
            }
        }
    }
}

/// Tells the set that a task has ended.
struct Last(Rc<RefCell<Tasks>>);

impl Drop for Last {
    fn drop(&mut self) {
        let waker = self.0.borrow_mut().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A future inside a set: what it spawns by [`spawn_local`] is the set's.
struct Inside<F> {
    tasks: Rc<RefCell<Tasks>>,
    future: F,
}

impl<F: Future + Unpin> Future for Inside<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = LocalEnterGuard::new(&self.tasks);
        Pin::new(&mut self.future).poll(cx)
    }
}

/// Tasks whose futures are not `Send`, and that end when the set is dropped.
///
/// Once they have started they go on like all tasks of the kernel, also while nothing polls the
/// set.
pub struct LocalSet {
    tasks: Rc<RefCell<Tasks>>,
}

impl LocalSet {
    /// A set without tasks.
    pub fn new() -> Self {
        Self { tasks: Rc::default() }
    }

    /// Has [`spawn_local`] start its tasks in this set until the guard is dropped.
    pub fn enter(&self) -> LocalEnterGuard {
        LocalEnterGuard::new(&self.tasks)
    }

    /// Starts a task; outside of a kernel, as soon as the set is polled in one.
    #[track_caller]
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        spawn_in(&self.tasks, future, Location::caller())
    }

    /// Runs a future inside the set, in a runtime.
    #[track_caller]
    pub fn block_on<F: Future>(&self, runtime: &Runtime, future: F) -> F::Output {
        runtime.block_on(self.run_until(future))
    }

    /// Runs a future inside the set.
    pub async fn run_until<F: Future>(&self, future: F) -> F::Output {
        self.start();
        let future = std::pin::pin!(future);
        Inside { tasks: self.tasks.clone(), future }.await
    }

    fn start(&self) {
        let unstarted = std::mem::take(&mut self.tasks.borrow_mut().unstarted);
        unstarted.into_iter().for_each(|start| start());
    }
}

impl Default for LocalSet {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LocalSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSet").finish_non_exhaustive()
    }
}

/// Ends when all tasks of the set have.
impl Future for LocalSet {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.start();
        let mut tasks = self.tasks.borrow_mut();
        tasks.waker = Some(cx.waker().clone());
        match tasks.tasks.iter().all(|(task, _)| task.is_finished()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for LocalSet {
    fn drop(&mut self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
    }
}

/// Leaves a set when dropped.
pub struct LocalEnterGuard {
    thread: PhantomData<*const ()>,
}

impl LocalEnterGuard {
    fn new(tasks: &Rc<RefCell<Tasks>>) -> Self {
        ENTERED.with_borrow_mut(|entered| entered.push(tasks.clone()));
        Self { thread: PhantomData }
    }
}

impl Drop for LocalEnterGuard {
    fn drop(&mut self) {
        let left = ENTERED.try_with(|entered| entered.borrow_mut().pop());
        drop(left);
    }
}

impl fmt::Debug for LocalEnterGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalEnterGuard").finish()
    }
}
