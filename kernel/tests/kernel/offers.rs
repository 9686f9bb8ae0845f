//! Work that another kernel may begin: `spawn_anywhere`, and the services' part of it.

use std::io;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pikake::kernel::inspect::{PeerFigures, kernel_figures, tasks_from};
use pikake::task::{Builder, spawn_anywhere};
use pikake::time::ManualClock;
use pikake::traps::inspect::kernel_lateness;
use pikake::traps::{Claim, Peers, note_panic_places};
use pikake::{Kernel, Kernels, Task, TaskError, sleep, spawn, try_task_group, yield_now};

const LONG: Duration = Duration::from_secs(3600);

fn here() -> ThreadId {
    thread::current().id()
}

/// Spawns work that another kernel takes, before the current task yields: the ready task before it
/// makes the kernel offer the work, and the caller's thread waits until `begun` is sent.
fn taken<T, F>(make: impl FnOnce(Sender<ThreadId>) -> F + Send + 'static) -> (Task<T>, ThreadId)
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    spawn(async {}).detach();
    let (begun, begins) = channel();
    let task = spawn_anywhere(move || make(begun));
    let taker = begins.recv_timeout(Duration::from_secs(60)).expect("a kernel takes the work");
    assert_ne!(taker, here());
    (task, taker)
}

/// Keeps the threads of kernels busy until the value is dropped.
struct Busy {
    /// The drop of one frees its kernel.
    _ends: Vec<Sender<()>>,
}

impl Busy {
    fn new(kernels: &Kernels) -> Self {
        let (is_busy, busy) = channel();
        let keep = |kernel: pikake::KernelHandle| {
            let ((end, ended), is_busy) = (channel::<()>(), is_busy.clone());
            let wait: Box<dyn FnOnce() + Send> = Box::new(move || {
                is_busy.send(()).unwrap();
                let _ = ended.recv();
            });
            kernel.call_there(wait).unwrap();
            end
        };
        let _ends: Vec<_> = kernels.handles().into_iter().map(keep).collect();
        _ends.iter().for_each(|_| busy.recv().unwrap());
        Self { _ends }
    }
}

#[test]
fn work_begins_in_its_turn_on_a_kernel_without_others() {
    let order = pikake::run(async {
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let note = |number| {
            let order = order.clone();
            move || async move {
                let number = Rc::new(number);
                order.lock().unwrap().push(*number);
                *number
            }
        };
        let tasks = [spawn(note(1)()), spawn_anywhere(note(2)), spawn(note(3)())];
        for (task, number) in tasks.into_iter().zip(1..) {
            assert_eq!(task.await.unwrap(), number);
        }
        order.lock().unwrap().clone()
    });
    assert_eq!(order, [1, 2, 3]);
}

/// Each work blocks its thread until all of them have begun.
#[test]
fn work_begins_on_all_kernels() {
    #[pikake::main(threads = 3)]
    async fn main() -> Vec<ThreadId> {
        let barrier = Arc::new(Barrier::new(3));
        let meet = || {
            let barrier = barrier.clone();
            spawn_anywhere(move || async move {
                barrier.wait();
                here()
            })
        };
        let tasks = [meet(), meet(), meet()];
        let mut threads = Vec::new();
        for task in tasks {
            threads.push(task.await.unwrap());
        }
        threads
    }

    let mut threads = main();
    threads.sort_by_key(|id| format!("{id:?}"));
    threads.dedup();
    assert_eq!(threads.len(), 3);
}

fn figures() -> PeerFigures {
    kernel_figures().peers.expect("the kernel has peers")
}

