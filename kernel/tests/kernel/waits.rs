//! Waits of one task: how listings show them, and how they bear moves, leaks, ends and panics.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures::stream::{FuturesUnordered, StreamExt};
use pikake::sync::{OnceCell, oneshot};
use pikake::time::{Clock, ManualClock};
use pikake::traps::{KernelHandle, WaitQueue, park};
use pikake::{
    Interrupted, Kernel, Task, TaskError, TimedOut, current, shield, sleep, spawn, timeout_after,
    yield_now,
};

use crate::support::{Log, OnDrop, builder, kernel, ms, within};

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// A wait that owns a share of its queue.
fn parked(queue: &Rc<WaitQueue>) -> Boxed<Result<(), Interrupted>> {
    let queue = queue.clone();
    Box::pin(async move { park(&queue).await })
}

/// Polls a future once; returns whether it is done.
async fn is_ready<T>(future: &mut Boxed<T>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

fn assert_clean<C: Clock + 'static>(kernel: &Kernel<C>) {
    assert_eq!((kernel.wait_count(), kernel.waits().len()), (0, 0));
}

/// File and line of the place so many lines below the caller.
#[track_caller]
fn place(lines: u32) -> (&'static str, u32) {
    let here = Location::caller();
    (here.file(), here.line() + lines)
}

/// The listing of a kernel in which a task waits: each trap, and the place that awaits it.
fn listed(start: impl FnOnce() -> Task<()>) -> Vec<(&'static str, (&'static str, u32))> {
    let kernel = kernel();
    let [_task] = kernel.run(async {
        let task = start();
        sleep(ms(1)).await.unwrap();
        [task]
    });
    let list = || {
        let waits = kernel.waits().into_iter();
        let waits = waits.map(|wait| (wait.trap.name(), (wait.place.file(), wait.place.line())));
        waits.collect::<Vec<_>>()
    };
    let seen = list();
    kernel.inspect();
    kernel.run(async { sleep(ms(1)).await.unwrap() });
    assert_eq!(list(), seen, "inspected, a task with one wait shows the same");
    seen
}

#[test]
fn a_parked_task_is_listed_until_woken() {
    let kernel = kernel();
    let queue = Rc::new(WaitQueue::new());
    let of_task = queue.clone();
    let (id, (file, line)) = kernel.run(async move {
        let at = place(1);
        let task = spawn(async move { park(&of_task).await });
        sleep(ms(1)).await.unwrap();
        let id = task.id();
        task.detach();
        (id, at)
    });
    let waits = kernel.waits();
    assert_eq!((kernel.wait_count(), queue.len(), waits.len()), (1, 1, 1));
    assert_eq!((waits[0].task.id(), waits[0].trap.name()), (id, "park"));
    assert_eq!((waits[0].place.file(), waits[0].place.line()), (file, line));
    assert_eq!(queue.wake(1), 1);
    assert_eq!((kernel.wait_count(), kernel.waits().len(), queue.len()), (1, 0, 0));
    kernel.run(async { yield_now().await.unwrap() });
    assert_clean(&kernel);
}

#[test]
fn waiters_wake_first_come_first_served() {
    let kernel = kernel();
    let log = Log::default();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        for name in ["first", "second", "third"] {
            let (queue, log) = (queue.clone(), log.clone());
            let task = spawn(async move {
                park(&queue).await.unwrap();
                log.add(name);
            });
            task.detach();
            sleep(ms(1)).await.unwrap();
        }
        assert_eq!((queue.len(), queue.wake(2)), (3, 2));
        sleep(ms(1)).await.unwrap();
        log.add("later");
        assert_eq!(queue.wake(2), 1);
        sleep(ms(1)).await.unwrap();
    });
    assert_eq!(log.take(), ["first", "second", "later", "third"]);
    assert_clean(&kernel);
}

