//! A wait is unaffected by its neighbours: waits dropped beside it, bytes taken from its socket,
//! threads that cannot be started.
//!
//! These tests take no real time. A lost wake-up hangs its test, which `within` turns into a
//! failure.

#[cfg(target_os = "linux")]
use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::select;
use futures::stream::{FuturesUnordered, StreamExt};
use pikake::kernel::{Builder, Driver, Pick};
use pikake::time::{ManualClock, Ticks, elapsed_since};
use pikake::traps::{
    Attempt, SocketId, attempt, blocking, elapse, future_wait, lookup, start_thread,
};
use pikake::{
    Interrupted, Kernel, TaskError, TimedOut, current, now, shield, sleep, spawn, timeout_after,
    yield_now,
};

use crate::support::child;
use crate::support::sockets::{pair, read, write};
use crate::support::warnings::OnWarning;
use crate::support::{Faults, Faulty, Log, OnDrop, Recorder, builder, kernel, ms, run, within};

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// Far beyond anything that a test waits for.
const LONG: Duration = Duration::from_secs(100);

/// Never ends. At each poll it polls a new uninterruptible wait and drops it.
async fn drop_an_elapse_at_each_poll() {
    poll_fn(|cx| {
        let mut wait = elapse(ms(5_000));
        assert!(Pin::new(&mut wait).poll(cx).is_pending());
        Poll::<()>::Pending
    })
    .await;
}

#[test]
fn a_deadline_spares_shields_beside_dropped_elapses() {
    within(|| {
        let log = Log::default();
        let outcome = run(timeout_after(ms(20), async {
            let started = now();
            let (sender, receiver) = oneshot::channel();
            spawn(async move {
                sleep(ms(300)).await.unwrap();
                sender.send(()).unwrap();
            })
            .detach();
            let commit = pin!(shield(async {
                receiver.await.unwrap();
                log.add(format_args!("committed after {:?}", elapsed_since(started)));
            }));
            select(commit, pin!(drop_an_elapse_at_each_poll())).await;
        }));
        assert_eq!(log.take(), ["committed after 300ms"]);
        // No wait has returned the deadline.
        assert_eq!(outcome, Ok(()));
    });
}

#[test]
fn a_dropped_elapse_does_not_end_cleanup() {
    within(|| {
        let log = Log::default();
        let outcome = run(timeout_after(ms(20), async {
            let started = now();
            sleep(LONG).await.expect_err("the deadline");
            let cleanup = pin!(sleep(ms(2_000)));
            select(cleanup, pin!(drop_an_elapse_at_each_poll())).await;
            log.add(format_args!("cleaned up after {:?}", elapsed_since(started)));
        }));
        assert_eq!(outcome, Err(TimedOut));
        assert_eq!(log.take(), ["cleaned up after 2.02s"]);
    });
}

/// Short scopes inside poll all children. They have ended when the outer deadline passes.
#[test]
fn a_deadline_interrupts_children_of_ended_scopes() {
    for is_scoped in [false, true] {
        within(move || {
            let log = Log::default();
            let outcome = run(timeout_after(ms(50), async {
                let started = now();
                let sleeper = log.clone();
                let children: [Boxed<()>; 2] = [
                    Box::pin(async move {
                        sleep(LONG).await.expect_err("the deadline");
                        sleeper.add(format_args!("interrupted after {:?}", elapsed_since(started)));
                    }),
                    Box::pin(async { sleep(ms(5)).await.unwrap() }),
                ];
                let mut children = FuturesUnordered::from_iter(children);
                for _ in 0..2 {
                    match is_scoped {
                        true => timeout_after(ms(5_000), children.next()).await.unwrap(),
                        false => children.next().await,
                    };
                    log.add(format_args!("ended after {:?}", elapsed_since(started)));
                }
            }));
            assert_eq!(outcome, Err(TimedOut));
            assert_eq!(
                log.take(),
                ["ended after 5ms", "interrupted after 50ms", "ended after 50ms"]
            );
        });
    }
}

/// The wait of a cleanup.
#[derive(Clone, Copy)]
enum Cleanup {
    Sleep,
    Foreign,
}

/// More polls than cleanup by a single wait needs: when it begins, at its end, and for a report.
const MOST_POLLS: u32 = 5;

