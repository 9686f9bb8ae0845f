//! Groups that end without a join: dropped, or with their kernel; daemons.

use std::cell::RefCell;
use std::rc::Rc;

use pikake::task::{GroupError, Member};
use pikake::{Interrupted, TaskGroup, sleep, try_task_group, yield_now};

use super::helpers::{Trace, told, worker};
use crate::support::{Log, kernel, ms, named, run};

#[test]
fn daemons_are_cancelled_at_the_end_unseen() {
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
        assert_eq!(group.join_next().await.unwrap().unwrap().outcome.unwrap(), 1);
        assert!(group.join_next().await.unwrap().is_none(), "nobody waits for a daemon");
        assert!(group.join_all().await.unwrap().is_empty());
        assert!(beat.is_finished());
    });
}

#[test]
fn dropped_group_cancels_its_members() {
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
fn outputs_are_dropped_with_their_group() {
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
    let lines = lines_of(|| {
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
    let [line] = &*lines else { panic!("one line: {lines:?}") };
    assert!(line.contains("dropped before its members had ended") && line.contains("members=1"));
    assert!(line.contains(file!()), "{line}");
}

/// A group that a `?` leaves before the join.
async fn left_by_error(members: u32) -> Result<(), &'static str> {
    let mut group = TaskGroup::new();
    for _ in 0..members {
        group.spawn(async { sleep(ms(5)).await });
    }
    group.spawn_daemon(async { sleep(ms(5)).await });
    yield_now().await.unwrap();
    Err("refused")?;
    group.join_all().await.map(drop).map_err(|_| "failed")
}

#[test]
fn the_report_of_a_dropped_group_names_its_spawns() {
    let lines = lines_of(|| run(async { assert!(left_by_error(3).await.is_err()) }));
    let [line] = &*lines else { panic!("one line: {lines:?}") };
    assert!(line.contains("members=4"), "{line}");
    // The place of the group, and two places of spawns, each once.
    assert_eq!(line.matches(file!()).count(), 3, "{line}");
}

#[test]
fn a_group_dropped_by_a_panic_is_not_reported() {
    let lines = lines_of(|| {
        run(async {
            let owner = pikake::spawn(async {
                let mut group = TaskGroup::new();
                group.spawn(async { sleep(ms(5)).await });
                yield_now().await.unwrap();
                panic!("the owner's");
            });
            let error = owner.await.unwrap_err();
            assert_eq!(error.panic_message(), Some("the owner's"));
            sleep(ms(10)).await.unwrap();
        });
    });
    assert!(lines.is_empty(), "{lines:?}");
}

/// The kernel ends its tasks, the newest first, so members end before their owner.
#[test]
fn a_group_dropped_with_its_kernel_is_not_reported() {
    let lines = lines_of(|| {
        run(async {
            let owner = pikake::spawn(async {
                let mut group = TaskGroup::new();
                group.spawn(async { sleep(ms(5_000)).await });
                group.join_all().await.map(drop)
            });
            yield_now().await.unwrap();
            owner.detach();
        });
    });
    assert!(lines.is_empty(), "{lines:?}");
}

/// The lines that the second of two calls logs.
///
/// `tracing` decides whether a place in the code logs when a thread first reaches the place. That
/// thread may run another test, without a subscriber. So the first call reaches every place, and
/// then the decisions are made anew.
fn lines_of(log: impl Fn()) -> Vec<String> {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        log();
        tracing::callsite::rebuild_interest_cache();
        lines.0.lock().unwrap().clear();
        log();
    });
    lines.0.lock().unwrap().clone()
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
fn unobserved_failures_are_logged() {
    let lines = lines_of(|| {
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
    let expected =
        [["loser", "in the cleanup"], ["passed over", "refused"], ["unheard", "failed as well"]];
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, parts) in lines.iter().zip(expected) {
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
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
    assert!(error.interrupted().is_none(), "a member that ended meanwhile came first");
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
fn spawn_outside_a_kernel_panics_with_advice() {
    TaskGroup::new().spawn(async {});
}
