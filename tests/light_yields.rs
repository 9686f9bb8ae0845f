//! Light yields: what moves, ends or panics meanwhile.
mod support;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use pikake::{Task, TimedOut, sleep, spawn, timeout_after, yield_now};
use support::{kernel, ms};

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// Polls once, whatever comes.
async fn poll_once<T>(future: &mut Boxed<T>) {
    poll_fn(|cx| {
        let _ = future.as_mut().poll(cx);
        Poll::Ready(())
    })
    .await
}

#[test]
fn a_scope_that_leaves_a_task_that_ended_leaves_no_record() {
    let kernel = kernel();
    kernel.run(async {
        let slot: Rc<RefCell<Option<Boxed<_>>>> = Rc::default();
        let to = slot.clone();
        let a = spawn(async move {
            let mut t: Boxed<_> = Box::pin(timeout_after(ms(1000), async {
                yield_now().await.unwrap();
            }));
            poll_once(&mut t).await;
            let mut was_polled = false;
            // Until its next step, which the yield has asked for.
            poll_fn(|_| match std::mem::replace(&mut was_polled, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            *to.borrow_mut() = Some(t);
        });
        a.join().await.unwrap();
        let t = slot.borrow_mut().take().unwrap();
        t.await.unwrap();
    });
    assert_eq!(kernel.wait_count(), 0);
}

#[test]
fn a_deadline_of_a_dead_task_s_scope_does_not_reach_others() {
    let kernel = kernel();
    let out = kernel.run(async {
        let slot: Rc<RefCell<Option<Boxed<_>>>> = Rc::default();
        let to = slot.clone();
        let a = spawn(async move {
            yield_now().await.unwrap();
            let mut t: Boxed<_> = Box::pin(timeout_after(ms(10), std::future::pending::<()>()));
            poll_once(&mut t).await;
            *to.borrow_mut() = Some(t);
        });
        a.join().await.unwrap();
        let c = spawn(async {
            yield_now().await.unwrap();
            timeout_after(ms(20), async {
                yield_now().await.unwrap();
                std::future::pending::<()>().await
            })
            .await
        });
        let r = timeout_after(ms(5000), c.join()).await;
        drop(slot);
        r
    });
    assert!(matches!(out, Ok(Ok(Err(TimedOut)))), "{out:?}");
    assert_eq!(kernel.wait_count(), 0);
}

#[test]
fn what_is_pending_in_a_scope_finds_a_light_yield_in_its_new_task() {
    let kernel = kernel();
    let n = kernel.run(async {
        let flag = Rc::new(Cell::new(false));
        let seen = flag.clone();
        let mut t: Boxed<_> = Box::pin(timeout_after(ms(10), async move {
            poll_fn(|_| if seen.get() { Poll::Ready(()) } else { Poll::Pending }).await;
            for n in 0..10_000 {
                if yield_now().await.is_err() {
                    return n;
                }
            }
            -1
        }));
        poll_once(&mut t).await;
        sleep(ms(20)).await.unwrap();
        let b = spawn(async move {
            flag.set(true);
            t.await
        });
        b.join().await.unwrap()
    });
    // It was told at its first wait.
    assert_eq!(n, Err(TimedOut));
    assert_eq!(kernel.wait_count(), 0);
}

#[test]
#[should_panic(expected = "stays with its kernel")]
fn a_light_yield_stays_with_its_kernel() {
    let (one, two) = (kernel(), kernel());
    let mut y: Boxed<_> = Box::pin(yield_now());
    one.run(poll_once(&mut y));
    two.run(y).unwrap();
}

thread_local! { static CANCEL: RefCell<Option<pikake::Task<u32>>> = const { RefCell::new(None) }; }
struct Canceller;
impl Wake for Canceller {
    fn wake(self: Arc<Self>) {
        CANCEL.with_borrow(|t| {
            if let Some(t) = t {
                t.request_cancel("by a waker")
            }
        });
    }
}

#[test]
fn a_cancel_between_a_step_and_its_end_is_delivered() {
    let kernel = kernel();
    let n = kernel.run(async {
        let t: Task<u32> = spawn(async move {
            yield_now().await.unwrap();
            let waker = Waker::from(Arc::new(Canceller));
            let mut y: Boxed<_> = Box::pin(yield_now());
            poll_fn(|_| {
                let _ = y.as_mut().poll(&mut Context::from_waker(&waker));
                Poll::Ready(())
            })
            .await;
            std::future::pending::<()>().await;
            0
        });
        CANCEL.set(Some(t));
        sleep(ms(10)).await.unwrap();
        let t = CANCEL.take().unwrap();
        timeout_after(ms(5000), t.join()).await
    });
    assert!(matches!(n, Ok(Err(_))), "{n:?}");
    assert_eq!(kernel.wait_count(), 0);
}

struct Flush(Option<Waker>);
impl Drop for Flush {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            let mut y = Box::pin(yield_now());
            let _ = y.as_mut().poll(&mut Context::from_waker(&waker));
        }
    }
}
#[test]
fn a_destructor_that_yields_takes_no_light_yield_along() {
    let kernel = kernel();
    kernel.run(async {
        let t = spawn(async {
            let _y = std::pin::pin!(async {
                let a = yield_now();
                let b = yield_now();
                let flush = Flush(Some(poll_fn(|cx| Poll::Ready(cx.waker().clone())).await));
                let mut all = (flush, a, b);
                poll_fn(|cx| {
                    let _ = Pin::new(&mut all.1).poll(cx);
                    let _ = Pin::new(&mut all.2).poll(cx);
                    Poll::<()>::Pending
                })
                .await
            });
            _y.await
        });
        // Aborted between its first step and its second.
        let a = spawn(async move {
            t.abort();
            t.join().await.is_err()
        });
        assert!(a.join().await.unwrap());
    });
    assert_eq!(kernel.wait_count(), 0);
}

#[test]
fn many_that_yield_are_told_of_a_shutdown_before_its_grace_is_over() {
    /// If each looked at what the others left, this would take twice the grace.
    const TASKS: u32 = 40_000;
    // By the system's clock, as how long it takes is the subject.
    let (kernel, told) = (pikake::Kernel::new().unwrap(), Rc::new(Cell::new(0)));
    kernel.run(async {
        for _ in 0..TASKS {
            let told = told.clone();
            spawn(async move {
                while yield_now().await.is_ok() {}
                told.set(told.get() + 1);
            })
            .detach();
        }
        yield_now().await.unwrap();
        yield_now().await.unwrap();
    });
    kernel.shutdown();
    assert_eq!(told.get(), TASKS, "the others were dropped when the grace was over");
    assert_eq!(kernel.wait_count(), 0);
}
