//! Programs in planted states: what the console tells of them.

use std::time::Duration;

use pikake::console::model::State;
use pikake::console::protocol::Request;
use pikake::sync::Mutex;
use pikake::{future_wait, shield, sleep, timeout_after, yield_now};

use super::{Program, eventually, key, named, ready, refusal};
use crate::support::child::is_child;
use crate::support::named as spawn_named;

const HOUR: Duration = Duration::from_secs(3_600);

#[pikake::main(console)]
async fn some_tasks() {
    let parent = spawn_named("parent", async {
        let child = spawn_named("child", async { sleep(HOUR).await });
        let _ = child.await;
    });
    let lock = std::rc::Rc::new(Mutex::new(()));
    let holder = lock.clone();
    spawn_named("holder", async move {
        let _guard = holder.lock().await.unwrap();
        let _ = timeout_after(HOUR, shield(sleep(2 * HOUR))).await;
    })
    .detach();
    yield_now().await.unwrap();
    spawn_named("waiter", async move { lock.lock().await.map(drop) }).detach();
    spawn_named("foreign", async { future_wait(std::future::pending::<()>()).await }).detach();
    parent.detach();
    ready().await;
}

#[test]
fn tasks_are_listed_with_parents() {
    if is_child("served::states::tasks_are_listed_with_parents") {
        return some_tasks();
    }
    let program = Program::start("states::tasks_are_listed_with_parents");
    let answer = program.ask(&Request::Tasks { waits: false });
    assert_eq!(answer.kernels.len(), 1, "{answer:?}");
    let kernel = &answer.kernels[0];
    assert_eq!((kernel.stuck.as_ref(), kernel.stale), (None, None));
    let main = named(&answer, "some_tasks");
    let parent = named(&answer, "parent");
    let child = named(&answer, "child");
    assert_eq!((main.parent, parent.parent), (None, Some(main.id)));
    assert_eq!(child.parent, Some(parent.id));
    assert_eq!(child.state, State::Waiting);
    assert_eq!(child.waits[0].trap, "sleep");
    assert!(child.waits[0].place.contains("states.rs"), "{child:?}");
    assert!(child.spawned_at.contains("support/mod.rs"), "{child:?}");
    assert!(child.future.contains("some_tasks") && child.bytes > 0, "{child:?}");
    assert!(child.steps > 0 && child.since.is_some(), "{child:?}");
    program.finish();
}

/// `where` and `waits`: things, owners and scopes.
#[test]
fn waits_tell_things_owners_and_scopes() {
    if is_child("served::states::waits_tell_things_owners_and_scopes") {
        return some_tasks();
    }
    let program = Program::start("states::waits_tell_things_owners_and_scopes");
    let mut client = program.client();
    let answer = super::ask(&mut client, &Request::Waits);
    let (holder, waiter) = (named(&answer, "holder"), named(&answer, "waiter"));
    let wait = &waiter.waits[0];
    let about = wait.about.as_deref().unwrap();
    assert!(about.contains("held by task"), "{about}");
    assert_eq!(wait.owners, [holder.id]);
    let scopes = &holder.waits[0].scopes;
    assert_eq!(scopes.len(), 2, "{holder:?}");
    assert_eq!((scopes[0].left, scopes[0].set_at.as_deref()), (None, None), "the shield");
    let left = Duration::from_nanos(scopes[1].left.unwrap().try_into().unwrap());
    // The look and the deadline are of two moments, and of two readings of the clock.
    assert!(HOUR / 2 < left && left < HOUR + HOUR / 1_000, "{left:?}");
    assert!(scopes[1].set_at.as_deref().unwrap().contains("states.rs"));
    let graph = answer.graph.as_ref().unwrap();
    assert!(graph.edges.iter().any(|edge| (edge.from, edge.to) == (waiter.id, holder.id)));
    assert!(graph.deadlocks.is_empty() && graph.unpolled.is_empty(), "{graph:?}");

    let one = super::ask(&mut client, &Request::Task { task: waiter.id });
    assert_eq!(one.tasks.len(), 1);
    assert_eq!((one.tasks[0].id, &one.tasks[0].waits), (waiter.id, &waiter.waits));
    let why = refusal(&mut client, &Request::Task { task: key(waiter.id.kernel, 1 << 40) });
    assert!(why.contains("there is no task"), "{why}");
    let why = refusal(&mut client, &Request::Task { task: key(1 << 30, 1) });
    assert!(why.contains("there is no kernel"), "{why}");
    program.finish();
}

#[pikake::main(console)]
async fn deadlock() {
    let locks = std::rc::Rc::new((Mutex::new(()), Mutex::new(())));
    let other = locks.clone();
    spawn_named("one", async move {
        let _first = locks.0.lock().await.unwrap();
        yield_now().await.unwrap();
        let _second = locks.1.lock().await;
    })
    .detach();
    spawn_named("other", async move {
        let _first = other.1.lock().await.unwrap();
        yield_now().await.unwrap();
        let _second = other.0.lock().await;
    })
    .detach();
    for _ in 0..3 {
        yield_now().await.unwrap();
    }
    ready().await;
}

#[test]
fn deadlocks_are_found() {
    if is_child("served::states::deadlocks_are_found") {
        return deadlock();
    }
    let program = Program::start("states::deadlocks_are_found");
    let answer = program.ask(&Request::Waits);
    let (one, other) = (named(&answer, "one").id, named(&answer, "other").id);
    assert_eq!(answer.graph.as_ref().unwrap().deadlocks, [[one, other]]);
    program.finish();
}

