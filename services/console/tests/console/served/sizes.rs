//! Programs with many tasks, and tasks with many waits.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use pikake::console::protocol::Request;
use pikake::{sleep, spawn, yield_now};

use super::{PATIENCE, Program, ask, ready, say_ready, wait_for_parent};
use crate::support::child::is_child;

const MANY: usize = 100_000;
const HOUR: Duration = Duration::from_secs(3_600);

#[pikake::main(console)]
async fn many_tasks() {
    for number in 0..MANY as u64 {
        spawn(async move { sleep(HOUR + Duration::from_micros(number)).await }).detach();
    }
    yield_now().await.unwrap();
    let longest = Rc::new(Cell::new(Duration::ZERO));
    let seen = longest.clone();
    say_ready();
    let ticker = spawn(async move {
        let mut last = Instant::now();
        while sleep(Duration::from_millis(1)).await.is_ok() {
            seen.set(seen.get().max(last.elapsed()));
            last = Instant::now();
        }
    });
    pikake::thread::run_in_thread(wait_for_parent).await.unwrap();
    ticker.cancel().await.unwrap();
    println!("the longest pause of a task that sleeps for 1 ms: {:?}", longest.get());
    // The shutdown of so many tasks takes longer than all requests.
    std::process::exit(0);
}

/// Prints the time that each request takes, and for how long the kernel stepped no task.
#[test]
fn a_hundred_thousand_tasks_are_complete() {
    if is_child("served::sizes::a_hundred_thousand_tasks_are_complete") {
        return many_tasks();
    }
    let program = Program::start("sizes::a_hundred_thousand_tasks_are_complete");
    let mut client = program.client();
    client.ask(&Request::Time).unwrap();
    for request in [Request::Tasks { waits: false }, Request::Waits, Request::Stats] {
        let begin = Instant::now();
        let answer = ask(&mut client, &request);
        let took = begin.elapsed();
        println!("{request:?} took {took:?}");
        assert!(took < 2 * PATIENCE, "{took:?}");
        if request == Request::Stats {
            assert_eq!(answer.stats[0].tasks, MANY as u64 + 2);
            assert!(answer.stats[0].future_bytes >= MANY as u64, "{:?}", answer.stats);
            continue;
        }
        let tasks: BTreeSet<u64> = answer.tasks.iter().map(|task| task.id.task).collect();
        assert_eq!((tasks.len(), answer.tasks.len()), (MANY + 2, MANY + 2), "{:?}", answer.kernels);
        let sleeps =
            answer.tasks.iter().filter(|task| task.waits.iter().any(|w| w.trap == "sleep"));
        assert!(sleeps.count() >= MANY);
    }
    let kernel = ask(&mut client, &Request::Kernels).kernels[0].id;
    let last = Request::Task { task: super::key(kernel, MANY as u64) };
    let begin = Instant::now();
    client.ask(&last).unwrap();
    println!("{last:?} took {:?}", begin.elapsed());
    println!("{}", program.finish());
}

/// The number of waits of one task: more than a frame has room for.
const WAITS: usize = 5_000;

/// One task with more waits than a frame has room for, and a name that has no room beside others.
#[pikake::main(console)]
async fn large_task() {
    let name = "\u{1}".repeat(100_000);
    let mut waits: Vec<_> = (0..WAITS).map(|_| Box::pin(sleep(HOUR))).collect();
    let sleeps = async move {
        std::future::poll_fn(|cx| {
            waits.retain_mut(|wait| wait.as_mut().poll(cx).is_pending());
            if waits.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    };
    for _ in 0..20 {
        crate::support::named(&name, async { sleep(HOUR).await }).detach();
    }
    crate::support::named("large", sleeps).detach();
    yield_now().await.unwrap();
    ready().await;
}

#[test]
fn large_tasks_fit_into_frames() {
    if is_child("served::sizes::large_tasks_fit_into_frames") {
        return large_task();
    }
    let program = Program::start("sizes::large_tasks_fit_into_frames");
    let answer = program.ask(&Request::Waits);
    assert_eq!(answer.tasks.len(), 22);
    let waits = &super::named(&answer, "large").waits;
    let last = waits.last().unwrap();
    assert_eq!(last.trap, "more", "{last:?}");
    let about = last.about.as_deref().unwrap();
    let rest: usize = about.strip_suffix(" further waits").unwrap().parse().unwrap();
    assert_eq!(waits.len() - 1 + rest, WAITS);
    program.finish();
}

/// The number of tasks in a queue: their edges have no room in one frame.
const QUEUE: u64 = 20_000;

#[pikake::main(console)]
async fn long_queue() {
    let mutex = Rc::new(pikake::sync::Mutex::new(()));
    let holder = mutex.clone();
    crate::support::named("holder", async move {
        let _held = holder.lock().await;
        sleep(HOUR).await
    })
    .detach();
    yield_now().await.unwrap();
    for _ in 0..QUEUE {
        let mutex = mutex.clone();
        spawn(async move { drop(mutex.lock().await) }).detach();
    }
    yield_now().await.unwrap();
    say_ready();
    pikake::thread::run_in_thread(wait_for_parent).await.unwrap();
    std::process::exit(0);
}

#[test]
fn a_graph_of_many_frames_is_complete() {
    if is_child("served::sizes::a_graph_of_many_frames_is_complete") {
        return long_queue();
    }
    let program = Program::start("sizes::a_graph_of_many_frames_is_complete");
    let mut client = program.client();
    let answer = ask(&mut client, &Request::Waits);
    let holder = super::named(&answer, "holder").id;
    let edges = answer.graph.unwrap().edges;
    let from: BTreeSet<u64> =
        edges.iter().filter(|edge| edge.to == holder).map(|edge| edge.from.task).collect();
    assert_eq!((from.len() as u64, edges.len() as u64), (QUEUE, QUEUE));
    // The connection is in step.
    assert_eq!(ask(&mut client, &Request::Kernels).kernels.len(), 1);
    program.finish();
}

/// A task with the longest name and reason that there are does not spoil the listings.
#[test]
fn long_texts_are_cut() {
    if is_child("served::sizes::long_texts_are_cut") {
        return long_texts();
    }
    let program = Program::start("sizes::long_texts_are_cut");
    let mut client = program.client();
    let answer = ask(&mut client, &Request::Waits);
    let task = answer.tasks.iter().find(|task| task.name.starts_with('ä')).unwrap();
    assert!(task.name.ends_with('…') && task.name.len() < 4_200, "{}", task.name.len());
    let cancelled = task.cancelled.as_deref().unwrap();
    assert!(cancelled.ends_with('…') && cancelled.len() < 4_200, "{}", cancelled.len());
    let reason = "r".repeat(100_000);
    let why = super::refusal(&mut client, &Request::Cancel { task: task.id, reason });
    assert!(why.contains("too long"), "{why}");
    assert_eq!(ask(&mut client, &Request::Tasks { waits: false }).tasks.len(), answer.tasks.len());
    program.finish();
}

#[pikake::main(console)]
async fn long_texts() {
    let name = "ä".repeat(10_000);
    let task =
        crate::support::named(&name, async { while pikake::shield(sleep(HOUR)).await.is_ok() {} });
    yield_now().await.unwrap();
    task.request_cancel(&name);
    yield_now().await.unwrap();
    ready().await;
}
