//! Joiners that are interrupted, and nested groups.

use std::error::Error;
use std::pin::pin;

use futures::future::{Either, select};
use pikake::task::GroupError;
use pikake::{
    Interrupted, TaskGroup, TimedOut, current, pending_interrupt, shield, sleep, spawn,
    timeout_after, yield_now,
};

use super::helpers::{Trace, broken, told, worker};
use crate::support::{ms, run};

#[test]
fn timed_out_joiner_ends_its_members_first() {
    run(async {
        let trace = Trace::new();
        let mut group = TaskGroup::new();
        group.spawn(worker("one", 100, 20, trace.clone()));
        group.spawn(worker("two", 5, 0, trace.clone()));
        let outcome = timeout_after(ms(10), async {
            let error = group.join_all().await.unwrap_err();
            trace.add("joined");
            assert!(error.interrupted().unwrap().is_timeout() && error.failures().is_empty());
            assert!(error.source().unwrap().downcast_ref::<Interrupted>().is_some());
            assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::TimedOut);
        });
        assert_eq!(outcome.await, Err(TimedOut));
        assert_eq!(
            trace.take(),
            [
                "5 two done",
                "10 one told: cancelled: the join of its group was interrupted",
                "30 one clean",
                "30 joined",
            ]
        );
    });
}

#[test]
fn second_interruption_does_not_shorten_the_join() {
    run(async {
        let trace = Trace::new();
        let joiner = spawn({
            let trace = trace.clone();
            async move {
                let mut group = TaskGroup::new();
                group.spawn(worker("one", 1_000, 50, trace.clone()));
                let both = timeout_after(ms(40), async {
                    timeout_after(ms(10), async {
                        group.join_all().await.unwrap_err();
                        trace.add("joined");
                    })
                    .await
                    .unwrap_err();
                    // Delayed causes are due now, the outermost first.
                    let why = sleep(ms(1)).await.unwrap_err();
                    assert_eq!(why.reason(), Some("as well"));
                    assert!(sleep(ms(1)).await.unwrap_err().is_timeout());
                });
                assert_eq!(both.await, Err(TimedOut));
            }
        });
        sleep(ms(20)).await.unwrap();
        joiner.request_cancel("as well");
        joiner.await.unwrap();
        assert_eq!(
            trace.take(),
            [
                "10 one told: cancelled: the join of its group was interrupted",
                "60 one clean",
                "60 joined",
            ]
        );
    });
}

#[test]
fn interruption_is_reported_after_a_dropped_policy() {
    run(async {
        let mut group = TaskGroup::new();
        group.spawn(async {
            sleep(ms(100)).await.unwrap_err();
            sleep(ms(50)).await.unwrap();
            "told"
        });
        yield_now().await.unwrap();
        current().request_cancel("stop");
        {
            let any = pin!(group.join_any());
            let later = pin!(shield(sleep(ms(20))));
            let Either::Right(_) = select(any, later).await else { panic!("early") };
        }
        let error = group.join_any().await.unwrap_err();
        assert_eq!(error.interrupted().and_then(Interrupted::reason), Some("stop"));
        assert_eq!(group.running(), 0);
    });
}

#[test]
fn failures_during_an_interrupted_join_are_reported() {
    run(async {
        let mut group = TaskGroup::new();
        group.spawn_named("bad", async {
            sleep(ms(100)).await.unwrap_err();
            panic!("in the cleanup")
        });
        current().request_cancel("stop");
        let error = group.join_all().await.unwrap_err();
        assert_eq!(error.interrupted().and_then(Interrupted::reason), Some("stop"));
        assert!(error.failures().is_empty(), "dropped before it could start");

        let mut group = TaskGroup::new();
        group.spawn_named("bad", async {
            sleep(ms(100)).await.unwrap_err();
            panic!("in the cleanup")
        });
        let mut error = None;
        let _ = timeout_after(ms(5), async { error = group.join_all().await.err() }).await;
        let error = error.unwrap();
        assert!(error.interrupted().is_some());
        assert_eq!(told(error.failures()), ["bad: the task panicked: in the cleanup"]);
        assert!(error.to_string().contains("cut short") && error.to_string().contains("`bad`"));
    });
}

