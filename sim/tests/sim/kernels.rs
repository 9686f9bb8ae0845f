//! Hosts with several kernels: their steps, messages between them, their common end, and faults.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::iter::once;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pikake::kernel::inspect::kernel_figures;
use pikake::net::{Closing, Patience, TcpListener, TcpStream, serve_on_all, serve_until};
use pikake::sim::{Cause, FaultMix, Network, Runs, Schedule, Sim, busy_for, runs, sometimes};
use pikake::sync::{Mutex, shared};
use pikake::task::spawn_anywhere;
use pikake::time::{Ticks, elapsed_since, now};
use pikake::traps::door::current_kernel;
use pikake::traps::{LATE, Peers, should_offer};
use pikake::{
    Bound, KernelHandle, TaskError, on_kernels, other_kernels, random, sleep, spawn, yield_now,
};

use crate::support::ms;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// A world of one host with three kernels.
fn three<F: Future<Output = ()> + 'static>(seed: u64, program: impl Fn() -> F + 'static) -> Sim {
    let mut sim = Sim::new(seed);
    sim.client("server", program).kernels("server", 3);
    sim
}

fn own_id() -> pikake::traps::KernelId {
    KernelHandle::current().id()
}

// --- who is there ------------------------------------------------------------------------------

#[pikake::sim(seeds = 20, threads = 3)]
async fn other_kernels_are_those_of_the_host() {
    let ids = || other_kernels().iter().map(KernelHandle::id).collect::<Vec<_>>();
    let (own, others) = (own_id(), ids());
    assert_eq!(others.len(), 2);
    assert_eq!(Peers::current().unwrap().handles().len(), 3);
    for (number, kernel) in other_kernels().iter().enumerate() {
        let seen = kernel.call(move || async move { (own_id(), ids()) }).await.unwrap();
        assert_eq!(seen, (others[number], vec![own, others[1 - number]]));
    }
}

#[test]
fn hosts_have_kernels_of_their_own() {
    let counts = Rc::new(RefCell::new(Vec::new()));
    let mut sim = Sim::new(1);
    for (name, kernels) in [("one", 1), ("two", 2), ("four", 4)] {
        let counts = counts.clone();
        sim.client(name, move || {
            let counts = counts.clone();
            async move { counts.borrow_mut().push(other_kernels().len()) }
        });
        sim.kernels(name, kernels);
    }
    sim.run().unwrap();
    counts.borrow_mut().sort_unstable();
    assert_eq!(*counts.borrow(), [0, 1, 3]);
    assert!(other_kernels().is_empty(), "outside of all kernels");
}

#[test]
#[should_panic(expected = "a host runs on one kernel at least")]
fn host_without_kernels_is_a_panic() {
    Sim::new(1).host("a", || async {}).kernels("a", 0);
}

// --- messages between kernels ------------------------------------------------------------------

#[pikake::sim(seeds = 100, threads = 3)]
async fn calls_return_and_report_their_ends() {
    let [one, other] = &other_kernels()[..] else { panic!("two others") };
    let began = now();
    let calls = [(one, 2), (other, 3)].map(|(kernel, seconds)| {
        spawn(kernel.call(move || async move {
            sleep(seconds * SECOND).await.unwrap();
            (current_kernel(), seconds)
        }))
    });
    let [first, second] = calls;
    assert_eq!(first.await.unwrap().unwrap(), (Some(one.id()), 2));
    assert_eq!(second.await.unwrap().unwrap(), (Some(other.id()), 3));
    let took = elapsed_since(began);
    assert!(took >= 3 * SECOND && took < 3 * SECOND + ms(1), "they wait at once: {took:?}");

    let panicked = one.call(|| async { panic!("this panic is part of the test") });
    assert!(matches!(panicked.await, Err::<(), _>(TaskError::Panicked(_))));
}

