//! Profiles of steps, and all events of the flight recorder by its pages.

use std::panic::Location;
use std::time::Duration;

use pikake::kernel::inspect::{KernelView, StepRow, kernels, time_steps};
use pikake::traps::inspect::record_current_kernel;
use pikake::{KernelHandle, sleep, spawn, task, yield_now};

fn this_kernel() -> KernelView {
    let id = KernelHandle::current().id();
    kernels().into_iter().find(|kernel| kernel.id() == id).unwrap()
}

#[track_caller]
fn line() -> u32 {
    Location::caller().line()
}

/// What is the same in each run.
fn counts(row: &StepRow) -> (&str, u32, u64, u64, Vec<(&str, u64)>) {
    let waits = row.waits.iter().map(|(trap, count)| (trap.name(), *count)).collect();
    (&row.name, row.spawned_at.line(), row.spawned, row.steps, waits)
}

/// Tasks that are older than the profile, and tasks that begin and end meanwhile.
#[test]
fn a_profile_has_each_step_in_the_row_of_its_name_and_place() {
    pikake::run(async {
        record_current_kernel();
        let old_line = line() + 1;
        let old = task::Builder::new().name("old").spawn(async { yield_now().await.unwrap() });
        time_steps(true);
        let profile = this_kernel().profile().unwrap();
        let mut tasks = Vec::new();
        let new_line = line() + 2;
        for _ in 0..1_000 {
            tasks.push(spawn(async {
                yield_now().await.unwrap();
                sleep(Duration::from_nanos(1)).await.unwrap();
                yield_now().await.unwrap();
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        old.await.unwrap();
        let mut rows = profile.finish();
        rows.retain(|row| &*row.name != "main");
        rows.sort_by_key(|row| row.spawned_at.line());
        let rows_of_tasks: Vec<_> = rows.iter().map(counts).collect();
        assert_eq!(
            rows_of_tasks,
            [
                ("old", old_line, 0, 2, vec![("yield", 1)]),
                ("", new_line, 1_000, 4_000, vec![("yield", 2_000), ("sleep", 1_000)]),
            ]
        );
        for row in &rows {
            assert!(row.longest > Duration::ZERO && row.longest <= row.busy, "{row:?}");
            assert!(row.busy <= row.longest * u32::try_from(row.steps).unwrap(), "{row:?}");
        }
        time_steps(false);
    });
}

/// Each task has a name of its own, as that of a connection.
#[test]
fn a_profile_has_a_limit_of_names() {
    pikake::run(async {
        record_current_kernel();
        time_steps(true);
        let profile = this_kernel().profile().unwrap();
        for number in 0..2_000 {
            task::Builder::new().name(format!("{number}")).spawn(async {}).await.unwrap();
        }
        let rows = profile.finish();
        assert!((1_000..1_100).contains(&rows.len()), "{}", rows.len());
        assert_eq!(rows.iter().map(|row| row.spawned).sum::<u64>(), 2_000);
        time_steps(false);
    });
}

#[test]
fn steps_that_are_not_timed_are_in_no_profile() {
    pikake::run(async {
        record_current_kernel();
        let profile = this_kernel().profile().unwrap();
        yield_now().await.unwrap();
        assert_eq!(profile.finish(), []);
        assert!(this_kernel().profile().is_some(), "profiles do not exclude each other");
    });
}

/// The reader is slower than the kernel once, and then faster.
#[test]
fn pages_of_events_say_how_many_were_lost() {
    pikake::run(async {
        record_current_kernel();
        let kernel = this_kernel();
        for _ in 0..10_000 {
            yield_now().await.unwrap();
        }
        let page = kernel.events_from(0);
        assert_eq!(page.lost + page.events.len() as u64, page.next);
        assert_eq!(page.events.len(), 4_095);
        yield_now().await.unwrap();
        let next = kernel.events_from(page.next);
        assert_eq!((next.lost, next.events.len(), next.next), (0, 1, page.next + 1));
        let beyond = kernel.events_from(u64::MAX);
        assert_eq!((beyond.lost, beyond.events.len(), beyond.next), (0, 0, next.next));
    });
}
