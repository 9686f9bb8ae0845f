//! Observers learn of each wake that makes a task ready, and when it happened.

use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use pikake::kernel::Observer;
use pikake::time::ManualClock;
use pikake::traps::{TaskRef, WaitQueue, park};
use pikake::{Kernel, future_wait, sleep, yield_now};

use crate::support::{Log, ms, named, within};

/// Logs wakes and steps.
#[derive(Clone, Default)]
struct Wakes {
    log: Log,
    /// The names and ages of the wakes.
    ages: Rc<RefCell<Vec<(String, Duration)>>>,
}

impl Observer for Wakes {
    fn woken(&self, task: &TaskRef, ago: Duration) {
        self.log.add(format_args!("wake {}, {ago:?} ago", task.name()));
        self.ages.borrow_mut().push((task.name().to_owned(), ago));
    }

    fn stepping(&self, task: &TaskRef) {
        self.log.add(format_args!("step {}", task.name()));
    }

    fn stepped(&self, task: &TaskRef, _: Duration) {
        self.log.add(format_args!("stepped {}", task.name()));
    }
}

/// Runs a program on virtual time, and returns the log of its wakes and steps.
fn events_of<F: Future<Output = ()>>(program: impl FnOnce(ManualClock) -> F) -> Vec<String> {
    let (clock, wakes) = (ManualClock::auto(), Wakes::default());
    let builder = Kernel::builder().clock(clock.clone()).observer(wakes.clone());
    builder.build().unwrap().run(program(clock));
    wakes.log.take()
}

#[test]
fn each_wake_is_reported_before_its_step() {
    let events = events_of(|_| async {
        let queue = Rc::new(WaitQueue::new());
        let waits = queue.clone();
        let parked = named("parked", async move { park(&waits).await.unwrap() });
        named("yields", async { yield_now().await.unwrap() }).detach();
        sleep(ms(5)).await.unwrap();
        queue.wake(1);
        parked.await.unwrap();
    });
    assert_eq!(
        events,
        [
            "step main", // a spawn is no wake
            "stepped main",
            "step parked",
            "stepped parked",
            "step yields",
            "wake yields, 0ns ago", // in the task's own step
            "stepped yields",
            "step yields",
            "stepped yields",
            "wake main, 0ns ago", // the sleep is over
            "step main",
            "wake parked, 0ns ago", // in the step of another task
            "stepped main",
            "step parked",
            "stepped parked",
            "wake main, 0ns ago", // the end of the joined task
            "step main",
            "stepped main",
        ]
    );
}

#[test]
fn wake_counts_from_the_call_of_the_waker() {
    let events = events_of(|clock| async move {
        let waker: Rc<RefCell<Option<Waker>>> = Rc::default();
        let kept = waker.clone();
        let foreign =
            std::future::poll_fn(move |cx| match kept.borrow_mut().replace(cx.waker().clone()) {
                None => Poll::Pending,
                Some(_) => Poll::Ready(()),
            });
        let woken = named("woken", async move { future_wait(foreign).await.unwrap() });
        yield_now().await.unwrap();
        let waker = waker.borrow().clone().unwrap();
        waker.wake_by_ref();
        // The second wake changes nothing.
        waker.wake();
        clock.advance(ms(7)); // the rest of this long step
        woken.await.unwrap();
    });
    let wakes: Vec<_> = events.iter().filter(|event| event.contains("wake woken")).collect();
    assert_eq!(wakes, ["wake woken, 7ms ago"]);
}

#[test]
fn wake_before_the_end_of_the_step_is_not_reported() {
    let events = events_of(|_| async {
        let ends = named("ends", async {
            let wakes_itself = |cx: &mut std::task::Context<'_>| {
                cx.waker().wake_by_ref();
                Poll::Ready(())
            };
            std::future::poll_fn(wakes_itself).await;
        });
        ends.await.unwrap();
    });
    assert!(!events.iter().any(|event| event.contains("wake ends")), "{events:?}");
}

#[test]
fn look_at_a_task_is_no_wake() {
    let events = events_of(|_| async {
        let looked_at = named("looked at", pending::<()>());
        yield_now().await.unwrap();
        looked_at.task_ref().inspect();
        yield_now().await.unwrap();
        assert!(looked_at.task_ref().was_looked_at());
    });
    assert_eq!(events.iter().filter(|event| *event == "step looked at").count(), 2);
    assert!(!events.iter().any(|event| event.contains("wake looked at")), "{events:?}");
}

/// The kernel is in a step when the other thread wakes the task, and stays there for a while.
#[test]
fn wake_of_another_thread_counts_from_its_call() {
    const STUCK: Duration = Duration::from_millis(30);
    within(|| {
        let wakes = Wakes::default();
        let kernel = Kernel::builder().observer(wakes.clone()).build().unwrap();
        kernel.run(async {
            let mut is_woken = false;
            let (sender, wakers) = mpsc::channel::<Waker>();
            let foreign = std::future::poll_fn(move |cx| {
                let _ = sender.send(cx.waker().clone());
                if std::mem::replace(&mut is_woken, true) { Poll::Ready(()) } else { Poll::Pending }
            });
            let woken = named("woken", async move { future_wait(foreign).await.unwrap() });
            yield_now().await.unwrap();
            thread::spawn(move || wakers.recv().unwrap().wake()).join().unwrap();
            thread::sleep(STUCK);
            woken.await.unwrap();
        });
        let ages = wakes.ages.take();
        let ages: Vec<_> = ages.iter().filter(|(name, _)| name == "woken").collect();
        assert!(matches!(ages[..], [(_, ago)] if *ago >= STUCK), "{ages:?}");
    });
}
