//! `Notify`, of one kernel or of several: which waiters are notified, and where a notification goes
//! that its waiter does not collect.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use futures::poll;
use pikake::{Interrupted, TimedOut, sleep, spawn, timeout_after, yield_now};
use proptest::collection::vec;
use proptest::prelude::*;

use super::Notify;
use crate::support::insist::{A_FEW, insist_inside};
use crate::support::{Log, ms, named, run};

/// Tasks that wait for one notification each, and add their number to the log.
pub(crate) async fn waiters(notify: &Rc<Notify>, log: &Log, count: u64) -> Vec<pikake::Task<()>> {
    let tasks = (0..count)
        .map(|number| {
            let (notify, log) = (notify.clone(), log.clone());
            spawn(async move {
                if notify.notified().await.is_ok() {
                    log.add(number);
                }
            })
        })
        .collect();
    yield_now().await.unwrap();
    tasks
}

#[test]
fn waiters_are_notified_in_order_of_arrival() {
    run(async {
        let (notify, log) = (Rc::new(Notify::new()), Log::default());
        let tasks = waiters(&notify, &log, 4).await;
        assert_eq!(notify.waiting(), 4);
        notify.notify_one();
        notify.notify_one();
        yield_now().await.unwrap();
        assert_eq!((log.take(), notify.waiting()), (vec!["0".into(), "1".into()], 2));
        notify.notify_waiters();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(log.take(), ["2", "3"]);
        // Nobody left a notification behind.
        assert_eq!(timeout_after(ms(10), notify.notified()).await, Err(TimedOut));
    });
}

#[test]
fn one_notification_without_a_waiter_is_kept() {
    run(async {
        let notify = Notify::new();
        notify.notify_one();
        notify.notify_one();
        notify.notified().await.unwrap();
        assert_eq!(timeout_after(ms(10), notify.notified()).await, Err(TimedOut));
        notify.notify_waiters();
        assert_eq!(timeout_after(ms(10), notify.notified()).await, Err(TimedOut));
    });
}

#[test]
fn a_call_made_before_notify_waiters_is_notified() {
    run(async {
        let notify = Notify::new();
        let notified = notify.notified();
        notify.notify_waiters();
        notified.await.unwrap();
    });
}

#[test]
fn a_dropped_waiter_passes_its_notification_on() {
    run(async {
        let (notify, log) = (Rc::new(Notify::new()), Log::default());
        let tasks = waiters(&notify, &log, 3).await;
        notify.notify_one();
        tasks[0].abort();
        yield_now().await.unwrap();
        yield_now().await.unwrap();
        assert_eq!(log.take(), ["1"]);
        // The last waiter leaves its notification to a later one.
        notify.notify_one();
        tasks[2].abort();
        yield_now().await.unwrap();
        assert_eq!(notify.waiting(), 0);
        notify.notified().await.unwrap();
        assert!(log.take().is_empty());
    });
}

#[test]
fn two_dropped_waiters_leave_one_notification() {
    run(async {
        let (notify, log) = (Rc::new(Notify::new()), Log::default());
        let tasks = waiters(&notify, &log, 2).await;
        notify.notify_one();
        notify.notify_one();
        tasks.iter().for_each(pikake::Task::abort);
        yield_now().await.unwrap();
        notify.notified().await.unwrap();
        assert_eq!(timeout_after(ms(10), notify.notified()).await, Err(TimedOut));
    });
}

#[test]
fn a_dropped_waiter_of_notify_waiters_leaves_nothing() {
    run(async {
        let (notify, log) = (Rc::new(Notify::new()), Log::default());
        let tasks = waiters(&notify, &log, 2).await;
        notify.notify_waiters();
        let late = waiters(&notify, &log, 0).await;
        tasks.iter().for_each(pikake::Task::abort);
        let later = named("later", {
            let notify = notify.clone();
            async move { timeout_after(ms(10), notify.notified()).await }
        });
        assert_eq!(later.await.unwrap(), Err(TimedOut));
        assert!(late.is_empty());
    });
}