#[pikake::sim(seeds = 100, threads = 3)]
async fn futures_run_on_all_kernels_until_one_fails() {
    let ended = on_kernels(&other_kernels(), || async { Ok::<_, TaskError>(own_id()) }).await;
    let ids: BTreeSet<u32> = ended.into_iter().map(|id| id.unwrap().number()).collect();
    assert_eq!(ids.len(), 3);

    let failing = other_kernels()[1].id();
    let ended = on_kernels(&other_kernels(), move || async move {
        if own_id() == failing {
            return Err(io::Error::other("part of the test"));
        }
        sleep(HOUR).await.map_err(io::Error::from)
    });
    let began = now();
    let texts = ended.await.into_iter().map(|ended| ended.unwrap_err().to_string());
    let texts: Vec<String> = texts.collect();
    assert!(texts[2].contains("part of the test"), "{texts:?}");
    assert!(texts[..2].iter().all(|text| text.contains("another kernel has failed")), "{texts:?}");
    assert!(elapsed_since(began) < SECOND);
}

/// Of each kind of `sync::shared` a few uses between kernels. No wake may be lost.
#[pikake::sim(seeds = 200, threads = 3)]
async fn shared_primitives_work_between_kernels() {
    const EACH: usize = 10;
    let count = Arc::new(shared::Mutex::new(0));
    let queue = Arc::new(shared::Queue::bounded(2));
    let (sender, mut receiver) = shared::channel(1);
    let go = Arc::new(shared::Event::new());
    let others: Vec<_> = other_kernels()
        .into_iter()
        .map(|kernel| {
            let (count, queue, go) = (count.clone(), queue.clone(), go.clone());
            let sender = sender.clone();
            spawn(kernel.call(move || async move {
                go.wait().await.unwrap();
                for number in 0..EACH {
                    let mut count = count.lock().await.unwrap();
                    let before = *count;
                    yield_now().await.unwrap();
                    *count = before + 1;
                    drop(count);
                    queue.put(number).await.unwrap();
                    sender.send(number).await.unwrap();
                }
            }))
        })
        .collect();
    drop(sender);
    sleep(ms(random::range(0..3))).await.unwrap();
    go.set();
    let getter = spawn(async move {
        let mut got = Vec::new();
        while let Some(item) = queue.get().await.unwrap() {
            got.push(item);
            if got.len() == 2 * EACH {
                break;
            }
        }
        got
    });
    let mut received = 0;
    while receiver.recv().await.unwrap().is_some() {
        received += 1;
    }
    assert_eq!(received, 2 * EACH);
    assert_eq!(getter.await.unwrap().iter().sum::<usize>(), EACH * (EACH - 1));
    for other in others {
        other.await.unwrap().unwrap();
    }
    assert_eq!(*count.lock().await.unwrap(), 2 * EACH);
}

// --- values bound to a kernel ------------------------------------------------------------------

#[pikake::sim(seeds = 20, threads = 2)]
async fn bound_value_panics_in_another_kernel() {
    let bound = Arc::new(Bound::new(Rc::new(7)));
    let sent = bound.clone();
    let used = other_kernels()[0].call(move || async move {
        assert!(!sent.is_home());
        let used = catch_unwind(AssertUnwindSafe(|| **sent.get()));
        *used.unwrap_err().downcast::<String>().unwrap()
    });
    let text = used.await.unwrap();
    assert!(text.contains("belongs to the thread of kernel"), "{text}");
    assert_eq!(**bound.get(), 7);
}

struct DroppedIn(Rc<RefCell<Vec<Option<pikake::traps::KernelId>>>>);

impl Drop for DroppedIn {
    fn drop(&mut self) {
        self.0.borrow_mut().push(current_kernel());
    }
}

#[pikake::sim(seeds = 50, threads = 2)]
async fn bound_value_is_dropped_in_its_own_kernel() {
    let dropped = Rc::default();
    let bound = Bound::new(DroppedIn(Rc::clone(&dropped)));
    other_kernels()[0].call(move || async move { drop(bound) }).await.unwrap();
    yield_now().await.unwrap();
    assert_eq!(*dropped.borrow(), [current_kernel()]);
}

