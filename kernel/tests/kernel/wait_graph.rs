//! The graph of waits: vectors, random graphs against a naive definition, and graphs of real tasks.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::time::Duration;

use futures::future::join;
use futures::stream::{FuturesUnordered, StreamExt};
use pikake::kernel::inspect::tasks_from;
use pikake::kernel::wait_graph::{GraphTask, GraphWait, WaitGraph};
use pikake::net::{TcpListener, TcpStream};
use pikake::sync::{Event, Mutex, Queue, RwLock};
use pikake::task::Builder;
use pikake::thread::run_in_thread;
use pikake::time::Clock;
use pikake::traps::{KernelHandle, Reply, TaskRef};
use pikake::{
    Kernel, Task, TaskGroup, future_wait, shield, sleep, spawn, timeout_after, yield_now,
};
use proptest::prelude::*;

use crate::support::{kernel, ms};

type Key = u32;

/// A wait with these owners.
fn wait(owners: &[Key]) -> GraphWait<Key> {
    GraphWait {
        trap: "park".into(),
        place: "a.rs:1:1".into(),
        about: Some("lock".into()),
        owners: owners.into(),
        is_granted: false,
        is_polled: true,
        ends_by_time: false,
    }
}

/// A task with one wait for each list of owners.
fn task(key: Key, waits: &[&[Key]]) -> GraphTask<Key> {
    GraphTask {
        key,
        name: String::new(),
        is_ready: false,
        has_wakers: false,
        has_moved: false,
        waits: waits.iter().map(|owners| wait(owners)).collect(),
    }
}

/// The stuck tasks and the deadlocks.
fn found(tasks: &[GraphTask<Key>]) -> (Vec<Key>, Vec<Vec<Key>>) {
    let graph = WaitGraph::new(tasks);
    (graph.stuck().to_vec(), graph.deadlocks().to_vec())
}

#[test]
fn tasks_in_a_cycle_are_a_deadlock() {
    let tasks = [task(3, &[&[1]]), task(1, &[&[2]]), task(2, &[&[3]]), task(4, &[&[2]])];
    assert_eq!(found(&tasks), (vec![1, 2, 3, 4], vec![vec![1, 2, 3]]));
}

#[test]
fn a_task_with_another_way_on_is_not_stuck() {
    let cycle = || [task(1, &[&[2]]), task(2, &[&[1]])];
    let free = (vec![], vec![]);
    let change = |change: fn(&mut GraphTask<Key>)| {
        let mut tasks = cycle();
        change(&mut tasks[1]);
        found(&tasks)
    };
    assert_eq!(change(|_| ()), (vec![1, 2], vec![vec![1, 2]]));
    assert_eq!(change(|task| task.is_ready = true), free);
    assert_eq!(change(|task| task.has_wakers = true), free);
    assert_eq!(change(|task| task.has_moved = true), free);
    assert_eq!(change(|task| task.waits[0].ends_by_time = true), free);
    assert_eq!(change(|task| task.waits[0].is_polled = false), free, "it waits for something else");
    assert_eq!(change(|task| task.waits[0].owners = vec![]), free, "its owners are not known");
    assert_eq!(change(|task| task.waits[0].owners.push(9)), free, "the other owner is not known");
    assert_eq!(change(|task| task.waits.push(wait(&[]))), free, "a select with a way on");
    assert_eq!(change(|task| task.waits.push(wait(&[2]))), (vec![1, 2], vec![vec![1, 2]]));
}

#[test]
fn one_owner_that_goes_on_is_enough() {
    let group = |other: GraphTask<Key>| found(&[task(1, &[&[2, 3]]), task(2, &[&[1]]), other]);
    assert_eq!(group(task(3, &[&[]])), (vec![], vec![]));
    assert_eq!(group(task(3, &[&[1]])), (vec![1, 2, 3], vec![vec![1, 2]]));
}

#[test]
fn a_task_that_waits_for_itself_is_not_polled() {
    let tasks = [task(1, &[&[1]]), task(2, &[&[1]])];
    let graph = WaitGraph::new(&tasks);
    assert_eq!((graph.stuck(), graph.deadlocks().len()), (&[1, 2][..], 0));
    let unpolled: Vec<Key> = graph.unpolled().iter().map(|unpolled| *unpolled.task).collect();
    assert_eq!(unpolled, [1]);
}

