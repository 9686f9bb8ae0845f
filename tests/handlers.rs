//! Another kernel than the real one, written in safe code and written badly: it cannot make the
//! door, the task cell or a waker do what they must not.
//!
//! What such a kernel would break is memory, so these tests are worth most under valgrind. Without
//! it they still see a future that is dropped twice or never, and a count below zero.

mod support;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};

use pikake::time::{Rate, Ticks};
use pikake::traps::{
    Addresses, Executed, Home, Job, LocalHome, Message, Polled, RecordKey, Reply, ScopeEnd,
    ScopeId, ScopeKind, Sockets, TaskRef, TrapHandler, Wait, WaitQueue, door,
};
use pikake::{Interrupted, Task, now, spawn};
use support::{OnDrop, within};

/// What a [`Careless`] kernel does when it is asked to make a task ready.
#[derive(Clone, Copy, Default)]
enum OnWake {
    /// Nothing.
    #[default]
    Ignore,
    /// Gives up every reference it has, then counts the one it was lent.
    GiveUpAll,
    /// Keeps another reference.
    Keep,
}

/// A kernel that keeps its tasks in a list and executes nothing.
struct Careless {
    home: LocalHome,
    panics: Cell<bool>,
    tasks: RefCell<Vec<TaskRef>>,
    on_wake: Cell<OnWake>,
}

impl Careless {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            home: Home::open(|| {}),
            panics: Cell::new(false),
            tasks: RefCell::default(),
            on_wake: Cell::default(),
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
            self.tasks.borrow()[0].waker()
        })
    }

    fn forget_tasks(&self) {
        let tasks = self.tasks.take();
        drop(tasks);
    }

    /// The wake that was sent here.
    fn mail(&self) -> pikake::traps::RemoteWake {
        let mut mail = Vec::new();
        self.home.take_mail(&mut mail);
        match mail.pop() {
            Some(Message::Wake(wake)) => wake,
            other => panic!("a wake was sent, not {other:?}"),
        }
    }
}

impl Drop for Careless {
    fn drop(&mut self) {
        // Wakes that were never taken out refer to this kernel's address, which holds them.
        drop(self.home.close());
    }
}

impl TrapHandler for Careless {
    fn home(&self) -> &LocalHome {
        assert!(!self.panics.get(), "the kernel's own fault");
        &self.home
    }

    fn execute(&self, _: Wait<'_>, _: &'static Location<'static>, _: &mut Context<'_>) -> Executed {
        Executed::Answered(Ok(()))
    }

    fn poll_again(&self, _: RecordKey, _: &mut Context<'_>) -> Poll<Result<(), Interrupted>> {
        Poll::Ready(Ok(()))
    }

    fn withdraw(&self, _: RecordKey) {}

    fn spawn(&self, task: &TaskRef) -> bool {
        self.tasks.borrow_mut().push(task.clone());
        true
    }

    fn current(&self) -> Option<TaskRef> {
        None
    }

    fn wake(&self, task: TaskRef) {
        match self.on_wake.get() {
            OnWake::Ignore => {}
            OnWake::GiveUpAll => {
                self.forget_tasks();
                drop(task.clone());
            }
            OnWake::Keep => self.tasks.borrow_mut().push(task.clone()),
        }
    }

    fn cancel(&self, _: &TaskRef, _: Interrupted) {}

    fn abort(&self, _: &TaskRef, _: Interrupted) {}

    fn wake_queue(&self, _: &WaitQueue, _: usize) -> usize {
        0
    }

    fn queue_len(&self, _: &WaitQueue) -> usize {
        0
    }

    fn forget_queue(&self, _: u32) {}

    fn open_scope(&self, _: ScopeKind, _: &mut Context<'_>) -> (ScopeId, Option<ScopeId>) {
        unimplemented!("this kernel has no scopes")
    }

    fn enter_scope(&self, _: ScopeId, _: &mut Context<'_>) -> Option<ScopeId> {
        None
    }

    fn leave_scope(&self, _: ScopeId, _: Option<ScopeId>, _: bool) -> Polled {
        Polled::Keep
    }

    fn close_scope(&self, _: ScopeId, _: bool) -> ScopeEnd {
        ScopeEnd::default()
    }

    fn check_interrupt(&self) -> Option<Interrupted> {
        None
    }

    fn pending_interrupt(&self) -> Option<Interrupted> {
        None
    }

