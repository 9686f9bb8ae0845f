//! Task groups: who is waited for, who is asked to end, and what comes out.

mod support;

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt::Display;
use std::pin::pin;
use std::rc::Rc;

use futures::future::{Either, select};
use pikake::kernel::Observer;
use pikake::task::{Failure, GroupEnded, GroupError, Member, Spawner, in_parallel};
use pikake::time::{Ticks, elapsed_since, now};
use pikake::traps::TaskRef;
use pikake::{
    Interrupted, TaskError, TaskGroup, TimedOut, current, pending_interrupt, shield, sleep, spawn,
    task, task_group, timeout_after, try_task_group, yield_now,
};
use support::{Log, builder, kernel, ms, named, run};

/// A log whose events carry the time at which they happened, in milliseconds.
#[derive(Clone)]
struct Trace {
    log: Log,
    start: Ticks,
}

impl Trace {
    fn new() -> Self {
        Self { log: Log::default(), start: now() }
    }

    fn add(&self, event: impl Display) {
        let time = elapsed_since(self.start).as_millis();
        self.log.add(format_args!("{time} {event}"));
    }

    fn take(&self) -> Vec<String> {
        self.log.take()
    }
}

/// Sleeps, and if interrupted cleans up by awaiting; writes down all of it.
async fn worker(name: &'static str, length: u64, cleanup: u64, trace: Trace) -> &'static str {
    match sleep(ms(length)).await {
        Ok(()) => trace.add(format_args!("{name} done")),
        Err(why) => {
            trace.add(format_args!("{name} told: {why}"));
            sleep(ms(cleanup)).await.expect("cleanup is left alone");
            trace.add(format_args!("{name} clean"));
        }
    }
    name
}

/// What a failure says but for place and number: the name and the error.
fn told(failures: &[Failure]) -> Vec<String> {
    failures.iter().map(|failure| format!("{}: {}", failure.name(), failure.error())).collect()
}

/// Fails after a while.
async fn broken<T>(length: u64, text: &'static str) -> T {
    sleep(ms(length)).await.unwrap();
    panic!("{text}")
}

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
fn a_failure_interrupts_the_others_and_waits_for_their_cleanup() {
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
fn an_err_is_a_value_to_join_all_and_a_failure_to_try_join_all() {
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
fn every_failure_is_told_and_the_first_is_the_source() {
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
fn a_member_that_is_cancelled_from_outside_has_failed_unless_it_returns_a_value() {
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
fn the_abort_of_a_member_drops_it_before_the_group_goes_on() {
    run(async {
        let trace = Trace::new();
        let mut group = TaskGroup::<()>::new();
        let member = group.spawn_named("victim", {
            let trace = trace.clone();
            async move {
                let _guard = support::OnDrop(|| trace.add("dropped"));
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
fn a_destructor_that_panics_does_not_hide_the_end_of_its_member() {
    run(async {
        let mut group = TaskGroup::new();
        group.spawn(async {
            let _bomb = support::OnDrop(|| panic!("in a destructor"));
            7
        });
        let aborted = group.spawn(async {
            let _bomb = support::OnDrop(|| panic!("in a destructor"));
            std::future::pending().await
        });
        yield_now().await.unwrap();
        aborted.abort();
        assert_eq!(group.join_all().await.unwrap_err().failures().len(), 2);
    });
}

#[test]
fn members_may_spawn_siblings_while_the_group_is_joined() {
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
fn a_group_that_is_being_ended_takes_no_members() {
    run(async {
        let mut group = TaskGroup::new();
        let spawner = group.spawner();
        let dropped = Rc::new(Cell::new(false));
        group.spawn({
            let dropped = dropped.clone();
            async move {
                sleep(ms(100)).await.unwrap_err();
                let guard = support::OnDrop(move || dropped.set(true));
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
            let done = group.next_done().await.unwrap().unwrap();
            assert!(done.member.is_finished());
            assert!(done.member.spawned_at().file().ends_with("task_group.rs"));
            seen.push((done.member.name().to_owned(), done.outcome.ok()));
        }
        let expected = [("fast", Some(10)), ("middle", None), ("slow", Some(30))];
        assert_eq!(seen, expected.map(|(name, value)| (name.to_owned(), value)));
        // What was taken is not the group's any more: its failure does not count.
        assert_eq!(group.join_all().await.unwrap(), [40]);
        assert!(group.next_done().await.unwrap().is_none());
    });
}

#[test]
fn an_interrupted_next_done_leaves_the_members_and_may_be_called_again() {
    run(async {
        let mut group = TaskGroup::new();
        group.spawn(async { sleep(ms(50)).await });
        assert!(matches!(timeout_after(ms(10), group.next_done()).await, Err(TimedOut)));
        assert!(group.next_done().await.unwrap().unwrap().outcome.unwrap().is_ok());
        assert!(group.next_done().await.unwrap().is_none());
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
fn any_gives_the_first_to_end_and_waits_for_the_rest() {
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
fn the_first_value_is_an_error_when_all_have_failed() {
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
fn every_policy_knows_what_to_do_without_members() {
    run(async {
        fn group() -> TaskGroup<Result<u8, String>> {
            TaskGroup::new()
        }
        assert_eq!(group().join_all().await.unwrap(), []);
        assert_eq!(group().try_join_all().await.unwrap(), []);
        assert!(group().join_any().await.unwrap_err().had_no_members());
        assert!(group().try_join_any().await.unwrap_err().had_no_members());
        assert!(group().first_value().await.unwrap_err().had_no_members());
        let error = group().try_first_value().await.unwrap_err();
        assert!(error.had_no_members() && error.source().is_none());
        assert_eq!(error.to_string(), "the group had no member that could give a value");
        assert!(group().next_done().await.unwrap().is_none());
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
fn cancel_all_asks_all_before_it_waits_for_any() {
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

#[test]
fn daemons_are_cancelled_at_the_end_and_never_looked_at() {
    run(async {
        let trace = Trace::new();
        let mut group = TaskGroup::new();
        group.spawn_daemon(worker("daemon", 100, 10, trace.clone()));
        group.spawn_daemon(async { panic!("a daemon's panic is only logged") });
        group.spawn(worker("member", 20, 0, trace.clone()));
        group.spawn_daemon(async { "a value" });
        assert_eq!(group.join_all().await.unwrap(), ["member"]);
        trace.add("joined");
        assert_eq!(
            trace.take(),
            [
                "20 member done",
                "20 daemon told: cancelled: its group has ended",
                "30 daemon clean",
                "30 joined",
            ]
        );

        let mut group = TaskGroup::new();
        let beat = group.member().name("heartbeat").daemon().spawn(std::future::pending()).unwrap();
        assert_eq!(beat.name(), "heartbeat");
        group.spawn(async { 1 });
        assert_eq!(group.next_done().await.unwrap().unwrap().outcome.unwrap(), 1);
        assert!(group.next_done().await.unwrap().is_none(), "nobody waits for a daemon");
        assert_eq!(group.join_all().await.unwrap(), []);
        assert!(beat.is_finished());
    });
}

#[test]
fn a_group_that_is_dropped_asks_its_members_to_end_and_the_kernel_sees_to_them() {
    run(async {
        let trace = Trace::new();
        let mut group = TaskGroup::new();
        let spawner = group.spawner();
        group.spawn(worker("one", 100, 10, trace.clone()));
        group.spawn_daemon(worker("daemon", 100, 20, trace.clone()));
        group.spawn(async { "nobody asks" });
        yield_now().await.unwrap();
        drop(group);
        assert!(spawner.spawn(async { "too late" }).is_err());
        trace.add("dropped");
        sleep(ms(50)).await.unwrap();
        let why = "cancelled: its group was dropped without having been joined";
        assert_eq!(
            trace.take(),
            [
                "0 dropped",
                &format!("0 daemon told: {why}"),
                &format!("0 one told: {why}"),
                "10 one clean",
                "20 daemon clean",
            ]
        );
    });
}

#[test]
fn what_members_returned_is_dropped_with_their_group_and_not_later() {
    run(async {
        let value = Rc::new(());
        let mut group = TaskGroup::new();
        let spawner = group.spawner();
        for _ in 0..3 {
            let value = value.clone();
            group.spawn(async move { value });
        }
        yield_now().await.unwrap();
        assert_eq!(Rc::strong_count(&value), 4);
        drop(group);
        assert_eq!(Rc::strong_count(&value), 1);
        assert!(!spawner.is_open());
    });
}

#[test]
fn a_dropped_group_is_reported() {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        run(async {
            let mut group = TaskGroup::new();
            group.spawn(async { sleep(ms(5)).await });
            yield_now().await.unwrap();
            drop(group);
            let mut ended = TaskGroup::new();
            ended.spawn(async {});
            yield_now().await.unwrap();
            drop(ended);
        });
    });
    let lines = lines.0.lock().unwrap().clone();
    let [line] = &*lines else { panic!("one line: {lines:?}") };
    assert!(line.contains("dropped before its members had ended") && line.contains("members=1"));
    assert!(line.contains("task_group.rs"), "{line}");
}

/// Keeps the events of the log.
#[derive(Clone, Default)]
struct Lines(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn failures_that_nobody_is_told_of_are_logged() {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        run(async {
            let mut group = TaskGroup::new();
            group.spawn_named("loser", async {
                sleep(ms(100)).await.unwrap_err();
                panic!("in the cleanup")
            });
            group.spawn(async { sleep(ms(1)).await.unwrap() });
            group.join_any().await.unwrap();

            let mut group = TaskGroup::<Result<u8, &str>>::new();
            group.spawn_named("passed over", async { Err("refused") });
            group.spawn(async { Ok(1) });
            assert_eq!(group.try_first_value().await.unwrap(), 1);

            let block = try_task_group(async |group: &mut TaskGroup<Result<(), &str>>| {
                group.spawn_named("unheard", async { Err("failed as well") });
                yield_now().await?;
                Err::<(), _>(GroupError::from(Interrupted::cancelled("the block's own error")))
            });
            assert!(block.await.is_err());
        });
    });
    let lines = lines.0.lock().unwrap().clone();
    let expected =
        [["loser", "in the cleanup"], ["passed over", "refused"], ["unheard", "failed as well"]];
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, parts) in lines.iter().zip(expected) {
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
}

#[test]
fn a_joiner_that_is_timed_out_ends_its_members_first() {
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
                "10 one told: cancelled: whoever waited for its group was interrupted",
                "30 one clean",
                "30 joined",
            ]
        );
    });
}

#[test]
fn a_second_interruption_does_not_cut_the_waiting_short() {
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
                    // What was held back is due now, the outermost first.
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
                "10 one told: cancelled: whoever waited for its group was interrupted",
                "60 one clean",
                "60 joined",
            ]
        );
    });
}

#[test]
fn an_interruption_is_reported_even_if_the_policy_was_dropped_over_it() {
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
fn failures_during_an_interrupted_join_are_told_as_well() {
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

/// What is wanted of a result here: the value, or whether the joiner was interrupted.
fn brief<T>(result: Result<T, GroupError>) -> Result<T, bool> {
    result.map_err(|error| error.interrupted().is_some())
}

#[test]
fn whichever_wait_of_a_joiner_is_interrupted_its_members_end_first() {
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
        let next = group.next_done().await.map(|done| done.map(|done| done.outcome.unwrap()));
        (next, brief(group.cancel_all().await))
    };
    let early = interrupted_at(5, next);
    let expected = "13 (Err(Cancelled(Some(\"x\"))), Ok(()))";
    assert_eq!(early[early.len() - 2..], [expected, "13 nothing is due"]);
    let late = interrupted_at(12, next);
    let expected = "18 (Ok(Some(\"a\")), Ok(()))";
    assert_eq!(late[late.len() - 2..], [expected, "18 an interruption is due"]);
}

#[test]
fn a_joiner_that_is_aborted_leaves_its_members_asked_to_end() {
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
        let why = "told: cancelled: whoever waited for its group was interrupted";
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

#[test]
fn a_block_waits_for_its_members() {
    run(async {
        let trace = Trace::new();
        let result: Result<u8, GroupError> = task_group(async |group| {
            group.spawn(worker("one", 20, 0, trace.clone()));
            group.spawn_daemon(worker("daemon", 100, 5, trace.clone()));
            sleep(ms(10)).await?;
            trace.add("block done");
            Ok(4)
        })
        .await;
        trace.add("over");
        assert_eq!(result.unwrap(), 4);
        assert_eq!(
            trace.take(),
            [
                "10 block done",
                "20 one done",
                "20 daemon told: cancelled: its group has ended",
                "25 daemon clean",
                "25 over",
            ]
        );
    });
}

#[test]
fn a_block_fails_when_a_member_does() {
    run(async {
        let result: Result<(), GroupError> = task_group(async |group| {
            group.spawn_named("bad", broken::<Result<(), String>>(5, "broke"));
            group.spawn(async { Err("only a value".into()) });
            Ok(())
        })
        .await;
        assert_eq!(told(result.unwrap_err().failures()), ["bad: the task panicked: broke"]);

        let result: Result<(), Box<dyn Error>> = try_task_group(async |group| {
            group.spawn(async { Err::<(), _>("a failure") });
            Ok(())
        })
        .await;
        assert!(result.unwrap_err().to_string().contains("a failure"));
    });
}

#[test]
fn a_block_that_fails_or_is_interrupted_or_panics_ends_its_members_first() {
    run(async {
        let trace = Trace::new();
        let failed: Result<(), std::io::Error> = task_group(async |group| {
            group.spawn(worker("one", 100, 10, trace.clone()));
            sleep(ms(5)).await?;
            Err(std::io::Error::other("the block's own"))
        })
        .await;
        trace.add(failed.unwrap_err());
        assert_eq!(
            trace.take(),
            [
                "5 one told: cancelled: the block around its group failed",
                "15 one clean",
                "15 the block's own",
            ]
        );

        let trace = Trace::new();
        let block = task_group(async |group| {
            group.spawn(worker("one", 100, 10, trace.clone()));
            sleep(ms(50)).await?;
            Ok::<_, GroupError>(())
        });
        assert!(matches!(timeout_after(ms(5), block).await, Err(TimedOut)));
        trace.add("timed out");
        assert_eq!(
            trace.take(),
            [
                "5 one told: cancelled: the block around its group failed",
                "15 one clean",
                "15 timed out",
            ]
        );

        // Interrupted after the block, while it waits for the members.
        let trace = Trace::new();
        let block = task_group(async |group| {
            group.spawn(worker("one", 100, 10, trace.clone()));
            Ok::<_, GroupError>(())
        });
        assert!(matches!(timeout_after(ms(5), block).await, Err(TimedOut)));
        trace.add("timed out");
        assert_eq!(
            trace.take(),
            [
                "5 one told: cancelled: whoever waited for its group was interrupted",
                "15 one clean",
                "15 timed out",
            ]
        );

        let trace = Trace::new();
        let panics = spawn({
            let trace = trace.clone();
            async move {
                let block = task_group(async |group| {
                    group.spawn(worker("one", 100, 10, trace.clone()));
                    sleep(ms(5)).await?;
                    assert!(trace.log.take().len() == 7, "the block panics");
                    Ok::<_, GroupError>(())
                });
                block.await
            }
        });
        let error = panics.await.unwrap_err();
        trace.add("panicked");
        assert!(error.panic_message().unwrap().contains("the block panics"), "{error}");
        assert_eq!(
            trace.take(),
            [
                "5 one told: cancelled: the block around its group panicked",
                "15 one clean",
                "15 panicked",
            ]
        );
    });
}

#[test]
fn a_block_may_join_its_group_itself_and_lend_it_out() {
    run(async {
        let sum: Result<u32, GroupError> = task_group(async |group| {
            for number in 0..4 {
                group.spawn(async move { number });
            }
            let mut sum = 0;
            while let Some(done) = group.next_done().await? {
                sum += done.outcome.unwrap();
            }
            Ok(sum)
        })
        .await;
        assert_eq!(sum.unwrap(), 6);

        let first: Result<&str, GroupError> = task_group(async |group| {
            group.spawn(async { "only" });
            group.join_any().await
        })
        .await;
        assert_eq!(first.unwrap(), "only");
    });
}

#[test]
fn a_block_that_is_dropped_asks_its_members_to_end() {
    run(async {
        let trace = Trace::new();
        {
            let block = pin!(task_group(async |group| {
                group.spawn(worker("one", 100, 10, trace.clone()));
                sleep(ms(50)).await?;
                Ok::<_, GroupError>(())
            }));
            let Either::Right(_) = select(block, pin!(sleep(ms(5)))).await else { panic!("early") };
        }
        sleep(ms(50)).await.unwrap();
        let why = "cancelled: its group was dropped without having been joined";
        assert_eq!(trace.take(), [&format!("5 one told: {why}"), "15 one clean"]);
    });
}

#[test]
fn in_parallel_gives_every_outcome_in_order() {
    run(async {
        let trace = Trace::new();
        let outcomes = in_parallel((0..4_u64).map(|number| async move {
            sleep(ms(40 - 10 * number)).await.unwrap();
            assert_ne!(number, 2, "this one breaks");
            number
        }));
        let outcomes = outcomes.await.unwrap();
        trace.add("done");
        assert_eq!(trace.take(), ["40 done"], "they ran side by side, and none was cut short");
        let values: Vec<Option<u64>> = outcomes.into_iter().map(Result::ok).collect();
        assert_eq!(values, [Some(0), Some(1), None, Some(3)]);
    });
}

#[test]
fn in_parallel_leaves_no_child_behind_when_it_is_interrupted() {
    run(async {
        let trace = Trace::new();
        let children = ["one", "two"].map(|name| worker(name, 100, 10, trace.clone()));
        let outcome = timeout_after(ms(5), async {
            let interrupted = in_parallel(children).await.unwrap_err();
            assert!(interrupted.is_timeout());
        });
        assert_eq!(outcome.await, Err(TimedOut));
        trace.add("over");
        assert_eq!(
            trace.take(),
            [
                "5 two told: cancelled: whoever waited for it was interrupted",
                "5 one told: cancelled: whoever waited for it was interrupted",
                "15 two clean",
                "15 one clean",
                "15 over",
            ]
        );
    });
}

/// Counts the steps of tasks without a name and of all others.
#[derive(Clone, Default)]
struct Steps {
    members: Rc<Cell<usize>>,
    joiner: Rc<Cell<usize>>,
}

impl Observer for Steps {
    fn stepping(&self, task: &TaskRef) {
        let count = if task.name().is_empty() { &self.members } else { &self.joiner };
        count.set(count.get() + 1);
    }
}

#[test]
fn ten_thousand_members_cost_a_step_each() {
    const MANY: usize = 10_000;

    let steps = Steps::default();
    let kernel = builder().observer(steps.clone()).build().unwrap();
    kernel.run(async {
        // All at once: the joiner is woken once, not once for each.
        let mut group = TaskGroup::new();
        for number in 0..MANY {
            group.spawn(async move { number });
        }
        let values = group.join_all().await.unwrap();
        assert!(values.into_iter().eq(0..MANY));
        assert!(steps.joiner.replace(0) < MANY / 10, "ends of one turn are seen together");
        assert_eq!(steps.members.take(), MANY);

        // One after the other: once for each.
        let mut group = TaskGroup::new();
        for number in 0..MANY {
            group.spawn(async move { sleep(ms(number as u64)).await });
        }
        assert_eq!(group.join_all().await.unwrap().len(), MANY);
        assert!(steps.joiner.take() <= MANY + 1);
        assert_eq!(steps.members.take(), 2 * MANY);

        // The first fails, and all others are interrupted at once.
        let mut group = TaskGroup::new();
        for _ in 0..MANY {
            group.spawn(async { sleep(ms(1_000)).await });
        }
        group.spawn(broken(1, "broke"));
        assert_eq!(group.join_all().await.unwrap_err().failures().len(), 1);
        assert_eq!(steps.members.take(), 2 * (MANY + 1));

        // A stream of members that come and go.
        let mut group = TaskGroup::new();
        for number in 0..MANY {
            group.spawn(async move { number });
            assert_eq!(group.next_done().await.unwrap().unwrap().outcome.unwrap(), number);
        }
    });
    kernel.shutdown();
}

#[test]
fn a_group_ends_with_its_kernel() {
    let log = Log::default();
    let kernel = kernel();
    let joined = Rc::new(RefCell::new(None));
    kernel.run(async {
        let (log, joined) = (log.clone(), joined.clone());
        drop(named("joiner", async move {
            let mut group = TaskGroup::new();
            let spawner = group.spawner();
            group.spawn_named("member", async move {
                let why = sleep(ms(1_000)).await.unwrap_err();
                log.add(why);
                let late: Member = spawner.member().name("late").spawn(async {}).unwrap();
                assert!(late.is_finished(), "cancelled from the start");
                sleep(ms(10)).await.unwrap();
            });
            *joined.borrow_mut() = group.join_all().await.err();
        }));
        yield_now().await.unwrap();
        yield_now().await.unwrap();
    });
    kernel.shutdown();
    assert_eq!(kernel.task_count(), 0);
    assert_eq!(log.take(), ["cancelled: the kernel is being shut down"]);
    let error = joined.take().unwrap();
    assert!(error.interrupted().is_some());
    let why = "cancelled: spawned while the kernel was being shut down";
    assert_eq!(told(error.failures()), [format!("late: the task ended by a cancel ({why})")]);
}

#[test]
fn a_group_may_outlive_its_kernel() {
    let kernel = kernel();
    let group = kernel.run(async {
        let mut group = TaskGroup::new();
        group.spawn(std::future::pending::<()>());
        yield_now().await.unwrap();
        group
    });
    assert_eq!(group.running(), 1);
    drop(kernel);
    assert_eq!(group.running(), 0);
    drop(group);
}

#[test]
#[should_panic(expected = "needs a pikake kernel")]
fn spawning_outside_of_a_kernel_is_a_clear_error() {
    TaskGroup::new().spawn(async {});
}

#[test]
fn names_parents_and_places_are_visible() {
    run(async {
        let id = current().id();
        assert_eq!(current().parent(), None, "the main task has no parent");
        let mut group = TaskGroup::new();
        let line = line!() + 1;
        let member = group.spawn_named("reader", async {
            let inner = named("inner", async { current().parent() });
            assert_eq!(inner.parent(), Some(current().id()));
            let me = current().id();
            assert_eq!(inner.await.unwrap(), Some(me));
            current().parent()
        });
        let text = format!("{member:?}");
        let parent = format!("parent: Some({})", id.0);
        for part in ["\"reader\"", &*parent, &format!("task_group.rs:{line}")] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(format!("{group:?}").contains("running: 1"));
        assert_eq!(group.join_all().await.unwrap(), [Some(id)]);

        let line = line!() + 1;
        let places = in_parallel([async { current().spawned_at() }]).await.unwrap();
        assert_eq!(places[0].as_ref().unwrap().line(), line);
        let place = current().spawned_at();
        let elsewhere = task::Builder::new().spawned_at(place).spawn(async {});
        assert!(format!("{elsewhere:?}").contains(&place.to_string()));
        elsewhere.await.unwrap();
    });
}

/// What every error must be to travel through `?` into the error types that people use.
fn travels<E: Error + Send + Sync + 'static>() {}

#[test]
fn errors_travel() {
    travels::<GroupError>();
    travels::<GroupEnded>();
    travels::<Failure>();
    travels::<TaskError>();
}