/// A cancelled waiter stays in the queue, and can be woken, until the task's next step.
#[test]
fn a_cancelled_waiter_leaves_the_queue_to_others() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        let waiting = || spawn(parked(&queue));
        let (one, other) = (waiting(), waiting());
        sleep(ms(1)).await.unwrap();
        one.request_cancel("not wanted");
        assert_eq!(queue.len(), 2);
        sleep(ms(1)).await.unwrap();
        assert_eq!((queue.len(), queue.wake(2)), (1, 1));
        let outcomes = (one.join().await, other.join().await);
        assert!(matches!(outcomes, (Ok(Err(_)), Ok(Ok(())))), "{outcomes:?}");
        assert_eq!(queue.wake(1), 0);
    });
    assert_clean(&kernel);
}

/// Wake and cancel come in either order, before the waiter's next step.
#[test]
fn a_wake_and_a_cancel_both_arrive() {
    for is_woken_first in [true, false] {
        let kernel = kernel();
        kernel.run(async {
            let queue = Rc::new(WaitQueue::new());
            let of_task = queue.clone();
            let task = spawn(async move {
                let woken = park(&of_task).await;
                (woken, park(&of_task).await.is_err())
            });
            sleep(ms(1)).await.unwrap();
            if is_woken_first {
                assert_eq!(queue.wake(1), 1);
            }
            task.request_cancel("for the second wait");
            if !is_woken_first {
                assert_eq!(queue.wake(1), 1);
            }
            assert_eq!(task.join().await.unwrap(), (Ok(()), true));
            assert_eq!(queue.len(), 0);
        });
        assert_clean(&kernel);
    }
}

#[test]
fn a_dropped_waiter_passes_its_wake_on() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        let mut first = parked(&queue);
        assert!(!is_ready(&mut first).await);
        let next = spawn(parked(&queue));
        yield_now().await.unwrap();
        assert_eq!((queue.len(), queue.wake(1)), (2, 1));
        drop(first);
        assert_eq!(next.join().await.unwrap(), Ok(()));
        // A waiter that was not woken passes no wake on.
        let mut third = parked(&queue);
        assert!(!is_ready(&mut third).await);
        drop(third);
        assert_eq!(queue.wake(1), 0);
    });
    assert_clean(&kernel);
}

#[test]
fn a_moved_wait_wakes_its_new_task() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        for is_woken_before in [false, true] {
            let mut wait = parked(&queue);
            assert!(!is_ready(&mut wait).await);
            if is_woken_before {
                assert_eq!(queue.wake(1), 1);
            }
            let other = spawn(wait);
            yield_now().await.unwrap();
            assert_eq!(queue.wake(1), usize::from(!is_woken_before));
            assert_eq!(other.join().await.unwrap(), Ok(()));
        }
    });
    assert_clean(&kernel);
}

/// The cancelled task is the one that polls the wait last, not the one that polled it first.
#[test]
fn a_moved_wait_is_cancelled_with_its_task() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        let mut wait = parked(&queue);
        assert!(!is_ready(&mut wait).await);
        let new = spawn(wait);
        sleep(ms(1)).await.unwrap();
        assert_eq!(queue.len(), 1);
        new.cancel().await.unwrap();
        assert!(new.join().await.unwrap().is_err());
        assert_eq!(queue.len(), 0);
    });
    assert_clean(&kernel);
}

#[test]
fn a_wait_moved_into_a_scope_times_out() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        let mut wait = parked(&queue);
        assert!(!is_ready(&mut wait).await);
        assert_eq!(timeout_after(ms(5), &mut wait).await, Err(TimedOut));
        assert_eq!(queue.len(), 0);
    });
    assert_clean(&kernel);
}

#[test]
fn a_wait_outlives_its_task_and_is_woken() {
    let kernel = kernel();
    kernel.run(async {
        let queues = [(); 2].map(|()| Rc::new(WaitQueue::new()));
        let mut left = Vec::new();
        for queue in &queues {
            let mut wait = parked(queue);
            let task = spawn(async move {
                assert!(!is_ready(&mut wait).await);
                [wait]
            });
            left.extend(task.join().await.unwrap());
        }
        assert_eq!(queues.each_ref().map(|queue| queue.wake(1)), [1, 1]);
        for wait in left {
            assert_eq!(wait.await, Ok(()));
        }
    });
    assert_clean(&kernel);
}

