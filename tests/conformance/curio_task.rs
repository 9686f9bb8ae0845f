//! The assertions of Curio's `test_task` that have a meaning here: first tasks, then groups.

use std::cell::Cell;
use std::future::pending as foreign;

use pikake::task::{TaskLocal, in_parallel};
use pikake::{
    Interrupted, Task, TaskError, TaskGroup, TimedOut, check_interrupt, current, pending_interrupt,
    shield, sleep, spawn, task_group, timeout_after, yield_now,
};

use crate::runner::{Runner, World, describe, ms, named, on_every_kernel};

fn request_cancel_returns_and_cancel_waits<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                world.note(describe(sleep(ms(1_000)).await));
                sleep(ms(10)).await.unwrap();
                world.note("ends");
            }
        });
        yield_now().await.unwrap();
        task.request_cancel("");
        world.note("requested");
        world.note(describe(task.cancel().await));
    });
    assert_eq!(events, ["0 requested", "0 cancelled", "10 ends", "10 ok"]);
}

fn first_cancel_reason_is_reported<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn(async { sleep(ms(1_000)).await.unwrap_err() });
        yield_now().await.unwrap();
        task.request_cancel("first");
        task.request_cancel("second");
        let why = task.await.unwrap();
        assert_eq!(why, Interrupted::cancelled("first"));
        world.note(why);
    });
    assert_eq!(events, ["0 cancelled: first"]);
}

fn shield_delays_a_cancel_to_its_end<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let inside = shield(async {
                    world.note(describe(sleep(ms(10)).await));
                    assert_eq!(pending_interrupt(), None);
                });
                inside.await;
                assert!(pending_interrupt().is_some());
                world.note(describe(check_interrupt()));
                world.note(describe(check_interrupt()));
            }
        });
        yield_now().await.unwrap();
        task.cancel().await.unwrap();
    });
    assert_eq!(events, ["10 ok", "10 cancelled", "10 ok"]);
}

fn interruption_inside_a_shield_is_its_output<R: Runner>() {
    let events = R::run(async |world| {
        let inner = shield(shield(async { Err::<(), _>(Interrupted::cancelled("by hand")) }));
        world.note(describe(inner.await));
        world.note(describe(sleep(ms(1)).await));
    });
    assert_eq!(events, ["0 cancelled: by hand", "1 ok"]);
}

fn self_cancel_interrupts_the_next_wait<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                current().request_cancel("");
                world.note("goes on");
                world.note(describe(sleep(ms(0)).await));
                world.note(describe(sleep(ms(0)).await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["0 goes on", "0 cancelled", "0 ok"]);
}

fn values_of_a_task_are_its_own<R: Runner>() {
    static NUMBER: TaskLocal<Cell<u32>> = TaskLocal::starting_with(|| Cell::new(0));
    let events = R::run(async |world| {
        let tasks = [1, 2, 3].map(|first| {
            let world = world.clone();
            spawn(async move {
                NUMBER.with(|number| number.set(first * 10));
                for _ in 0..2 {
                    yield_now().await.unwrap();
                    NUMBER.with(|number| number.set(number.get() + 1));
                    world.note(NUMBER.with(Cell::get));
                }
            })
        });
        for task in tasks {
            task.await.unwrap();
        }
        world.note(NUMBER.with(Cell::get));
    });
    assert_eq!(events, ["0 11", "0 21", "0 31", "0 12", "0 22", "0 32", "0 0"]);
}

fn new_task_has_its_id_and_name<R: Runner>() {
    R::run(async |_| {
        let line = line!() + 1;
        let task = named("reader", async { (current().id(), current().spawned_at().line()) });
        assert_eq!((task.name(), task.is_finished()), ("reader", false));
        assert!(format!("{task:?}").contains("reader"));
        let id = task.id();
        let (own_id, place) = task.await.unwrap();
        assert_eq!(own_id, id);
        assert!(place != line, "the place is the call of `spawn`");
    });
}

fn a_cancel_after_the_end_changes_nothing<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn(async { 7 });
        sleep(ms(1)).await.unwrap();
        assert!(task.is_finished());
        world.note(describe(task.cancel().await));
        task.request_cancel("late");
        task.abort();
        world.note(format_args!("{:?}", task.await));
    });
    assert_eq!(events, ["1 ok", "1 Ok(7)"]);
}

fn dropped_handle_detaches_its_task<R: Runner>() {
    let events = R::run(async |world| {
        let sleeper = |world: World| async move { world.note(describe(sleep(ms(10)).await)) };
        drop(spawn(sleeper(world.clone())));
        let cancels = spawn(sleeper(world.clone())).cancel_on_drop();
        yield_now().await.unwrap();
        drop(cancels);
        sleep(ms(20)).await.unwrap();
    });
    assert_eq!(events, ["0 cancelled: its owner was dropped", "10 ok"]);
}

