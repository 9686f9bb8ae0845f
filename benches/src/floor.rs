//! The floor for scheduling: what a queue of futures and a timer heap (pikake's) cost if they do no
//! more than these workloads need. One thread, wakers that must stay on it, no cancellation, no
//! sockets; it is here to be compared with, and would be unsound as a library.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::thread;
use std::time::{Duration, Instant};

use pikake::time::{Ticks, TimerHeap, TimerKey};

use crate::figures::{Figures, Stopwatch};
use crate::runtime::{Common, CommonLock, Runtime};

thread_local! {
    static QUEUE: RefCell<VecDeque<Rc<dyn Step>>> = const { RefCell::new(VecDeque::new()) };
    static TIMERS: RefCell<TimerHeap<Waker>> = const { RefCell::new(TimerHeap::new()) };
    static EPOCH: Instant = Instant::now();
}

/// A task as the queue sees it.
trait Step {
    fn step(self: Rc<Self>);
}

/// A task as those see it who wait for its end.
pub trait End<T> {
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<T>;
}

struct Task<F: Future> {
    is_queued: Cell<bool>,
    future: RefCell<Option<F>>,
    output: Cell<Option<F::Output>>,
    joiner: Cell<Option<Waker>>,
}

impl<F: Future<Output: 'static> + 'static> Task<F> {
    const VTABLE: RawWakerVTable =
        RawWakerVTable::new(Self::clone_waker, Self::wake, Self::wake_by_ref, Self::drop_waker);

    fn start(future: F) -> Rc<Self> {
        let task = Rc::new(Self {
            is_queued: Cell::new(false),
            future: RefCell::new(Some(future)),
            output: Cell::new(None),
            joiner: Cell::new(None),
        });
        task.clone().enqueue();
        task
    }

    fn enqueue(self: Rc<Self>) {
        if !self.is_queued.replace(true) {
            QUEUE.with(|queue| queue.borrow_mut().push_back(self));
        }
    }

    fn clone_waker(data: *const ()) -> RawWaker {
        // SAFETY: `data` came from `Rc::into_raw`, and the waker that has it keeps its count.
        unsafe { Rc::increment_strong_count(data.cast::<Self>()) };
        RawWaker::new(data, &Self::VTABLE)
    }

    fn wake(data: *const ()) {
        // SAFETY: `data` came from `Rc::into_raw`, and the waker gives its count away.
        unsafe { Rc::from_raw(data.cast::<Self>()) }.enqueue();
    }

    fn wake_by_ref(data: *const ()) {
        Self::clone_waker(data);
        Self::wake(data);
    }

    fn drop_waker(data: *const ()) {
        // SAFETY: `data` came from `Rc::into_raw`, and the waker gives its count away.
        drop(unsafe { Rc::from_raw(data.cast::<Self>()) });
    }
}

impl<F: Future<Output: 'static> + 'static> Step for Task<F> {
    fn step(self: Rc<Self>) {
        self.is_queued.set(false);
        let raw = RawWaker::new(Rc::as_ptr(&self).cast(), &Self::VTABLE);
        // SAFETY: the functions of the table do what `RawWaker` asks, as long as the waker stays on
        // this thread; the workloads for the floor keep it there. This one borrows the count of
        // `self`, and does not give it away.
        let waker = ManuallyDrop::new(unsafe { Waker::from_raw(raw) });
        let mut slot = self.future.borrow_mut();
        let Some(future) = slot.as_mut() else { return };
        // SAFETY: the future lies in an `Rc` and is dropped there, below.
        let future = unsafe { Pin::new_unchecked(future) };
        if let Poll::Ready(output) = future.poll(&mut Context::from_waker(&waker)) {
            *slot = None;
            self.output.set(Some(output));
            if let Some(joiner) = self.joiner.take() {
                joiner.wake();
            }
        }
    }
}