// --- steps and time ----------------------------------------------------------------------------

/// Three tasks, one on each kernel, make five steps each.
fn order_of_steps(seed: u64) -> (Vec<usize>, pikake::sim::Report) {
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = order.clone();
    let mut sim = three(seed, move || {
        let noted = noted.clone();
        async move {
            let first = own_id();
            let ended = on_kernels(&other_kernels(), move || async move {
                for _ in 0..5 {
                    let handles = Peers::current().unwrap().handles();
                    let number = handles.iter().position(|kernel| kernel.id() == own_id());
                    noted.lock().unwrap().push(number.unwrap());
                    yield_now().await?;
                }
                Ok::<_, TaskError>(())
            });
            assert!(ended.await.iter().all(Result::is_ok));
            assert_eq!(own_id(), first);
        }
    });
    let report = sim.run().unwrap();
    (std::mem::take(&mut order.lock().unwrap()), report)
}

#[test]
fn seed_interleaves_steps_of_kernels() {
    let orders: Vec<_> = (0..20).map(|seed| order_of_steps(seed).0).collect();
    assert!(orders.iter().all(|order| order.len() == 15));
    let different: BTreeSet<_> = orders.iter().collect();
    assert!(different.len() > 10, "{different:?}");
    for seed in 0..20 {
        assert_eq!(order_of_steps(seed), order_of_steps(seed));
    }
}

#[test]
fn long_steps_of_several_kernels_take_the_same_time() {
    runs(20, |sim| {
        sim.client("server", || async {
            let began = now();
            let ended = on_kernels(&other_kernels(), || async {
                busy_for(2 * SECOND);
                Ok::<_, TaskError>(())
            });
            assert!(ended.await.iter().all(Result::is_ok));
            let took = elapsed_since(began);
            assert!(took >= 2 * SECOND && took < 2 * SECOND + ms(1), "{took:?}");
        });
        sim.kernels("server", 3);
    });
}

/// The world turns the kernels one after the other. An hour without work makes none of them late.
#[pikake::sim(seeds = 50, threads = 2)]
async fn lateness_is_that_of_the_busy_kernel() {
    let late = || kernel_figures().peers.unwrap().late_max;
    sleep(HOUR).await.unwrap();
    assert!(late() < ms(1), "{:?}", late());
    for task in [(); 3].map(|()| spawn(async { busy_for(SECOND) })) {
        task.await.unwrap();
    }
    assert!(late() >= SECOND && late() < 4 * SECOND, "{:?}", late());
    let other = other_kernels()[0].call(move || async move { late() }).await.unwrap();
    assert!(other < ms(1), "{other:?}");
}

/// As on processors of their own: what a kernel sends after a long computation arrives afterwards,
/// and what it sends before, at once.
#[pikake::sim(seeds = 50, threads = 2)]
async fn message_arrives_at_the_time_of_its_sending() {
    let began = now();
    let arrived = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = |kernel: &KernelHandle| {
        let arrived = arrived.clone();
        kernel.spawn(move || async move { arrived.lock().unwrap().push(now()) }).unwrap();
    };
    let other = &other_kernels()[0];
    note(other);
    busy_for(2 * SECOND);
    sleep(SECOND).await.unwrap();
    busy_for(2 * SECOND);
    note(other);
    sleep(SECOND).await.unwrap();
    let since = |at: &Ticks| Duration::from_nanos(at.get() - began.get());
    let times: Vec<_> = arrived.lock().unwrap().iter().map(since).collect();
    let [first, second] = times[..] else { panic!("{times:?}") };
    assert!(first < ms(1), "{times:?}");
    assert!(second >= 5 * SECOND && second < 5 * SECOND + ms(1), "{times:?}");
}

// --- servers -----------------------------------------------------------------------------------

