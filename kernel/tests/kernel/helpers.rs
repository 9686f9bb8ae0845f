//! Closures on helper threads: the limit, their order, the reuse of threads, and cancelled calls.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::panic_any;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use futures::future::{join_all, select};
use futures::poll;
use pikake::task::{run_in_thread, run_in_thread_with};
use pikake::{Kernel, TaskError, current, sleep, spawn, timeout_after, yield_now};

use crate::support::{ms, within};

/// Long enough for any machine to do what takes it no time.
const PATIENCE: Duration = Duration::from_secs(20);

/// A closure that waits for it goes on when the gate is opened, or dropped.
fn gate() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
    let (open, gate) = mpsc::channel();
    (open, move || {
        let _opened = gate.recv_timeout(PATIENCE);
    })
}

/// Looks again and again until it is so.
#[track_caller]
fn until(is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "it never came to be so");
        thread::sleep(ms(1));
    }
}

fn with_threads(limit: usize) -> Kernel {
    Kernel::builder().helper_threads(limit).build().unwrap()
}

#[test]
fn running_closures_never_exceed_the_thread_limit() {
    within(|| {
        let kernel = with_threads(3);
        let running = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let names = Arc::new(Mutex::new(BTreeSet::new()));
        kernel.run(async {
            let calls = (0..20).map(|number| {
                let (running, most, names) = (running.clone(), most.clone(), names.clone());
                run_in_thread(move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    names.lock().unwrap().insert(thread::current().name().unwrap().to_owned());
                    // Long enough for others to begin, and for all that may.
                    thread::sleep(ms(2));
                    until(|| most.load(Ordering::SeqCst) >= 3);
                    running.fetch_sub(1, Ordering::SeqCst);
                    number
                })
            });
            let numbers: Vec<u32> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
            assert_eq!(numbers, (0..20).collect::<Vec<_>>());
        });
        assert_eq!(most.load(Ordering::SeqCst), 3);
        let names: Vec<String> = names.lock().unwrap().iter().cloned().collect();
        assert_eq!(names, ["pikake-helper0", "pikake-helper1", "pikake-helper2"]);
    });
}

