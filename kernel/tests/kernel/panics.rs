//! User code that the kernel calls: destructors and wakers that panic, are slow, or use the kernel.
//!
//! The payload of a panic may panic in turn when it is dropped.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pikake::kernel::Observer;
use pikake::time::ManualClock;
use pikake::traps::{TaskRef, blocking, door};
use pikake::{Kernel, KernelHandle, Task, current, sleep, spawn, timeout_after, yield_now};

use crate::support::{OnDrop, kernel, ms, named, run, within};

/// The payload of a panic that panics when it is dropped.
struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        panic!("the payload was dropped");
    }
}

/// Panics with such a payload when it is dropped.
fn bomb() -> impl Drop + 'static {
    OnDrop(|| panic_any(Payload))
}

/// A future that is done at once, and panics when it is dropped.
struct Done<T>(T);

impl<T: Unpin> Future for Done<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

#[test]
fn destructor_panic_at_abort_stays_in_task() {
    within(|| {
        run(async {
            let bomb = bomb();
            let task: Task<()> = spawn(async move {
                let _bomb = bomb;
                std::future::pending().await
            });
            yield_now().await.unwrap();
            task.abort();
            yield_now().await.unwrap();
            assert!(task.await.is_err());
        });
    });
}

#[test]
fn destructor_panic_at_return_stays_in_task() {
    within(|| {
        run(async {
            let bomb = bomb();
            let task = spawn(async move {
                let _bomb = bomb;
                sleep(ms(1)).await
            });
            task.detach();
            sleep(ms(5)).await.unwrap();
        });
    });
}

#[test]
fn destructor_panic_of_done_future_stays_in_task() {
    within(|| {
        run(async {
            spawn(Done(bomb())).detach();
            sleep(ms(5)).await.unwrap();
        });
    });
}

#[test]
fn destructor_panic_of_unread_output_stays_in_task() {
    within(|| {
        run(async {
            let bomb = bomb();
            spawn(async move { bomb }).detach();
            sleep(ms(5)).await.unwrap();
        });
    });
}

#[test]
fn destructor_panic_of_main_future_spares_the_kernel() {
    within(|| {
        let kernel = kernel();
        let outcome = catch_unwind(AssertUnwindSafe(|| kernel.try_run(Done(bomb())).is_ok()));
        // Whichever way it comes out, the payload is not dropped here.
        outcome.unwrap_or_else(|panic| {
            std::mem::forget(panic);
            false
        });
        assert_eq!(kernel.run(async { 3 }), 3);
        assert_eq!(kernel.task_count(), 0);
    });
}

#[test]
fn waker_panic_of_a_combinator_spares_the_kernel() {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            panic_any(Payload);
        }
    }
    within(|| {
        run(async {
            let mut nap = pin!(sleep(ms(1)));
            let waker: Waker = Arc::new(Bomb).into();
            assert!(nap.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            sleep(ms(5)).await.unwrap();
            nap.await.unwrap();
        });
    });
}

/// Sends a closure that panics when it is dropped uncalled.
fn send_bomb(handle: &KernelHandle) {
    let bomb = OnDrop(|| panic!("the closure was dropped"));
    let closure = move || {
        let _ = &bomb;
        async {}
    };
    handle.spawn(closure).unwrap();
}

#[test]
fn closure_destructor_panic_stays_within_kernel_drop() {
    within(|| {
        let kernel = kernel();
        send_bomb(&kernel.handle());
        drop(kernel);
    });
}

#[test]
fn late_closure_destructor_panic_stays_within_shutdown() {
    within(|| {
        let kernel = kernel();
        let handle = kernel.handle();
        kernel.run(async {
            let late = OnDrop(move || send_bomb(&handle));
            spawn(async move {
                let _late = late;
                drop(sleep(ms(100_000)).await);
            })
            .detach();
            yield_now().await.unwrap();
        });
        kernel.shutdown();
    });
}

#[test]
fn helper_threads_survive_result_destructor_panics() {
    /// More than there are helper threads.
    const CALLS: usize = 100;

    within(|| {
        pikake::run(async {
            let (open, gate) = mpsc::channel::<()>();
            let gate = Arc::new(Mutex::new(gate));
            for _ in 0..CALLS {
                let gate = gate.clone();
                let mut call = pin!(blocking(move || {
                    assert!(gate.lock().unwrap().recv().is_err(), "nothing is sent");
                    OnDrop(|| panic!("the result was dropped"))
                }));
                assert!(futures::poll!(call.as_mut()).is_pending());
            }
            // No task waits for the results any more, so the helper threads drop them.
            drop(open);
            assert_eq!(blocking(|| 5).await.unwrap(), 5);
        });
    });
}

