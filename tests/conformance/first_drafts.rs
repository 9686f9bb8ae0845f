//! Programs that a first draft of the rules of interruption got wrong.
//!
//! The order is that of the list at the end of decision D4. Each comment tells how the draft
//! behaved.

use std::cell::Cell;
use std::future::{pending as foreign, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use futures::stream::{FuturesUnordered, StreamExt};

use super::pikake::traps::{WaitQueue, park};
use super::pikake::{future_wait, shield, sleep, spawn, timed, timeout_after, yield_now};
use super::runner::{Runner, World, describe, ms, on_every_kernel, poll_once};

/// Runs children to their ends in a scope of 10 ms, and notes what the scope reports.
async fn drain<F: Future>(world: &World, children: impl IntoIterator<Item = F>) {
    let outcome = timed(ms(10), async {
        let mut set: FuturesUnordered<_> = children.into_iter().collect();
        while set.next().await.is_some() {}
    });
    let outcome = outcome.await;
    world.note(format_args!("done {} expired {}", outcome.output.is_some(), outcome.expired));
}

/// Two children of a set wait until the deadline, and then roll back.
fn assert_children_roll_back<R: Runner>(wait: impl AsyncFn() -> String + 'static) {
    let events = R::run(async move |world| {
        let child = async |name| {
            world.note(format_args!("{name} waits: {}", wait().await));
            world.note(format_args!("{name} rolls back: {}", describe(sleep(ms(5)).await)));
        };
        drain(&world, ["one", "two"].map(child)).await;
    });
    assert_eq!(
        events,
        [
            "10 one waits: a deadline passed",
            "10 two waits: a deadline passed", // both return it
            "15 one rolls back: ok",
            "15 two rolls back: ok",
            "15 done true expired true",
        ]
    );
}

/// The draft called the scope's waker alone. The set polls no child whose own waker was not called,
/// so the scope seemed to wait on nothing, and was dropped.
fn children_of_a_set_sleep_and_roll_back<R: Runner>() {
    assert_children_roll_back::<R>(async || describe(sleep(ms(100)).await));
}

/// The draft had no entry for a `future_wait`, which ends outside of the kernel. The deadline found
/// no waker to call.
fn children_of_a_set_wait_for_foreign_futures<R: Runner>() {
    assert_children_roll_back::<R>(async || describe(future_wait(foreign::<()>()).await));
}

/// The draft asked whether a wait or a shield had been polled. The set did not poll the shield,
/// whose waker was not called, so the draft dropped the commit half-way.
fn children_of_a_set_commit_inside_shields<R: Runner>() {
    let events = R::run(async |world| {
        let child = |name| {
            let world = world.clone();
            async move {
                shield(async {
                    world.note(format_args!("{name}: {}", describe(sleep(ms(20)).await)))
                })
                .await;
                world.note(format_args!("{name} goes on: {}", describe(sleep(ms(5)).await)));
            }
        };
        drain(&world, ["one", "two"].map(child)).await;
    });
    assert_eq!(
        events,
        [
            "20 one: ok",
            "20 one goes on: a deadline passed",
            "20 two: ok",
            "20 two goes on: a deadline passed", // the end of its shield begins a branch
            "20 done true expired true",
        ]
    );
}

/// The draft counted the waits and the wakes of the task. The yields beside the scope kept it from
/// being dropped.
fn yields_beside_a_scope_do_not_keep_it<R: Runner>() {
    let events = R::run(async |world| {
        let hopeless = async {
            let outcome = timeout_after(ms(10), foreign::<()>()).await;
            world.note(format_args!("{outcome:?}"));
        };
        let yields = async {
            for _ in 0..20 {
                world.stall(1);
                yield_now().await.unwrap();
            }
            world.note("has yielded");
        };
        futures::join!(hopeless, yields);
    });
    assert_eq!(events, ["10 Err(TimedOut)", "20 has yielded"]);
}

/// The draft compared the cause with the last pending poll alone. The deadline passed after the
/// sleep's poll, and so interrupted the sleep in the cleanup.
fn cleanup_awaits_a_sleep_older_than_its_scope<R: Runner>() {
    let events = R::run(async |world| {
        let mut nap = sleep(ms(50));
        assert!(poll_once(&mut nap).await.is_pending());
        let outcome = timed(ms(10), async {
            world.note(describe(sleep(ms(100)).await));
            world.note(describe(nap.await));
        });
        world.note(format_args!("expired {}", outcome.await.expired));
    });
    assert_eq!(events, ["10 a deadline passed", "50 ok", "50 expired true"]);
}

/// The draft called, for each deadline, the wakers of all the others: the work grew with the square
/// of their number.
fn ten_thousand_timeouts_poll_each_body_twice<R: Runner>() {
    const COUNT: u32 = 10_000;
    let events = R::run(async |world| {
        let polls = Cell::new(0);
        let body = || {
            let mut nap = sleep(ms(100));
            poll_fn({
                let polls = &polls;
                move |cx| {
                    polls.set(polls.get() + 1);
                    Pin::new(&mut nap).poll(cx)
                }
            })
        };
        let mut set: FuturesUnordered<_> =
            (0..COUNT).map(|_| timeout_after(ms(10), body())).collect();
        let mut late = 0;
        while let Some(outcome) = set.next().await {
            late += u32::from(outcome.is_err());
        }
        assert_eq!((late, polls.get()), (COUNT, 2 * COUNT));
        world.note("all are late");
    });
    assert_eq!(events, ["10 all are late"]);
}

/// In the draft a pending scope kept the address of the scope around it, and used that address
/// after the outer scope had ended.
fn a_scope_outlives_the_one_around_it<R: Runner>() {
    let events = R::run(async |world| {
        let mut inner = Box::pin(timed(ms(20), async { describe(sleep(ms(100)).await) }));
        let outer = timeout_after(ms(10), async {
            assert!(poll_once(&mut inner).await.is_pending());
            world.note(format_args!("outer: {}", describe(sleep(ms(100)).await)));
        });
        world.note(format_args!("{:?}", outer.await));
        let inner = inner.await;
        world.note(format_args!("{:?} expired {}", inner.output, inner.expired));
    });
    assert_eq!(
        events,
        [
            "10 outer: a deadline passed",
            "10 Err(TimedOut)",
            "20 Some(\"a deadline passed\") expired true",
        ]
    );
}

/// The draft kept the address of an armed scope in the table of timers. A scope moves when its body
/// may be moved.
fn an_armed_timeout_is_moved<R: Runner>() {
    let events = R::run(async |world| {
        let mut first = timeout_after(ms(10), sleep(ms(100)));
        assert!(poll_once(&mut first).await.is_pending());
        let moved = Box::new(first);
        world.note(format_args!("{:?}", moved.await.map(describe)));
    });
    assert_eq!(events, ["10 Err(TimedOut)"]);
}

/// In the draft a scope's timer named the task that had armed it. The deadline made that task
/// ready, and not the one that had the scope by then.
fn a_scope_changes_tasks_before_its_deadline<R: Runner>() {
    let events = R::run(async |world| {
        let mut body = Box::pin(timed(ms(10), async { describe(sleep(ms(100)).await) }));
        assert!(poll_once(&mut body).await.is_pending());
        let taker = spawn({
            let world = world.clone();
            async move {
                let outcome = body.await;
                world.note(format_args!("{:?} expired {}", outcome.output, outcome.expired));
            }
        });
        world.note(format_args!("the giver: {}", describe(sleep(ms(50)).await)));
        taker.await.unwrap();
    });
    assert_eq!(events, ["10 Some(\"a deadline passed\") expired true", "50 the giver: ok"]);
}

/// The deadline passes before the second task polls the scope, which has a cause by then. The
/// draft's fault is that of the case above.
fn a_scope_changes_tasks_after_its_deadline<R: Runner>() {
    let events = R::run(async |world| {
        let mut body = Box::pin(timed(ms(10), async { describe(sleep(ms(100)).await) }));
        assert!(poll_once(&mut body).await.is_pending());
        world.stall(20);
        world.note(format_args!("the giver: {}", describe(sleep(ms(1)).await)));
        let taker = spawn({
            let world = world.clone();
            async move {
                let outcome = body.await;
                world.note(format_args!("{:?} expired {}", outcome.output, outcome.expired));
            }
        });
        taker.await.unwrap();
    });
    assert_eq!(events, ["21 the giver: ok", "21 Some(\"a deadline passed\") expired true"]);
}

/// A waker whose calls wait until a thread passes them on.
#[derive(Default)]
struct Relay {
    was_called: AtomicBool,
    may_poll: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Relay {
    fn pass_on(&self) {
        self.may_poll.store(true, Ordering::Relaxed);
        if let Some(waker) = self.task.lock().unwrap().take() {
            waker.wake();
        }
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.was_called.store(true, Ordering::Relaxed);
    }
}

/// Polls a future once at first, and then each time the relay passes a call on.
async fn relayed(relay: Arc<Relay>, future: impl Future<Output = ()>) {
    let mut future = pin!(future);
    relay.may_poll.store(true, Ordering::Relaxed);
    poll_fn(|cx| {
        relay.task.lock().unwrap().replace(cx.waker().clone());
        if relay.may_poll.swap(false, Ordering::Relaxed) {
            future.as_mut().poll(&mut Context::from_waker(&relay.clone().into()))
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// The draft dropped a scope whose poll had polled no wait inside. The thread that had the waker
/// came too late.
fn a_waker_is_relayed_through_a_thread<R: Runner>() {
    let events = R::run(async |world| {
        let relay = Arc::new(Relay::default());
        spawn({
            let relay = relay.clone();
            async move {
                sleep(ms(30)).await.unwrap();
                assert!(relay.was_called.load(Ordering::Relaxed));
                thread::spawn(move || relay.pass_on()).join().unwrap();
            }
        })
        .detach();
        let body = async {
            world.note(describe(sleep(ms(100)).await));
            relay.pass_on();
        };
        let outcome = timed(ms(10), relayed(relay.clone(), body)).await;
        world.note(format_args!("done {} expired {}", outcome.output.is_some(), outcome.expired));
    });
    assert_eq!(events, ["30 a deadline passed", "30 done true expired true"]);
}

/// In the draft a poll returned the newest cause. One branch got the cancel and the other the
/// deadline, and each lost the other cause.
fn two_causes_reach_both_branches<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let branch = async |name| {
                    for length in [100, 100, 1] {
                        let answer = describe(sleep(ms(length)).await);
                        world.note(format_args!("{name}: {answer}"));
                    }
                };
                let outcome = timed(ms(10), async { futures::join!(branch("one"), branch("two")) });
                world.note(format_args!("expired {}", outcome.await.expired));
            }
        });
        yield_now().await.unwrap();
        world.stall(10);
        yield_now().await.unwrap(); // the deadline passes in this turn, after this task is ready
        task.request_cancel("stop");
        task.await.unwrap();
    });
    assert_eq!(
        events,
        [
            "10 one: cancelled: stop", // the outermost first
            "10 one: a deadline passed",
            "10 two: cancelled: stop",
            "10 two: a deadline passed",
            "11 one: ok",
            "11 two: ok",
            "11 expired true",
        ]
    );
}