#[test]
fn waiting_closures_run_in_order_of_arrival() {
    within(|| {
        let kernel = with_threads(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        kernel.run(async {
            let (open, wait) = gate();
            let mut first = pin!(run_in_thread(wait));
            assert!(poll!(first.as_mut()).is_pending());
            let calls: Vec<_> = (0..10)
                .map(|number| {
                    let order = order.clone();
                    spawn(run_in_thread(move || order.lock().unwrap().push(number)))
                })
                .collect();
            yield_now().await.unwrap();
            drop(open);
            first.await.unwrap();
            for call in calls {
                call.await.unwrap().unwrap();
            }
        });
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    });
}

#[test]
fn last_busy_thread_is_reused_and_others_end() {
    const IDLE: Duration = Duration::from_secs(1);
    within(|| {
        let kernel = Kernel::builder().helper_idle_exit(IDLE).build().unwrap();
        kernel.run(async {
            let (open, wait) = gate();
            let mut slow = pin!(run_in_thread(wait));
            assert!(poll!(slow.as_mut()).is_pending());
            let name = || thread::current().name().map(str::to_owned);
            let other = run_in_thread(name).await.unwrap();
            drop(open);
            slow.await.unwrap();
            until(|| kernel.threads().idle == 2);
            let begin = Instant::now();
            while begin.elapsed() < 3 * IDLE {
                let again = run_in_thread(name).await.unwrap();
                assert_ne!(again, other, "the first one became idle last, and is used again");
            }
            let threads = kernel.threads();
            assert_eq!((threads.busy + threads.idle, threads.waiting), (1, 0), "{threads:?}");
        });
        until(|| kernel.threads().idle == 0);
        assert_eq!(kernel.threads().busy, 0);
        // And there will be others.
        assert_eq!(kernel.run(async { run_in_thread(|| 5).await.unwrap() }), 5);
    });
}

#[test]
fn closure_panic_reaches_the_caller_thread_goes_on() {
    within(|| {
        let kernel = with_threads(1);
        kernel.run(async {
            let first = run_in_thread(|| thread::current().id()).await.unwrap();
            let error = run_in_thread(|| panic!("over there")).await.unwrap_err();
            assert_eq!(error.panic_message(), Some("over there"));
            let error = run_in_thread(|| panic_any(7_u8)).await.unwrap_err();
            let TaskError::Panicked(panic) = error else { panic!("{error}") };
            assert!(panic.into_payload().is::<u8>());
            assert_eq!(run_in_thread(|| thread::current().id()).await.unwrap(), first);
        });
    });
}

#[test]
fn interruption_returns_at_once_and_notifies_the_closure() {
    within(|| {
        let kernel = with_threads(1);
        kernel.run(async {
            let (tell, told) = mpsc::channel();
            let hooked = Rc::new(Cell::new(false));
            let call = run_in_thread_with(move |cancel| {
                tell.send("started").unwrap();
                while !cancel.is_cancelled() {
                    thread::sleep(ms(1));
                }
                tell.send("stopped").unwrap();
            });
            let hook = hooked.clone();
            let call = spawn(call.on_cancel(move || hook.set(true)));
            yield_now().await.unwrap();
            assert_eq!(told.recv_timeout(PATIENCE), Ok("started"));
            assert!(!hooked.get());
            call.cancel().await.unwrap();
            let error = call.await.unwrap().unwrap_err();
            assert!(matches!(error, TaskError::Interrupted(why) if why.is_cancel()));
            assert!(hooked.get());
            assert_eq!(told.recv_timeout(PATIENCE), Ok("stopped"));
        });
    });
}

#[test]
fn thread_limit_holds_after_interrupted_calls() {
    within(|| {
        let kernel = with_threads(2);
        let (open, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        kernel.run(async {
            for _ in 0..2 {
                let gate = gate.clone();
                let (starts, is_started) = mpsc::channel();
                let mut call = pin!(run_in_thread(move || {
                    starts.send(()).unwrap();
                    gate.lock().unwrap().recv().is_err()
                }));
                assert!(poll!(call.as_mut()).is_pending());
                is_started.recv_timeout(PATIENCE).unwrap();
                assert!(timeout_after(ms(1), call.as_mut()).await.is_err());
            }
            let ran = Arc::new(AtomicUsize::new(0));
            // All of these wait, give up, and are never run.
            for _ in 0..1000 {
                let ran = ran.clone();
                let count = move || ran.fetch_add(1, Ordering::SeqCst);
                let mut call = pin!(run_in_thread(count).on_cancel(|| panic!("it never ran")));
                assert!(poll!(call.as_mut()).is_pending());
            }
            assert_eq!(Arc::strong_count(&ran), 1, "their closures are gone at once");
            let waits = ran.clone();
            let mut last = pin!(run_in_thread(move || waits.fetch_add(1, Ordering::SeqCst)));
            assert!(poll!(last.as_mut()).is_pending());
            let threads = kernel.threads();
            assert_eq!((threads.busy, threads.idle, threads.waiting), (2, 0, 1));
            assert!(format!("{kernel:?}").contains("waiting: 1"), "{kernel:?}");
            assert_eq!(threads.limit, 2);
            drop(open);
            assert_eq!(last.await.unwrap(), 0, "it is the first that runs");
        });
    });
}

#[test]
fn many_calls_and_cancels_leave_nothing_behind() {
    within(|| {
        let kernel = with_threads(3);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let hooks = Rc::new(Cell::new(0));
        kernel.run(async {
            let tasks: Vec<_> = (0..600_usize)
                .map(|number| {
                    let (running, most) = (running.clone(), most.clone());
                    let hooks = hooks.clone();
                    let call = run_in_thread_with(move |cancel| {
                        let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        for _ in 0..number % 7 {
                            thread::yield_now();
                        }
                        running.fetch_sub(1, Ordering::SeqCst);
                        (number, cancel.is_cancelled())
                    });
                    spawn(call.on_cancel(move || hooks.set(hooks.get() + 1)))
                })
                .collect();
            yield_now().await.unwrap();
            for task in tasks.iter().filter(|task| task.id().0 % 3 == 0) {
                task.request_cancel("");
                if task.id().0 % 2 == 0 {
                    yield_now().await.unwrap();
                }
            }
            let mut told = 0;
            for (number, task) in tasks.into_iter().enumerate() {
                match task.await.unwrap() {
                    Ok(done) => assert_eq!(done, (number, false)),
                    Err(TaskError::Interrupted(_)) => told += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(told <= 200 && hooks.get() <= told, "{told} told, {} hooks", hooks.get());
            until(|| kernel.threads().busy == 0);
            assert_eq!(kernel.threads().waiting, 0);
        });
        assert_eq!(Arc::strong_count(&running), 1, "no closure is left");
        assert_eq!(Rc::strong_count(&hooks), 1, "no hook is left");
        assert!(most.load(Ordering::SeqCst) <= 3);
    });
}

#[test]
fn call_with_a_pending_interruption_never_starts() {
    within(|| {
        pikake::run(async {
            let started = Arc::new(AtomicUsize::new(0));
            let inside = started.clone();
            let task = spawn(async move {
                current().request_cancel("before");
                let call = run_in_thread(move || inside.fetch_add(1, Ordering::SeqCst));
                let error = call.on_cancel(|| panic!("it never ran")).await.unwrap_err();
                assert!(matches!(error, TaskError::Interrupted(_)), "{error}");
                run_in_thread(|| "the next one is").await.unwrap()
            });
            assert_eq!(task.await.unwrap(), "the next one is");
            assert_eq!((started.load(Ordering::SeqCst), Arc::strong_count(&started)), (0, 1));
        });
    });
}

#[test]
fn dropped_call_is_notified_despite_hook_panic() {
    within(|| {
        pikake::run(async {
            let (tell, told) = mpsc::channel();
            let (started, is_started) = mpsc::channel();
            let call = run_in_thread_with(move |cancel| {
                started.send(()).unwrap();
                let begin = Instant::now();
                while !cancel.is_cancelled() && begin.elapsed() < PATIENCE {
                    thread::sleep(ms(1));
                }
                tell.send(cancel.is_cancelled()).unwrap();
            });
            let call = Box::pin(call.on_cancel(|| panic!("in the hook")));
            let wait = Box::pin(async {
                yield_now().await.unwrap();
                is_started.recv_timeout(PATIENCE).unwrap();
            });
            drop(select(call, wait).await);
            assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
        });
    });
}

#[test]
fn kernel_end_waits_for_no_thread() {
    within(|| {
        for shuts_down in [true, false] {
            let kernel = with_threads(1);
            let (open, wait) = gate();
            let (end, ended) = mpsc::channel();
            let (started, is_started) = mpsc::channel();
            let held = Arc::new(());
            let inside = held.clone();
            kernel.run(async {
                let running = run_in_thread_with(move |cancel| {
                    started.send(()).unwrap();
                    wait();
                    end.send(cancel.is_cancelled()).unwrap();
                });
                spawn(running).detach();
                spawn(run_in_thread(move || drop(inside))).detach();
                yield_now().await.unwrap();
                is_started.recv_timeout(PATIENCE).unwrap();
            });
            if shuts_down {
                kernel.shutdown();
                assert_eq!(Arc::strong_count(&held), 1, "what was not started is dropped");
            }
            drop(kernel);
            assert_eq!(Arc::strong_count(&held), 1, "what was not started is dropped");
            assert!(ended.try_recv().is_err(), "what was started is not waited for");
            drop(open);
            assert_eq!(ended.recv_timeout(PATIENCE), Ok(true), "it runs to its end, and knows");
        }
    });
}

#[test]
fn tasks_go_on_while_a_thread_blocks() {
    within(|| {
        pikake::run(async {
            let (open, wait) = gate();
            let call = spawn(run_in_thread(wait));
            for _ in 0..10 {
                sleep(ms(1)).await.unwrap();
            }
            assert!(!call.is_finished());
            drop(open);
            call.await.unwrap().unwrap();
        });
    });
}

#[test]
fn call_debug_shows_state_and_location() {
    within(|| {
        pikake::run(async {
            let (open, wait) = gate();
            let mut call = pin!(run_in_thread(wait));
            assert!(format!("{call:?}").contains("new"));
            assert!(poll!(call.as_mut()).is_pending());
            assert!(format!("{call:?}").contains("waiting"));
            assert!(format!("{call:?}").contains(file!()), "{call:?}");
            drop(open);
            call.as_mut().await.unwrap();
            assert!(format!("{call:?}").contains("finished"));
        });
        let outside = thread::spawn(|| futures::executor::block_on(run_in_thread(|| ())));
        let panic = outside.join().unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("needs a pikake kernel") && text.contains(file!()), "{text}");
    });
}