/// Serves on all kernels, and answers each connection with the number of the kernel.
async fn serve_numbers() -> io::Result<()> {
    let reports = serve_on_all("0.0.0.0:7", &other_kernels(), |listener| {
        let handles = Peers::current().expect("it has peers").handles();
        let number = handles.iter().position(|kernel| kernel.id() == own_id());
        let number = u8::try_from(number.expect("it is a member")).expect("few kernels");
        let answer = move |stream: TcpStream, _| async move {
            drop(stream.write_all(&[number]).await);
        };
        serve_until(listener, 1000, Closing::new(), Patience::default(), answer)
    });
    reports.await?.into_iter().try_for_each(|report| report.map(drop))
}

async fn number_of_server() -> io::Result<u8> {
    let stream = TcpStream::connect("server:7").await?;
    let mut number = [0];
    stream.read_exact(&mut number).await?;
    Ok(number[0])
}

#[test]
fn connections_spread_over_kernels_by_the_seed() {
    const CONNECTIONS: usize = 60;
    let all = Rc::new(RefCell::new(BTreeSet::new()));
    let seen = all.clone();
    let set_up = move |sim: &mut Sim| {
        let seen = seen.clone();
        sim.host("server", serve_numbers).kernels("server", 3);
        sim.client("client", move || {
            let seen = seen.clone();
            async move {
                sleep(SECOND).await.unwrap();
                let mut counts = BTreeMap::new();
                let mut order = Vec::new();
                for _ in 0..CONNECTIONS {
                    let number = number_of_server().await.unwrap();
                    *counts.entry(number).or_insert(0) += 1;
                    order.push(number);
                }
                assert_eq!(counts.len(), 3, "each gets some: {counts:?}");
                seen.borrow_mut().insert(order);
            }
        });
    };
    Runs::new("kernels::connections").seeds(20).check_determinism().run(set_up);
    // With `PIKAKE_RUNS` there may be other numbers of seeds.
    assert!(all.borrow().len() > 1 || std::env::var_os("PIKAKE_SEED").is_some());
}

/// A kernel ends alone: its listener closes, and the others take all later connections.
#[test]
fn kernel_that_is_shut_down_leaves_its_connections_to_the_others() {
    runs(30, |sim| {
        sim.host("server", || async {
            let listener = TcpListener::bind_shared("0.0.0.0:7").await.unwrap();
            for (number, kernel) in (1_u8..).zip(other_kernels()) {
                let bound = kernel.call(move || async move {
                    let listener = TcpListener::bind_shared("0.0.0.0:7").await.unwrap();
                    spawn(answer_all(listener, number)).detach();
                });
                bound.await.unwrap();
            }
            spawn(answer_all(listener, 0)).detach();
            sleep(10 * SECOND).await.unwrap();
            let [one, other] = &other_kernels()[..] else { panic!("two others") };
            one.shutdown().unwrap();
            let refused = one.call(|| async {}).await;
            assert!(matches!(refused, Err(TaskError::Stopped)), "{refused:?}");
            sleep(SECOND).await.unwrap();
            assert!(one.is_closed() && !other.is_closed());
            sleep(HOUR).await.unwrap();
        });
        sim.kernels("server", 3);
        sim.client("client", || async {
            sleep(20 * SECOND).await.unwrap();
            let mut counts = BTreeMap::new();
            for _ in 0..40 {
                *counts.entry(number_of_server().await.unwrap()).or_insert(0) += 1;
            }
            assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [0, 2], "{counts:?}");
        });
    });
}

async fn answer_all(listener: TcpListener, number: u8) {
    while let Ok((stream, _)) = listener.accept().await {
        // The client may be gone.
        drop(stream.write_all(&[number]).await);
    }
}

// --- ends and faults ---------------------------------------------------------------------------

