//! The loop: turns, steps, and the end of a run.
//!
//! A thread has one run at a time, and an operation borrows the run's state. The model calls the
//! operation's wakers, and drops its futures, when the borrow is over.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use futures::future::LocalBoxFuture;

use super::rules::{Number, State};
use super::{Interrupted, ms, nanos};

/// More turns than a program that ends can make.
const MOST_TURNS: u32 = 100_000;

/// How long tasks may take to end when the run is over.
const SHUTDOWN_GRACE_MS: u64 = 5_000;

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
    static LAST_NUMBER: Cell<Number> = const { Cell::new(0) };
}

pub(super) fn next_number() -> Number {
    LAST_NUMBER.set(LAST_NUMBER.get() + 1);
    LAST_NUMBER.get()
}

/// One operation on the state, if there is a run.
pub(super) fn try_with<R>(work: impl FnOnce(&mut State) -> R) -> Option<R> {
    let (result, calls, trash) = STATE.with_borrow_mut(|state| {
        let state = state.as_mut()?;
        let result = work(state);
        Some((result, std::mem::take(&mut state.calls), std::mem::take(&mut state.trash)))
    })?;
    calls.into_iter().for_each(Waker::wake);
    drop(trash);
    Some(result)
}

pub(super) fn with<R>(work: impl FnOnce(&mut State) -> R) -> R {
    try_with(work).expect("inside a run of the model")
}

/// The time, inside a run.
pub(crate) fn now() -> Option<Duration> {
    try_with(|state| Duration::from_nanos(state.now))
}

/// Lets time pass during a step.
pub(crate) fn stall(length: Duration) {
    with(|state| state.now = state.now.saturating_add(nanos(length)));
}

/// Why a task has ended.
#[derive(Clone)]
pub(super) enum End {
    Returned,
    Dropped(Interrupted),
}

pub(super) struct Task {
    pub(super) number: Number,
    name: &'static str,
    /// `None` while the task is polled, and for the main task.
    future: Option<LocalBoxFuture<'static, ()>>,
    pub(super) waker: Waker,
    pub(super) was_stepped: bool,
    pub(super) end: Option<End>,
}

impl Task {
    fn new(name: &'static str, future: Option<LocalBoxFuture<'static, ()>>, mail: &Mail) -> Self {
        let number = next_number();
        let home = thread::current().id();
        let waker = Arc::new(TaskWaker { task: number, home, mail: mail.clone() }).into();
        Self { number, name, future, waker, was_stepped: false, end: None }
    }
}

/// Tasks that other threads woke.
#[derive(Clone, Default)]
pub(super) struct Mail(Arc<Mutex<Vec<Number>>>);

struct TaskWaker {
    task: Number,
    home: ThreadId,
    mail: Mail,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if thread::current().id() == self.home {
            try_with(|state| state.make_ready(self.task));
        } else {
            self.mail.0.lock().expect("no panic").push(self.task);
        }
    }
}

/// Starts a task, perhaps inside the current step. Returns its number, and its future if the run
/// takes no tasks any more.
pub(super) fn start(
    name: &'static str,
    is_eager: bool,
    future: LocalBoxFuture<'static, ()>,
) -> (Number, Option<LocalBoxFuture<'static, ()>>) {
    let (number, refused, begins) = with(|state| {
        let is_refused = state.is_closing;
        let (future, refused) =
            if is_refused { (None, Some(future)) } else { (Some(future), None) };
        let mut task = Task::new(name, future, &state.mail);
        let number = task.number;
        if is_refused {
            task.end = Some(End::Dropped(Interrupted::cancelled(None)));
        } else {
            state.open_task(number);
        }
        state.tasks.push(task);
        let begins = !is_refused && is_eager && state.may_begin_at_once();
        if !begins {
            state.make_ready(number);
        }
        (number, refused, begins)
    });
    if begins {
        step(number, &mut Main { future: None });
    }
    (number, refused)
}

/// Runs a future as the main task and then ends all others; time jumps to the next timer when
/// nothing can be done. The output, or why the main task was dropped.
pub(crate) fn run<F: Future>(future: F) -> Result<F::Output, Interrupted> {
    let running = Running::begin();
    let output = RefCell::new(None);
    let number = with(|state| {
        let task = Task::new("main", None, &state.mail);
        let number = task.number;
        state.tasks.push(task);
        state.open_task(number);
        state.make_ready(number);
        number
    });
    let future = Box::pin(async {
        let given = future.await;
        output.replace(Some(given));
    });
    let mut main = Main { future: Some(future) };
    while end_of(number).is_none() {
        if !turn(&mut main) {
            let next = with(|state| state.next_timer());
            let next = next.expect("a task waits for an event that can still happen");
            with(|state| state.now = state.now.max(next));
        }
    }
    shut_down(&mut main);
    drop(main);
    let end = end_of(number);
    drop(running);
    match (output.into_inner(), end) {
        (Some(output), _) => Ok(output),
        (None, Some(End::Dropped(why))) => Err(why),
        (None, _) => unreachable!("a task that returned has an output"),
    }
}

