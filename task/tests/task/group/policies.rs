//! Joins for all members, for any, for the first value, and for the next.

use std::cell::Cell;
use std::error::Error;
use std::pin::pin;
use std::rc::Rc;

use futures::future::{Either, select};
use pikake::task::{GroupEnded, GroupError, Spawner, in_parallel};
use pikake::{
    TaskGroup, TimedOut, pending_interrupt, sleep, spawn, task_group, timeout_after, yield_now,
};

use super::helpers::{Trace, broken, told, worker};
use crate::support::{OnDrop, ms, run};

#[test]
fn values_come_in_the_order_of_the_spawns() {
    run(async {
        let mut group = TaskGroup::new();
        for number in 0..5_u64 {
            group.spawn(async move {
                sleep(ms(50 - 10 * number)).await.unwrap();
                number
            });
        }
        assert_eq!(group.running(), 5);
        assert_eq!(group.join_all().await.unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(group.running(), 0);
    });
}

#[test]
fn members_spawn_siblings_during_a_join() {
    async fn countdown(left: u32, spawner: Spawner<u32>) -> u32 {
        sleep(ms(10)).await.unwrap();
        if left > 0 {
            let next = Box::pin(countdown(left - 1, spawner.clone()));
            let next: std::pin::Pin<Box<dyn Future<Output = u32>>> = next;
            spawner.spawn(next).unwrap();
        }
        left
    }
    run(async {
        let mut group = TaskGroup::new();
        group.spawn(countdown(5, group.spawner()));
        assert_eq!(group.join_all().await.unwrap(), [5, 4, 3, 2, 1, 0]);
    });
}

#[test]
fn an_ended_group_takes_no_members() {
    run(async {
        let mut group = TaskGroup::new();
        let spawner = group.spawner();
        group.spawn(async {});
        assert!(spawner.is_open());
        group.join_all().await.unwrap();
        assert!(!spawner.is_open());
        assert_eq!(spawner.spawn(async {}).map(|_| ()), Err(GroupEnded));
        let late = spawn(async move { drop(group.spawn(async {})) });
        let error = late.await.unwrap_err();
        assert!(error.panic_message().unwrap().contains("has ended"), "{error}");
        let _: TaskGroup<()> = TaskGroup::default();
    });
}

#[test]
fn ending_group_takes_no_members() {
    run(async {
        let mut group = TaskGroup::new();
        let spawner = group.spawner();
        let dropped = Rc::new(Cell::new(false));
        group.spawn({
            let dropped = dropped.clone();
            async move {
                sleep(ms(100)).await.unwrap_err();
                let guard = OnDrop(move || dropped.set(true));
                let refused = spawner.spawn(async move { drop(guard) });
                assert!(refused.is_err());
                sleep(ms(10)).await.unwrap();
            }
        });
        group.spawn(broken(10, "broke"));
        assert_eq!(group.join_all().await.unwrap_err().failures().len(), 1);
        assert!(dropped.get(), "the future that was refused is dropped");
    });
}

#[test]
fn next_done_follows_the_order_of_the_ends() {
    run(async {
        let mut group = TaskGroup::new();
        for (name, length) in [("slow", 30), ("fast", 10), ("middle", 20), ("last", 40)] {
            group.spawn_named(name, async move {
                sleep(ms(length)).await.unwrap();
                assert_ne!(name, "middle", "this one breaks");
                length
            });
        }
        let mut seen = Vec::new();
        for _ in 0..3 {
            let done = group.join_next().await.unwrap().unwrap();
            assert!(done.member.is_finished());
            assert!(done.member.spawned_at().file().ends_with("policies.rs"));
            seen.push((done.member.name().to_owned(), done.outcome.ok()));
        }
        let expected = [("fast", Some(10)), ("middle", None), ("slow", Some(30))];
        assert_eq!(seen, expected.map(|(name, value)| (name.to_owned(), value)));
        // Members that were taken have left the group: their failures do not count.
        assert_eq!(group.join_all().await.unwrap(), [40]);
        assert!(group.join_next().await.unwrap().is_none());
    });
}

#[test]
fn interrupted_next_done_can_be_repeated() {
    run(async {
        let mut group = TaskGroup::new();
        group.spawn(async { sleep(ms(50)).await });
        assert!(matches!(timeout_after(ms(10), group.join_next()).await, Err(TimedOut)));
        assert!(group.join_next().await.unwrap().unwrap().outcome.unwrap().is_ok());
        assert!(group.join_next().await.unwrap().is_none());
        // It is not joined, so it goes on to take members.
        group.spawn(async { Ok(()) });
        assert_eq!(group.join_all().await.unwrap(), [Ok(())]);
    });
}

#[test]
fn a_policy_that_is_dropped_loses_nothing() {
    run(async {
        let mut group = TaskGroup::new();
        group.spawn(async { 1 });
        group.spawn(async {
            sleep(ms(50)).await.unwrap();
            2
        });
        {
            let join = pin!(group.join_all());
            let Either::Right(_) = select(join, pin!(sleep(ms(20)))).await else { panic!("early") };
        }
        assert_eq!(group.running(), 1);
        assert_eq!(group.join_all().await.unwrap(), [1, 2]);

        // Dropped while the others clean up: called again, it waits for them.
        let mut group = TaskGroup::new();
        group.spawn(broken(10, "broke"));
        group.spawn(async {
            sleep(ms(500)).await.unwrap_err();
            sleep(ms(50)).await.unwrap();
            2
        });
        {
            let join = pin!(group.join_all());
            let Either::Right(_) = select(join, pin!(sleep(ms(20)))).await else { panic!("early") };
        }
        assert_eq!(group.running(), 1);
        let error = group.join_all().await.unwrap_err();
        assert_eq!((error.failures().len(), group.running()), (1, 0));
    });
}

#[test]
fn any_returns_the_first_and_awaits_the_rest() {
    run(async {
        let trace = Trace::new();
        let mut group = TaskGroup::new();
        group.spawn(worker("slow", 100, 15, trace.clone()));
        group.spawn(worker("fast", 10, 0, trace.clone()));
        group.spawn(worker("middle", 50, 5, trace.clone()));
        assert_eq!(group.join_any().await.unwrap(), "fast");
        trace.add("joined");
        assert_eq!(
            trace.take(),
            [
                "10 fast done",
                "10 middle told: cancelled: another member of its group ended first",
                "10 slow told: cancelled: another member of its group ended first",
                "15 middle clean",
                "25 slow clean",
                "25 joined",
            ]
        );
    });
}

#[test]
fn any_with_a_failure_first_is_that_failure() {
    run(async {
        let mut group = TaskGroup::new();
        group.spawn_named("good", async {
            sleep(ms(100)).await.unwrap_err();
            "value"
        });
        group.spawn_named("bad", broken(10, "broke"));
        let error = group.join_any().await.unwrap_err();
        assert_eq!(told(error.failures()), ["bad: the task panicked: broke"]);

        let mut group = TaskGroup::<Result<u8, String>>::new();
        group.spawn(async { Err("no".into()) });
        group.spawn(async { Ok(1) });
        assert_eq!(group.join_any().await.unwrap(), Err("no".to_owned()), "an Err is a value");

        let mut group = TaskGroup::<Result<u8, &str>>::new();
        group.spawn_named("bad", async { Err("no") });
        group.spawn(async { Ok(1) });
        assert_eq!(told(group.try_join_any().await.unwrap_err().failures()), ["bad: no"]);

        let mut group = TaskGroup::<Result<u8, &str>>::new();
        group.spawn(async { Ok(1) });
        group.spawn(async { Err("no") });
        assert_eq!(group.try_join_any().await.unwrap(), 1);
    });
}

#[test]
fn the_first_value_passes_over_failures() {
    run(async {
        let trace = Trace::new();
        let mut group = TaskGroup::new();
        group.spawn(broken(10, "broke"));
        group.spawn(worker("good", 20, 0, trace.clone()));
        group.spawn(worker("late", 30, 7, trace.clone()));
        assert_eq!(group.first_value().await.unwrap(), "good");
        trace.add("joined");
        assert_eq!(
            trace.take(),
            [
                "20 good done",
                "20 late told: cancelled: another member of its group gave a value first",
                "27 late clean",
                "27 joined",
            ]
        );

        let mut group = TaskGroup::<Result<u8, &str>>::new();
        group.spawn_named("one", async { Err("no") });
        group.spawn_named("two", async { Ok(2) });
        assert_eq!(group.try_first_value().await.unwrap(), 2);
    });
}

#[test]
fn first_value_fails_after_all_members_failed() {
    run(async {
        let mut group = TaskGroup::<Result<u8, &str>>::new();
        group.spawn_named("one", async { Err("no") });
        group.spawn_named("two", broken(5, "broke"));
        group.spawn_named("three", async { Err("never") });
        let error = group.try_first_value().await.unwrap_err();
        let expected = ["one: no", "three: never", "two: the task panicked: broke"];
        assert_eq!(told(error.failures()), expected);
    });
}

#[test]
fn every_policy_handles_an_empty_group() {
    run(async {
        fn group() -> TaskGroup<Result<u8, String>> {
            TaskGroup::new()
        }
        assert_eq!(group().join_all().await.unwrap(), []);
        assert!(group().try_join_all().await.unwrap().is_empty());
        assert!(group().join_any().await.unwrap_err().had_no_members());
        assert!(group().try_join_any().await.unwrap_err().had_no_members());
        assert!(group().first_value().await.unwrap_err().had_no_members());
        let error = group().try_first_value().await.unwrap_err();
        assert!(error.had_no_members() && error.source().is_none());
        assert_eq!(error.to_string(), "the group had no member that could give a value");
        assert!(group().join_next().await.unwrap().is_none());
        group().cancel_all().await.unwrap();
        assert!(in_parallel(Vec::<std::future::Ready<u8>>::new()).await.unwrap().is_empty());
        let block = task_group(async |_: &mut TaskGroup<()>| Ok::<_, GroupError>(3));
        assert_eq!(block.await.unwrap(), 3);
        let mut only_daemons = group();
        only_daemons.spawn_daemon(std::future::pending());
        assert!(only_daemons.join_any().await.unwrap_err().had_no_members());
        drop(group());
    });
}

#[test]
fn cancel_all_requests_all_before_waiting() {
    run(async {
        let trace = Trace::new();
        let mut group = TaskGroup::new();
        group.spawn(worker("one", 100, 10, trace.clone()));
        group.spawn(worker("two", 100, 10, trace.clone()));
        yield_now().await.unwrap();
        group.spawn(async { unreachable!("never started") });
        group.cancel_all().await.unwrap();
        trace.add("joined");
        assert_eq!(
            trace.take(),
            [
                "0 two told: cancelled: its group was cancelled",
                "0 one told: cancelled: its group was cancelled",
                "10 two clean",
                "10 one clean",
                "10 joined",
            ]
        );
        group.cancel_all().await.unwrap();

        let mut group = TaskGroup::<()>::new();
        group.spawn_named("failed before", async { panic!("broke") });
        yield_now().await.unwrap();
        let error = group.cancel_all().await.unwrap_err();
        assert_eq!(told(error.failures()), ["failed before: the task panicked: broke"]);
    });
}

#[test]
fn cancel_all_is_no_interruption_point() {
    run(async {
        let trace = Trace::new();
        let mut group = TaskGroup::new();
        group.spawn(worker("one", 100, 30, trace.clone()));
        yield_now().await.unwrap();
        let outcome = timeout_after(ms(10), async {
            group.cancel_all().await.unwrap();
            trace.add("joined");
            assert!(pending_interrupt().is_some());
            sleep(ms(1)).await.unwrap_err();
        });
        assert_eq!(outcome.await, Err(TimedOut));
        let told = "0 one told: cancelled: its group was cancelled";
        assert_eq!(trace.take(), [told, "30 one clean", "30 joined"]);
    });
}