/// When the main task ends, the tasks of the other kernels may clean up, and the run waits.
#[test]
fn end_of_the_main_task_shuts_all_kernels_down() {
    for seed in 0..50 {
        let cleaned = Arc::new(AtomicUsize::new(0));
        let counted = cleaned.clone();
        let mut sim = three(seed, move || {
            let cleaned = counted.clone();
            async move {
                for kernel in other_kernels() {
                    let cleaned = cleaned.clone();
                    let started = kernel.call(move || async move {
                        spawn(async move {
                            let why = sleep(HOUR).await.unwrap_err();
                            assert!(why.to_string().contains("shut down"), "{why}");
                            // Cleanup takes time, too.
                            pikake::shield(sleep(SECOND)).await.unwrap();
                            cleaned.fetch_add(1, Ordering::Relaxed);
                        })
                        .detach();
                        // The task has begun by then.
                        sleep(ms(1)).await.unwrap();
                    });
                    started.await.unwrap();
                }
            }
        });
        let report = sim.run().unwrap();
        assert_eq!(cleaned.load(Ordering::Relaxed), 2);
        assert!(report.time >= SECOND && report.time < 2 * SECOND, "{:?}", report.time);
    }
}

/// A task that does not end is dropped after the grace, as on threads.
#[test]
fn task_of_another_kernel_is_dropped_after_the_grace() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let counted = drops.clone();
    let mut sim = three(3, move || {
        let drops = counted.clone();
        async move {
            let stubborn = other_kernels()[1].call(move || async move {
                spawn(async move {
                    let _counted = Counted(drops);
                    drop(pikake::shield(sleep(HOUR)).await);
                })
                .detach();
                // The task has begun by then.
                sleep(ms(1)).await.unwrap();
            });
            stubborn.await.unwrap();
        }
    });
    let report = sim.run().unwrap();
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    let grace = pikake::kernel::SHUTDOWN_GRACE;
    assert!(report.time >= grace && report.time < grace + SECOND, "{:?}", report.time);
}

/// A crash while another kernel works on a call. All tasks of all kernels are dropped, and a
/// restart begins with fresh kernels.
#[test]
fn crash_drops_all_kernels_and_restart_starts_fresh_ones() {
    struct Alive(Arc<AtomicUsize>);
    impl Alive {
        fn new(count: &Arc<AtomicUsize>) -> Self {
            count.fetch_add(1, Ordering::Relaxed);
            Self(count.clone())
        }
    }
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    for (seed, fault) in (0..60).zip(["kill", "power-off"].into_iter().cycle()) {
        let alive = Arc::new(AtomicUsize::new(0));
        let lives = Rc::new(RefCell::new(Vec::<Vec<KernelHandle>>::new()));
        let (counted, noted) = (alive.clone(), lives.clone());
        let mut sim = Sim::new(seed);
        sim.host("server", move || {
            let (alive, lives) = (counted.clone(), noted.clone());
            async move {
                let before = lives.borrow().last().cloned().unwrap_or_default();
                assert!(before.iter().all(KernelHandle::is_closed), "those of the last life");
                assert_eq!(alive.load(Ordering::Relaxed), 0);
                lives.borrow_mut().push(Peers::current().unwrap().handles());
                let _main = Alive::new(&alive);
                let ended = on_kernels(&other_kernels(), move || async move {
                    let _alive = Alive::new(&alive);
                    let bound = Bound::new(Rc::new(Cell::new(0)));
                    loop {
                        bound.get().set(bound.get().get() + 1);
                        let peer = Peers::current().unwrap().others().remove(0);
                        let sent = Bound::new(Alive::new(&alive));
                        let call = peer.call(move || async move {
                            let _sent = sent;
                            sleep(ms(random::range(0..20))).await
                        });
                        call.await?.map_err(TaskError::from)?;
                    }
                    #[expect(unreachable_code, reason = "it names the type")]
                    Ok::<(), TaskError>(())
                });
                drop(ended.await);
            }
        });
        sim.kernels("server", 3);
        let noted = lives.clone();
        sim.client("client", move || {
            let lives = noted.clone();
            async move {
                sleep(5 * SECOND).await.unwrap();
                assert_eq!(lives.borrow().len(), 3);
                assert!(lives.borrow()[2].iter().all(|kernel| !kernel.is_closed()));
            }
        });
        let plan = format!(
            "1.013s {fault} server; 2s restart server; 2.5s pause server; 3s resume server; \
             3.2s {fault} server; 3.3s restart server"
        );
        sim.faults(plan.parse().unwrap());
        sim.run().unwrap();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "seed {seed}: the end drops all tasks");
    }
}

