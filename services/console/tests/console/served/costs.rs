//! The cost of requests to a program with many tasks: the time until the answer, and how long the
//! kernel is kept from its tasks. In a release build each test prints rows of the table in
//! `benches/README.md`.

use std::cell::Cell;
use std::io::{BufRead, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake::console::metrics;
use pikake::console::protocol::Request;
use pikake::sync::{Event, Mutex};
use pikake::thread::run_in_thread;
use pikake::{TaskGroup, sleep, spawn, timeout_after, yield_now};
use rustix::time::{ClockId, clock_gettime};

use super::{PATIENCE, Program, ask, say_ready};
use crate::support::child::is_child;
use crate::support::named;

/// The number of tasks. A debug build takes many times as long.
const MANY: u64 = if cfg!(debug_assertions) { 3_000 } else { 100_000 };

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

/// The time between two steps of the task that measures pauses.
const TICK: Duration = Duration::from_millis(1);

/// The length of the recordings.
const RECORDED: f64 = 0.1;

/// The name of the tasks that commands end, or look at.
const VICTIM: &str = "victim";

/// The orders of the parent.
const PAUSE: &str = "pause";
const METRICS: &str = "metrics";

/// The processor time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Follows the parent's orders: prints the longest pause of a task that sleeps for a millisecond,
/// and the processor time of the kernel in the longest one; or prints the length of the metrics,
/// and the time that they took.
async fn obey() {
    for _ in 0..3 {
        named(VICTIM, sleep(HOUR)).detach();
    }
    let longest = Rc::new(Cell::new((Duration::ZERO, Duration::ZERO)));
    let seen = longest.clone();
    let ticker = spawn(async move {
        let mut last = (Instant::now(), thread_time());
        while sleep(TICK).await.is_ok() {
            let now = (Instant::now(), thread_time());
            let (pause, work) = seen.get();
            seen.set((pause.max((now.0 - last.0).saturating_sub(TICK)), work.max(now.1 - last.1)));
            last = now;
        }
    });
    say_ready();
    let next_order = || {
        let mut line = String::new();
        let _ = std::io::stdin().lock().read_line(&mut line);
        line
    };
    loop {
        match run_in_thread(next_order).await.unwrap().trim_end() {
            PAUSE => {
                let (pause, work) = longest.take();
                println!("{} {}", pause.as_micros(), work.as_micros());
            }
            METRICS => {
                let begin = Instant::now();
                let length = metrics::text().await.unwrap().len();
                println!("{length} {}", begin.elapsed().as_micros());
            }
            _ => break,
        }
    }
    drop(ticker);
    // The shutdown of so many tasks takes longer than all requests.
    std::process::exit(0);
}

impl Program {
    /// Gives an order to a child that obeys, and returns the two numbers of its answer.
    fn order(&mut self, order: &str) -> (u64, u64) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let (first, second) = line.trim_end().split_once(' ').unwrap();
        (first.parse().unwrap(), second.parse().unwrap())
    }
}

/// Makes all requests of a program with these tasks, and prints what they cost.
fn print_costs(test: &str, tasks: &str) {
    let mut program = Program::start(&format!("costs::{test}"));
    let mut client = program.client();
    let all = ask(&mut client, &Request::Tasks { waits: false }).tasks;
    // Some end, and their successors are not yet there, while the list is made.
    assert!(all.len() as u64 >= MANY / 10 * 9, "{}", all.len());
    let victims: Vec<_> = all.iter().filter(|task| task.name == VICTIM).map(|it| it.id).collect();
    let requests = [
        ("ps, tree, top", Request::Tasks { waits: false }),
        ("ps with waits", Request::Tasks { waits: true }),
        ("waits", Request::Waits),
        ("waits again", Request::Waits),
        ("where", Request::Task { task: victims[2] }),
        ("stats", Request::Stats),
        ("cancel", Request::Cancel { task: victims[0], reason: String::new() }),
        ("abort", Request::Abort { task: victims[1] }),
        ("trace", Request::Trace { seconds: None }),
        ("trace of 0.1 s", Request::Trace { seconds: Some(RECORDED) }),
        ("profile of 0.1 s", Request::Profile { seconds: RECORDED }),
        ("blocked", Request::Blocked),
        ("kernels", Request::Kernels),
        ("time", Request::Time),
    ];
    let print = |name: &str, took: Duration, (pause, work): (u64, u64)| {
        let [pause, work] = [pause, work].map(|micros| micros as f64 / 1e3);
        println!("| {tasks} | {name} | {:.3} | {pause:.1} | {work:.1} |", took.as_secs_f64());
    };
    for (name, request) in requests {
        program.order(PAUSE);
        let begin = Instant::now();
        ask(&mut client, &request);
        let took = begin.elapsed();
        print(name, took, program.order(PAUSE));
        assert!(took < 2 * PATIENCE, "{name}: {took:?}");
    }
    let (length, micros) = program.order(METRICS);
    assert!(length > 0);
    print("metrics", Duration::from_micros(micros), program.order(PAUSE));
    program.finish();
}