#[test]
fn a_grant_that_is_not_taken_is_not_polled() {
    let mut tasks = [task(1, &[&[2]]), task(2, &[&[]])];
    tasks[0].waits[0].is_granted = true;
    let graph = WaitGraph::new(&tasks);
    let unpolled: Vec<_> =
        graph.unpolled().iter().map(|found| (*found.task, found.from.key)).collect();
    assert_eq!((unpolled, graph.stuck().len()), (vec![(2, 1)], 0));
    let mut moved = tasks.clone();
    moved[1].has_moved = true;
    assert_eq!(WaitGraph::new(&moved).unpolled(), []);
    tasks[1].is_ready = true;
    assert_eq!(WaitGraph::new(&tasks).unpolled(), []);
}

#[test]
fn the_graph_is_told_in_words() {
    let mut tasks = [
        task(1, &[&[2]]),
        task(2, &[&[1]]),
        task(3, &[&[1]]),
        task(4, &[&[4]]),
        task(5, &[&[6]]),
        task(6, &[&[]]),
    ];
    tasks[0].name = "ada".into();
    tasks[4].waits[0].about = None;
    let graph = WaitGraph::new(&tasks);
    let expected = "\
deadlock: 2 tasks wait for each other, and none of them can go on
  task 1 `ada` waits at a.rs:1:1 for lock
  task 2 waits at a.rs:1:1 for lock
unpolled: task 4 waits for itself: the future that could end the wait is not polled, or is the one that waits
  task 4 waits at a.rs:1:1 for lock
behind them: 1 task that waits for nothing but tasks that cannot go on
  task 3 waits at a.rs:1:1 for lock
waits for tasks that may go on:
  task 5 waits at a.rs:1:1 (park)
";
    assert_eq!(graph.to_string(), expected);
    assert_eq!(WaitGraph::new(&tasks[5..]).to_string(), "");
}

/// Chains of a hundred thousand tasks take no recursion, and no time that grows faster than the
/// chain.
#[test]
fn a_long_chain_is_searched_in_one_pass() {
    const TASKS: Key = 100_000;
    let mut tasks: Vec<_> = (0..TASKS).map(|key| task(key, &[&[(key + 1) % TASKS]])).collect();
    let (stuck, deadlocks) = found(&tasks);
    assert_eq!((stuck.len(), deadlocks.len()), (TASKS as usize, 1));
    tasks[0].is_ready = true;
    assert_eq!(found(&tasks), (vec![], vec![]));
}

/// The number of tasks in random graphs. One more key has no task.
const TASKS: Key = 6;

fn any_wait() -> impl Strategy<Value = GraphWait<Key>> {
    let owners = prop::collection::vec(0..=TASKS, 0..3);
    let flags = (any::<bool>(), prop::bool::weighted(0.9), prop::bool::weighted(0.1));
    (owners, flags).prop_map(|(owners, (is_granted, is_polled, ends_by_time))| {
        // Owners that are not known are rare, so that there are stuck tasks.
        let owners = if owners.len() == 2 {
            owners
        } else {
            vec![owners.first().map_or(0, |key| key % TASKS)]
        };
        GraphWait { is_granted, is_polled, ends_by_time, ..wait(&owners) }
    })
}

fn any_tasks() -> impl Strategy<Value = Vec<GraphTask<Key>>> {
    let rare = || prop::bool::weighted(0.05);
    let flags = (rare(), rare(), rare());
    let one = (prop::collection::vec(any_wait(), 1..3), flags);
    prop::collection::vec(one, TASKS as usize).prop_map(|tasks| {
        let number = |(key, (waits, (is_ready, has_wakers, has_moved)))| GraphTask {
            is_ready,
            has_wakers,
            has_moved,
            waits,
            ..task(key, &[])
        };
        (0..).zip(tasks).map(number).collect()
    })
}

