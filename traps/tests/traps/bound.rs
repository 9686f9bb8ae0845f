//! Values bound to their thread: usable at home, refused elsewhere, and always dropped at home.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread::{self, ThreadId};

use pikake::{Bound, Kernel, future_wait, sleep, spawn};

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
