//! A kernel in safe code that breaks its contract cannot make the task cell, a wait or a waker
//! unsound.
//!
//! Such faults would corrupt memory, so these tests are worth most under valgrind. Without valgrind
//! they still detect a future that is dropped twice or never, and a count below zero.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::SystemTime;

use pikake::time::{Rate, Ticks};
use pikake::traps::{
    Addresses, Attempt, BlockingCall, Direction, Graces, Home, IsReady, Local, LocalHome, Message,
    OpenSocket, Opened, Outside, Parked, Passed, Quotas, Reply, SocketId, Start, TaskRef,
    TrapHandler, WaitKey, WaitPlace, WaitQueue, Waiter, door, park, socket_wait, timeout_after,
};
use pikake::{Interrupted, Task, TaskError, now, sleep, spawn, yield_now};

use crate::support::{OnDrop, ms, within};

/// An extra action of a [`Careless`] kernel when it begins a wait.
type Hook = Rc<dyn Fn(&Careless)>;

/// A kernel that keeps every task and every waiter that it sees, and answers what a test sets.
struct Careless {
    local: Local,
    panics: Cell<bool>,
    tasks: RefCell<Vec<TaskRef>>,
    waiters: RefCell<Vec<Waiter>>,
    parked: Cell<Parked>,
    collected: Cell<Parked>,
    hook: RefCell<Option<Hook>>,
    /// Of the waits that were collected and withdrawn.
    keys: RefCell<Vec<WaitKey>>,
    timers: Cell<Timers>,
    armed: RefCell<Vec<Waiter>>,
    stored: RefCell<Option<Passed>>,
}

/// How the kernel treats deadlines.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
enum Timers {
    /// They never pass.
    #[default]
    Never,
    /// They have passed, and cannot be disarmed.
    Lost,
    /// All report that the first waiter's deadline has passed, without a notification.
    Unnotified,
    /// As a kernel should.
    Stored,
}

impl Careless {
    fn new() -> Rc<Self> {
        let graces = Graces { foreign: FOREIGN.get(), report: u64::MAX, cleanup_limit: None };
        let quotas = Quotas { attempts: u32::MAX, answers: u32::MAX };
        Rc::new(Self {
            local: Local::new(Home::open(|| {}), graces, quotas),
            panics: Cell::new(false),
            tasks: RefCell::default(),
            waiters: RefCell::default(),
            parked: Cell::new(Parked::Waits(WaitKey(0))),
            collected: Cell::new(Parked::Waits(WaitKey(0))),
            hook: RefCell::default(),
            keys: RefCell::default(),
            timers: Cell::default(),
            armed: RefCell::default(),
            stored: RefCell::default(),
        })
    }

    fn enter<R>(self: &Rc<Self>, inside: impl FnOnce() -> R) -> R {
        let handler: Rc<dyn TrapHandler> = self.clone();
        door::enter(&handler, inside).expect("no kernel runs here")
    }

    /// Starts a task that is not stepped, and gives a waker of it.
    fn start(self: &Rc<Self>, future: impl Future<Output = ()> + 'static) -> Waker {
        self.enter(|| {
            spawn(future).detach();
            self.last_task().waker()
        })
    }

    fn last_task(&self) -> TaskRef {
        self.tasks.borrow().last().expect("a task was spawned").clone()
    }

    /// Steps each task that it knows of, whatever the task waits for.
    fn step_all(self: &Rc<Self>) {
        self.enter(|| {
            while self.local.ready().pop().is_some() {}
            let tasks = self.tasks.borrow().clone();
            for task in tasks {
                if !task.is_ended() {
                    self.step(task);
                }
            }
        });
    }

    /// Steps the tasks that are ready, and those that they make ready; returns the number of steps.
    fn step_ready(self: &Rc<Self>) -> u32 {
        self.enter(|| {
            let mut steps = 0;
            while let Some(task) = self.local.ready().pop() {
                steps += 1;
                if !task.is_ended() {
                    self.step(task);
                }
                assert!(steps < 100, "the ready list has no end");
            }
            steps
        })
    }

    fn step(&self, task: TaskRef) {
        if let Some(task) = self.local.step(task)
            && let Some(why) = self.local.drop_reason(&task)
        {
            task.abandon(TaskError::Cancelled(why));
        }
        self.local.call_wakers();
        self.local.clear_attention();
    }

    fn notify_all(self: &Rc<Self>) {
        self.enter(|| {
            let waiters = self.waiters.borrow().clone();
            waiters.iter().for_each(|waiter| self.local.notify(waiter));
            self.local.call_wakers();
        });
    }

    fn set_hook(&self, hook: impl Fn(&Careless) + 'static) {
        self.hook.replace(Some(Rc::new(hook)));
    }

    fn forget_tasks(&self) {
        let tasks = self.tasks.take();
        drop(tasks);
    }

    /// Gives up all references to tasks that it has, but for those of the ready list.
    fn forget_all(&self) {
        self.forget_tasks();
        let waiters = (self.waiters.take(), self.armed.take());
        drop(waiters);
        self.hook.take();
    }

    /// The wake that was sent here.
    fn mail(&self) -> pikake::traps::RemoteWake {
        let mut mail = Vec::new();
        self.local.home().take_mail(&mut mail);
        match mail.pop() {
            Some(Message::Wake(wake)) => wake,
            other => panic!("a wake was sent, not {other:?}"),
        }
    }
}

