//! Task groups: no member outlives its group.

use std::cell::Cell;
use std::fmt::Debug;
use std::rc::Rc;

use pikake::task::{GroupError, in_parallel};
use pikake::testing::interrupt_everywhere;
use pikake::{Interrupted, TaskGroup, sleep, task_group, try_task_group};

use crate::support::insist::{a_few_steps, insist_inside, ms};

/// Counts the tasks that are alive.
#[derive(Clone, Default)]
struct Alive(Rc<Cell<usize>>);

impl Alive {
    /// Takes its time, and takes its time to say goodbye if it is told.
    async fn member(self, length: u64) -> Result<u64, Interrupted> {
        self.0.set(self.0.get() + 1);
        let _alive = OnDrop(|| self.0.set(self.0.get() - 1));
        let slept = sleep(ms(length)).await;
        if slept.is_err() {
            a_few_steps().await;
        }
        slept.map(|()| length)
    }
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Interrupts a program that makes a group everywhere. It gives what the group did, and how many
/// of its members were alive then.
#[track_caller]
fn in_groups<T: PartialEq + Debug>(
    expected: T,
    program: impl AsyncFn(&Alive) -> Result<T, GroupError>,
) {
    let program = &program;
    let program = || async move {
        let alive = Alive::default();
        let outcome = program(&alive).await;
        (outcome, alive.0.get())
    };
    let report = interrupt_everywhere(program, |run| {
        let (outcome, alive) = run.output.as_ref().expect("it waits on traps");
        assert_eq!(*alive, 0, "a member has outlived its group");
        match outcome {
            Ok(value) => assert_eq!(*value, expected),
            Err(error) => {
                let by = run.interruption.as_ref().expect("nothing else is wrong");
                let why = error.interrupted().expect("the group was interrupted");
                assert_eq!(why.is_cancel(), by.kind.is_cancel());
            }
        }
    });
    assert!(report.suspensions > 0 && report.timeouts > 0, "{report:?}");
}

#[test]
fn joining_a_group() {
    in_groups(vec![3, 1, 2], async |alive| {
        let mut group = TaskGroup::new();
        for length in [3, 1, 2] {
            group.spawn(alive.clone().member(length));
        }
        let all: Vec<u64> = group.try_join_all().await?;
        Ok(all)
    });
    in_groups(1, async |alive| {
        let mut group = TaskGroup::new();
        for length in [3, 1, 2] {
            group.spawn(alive.clone().member(length));
        }
        group.spawn_daemon(alive.clone().member(1000));
        group.try_join_any().await
    });
    in_groups(1, async |alive| {
        let mut group = TaskGroup::new();
        for length in [3, 1, 2] {
            group.spawn(alive.clone().member(length));
        }
        group.try_first_value().await
    });
    in_groups((), async |alive| {
        let mut group = TaskGroup::new();
        for length in [3, 1, 2] {
            group.spawn(alive.clone().member(length));
        }
        let _ = sleep(ms(1)).await;
        group.cancel_all().await
    });
}

#[test]
fn a_group_around_a_block() {
    in_groups(2, async |alive| {
        task_group(async |group| {
            group.spawn(alive.clone().member(5));
            sleep(ms(1)).await?;
            group.spawn(alive.clone().member(2));
            sleep(ms(1)).await?;
            Ok(group.running())
        })
        .await
    });
    in_groups(7, async |alive| {
        try_task_group(async |group| {
            group.spawn(alive.clone().member(3));
            group.spawn(alive.clone().member(1));
            sleep(ms(2)).await?;
            Ok(7)
        })
        .await
    });
}

#[test]
fn side_by_side() {
    let program = || async {
        let alive = Alive::default();
        let members = [3, 1, 2].map(|length| alive.clone().member(length));
        let outcomes = in_parallel(members).await;
        (outcomes.map(|all| all.len()), alive.0.get())
    };
    interrupt_everywhere(program, |run| {
        let (outcomes, alive) = run.output.clone().unwrap();
        assert_eq!(alive, 0, "a member has outlived its group");
        match run.interruption {
            None => assert_eq!(outcomes, Ok(3)),
            Some(_) => assert!(outcomes.is_err() || outcomes == Ok(3)),
        }
    });
}

#[test]
fn one_after_the_other_of_a_group() {
    insist_inside(vec![1, 2, 3], async |insistent| {
        let alive = Alive::default();
        let mut group = TaskGroup::new();
        for length in [3, 1, 2] {
            group.spawn(alive.clone().member(length));
        }
        let mut all = Vec::new();
        while let Some(done) = insistent.on(async || group.join_next().await).await {
            all.push(done.outcome.unwrap().unwrap());
        }
        assert_eq!(group.running(), 0);
        all
    });
}