// --- groups ------------------------------------------------------------------------------------

/// A member that returns a number after so many milliseconds, and says if it was interrupted.
fn member(world: &World, length: u64) -> impl Future<Output = u64> + 'static {
    let world = world.clone();
    async move {
        if let Err(why) = sleep(ms(length)).await {
            world.note(format_args!("{length} told: {}", why.is_cancel()));
        }
        length
    }
}

async fn fails(length: u64) -> u64 {
    sleep(ms(length)).await.unwrap();
    panic!("member {length}");
}

fn group_results_are_in_spawn_order<R: Runner>() {
    let events = R::run(async |world| {
        let mut group = TaskGroup::new();
        for length in [30, 10, 20] {
            group.spawn(member(&world, length));
        }
        world.note(format_args!("{:?}", group.join_all().await.unwrap()));
    });
    assert_eq!(events, ["30 [30, 10, 20]"]);
}

fn daemons_give_no_results_to_the_group<R: Runner>() {
    let events = R::run(async |world| {
        let mut group = TaskGroup::new();
        group.spawn_daemon(member(&world, 1_000));
        group.spawn_daemon(fails(5));
        group.spawn(member(&world, 10));
        world.note(format_args!("{:?}", group.join_all().await.unwrap()));
    });
    assert_eq!(events, ["10 1000 told: true", "10 [10]"]);
}

fn daemons_end_when_the_block_fails<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = task_group(async |group| {
            group.spawn_daemon(member(&world, 1_000));
            sleep(ms(10)).await.unwrap();
            Err::<(), _>(std::io::Error::other("the block"))
        });
        world.note(outcome.await.unwrap_err());
    });
    assert_eq!(events, ["10 1000 told: true", "10 the block"]);
}

fn first_result_cancels_the_rest<R: Runner>() {
    let events = R::run(async |world| {
        let mut group = TaskGroup::new();
        for length in [30, 10, 20] {
            group.spawn(member(&world, length));
        }
        world.note(group.join_any().await.unwrap());
    });
    assert_eq!(events, ["10 20 told: true", "10 30 told: true", "10 10"]);
}

fn a_failure_may_end_first_too<R: Runner>() {
    let events = R::run(async |world| {
        let mut group = TaskGroup::new();
        group.spawn(member(&world, 30));
        group.spawn(fails(10));
        let error = group.join_any().await.unwrap_err();
        world.note(format_args!("{:?}", error.failures()[0].panic_message()));
    });
    assert_eq!(events, ["10 30 told: true", "10 Some(\"member 10\")"]);
}

fn members_are_taken_as_they_end<R: Runner>() {
    let events = R::run(async |world| {
        let mut group = TaskGroup::new();
        for length in [30, 10, 20] {
            group.spawn(member(&world, length));
        }
        while let Some(done) = group.join_next().await.unwrap() {
            world.note(done.outcome.unwrap());
        }
        world.note(format_args!("{:?}", group.join_all().await.unwrap()));
    });
    assert_eq!(events, ["10 10", "20 20", "30 30", "30 []"]);
}

fn the_rest_of_a_group_can_be_cancelled<R: Runner>() {
    let events = R::run(async |world| {
        let mut group = TaskGroup::new();
        for length in [30, 10, 20] {
            group.spawn(member(&world, length));
        }
        world.note(group.join_next().await.unwrap().unwrap().outcome.unwrap());
        group.cancel_all().await.unwrap();
        world.note("all ended");
    });
    assert_eq!(events, ["10 10", "10 20 told: true", "10 30 told: true", "10 all ended"]);
}

fn one_failure_cancels_the_others<R: Runner>() {
    let events = R::run(async |world| {
        let mut group = TaskGroup::new();
        group.spawn(member(&world, 30));
        group.spawn(fails(10));
        group.spawn(member(&world, 20));
        let error = group.join_all().await.unwrap_err();
        world.note(format_args!("{:?}", error.failures()[0].panic_message()));
    });
    assert_eq!(events, ["10 20 told: true", "10 30 told: true", "10 Some(\"member 10\")"]);
}

fn block_error_cancels_the_members<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = task_group(async |group| {
            group.spawn(member(&world, 30));
            group.spawn(member(&world, 20));
            yield_now().await.unwrap();
            Err::<(), _>(std::io::Error::other("the block"))
        });
        world.note(outcome.await.unwrap_err());
    });
    assert_eq!(events, ["0 20 told: true", "0 30 told: true", "0 the block"]);
}