/// Runs a cleanup of 5 s, long enough to be reported as slow, and checks how often it is polled.
fn assert_polled_a_few_times(builder: Builder<ManualClock>, grace: Option<Duration>, by: Cleanup) {
    let polls = Cell::new(0);
    let outcome = builder.build().unwrap().run(async {
        let (sender, receiver) = oneshot::channel();
        spawn(async move {
            sleep(ms(5_020)).await.unwrap();
            sender.send(()).unwrap();
        })
        .detach();
        let body = async {
            sleep(LONG).await.expect_err("the deadline");
            let mut cleanup: Boxed<()> = match by {
                Cleanup::Sleep => Box::pin(async { sleep(ms(5_000)).await.unwrap() }),
                Cleanup::Foreign => Box::pin(async { receiver.await.unwrap() }),
            };
            poll_fn(|cx| {
                polls.set(polls.get() + 1);
                assert!(polls.get() <= MOST_POLLS, "polled again and again");
                cleanup.as_mut().poll(cx)
            })
            .await;
            assert_eq!(elapsed_since(Ticks::ZERO), ms(5_020));
        };
        let scope = timeout_after(ms(20), body);
        match grace {
            Some(grace) => scope.grace(grace).await,
            None => scope.await,
        }
    });
    assert_eq!(outcome, Err(TimedOut));
}

#[test]
fn unreported_cleanup_is_polled_a_few_times() {
    within(|| {
        let builder = builder().slow_cleanup(Duration::MAX);
        assert_polled_a_few_times(builder, None, Cleanup::Sleep);
    });
}

#[test]
fn an_endless_grace_polls_a_few_times() {
    within(|| assert_polled_a_few_times(builder(), Some(Duration::MAX), Cleanup::Sleep));
}

#[test]
fn an_endless_foreign_grace_polls_a_few_times() {
    within(|| {
        let builder = builder().foreign_grace(Duration::MAX);
        assert_polled_a_few_times(builder, None, Cleanup::Foreign);
    });
}

#[test]
fn endless_cleanup_is_polled_a_few_times() {
    for by in [Cleanup::Sleep, Cleanup::Foreign] {
        within(move || {
            let max = Duration::MAX;
            let builder = builder().slow_cleanup(max).foreign_grace(max);
            assert_polled_a_few_times(builder, Some(max), by);
        });
    }
}

/// Takes the byte that woke a reader before the kernel steps the reader, waits for more, and drops
/// that wait in the same step. The reader, in its own step, has to wait again.
async fn snatch(socket: SocketId) {
    loop {
        let taken = attempt(socket, Attempt::Read(&mut [0; 8])).is_ok();
        // The kernel learns here that no bytes are left.
        let _ = attempt(socket, Attempt::Read(&mut [0; 8]));
        let mut wait = pin!(read(socket));
        match futures::poll!(wait.as_mut()) {
            Poll::Pending => return assert!(taken, "nothing has come for the reader"),
            // The reader waits.
            Poll::Ready(refused) => drop(refused.unwrap_err()),
        }
        yield_now().await.unwrap();
    }
}

/// Runs a test on a reader whose byte another task took.
///
/// The test gets the reader, which waits again after a poll in vain, and the other end of the pair.
fn with_a_reader_woken_in_vain(test: impl AsyncFnOnce(pikake::Task<usize>, SocketId)) {
    // The kernel looks for events after each step, so it steps `snatch` again before the reader.
    let kernel = builder().poll_every_steps(1).build().unwrap();
    kernel.run(async {
        let (here, there) = pair();
        let reader = spawn(async move { read(here).await.expect("no other task waits") });
        yield_now().await.unwrap();
        let snatching = spawn(snatch(here));
        yield_now().await.unwrap();
        write(there, "x");
        snatching.await.unwrap();
        yield_now().await.unwrap();
        reader.task_ref().waker().wake();
        yield_now().await.unwrap();
        yield_now().await.unwrap();
        test(reader, there).await;
    });
    assert_eq!(kernel.wait_count(), 0, "waits are left that no task owns");
}

#[test]
fn a_reader_woken_in_vain_waits_on() {
    within(|| {
        with_a_reader_woken_in_vain(async |reader, there| {
            assert!(!reader.is_finished());
            write(there, "yz");
            let bytes = timeout_after(ms(100), reader).await.expect("the reader is woken");
            assert_eq!(bytes.unwrap(), 2);
        });
    });
}

#[test]
fn an_aborted_reader_woken_in_vain_leaves_nothing() {
    within(|| {
        with_a_reader_woken_in_vain(async |reader, _| {
            reader.abort();
            reader.await.expect_err("aborted");
        });
    });
}