impl Drop for Careless {
    fn drop(&mut self) {
        // Wakes that were never taken out refer to this kernel's address, which holds them.
        drop(self.local.home().close());
    }
}

impl TrapHandler for Careless {
    fn local(&self) -> &Local {
        assert!(!self.panics.get(), "the kernel's own fault");
        &self.local
    }

    fn now(&self) -> Ticks {
        Ticks::ZERO
    }

    fn rate(&self) -> Rate {
        Rate::NANOS
    }

    fn park(&self, place: WaitPlace<'_>, waiter: &Waiter) -> Parked {
        if let WaitPlace::Deadline(..) = place {
            self.armed.borrow_mut().push(waiter.clone());
            return Parked::Waits(WaitKey(1));
        }
        self.waiters.borrow_mut().push(waiter.clone());
        let hook = self.hook.borrow().clone();
        if let Some(hook) = hook {
            hook(self);
        }
        self.parked.get()
    }

    fn collect(&self, place: WaitPlace<'_>, key: WaitKey, _: &Waiter) -> Parked {
        match (place, self.timers.get()) {
            (WaitPlace::Deadline(..), Timers::Never) => Parked::Waits(key),
            (WaitPlace::Deadline(..), Timers::Lost) => Parked::Satisfied,
            (WaitPlace::Deadline(_, to), Timers::Stored) => {
                *to = self.stored.take();
                if to.is_some() { Parked::Satisfied } else { Parked::Waits(key) }
            }
            (WaitPlace::Deadline(_, to), Timers::Unnotified) => {
                let passed = |waiter: &Waiter| Passed {
                    number: u64::MAX,
                    at: Ticks::ZERO,
                    waiter: waiter.clone(),
                };
                *to = self.armed.borrow().first().map(passed);
                Parked::Satisfied
            }
            _ => {
                self.keys.borrow_mut().push(key);
                self.collected.get()
            }
        }
    }

    fn leave(&self, place: WaitPlace<'_>, key: WaitKey) -> bool {
        if !matches!(place, WaitPlace::Deadline(..)) {
            self.keys.borrow_mut().push(key);
        }
        false
    }

    fn notify(&self, _: &WaitQueue, _: usize) -> usize {
        usize::MAX
    }

    fn forget(&self, _: &WaitQueue) {}

    fn spawn(&self, task: &TaskRef, _: Start) -> bool {
        self.tasks.borrow_mut().push(task.clone());
        true
    }

    fn abort(&self, _: &TaskRef, _: TaskError) {}

    fn open(&self, _: OpenSocket<'_>) -> io::Result<Opened<SocketId>> {
        Ok(Opened::One(self.socket()))
    }

    fn attempt(&self, _: SocketId, _: Attempt<'_>) -> Option<io::Result<usize>> {
        None
    }

    fn outside(&self) -> &dyn Outside {
        self
    }
}

impl Careless {
    fn socket(&self) -> SocketId {
        SocketId { kernel: self.local.home().id(), index: u32::MAX, generation: 0 }
    }
}

impl Outside for Careless {
    fn wall_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn random(&self, _: &mut [u8]) {}

    fn start_thread(&self, _: &str, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn system(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_closing(&self) -> bool {
        false
    }

    fn blocking(&self, _: BlockingCall) {}

    fn lookup(&self, _: &str, _: u16, _: Reply<Addresses>) {}
}

/// Counts how often a future that holds it is dropped.
fn counted() -> (Rc<Cell<u32>>, impl Drop) {
    let drops = Rc::new(Cell::new(0));
    let counter = drops.clone();
    (drops, OnDrop(move || counter.set(counter.get() + 1)))
}

/// A future that is never done and holds `guard`.
async fn hold<G>(guard: G) {
    let _guard = guard;
    std::future::pending().await
}

/// A future that waits in a queue of its own and holds `guard`.
async fn park_with<G>(guard: G) {
    let _guard = guard;
    let _ = park(&WaitQueue::new()).await;
}

/// The text of a panic.
fn text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).expect("a text")
}

/// A combinator's waker, which counts its calls and may panic.
#[derive(Default)]
struct Counter {
    calls: AtomicU32,
    panics: bool,
}

impl Counter {
    fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "a waker that panics");
    }
}

/// Polls once, with that waker.
fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn panicking_handler_leaves_the_kernel() {
    let kernel = Careless::new();
    kernel.panics.set(true);
    assert!(catch_unwind(AssertUnwindSafe(|| kernel.enter(|| ()))).is_err());
    drop(kernel);
    assert!(!door::is_open());
    let panic = catch_unwind(now).expect_err("no kernel is there to be asked");
    assert!(text(&*panic).contains("needs a pikake kernel"), "{}", text(&*panic));
}

#[test]
fn panicking_body_leaves_the_kernel() {
    let kernel = Careless::new();
    let panic = catch_unwind(AssertUnwindSafe(|| kernel.enter(|| panic!("inside"))));
    assert!(panic.is_err());
    assert!(!door::is_open());
    assert_eq!(kernel.enter(now), Ticks::ZERO, "and it opens again");
}