/// A stream over a queue, which keeps the wait of a read that was pending.
struct Stream {
    queue: Rc<WaitQueue>,
    stored: Option<Pin<Box<dyn Future<Output = String>>>>,
}

impl Stream {
    fn new(queue: &Rc<WaitQueue>) -> Self {
        Self { queue: queue.clone(), stored: None }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        let queue = &self.queue;
        let stored = self.stored.get_or_insert_with(|| {
            let queue = queue.clone();
            Box::pin(async move { describe(park(&queue).await) })
        });
        let answer = stored.as_mut().poll(cx);
        if answer.is_ready() {
            self.stored = None;
        }
        answer
    }

    async fn read(&mut self) -> String {
        poll_fn(|cx| self.poll_read(cx)).await
    }

    /// Polls a read once.
    async fn begin_to_read(&mut self) {
        assert!(poll_once(&mut poll_fn(|cx| self.poll_read(cx))).await.is_pending());
    }
}

/// The draft interrupted a stored wait by the cause of a scope, although the wait began outside of
/// it.
fn a_rollback_continues_a_read_from_outside<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let mut stream = Stream::new(&queue);
        stream.begin_to_read().await;
        let outcome = timed(ms(10), async {
            world.note(describe(sleep(ms(100)).await));
            spawn(async move {
                sleep(ms(5)).await.unwrap();
                queue.wake(1);
            })
            .detach();
            world.note(format_args!("read: {}", stream.read().await));
        });
        world.note(format_args!("expired {}", outcome.await.expired));
    });
    assert_eq!(events, ["10 a deadline passed", "15 read: ok", "15 expired true"]);
}