#[test]
fn a_waiter_of_an_ended_round_takes_no_notification() {
    run(async {
        let (notify, log) = (Rc::new(Notify::new()), Log::default());
        let mut kept = pin!(notify.notified());
        assert!(poll!(kept.as_mut()).is_pending());
        notify.notify_waiters();
        let tasks = waiters(&notify, &log, 1).await;
        notify.notify_one();
        yield_now().await.unwrap();
        assert_eq!(log.take(), ["0"]);
        notify.notify_one();
        kept.await.unwrap();
        notify.notified().await.unwrap();
        assert_eq!(timeout_after(ms(10), notify.notified()).await, Err(TimedOut));
        drop(tasks);
    });
}

#[test]
fn a_notification_of_an_ended_round_goes_on() {
    run(async {
        let (notify, log) = (Rc::new(Notify::new()), Log::default());
        let ended = waiters(&notify, &log, 2).await;
        notify.notify_one();
        notify.notify_waiters();
        let later = waiters(&notify, &log, 2).await;
        // Both have ended, and only one of the later waiters.
        assert_eq!((log.take(), notify.waiting()), (vec!["0".into(), "1".into(), "0".into()], 1));
        drop((ended, later));
    });
}

#[test]
fn waiters_of_an_ended_kernel_leave_one_notification_at_most() {
    for (ones, is_kept) in [(0, false), (1, true), (2, true)] {
        let notify = Notify::new();
        let mut futures: Vec<_> = (0..3).map(|_| Box::pin(notify.notified())).collect();
        run(async {
            for future in &mut futures {
                assert!(poll!(future).is_pending());
            }
            (0..ones).for_each(|_| notify.notify_one());
            notify.notify_waiters();
        });
        drop(futures);
        let shown = format!("{notify:?}");
        assert!(shown.contains(&format!("is_notified: {is_kept}, waiting: 0")), "{shown}");
    }
}

#[test]
fn a_notification_wins_over_an_interruption() {
    run(async {
        for notify_waiters in [false, true] {
            let notify = Rc::new(Notify::new());
            let task = spawn({
                let notify = notify.clone();
                async move {
                    let notified = notify.notified().await;
                    (notified, sleep(ms(10)).await)
                }
            });
            yield_now().await.unwrap();
            if notify_waiters {
                notify.notify_waiters()
            } else {
                notify.notify_one()
            }
            task.request_cancel("enough");
            let (notified, slept) = task.await.unwrap();
            assert_eq!(notified, Ok(()));
            assert!(slept.unwrap_err().is_cancel());
        }
    });
}

#[test]
fn an_interrupted_waiter_leaves_the_queue() {
    run(async {
        let (notify, log) = (Rc::new(Notify::new()), Log::default());
        let mut told: Option<Interrupted> = None;
        let body = async {
            told = notify.notified().await.err();
            assert_eq!(notify.waiting(), 0);
        };
        assert_eq!(timeout_after(ms(10), body).await, Err(TimedOut));
        assert!(told.is_some_and(|why| why.is_timeout()));
        let tasks = waiters(&notify, &log, 1).await;
        notify.notify_one();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(log.take(), ["0"]);
    });
}

#[test]
fn interruptions_lose_no_notification() {
    insist_inside((A_FEW as u32, false), async |insistent| {
        let notify = Rc::new(Notify::new());
        let done = Rc::new(Cell::new(0));
        let mut notifier = spawn({
            let (notify, done) = (notify.clone(), done.clone());
            async move {
                for round in 0..A_FEW as u32 {
                    notify.notify_one();
                    while done.get() == round {
                        yield_now().await.unwrap();
                    }
                }
            }
        });
        for _ in 0..A_FEW {
            insistent.on(|| notify.notified()).await;
            done.set(done.get() + 1);
        }
        insistent.on(async || (&mut notifier).await).await;
        let is_notified = format!("{notify:?}").contains("is_notified: true");
        (done.get(), is_notified)
    });
}

/// A step of a program with a few waiters.
#[derive(Clone, Copy, Debug)]
enum Step {
    Make(usize),
    Poll(usize),
    Drop(usize),
    One,
    All,
}