/// The ready list has a reference of its own to each task in it.
#[test]
fn a_forgotten_ready_task_is_dropped_once() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    let waker = kernel.start(hold(guard));
    let task = kernel.last_task();
    kernel.local.start(&task);
    drop(task);
    kernel.forget_tasks();
    assert_eq!(drops.get(), 0, "it is ready");
    let popped = kernel.local.ready().pop();
    assert_eq!(drops.get(), 0, "it was popped");
    drop(popped);
    assert_eq!(drops.get(), 1);
    kernel.enter(|| waker.wake_by_ref());
    waker.wake();
    assert_eq!((drops.get(), kernel.local.ready().len()), (1, 0));
}

#[test]
fn kernel_end_drops_ready_tasks() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    let waker = kernel.start(hold(guard));
    kernel.enter(|| waker.wake_by_ref());
    kernel.forget_tasks();
    drop(kernel);
    assert_eq!(drops.get(), 1);
    waker.wake();
    assert_eq!(drops.get(), 1);
}

/// A task that was popped and not stepped still counts as ready, so a wake does not link it again.
#[test]
fn a_task_popped_and_forgotten_is_dropped_once() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    let waker = kernel.start(hold(guard));
    kernel.enter(|| {
        waker.wake_by_ref();
        drop(kernel.local.ready().pop());
        waker.wake_by_ref();
    });
    kernel.forget_tasks();
    while let Some(task) = kernel.local.ready().pop() {
        drop(task);
    }
    assert_eq!(drops.get(), 1);
}

/// A step could link the task into the list a second time, and the list would have no end.
#[test]
fn stepping_a_task_in_the_ready_list_panics() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    let waker = kernel.start(hold(guard));
    let task = kernel.last_task();
    kernel.enter(|| {
        kernel.local.start(&task);
        let step = catch_unwind(AssertUnwindSafe(|| kernel.local.step(task.clone())));
        let panic = step.expect_err("it is in the list");
        assert!(text(&*panic).contains("in the ready list (I6)"), "{}", text(&*panic));
        waker.wake_by_ref();
    });
    assert_eq!((kernel.local.ready().len(), kernel.step_ready()), (1, 1));
    kernel.enter(|| waker.wake());
    drop(task);
    kernel.forget_all();
    assert_eq!((kernel.step_ready(), drops.get()), (1, 1));
}

#[test]
fn an_arrived_task_outlives_its_handlers_references() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    kernel.start(hold(guard)).wake();
    let wake = kernel.mail();
    kernel.enter(|| {
        let task = wake.arrive().expect("it has not ended");
        kernel.forget_tasks();
        assert_eq!(drops.get(), 0);
        drop(task.clone());
        assert_eq!(drops.get(), 0);
        drop(wake);
        drop(task);
        assert_eq!(drops.get(), 1);
    });
}

#[test]
fn a_task_outlives_its_own_step() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    let waker = kernel.start({
        let (kernel, drops) = (kernel.clone(), drops.clone());
        async move {
            let _guard = guard;
            kernel.forget_tasks();
            assert_eq!(drops.get(), 0, "it is being polled");
        }
    });
    waker.wake();
    let wake = kernel.mail();
    kernel.enter(|| {
        let task = wake.arrive().expect("it has not ended");
        drop(wake);
        let task = kernel.local.step(task).expect("it ended");
        assert!(task.is_ended());
        assert_eq!(drops.get(), 1);
    });
}

#[test]
fn a_wake_arriving_at_another_kernel_is_refused() {
    let (one, other) = (Careless::new(), Careless::new());
    let (drops, guard) = counted();
    one.start(hold(guard)).wake();
    let wake = one.mail();
    let refused = catch_unwind(AssertUnwindSafe(|| other.enter(|| wake.arrive().is_some())));
    let panic = refused.expect_err("not its kernel");
    assert!(text(&*panic).contains("(I5)"));
    drop(wake);
    one.forget_tasks();
    assert_eq!(drops.get(), 1);
}

#[test]
fn a_waker_on_another_thread_wakes_at_home() {
    within(|| {
        let here = Careless::new();
        let (drops, guard) = counted();
        let waker = here.start(hold(guard));
        let (send, kept) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let there = Careless::new();
            there.enter(|| waker.wake_by_ref());
            send.send((there.local.ready().len(), there.local.home().has_mail())).unwrap();
        });
        thread.join().unwrap();
        assert_eq!(kept.recv(), Ok((0, false)));
        assert!(here.local.home().has_mail(), "it was sent home");
        here.forget_tasks();
        assert_eq!(drops.get(), 1);
        let wake = here.mail();
        assert!(here.enter(|| wake.arrive().is_none()), "the task has ended");
    });
}

/// The task's traps go to the kernel that steps it, and its wakes go to its own kernel.
#[test]
fn a_task_may_be_stepped_by_another_kernel() {
    let (one, other) = (Careless::new(), Careless::new());
    let (drops, guard) = counted();
    let waker = one.start(async move {
        let _guard = guard;
        let _ = yield_now().await;
        let _ = park(&WaitQueue::new()).await;
    });
    let task = one.last_task();
    other.local.start(&task);
    for _ in 0..3 {
        other.enter(|| {
            other.local.make_ready(&task);
            waker.wake_by_ref();
        });
        other.step_ready();
        other.notify_all();
    }
    assert!(one.waiters.borrow().is_empty() && !other.waiters.borrow().is_empty());
    drop((task, waker));
    other.forget_all();
    drop(other);
    assert_eq!(drops.get(), 0, "it is still the first one's");
    one.forget_all();
    drop(one);
    assert_eq!(drops.get(), 1);
}

