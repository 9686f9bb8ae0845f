//! The steps of members, their names, parents and locations, and errors that are `Send`.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;

use pikake::kernel::Observer;
use pikake::task::{Failure, GroupEnded, GroupError, in_parallel};
use pikake::traps::TaskRef;
use pikake::{TaskError, TaskGroup, current, sleep, task};

use super::helpers::broken;
use crate::support::{builder, ms, named, run};

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
            assert_eq!(group.join_next().await.unwrap().unwrap().outcome.unwrap(), number);
        }
    });
    kernel.shutdown();
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
        for part in ["\"reader\"", &*parent, &format!("sizes.rs:{line}")] {
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

/// Bounds that let an error pass through `?` into common error types.
fn travels<E: Error + Send + Sync + 'static>() {}

#[test]
fn group_errors_are_send_and_sync() {
    travels::<GroupError>();
    travels::<GroupEnded>();
    travels::<Failure>();
    travels::<TaskError>();
}