#[test]
fn paused_host_pauses_all_its_kernels() {
    runs(20, |sim| {
        sim.client("server", || async {
            let ticks = on_kernels(&other_kernels(), || async {
                let began = now();
                for _ in 0..10 {
                    sleep(ms(100)).await?;
                }
                Ok::<_, TaskError>(elapsed_since(began))
            });
            for ticked in ticks.await {
                assert!(ticked.unwrap() >= 5 * SECOND, "it stood still for five seconds");
            }
        });
        sim.kernels("server", 3);
        sim.faults("200ms pause server; 5.5s resume server".parse().unwrap());
    });
}

// --- reports -----------------------------------------------------------------------------------

#[test]
fn panic_names_the_kernel() {
    let mut sim = three(1, || async {
        let spawned = other_kernels()[1].spawn(|| async {
            panic!("this panic is part of the test");
        });
        spawned.unwrap();
        sleep(HOUR).await.unwrap();
    });
    let failure = sim.run().unwrap_err();
    let Cause::Panicked { host, .. } = &failure.cause else { panic!("{failure}") };
    assert_eq!(host, "server#2");
    let text = failure.to_string();
    for expected in [
        "on host `server#2`, task 2",
        "server#0: task 1 `server` is created",
        "server#1: task 1 `waits for work` is created",
        "kernel `server#0`",
        "kernel `server#1`",
        "task 1 `waits for work`",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
}

#[test]
fn deadlock_in_another_kernel_is_reported_with_its_number() {
    let mut sim = three(1, || async {
        let call = other_kernels()[0].call(|| async {
            let lock = Rc::new(Mutex::new(()).named("a lock"));
            let held = lock.lock().await.unwrap();
            let other = lock.clone();
            let waits = spawn(async move { drop(other.lock().await) });
            waits.await.unwrap();
            drop(held);
        });
        call.await.unwrap();
    });
    let failure = sim.run().unwrap_err();
    assert_eq!(failure.cause, Cause::Deadlock);
    let text = failure.to_string();
    for expected in ["2 of host `server#1`", "3 of host `server#1`", "kernel `server#2`"] {
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
}

/// The plan names a kernel as reports do.
#[test]
fn cancel_of_a_plan_reaches_a_task_of_another_kernel() {
    let mut sim = three(1, || async {
        let call = other_kernels()[0].call(|| async { sleep(HOUR).await });
        let why = call.await.unwrap().unwrap_err();
        assert!(why.to_string().contains("by the fault plan"), "{why}");
    });
    sim.faults("0s cancel server#1 2 1".parse().unwrap());
    sim.run().unwrap();
}

// --- many seeds --------------------------------------------------------------------------------

/// A server on three kernels that keeps its state on one of them, and two clients, with faults.
/// Each seed runs twice, with the same events. `cargo xtask long seeds` runs 10,000 seeds.
#[test]
fn server_on_three_kernels_survives_faults() {
    let set_up = |sim: &mut Sim| {
        sim.host("server", || async {
            // The state of the main kernel, which the others ask for numbers.
            let last = Rc::new(Cell::new(0_u64));
            let (sender, mut receiver) = shared::channel::<shared::Sender<u64>>(4);
            let numbers = spawn(async move {
                while let Some(reply) = receiver.recv().await? {
                    last.set(last.get() + 1);
                    sleep(ms(random::range(0..3))).await?;
                    // The asking task may be gone.
                    drop(reply.send(last.get()).await);
                }
                Ok::<_, pikake::Interrupted>(())
            });
            let reports = serve_on_all("0.0.0.0:7", &other_kernels(), move |listener| {
                let answer = move |stream: TcpStream, _| {
                    let sender = sender.clone();
                    async move {
                        let (reply, mut replied) = shared::channel(1);
                        if sender.send(reply).await.is_ok() {
                            if let Ok(Some(number)) = replied.recv().await {
                                drop(stream.write_all(&u64::to_le_bytes(number)).await);
                            }
                        }
                    }
                };
                serve_until(listener, 1000, Closing::new(), Patience::default(), answer)
            });
            drop((reports.await, numbers));
        });
        sim.kernels("server", 3);
        for name in ["one", "two"] {
            sim.client(name, || async {
                let mut last = 0;
                for _ in 0..15 {
                    let ask = async {
                        let stream = TcpStream::connect("server:7").await?;
                        let mut number = [0; 8];
                        stream.read_exact(&mut number).await?;
                        io::Result::Ok(u64::from_le_bytes(number))
                    };
                    match pikake::timed(10 * SECOND, ask).await.output {
                        Some(Ok(number)) => {
                            sometimes!(number < last, "the server begins anew");
                            last = number;
                        }
                        Some(Err(_)) | None => sometimes!(true, "the server cannot be reached"),
                    }
                    sleep(ms(random::range(0..300))).await.unwrap();
                }
            });
        }
        sim.network(Network::default()).schedule(Schedule::Mixed);
        sim.fault_mix(FaultMix::new(4 * SECOND));
    };
    let expected = ["the server begins anew", "the server cannot be reached"];
    Runs::new("kernels::server_on_three_kernels_survives_faults")
        .seeds(200)
        .check_determinism()
        .expect(expected)
        .run(set_up);
}

// --- work that another kernel may begin --------------------------------------------------------

/// Where work begins: at home or elsewhere, by the seed, although no kernel is ever late.
#[test]
fn seed_moves_work_to_idle_kernels() {
    let places = |seed| {
        let (sender, places) = std::sync::mpsc::channel();
        let mut sim = three(seed, move || {
            let sender = sender.clone();
            async move {
                // Kernels of other tests may have numbers in between.
                let others = other_kernels();
                let ids: Vec<_> =
                    once(own_id()).chain(others.iter().map(KernelHandle::id)).collect();
                for _ in 0..20 {
                    let place = spawn_anywhere(|| async { own_id() }).await.unwrap();
                    sender.send(ids.iter().position(|id| *id == place).unwrap()).unwrap();
                }
            }
        });
        sim.run().unwrap();
        places.try_iter().collect::<Vec<_>>()
    };
    let mut counts = BTreeMap::new();
    for seed in 0..50 {
        assert_eq!(places(seed), places(seed));
        places(seed).into_iter().for_each(|place| *counts.entry(place).or_insert(0) += 1);
    }
    // The first kernel that sleeps is woken, so the last one takes work by chance only.
    assert!(counts.len() == 3 && counts[&0] > 200 && counts[&1] > 200, "{counts:?}");
}

/// A kernel that slept is on time, and is late only after a long step.
#[pikake::sim(seeds = 50, threads = 3)]
async fn kernel_is_late_after_a_long_step() {
    let count = |number: usize| async move {
        let mut offered = 0;
        for _ in 0..number {
            sleep(SECOND).await.unwrap();
            offered += usize::from(should_offer());
        }
        offered
    };
    let on_time = count(100).await;
    assert!((20..80).contains(&on_time), "by the seed alone: {on_time}");
    let mut late = 0;
    for _ in 0..20 {
        let since = spawn(async { should_offer() });
        busy_for(2 * LATE);
        late += usize::from(since.await.unwrap());
    }
    assert_eq!(late, 20);
}