#[test]
fn notifying_a_waiter_twice_causes_one_step() {
    let kernel = Careless::new();
    let steps = Rc::new(Cell::new(0));
    let count = steps.clone();
    kernel.start(async move {
        let queue = WaitQueue::new();
        let mut wait = pin!(park(&queue));
        poll_fn(|cx| {
            count.set(count.get() + 1);
            wait.as_mut().poll(cx).map(drop)
        })
        .await;
    });
    kernel.step_all();
    kernel.notify_all();
    kernel.notify_all();
    assert_eq!((kernel.local.ready().len(), kernel.step_ready(), steps.get()), (1, 1, 2));
    kernel.forget_all();
}

#[test]
fn a_waiter_outlives_its_wait_and_its_task() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    kernel.start(async move {
        let _guard = guard;
        let queue = WaitQueue::new();
        let wait = Box::pin(park(&queue));
        let mut wait = Some(wait);
        poll_fn(|cx| {
            if let Some(mut wait) = wait.take() {
                assert!(wait.as_mut().poll(cx).is_pending());
            }
            Poll::Ready(())
        })
        .await;
        let mut steps = 0;
        poll_fn(|_| {
            steps += 1;
            if steps > 2 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
    kernel.step_all();
    kernel.notify_all();
    assert_eq!(kernel.step_ready(), 1, "the wait was dropped, and its task is polled for nothing");
    kernel.notify_all();
    assert_eq!((kernel.step_ready(), drops.get()), (1, 1));
    kernel.notify_all();
    assert_eq!((kernel.step_ready(), drops.get()), (0, 1), "the task has ended");
    assert!(kernel.waiters.borrow()[0].task().is_ended());
    kernel.forget_all();
}

/// A new sub-wait gets the number of one that is gone. A stale waiter then calls the new one's
/// waker, at most once.
#[test]
fn a_stale_waiter_calls_at_most_one_waker() {
    let kernel = Careless::new();
    let wakers = [(); 2].map(|()| Arc::new(Counter::default()));
    let [first, second] = wakers.clone();
    kernel.start(async move {
        let queue = WaitQueue::new();
        let mut one = park(&queue);
        assert!(poll_with(&mut one, &first.into()).is_pending());
        drop(one);
        let mut other = park(&queue);
        assert!(poll_with(&mut other, &second.into()).is_pending());
        std::future::pending::<()>().await;
    });
    kernel.step_all();
    for _ in 0..3 {
        kernel.notify_all();
    }
    assert_eq!(wakers.each_ref().map(|waker| waker.calls()), [0, 1]);
    kernel.step_ready();
    kernel.tasks.borrow()[0].abandon(TaskError::Stopped);
    kernel.notify_all();
    assert_eq!(wakers.each_ref().map(|waker| waker.calls()), [0, 1]);
    kernel.forget_all();
}

/// A future collects with the key that the kernel chose, or not at all.
#[test]
fn a_key_out_of_range_is_never_collected() {
    let keys = [0, WaitKey::LIMIT - 1, WaitKey::LIMIT, 1 << 63, u64::MAX - 1, u64::MAX];
    for key in keys.map(WaitKey) {
        let kernel = Careless::new();
        kernel.parked.set(Parked::Waits(key));
        let (drops, guard) = counted();
        kernel.start(park_with(guard));
        kernel.step_all();
        kernel.step_all();
        kernel.forget_all();
        kernel.local.ready().pop();
        assert_eq!(drops.get(), 1, "{key:?}");
        let keys = kernel.keys.take();
        assert!(keys.iter().all(|given| *given == key && key.0 < WaitKey::LIMIT), "{keys:?}");
    }
}

#[test]
fn every_answer_to_a_wait_is_safe() {
    let answers = [Parked::Satisfied, Parked::Waits(WaitKey(7)), Parked::Deferred, Parked::Never];
    for parked in answers {
        for collected in answers {
            let kernel = Careless::new();
            kernel.parked.set(parked);
            kernel.collected.set(collected);
            let (drops, guard) = counted();
            kernel.start(async move {
                let _guard = guard;
                let _ = sleep(ms(1)).await;
                let _ = park(&WaitQueue::new()).await;
                let joined: Task<()> = spawn(std::future::pending());
                drop(joined);
                let _ = socket_wait(a_socket(), IsReady(Direction::Read)).await;
            });
            for _ in 0..6 {
                kernel.step_all();
                kernel.notify_all();
            }
            kernel.forget_all();
            while kernel.local.ready().pop().is_some() {}
            assert_eq!(drops.get(), 1, "{parked:?} {collected:?}");
        }
    }
}

fn a_socket() -> SocketId {
    SocketId { kernel: pikake::current().kernel(), index: 0, generation: 0 }
}

/// A task that has not ended has no outcome.
#[test]
fn answering_a_join_too_early_panics() {
    let kernel = Careless::new();
    kernel.parked.set(Parked::Satisfied);
    kernel.start(async move {
        let joined: Task<()> = spawn(std::future::pending());
        joined.await.unwrap();
    });
    let task = kernel.last_task();
    kernel.step_all();
    assert_eq!(task.exit(), Some(pikake::traps::Exit::Panicked));
    drop(task);
    kernel.forget_all();
}

#[test]
fn answering_an_attempt_without_an_outcome_panics() {
    let kernel = Careless::new();
    kernel.parked.set(Parked::Satisfied);
    let seen = Rc::new(RefCell::new(String::new()));
    let to = seen.clone();
    kernel.start(async move {
        let mut wait = pin!(socket_wait(a_socket(), IsReady(Direction::Read)));
        poll_fn(|cx| {
            let polled = catch_unwind(AssertUnwindSafe(|| wait.as_mut().poll(cx).is_ready()));
            to.replace(text(&*polled.expect_err("there is no outcome")).into());
            Poll::Ready(())
        })
        .await;
    });
    kernel.step_all();
    let seen = seen.take();
    assert_eq!(seen, "a kernel answers an attempt with its outcome (I1)");
    kernel.forget_all();
}

#[test]
fn stepping_a_task_inside_its_step_panics() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    kernel.set_hook(|kernel| {
        let task = kernel.local.current().expect("a step has begun");
        kernel.local.step(task);
    });
    kernel.start(park_with(guard));
    let task = kernel.last_task();
    kernel.step_all();
    assert_eq!(task.exit(), Some(pikake::traps::Exit::Panicked));
    assert_eq!(drops.get(), 1);
    drop(task);
    kernel.forget_all();
}

/// The outer step goes on after the inner one as if nothing had happened.
#[test]
fn a_step_inside_another_changes_nothing_of_it() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    let (more_drops, other_guard) = counted();
    kernel.start(async move {
        let _guard = other_guard;
        let _ = timeout_after(ms(1), async {
            let _ = yield_now().await;
        })
        .await;
    });
    let inner = kernel.last_task();
    let to_step = inner.clone();
    kernel.set_hook(move |kernel| {
        kernel.local.step(to_step.clone());
    });
    kernel.start(async move {
        let _guard = guard;
        let _ = timeout_after(ms(1), async {
            let queue = WaitQueue::new();
            let _ = park(&queue).await;
            let _ = yield_now().await;
        })
        .await;
    });
    let outer = kernel.last_task();
    kernel.enter(|| kernel.step(outer.clone()));
    kernel.hook.take();
    kernel.collected.set(Parked::Satisfied);
    for _ in 0..3 {
        kernel.step_all();
    }
    assert_eq!((drops.get(), more_drops.get()), (1, 1));
    assert!(inner.is_ended() && outer.is_ended());
    drop((inner, outer));
    kernel.forget_all();
}

#[test]
fn dropping_a_task_inside_its_step_panics() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    kernel.set_hook(|kernel| {
        let task = kernel.local.current().expect("a step has begun");
        task.abandon(TaskError::Stopped);
    });
    kernel.start(park_with(guard));
    kernel.step_all();
    assert_eq!(drops.get(), 1, "by the panic that this is");
    kernel.forget_all();
    assert_eq!(drops.get(), 1);
}

