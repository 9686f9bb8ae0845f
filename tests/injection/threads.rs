//! Closures, objects and programs in other threads: nothing is lost, done twice, or left behind.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use pikake::task::ordered_map;
use pikake::testing::Injector;
use pikake::thread::{
    ThreadProxy, block_on, in_thread, run_in_thread, run_in_thread_with, spawn_thread,
};
use pikake::{Interrupted, TaskError, TaskGroup, sleep};

use crate::support::insist::{Insistent, THREADS, a_few_steps, insist_inside, insist_outside, ms};

/// A thread may have answered in the moment of an interruption, which is told by the wait after
/// that.
async fn last_wait(insistent: &Insistent) {
    insistent.on(|| sleep(ms(1))).await;
}

#[test]
fn closures_in_threads() {
    insist_outside((7, 8), async |insistent| {
        let seven = insistent.on(|| run_in_thread(|| 7)).await;
        let eight = insistent.on(|| run_in_thread_with(|_| 8).on_cancel(|| ())).await;
        last_wait(insistent).await;
        (seven, eight)
    });
}

#[test]
fn interrupted_call_runs_at_most_once() {
    let program = || async {
        let done = Arc::new(AtomicUsize::new(0));
        let mut told = 0;
        let mut given = 0;
        for _ in 0..3 {
            let done = done.clone();
            match run_in_thread(move || done.fetch_add(1, Ordering::SeqCst)).await {
                Ok(_) => given += 1,
                Err(TaskError::Interrupted(_)) => told += 1,
                Err(error) => panic!("{error}"),
            }
        }
        // Behind all others in line, if there is one.
        while Arc::strong_count(&done) > 1 {
            std::thread::yield_now();
        }
        // It may have been done before the waits began.
        let _ = sleep(ms(1)).await;
        (given, told, done.load(Ordering::SeqCst))
    };
    let report = Injector::new().cleanup_limit(None).patience(THREADS).run(program, |run| {
        let Some((given, told, done)) = run.output else { panic!("it waits on traps") };
        assert_eq!(given + told, 3);
        assert!(told <= 1 && done >= given && done <= given + told, "{given} {told} {done}");
    });
    assert!(report.suspensions > 0 && report.cancels > 0, "{report:?}");
}

#[test]
fn calls_of_an_object_in_a_thread() {
    insist_outside(vec!['a', 'b'], async |insistent| {
        let open = || ThreadProxy::open(|| Ok::<_, ()>(Vec::new()));
        let proxy = insistent.on(open).await.unwrap();
        for letter in ['a', 'b'] {
            let add = move |all: &mut Vec<char>| {
                if !all.contains(&letter) {
                    all.push(letter);
                }
            };
            insistent.on(|| proxy.call(add)).await;
        }
        let all = insistent.on(|| proxy.call(|all| all.clone())).await;
        if let Err(error) = proxy.close().await {
            insistent.note(&error);
        }
        last_wait(insistent).await;
        all
    });
}

#[test]
fn joining_a_thread() {
    insist_outside(3, async |insistent| {
        let (open, gate) = mpsc::channel::<()>();
        let mut task = spawn_thread(move || {
            let _opened = gate.recv();
            block_on(|| async {
                a_few_steps().await;
                3
            })
        });
        pikake::spawn(async move {
            a_few_steps().await;
            drop(open);
        })
        .detach();
        insistent.on(async || (&mut task).await).await.unwrap()
    });
}

#[test]
fn interrupted_thread_ends_before_its_task() {
    let program = || async {
        let (tell, told) = mpsc::channel();
        in_thread(move || {
            for _ in 0..3 {
                let waited: Result<_, Interrupted> = block_on(|| sleep(ms(1)));
                tell.send(waited.and_then(|slept| slept).is_err()).unwrap();
            }
        })
        .await;
        told.into_iter().filter(|is_told| *is_told).count()
    };
    let report = Injector::new().cleanup_limit(None).patience(THREADS).run(program, |run| {
        let told = run.output.expect("it ends when its thread does");
        assert!(told <= usize::from(run.interruption.is_some()), "told {told} times");
    });
    assert!(report.suspensions > 0 && report.cancels > 0, "{report:?}");
}

#[test]
fn waiting_for_room_in_a_group() {
    insist_inside(vec![3, 1, 2], async |insistent| {
        let mut group = TaskGroup::bounded(1);
        for length in [3, 1, 2] {
            insistent.on(async || group.room().await).await;
            let nap = async move { sleep(ms(length)).await.map(|()| length) };
            assert!(group.try_spawn(nap).is_ok());
        }
        let mut all = Vec::new();
        while let Some(done) = insistent.on(async || group.join_next().await).await {
            all.push(done.outcome.unwrap().unwrap());
        }
        all
    });
}

#[test]
fn spawning_in_a_group_with_a_limit() {
    insist_inside(3, async |insistent| {
        let mut group = TaskGroup::bounded(2);
        for length in [3, 1, 2] {
            insistent.on(async || group.spawn(sleep(ms(length))).await.map(drop)).await;
        }
        let mut ended = 0;
        while insistent.on(async || group.join_next().await).await.is_some() {
            ended += 1;
        }
        ended
    });
}

#[test]
fn results_in_order() {
    insist_inside(vec![3, 1, 2], async |insistent| {
        let nap = async |length| sleep(ms(length)).await.map(|()| length);
        let mut map = ordered_map([3, 1, 2], 2, nap);
        let mut all = Vec::new();
        while let Some(outcome) = insistent.on(async || map.next_outcome().await).await {
            all.push(outcome.unwrap().unwrap());
        }
        all
    });
    let program = || async {
        let nap = async |length| sleep(ms(length)).await.map(|()| length);
        ordered_map([3, 1, 2], 2, nap).collect().await.map(|all| all.len())
    };
    let report = Injector::new().run(program, |run| match &run.interruption {
        None => assert_eq!(run.output, Some(Ok(3))),
        Some(_) => assert!(matches!(run.output, Some(Ok(3) | Err(_)))),
    });
    assert!(report.suspensions > 0 && report.timeouts > 0, "{report:?}");
}