#[test]
fn a_reader_woken_in_vain_may_read_again() {
    within(|| {
        let kernel = builder().poll_every_steps(1).build().unwrap();
        kernel.run(async {
            let (here, there) = pair();
            let reader = spawn(async move {
                timeout_after(ms(50), read(here)).await.expect_err("another took the byte");
                read(here).await
            });
            yield_now().await.unwrap();
            let snatching = spawn(snatch(here));
            yield_now().await.unwrap();
            write(there, "x");
            snatching.await.unwrap();
            sleep(ms(100)).await.unwrap();
            write(there, "yz");
            assert_eq!(reader.await.unwrap().expect("no other task waits"), 2);
        });
        assert_eq!(kernel.wait_count(), 0);
    });
}

/// Each wait of the main task is answered by a task that runs only while the main task waits.
#[test]
fn observers_see_the_end_of_foreign_waits() {
    within(|| {
        let recorder = Recorder::default();
        let faults = Faults::default();
        let kernel = builder().observer(recorder.clone()).build_on(Faulty::new(&faults));
        kernel.run(async {
            let (sender, receiver) = oneshot::channel();
            spawn(async move { sender.send(()).unwrap() }).detach();
            future_wait(receiver).await.unwrap().unwrap();

            let (sender, receiver) = mpsc::channel();
            spawn(async move { sender.send(()).unwrap() }).detach();
            blocking(move || receiver.recv().unwrap()).await.unwrap();

            faults.keep_lookup.set(true);
            let lookups = faults.lookups.clone();
            spawn(async move { lookups.take().pop().unwrap().send(Ok(Vec::new())) }).detach();
            assert!(lookup("somewhere", 80).await.unwrap().is_empty());
        });
        let mut seen = recorder.0.take();
        seen.retain(|event| event.starts_with("  main"));
        let expected = [
            "  main waits: future_wait",
            "  main goes on: future_wait done",
            "  main waits: blocking",
            "  main goes on: blocking done",
            "  main waits: lookup",
            "  main goes on: lookup done",
        ];
        assert_eq!(seen, expected);
    });
}

#[test]
fn an_attempt_between_runs_has_its_own_quota() {
    within(|| {
        let kernel = builder().attempts_per_step(1).build().unwrap();
        let read_one = |socket| {
            let mut byte = [0];
            attempt(socket, Attempt::Read(&mut byte)).unwrap();
            byte[0]
        };
        let here = kernel.run(async {
            let (here, there) = pair();
            write(there, "hello");
            let error = attempt(here, Attempt::Read(&mut [0])).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "the step has had its share");
            here
        });
        assert_eq!([read_one(here), read_one(here)], *b"he");
        assert_eq!(kernel.enter(|| [read_one(here), read_one(here)]).unwrap(), *b"ll");
        assert_eq!(kernel.run(async { read_one(here) }), b'o');
    });
}

thread_local! {
    /// The clock that [`report_slowly`] moves.
    static SLOWED: RefCell<Option<ManualClock>> = const { RefCell::new(None) };
}

/// Takes 60 ms for a warning.
fn report_slowly(_: &tracing::Event<'_>) {
    SLOWED.with_borrow(|clock| {
        if let Some(clock) = clock {
            clock.advance(ms(60));
        }
    });
}

/// The test that the next one starts.
const SLOW_REPORT: &str = "mended_waits::report_that_outlasts_a_grace";

/// The output of a child whose task was dropped in time.
const WAS_DROPPED: &str = "the task was dropped in time";

/// The report of the slow cleanup begins 10 ms before the foreign grace ends, and takes 60 ms.
///
/// A child runs it, alone: another thread that meets the warning for the first time, and without a
/// subscriber, may switch the warning off for all.
#[test]
fn a_foreign_grace_ends_during_a_report() {
    let (is_good, printed) = child::run(&mut child::child(SLOW_REPORT));
    assert!(is_good && printed.contains(WAS_DROPPED), "{printed}");
}

#[test]
fn report_that_outlasts_a_grace() {
    if !child::is_child(SLOW_REPORT) {
        return;
    }
    within(|| {
        let clock = ManualClock::auto();
        SLOWED.set(Some(clock.clone()));
        let kernel = Kernel::builder().clock(clock.clone()).build().unwrap();
        let started = clock.clone();
        let outcome = tracing::subscriber::with_default(OnWarning(report_slowly), || {
            kernel.run(async {
                let cleanup = spawn(timeout_after(ms(20), async move {
                    sleep(LONG).await.expect_err("the deadline");
                    started.advance(ms(10));
                    pending::<()>().await;
                }));
                let outcome = timeout_after(ms(5_000), cleanup).await;
                (outcome.expect("it is dropped in time").unwrap(), elapsed_since(Ticks::ZERO))
            })
        });
        assert_eq!(outcome, (Err(TimedOut), ms(1_080)));
    });
    println!("{WAS_DROPPED}");
}