#[test]
fn a_panicking_waker_does_not_stop_the_others() {
    let kernel = Careless::new();
    let wakers =
        [false, true, false].map(|panics| Arc::new(Counter { panics, ..Counter::default() }));
    let of_task = wakers.clone();
    kernel.start(async move {
        let queue = WaitQueue::new();
        let mut waits = of_task.clone().map(|_| park(&queue));
        for (wait, waker) in waits.iter_mut().zip(of_task) {
            assert!(poll_with(wait, &waker.into()).is_pending());
        }
        std::future::pending::<()>().await;
    });
    kernel.step_all();
    kernel.notify_all();
    assert_eq!(wakers.each_ref().map(|waker| waker.calls()), [1, 1, 1]);
    kernel.forget_all();
}

/// Starts a task with a deadline, and steps it again when the kernel treats deadlines like
/// `timers`. Returns the kernel, and how often the task's future was dropped.
fn kernel_with_deadline(timers: Timers) -> (Rc<Careless>, Rc<Cell<u32>>) {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    kernel.start(async move {
        let _guard = guard;
        let _ = timeout_after(ms(1), park(&WaitQueue::new())).await;
    });
    kernel.step_all();
    kernel.timers.set(timers);
    kernel.tasks.borrow()[0].inspect();
    kernel.step_all();
    (kernel, drops)
}

/// The kernel reports that the deadline has passed, and does not return its waiter.
#[test]
fn a_scope_whose_deadline_is_lost_runs_on() {
    let (kernel, drops) = kernel_with_deadline(Timers::Lost);
    kernel.forget_all();
    while kernel.local.ready().pop().is_some() {}
    assert_eq!(drops.get(), 1);
}

/// The kernel reports that the deadline has passed, and has notified no waiter of it.
#[test]
fn a_deadline_without_a_notification_is_safe() {
    let (kernel, drops) = kernel_with_deadline(Timers::Unnotified);
    assert_eq!(drops.get(), 0);
    // A scope whose deadline has passed refers to its task, so only `abandon` ends the task.
    kernel.tasks.borrow()[0].abandon(TaskError::Stopped);
    kernel.forget_all();
    while kernel.local.ready().pop().is_some() {}
    assert_eq!(drops.get(), 1);
}