#[test]
fn a_wait_moved_into_combinators_calls_its_waker() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        let mut wait = parked(&queue);
        assert!(!is_ready(&mut wait).await);
        let mut all: FuturesUnordered<_> = [wait, parked(&queue)].into_iter().collect();
        let waker = queue.clone();
        spawn(async move {
            for _ in 0..2 {
                sleep(ms(1)).await.unwrap();
                assert_eq!(waker.wake(1), 1);
            }
        })
        .detach();
        assert_eq!((all.next().await, all.next().await), (Some(Ok(())), Some(Ok(()))));
    });
    assert_clean(&kernel);
}

#[test]
fn a_scope_outlives_the_task_that_opened_it() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        for is_late in [false, true] {
            let body = parked(&queue);
            let opened = spawn(async move {
                let mut scope: Boxed<_> = Box::pin(timeout_after(ms(10), body));
                assert!(!is_ready(&mut scope).await);
                [scope]
            });
            let [scope] = opened.join().await.unwrap();
            if is_late {
                sleep(ms(20)).await.unwrap();
            }
            let ended = spawn(scope).join().await.unwrap();
            assert_eq!((ended, queue.len()), (Err(TimedOut), 0));
        }
    });
    assert_clean(&kernel);
}

/// The deadline of a scope whose task has ended passes without an effect on later tasks.
#[test]
fn an_ended_tasks_deadline_reaches_no_other() {
    let kernel = kernel();
    let outcome = kernel.run(async {
        let left: Rc<RefCell<Option<Boxed<_>>>> = Rc::default();
        let to = left.clone();
        let ended = spawn(async move {
            yield_now().await.unwrap();
            let mut scope: Boxed<_> = Box::pin(timeout_after(ms(10), std::future::pending::<()>()));
            assert!(!is_ready(&mut scope).await);
            to.replace(Some(scope));
        });
        ended.join().await.unwrap();
        let later = spawn(async {
            yield_now().await.unwrap();
            timeout_after(ms(20), async {
                yield_now().await.unwrap();
                std::future::pending::<()>().await;
            })
            .await
        });
        let outcome = timeout_after(ms(5000), later.join()).await;
        drop(left);
        outcome
    });
    assert!(matches!(outcome, Ok(Ok(Err(TimedOut)))), "{outcome:?}");
    assert_clean(&kernel);
}

/// The deadline has passed before the move, so the first yield inside returns it.
#[test]
fn a_scope_that_moves_late_interrupts_a_yield() {
    let kernel = kernel();
    let yields = kernel.run(async {
        let flag = Rc::new(Cell::new(false));
        let yields = Rc::new(Cell::new(0));
        let (seen, count) = (flag.clone(), yields.clone());
        let mut scope: Boxed<_> = Box::pin(timeout_after(ms(10), async move {
            poll_fn(|_| if seen.get() { Poll::Ready(()) } else { Poll::Pending }).await;
            while count.get() < 100 && yield_now().await.is_ok() {
                count.set(count.get() + 1);
            }
        }));
        assert!(!is_ready(&mut scope).await);
        sleep(ms(20)).await.unwrap();
        let other = spawn(async move {
            flag.set(true);
            scope.await
        });
        (other.join().await.unwrap(), yields.get())
    });
    assert_eq!(yields, (Err(TimedOut), 0));
    assert_clean(&kernel);
}

#[test]
#[should_panic(expected = "stays with its kernel")]
fn a_yield_stays_with_its_kernel() {
    let (one, two) = (kernel(), kernel());
    let mut wait: Boxed<_> = Box::pin(yield_now());
    one.run(is_ready(&mut wait));
    two.run(wait).unwrap();
}

/// Asks a task to end when it is woken.
struct Canceller;

thread_local! {
    static CANCEL: RefCell<Option<Task<()>>> = const { RefCell::new(None) };
}

impl Wake for Canceller {
    fn wake(self: Arc<Self>) {
        CANCEL.with_borrow(|task| {
            if let Some(task) = task {
                task.request_cancel("by a waker");
            }
        });
    }
}