/// Whether none of a set's tasks can go on unless another one of the set does.
fn is_stuck(set: &BTreeSet<Key>, tasks: &[GraphTask<Key>]) -> bool {
    set.iter().all(|key| {
        let task = &tasks[*key as usize];
        let polled: Vec<_> = task.waits.iter().filter(|wait| wait.is_polled).collect();
        let leads_in = |wait: &&GraphWait<Key>| {
            !wait.ends_by_time
                && !wait.owners.is_empty()
                && wait.owners.iter().all(|owner| set.contains(owner))
        };
        let is_free = task.is_ready || task.has_wakers || task.has_moved;
        !is_free && !polled.is_empty() && polled.iter().all(leads_in)
    })
}

/// The tasks that a stuck set of any size has.
fn naively_stuck(tasks: &[GraphTask<Key>]) -> BTreeSet<Key> {
    let set = |bits: u32| (0..TASKS).filter(|key| bits & 1 << key != 0).collect::<BTreeSet<Key>>();
    (0..1 << TASKS).map(set).filter(|set| is_stuck(set, tasks)).flatten().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_agree_with_the_definition(tasks in any_tasks()) {
        let graph = WaitGraph::new(&tasks);
        let stuck = naively_stuck(&tasks);
        prop_assert_eq!(graph.stuck(), stuck.iter().copied().collect::<Vec<_>>());

        let has_edge = |from: Key, to: Key| {
            graph.edges().iter().any(|edge| edge.from.key == from && *edge.to == to)
        };
        let mut found = BTreeSet::new();
        for cycle in graph.deadlocks() {
            prop_assert!(cycle.len() > 1);
            prop_assert_eq!(cycle.iter().min(), cycle.first());
            for (from, to) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
                prop_assert!(has_edge(*from, *to) && stuck.contains(from));
                prop_assert!(found.insert(*from), "a task is in one cycle");
            }
        }
        for unpolled in graph.unpolled() {
            let waits_for_itself = *unpolled.task == unpolled.from.key;
            prop_assert!(unpolled.wait.is_granted || waits_for_itself && stuck.contains(unpolled.task));
            if waits_for_itself {
                found.insert(*unpolled.task);
            }
        }
        // Each stuck task leads to one of the findings.
        let mut left = stuck;
        while let Some(key) = left.iter().copied().find(|key| {
            found.contains(key) || found.iter().any(|to| has_edge(*key, *to))
        }) {
            left.remove(&key);
            found.insert(key);
        }
        prop_assert!(left.is_empty(), "{:?} lead nowhere", left);
        prop_assert!(!graph.to_string().contains("deadlock: 1 "));
    }
}

/// The graph of a kernel's tasks, after an inspection.
fn graph_of<C: Clock + 'static>(kernel: &Kernel<C>) -> Vec<GraphTask<u64>> {
    kernel.inspect();
    kernel.run(async { yield_now().await.unwrap() });
    tasks_of(kernel)
}

/// The tasks of a kernel as the last inspection has left them.
fn tasks_of<C: Clock + 'static>(kernel: &Kernel<C>) -> Vec<GraphTask<u64>> {
    kernel
        .enter(|| kernel.tasks().iter().map(|task| GraphTask::of(task, |id| id.0)).collect())
        .unwrap()
}

/// Starts a task with a name.
fn named(name: &str, future: impl Future<Output = ()> + 'static) -> u64 {
    let task = Builder::new().name(name).spawn(future);
    let id = task.id().0;
    task.detach();
    id
}

/// Locks one mutex, and then waits for another one.
async fn lock_both(one: Rc<Mutex<()>>, other: Rc<Mutex<()>>) {
    let _one = one.lock().await.unwrap();
    sleep(ms(1)).await.unwrap();
    let _other = other.lock().await.unwrap();
}