/// The kernel notifies a waiter of its deadline repeatedly, also when scope and task are gone.
#[test]
fn a_deadline_that_passes_twice_is_safe() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    kernel.start(async move {
        let _guard = guard;
        let _ = timeout_after(ms(1), park(&WaitQueue::new())).await;
        std::future::pending::<()>().await;
    });
    kernel.step_all();
    let pass = || {
        kernel.enter(|| {
            let armed = kernel.armed.borrow().clone();
            for waiter in &armed {
                kernel.local.deadline_passed(waiter);
            }
            kernel.local.call_wakers();
        });
    };
    for _ in 0..3 {
        pass();
        pass();
        kernel.step_ready();
    }
    kernel.tasks.borrow()[0].abandon(TaskError::Stopped);
    pass();
    assert_eq!((kernel.step_ready(), drops.get()), (0, 1));
    kernel.forget_all();
}

#[test]
fn reading_a_socket_without_a_driver_fails() {
    let kernel = Careless::new();
    let attempt = || pikake::traps::attempt(kernel.socket(), Attempt::Read(&mut [0]));
    let kind = kernel.enter(|| attempt().expect_err("it never can").kind());
    assert_eq!(kind, io::ErrorKind::WouldBlock);
    let kind = attempt().expect_err("the kernel is in no directory").kind();
    assert_eq!(kind, io::ErrorKind::NotConnected);
}

/// A call of this is ambiguous, and so fails to compile, for a type that is `Send`.
trait StaysHere<Reason> {
    fn stays_here() {}
}

impl<T: ?Sized> StaysHere<()> for T {}
impl<T: ?Sized + Send> StaysHere<Arc<T>> for T {}

#[test]
fn types_that_reach_tasks_are_not_send() {
    <LocalHome as StaysHere<_>>::stays_here();
    <Local as StaysHere<_>>::stays_here();
    <TaskRef as StaysHere<_>>::stays_here();
    <Waiter as StaysHere<_>>::stays_here();
    <Task<()> as StaysHere<_>>::stays_here();
    <WaitQueue as StaysHere<_>>::stays_here();
    <pikake::traps::ReadyList as StaysHere<_>>::stays_here();
    <pikake::traps::Current as StaysHere<_>>::stays_here();
    <door::Registration as StaysHere<_>>::stays_here();
    <pikake::traps::KernelTrap<pikake::traps::SleepTrap> as StaysHere<_>>::stays_here();
    <pikake::traps::Timeout<std::future::Ready<()>> as StaysHere<_>>::stays_here();
    <pikake::traps::Shield<std::future::Ready<()>> as StaysHere<_>>::stays_here();
}