    fn now(&self) -> Ticks {
        Ticks::ZERO
    }

    fn rate(&self) -> Rate {
        Rate::NANOS
    }

    fn sockets(&self) -> &dyn Sockets {
        unimplemented!("this kernel has no sockets")
    }

    fn blocking(&self, _: Job) {}

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

#[test]
fn a_handler_that_panics_on_the_way_in_leaves_the_door_shut() {
    let kernel = Careless::new();
    kernel.panics.set(true);
    assert!(catch_unwind(AssertUnwindSafe(|| kernel.enter(|| ()))).is_err());
    drop(kernel);
    assert!(!door::is_open());
    let panic = catch_unwind(now).expect_err("no kernel is there to be asked");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.contains("needs a pikake kernel"), "{text}");
}

#[test]
fn a_body_that_panics_leaves_the_door_shut() {
    let kernel = Careless::new();
    let panic = catch_unwind(AssertUnwindSafe(|| kernel.enter(|| panic!("inside"))));
    assert!(panic.is_err());
    assert!(!door::is_open());
    assert_eq!(kernel.enter(now), Ticks::ZERO, "and it opens again");
}

#[test]
fn a_handler_that_gives_up_a_task_while_it_is_woken_drops_its_future_once() {
    let kernel = Careless::new();
    let (drops, guard) = counted();
    let waker = kernel.start(hold(guard));
    kernel.on_wake.set(OnWake::GiveUpAll);
    kernel.enter(|| waker.wake_by_ref());
    kernel.forget_tasks();
    assert_eq!(drops.get(), 1);
    kernel.enter(|| waker.wake_by_ref());
    waker.wake();
    assert_eq!(drops.get(), 1);
}

#[test]
fn a_task_that_arrives_is_counted_although_its_handler_has_given_it_up() {
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
fn a_task_that_is_polled_by_who_received_it_outlives_its_own_poll() {
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
        assert!(task.poll(), "it ended");
        assert_eq!(drops.get(), 1);
    });
}

#[test]
fn a_wake_that_arrives_at_another_kernel_is_refused() {
    let (one, other) = (Careless::new(), Careless::new());
    let (drops, guard) = counted();
    one.start(hold(guard)).wake();
    let wake = one.mail();
    let refused = catch_unwind(AssertUnwindSafe(|| other.enter(|| wake.arrive().is_some())));
    let panic = refused.expect_err("not its kernel");
    assert!(panic.downcast_ref::<&str>().is_some_and(|text| text.contains("(I5)")));
    drop(wake);
    one.forget_tasks();
    assert_eq!(drops.get(), 1);
}

#[test]
fn a_waker_on_another_thread_never_reaches_the_handler_there() {
    within(|| {
        let here = Careless::new();
        let (drops, guard) = counted();
        let waker = here.start(hold(guard));
        let (send, kept) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let there = Careless::new();
            there.on_wake.set(OnWake::Keep);
            there.enter(|| waker.wake_by_ref());
            let wakes = there.tasks.borrow().len();
            send.send((wakes, there.home.has_mail())).unwrap();
        });
        thread.join().unwrap();
        assert_eq!(kept.recv(), Ok((0, false)));
        assert!(here.home.has_mail(), "it was sent home");
        here.forget_tasks();
        assert_eq!(drops.get(), 1);
        let wake = here.mail();
        assert!(here.enter(|| wake.arrive().is_none()), "the task has ended");
    });
}

/// Ambiguous, and so no more than a compile error, for a type that is `Send`.
trait StaysHere<Reason> {
    fn stays_here() {}
}

impl<T: ?Sized> StaysHere<()> for T {}
impl<T: ?Sized + Send> StaysHere<Arc<T>> for T {}

#[test]
fn what_can_reach_a_task_stays_on_its_thread() {
    <LocalHome as StaysHere<_>>::stays_here();
    <TaskRef as StaysHere<_>>::stays_here();
    <Task<()> as StaysHere<_>>::stays_here();
    <WaitQueue as StaysHere<_>>::stays_here();
    <door::Registration as StaysHere<_>>::stays_here();
    <pikake::traps::KernelTrap<pikake::traps::SleepTrap> as StaysHere<_>>::stays_here();
    <pikake::traps::Timeout<std::future::Ready<()>> as StaysHere<_>>::stays_here();
}