#[pikake::main(console, threads = 2)]
async fn two_kernels() {
    for kernel in pikake::other_kernels() {
        let spawned = kernel.call(|| async {
            spawn_named("elsewhere", async { sleep(HOUR).await }).detach();
        });
        spawned.await.unwrap();
    }
    spawn_named("here", async { sleep(HOUR).await }).detach();
    ready().await;
}

#[test]
fn all_kernels_are_shown() {
    if is_child("served::states::all_kernels_are_shown") {
        return two_kernels();
    }
    let program = Program::start("states::all_kernels_are_shown");
    let mut client = program.client();
    let kernels = super::ask(&mut client, &Request::Kernels).kernels;
    assert_eq!(kernels.len(), 2, "the console's own kernel is not shown: {kernels:?}");
    assert!(kernels[0].id < kernels[1].id);
    assert!(kernels.iter().any(|kernel| kernel.thread == "pikake-1"), "{kernels:?}");
    #[cfg(target_os = "linux")]
    assert!(kernels.iter().all(|kernel| kernel.tid.is_some()), "{kernels:?}");
    // On a busy machine a kernel may answer too late for a listing.
    let answer = eventually(|| {
        let answer = super::ask(&mut client, &Request::Tasks { waits: true });
        let has = |name: &str| answer.tasks.iter().any(|task| task.name == name);
        (has("here") && has("elsewhere")).then_some(answer)
    });
    let (here, elsewhere) = (named(&answer, "here"), named(&answer, "elsewhere"));
    assert_ne!(here.id.kernel, elsewhere.id.kernel);
    let stats = eventually(|| {
        let stats = super::ask(&mut client, &Request::Stats);
        (stats.stats.len() == 2).then_some(stats)
    });
    assert!(stats.stats.iter().all(|stats| stats.tasks >= 2 && stats.timers >= 1), "{stats:?}");
    program.finish();
}

#[test]
fn stats_have_figures_of_the_process() {
    if is_child("served::states::stats_have_figures_of_the_process") {
        return some_tasks();
    }
    let program = Program::start("states::stats_have_figures_of_the_process");
    let answer = program.ask(&Request::Stats);
    let process = answer.process.unwrap();
    #[cfg(target_os = "linux")]
    {
        let bytes = process.resident_bytes.unwrap();
        assert!((1 << 20..1 << 34).contains(&bytes), "{process:?}");
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", program.child.id())).unwrap();
        // The client's descriptor may be closed by now.
        let differ = process.descriptors.unwrap().abs_diff(descriptors.count() as u64);
        assert!(differ <= 1, "{process:?}");
        assert!(process.threads.unwrap() >= 3, "{process:?}");
    }
    assert!(process.descriptor_limit.is_none_or(|limit| limit >= 64), "{process:?}");
    let kernel = &answer.stats[0];
    assert_eq!((kernel.tasks, kernel.spawned), (6, 6), "{kernel:?}");
    assert!(kernel.steps > 0 && kernel.timers >= 2 && kernel.messages > 0, "{kernel:?}");
    let tasks = program.ask(&Request::Tasks { waits: false }).tasks;
    let bytes: u64 = tasks.iter().map(|task| task.bytes).sum();
    assert!(bytes > 0 && kernel.future_bytes == bytes, "{kernel:?} {tasks:?}");
    program.finish();
}

/// Steps are timed while a connection asks for it, and not afterwards.
#[test]
fn time_lasts_as_long_as_the_connection() {
    if is_child("served::states::time_lasts_as_long_as_the_connection") {
        return timed_steps();
    }
    let program = Program::start("states::time_lasts_as_long_as_the_connection");
    let mut client = program.client();
    let busy = |client: &mut pikake::console::client::Client| {
        let answer = super::ask(client, &Request::Tasks { waits: false });
        named(&answer, "busy").busy
    };
    assert!(client.ask(&Request::Time).unwrap().is_empty());
    let first = busy(&mut client);
    super::eventually(|| (busy(&mut client) > first).then_some(()));
    drop(client);
    let mut client = program.client();
    // The end of the connection reaches the kernel a moment later.
    super::eventually(|| {
        let before = busy(&mut client);
        std::thread::sleep(Duration::from_millis(50));
        (busy(&mut client) == before).then_some(())
    });
    program.finish();
}

#[pikake::main(console)]
async fn timed_steps() {
    spawn_named("busy", async { while sleep(Duration::from_millis(1)).await.is_ok() {} }).detach();
    ready().await;
}

/// Two tasks hand two locks around, and a listing reaches one of them long before the other.
#[pikake::main(console)]
async fn locks_are_handed_around() {
    const BETWEEN: usize = 1_000;
    let locks = std::rc::Rc::new([Mutex::new(()), Mutex::new(())]);
    let task = |first: usize| {
        let locks = locks.clone();
        // Each waits for the other's lock, and never while it has the lock that the other waits
        // for.
        async move {
            for turn in first.. {
                let _guard = locks[turn % 2].lock().await.unwrap();
                sleep(Duration::from_micros(300)).await.unwrap();
            }
        }
    };
    spawn_named("first", task(0)).detach();
    for _ in 0..BETWEEN {
        pikake::spawn(async { sleep(HOUR).await }).detach();
    }
    spawn_named("last", task(0)).detach();
    ready().await;
    std::process::exit(0);
}

#[test]
fn locks_that_go_around_are_no_deadlock() {
    if is_child("served::states::locks_that_go_around_are_no_deadlock") {
        return locks_are_handed_around();
    }
    let program = Program::start("states::locks_that_go_around_are_no_deadlock");
    let mut client = program.client();
    for _ in 0..20 {
        let graph = super::ask(&mut client, &Request::Waits).graph.unwrap();
        assert!(graph.deadlocks.is_empty(), "{graph:?}");
    }
}
