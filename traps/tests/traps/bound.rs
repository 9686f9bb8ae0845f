//! Values bound to their kernel: usable at home, refused elsewhere, and always dropped at home.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread::{self, ThreadId};

use pikake::traps::KernelId;
use pikake::traps::door::current_kernel;
use pikake::{Bound, Kernel, TaskError, future_wait, sleep, spawn, yield_now};

use crate::support::ms;

/// Writes down on which thread it was dropped. Its own counter must not be touched by another.
struct Dropped(Rc<RefCell<Vec<ThreadId>>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.borrow_mut().push(thread::current().id());
    }
}

fn elsewhere<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    thread::spawn(work).join().expect("it catches its own panics")
}

fn demanding<T: Send + Sync + 'static>(value: T) -> T {
    value
}

#[test]
fn bound_value_is_usable_at_home() {
    pikake::run(async {
        let text = Rc::new("text");
        let mut bound = demanding(Bound::new(text.clone()));
        assert!(bound.is_home());
        assert_eq!(**bound.get(), "text");
        *bound.get_mut() = Rc::new("other");
        assert_eq!(*bound.into_inner(), "other");
        assert_eq!(Rc::strong_count(&text), 1);

        let nap = demanding(Bound::future(async { sleep(ms(1)).await.map(|()| 7) }));
        assert_eq!(nap.await, Ok(7));
    });
}

#[test]
fn bound_value_panics_on_other_threads() {
    pikake::run(async {
        let bound = Bound::new(Rc::new(()));
        let future = Bound::future(async {});
        let messages = elsewhere(move || {
            let mut messages = Vec::new();
            let mut panics = |what: &mut dyn FnMut()| {
                let payload = catch_unwind(AssertUnwindSafe(what)).expect_err("it panics");
                messages.push(payload.downcast_ref::<String>().expect("a text").clone());
            };
            let (mut bound, mut future) = (Some(bound), Some(future));
            assert!(!bound.as_ref().is_some_and(Bound::is_home));
            assert!(format!("{bound:?}").contains("on the thread of kernel"));
            panics(&mut || drop(bound.as_ref().map(|bound| bound.get().clone())));
            panics(&mut || drop(bound.as_mut().map(|bound| bound.get_mut().clone())));
            panics(&mut || drop(bound.take().map(Bound::into_inner)));
            let mut cx = Context::from_waker(Waker::noop());
            panics(&mut || {
                let pinned = std::pin::Pin::new(future.as_mut().expect("not taken"));
                assert!(pinned.poll(&mut cx).is_ready());
            });
            messages
        });
        assert_eq!(messages.len(), 4);
        assert!(messages.iter().all(|text| text.contains("belongs to the thread of kernel")));
    });
}

#[test]
fn value_dropped_elsewhere_is_dropped_at_home() {
    pikake::run(async {
        let dropped = Rc::default();
        let bound = Bound::new(Dropped(Rc::clone(&dropped)));
        elsewhere(move || drop(bound));
        // The kernel takes out what was sent to it at the latest before it blocks.
        sleep(ms(1)).await.unwrap();
        assert_eq!(*dropped.borrow(), [thread::current().id()]);
    });
}

/// The sleeping kernel wakes for it.
#[test]
fn wait_dropped_elsewhere_is_withdrawn() {
    let kernel = Kernel::new().unwrap();
    kernel.run(async {
        let mut nap = Bound::new(sleep(ms(3_600_000)));
        let polled = std::future::poll_fn(|cx| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut nap).poll(cx))
        });
        assert!(polled.await.is_pending());
        let (sender, receiver) = futures::channel::oneshot::channel::<()>();
        // Its kernel sleeps meanwhile: nothing but the wake queue can rouse it.
        thread::spawn(move || {
            drop(nap);
            drop(sender);
        });
        assert!(future_wait(receiver).await.unwrap().is_err());
        // The kernel takes out what was sent to it at the latest before it blocks.
        sleep(ms(1)).await.unwrap();
    });
    assert_eq!(kernel.wait_count(), 0);
}

#[test]
fn value_dropped_elsewhere_after_the_kernel_leaks() {
    let dropped: Rc<RefCell<Vec<ThreadId>>> = Rc::default();
    let bound = {
        let dropped = dropped.clone();
        pikake::run(async move { Bound::new(Dropped(dropped)) })
    };
    elsewhere(move || drop(bound));
    assert!(dropped.borrow().is_empty());
    assert_eq!(Rc::strong_count(&dropped), 2);
}

#[test]
fn value_dropped_at_home_after_the_kernel_drops() {
    let dropped: Rc<RefCell<Vec<ThreadId>>> = Rc::default();
    let bound = {
        let dropped = dropped.clone();
        pikake::run(async move { Bound::new(Dropped(dropped)) })
    };
    drop(bound);
    assert_eq!(dropped.borrow().len(), 1);
}