#[test]
fn offers_are_counted_where_made_and_taken() {
    let counts = |it: PeerFigures| (it.offers_made, it.offers_taken);
    pikake::run(async {
        assert_eq!(kernel_figures().peers, None);
        let kernels = Kernels::start(1).unwrap();
        let (task, _) = taken(|begun| async move { begun.send(here()).unwrap() });
        task.await.unwrap();
        let other = kernels.handles()[0].call(|| async { figures() }).await.unwrap();
        assert_eq!([figures(), other].map(counts), [(1, 0), (0, 1)]);
        // Work that the kernel begins itself was offered, too.
        let busy = Busy::new(&kernels);
        spawn(async {}).detach();
        spawn_anywhere(|| async {}).await.unwrap();
        drop(busy);
        let other = kernels.handles()[0].call(|| async { figures() }).await.unwrap();
        assert_eq!([figures(), other].map(counts), [(2, 0), (0, 1)]);
    });
}

/// The time before is nobody's.
#[test]
fn kernel_that_joins_peers_is_not_late() {
    let clock = ManualClock::new();
    let kernel = Kernel::builder().clock(clock.clone()).build().unwrap();
    kernel.run(async {
        clock.advance(LONG);
        assert_eq!(kernel_lateness(), None);
        Peers::current_or_new().unwrap();
        for _ in 0..200 {
            clock.advance(Duration::from_millis(1));
            yield_now().await.unwrap();
            assert_eq!(kernel_lateness(), Some(figures().late));
        }
        let late = figures().late_max;
        assert!(late > Duration::ZERO && late < LONG, "{late:?}");
    });
}

/// Each step takes 20 ms, and the kernel polls its driver when all tasks have been stepped. The
/// tasks of the second round may have waited since the poll before the first one.
#[test]
fn lateness_is_since_the_poll_before_the_batch() {
    let clock = ManualClock::new();
    let kernel = Kernel::builder().clock(clock.clone()).peers(&Peers::new()).build().unwrap();
    clock.advance(LONG);
    let ms = |late: Duration| late.as_millis();
    let mut late = kernel.run(async {
        let compute = || {
            let clock = clock.clone();
            spawn(async move {
                yield_now().await.unwrap();
                let late = figures().late;
                clock.advance(Duration::from_millis(20));
                yield_now().await.unwrap();
                let later = figures().late;
                clock.advance(Duration::from_millis(20));
                [late, later]
            })
        };
        let tasks = [compute(), compute(), compute()];
        let mut late = Vec::new();
        for task in tasks {
            late.extend(task.await.unwrap().map(ms));
        }
        late.push(ms(figures().late_max));
        late
    });
    assert_eq!(late.pop(), Some(120));
    assert_eq!(late, [0, 60, 20, 80, 40, 100]);
    // The most of the last minute, and of up to one more. The time between two runs is nobody's.
    let later = |seconds| {
        clock.advance(Duration::from_secs(seconds));
        kernel.run(async { [figures().late, figures().late_max].map(ms) })
    };
    assert_eq!([59, 61].map(later), [[0, 120], [0, 0]]);
}

#[test]
fn work_that_nobody_takes_begins_at_home() {
    pikake::run(async {
        let kernels = Kernels::start(2).unwrap();
        let busy = Busy::new(&kernels);
        spawn(async {}).detach();
        let tasks = [(); 3].map(|()| spawn_anywhere(|| async { here() }));
        for task in tasks {
            assert_eq!(task.await.unwrap(), here());
        }
        drop(busy);
    });
}

/// Sends the thread on which it is dropped.
struct SendsDrop(Sender<ThreadId>);

impl Drop for SendsDrop {
    fn drop(&mut self) {
        // Nobody may listen.
        let _ = self.0.send(here());
    }
}

fn sends_drop() -> (SendsDrop, Receiver<ThreadId>) {
    let (dropped, drops) = channel();
    (SendsDrop(dropped), drops)
}

