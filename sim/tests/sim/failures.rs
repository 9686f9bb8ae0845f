//! Reports of failed runs.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, UdpSocket};
use pikake::sim::{Cause, Failure, Network, Runs, Schedule, Sim, always, sometimes};
use pikake::sync::Mutex;
use pikake::task::Builder;
use pikake::{TaskGroup, random, sleep, spawn, yield_now};

const SECOND: Duration = Duration::from_secs(1);

fn failure(set_up: impl FnOnce(&mut Sim)) -> Failure {
    let mut sim = Sim::new(11);
    set_up(&mut sim);
    *sim.run().unwrap_err()
}

#[test]
fn a_deadlock_names_hosts_tasks_traps_and_places() {
    let failure = failure(|sim| {
        sim.host("server", || async {
            let listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 8]).await;
        });
        sim.client("client", || async {
            sleep(SECOND).await.unwrap();
            let stream = TcpStream::connect("server:7").await.unwrap();
            let reader = spawn(async move { stream.read(&mut [0; 8]).await });
            let _ = reader.await;
        });
    });
    assert_eq!(failure.cause, Cause::Deadlock);
    assert_eq!(failure.time.as_secs(), 1, "a connection's time limit is waited for by nobody");
    let text = failure.to_string();
    for expected in [
        "seed 11, at 1.",
        "replay:  PIKAKE_SEED=11 cargo test",
        "host `server` runs",
        "task 1 `client`",
        "waits: join at sim/tests/sim/failures.rs:",
        "waits: read_wait at sim/tests/sim/failures.rs:",
        "server: receives established from client",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
}

/// Two tasks of a host that lock two mutexes in opposite order, beside `other`.
fn deadlock<F: Future<Output = ()> + 'static>(sim: &mut Sim, other: fn() -> F) {
    sim.client("bank", move || async move {
        let a = Rc::new(Mutex::new(()).named("a"));
        let b = Rc::new(Mutex::new(()).named("b"));
        let lock_both = |first: &Rc<Mutex<()>>, second: &Rc<Mutex<()>>| {
            let (first, second) = (first.clone(), second.clone());
            async move {
                let _first = first.lock().await.unwrap();
                sleep(SECOND).await.unwrap();
                let _second = second.lock().await.unwrap();
            }
        };
        let mut group = TaskGroup::new();
        group.spawn_named("ada", lock_both(&a, &b));
        group.spawn_named("bob", lock_both(&b, &a));
        group.spawn(other());
        group.join_all().await.unwrap();
    });
}

#[test]
fn a_deadlock_is_told_with_its_locks_and_holders() {
    let failure = failure(|sim| deadlock(sim, || async {}));
    assert_eq!(failure.cause, Cause::Deadlock);
    let waits: Vec<&str> =
        failure.waits.lines().map(|line| line.split(" at sim/tests").next().unwrap()).collect();
    assert_eq!(
        waits,
        [
            "  deadlock: 2 tasks wait for each other, and none of them can go on",
            "    task 2 of host `bank` `ada` waits",
            "    task 3 of host `bank` `bob` waits",
            "  behind them: 1 task that waits for nothing but tasks that cannot go on",
            "    task 1 of host `bank` `bank` waits",
        ],
        "{failure}"
    );
    for part in [
        "for mutex `b`, held by task 3 `bob` since sim/tests/sim/failures.rs:",
        "for mutex `a`, held by task 2 `ada` since sim/tests/sim/failures.rs:",
        "for task group made at sim/tests/sim/failures.rs:",
    ] {
        assert!(failure.waits.contains(part), "{part} in {failure}");
    }
}