/// Interrupts a joiner after so many milliseconds; gives what it returned, when, and what its
/// members saw. The members end at 10, 20 and 30 and take 5 to clean up; a daemon takes 8.
fn interrupted_at<R, F>(moment: u64, policy: F) -> Vec<String>
where
    R: std::fmt::Debug,
    F: AsyncFnOnce(&mut TaskGroup<&'static str>) -> R + 'static,
{
    run(async move {
        let trace = Trace::new();
        let joiner = spawn({
            let trace = trace.clone();
            async move {
                let mut group = TaskGroup::new();
                for (name, length) in [("a", 10), ("b", 20), ("c", 30)] {
                    group.spawn(worker(name, length, 5, trace.clone()));
                }
                group.spawn_daemon(worker("d", 1_000, 8, trace.clone()));
                let result = policy(&mut group).await;
                trace.add(format_args!("{result:?}"));
                assert_eq!(group.running(), 0, "none is left whatever happened");
                trace.add(match pending_interrupt() {
                    Some(_) => "an interruption is due",
                    None => "nothing is due",
                });
            }
        });
        sleep(ms(moment)).await.unwrap();
        joiner.request_cancel("x");
        joiner.await.unwrap();
        let short = trace.take().into_iter().map(|line| match line.split_once(" told:") {
            Some((start, _)) => format!("{start} told"),
            None => line,
        });
        short.collect()
    })
}

/// Reduces a result to its value, or to whether the joiner was interrupted.
fn brief<T>(result: Result<T, GroupError>) -> Result<T, bool> {
    result.map_err(|error| error.interrupted().is_some())
}

#[test]
fn interrupted_join_ends_members_at_every_wait() {
    // While it waits for members.
    let all = async |group: &mut TaskGroup<_>| brief(group.join_all().await);
    assert_eq!(
        interrupted_at(15, all),
        [
            "10 a done",
            "15 d told",
            "15 c told",
            "15 b told",
            "20 c clean",
            "20 b clean",
            "23 d clean",
            "23 Err(true)",
            "23 nothing is due",
        ]
    );
    // While it waits for daemons only, at the end: its result stands, the interruption waits.
    assert_eq!(
        interrupted_at(33, all),
        [
            "10 a done",
            "20 b done",
            "30 c done",
            "30 d told",
            "38 d clean",
            "38 Ok([\"a\", \"b\", \"c\"])",
            "38 an interruption is due",
        ]
    );
    let any = async |group: &mut TaskGroup<_>| brief(group.join_any().await);
    let early = interrupted_at(5, any);
    assert_eq!(early[early.len() - 2..], ["13 Err(true)", "13 nothing is due"]);
    let late = interrupted_at(12, any);
    assert_eq!(late[late.len() - 2..], ["18 Ok(\"a\")", "18 an interruption is due"]);
    let first = async |group: &mut TaskGroup<_>| brief(group.first_value().await);
    let early = interrupted_at(5, first);
    assert_eq!(early[early.len() - 2..], ["13 Err(true)", "13 nothing is due"]);
    let late = interrupted_at(12, first);
    assert_eq!(late[late.len() - 2..], ["18 Ok(\"a\")", "18 an interruption is due"]);
    let next = async |group: &mut TaskGroup<_>| {
        let next = group.join_next().await.map(|done| done.map(|done| done.outcome.unwrap()));
        (next, brief(group.cancel_all().await))
    };
    let early = interrupted_at(5, next);
    let expected = "13 (Err(Interrupted(cancelled: x)), Ok(()))";
    assert_eq!(early[early.len() - 2..], [expected, "13 nothing is due"]);
    let late = interrupted_at(12, next);
    let expected = "18 (Ok(Some(\"a\")), Ok(()))";
    assert_eq!(late[late.len() - 2..], [expected, "18 an interruption is due"]);
}

#[test]
fn aborted_joiner_leaves_its_members_cancelled() {
    run(async {
        let trace = Trace::new();
        let joiner = spawn({
            let trace = trace.clone();
            async move {
                let mut group = TaskGroup::new();
                group.spawn(worker("one", 100, 10, trace.clone()));
                group.join_all().await.unwrap();
            }
        });
        sleep(ms(5)).await.unwrap();
        joiner.abort();
        assert!(joiner.await.unwrap_err().is_cancelled());
        sleep(ms(50)).await.unwrap();
        assert_eq!(
            trace.take(),
            [
                "5 one told: cancelled: its group was dropped without having been joined",
                "15 one clean",
            ]
        );
    });
}

#[test]
fn groups_nest_and_end_from_the_inside() {
    run(async {
        let trace = Trace::new();
        let mut outer = TaskGroup::new();
        outer.spawn_named("parent", {
            let trace = trace.clone();
            async move {
                let mut inner = TaskGroup::new();
                inner.spawn(worker("child", 100, 10, trace.clone()));
                inner.spawn({
                    let trace = trace.clone();
                    async move {
                        let mut innermost = TaskGroup::new();
                        innermost.spawn(worker("grandchild", 100, 20, trace.clone()));
                        let error = innermost.join_all().await.unwrap_err();
                        trace.add("child's group ended");
                        assert!(error.interrupted().is_some());
                        "child with a group"
                    }
                });
                let error = inner.join_all().await.unwrap_err();
                trace.add("parent's group ended");
                assert!(error.interrupted().unwrap().is_cancel() && error.failures().is_empty());
                "parent"
            }
        });
        outer.spawn_named("bad", broken(10, "broke"));
        let error = outer.join_all().await.unwrap_err();
        trace.add("joined");
        assert_eq!(told(error.failures()), ["bad: the task panicked: broke"]);
        let why = "told: cancelled: the join of its group was interrupted";
        assert_eq!(
            trace.take(),
            [
                &format!("10 child {why}"),
                &format!("10 grandchild {why}"),
                "20 child clean",
                "30 grandchild clean",
                "30 child's group ended",
                "30 parent's group ended",
                "30 joined",
            ]
        );
    });
}

#[test]
fn a_shielded_join_is_not_interrupted() {
    run(async {
        let mut group = TaskGroup::new();
        group.spawn(async { sleep(ms(20)).await.is_ok() });
        let outcome = timeout_after(ms(10), shield(group.join_all()));
        assert_eq!(outcome.await.unwrap().unwrap(), [true]);
    });
}