#[test]
fn a_deadlock_of_two_mutexes_is_found() {
    let kernel = kernel();
    let (ada, bob, group) = kernel.run(async {
        let a = Rc::new(Mutex::new(()).named("a"));
        let b = Rc::new(Mutex::new(()).named("b"));
        let ada = named("ada", lock_both(a.clone(), b.clone()));
        let bob = named("bob", lock_both(b, a.clone()));
        // The group waits for its member, and the member for the deadlock.
        let group = named("group", async move {
            let mut group = TaskGroup::new();
            group.spawn(async move { drop(a.lock().await) });
            group.join_all().await.unwrap();
        });
        sleep(ms(10)).await.unwrap();
        (ada, bob, group)
    });
    let tasks = graph_of(&kernel);
    let graph = WaitGraph::new(&tasks);
    assert_eq!(graph.deadlocks(), [[ada, bob]]);
    assert_eq!(graph.stuck(), [ada, bob, group, group + 1]);
    let text = graph.to_string();
    for part in [
        format!("task {ada} `ada` waits at {}:", file!()),
        format!("for mutex `b`, held by task {bob} `bob` since {}:", file!()),
        "behind them: 2 tasks".into(),
        format!("for task group made at {}:", file!()),
    ] {
        assert!(text.contains(&part), "{part} in:\n{text}");
    }
}

#[test]
fn a_deadline_makes_a_cycle_end() {
    let kernel = kernel();
    kernel.run(async {
        let a = Rc::new(Mutex::new(()));
        let b = Rc::new(RwLock::new(()));
        let (one, other) = (a.clone(), b.clone());
        named("one", async move {
            let _one = one.lock().await.unwrap();
            sleep(ms(1)).await.unwrap();
            let _ = timeout_after(ms(1000), async { drop(other.write().await) }).await;
        });
        named("other", async move {
            let _one = b.write().await.unwrap();
            sleep(ms(1)).await.unwrap();
            let _other = a.lock().await.unwrap();
        });
        sleep(ms(10)).await.unwrap();
    });
    let tasks = graph_of(&kernel);
    let graph = WaitGraph::new(&tasks);
    assert_eq!((graph.edges().len(), graph.stuck().len()), (2, 0), "{graph}");
}

/// One of two tasks in a cycle has a branch with a deadline, and no wait inside.
fn cycle_with_branch(branch: impl Future<Output = ()> + 'static) -> Vec<GraphTask<u64>> {
    let kernel = kernel();
    kernel.run(async {
        let (a, b) = (Rc::new(Mutex::new(())), Rc::new(Mutex::new(())));
        let (one, other) = (a.clone(), b.clone());
        named("one", async move {
            let _one = one.lock().await.unwrap();
            sleep(ms(1)).await.unwrap();
            join(async { drop(other.lock().await) }, branch).await;
        });
        named("other", lock_both(b, a));
        sleep(ms(10)).await.unwrap();
    });
    graph_of(&kernel)
}

#[test]
fn a_deadline_around_a_foreign_future_makes_a_cycle_end() {
    let in_time = || async { assert!(timeout_after(ms(1000), pending::<()>()).await.is_err()) };
    let foreign = "foreign future in a scope with a deadline";
    let waits_of = |tasks: &[GraphTask<u64>]| -> Vec<(bool, bool)> {
        let waits = tasks.iter().flat_map(|task| task.waits.clone());
        let waits = waits.filter(|wait| wait.about.as_deref() == Some(foreign));
        waits.map(|wait| (wait.is_polled, wait.ends_by_time)).collect()
    };
    let tasks = cycle_with_branch(in_time());
    assert_eq!(waits_of(&tasks), [(true, true)], "{tasks:#?}");
    assert_eq!(WaitGraph::new(&tasks).stuck().len(), 0);

    // With the waker of a combinator.
    let tasks = cycle_with_branch(async move {
        let mut branches: FuturesUnordered<_> = [in_time(), in_time()].into_iter().collect();
        while branches.next().await.is_some() {}
    });
    assert_eq!(waits_of(&tasks), [(true, true), (true, true)], "{tasks:#?}");
    assert_eq!(WaitGraph::new(&tasks).stuck().len(), 0);

    // The wait inside shows the deadline already, and a shield inside hides it.
    let tasks = cycle_with_branch(async {
        let _ = timeout_after(ms(1000), sleep(ms(2000))).await;
    });
    assert_eq!(waits_of(&tasks), []);
    let tasks = cycle_with_branch(async {
        let _ = timeout_after(ms(1000), shield(pending::<()>())).await;
    });
    assert_eq!(waits_of(&tasks), []);
    assert_eq!(WaitGraph::new(&tasks).deadlocks().len(), 1);
}