/// The kernel calls a yield's waker after the step, and before it decides whether the task goes on.
#[test]
fn a_cancel_after_a_step_is_delivered() {
    let kernel = kernel();
    let outcome = kernel.run(async {
        let task = spawn(async move {
            yield_now().await.unwrap();
            let waker = Waker::from(Arc::new(Canceller));
            let mut wait: Boxed<_> = Box::pin(yield_now());
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            std::future::pending::<()>().await;
        });
        CANCEL.set(Some(task));
        sleep(ms(10)).await.unwrap();
        let task = CANCEL.take().unwrap();
        timeout_after(ms(5000), task.join()).await
    });
    assert!(matches!(outcome, Ok(Err(TaskError::Cancelled(_)))), "{outcome:?}");
    assert_clean(&kernel);
}

/// Polls a new wait with a stored waker when it is dropped.
struct PollsInDrop(Waker);

impl Drop for PollsInDrop {
    fn drop(&mut self) {
        let mut wait = Box::pin(yield_now());
        let _ = wait.as_mut().poll(&mut Context::from_waker(&self.0));
    }
}

#[test]
fn a_destructor_that_waits_leaves_nothing() {
    let kernel = kernel();
    kernel.run(async {
        let task = spawn(async {
            let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
            let mut all = (PollsInDrop(waker), yield_now(), yield_now());
            poll_fn(|cx| {
                let _ = Pin::new(&mut all.1).poll(cx);
                let _ = Pin::new(&mut all.2).poll(cx);
                Poll::<()>::Pending
            })
            .await;
        });
        // This aborts the task between its first step and its second.
        let aborting = spawn(async move {
            task.abort();
            task.join().await.is_err()
        });
        assert!(aborting.join().await.unwrap());
    });
    assert_clean(&kernel);
}

/// Leaks a future after its first poll: it is neither moved nor dropped.
fn leak_after_poll<F: Future + 'static>(future: F, cx: &mut Context<'_>) {
    let mut future = Box::pin(future);
    assert!(future.as_mut().poll(cx).is_pending());
    forget(future);
}