const WAITERS: usize = 5;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..WAITERS).prop_map(Step::Make),
        4 => (0..WAITERS).prop_map(Step::Poll),
        1 => (0..WAITERS).prop_map(Step::Drop),
        2 => Just(Step::One),
        1 => Just(Step::All),
    ]
}

/// Where a waiter is.
#[derive(Clone, Copy)]
enum Place {
    Made,
    Queued,
    /// Notified by `notify_one`.
    Notified,
    /// Was queued or notified when its round ended.
    Ended,
}

/// The rules, on lists.
#[derive(Default)]
struct Model {
    round: u64,
    is_kept: bool,
    /// The waiters in order of arrival, without those that were notified.
    queue: Vec<usize>,
    /// The notifications of `notify_one` that waiters had when their round ended.
    ended_ones: usize,
    /// The round of each waiter that was made.
    made: [Option<(u64, Place)>; WAITERS],
}

impl Model {
    fn notify_one(&mut self) {
        if self.queue.is_empty() {
            self.is_kept = true;
        } else {
            let first = self.queue.remove(0);
            self.made[first].as_mut().unwrap().1 = Place::Notified;
        }
    }

    fn notify_waiters(&mut self) {
        self.round += 1;
        self.queue.clear();
        for (_, place) in self.made.iter_mut().flatten() {
            match place {
                Place::Made | Place::Ended => continue,
                Place::Queued => {}
                Place::Notified => self.ended_ones += 1,
            }
            *place = Place::Ended;
        }
    }

    fn leave(&mut self, waiter: usize) {
        self.queue.retain(|other| *other != waiter);
        match self.made[waiter].take() {
            Some((_, Place::Notified)) => self.notify_one(),
            Some((_, Place::Ended)) if self.ended_ones > 0 => {
                self.ended_ones -= 1;
                self.notify_one();
            }
            _ => {}
        }
    }

    fn poll(&mut self, waiter: usize) -> bool {
        let (round, place) = self.made[waiter].unwrap();
        match place {
            _ if round != self.round => self.leave(waiter),
            Place::Notified => self.made[waiter] = None,
            Place::Made if self.is_kept => (self.is_kept, self.made[waiter]) = (false, None),
            Place::Made => {
                self.queue.push(waiter);
                self.made[waiter] = Some((round, Place::Queued));
                return false;
            }
            Place::Queued | Place::Ended => return false,
        }
        true
    }
}

type Notified<'a> = Pin<Box<dyn Future<Output = Result<(), Interrupted>> + 'a>>;

proptest! {
    #[test]
    fn notifications_follow_the_model(steps in vec(step(), 1..60)) {
        run(async {
            let notify = Notify::new();
            let mut model = Model::default();
            let mut futures: [Option<Notified<'_>>; WAITERS] = Default::default();
            for step in steps {
                match step {
                    Step::Make(waiter) if model.made[waiter].is_none() => {
                        futures[waiter] = Some(Box::pin(notify.notified()));
                        model.made[waiter] = Some((model.round, Place::Made));
                    }
                    Step::Poll(waiter) if model.made[waiter].is_some() => {
                        let future = futures[waiter].as_mut().unwrap();
                        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
                        assert_eq!(polled == Poll::Ready(Ok(())), model.poll(waiter), "{step:?}");
                        if polled.is_ready() {
                            futures[waiter] = None;
                        }
                    }
                    Step::Drop(waiter) => {
                        futures[waiter] = None;
                        model.leave(waiter);
                    }
                    Step::One => {
                        notify.notify_one();
                        model.notify_one();
                    }
                    Step::All => {
                        notify.notify_waiters();
                        model.notify_waiters();
                    }
                    Step::Make(_) | Step::Poll(_) => {}
                }
                assert_eq!(notify.waiting(), model.queue.len(), "{step:?}");
                let is_notified = format!("is_notified: {}", model.is_kept);
                assert!(format!("{notify:?}").contains(&is_notified), "{step:?}: {notify:?}");
                yield_now().await.unwrap();
            }
        });
    }
}