/// Each task is inspected in its own step. The waiter tells the holder before the holder releases
/// the lock and joins the waiter; the next holder takes the lock later still.
#[test]
fn tasks_that_go_on_during_a_look_are_no_deadlock() {
    let kernel = kernel();
    let (holder, taker, waiter) = kernel.run(async {
        let lock = Rc::new(Mutex::new(()));
        let (of_holder, of_taker, of_waiter) = (lock.clone(), lock.clone(), lock);
        let release = Rc::new(Event::new());
        let released = release.clone();
        let joined = Rc::new(Cell::new(None));
        let joins = joined.clone();
        let holder = named("holder", async move {
            let held = of_holder.lock().await.unwrap();
            released.wait().await.unwrap();
            drop(held);
            let waiter: Task<()> = joins.take().unwrap();
            waiter.await.unwrap();
        });
        yield_now().await.unwrap();
        let taker = named("taker", async move {
            let _held = of_taker.lock().await.unwrap();
            sleep(ms(1000)).await.unwrap();
        });
        yield_now().await.unwrap();
        let waiter = spawn(async move { drop(of_waiter.lock().await) });
        let waiter_id = waiter.id().0;
        joined.set(Some(waiter));
        yield_now().await.unwrap();
        // The waiter is the first to be polled.
        let tasks = tasks_from(0, 100).tasks;
        let find = |id: u64| tasks.iter().find(|task| task.id().0 == id).unwrap();
        find(waiter_id).inspect();
        find(taker).inspect();
        find(holder).inspect();
        release.set();
        for _ in 0..3 {
            yield_now().await.unwrap();
        }
        (holder, taker, waiter_id)
    });
    let found = tasks_of(&kernel);
    let moved: Vec<_> = found.iter().filter(|task| task.has_moved).map(|task| task.key).collect();
    assert_eq!(moved, [holder, taker]);
    let graph = WaitGraph::new(&found);
    assert!(graph.edges().iter().any(|edge| (edge.from.key, *edge.to) == (waiter, holder)));
    assert!(graph.edges().iter().any(|edge| (edge.from.key, *edge.to) == (holder, waiter)));
    assert_eq!((graph.stuck().len(), graph.unpolled().len()), (0, 0), "{graph}");
    // Without the moves, the waits told at different moments make a cycle.
    let mut unmoved = found.clone();
    unmoved.iter_mut().for_each(|task| task.has_moved = false);
    assert_eq!(WaitGraph::new(&unmoved).deadlocks().len(), 1);
    // The next look finds the waits as they are.
    let found = graph_of(&kernel);
    assert_eq!(found.iter().filter(|task| task.has_moved).count(), 0);
    assert_eq!(WaitGraph::new(&found).stuck().len(), 0);
}

/// A branch ends with its foreign future, and no wait begins.
#[test]
fn a_branch_that_ends_during_a_look_is_a_move() {
    let kernel = kernel();
    kernel.run(async {
        let (reply, replied) = Reply::channel();
        let task = named("both", async move {
            join(future_wait(replied), pending::<()>()).await.0.unwrap();
        });
        yield_now().await.unwrap();
        let seen = tasks_from(0, 100).tasks.into_iter().find(|seen| seen.id().0 == task).unwrap();
        seen.inspect();
        yield_now().await.unwrap();
        assert!(!seen.has_moved());
        seen.inspect();
        reply.send(());
        yield_now().await.unwrap();
        assert!(seen.has_moved());
    });
}

/// The deadline is outside of the shield, so the wait does not see it.
#[test]
fn a_shield_hides_the_deadline_from_a_cycle() {
    let kernel = kernel();
    kernel.run(async {
        let (a, b) = (Rc::new(Mutex::new(())), Rc::new(Mutex::new(())));
        let in_time = lock_both(a.clone(), b.clone());
        named("one", async move {
            timeout_after(ms(1000), shield(in_time)).await.unwrap();
        });
        named("other", lock_both(b, a));
        sleep(ms(10)).await.unwrap();
    });
    let tasks = graph_of(&kernel);
    assert_eq!(WaitGraph::new(&tasks).deadlocks().len(), 1);
}