impl<F: Future<Output: 'static> + 'static> End<F::Output> for Task<F> {
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<F::Output> {
        if let Some(output) = self.output.take() {
            return Poll::Ready(output);
        }
        self.joiner.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

/// Nanoseconds since the first call.
fn now() -> u64 {
    EPOCH.with(|epoch| epoch.elapsed().as_nanos() as u64)
}

/// Wakes who is due; returns how long it is until the next one.
fn fire_timers() -> Option<Duration> {
    TIMERS.with(|timers| {
        let mut timers = timers.borrow_mut();
        let next = timers.next()?;
        let now = now();
        while let Some((_, waker)) = timers.pop_due(Ticks::new(now)) {
            waker.wake();
        }
        Some(Duration::from_nanos(next.get().saturating_sub(now)))
    })
}

struct Sleep {
    until: u64,
    key: Option<TimerKey>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.key.is_none() {
            let (at, waker) = (Ticks::new(self.until), cx.waker().clone());
            self.key = Some(TIMERS.with(|timers| timers.borrow_mut().insert(at, waker)));
            return Poll::Pending;
        }
        match now() < self.until {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            TIMERS.with(|timers| timers.borrow_mut().remove(key));
        }
    }
}

pub struct Floor;

impl Runtime for Floor {
    type Task<T: 'static> = Rc<dyn End<T>>;
    type Channel = Common;
    type Lock = CommonLock;

    fn run<F: Future<Output: 'static> + 'static>(main: F) -> F::Output {
        let main = Task::start(main);
        loop {
            let next_timer = fire_timers();
            let ready = QUEUE.with(|queue| queue.borrow().len());
            for _ in 0..ready {
                let task = QUEUE.with(|queue| queue.borrow_mut().pop_front());
                task.expect("only this loop takes tasks out").step();
            }
            if let Some(output) = main.output.take() {
                return output;
            }
            if ready == 0 {
                thread::sleep(next_timer.expect("a task waits for something"));
            }
        }
    }

    fn spawn<F: Future<Output: 'static> + 'static>(future: F) -> Self::Task<F::Output> {
        Task::start(future)
    }

    fn join<T: 'static>(task: Self::Task<T>) -> impl Future<Output = T> {
        std::future::poll_fn(move |cx| task.poll_end(cx))
    }

    fn detach<T: 'static>(task: Self::Task<T>) {
        drop(task);
    }

    fn sleep(length: Duration) -> impl Future<Output = ()> {
        Sleep { until: now() + length.as_nanos() as u64, key: None }
    }

    async fn in_time<F: Future>(length: Duration, future: F) -> F::Output {
        let mut sleep = std::pin::pin!(Self::sleep(length));
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            assert!(sleep.as_mut().poll(cx).is_pending(), "in time");
            Poll::Pending
        })
        .await
    }
}

/// The floor below the floor: a queue of boxed closures. `None` for what closures cannot express.
pub fn closures(workload: &str, size: usize, rounds: usize) -> Option<Figures> {
    type Queue = RefCell<VecDeque<Box<dyn FnMut() -> bool>>>;
    let queue = Rc::new(Queue::default());
    let done = Rc::new(Cell::new(0));
    // A closure is called until it says that it has ended.
    let spawn = |mut calls: usize| {
        let done = done.clone();
        queue.borrow_mut().push_back(Box::new(move || {
            calls -= 1;
            done.set(done.get() + usize::from(calls == 0));
            calls == 0
        }));
    };
    let run = || {
        while let Some(mut closure) = { queue.borrow_mut().pop_front() } {
            if !closure() {
                queue.borrow_mut().push_back(closure);
            }
        }
    };
    let watch = Stopwatch::start();
    match workload {
        "spawn_join" => {
            for _ in 0..rounds {
                (0..size).for_each(|_| spawn(1));
                run();
            }
            assert_eq!(done.get(), size * rounds);
        }
        "yield" => {
            (0..size).for_each(|_| spawn(rounds));
            run();
            assert_eq!(done.get(), size);
        }
        _ => return None,
    }
    Some(watch.per(size * rounds))
}