/// The stamp of a wait of the inner step is no stamp of the outer one.
#[test]
fn an_inner_step_ends_no_wait_of_the_outer_step() {
    for nests in [false, true] {
        let kernel = Careless::new();
        let (drops, guard) = counted();
        // B
        kernel.start(async move {
            poll_fn(|cx| {
                let queue = WaitQueue::new();
                let mut wait = pin!(park(&queue));
                assert!(wait.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            std::future::pending::<()>().await;
        });
        let inner = kernel.last_task();
        let of_task = Rc::downgrade(&kernel);
        kernel.start(async move {
            let _guard = guard;
            assert!(park(&WaitQueue::new()).await.is_err());
            // Cleans up by awaiting a trap.
            let queue = WaitQueue::new();
            let mut wait = pin!(park(&queue));
            let mut is_first = true;
            poll_fn(|cx| {
                let polled = wait.as_mut().poll(cx);
                if std::mem::take(&mut is_first) && nests {
                    of_task.upgrade().unwrap().step(inner.clone());
                }
                polled
            })
            .await
            .ok();
        });
        let outer = kernel.last_task();
        kernel.enter(|| kernel.step(outer.clone()));
        kernel.enter(|| outer.request_cancel(Interrupted::cancelled("")));
        kernel.enter(|| {
            while kernel.local.ready().pop().is_some() {}
            kernel.step(outer.clone())
        });
        assert_eq!(drops.get(), 0, "the cleanup waits on a trap, nests: {nests}");
        drop(outer);
        kernel.forget_all();
    }
}

/// The wakers of waits for the next step are called when their own step is over.
#[test]
fn an_inner_step_calls_no_wakers_of_the_outer_step() {
    let kernel = Careless::new();
    kernel.start(std::future::pending());
    let inner = kernel.last_task();
    let of_task = Rc::downgrade(&kernel);
    let counter = Arc::new(Counter::default());
    let waker = counter.clone();
    kernel.start(async move {
        let mut wait = yield_now();
        assert!(poll_with(&mut wait, &waker.clone().into()).is_pending());
        of_task.upgrade().unwrap().step(inner.clone());
        assert_eq!(waker.calls(), 0, "the outer step goes on");
        std::future::pending::<()>().await;
    });
    let outer = kernel.last_task();
    kernel.enter(|| kernel.step(outer.clone()));
    assert_eq!(outer.exit(), None);
    assert_eq!(counter.calls(), 1);
    drop(outer);
    kernel.forget_all();
}

/// What an earlier step has counted does not count for a task that becomes watched.
#[test]
fn a_deadline_may_pass_within_a_poll() {
    for stale in [false, true] {
        let kernel = Careless::new();
        kernel.timers.set(Timers::Stored);
        let (drops, guard) = counted();
        let of_task = Rc::downgrade(&kernel);
        kernel.start(async move {
            let result = timeout_after(ms(1), async {
                let _guard = guard;
                let queue = WaitQueue::new();
                let mut wait = pin!(park(&queue));
                let mut polls = 0;
                poll_fn(|cx| {
                    let polled = wait.as_mut().poll(cx);
                    polls += 1;
                    if polls == 2 {
                        let kernel = of_task.upgrade().unwrap();
                        let waiter = kernel.armed.borrow()[0].clone();
                        let number = kernel.local.deadline_passed(&waiter);
                        kernel.stored.replace(Some(Passed { number, at: Ticks::ZERO, waiter }));
                    }
                    polled
                })
                .await
                .expect_err("the wait returns the cause");
            })
            .await;
            assert!(result.is_err());
        });
        let task = kernel.last_task();
        kernel.enter(|| kernel.step(task.clone()));
        if stale {
            kernel.start(async {
                poll_fn(|cx| {
                    cx.waker().wake_by_ref();
                    Poll::Ready(())
                })
                .await;
            });
            let watched = kernel.last_task();
            watched.inspect();
            kernel.enter(|| {
                while kernel.local.ready().pop().is_some() {}
                kernel.step(watched.clone());
                while kernel.local.ready().pop().is_some() {}
            });
        }
        kernel.enter(|| kernel.step(task.clone()));
        assert_eq!(drops.get(), 0, "a trap is pending in the body, stale: {stale}");
        assert!(kernel.enter(|| kernel.local.ready().pop().is_some()));
        kernel.enter(|| kernel.step(task.clone()));
        assert_eq!(drops.get(), 1);
        drop(task);
        kernel.forget_all();
    }
}

/// A trap that waits in two queues.
mod two_places {
    use super::*;
    use pikake::traps::{Entry, Progress, Trap, TrapContext, TrapKind, TrapName, kernel_trap};
    static NAME: TrapName = TrapName::new("either");
    struct Either<'a>(&'a WaitQueue, &'a WaitQueue, bool);
    impl Trap for Either<'_> {
        type Answer = Result<(), Interrupted>;
        type Entries = [Entry; 2];
        fn kind(&mut self) -> TrapKind {
            TrapKind::of(&NAME)
        }
        fn begin(
            &mut self,
            [a, b]: &mut [Entry; 2],
            cx: &TrapContext<'_>,
        ) -> Progress<Self::Answer> {
            let _ = cx.park(a, WaitPlace::Queue(self.0, None));
            assert!(!self.2, "a panic between two places");
            cx.park(b, WaitPlace::Queue(self.1, None)).map(Ok)
        }
        fn collect(
            &mut self,
            [a, b]: &mut [Entry; 2],
            cx: &TrapContext<'_>,
        ) -> Progress<Self::Answer> {
            if let Progress::Answered(()) = cx.collect(a, WaitPlace::Queue(self.0, None)) {
                return Progress::Answered(Ok(()));
            }
            cx.collect(b, WaitPlace::Queue(self.1, None)).map(Ok)
        }
        fn leave(&mut self, [a, b]: &mut [Entry; 2], kernel: &dyn TrapHandler) {
            a.leave(kernel, WaitPlace::Queue(self.0, None));
            b.leave(kernel, WaitPlace::Queue(self.1, None));
        }
    }

    /// A trap that is satisfied at one place leaves the other.
    #[test]
    fn the_other_place_is_left() {
        pikake::sim::example(async {
            let (one, two) = (Rc::new(WaitQueue::new()), Rc::new(WaitQueue::new()));
            let (a, b) = (one.clone(), two.clone());
            let task = spawn(async move { kernel_trap(Either(&a, &b, false)).await });
            yield_now().await.unwrap();
            assert_eq!((one.len(), two.len()), (1, 1));
            one.wake(1);
            task.await.unwrap().unwrap();
            assert_eq!((one.len(), two.len()), (0, 0), "the trap has its answer");
        });
    }

    #[test]
    fn a_trap_that_panics_leaves_its_places() {
        pikake::run(async {
            let (one, two) = (Rc::new(WaitQueue::new()), Rc::new(WaitQueue::new()));
            let (a, b) = (one.clone(), two.clone());
            let task = spawn(async move { kernel_trap(Either(&a, &b, true)).await });
            assert!(task.await.is_err());
            assert_eq!((one.len(), two.len()), (0, 0), "the trap panicked");
        });
    }

    /// A trap of one place that answers while it is parked.
    struct Hasty<'a>(&'a WaitQueue);

    impl Trap for Hasty<'_> {
        type Answer = Result<(), Interrupted>;
        type Entries = [Entry; 1];

        fn kind(&mut self) -> TrapKind {
            TrapKind::of(&NAME)
        }

        fn begin(
            &mut self,
            [entry]: &mut [Entry; 1],
            cx: &TrapContext<'_>,
        ) -> Progress<Self::Answer> {
            assert_eq!(cx.park(entry, WaitPlace::Queue(self.0, None)), Progress::Waits);
            Progress::Answered(Ok(()))
        }

        fn collect(&mut self, _: &mut [Entry; 1], _: &TrapContext<'_>) -> Progress<Self::Answer> {
            Progress::Waits
        }

        fn leave(&mut self, [entry]: &mut [Entry; 1], kernel: &dyn TrapHandler) {
            entry.leave(kernel, WaitPlace::Queue(self.0, None));
        }
    }

    /// Its entry would take a signal that another waiter needs. Builds for debugging refuse it.
    #[test]
    fn a_trap_of_one_place_that_is_parked_must_wait() {
        pikake::run(async {
            let hasty = spawn(async { kernel_trap(Hasty(&WaitQueue::new())).await });
            let error = hasty.await.unwrap_err();
            let message = error.panic().and_then(|panic| panic.message().map(str::to_owned));
            assert_eq!(message.as_deref(), Some("a trap that is parked waits"));
        });
    }

    #[test]
    fn a_queue_belongs_to_the_kernel_of_any_trap() {
        pikake::sim::example(async {
            let (one, two) = (Rc::new(WaitQueue::new()), Rc::new(WaitQueue::new()));
            let (a, b) = (one.clone(), two.clone());
            let task = spawn(async move { kernel_trap(Either(&a, &b, false)).await });
            yield_now().await.unwrap();
            assert_eq!(one.wake(1), 1, "one task waits");
            task.await.unwrap().unwrap();
        });
    }

    #[test]
    fn a_place_is_left_in_a_careless_kernel() {
        let kernel = Careless::new();
        kernel.start(async {
            let (a, b) = (WaitQueue::new(), WaitQueue::new());
            kernel_trap(Either(&a, &b, true)).await.ok();
        });
        kernel.step_all();
        assert_eq!(kernel.waiters.borrow().len(), 1);
        assert_eq!(kernel.keys.borrow().len(), 1, "the first place was left");
        kernel.forget_all();
    }

    #[test]
    fn a_ready_socket_is_ready_between_steps() {
        use pikake::traps::{attempt, open_socket};
        let kernel = pikake::Kernel::new().unwrap();
        kernel
            .enter(|| {
                let Opened::Pair(a, _b) = open_socket(OpenSocket::UnixStreamPair).unwrap() else {
                    panic!()
                };
                assert_eq!(attempt(a, Attempt::Write(b"x")).unwrap(), 1);
                assert_eq!(attempt(a, Attempt::IsReady(Direction::Write)).unwrap(), 0);
            })
            .unwrap();
    }
}