/// A run. Dropping this ends it.
struct Running;

impl Running {
    fn begin() -> Self {
        assert!(STATE.replace(Some(State::default())).is_none(), "one run at a time");
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Destructors that are called here find no run.
        drop(STATE.take());
    }
}

/// The main task, whose future may borrow.
struct Main<'a> {
    future: Option<LocalBoxFuture<'a, ()>>,
}

pub(super) fn end_of(task: Number) -> Option<End> {
    with(|state| find(state, task).end.clone())
}

pub(super) fn name_of(task: Number) -> &'static str {
    with(|state| find(state, task).name)
}

fn find(state: &mut State, task: Number) -> &mut Task {
    state.tasks.iter_mut().find(|one| one.number == task).expect("a task of this run")
}

/// One pass of the loop; returns whether there was work.
fn turn(main: &mut Main<'_>) -> bool {
    let mail = with(|state| {
        state.turns += 1;
        assert!(state.turns < MOST_TURNS, "the tasks wake each other for ever");
        state.mail.clone()
    });
    let woken = std::mem::take(&mut *mail.0.lock().expect("no panic"));
    woken.into_iter().for_each(|task| with(|state| state.make_ready(task)));
    with(State::fire_sleeps); // events beat deadlines
    with(State::fire_deadlines);
    drop_doomed(main);
    let count = with(|state| state.ready.len());
    for _ in 0..count {
        if let Some(task) = with(|state| state.ready.pop_front()) {
            step(task, main);
            drop_doomed(main);
        }
    }
    count > 0
}

fn step(task: Number, main: &mut Main<'_>) {
    let begun = with(|state| {
        let one = find(state, task);
        if one.end.is_some() {
            return None;
        }
        one.was_stepped = true;
        let (future, waker) = (one.future.take(), one.waker.clone());
        Some((future, waker, state.begin_step(task)))
    });
    let Some((future, waker, before)) = begun else { return };
    let mut cx = Context::from_waker(&waker);
    let has_ended = match future {
        Some(mut future) => {
            // A panic ends the task.
            let poll = AssertUnwindSafe(|| future.as_mut().poll(&mut cx));
            let has_ended = !matches!(catch_unwind(poll), Ok(Poll::Pending));
            if !has_ended {
                with(|state| find(state, task).future = Some(future));
            }
            has_ended
        }
        None => {
            let future = main.future.as_mut().expect("the main task has not ended");
            let has_ended = future.as_mut().poll(&mut cx).is_ready();
            if has_ended {
                main.future = None;
            }
            has_ended
        }
    };
    if has_ended {
        return end(task, End::Returned);
    }
    let (dropped, yields) = with(|state| state.end_step(before));
    match dropped {
        Some(why) => drop_task(task, why, main),
        None if yields => with(|state| state.make_ready(task)),
        None => {}
    }
}

fn end(task: Number, why: End) {
    with(|state| {
        find(state, task).end = Some(why);
        state.end_task(task);
    });
}

/// Drops the tasks that are not to be stepped any more, each with itself as the current task.
fn drop_doomed(main: &mut Main<'_>) {
    while let Some((task, why)) = with(|state| state.doomed.pop_front()) {
        drop_task(task, why, main);
    }
}

fn drop_task(task: Number, why: Interrupted, main: &mut Main<'_>) {
    let future = with(|state| {
        let one = find(state, task);
        if one.end.is_some() {
            return None;
        }
        let future = one.future.take();
        state.begin_step(task);
        Some(future)
    });
    let Some(future) = future else { return };
    match future {
        Some(future) => drop(future),
        None => main.future = None,
    }
    end(task, End::Dropped(why));
}

fn newest_first() -> Vec<Number> {
    let running = |state: &mut State| {
        let running = state.tasks.iter().filter(|task| task.end.is_none());
        running.map(|task| task.number).rev().collect()
    };
    with(running)
}

/// Asks every task to end, and drops those that have not when the grace is over.
fn shut_down(main: &mut Main<'_>) {
    with(|state| state.is_closing = true);
    let why = || Interrupted::cancelled(Some("the kernel is being shut down"));
    for task in newest_first() {
        with(|state| state.request_cancel(task, why(), None));
    }
    let limit = with(|state| state.now) + nanos(ms(SHUTDOWN_GRACE_MS));
    while turn(main) || !newest_first().is_empty() {
        with(|state| {
            if state.ready.is_empty() {
                let next = state.next_timer().unwrap_or(limit).min(limit);
                state.now = state.now.max(next);
            }
        });
        if with(|state| state.now) >= limit {
            break;
        }
    }
    for task in newest_first() {
        with(|state| state.doomed.push_back((task, why())));
    }
    drop_doomed(main);
}