#[test]
fn slow_destructor_is_no_part_of_next_step() {
    #[derive(Clone)]
    struct Steps(Rc<RefCell<Vec<(String, Duration)>>>);
    impl Observer for Steps {
        fn stepped(&self, task: &TaskRef, took: Duration) {
            self.0.borrow_mut().push((task.name().to_owned(), took));
        }
    }
    within(|| {
        let clock = ManualClock::new();
        let steps = Steps(Rc::default());
        let builder = Kernel::builder().clock(clock.clone());
        let kernel = builder.observer(steps.clone()).build().unwrap();
        kernel.run(async {
            let slow = OnDrop(move || clock.advance(ms(50)));
            let task: Task<()> = spawn(async move {
                let _slow = slow;
                std::future::pending().await
            });
            let abort = named("aborts", async move {
                yield_now().await.unwrap();
                task.abort();
            });
            let innocent = named("innocent", async {
                for _ in 0..10 {
                    yield_now().await.unwrap();
                }
            });
            abort.await.unwrap();
            innocent.await.unwrap();
        });
        let steps = steps.0.take();
        assert_eq!(count_steps(&steps, "innocent"), 11);
        let charged: Vec<_> = steps.iter().filter(|(_, took)| !took.is_zero()).collect();
        assert!(charged.is_empty(), "{charged:?}");
    });
}

fn count_steps(steps: &[(String, Duration)], task: &str) -> usize {
    steps.iter().filter(|(name, _)| name == task).count()
}

/// Does on its end what is done nowhere in good order: wakes, aborts and joins tasks that are being
/// dropped, starts new ones of its kind, waits.
struct Storm {
    depth: u32,
    storms: Storms,
    own_handle: Handle,
    other: Option<Task<Storm>>,
    own_waker: Option<Waker>,
}

type Handle = Rc<RefCell<Option<Task<Storm>>>>;

/// All storms of a test.
#[derive(Clone, Default)]
struct Storms {
    handles: Rc<RefCell<Vec<Handle>>>,
    ended: Rc<Cell<usize>>,
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.storms.ended.set(self.storms.ended.get() + 1);
        if let Some(waker) = self.own_waker.take() {
            waker.wake_by_ref();
            drop(waker.clone());
            waker.wake();
        }
        if let Some(task) = &*self.own_handle.borrow() {
            task.abort();
            task.request_cancel("from inside");
        }
        let own_handle = self.own_handle.take();
        drop(own_handle);
        if let Some(mut other) = self.other.take() {
            other.abort();
            poll_anyhow(&mut other);
        }
        if self.depth > 0 && door::is_open() {
            self.storms.begin(self.depth - 1, None);
            poll_anyhow(&mut pin!(sleep(ms(3))));
            let _ = catch_unwind(|| current().request_cancel("from a destructor"));
        }
    }
}

/// Polls a future where it may panic for want of a task.
fn poll_anyhow(future: &mut (impl Future + Unpin)) {
    let mut cx = Context::from_waker(Waker::noop());
    let _ = catch_unwind(AssertUnwindSafe(|| drop(Pin::new(future).poll(&mut cx))));
}

impl Storms {
    fn begin(&self, depth: u32, other: Option<Task<Storm>>) -> Handle {
        let handle = Handle::default();
        let (storms, own_handle) = (self.clone(), handle.clone());
        let mut storm = Storm { depth, storms, own_handle, other, own_waker: None };
        let task = spawn(async move {
            storm.own_waker = Some(poll_fn(|cx| Poll::Ready(cx.waker().clone())).await);
            let _ = timeout_after(ms(2), sleep(ms(100_000))).await;
            storm
        });
        *handle.borrow_mut() = Some(task);
        self.handles.borrow_mut().push(handle.clone());
        handle
    }

    fn begin_many(&self) {
        for number in 0..100 {
            let other = self.begin(2, None).take();
            let handle = self.begin(3, other);
            match (number % 3, &*handle.borrow()) {
                (0, Some(task)) => task.abort(),
                (1, Some(task)) => task.request_cancel("from outside"),
                _ => {}
            }
        }
    }

    /// Drops all handles, and with them what has ended, until nothing new begins.
    fn assert_each_ended_once(&self) {
        let mut begun = 0;
        loop {
            let handles = self.handles.take();
            begun += handles.len();
            if handles.is_empty() {
                break;
            }
            for handle in handles {
                let task = handle.take();
                drop(task);
            }
        }
        assert_eq!(self.ended.get(), begun);
    }
}

#[test]
fn destructors_that_use_the_kernel_run_once() {
    within(|| {
        let storms = Storms::default();
        let kernel = kernel();
        kernel.run(async {
            storms.begin_many();
            sleep(ms(1)).await.unwrap();
            for handle in storms.handles.borrow().iter().step_by(3) {
                handle.borrow().iter().for_each(Task::abort);
            }
            sleep(ms(20)).await.unwrap();
        });
        kernel.shutdown();
        drop(kernel);
        storms.assert_each_ended_once();
    });
}

#[test]
fn destructors_run_once_when_the_kernel_drops() {
    within(|| {
        let storms = Storms::default();
        let kernel = kernel();
        kernel.run(async {
            storms.begin_many();
            yield_now().await.unwrap();
        });
        drop(kernel);
        storms.assert_each_ended_once();
    });
}

#[test]
fn destructors_run_once_within_another_kernel() {
    within(|| {
        let storms = Storms::default();
        let kernel = kernel();
        kernel.run(async {
            storms.begin_many();
            yield_now().await.unwrap();
        });
        run(async {
            drop(kernel);
            // Tasks that they have begun in this kernel run to their end.
            sleep(ms(100)).await.unwrap();
        });
        storms.assert_each_ended_once();
    });
}