#[test]
fn cancel_withdraws_work_that_has_not_begun() {
    pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let busy = Busy::new(&kernels);
        spawn(async {}).detach();
        let (guard, drops) = sends_drop();
        let task = spawn_anywhere(move || async move { drop(guard) });
        task.request_cancel("not wanted");
        task.request_cancel("once more");
        let outcome = task.await;
        let Err(TaskError::Cancelled(why)) = &outcome else { panic!("{outcome:?}") };
        assert_eq!(why.reason(), Some("not wanted"));
        assert_eq!(drops.recv().unwrap(), here());
        drop(busy);
    });
}

#[test]
fn aborted_work_that_has_not_begun_is_dropped_at_once() {
    pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let busy = Busy::new(&kernels);
        spawn(async {}).detach();
        let (guard, drops) = sends_drop();
        let task = spawn_anywhere(move || async move { drop(guard) });
        task.abort();
        assert!(matches!(task.await, Err(TaskError::Cancelled(_))));
        assert_eq!(drops.recv().unwrap(), here());
        drop(busy);
    });
}

/// The cancel comes before the first step of the task at home, which then waits for the end.
#[test]
fn cancel_reaches_work_that_has_begun_elsewhere() {
    pikake::run(async {
        let _kernels = Kernels::start(2).unwrap();
        let (task, taker) = taken(|begun| async move {
            begun.send(here()).unwrap();
            let why = sleep(LONG).await.unwrap_err();
            sleep(Duration::from_millis(1)).await.unwrap(); // a cleanup
            (here(), why.reason().map(str::to_owned))
        });
        task.cancel().await.unwrap();
        assert!(task.is_finished());
        assert_eq!(task.await.unwrap(), (taker, None));
    });
}

/// Foreign futures cannot be interrupted: the kernel drops the work.
#[test]
fn cancelled_work_that_waits_on_foreign_futures_is_dropped() {
    pikake::run(async {
        let _kernels = Kernels::start(1).unwrap();
        let (guard, drops) = sends_drop();
        let (task, taker) = taken(|begun| async move {
            let _guard = guard;
            begun.send(here()).unwrap();
            std::future::pending::<()>().await;
        });
        yield_now().await.unwrap();
        task.request_cancel("enough");
        let outcome = task.await;
        let Err(TaskError::Cancelled(why)) = &outcome else { panic!("{outcome:?}") };
        assert_eq!(why.reason(), Some("enough"));
        assert_eq!(drops.recv().unwrap(), taker);
    });
}

#[test]
fn abort_drops_work_that_has_begun_elsewhere() {
    for waits in [false, true] {
        pikake::run(async {
            let _kernels = Kernels::start(1).unwrap();
            let (guard, drops) = sends_drop();
            let (task, taker) = taken(|begun| async move {
                let _guard = guard;
                begun.send(here()).unwrap();
                drop(sleep(LONG).await);
                panic!("the work goes on");
            });
            if waits {
                yield_now().await.unwrap();
            }
            task.abort();
            assert!(matches!(task.await, Err(TaskError::Cancelled(_))));
            assert_eq!(drops.recv_timeout(Duration::from_secs(60)).unwrap(), taker);
        });
    }
}

#[test]
fn panic_of_work_is_the_task_s() {
    note_panic_places();
    pikake::run(async {
        let _kernels = Kernels::start(1).unwrap();
        let (task, _) = taken(|begun| async move {
            begun.send(here()).unwrap();
            panic!("as it must be");
        });
        let task: Task<()> = task;
        let outcome = task.await;
        let Err(TaskError::Panicked(panic)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(panic.message(), Some("as it must be"));
        assert!(panic.place().is_some_and(|place| place.contains("offers.rs")), "{panic:?}");
    });
}

/// Its first step is not over, so the kernel drops the work at the end of its grace.
#[test]
fn kernel_that_ends_has_no_outcome() {
    pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let (task, _) = taken(|begun| async move {
            begun.send(here()).unwrap();
            sleep(LONG).await
        });
        drop(kernels);
        // The shutdown interrupts the work, as it does all tasks of the kernel.
        let outcome = task.await.unwrap();
        assert_eq!(outcome.unwrap_err().reason(), Some("the kernel is being shut down"));
    });
}

