//! Failures of members, and their reports.

use std::error::Error;

use pikake::{TaskGroup, sleep, yield_now};

use super::helpers::{Trace, broken, told, worker};
use crate::support::{OnDrop, ms, run};

#[test]
fn failure_cancels_the_others_and_awaits_cleanup() {
    run(async {
        let trace = Trace::new();
        let mut group = TaskGroup::new();
        group.spawn(worker("one", 100, 20, trace.clone()));
        group.spawn_named("two", broken(10, "two broke"));
        group.spawn(worker("three", 100, 30, trace.clone()));
        group.spawn(worker("four", 5, 0, trace.clone()));
        let error = group.join_all().await.unwrap_err();
        trace.add("joined");
        assert_eq!(
            trace.take(),
            [
                "5 four done",
                "10 three told: cancelled: another member of its group failed",
                "10 one told: cancelled: another member of its group failed",
                "30 one clean",
                "40 three clean",
                "40 joined",
            ]
        );
        assert_eq!(told(error.failures()), ["two: the task panicked: two broke"]);
        assert_eq!(error.failures()[0].panic_message(), Some("two broke"));
        assert!(error.interrupted().is_none() && !error.had_no_members());
        assert!(error.to_string().contains("`two`") && error.to_string().contains("two broke"));
    });
}

#[test]
fn only_try_join_all_takes_err_for_failure() {
    async fn parse(text: &'static str) -> Result<u8, std::num::ParseIntError> {
        text.parse()
    }
    run(async {
        let mut group = TaskGroup::new();
        group.spawn(parse("1"));
        group.spawn(parse("one"));
        let values = group.join_all().await.unwrap();
        assert!(values[0] == Ok(1) && values[1].is_err());

        let mut group = TaskGroup::new();
        group.spawn(parse("1"));
        group.spawn(parse("2"));
        assert_eq!(group.try_join_all().await.unwrap(), [1, 2]);

        let mut group = TaskGroup::new();
        group.spawn(parse("1"));
        group.spawn_named("word", parse("one"));
        let error = group.try_join_all().await.unwrap_err();
        assert_eq!(told(error.failures()), ["word: invalid digit found in string"]);
        let error = error.into_failures().remove(0).into_error();
        assert!(error.downcast::<std::num::ParseIntError>().is_ok());
    });
}

#[test]
fn every_failure_is_reported_the_first_as_source() {
    run(async {
        let mut group = TaskGroup::<Result<(), String>>::new();
        let first = group.spawn_named("first", async { Err("no".into()) });
        group.spawn_named("second", async { panic!("broke") });
        let victim = group.spawn_named("third", std::future::pending());
        group.spawn_named("fourth", async {
            // Returns an error because it is asked to end: no failure of its own.
            sleep(ms(100)).await.map_err(|why| why.to_string())
        });
        yield_now().await.unwrap();
        victim.abort();
        let error = group.try_join_all().await.unwrap_err();
        assert_eq!(
            told(error.failures()),
            [
                "first: no",
                "second: the task panicked: broke",
                "third: the task ended by a cancel (cancelled: aborted)",
            ]
        );
        let aftermath = "fourth: cancelled: another member of its group failed";
        assert_eq!(told(error.aftermath()), [aftermath]);
        let [one, two, three] = error.failures() else { panic!("three") };
        assert!(one.task() == first.id() && two.is_panic() && three.is_cancelled());
        assert!(error.to_string().starts_with("3 tasks of the group failed, first task"));
        assert_eq!(error.source().unwrap().to_string(), one.to_string());
        assert_eq!(error.source().unwrap().source().unwrap().to_string(), "no");
        let error = std::io::Error::from(error);
        assert_eq!(error.kind(), std::io::ErrorKind::Other);
    });
}

#[test]
fn a_cleanup_that_panics_is_a_failure_too() {
    run(async {
        let mut group = TaskGroup::new();
        group.spawn_named("first", broken(10, "the cause"));
        group.spawn_named("second", async {
            sleep(ms(100)).await.unwrap_err();
            sleep(ms(5)).await.unwrap();
            panic!("the cleanup")
        });
        let error = group.join_all().await.unwrap_err();
        let expected =
            ["first: the task panicked: the cause", "second: the task panicked: the cleanup"];
        assert_eq!(told(error.failures()), expected);
    });
}

#[test]
fn member_cancelled_from_outside_fails_without_a_value() {
    run(async {
        let mut group = TaskGroup::new();
        let member = group.spawn(async { sleep(ms(100)).await.is_err() });
        yield_now().await.unwrap();
        member.request_cancel("go home");
        assert_eq!(group.join_all().await.unwrap(), [true]);

        // Never started: dropped unpolled.
        let mut group = TaskGroup::new();
        let member = group.spawn_named("unborn", async { unreachable!("it is never polled") });
        member.request_cancel("too late");
        let error = group.join_all().await.unwrap_err();
        let expected = ["unborn: the task ended by a cancel (cancelled: too late)"];
        assert_eq!(told(error.failures()), expected);
        assert!(member.is_finished());
    });
}

#[test]
fn aborted_member_is_dropped_before_the_join_returns() {
    run(async {
        let trace = Trace::new();
        let mut group = TaskGroup::<()>::new();
        let member = group.spawn_named("victim", {
            let trace = trace.clone();
            async move {
                let _guard = OnDrop(|| trace.add("dropped"));
                std::future::pending().await
            }
        });
        group.spawn_named("other", {
            let trace = trace.clone();
            async move {
                worker("other", 100, 10, trace).await;
            }
        });
        yield_now().await.unwrap();
        member.abort();
        let error = group.join_all().await.unwrap_err();
        assert!(error.failures()[0].is_cancelled());
        assert_eq!(
            trace.take(),
            [
                "0 dropped",
                "0 other told: cancelled: another member of its group failed",
                "10 other clean",
            ]
        );
    });
}

#[test]
fn destructor_panic_does_not_hide_a_member_end() {
    run(async {
        let mut group = TaskGroup::new();
        group.spawn(async {
            let _bomb = OnDrop(|| panic!("in a destructor"));
            7
        });
        let aborted = group.spawn(async {
            let _bomb = OnDrop(|| panic!("in a destructor"));
            std::future::pending().await
        });
        yield_now().await.unwrap();
        aborted.abort();
        assert_eq!(group.join_all().await.unwrap_err().failures().len(), 2);
    });
}