#[pikake::main(console)]
async fn sleeping() {
    for number in 0..MANY {
        spawn(sleep(HOUR + Duration::from_micros(number))).detach();
    }
    obey().await;
}

#[test]
fn costs_with_sleeping_tasks() {
    if is_child("served::costs::costs_with_sleeping_tasks") {
        return sleeping();
    }
    print_costs("costs_with_sleeping_tasks", "sleep");
}

#[pikake::main(console)]
async fn with_timeouts() {
    let event = Rc::new(Event::new());
    for number in 0..MANY {
        let event = event.clone();
        let limit = HOUR + Duration::from_micros(number);
        spawn(async move { timeout_after(limit, event.wait()).await }).detach();
    }
    obey().await;
}

#[test]
fn costs_with_timeouts() {
    if is_child("served::costs::costs_with_timeouts") {
        return with_timeouts();
    }
    print_costs("costs_with_timeouts", "timeout");
}

#[pikake::main(console)]
async fn behind_a_lock() {
    let mutex = Rc::new(Mutex::new(()));
    let holder = mutex.clone();
    named("holder", async move {
        let _held = holder.lock().await;
        sleep(HOUR).await
    })
    .detach();
    yield_now().await.unwrap();
    for _ in 0..MANY {
        let mutex = mutex.clone();
        spawn(async move { drop(mutex.lock().await) }).detach();
    }
    obey().await;
}

#[test]
fn costs_with_a_queue_for_a_lock() {
    if is_child("served::costs::costs_with_a_queue_for_a_lock") {
        return behind_a_lock();
    }
    print_costs("costs_with_a_queue_for_a_lock", "lock");
}

#[pikake::main(console)]
async fn in_a_group() {
    spawn(async {
        let mut group = TaskGroup::new();
        for _ in 0..MANY {
            group.spawn(sleep(HOUR));
        }
        drop(group.join_all().await);
    })
    .detach();
    yield_now().await.unwrap();
    obey().await;
}

#[test]
fn costs_with_a_group() {
    if is_child("served::costs::costs_with_a_group") {
        return in_a_group();
    }
    print_costs("costs_with_a_group", "group");
}

#[pikake::main(console)]
async fn in_a_deadlock() {
    let mutexes: Rc<Vec<_>> = Rc::new((0..MANY).map(|_| Mutex::new(())).collect());
    for number in 0..mutexes.len() {
        let mutexes = mutexes.clone();
        spawn(async move {
            let _first = mutexes[number].lock().await;
            yield_now().await.unwrap();
            drop(mutexes[(number + 1) % mutexes.len()].lock().await);
        })
        .detach();
    }
    obey().await;
}

#[test]
fn costs_with_a_deadlock() {
    if is_child("served::costs::costs_with_a_deadlock") {
        return in_a_deadlock();
    }
    print_costs("costs_with_a_deadlock", "deadlock");
}

/// Each second half of the tasks end, and the other half spawn new ones. So all timers and all
/// holders of locks are new to each look.
#[pikake::main(console)]
async fn short_lived() {
    for number in 0..MANY / 2 {
        spawn(async move {
            sleep(SECOND * (number as u32) / (MANY as u32)).await.unwrap();
            loop {
                let mutex = Rc::new(Mutex::new(()));
                let holder = mutex.clone();
                named("holder", async move {
                    let _held = holder.lock().await;
                    sleep(SECOND).await
                })
                .detach();
                yield_now().await.unwrap();
                drop(mutex.lock().await);
            }
        })
        .detach();
    }
    sleep(2 * SECOND).await.unwrap();
    obey().await;
}

#[test]
fn costs_with_short_lived_tasks() {
    if is_child("served::costs::costs_with_short_lived_tasks") {
        return short_lived();
    }
    print_costs("costs_with_short_lived_tasks", "short-lived");
}