#[test]
fn value_arriving_at_kernel_end_never_drops_elsewhere() {
    const ROUNDS: usize = 100;
    let dropped: Rc<RefCell<Vec<ThreadId>>> = Rc::default();
    for _ in 0..ROUNDS {
        let (sender, receiver) = mpsc::channel::<Bound<Dropped>>();
        let thread = thread::spawn(move || receiver.into_iter().for_each(drop));
        pikake::run(async {
            for _ in 0..3 {
                sender.send(Bound::new(Dropped(dropped.clone()))).unwrap();
            }
        });
        drop(sender);
        thread.join().unwrap();
    }
    let here = thread::current().id();
    assert!(dropped.borrow().iter().all(|thread| *thread == here));
}

#[test]
fn task_of_another_thread_carries_a_value_home() {
    pikake::run(async {
        let (sender, receiver) = futures::channel::oneshot::channel::<Bound<Rc<u8>>>();
        let bound = Bound::new(Rc::new(7));
        // Through the hands of a thread that never looks inside.
        thread::spawn(move || sender.send(bound).is_ok());
        let task = spawn(async move { *receiver.await.unwrap().into_inner() });
        assert_eq!(task.await.unwrap(), 7);
    });
}

#[test]
fn bound_value_panics_in_another_kernel_of_its_thread() {
    let (home, other) = (Kernel::new().unwrap(), Kernel::new().unwrap());
    let bound = home.run(async { Bound::new(Rc::new(7)) });
    assert!(bound.is_home(), "outside of any kernel the thread decides");
    assert_eq!(**bound.get(), 7);
    other.run(async {
        assert!(!bound.is_home());
        assert!(format!("{bound:?}").contains("on the thread of kernel"));
        let used = catch_unwind(AssertUnwindSafe(|| **bound.get()));
        let message = used.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("belongs to the thread of kernel"), "{message}");
        assert!(message.contains("or in another kernel"), "{message}");
    });
    home.run(async { assert_eq!(**bound.get(), 7) });
}

#[test]
fn future_panics_when_polled_in_another_kernel() {
    let (home, other) = (Kernel::new().unwrap(), Kernel::new().unwrap());
    let nap = home.enter(|| Bound::future(sleep(ms(1)))).unwrap();
    let outcome = other.run(async move { spawn(nap).await });
    assert!(matches!(outcome, Err(TaskError::Panicked(_))), "{outcome:?}");
    assert_eq!((home.wait_count(), other.wait_count()), (0, 0));
}

/// Writes down in which kernel it was dropped.
struct DroppedIn(Rc<RefCell<Vec<Option<KernelId>>>>);

impl Drop for DroppedIn {
    fn drop(&mut self) {
        self.0.borrow_mut().push(current_kernel());
    }
}

#[test]
fn value_dropped_in_another_kernel_is_dropped_in_its_own() {
    let (home, other) = (Kernel::new().unwrap(), Kernel::new().unwrap());
    let dropped = Rc::default();
    let bound = home.run(async { Bound::new(DroppedIn(Rc::clone(&dropped))) });
    other.run(async move { drop(bound) });
    assert!(dropped.borrow().is_empty(), "it is on its way");
    home.run(async { yield_now().await.unwrap() });
    assert_eq!(*dropped.borrow(), [Some(home.handle().id())]);
}

/// Also if that kernel ends first: its thread is the right one.
#[test]
fn value_on_its_way_home_is_dropped_with_its_kernel() {
    let (home, other) = (Kernel::new().unwrap(), Kernel::new().unwrap());
    let dropped = Rc::default();
    let [one, two] =
        home.run(async { [(); 2].map(|()| Bound::new(DroppedIn(Rc::clone(&dropped)))) });
    let id = home.handle().id();
    other.run(async move { drop(one) });
    drop(home);
    assert_eq!(*dropped.borrow(), [Some(id)]);
    other.run(async move { drop(two) });
    assert_eq!(*dropped.borrow(), [Some(id), Some(other.handle().id())]);
}

/// A kernel that is dropped inside another one cannot be entered.
#[test]
fn values_of_a_kernel_that_ends_in_another_are_dropped() {
    let (home, other) = (Kernel::new().unwrap(), Kernel::new().unwrap());
    let dropped = Rc::default();
    home.run(async {
        let bound = Bound::new(DroppedIn(Rc::clone(&dropped)));
        spawn(async move {
            let _bound = bound;
            std::future::pending::<()>().await;
        })
        .detach();
        yield_now().await.unwrap();
    });
    other.run(async move { drop(home) });
    assert_eq!(dropped.borrow().len(), 1);
}

#[test]
fn value_in_a_thread_local_is_dropped_at_the_end_of_the_thread() {
    thread_local! {
        static KEPT: RefCell<Option<Bound<DroppedThen>>> = const { RefCell::new(None) };
    }
    struct DroppedThen(mpsc::Sender<Option<KernelId>>);
    impl Drop for DroppedThen {
        fn drop(&mut self) {
            self.0.send(current_kernel()).unwrap();
        }
    }
    let (sender, receiver) = mpsc::channel();
    elsewhere(move || {
        pikake::run(async move { KEPT.set(Some(Bound::new(DroppedThen(sender)))) });
    });
    assert_eq!(receiver.iter().collect::<Vec<_>>(), [None]);
}