/// Starts a thread, which is refused. The closure owns a value that uses a socket when it is
/// dropped.
fn start_a_thread_in_vain(
    kernel: &Kernel<ManualClock, impl Pick + 'static, impl Driver + 'static>,
) {
    kernel.run(async {
        let (here, there) = pair();
        let is_dropped = Arc::new(AtomicBool::new(false));
        let guard = OnDrop({
            let is_dropped = is_dropped.clone();
            move || {
                write(there, "x");
                is_dropped.store(true, Ordering::Relaxed);
            }
        });
        start_thread("refused", move || drop(guard)).expect_err("no thread is to be had");
        assert!(is_dropped.load(Ordering::Relaxed));
        assert_eq!(read(here).await.unwrap(), 1);
    });
}

#[test]
fn a_closure_refused_by_the_driver_drops_safely() {
    within(|| {
        let faults = Faults::default();
        faults.start_thread.set(true);
        start_a_thread_in_vain(&builder().build_on(Faulty::new(&faults)));
    });
}

/// A child process asks for stacks so large that the system refuses each thread.
#[cfg(target_os = "linux")]
#[test]
fn a_closure_refused_by_the_system_drops_safely() {
    let mut child = child::child(REFUSED_BY_THE_SYSTEM);
    let (is_good, printed) = child::run(child.env("RUST_MIN_STACK", (1_u64 << 60).to_string()));
    assert!(is_good && printed.contains(WAS_REFUSED), "{printed}");
}

#[cfg(target_os = "linux")]
const REFUSED_BY_THE_SYSTEM: &str = "mended_waits::thread_refused_by_the_system";

/// Printed when the thread was refused and the assertions about it hold.
#[cfg(target_os = "linux")]
const WAS_REFUSED: &str = "the thread was refused";

/// A program for a child.
#[cfg(target_os = "linux")]
#[test]
fn thread_refused_by_the_system() {
    if child::is_child(REFUSED_BY_THE_SYSTEM) {
        start_a_thread_in_vain(&kernel());
        println!("{WAS_REFUSED}");
    }
}

/// A kernel with a task in its foreign grace. The grace has the second timer of this kernel; the
/// first one is gone.
fn kernel_with_cleanup() -> Kernel<ManualClock> {
    let kernel = kernel();
    kernel.run(async {
        let cleanup = spawn(async {
            sleep(LONG).await.expect_err("asked to end");
            pending::<()>().await;
        });
        yield_now().await.unwrap();
        cleanup.request_cancel("enough");
        yield_now().await.unwrap();
        yield_now().await.unwrap();
        assert!(!cleanup.is_finished());
        cleanup.detach();
    });
    assert_eq!(kernel.wait_count(), 1, "the end of the grace");
    kernel
}

/// Both kernels number their timers alike, so one of these sleeps has the number of the timer that
/// the dropped kernel removes.
#[test]
fn dropping_a_kernel_spares_timers_of_another() {
    for timers_before in 0..4 {
        within(move || {
            let other = kernel_with_cleanup();
            let outcome = run(async move {
                let sleeper = spawn(async move {
                    for _ in 0..timers_before {
                        assert!(futures::poll!(pin!(sleep(LONG))).is_pending());
                    }
                    sleep(ms(300)).await.unwrap();
                    elapsed_since(Ticks::ZERO)
                });
                yield_now().await.unwrap();
                drop(other);
                timeout_after(ms(2_000), sleeper).await
            });
            assert_eq!(outcome.expect("it ends").unwrap(), ms(300));
        });
    }
}

/// A sleep of no length that is dropped in its step makes its task ready once more, and is no wake:
/// a task that was asked to end, and waits on a foreign future alone, is dropped after that step.
#[test]
fn an_abandoned_sleep_keeps_no_lost_task() {
    within(|| {
        kernel().run(async {
            let polls = Rc::new(Cell::new(0));
            let of_task = polls.clone();
            let task = spawn(async move {
                shield(async {
                    current().task_ref().request_cancel(Interrupted::cancelled("enough"));
                    yield_now().await.unwrap();
                    let mut nap = Box::pin(sleep(Duration::ZERO));
                    assert!(poll_fn(|cx| Poll::Ready(nap.as_mut().poll(cx))).await.is_pending());
                })
                .await;
                poll_fn(|_| {
                    of_task.set(of_task.get() + 1);
                    Poll::<()>::Pending
                })
                .await;
            });
            let outcome = task.await;
            assert!(matches!(outcome, Err(TaskError::Cancelled(_))), "{outcome:?}");
            assert_eq!(polls.get(), 1);
        });
    });
}