/// The draft interrupted a stored wait from inside the scope for ever. The rules interrupt it once,
/// and the stream waits again.
fn a_rollback_repeats_a_read_from_inside<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let mut stream = Stream::new(&queue);
        let outcome = timed(ms(10), async {
            stream.begin_to_read().await;
            world.note(describe(sleep(ms(100)).await));
            spawn(async move {
                sleep(ms(5)).await.unwrap();
                queue.wake(1);
            })
            .detach();
            world.note(format_args!("read: {}", stream.read().await));
            world.note(format_args!("read: {}", stream.read().await));
        });
        world.note(format_args!("expired {}", outcome.await.expired));
    });
    assert_eq!(
        events,
        ["10 a deadline passed", "10 read: a deadline passed", "15 read: ok", "15 expired true"]
    );
}

on_every_kernel! {
    in_order {
        yields_beside_a_scope_do_not_keep_it
        two_causes_reach_both_branches
    }
    in_any_order {
        children_of_a_set_sleep_and_roll_back
        children_of_a_set_wait_for_foreign_futures
        children_of_a_set_commit_inside_shields
        cleanup_awaits_a_sleep_older_than_its_scope
        a_scope_outlives_the_one_around_it
        an_armed_timeout_is_moved
        a_scope_changes_tasks_before_its_deadline
        a_scope_changes_tasks_after_its_deadline
        a_waker_is_relayed_through_a_thread
        a_rollback_continues_a_read_from_outside
        a_rollback_repeats_a_read_from_inside
    }
}

/// The timeouts are too many for the kernels that scan lists.
mod at_once {
    use super::super::runner::on_every_kernel;
    use super::ten_thousand_timeouts_poll_each_body_twice;

    on_every_kernel! {
        by_one_seed { ten_thousand_timeouts_poll_each_body_twice }
    }
}