thread_local! { static FOREIGN: Cell<u64> = const { Cell::new(0) }; }

/// The moment of an alarm comes while the alarm is parked.
#[test]
fn an_alarm_that_is_due_at_once_notifies_its_owner() {
    for parked in [Parked::Satisfied, Parked::Deferred] {
        FOREIGN.set(10);
        let kernel = Careless::new();
        FOREIGN.set(0);
        kernel.start(async {
            assert!(park(&WaitQueue::new()).await.is_err());
            std::future::pending::<()>().await;
        });
        let task = kernel.last_task();
        kernel.enter(|| kernel.step(task.clone()));
        kernel.enter(|| task.request_cancel(Interrupted::cancelled("")));
        kernel.parked.set(parked); // the alarm's moment comes while it is parked
        kernel.enter(|| {
            while kernel.local.ready().pop().is_some() {}
            kernel.step(task.clone())
        });
        assert!(!task.is_ended());
        assert_eq!(
            kernel.enter(|| kernel.local.ready().len()),
            1,
            "{parked:?}: the owner is notified"
        );
        drop(task);
        kernel.forget_all();
    }
}

#[test]
fn a_yield_is_over_after_any_number_of_steps() {
    let kernel = Careless::new();
    kernel.start(async {
        let mut wait = yield_now();
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            match polls {
                1 => {
                    assert!(Pin::new(&mut wait).poll(cx).is_pending());
                    Poll::Pending
                }
                16385 => {
                    assert!(Pin::new(&mut wait).poll(cx).is_ready(), "a later step");
                    Poll::Ready(())
                }
                _ => Poll::Pending,
            }
        })
        .await;
    });
    let task = kernel.last_task();
    for _ in 0..16385 {
        kernel.enter(|| {
            while kernel.local.ready().pop().is_some() {}
            kernel.step(task.clone())
        });
    }
    assert_eq!(task.exit(), Some(pikake::traps::Exit::Returned));
    drop(task);
    kernel.forget_all();
}

thread_local! { static VICTIM: RefCell<Option<TaskRef>> = const { RefCell::new(None) }; }

struct CancelVictim;
impl Wake for CancelVictim {
    fn wake(self: Arc<Self>) {
        let victim = VICTIM.take().unwrap();
        victim.request_cancel(Interrupted::cancelled(""));
    }
}

/// The cause is for the next step: the rules do not apply to the one that is over.
#[test]
fn a_cancel_right_after_the_poll_is_for_the_next_step() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    let seen = Rc::new(Cell::new(false));
    let to = seen.clone();
    kernel.start(async move {
        let _guard = guard;
        {
            let mut wait = yield_now();
            assert!(poll_with(&mut wait, &Arc::new(CancelVictim).into()).is_pending());
        }
        to.set(park(&WaitQueue::new()).await.is_err());
    });
    let task = kernel.last_task();
    VICTIM.replace(Some(task.clone()));
    kernel.enter(|| kernel.step(task.clone()));
    assert_eq!((drops.get(), seen.get()), (0, false), "the task waits on a trap");
    kernel.step_ready();
    assert!(seen.get());
    drop(task);
    kernel.forget_all();
}
