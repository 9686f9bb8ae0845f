//! Groups with a limit of members, and maps with ordered results.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;

use futures::poll;
use pikake::task::ordered_map;
use pikake::{Interrupted, TaskError, TaskGroup, current, sleep, spawn, timeout_after, yield_now};

use crate::support::{Log, OnDrop, ms, run};

#[test]
fn spawning_waits_for_room() {
    run(async {
        let log = Log::default();
        let mut group = TaskGroup::bounded(2);
        let member = async |log: Log, number: u64| {
            log.add(format_args!("begin {number}"));
            sleep(ms(10 * number)).await.unwrap();
            log.add(format_args!("end {number}"));
            number
        };
        for number in [2, 1, 3] {
            let inside = log.clone();
            group.spawn(async move { member(inside, number).await }).await.unwrap();
            log.add(format_args!("{} run, {} free", group.running(), group.free()));
        }
        assert_eq!(group.join_all().await.unwrap(), [2, 1, 3]);
        assert_eq!(
            log.take(),
            [
                "1 run, 1 free",
                "2 run, 0 free",
                "begin 2",
                "begin 1",
                "end 1",
                "2 run, 0 free",
                "begin 3",
                "end 2",
                "end 3",
            ]
        );
    });
}

#[test]
fn running_members_never_exceed_the_limit() {
    run(async {
        let (running, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let mut group = TaskGroup::bounded(7);
        for number in 0..500_u64 {
            let (running, most) = (running.clone(), most.clone());
            let member = async move {
                let _stops = OnDrop({
                    let running = running.clone();
                    move || running.set(running.get() - 1)
                });
                running.set(running.get() + 1);
                most.set(most.get().max(running.get()));
                match number % 4 {
                    0 => {}
                    1 => yield_now().await.unwrap(),
                    2 => sleep(ms(number % 5)).await.unwrap(),
                    _ => current().request_cancel("by itself"),
                }
            };
            group.spawn(member).await.unwrap();
            while let Some(done) = group.try_join_next() {
                done.outcome.unwrap();
            }
        }
        group.join_all().await.unwrap();
        assert_eq!((running.get(), most.get()), (0, 7));
    });
}

#[test]
fn interrupted_wait_for_room_leaves_members_running() {
    run(async {
        let mut group = TaskGroup::bounded(1);
        group.spawn(sleep(ms(100))).await.unwrap();
        let dropped = Rc::new(());
        let inside = dropped.clone();
        let second = group.spawn(async move {
            drop(inside);
            Ok(())
        });
        let mut told = None;
        assert!(timeout_after(ms(10), async { told = Some(second.await) }).await.is_err());
        assert!(told.unwrap().unwrap_err().is_timeout());
        assert_eq!(Rc::strong_count(&dropped), 1);
        assert!(group.try_spawn(async { Ok(()) }).is_err());
        group.room().await.unwrap();
        assert!(group.try_spawn(async { Ok(()) }).is_ok());
        assert_eq!(group.try_join_all().await.unwrap(), [(), ()]);
    });
}

#[test]
fn changed_limit_leaves_running_members_alone() {
    run(async {
        let mut group = TaskGroup::bounded(4);
        for number in 1..=4 {
            group.spawn(sleep(ms(10 * number))).await.unwrap();
        }
        group.set_limit(2);
        assert_eq!((group.running(), group.free(), group.limit()), (4, 0, 2));
        let begin = pikake::now();
        group.room().await.unwrap();
        let waited = pikake::time::elapsed_since(begin);
        assert!(waited >= ms(30) && waited < ms(40), "three of four have to end: {waited:?}");
        group.set_limit(10);
        assert_eq!(group.free(), 9);
        group.try_join_all().await.unwrap();
        catch_unwind(|| drop(TaskGroup::<()>::bounded(0))).unwrap_err();
        let ended = catch_unwind(AssertUnwindSafe(|| group.try_spawn(async { Ok(()) }).is_ok()));
        ended.unwrap_err();
    });
}

#[test]
fn members_add_members_without_waiting_for_room() {
    run(async {
        let mut group = TaskGroup::bounded(1);
        let spawner = group.spawner();
        let parent = async move {
            // It would wait for itself.
            spawner.spawn(async { "child" }).unwrap();
            sleep(ms(10)).await.unwrap();
            "parent"
        };
        group.spawn(parent).await.unwrap();
        yield_now().await.unwrap();
        assert_eq!((group.running(), group.free()), (2, 0));
        group.spawn(async { "late" }).await.unwrap();
        assert_eq!(group.join_all().await.unwrap(), ["parent", "child", "late"]);
    });
}

#[test]
fn bounded_group_debug_shows_its_limit() {
    run(async {
        let mut group = TaskGroup::bounded(3);
        group.spawn_named("one", sleep(ms(1))).await.unwrap();
        let shown = format!("{group:?}");
        assert!(shown.contains("limit: 3") && shown.contains("running: 1"), "{shown}");
        let mut group = group.into_group();
        group.join_all().await.unwrap()[0].clone().unwrap();
    });
}

#[test]
fn results_come_in_order_within_the_limit() {
    run(async {
        let begun = Rc::new(RefCell::new(Vec::new()));
        let inside = begun.clone();
        let mut map = ordered_map([30_u64, 10, 20, 5, 1], 2, move |length| {
            inside.borrow_mut().push(length);
            async move {
                sleep(ms(length)).await.unwrap();
                length
            }
        });
        assert!(begun.borrow().is_empty(), "nothing is called before it is asked for");
        assert_eq!(map.next_outcome().await.unwrap().unwrap().unwrap(), 30);
        // The second had ended long ago; its outcome was kept, and counted.
        assert_eq!(*begun.borrow(), [30, 10]);
        let shown = format!("{map:?}");
        assert!(shown.contains("under_way: 1") && shown.contains("running: 0"), "{shown}");
        assert_eq!(map.next_outcome().await.unwrap().unwrap().unwrap(), 10);
        assert_eq!(*begun.borrow(), [30, 10, 20]);
        let rest: Result<Vec<u64>, TaskError> = map.collect().await.unwrap().into_iter().collect();
        assert_eq!(rest.unwrap(), [20, 5, 1]);
    });
}

#[test]
fn failure_is_in_its_place_among_results() {
    run(async {
        let mut map = ordered_map(1..=3, 3, async |number| {
            assert_ne!(number, 2, "not this one");
            number
        });
        assert_eq!(map.next_outcome().await.unwrap().unwrap().unwrap(), 1);
        let error = map.next_outcome().await.unwrap().unwrap().unwrap_err();
        assert!(error.panic_message().unwrap().contains("not this one"));
        assert_eq!(map.next_outcome().await.unwrap().unwrap().unwrap(), 3);
        assert!(map.next_outcome().await.unwrap().is_none());
        assert!(map.next_outcome().await.unwrap().is_none());
    });
}

#[test]
fn interruption_ends_calls_only_of_a_collect() {
    run(async {
        let call = async |length| sleep(ms(length)).await.map(|()| length);
        let mut map = ordered_map([20, 10], 2, call);
        let first = timeout_after(ms(5), map.next_outcome()).await;
        assert!(first.is_err());
        assert_eq!(map.next_outcome().await.unwrap().unwrap().unwrap(), Ok(20));
        assert_eq!(map.next_outcome().await.unwrap().unwrap().unwrap(), Ok(10));

        let alive = Rc::new(());
        let inside = alive.clone();
        let task = spawn(
            ordered_map(0..10, 3, move |_| {
                let alive = inside.clone();
                async move {
                    let slept: Result<(), Interrupted> = sleep(ms(1000)).await;
                    yield_now().await.unwrap();
                    drop(alive);
                    slept
                }
            })
            .collect(),
        );
        yield_now().await.unwrap();
        yield_now().await.unwrap();
        assert_eq!(Rc::strong_count(&alive), 2 + 3);
        task.cancel().await.unwrap();
        assert_eq!(Rc::strong_count(&alive), 1, "no call outlives it");
        assert!(task.await.unwrap().unwrap_err().is_cancel());
    });
}

#[test]
fn cancel_ends_all_running_calls() {
    run(async {
        let mut map = ordered_map(0.., 5, async |number: u64| sleep(ms(number)).await);
        map.next_outcome().await.unwrap().unwrap().unwrap().unwrap();
        {
            let mut next = pin!(map.next_outcome());
            assert!(poll!(next.as_mut()).is_pending());
        }
        map.cancel_all().await;
    });
}