fn owner_cancel_ends_the_members_first<R: Runner>() {
    let events = R::run(async |world| {
        let owner = spawn({
            let world = world.clone();
            async move {
                let outcome = task_group(async |group| {
                    group.spawn(member(&world, 30));
                    Ok::<_, pikake::task::GroupError>(())
                });
                let error = outcome.await.unwrap_err();
                world.note(format_args!("{}", error.interrupted().unwrap()));
            }
        });
        sleep(ms(10)).await.unwrap();
        owner.request_cancel("the owner");
        owner.await.unwrap();
    });
    assert_eq!(events, ["10 30 told: true", "10 cancelled: the owner"]);
}

fn a_timeout_around_a_group_cancels_its_members<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            let mut group = TaskGroup::new();
            group.spawn(member(&world, 30));
            group.spawn(member(&world, 20));
            let error = group.join_all().await.unwrap_err();
            world.note(format_args!("{}", error.interrupted().unwrap()));
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(
        events,
        ["10 20 told: true", "10 30 told: true", "10 a deadline passed", "10 Err(TimedOut)"]
    );
}

fn empty_group_has_no_results<R: Runner>() {
    R::run(async |_| {
        assert!(TaskGroup::<u32>::new().join_all().await.unwrap().is_empty());
        assert!(TaskGroup::<u32>::new().join_any().await.unwrap_err().had_no_members());
        TaskGroup::<u32>::new().cancel_all().await.unwrap();
        assert!(TaskGroup::<u32>::new().join_next().await.unwrap().is_none());
    });
}

fn a_group_that_has_ended_takes_no_members<R: Runner>() {
    R::run(async |_| {
        let mut group = TaskGroup::new();
        group.spawn(async {});
        let spawner = group.spawner();
        group.join_all().await.unwrap();
        assert!(!spawner.is_open());
        assert!(spawner.spawn(async {}).is_err());
    });
}

fn member_spawns_siblings_during_a_join<R: Runner>() {
    let events = R::run(async |world| {
        let mut group = TaskGroup::new();
        let spawner = group.spawner();
        let later = member(&world, 20);
        group.spawn(async move {
            sleep(ms(10)).await.unwrap();
            spawner.spawn(later).unwrap();
            10
        });
        world.note(format_args!("{:?}", group.join_all().await.unwrap()));
    });
    assert_eq!(events, ["30 [10, 20]"]);
}

fn dropped_group_cancels_its_members<R: Runner>() {
    let events = R::run(async |world| {
        let mut group = TaskGroup::new();
        group.spawn(member(&world, 30));
        yield_now().await.unwrap();
        drop(group);
        world.note("dropped");
        yield_now().await.unwrap();
    });
    assert_eq!(events, ["0 dropped", "0 30 told: true"]);
}

fn futures_in_parallel_give_their_outcomes_in_order<R: Runner>() {
    let events = R::run(async |world| {
        let lengths = [30, 10, 20].map(|length| member(&world, length));
        let outcomes = in_parallel(lengths).await.unwrap();
        world.note(format_args!("{:?}", outcomes.into_iter().flatten().collect::<Vec<_>>()));
        let lengths = [30, 10].map(|length| member(&world, length));
        let outcome = timeout_after(ms(20), in_parallel(lengths)).await;
        assert!(matches!(outcome, Err(TimedOut)));
        let mixed = in_parallel([10, 20].map(fails)).await.unwrap();
        let failed = mixed.iter().map(|outcome| matches!(outcome, Err(TaskError::Panicked(_))));
        world.note(format_args!("{:?}", failed.collect::<Vec<_>>()));
        let never: Task<()> = spawn(foreign());
        never.cancel().await.unwrap();
    });
    assert_eq!(events, ["30 [30, 10, 20]", "50 30 told: true", "70 [true, true]"]);
}

on_every_kernel! {
    in_order {
        request_cancel_returns_and_cancel_waits
        first_cancel_reason_is_reported
        shield_delays_a_cancel_to_its_end
        values_of_a_task_are_its_own
        dropped_handle_detaches_its_task
        first_result_cancels_the_rest
        the_rest_of_a_group_can_be_cancelled
        one_failure_cancels_the_others
        block_error_cancels_the_members
        a_timeout_around_a_group_cancels_its_members
        dropped_group_cancels_its_members
    }
    in_any_order {
        interruption_inside_a_shield_is_its_output
        self_cancel_interrupts_the_next_wait
        new_task_has_its_id_and_name
        a_cancel_after_the_end_changes_nothing
        group_results_are_in_spawn_order
        daemons_give_no_results_to_the_group
        daemons_end_when_the_block_fails
        a_failure_may_end_first_too
        members_are_taken_as_they_end
        owner_cancel_ends_the_members_first
        empty_group_has_no_results
        a_group_that_has_ended_takes_no_members
        member_spawns_siblings_during_a_join
        futures_in_parallel_give_their_outcomes_in_order
    }
}