/// Runs a task that leaks what `leak` polls, and then waits; asserts that a cancel ends it.
fn assert_ends_after(leak: impl FnOnce(&mut Context<'_>) + 'static) {
    let kernel = kernel();
    let log = Log::default();
    let notes = log.clone();
    let outcome = kernel.run(async {
        let task = spawn(async move {
            let mut leak = Some(leak);
            poll_fn(|cx| {
                if let Some(leak) = leak.take() {
                    leak(cx);
                }
                Poll::Ready(())
            })
            .await;
            let waited = park(&WaitQueue::new()).await;
            notes.add(waited.is_err());
            // The leaked deadlines pass during this cleanup, too.
            notes.add(sleep(ms(100)).await.is_ok());
            drop(notes);
        });
        sleep(ms(5)).await.unwrap();
        task.request_cancel("enough");
        timeout_after(ms(5000), task.join()).await
    });
    assert!(matches!(outcome, Ok(Ok(()))), "{outcome:?}");
    assert_eq!(log.take(), ["true", "true"]);
    kernel.shutdown();
    assert_eq!(kernel.task_count(), 0);
}

#[test]
fn a_leaked_wait_does_not_keep_its_task() {
    assert_ends_after(|cx| leak_after_poll(sleep(ms(20)), cx));
    assert_ends_after(|cx| leak_after_poll(yield_now(), cx));
    assert_ends_after(|cx| leak_after_poll(park(Box::leak(Box::default())), cx));
}

#[test]
fn a_leaked_wait_outlives_its_queue() {
    assert_ends_after(|cx| {
        let queue = Rc::new(WaitQueue::new());
        // The wait leaks with its share of the queue, which is not used any more.
        leak_after_poll(parked(&queue), cx);
        assert_eq!((queue.len(), queue.wake(1)), (1, 1));
    });
}

#[test]
fn a_leaked_scope_does_not_keep_its_task() {
    for deadline in [ms(1), ms(20), ms(5000)] {
        assert_ends_after(move |cx| leak_after_poll(timeout_after(deadline, sleep(ms(30))), cx));
        assert_ends_after(move |cx| {
            leak_after_poll(timeout_after(deadline, shield(sleep(ms(30)))), cx);
        });
    }
}

/// The leaked waits are inside a scope that lives on.
#[test]
fn a_leaked_wait_does_not_keep_its_scope() {
    let kernel = kernel();
    let outcome = kernel.run(async {
        let task = spawn(timeout_after(ms(50), async {
            poll_fn(|cx| {
                leak_after_poll(sleep(ms(10)), cx);
                leak_after_poll(timeout_after(ms(20), sleep(ms(30))), cx);
                Poll::Ready(())
            })
            .await;
            park(&WaitQueue::new()).await.is_err()
        }));
        timeout_after(ms(5000), task.join()).await
    });
    assert!(matches!(outcome, Ok(Ok(Err(TimedOut)))), "{outcome:?}");
}

/// A combinator's waker polls the wait, so the wait has a node, which leaks with it.
#[test]
fn leaked_sub_waits_do_not_keep_their_task() {
    assert_ends_after(|cx| {
        let mut all: FuturesUnordered<_> = [sleep(ms(20)), sleep(ms(30))].into_iter().collect();
        assert!(all.poll_next_unpin(cx).is_pending());
        forget(all);
    });
    assert_ends_after(|cx| {
        let all = [timeout_after(ms(2), sleep(ms(20))), timeout_after(ms(60), sleep(ms(30)))];
        let mut all: FuturesUnordered<_> = all.into_iter().collect();
        assert!(all.poll_next_unpin(cx).is_pending());
        forget(all);
    });
}

/// The panic ends its scope, and the scope around it interrupts the next wait.
#[test]
fn a_panic_inside_a_scope_closes_it() {
    let kernel = kernel();
    let log = Log::default();
    let outer = kernel.run(async {
        let started = pikake::now();
        timeout_after(ms(50), async {
            let mut inner: Boxed<_> = Box::pin(timeout_after(ms(10), async {
                yield_now().await.unwrap();
                panic!("inside");
            }));
            let caught = poll_fn(|cx| {
                let polled = catch_unwind(AssertUnwindSafe(|| inner.as_mut().poll(cx)));
                match polled {
                    Ok(polled) => polled.map(|_: Result<(), _>| false),
                    Err(_) => Poll::Ready(true),
                }
            })
            .await;
            log.add(format_args!("caught {caught}"));
            log.add(format_args!("slept {:?}", sleep(ms(20)).await));
            let rate = pikake::traps::clock_rate();
            let is_interrupted = sleep(ms(100)).await.is_err();
            let after = rate.duration_floor(pikake::now().since(started));
            log.add(format_args!("interrupted {is_interrupted} after {after:?}"));
            drop(inner);
        })
        .await
    });
    assert_eq!(outer, Err(TimedOut));
    assert_eq!(log.take(), ["caught true", "slept Ok(())", "interrupted true after 50ms"]);
    assert_clean(&kernel);
}

#[test]
fn a_call_reports_a_panic_with_its_text() {
    within(|| {
        let kernel = kernel();
        let outcome = kernel.run(async {
            let call = KernelHandle::current().call(|| async { panic!("this text") });
            call.await.map(|(): ()| ())
        });
        let Err(TaskError::Panicked(panic)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(panic.message(), Some("this text"));
    });
}

#[test]
fn a_call_reports_a_panic_of_the_closure() {
    within(|| {
        let kernel = kernel();
        let outcome = kernel.run(async {
            let make = || -> std::future::Ready<()> { panic!("before there is a future") };
            KernelHandle::current().call(make).await
        });
        let Err(TaskError::Panicked(panic)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(panic.message(), Some("before there is a future"));
    });
}

#[test]
fn current_between_steps_panics_with_advice() {
    let kernel = kernel();
    let panic = catch_unwind(AssertUnwindSafe(|| kernel.enter(|| current().id())));
    let panic = panic.expect_err("there is no current task");
    let text = panic.downcast_ref::<String>().expect("a text");
    for part in ["`current`", file!(), "Kernel::enter", "call it from a task"] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    assert!(kernel.enter(|| pikake::traps::try_current().is_none()).unwrap());
}

/// The refused task has not ended, and the kernel drops its future like any other.
#[test]
fn a_task_that_drops_itself_is_refused() {
    let kernel = kernel();
    let log = Log::default();
    let outcome = kernel.try_run(async {
        let _guard = OnDrop(|| log.add("dropped"));
        let me = current().task_ref().clone();
        let refused = catch_unwind(AssertUnwindSafe(|| me.abandon(TaskError::Stopped)));
        log.add(format_args!("refused {}", refused.is_err()));
        yield_now().await.unwrap();
        log.add("went on");
        me
    });
    let me = outcome.expect("it goes on");
    assert!(me.is_ended());
    assert_eq!(log.take(), ["refused true", "went on", "dropped"]);
}

/// A task that waits for ever.
fn endless() -> Task<()> {
    spawn(std::future::pending())
}

#[test]
fn a_join_is_listed_where_awaited() {
    let mut at = ("", 0);
    let seen = listed(|| {
        let joined = endless();
        at = place(1);
        spawn(async move { joined.await.unwrap() })
    });
    assert_eq!(seen, [("join", at)]);
}

#[test]
fn a_cancel_is_listed_where_awaited() {
    let mut at = ("", 0);
    let seen = listed(|| {
        let joined = spawn(async {
            // This cleanup outlasts the listing.
            let _ = park(&WaitQueue::new()).await;
            let _ = shield(park(&WaitQueue::new())).await;
        });
        at = place(3);
        spawn(async move {
            yield_now().await.unwrap();
            joined.cancel().await.unwrap();
        })
    });
    assert!(seen.contains(&("join", at)), "{seen:?}");
}

#[test]
fn a_oneshot_is_listed_where_awaited() {
    let mut at = ("", 0);
    let seen = listed(|| {
        let (sender, receiver) = oneshot::channel::<()>();
        forget(sender);
        at = place(1);
        spawn(async move { receiver.await.unwrap().unwrap() })
    });
    assert_eq!(seen, [("park", at)]);
}

/// The first task waits on a foreign future for the value, and the second task waits for the first.
#[test]
fn a_once_cell_is_listed_where_awaited() {
    let (mut at, mut made_at) = (("", 0), ("", 0));
    let seen = listed(|| {
        let cell = Rc::new(OnceCell::new());
        let making = cell.clone();
        made_at = place(1);
        let make = async move { making.get_or_init(std::future::pending::<u32>).await.copied() };
        spawn(make).detach();
        at = place(2);
        spawn(async move {
            assert_eq!(cell.get_or_init(async || 1).await, Ok(&1));
        })
    });
    assert_eq!(seen, [("park", at), ("future_wait", made_at)]);
}

#[test]
fn a_shutdown_interrupts_many_yielders_in_time() {
    const TASKS: u32 = 10_000;
    /// Each task is interrupted and ends within a turn; the grace is for tasks that do not end.
    const TURNS: u64 = 4;
    let kernel = builder().build().unwrap();
    let (interrupted, last) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    kernel.run(async {
        for _ in 0..TASKS {
            let (interrupted, last) = (interrupted.clone(), last.clone());
            spawn(async move {
                let mut yields = 0;
                while yield_now().await.is_ok() {
                    yields += 1;
                }
                interrupted.set(interrupted.get() + 1);
                last.set(last.get().max(yields));
            })
            .detach();
        }
        yield_now().await.unwrap();
        yield_now().await.unwrap();
    });
    kernel.shutdown();
    assert_eq!(interrupted.get(), TASKS);
    assert!(last.get() <= TURNS, "one yielded {} times", last.get());
    assert_clean(&kernel);
}

/// No test moves this manual clock, so its time stands still.
#[test]
fn a_wake_needs_no_time() {
    within(|| {
        let kernel = Kernel::builder().clock(ManualClock::new()).build().unwrap();
        kernel.run(async {
            let queue = Rc::new(WaitQueue::new());
            let waiting = spawn(parked(&queue));
            yield_now().await.unwrap();
            assert_eq!(queue.wake(1), 1);
            assert_eq!(waiting.join().await.unwrap(), Ok(()));
        });
        assert_clean(&kernel);
    });
}