/// The offers of a kernel that ends are dropped with its tasks.
#[test]
fn offers_end_with_their_kernel() {
    let peers = Peers::new();
    let kernel = || Kernel::builder().peers(&peers).build().unwrap();
    let (one, other) = (kernel(), kernel());
    let (guard, drops) = sends_drop();
    one.run(async {
        spawn(async {}).detach();
        spawn_anywhere(move || async move { drop(guard) }).detach();
    });
    assert!(drops.try_recv().is_err());
    drop(one);
    assert_eq!(drops.try_recv(), Ok(here()));
    other.run(async { yield_now().await.unwrap() });
}

/// Listings of both kernels say which work it is.
#[test]
fn work_is_listed_where_it_runs() {
    pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let (begun, begins) = channel();
        spawn(async {}).detach();
        let work = |(): ()| async move {
            begun.send(()).unwrap();
            drop(sleep(LONG).await);
        };
        let claim = |claim| async move {
            match claim {
                Claim::Here(()) => panic!("nobody has taken it"),
                Claim::There(taken) => taken.output().await,
            }
        };
        let task = Builder::new().name("sums").offer((), work, claim);
        begins.recv_timeout(Duration::from_secs(60)).unwrap();
        yield_now().await.unwrap();
        task.task_ref().inspect();
        yield_now().await.unwrap();
        let waits = task.task_ref().seen_waits();
        let [wait] = &waits[..] else { panic!("{waits:?}") };
        let about = wait.about.as_ref().unwrap().to_string();
        let kernel = kernels.handles().remove(0);
        let listed = kernel.call(|| async {
            let tasks = tasks_from(0, 10).tasks;
            let listed = tasks.iter().find(|task| task.name().starts_with("sums")).unwrap();
            (listed.id(), listed.name().to_owned(), listed.spawned_at())
        });
        let (id, name, place) = listed.await.unwrap();
        assert_eq!(about, format!("its work, task {} of kernel {}", id.0, kernel.id()));
        assert_eq!(name, format!("sums of kernel {}", pikake::current().kernel()));
        assert_eq!(place, task.task_ref().spawned_at());
        task.cancel().await.unwrap();
        drop(kernels);
    });
}

/// The group's failure cancels work that has begun elsewhere, and waits for its end.
#[test]
fn group_owns_its_work() {
    pikake::run(async {
        let _kernels = Kernels::start(1).unwrap();
        let (ended, ends) = channel();
        let outcome = try_task_group(async |group| {
            group.spawn(async { Ok::<_, io::Error>(()) });
            let (begun, begins) = channel();
            group.spawn_anywhere(move || async move {
                begun.send(here()).unwrap();
                let slept = sleep(LONG).await;
                sleep(Duration::from_millis(1)).await.unwrap(); // a cleanup
                ended.send(here()).unwrap();
                Ok(slept?)
            });
            assert_ne!(begins.recv_timeout(Duration::from_secs(60)).unwrap(), here());
            Err::<(), _>(io::Error::other("failed"))
        });
        assert!(outcome.await.is_err());
        assert_ne!(ends.try_recv().unwrap(), here());
    });
}

/// A cancel that comes after the panic, and before the task at home has seen it.
#[test]
fn panic_of_work_beats_a_later_cancel() {
    pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let (task, _) = taken(|begun| async move {
            begun.send(here()).unwrap();
            panic!("as it must be");
        });
        let task: Task<()> = task;
        // The other kernel has ended its step of the work, and this one steps no task meanwhile.
        let (ended, ends) = channel();
        kernels.handles().remove(0).call_there(Box::new(move || ended.send(()).unwrap())).unwrap();
        ends.recv_timeout(Duration::from_secs(60)).unwrap();
        task.request_cancel("too late");
        assert!(matches!(task.await, Err(TaskError::Panicked(_))));
    });
}