/// The owner of a spawner may add a member, whose end ends the wait for the group.
#[test]
fn a_group_with_a_spawner_may_go_on() {
    let kernel = kernel();
    kernel.run(async {
        let lock = Rc::new(Mutex::new(()));
        let spawner = Rc::new(Cell::new(None));
        let shared = spawner.clone();
        let owner = spawn(async move {
            let mut group = TaskGroup::new();
            let held = lock.lock().await.unwrap();
            let locks = lock.clone();
            group.spawn(async move { drop(locks.lock().await) });
            shared.set(Some(group.spawner()));
            group.join_next().await.unwrap();
            drop(held);
        });
        let stuck = async || {
            yield_now().await.unwrap();
            let tasks = tasks_from(0, 100).tasks;
            tasks.iter().for_each(TaskRef::inspect);
            for _ in 0..3 {
                yield_now().await.unwrap();
            }
            let tasks: Vec<_> = tasks.iter().map(|task| GraphTask::of(task, |id| id.0)).collect();
            WaitGraph::new(&tasks).stuck().len()
        };
        assert_eq!(stuck().await, 0);
        let spawns = spawner.take().unwrap();
        let other = spawns.clone();
        drop(spawns);
        assert_eq!(stuck().await, 0);
        drop(other);
        assert_eq!(stuck().await, 2);
        owner.abort();
        owner.await.unwrap_err();
    });
}

/// The grace of the scope drops the shield with the wait.
#[test]
fn a_grace_behind_a_shield_makes_a_cycle_end() {
    let kernel = kernel();
    kernel.run(async {
        let (a, b) = (Rc::new(Mutex::new(())), Rc::new(Mutex::new(())));
        let in_time = lock_both(a.clone(), b.clone());
        named("one", async move {
            let dropped = timeout_after(ms(1000), shield(in_time)).grace(ms(500)).await;
            assert!(dropped.is_err());
        });
        let other = spawn(lock_both(b, a));
        sleep(ms(10)).await.unwrap();
        for task in tasks_from(0, 100).tasks {
            task.inspect();
        }
        for _ in 0..3 {
            yield_now().await.unwrap();
        }
        let tasks: Vec<_> = tasks_from(0, 100).tasks;
        let tasks: Vec<_> = tasks.iter().map(|task| GraphTask::of(task, |id| id.0)).collect();
        let graph = WaitGraph::new(&tasks);
        assert_eq!((graph.edges().len(), graph.stuck().len()), (2, 0), "{graph}");
        other.await.unwrap();
    });
}

/// A future is left behind in the queue of a lock. When the lock is released, that future gets it,
/// and does not run.
#[test]
fn a_granted_lock_that_no_future_takes_is_found() {
    let kernel = kernel();
    let (chooser, waiter) = kernel.run(async {
        let lock = Rc::new(Mutex::new(()).named("m"));
        let (held, of_chooser, of_waiter) = (lock.clone(), lock.clone(), lock);
        let holder = named("holder", async move {
            let _held = held.lock().await.unwrap();
            sleep(ms(5)).await.unwrap();
        });
        assert!(holder > 0);
        yield_now().await.unwrap();
        let chooser = named("chooser", async move {
            let mut left = pin!(of_chooser.lock());
            poll_fn(|cx| Poll::Ready(left.as_mut().poll(cx).is_pending())).await;
            let _again = of_chooser.lock().await.unwrap();
        });
        let waiter = named("waiter", async move { drop(of_waiter.lock().await) });
        sleep(ms(20)).await.unwrap();
        (chooser, waiter)
    });
    let tasks = graph_of(&kernel);
    let graph = WaitGraph::new(&tasks);
    let unpolled: Vec<_> =
        graph.unpolled().iter().map(|found| (*found.task, found.from.key)).collect();
    assert_eq!(unpolled, [(chooser, chooser), (chooser, waiter)], "{graph}");
    assert_eq!(graph.stuck(), [chooser, waiter]);
    let text = graph.to_string();
    let granted = format!("mutex `m`, granted to task {chooser} `chooser`, which has not taken it");
    assert!(text.contains(&granted), "{text}");
}