/// A future whose first poll is pending.
async fn pending_once(then: fn()) {
    let mut is_first = true;
    poll_fn(|_| if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
    then();
}

/// The tasks of the failed world are polled again, for their waits. One of them panics then, and
/// another one ends.
#[test]
fn polls_for_the_report_may_panic() {
    let failure = failure(|sim| {
        deadlock(sim, || async {
            spawn(pending_once(|| panic!("this panic is part of the test"))).detach();
            pending_once(|| ()).await;
        });
    });
    assert_eq!(failure.cause, Cause::Deadlock);
    assert!(failure.waits.contains("for mutex `b`, held by task 3 `bob`"), "{failure}");
    assert!(failure.tasks.contains("task 5 of"), "as it was before: {failure}");
}

/// A task that never ends keeps the world alive, and does not hide the deadlock.
#[test]
fn a_deadlock_is_told_when_the_time_is_over() {
    let failure = failure(|sim| {
        sim.time_limit(60 * SECOND);
        deadlock(sim, || async { while sleep(SECOND).await.is_ok() {} });
    });
    assert_eq!(failure.cause, Cause::TimeLimit(60 * SECOND));
    assert!(failure.waits.contains("deadlock: 2 tasks wait for each other"), "{failure}");
    assert!(failure.waits.contains("waits for tasks that may go on:"), "{failure}");
}

#[test]
fn reports_say_why_a_datagram_did_not_arrive() {
    let report = |port: u16, loss: f64| {
        failure(|sim| {
            let mut network = Network::default();
            network.link.loss = loss;
            sim.network(network).host("server", || async {
                let socket = UdpSocket::bind("0.0.0.0:9").await.unwrap();
                drop(socket.recv(&mut [0; 2]).await);
            });
            sim.client("client", move || async move {
                let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
                socket.send_to(b"hi", ("server", port)).await.unwrap();
                sleep(SECOND).await.unwrap();
                Err::<(), _>("no answer")
            });
        })
        .to_string()
    };
    let is_there = |report: &str, why: &str| {
        report.contains(&format!("server: does not receive a datagram from client: {why}\n"))
    };
    let lost = report(9, 1.0);
    assert!(is_there(&lost, "lost by the link"), "{lost}");
    let unwanted = report(10, 0.0);
    assert!(is_there(&unwanted, "nobody receives there"), "{unwanted}");
}

#[test]
fn panics_errors_and_broken_invariants_are_failures() {
    let panicked = failure(|sim| {
        sim.client("a", || async { panic!("this panic is part of the test") });
    });
    assert!(matches!(panicked.cause, Cause::Panicked { ref text, .. } if text.contains("part of")));
    let in_a_task = failure(|sim| {
        sim.client("a", || async {
            spawn(async { panic!("this panic is part of the test") }).detach();
            sleep(SECOND).await.unwrap();
        });
    });
    assert!(matches!(in_a_task.cause, Cause::Panicked { ref task, .. } if task.contains("task 2")));
    let failed = failure(|sim| {
        sim.client("a", || async { Err::<(), _>("it did not work") });
    });
    assert!(failed.cause.to_string().contains("it did not work"));
    let broken = failure(|sim| {
        let count = Rc::new(Cell::new(0));
        let counted = count.clone();
        sim.client("a", move || {
            let count = count.clone();
            async move {
                loop {
                    count.set(count.get() + 1);
                    sleep(SECOND).await.unwrap();
                }
            }
        });
        sim.invariant("few", move || assert!(counted.get() < 4, "this panic is part of the test"));
    });
    assert!(matches!(broken.cause, Cause::Invariant { ref name, .. } if name == "few"));
    assert_eq!(broken.time.as_secs(), 3);
}

#[test]
fn endless_run_is_ended_with_a_failure() {
    let spins = failure(|sim| {
        sim.client("a", || async { while yield_now().await.is_ok() {} }).step_limit(1_000);
    });
    assert_eq!(spins.cause, Cause::StepLimit(1_000));
    let sleeps = failure(|sim| {
        sim.client("a", || async { while sleep(SECOND).await.is_ok() {} }).time_limit(SECOND * 60);
    });
    assert_eq!((sleeps.cause, sleeps.time), (Cause::TimeLimit(SECOND * 60), SECOND * 60));
    let mut serves = Sim::new(1);
    serves.host("a", || async { while sleep(SECOND).await.is_ok() {} }).stop_after(SECOND * 60);
    assert_eq!(serves.run().unwrap().time, SECOND * 60);
}

#[test]
fn run_without_recovery_fails_liveness() {
    let world = |sim: &mut Sim, gives_up: bool| {
        let connected = Rc::new(Cell::new(false));
        let seen = connected.clone();
        sim.host("server", || async {
            let listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
            while listener.accept().await.is_ok() {}
        });
        sim.host("client", move || {
            let connected = connected.clone();
            async move {
                while TcpStream::connect("server:7").await.is_err() && !gives_up {}
                connected.set(!gives_up);
                sleep(SECOND * 10_000).await.unwrap();
            }
        });
        sim.faults("0s isolate server".parse().unwrap());
        sim.heal_and_expect(SECOND * 200, SECOND * 60, "connected", move || seen.get());
        sim.stop_after(SECOND * 1_000);
    };
    let failed = failure(|sim| world(sim, true));
    assert!(matches!(failed.cause, Cause::Liveness { ref what, .. } if what == "connected"));
    assert_eq!(failed.time.as_secs(), 260);
    let mut sim = Sim::new(1);
    world(&mut sim, false);
    sim.run().unwrap();
}

#[test]
fn run_that_differs_on_replay_is_reported() {
    let outside = Rc::new(Cell::new(0));
    let runs = Runs::new("leaky").seeds(1).check_determinism();
    let failure = runs.try_run(move |sim| {
        let outside = outside.clone();
        sim.client("a", move || {
            outside.set(outside.get() + 1);
            let leaked = outside.get();
            async move { sleep(SECOND * leaked).await.unwrap() }
        });
    });
    let failure = failure.unwrap_err();
    let Cause::Differs { first, second, .. } = &failure.cause else { panic!("{failure}") };
    assert!(first.contains("1.00000") && second.contains("2.00000"), "{failure}");
}

#[test]
fn rare_order_is_found_and_replayed() {
    // Two tasks take two locks, each in its own order; round-robin, one is always late enough.
    let set_up = |sim: &mut Sim| {
        sim.client("a", || async {
            let locks = Rc::new((Mutex::new(()), Mutex::new(())));
            let other = locks.clone();
            let task = spawn(async move {
                yield_now().await.unwrap();
                yield_now().await.unwrap();
                let _first = other.1.lock().await.unwrap();
                yield_now().await.unwrap();
                let _second = other.0.lock().await.unwrap();
            });
            let first = locks.0.lock().await.unwrap();
            yield_now().await.unwrap();
            let second = locks.1.lock().await.unwrap();
            drop((first, second));
            task.await.unwrap();
        });
        sim.schedule(Schedule::Random);
    };
    let fair = |sim: &mut Sim| {
        set_up(sim);
        sim.schedule(Schedule::Fifo);
    };
    Runs::new("locks").seeds(20).try_run(fair).unwrap();
    let found = Runs::new("locks").seeds(100).try_run(set_up).unwrap_err();
    assert_eq!(found.cause, Cause::Deadlock);
    let test = "failures::rare_order_is_found_and_replayed";
    assert_eq!(found.replay(), format!("PIKAKE_SEED={} cargo test {test}", found.seed));
    let mut again = Sim::new(found.seed);
    set_up(&mut again);
    assert_eq!(
        again.run().unwrap_err().to_string(),
        found.to_string().replace(&format!(" {test}\n"), "\n")
    );
}

/// Whether a task begins at once is the seed's choice, except in order.
#[test]
fn a_task_begins_at_once_by_some_seeds() {
    let begun = |seed, schedule| {
        let mut sim = Sim::new(seed);
        sim.schedule(schedule);
        let begun = Rc::new(Cell::new(false));
        let is_begun = begun.clone();
        sim.client("a", move || {
            let is_begun = is_begun.clone();
            async move {
                let task = Builder::new().eager().spawn(async {});
                is_begun.set(task.is_finished());
                task.await.unwrap();
            }
        });
        sim.run().unwrap();
        begun.get()
    };
    let count = |schedule| (0..64).filter(|seed| begun(*seed, schedule)).count();
    assert_eq!(count(Schedule::Fifo), 64);
    for schedule in [Schedule::Random, Schedule::Priorities { changes: 3 }] {
        assert!((16..48).contains(&count(schedule)), "{schedule:?}: {}", count(schedule));
        assert_eq!(begun(5, schedule), begun(5, schedule));
    }
}

#[test]
fn observed_states_are_counted_over_all_seeds() {
    let both = |sim: &mut Sim| {
        sim.client("b", || async {
            let mut counts = HashMap::new();
            *counts.entry(random::range(0..4)).or_insert(0) += 1;
            sometimes!(counts.contains_key(&3), "a three");
            sometimes!(counts.is_empty(), "never");
            always!(counts.len() == 1, "one");
        });
    };
    let summary = Runs::new("coverage").seeds(40).run(both);
    assert_eq!(summary.coverage.never().count(), 1);
    assert!(summary.coverage.to_string().starts_with("sometimes: 1 of 2 seen; always: 1 held"));
}

#[test]
fn unreached_expectation_fails() {
    let dice = |sim: &mut Sim| {
        sim.client("player", || async {
            match random::range(1..7) {
                6 => sometimes!(true, "a six"),
                7.. => sometimes!(true, "a seven"),
                _ => {}
            }
        });
    };
    let runs = || Runs::new("dice").seeds(40);
    runs().expect(["a six"]).need_coverage().run(dice);
    let summary = runs().expect(["a six", "a seven"]).try_run(dice).unwrap();
    assert_eq!(
        summary.coverage.to_string(),
        "sometimes: 1 of 2 seen; always: 0 held\n  never seen: `a seven`, which was never reached"
    );
    let panicked = std::panic::catch_unwind(|| runs().expect(["a seven"]).run(dice));
    let text = *panicked.unwrap_err().downcast::<String>().unwrap();
    assert!(text.starts_with("dice: something was never seen\nsometimes: 1 of 2"), "{text}");
}