/// Another future of the task holds the lock, and is not polled any more.
#[test]
fn a_lock_held_by_an_unpolled_future_is_found() {
    let kernel = kernel();
    let chooser = kernel.run(async {
        let lock = Rc::new(Mutex::new(()));
        let chooser = named("chooser", async move {
            let mut left = FuturesUnordered::new();
            left.push(async {
                let _held = lock.lock().await.unwrap();
                sleep(ms(5)).await.unwrap();
            });
            poll_fn(|cx| Poll::Ready(left.poll_next_unpin(cx).is_pending())).await;
            let _own = lock.lock().await.unwrap();
        });
        sleep(ms(20)).await.unwrap();
        chooser
    });
    let tasks = graph_of(&kernel);
    let graph = WaitGraph::new(&tasks);
    assert_eq!((graph.stuck(), graph.unpolled().len()), (&[chooser][..], 1), "{tasks:?}");
}

/// Two branches of one task share a lock, and both are polled.
#[test]
fn branches_that_share_a_lock_go_on() {
    let kernel = kernel();
    kernel.run(async {
        let lock = Rc::new(Mutex::new(()));
        named("both", async move {
            let first = async {
                let _held = lock.lock().await.unwrap();
                sleep(ms(1000)).await.unwrap();
            };
            let second = async { drop(lock.lock().await.unwrap()) };
            join(first, second).await;
        });
        sleep(ms(1)).await.unwrap();
    });
    let tasks = graph_of(&kernel);
    let graph = WaitGraph::new(&tasks);
    assert_eq!((graph.edges().len(), graph.stuck().len()), (1, 0));
}

/// The waits of one task, with their scopes, read inside the kernel.
#[test]
fn waits_of_a_task_have_their_scopes() {
    let kernel = kernel();
    let [task] = kernel.run(async {
        let task = spawn(timeout_after(ms(500), async {
            let queue = Queue::<()>::unbounded();
            let inner = timeout_after(ms(200), queue.get());
            let mut all = FuturesUnordered::new();
            all.push(timeout_after(ms(100), sleep(ms(90))));
            let _ = join(shield(inner), all.next()).await;
        }));
        sleep(ms(1)).await.unwrap();
        [task]
    });
    let waits = |is_inspected: bool| {
        if is_inspected {
            kernel.enter(|| task.task_ref().inspect()).unwrap();
        }
        kernel.run(async { yield_now().await.unwrap() });
        let waits = kernel.enter(|| task.task_ref().waits()).unwrap();
        let shown = waits.iter().map(|wait| {
            let scopes: Vec<String> =
                wait.scopes.iter().map(|scope| format!("{scope:?}")).collect();
            let kinds =
                scopes.iter().map(|scope| scope.split(' ').next().unwrap()).collect::<Vec<_>>();
            let about = wait.about.clone().map_or_else(String::new, String::from);
            format!("{} `{about}` {} ends {}", wait.trap, kinds.join(" "), wait.ends_by_time())
        });
        shown.collect::<Vec<_>>()
    };
    assert_eq!(waits(false), ["park ``  ends false", "sleep ``  ends true"]);
    assert_eq!(
        waits(true),
        [
            "park `queue, length 0` Deadline Shield Deadline ends true",
            "sleep `timer, 89ms left` Deadline Deadline ends true",
        ]
    );
    drop(task);
}

/// A look at many tasks takes no time that grows faster than their number: neither the search for
/// holders, nor that for granted waiters, nor that for the moments of timers.
#[test]
fn a_look_at_many_tasks_takes_one_pass() {
    const TASKS: usize = 30_000;
    let kernel = kernel();
    kernel.run(async {
        let mutex = || Mutex::new(()).named("m");
        let locks: Rc<Vec<_>> = Rc::new((0..TASKS).map(|_| mutex()).collect());
        let popular = Rc::new(mutex());
        let (popular_too, held) = (popular.clone(), popular.clone());
        named("leaves", async move {
            let mut left = pin!(popular_too.lock());
            let lock = held.lock().await.unwrap();
            poll_fn(|cx| Poll::Ready(left.as_mut().poll(cx).is_pending())).await;
            drop(lock);
            let _ = timeout_after(ms(1_000_000), pending::<()>()).await;
        });
        for number in 0..TASKS {
            let (locks, popular) = (locks.clone(), popular.clone());
            spawn(async move {
                let _own = locks[number].lock().await.unwrap();
                yield_now().await.unwrap();
                let mut next = pin!(locks[(number + 1) % TASKS].lock());
                let mut all = pin!(popular.lock());
                let mut slept = pin!(sleep(ms(1_000_000)));
                poll_fn(|cx| {
                    let _ =
                        (next.as_mut().poll(cx), all.as_mut().poll(cx), slept.as_mut().poll(cx));
                    Poll::<()>::Pending
                })
                .await;
            })
            .detach();
        }
        sleep(ms(1)).await.unwrap();
    });
    let mut tasks = graph_of(&kernel);
    let about = |wait: &GraphWait<u64>| wait.about.clone().unwrap();
    let waits: Vec<String> = tasks[TASKS / 2].waits.iter().map(about).collect();
    assert!(waits[0].starts_with("mutex `m`, held by task "), "{waits:?}");
    assert_eq!(
        waits[1..],
        ["mutex `m`, granted to task 2 `leaves`, which has not taken it", "timer, 999.999s left"]
    );
    let unpolled = WaitGraph::new(&tasks).unpolled().len();
    assert_eq!(unpolled, TASKS);
    for task in &mut tasks {
        task.waits.truncate(1);
    }
    assert_eq!(WaitGraph::new(&tasks).deadlocks()[0].len(), TASKS);
}

/// Waits that other tasks do not end: for sockets, threads, foreign futures, moments.
#[test]
fn waits_for_the_outside_tell_what_for() {
    let kernel = Kernel::new().unwrap();
    let (go_on, end) = channel();
    let (local, peer) = kernel.run(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let (accepted, peer) = listener.accept().await.unwrap();
        spawn(async move { drop((listener.accept().await, accepted)) }).detach();
        spawn(async move { drop(stream.read(&mut [0]).await) }).detach();
        spawn(async { drop(future_wait(pending::<u8>()).await) }).detach();
        spawn(async { drop(sleep(Duration::MAX).await) }).detach();
        spawn(async move { drop(run_in_thread(move || end.recv()).await) }).detach();
        spawn(async { drop(KernelHandle::current().call(pending::<u8>).await) }).detach();
        for _ in 0..3 {
            yield_now().await.unwrap();
        }
        (address, peer)
    });
    kernel.inspect();
    kernel.run(async { yield_now().await.unwrap() });
    let about = |task: &TaskRef| task.waits().into_iter().filter_map(|wait| wait.about);
    let abouts =
        kernel.enter(|| kernel.tasks().iter().flat_map(about).collect::<Vec<_>>()).unwrap();
    let abouts: Vec<&str> = abouts.iter().map(|about| about.text()).collect();
    let id = kernel.enter(|| KernelHandle::current().id()).unwrap();
    let closure = "kernel::wait_graph::waits_for_the_outside_tell_what_for::{{closure}}::{{closure}}::{{closure}}";
    let [accept, read, future, timer, thread, call] = *abouts else { panic!("{abouts:?}") };
    assert_eq!(accept, format!("socket {local}, without a peer"));
    assert_eq!(read, format!("socket {peer}, connected to {local}"));
    assert_eq!(future, "future `core::future::pending::Pending<u8>`");
    assert_eq!(timer, "timer that never fires");
    assert!(thread.starts_with(&format!("closure `{closure}`, which ")), "{thread}");
    assert_eq!(call, format!("the result of a call to kernel {id}"));
    go_on.send(()).unwrap();
}

#[test]
fn a_cancelled_task_tells_the_reason() {
    let kernel = kernel();
    kernel.run(async {
        let task = spawn(async { shield(sleep(ms(50))).await });
        yield_now().await.unwrap();
        assert_eq!(task.task_ref().cancel_reason(), None);
        task.request_cancel("enough");
        let reason = task.task_ref().cancel_reason().unwrap();
        assert_eq!(reason.reason(), Some("enough"));
        assert_eq!(task.await.unwrap(), Ok(()));
    });
}
