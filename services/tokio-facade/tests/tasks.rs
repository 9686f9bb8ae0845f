//! Tasks on the real kernel: each result reaches its handle, and each future is dropped.
#![expect(clippy::async_yields_async, reason = "a handle leaves its kernel")]

use std::future::pending;
use std::io::Read;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc};

use pikake_kernel::Kernel;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Builder;
use tokio::task::{yield_now, LocalSet};

/// A runtime that a destructor uses during a panic keeps the futures of its tasks.
#[test]
fn tasks_live_during_a_panic() {
    static RESULT: AtomicUsize = AtomicUsize::new(0);
    struct Finish;
    impl Drop for Finish {
        fn drop(&mut self) {
            let runtime = Builder::new_current_thread().build().unwrap();
            let task = async {
                yield_now().await;
                7
            };
            let result = runtime.block_on(async { tokio::spawn(task).await });
            RESULT.store(result.unwrap_or(0), Ordering::SeqCst);
        }
    }
    let panicked = std::panic::catch_unwind(|| {
        let _finish = Finish;
        panic!("on purpose");
    });
    assert!(panicked.is_err());
    assert_eq!(RESULT.load(Ordering::SeqCst), 7);
}

/// Aborts and drops of the handle, of the runtime and of the task's end meet in every order: the
/// future is dropped once, and a handle that is kept gets a result.
#[test]
fn ends_race_with_requests_of_threads() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPS.fetch_add(1, Ordering::SeqCst);
        }
    }
    const TASKS: usize = 400;
    let runtime = Builder::new_current_thread().build().unwrap();
    let handle = runtime.handle().clone();
    let spawner = std::thread::spawn(move || {
        let mut handles = Vec::new();
        for number in 0..TASKS {
            let counted = Counted;
            let task = handle.spawn(async move {
                for _ in 0..number % 7 {
                    yield_now().await;
                }
                drop(counted);
            });
            match number % 4 {
                0 => task.abort(),
                1 => drop(task),
                2 => {
                    let abort = task.abort_handle();
                    std::thread::spawn(move || abort.abort()).join().unwrap();
                    handles.push(task);
                }
                _ => handles.push(task),
            }
        }
        handles
    });
    runtime.block_on(async {
        while !spawner.is_finished() {
            yield_now().await;
        }
    });
    drop(runtime);
    let waiting = Builder::new_current_thread().build().unwrap();
    waiting.block_on(async {
        for task in spawner.join().unwrap() {
            if let Err(error) = task.await {
                assert!(error.is_cancelled());
            }
        }
    });
    assert_eq!(DROPS.load(Ordering::SeqCst), TASKS);
}

/// The end of a kernel drops the futures of its tasks, and a handle elsewhere gets that.
#[test]
fn interrupted_tasks_are_cancelled() {
    let waiting = Builder::new_current_thread().build().unwrap();
    for is_shut_down in [false, true] {
        let value = Arc::new(());
        let kept = value.clone();
        let kernel = Kernel::new().unwrap();
        let task = kernel.run(async {
            let task = tokio::spawn(async move {
                let _kept = kept;
                pending::<()>().await
            });
            yield_now().await;
            task
        });
        match is_shut_down {
            true => kernel.shutdown(),
            false => drop(kernel),
        }
        assert_eq!(Arc::strong_count(&value), 1);
        assert!(waiting.block_on(task).unwrap_err().is_cancelled());
    }
}

/// A closure whose runtime ends gives its result if it has begun, and is dropped if not.
#[test]
fn closures_outlive_their_runtime() {
    let runtime = Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    let (begun, begins) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let first = runtime.spawn_blocking(move || {
        begun.send(()).unwrap();
        let _ = ends.recv();
        7
    });
    let value = Arc::new(());
    let kept = value.clone();
    let second = runtime.spawn_blocking(move || drop(kept));
    runtime.block_on(async {
        yield_now().await;
    });
    begins.recv().unwrap();
    drop(runtime);
    assert_eq!(Arc::strong_count(&value), 1);
    drop(end);
    let waiting = Builder::new_current_thread().build().unwrap();
    assert!(waiting.block_on(second).unwrap_err().is_cancelled());
    assert_eq!(waiting.block_on(first).unwrap(), 7);
}

/// What a program has written to a file gets there, though the runtime ends before.
#[test]
fn writes_outlive_their_runtime() {
    const LENGTH: usize = 1 << 20;
    /// More than a pipe holds.
    const MOST_LEFT: usize = 1 << 17;
    for is_queued in [true, false] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let received = Arc::new(AtomicUsize::new(0));
        let counted = received.clone();
        let (read, reads) = mpsc::channel::<()>();
        let reader = std::thread::spawn(move || {
            let _ = reads.recv();
            let (mut reader, mut data) = (std::fs::File::from(reader), [0; 1 << 12]);
            while let length @ 1.. = reader.read(&mut data).unwrap() {
                counted.fetch_add(length, Ordering::SeqCst);
            }
        });
        let runtime = Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let (end, ends) = mpsc::channel::<()>();
        runtime.block_on(async {
            if is_queued {
                tokio::task::spawn_blocking(move || ends.recv());
            }
            let mut file = File::from_std(std::fs::File::from(writer));
            file.write_all(&[1; LENGTH]).await.unwrap();
        });
        drop(read);
        drop(runtime);
        assert!(received.load(Ordering::SeqCst) >= LENGTH - MOST_LEFT);
        drop(end);
        reader.join().unwrap();
        assert_eq!(received.load(Ordering::SeqCst), LENGTH);
    }
}

/// The drop of a set drops the futures of its tasks at once. A panic of that reaches the handle.
#[test]
fn sets_drop_their_futures() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    let runtime = Builder::new_current_thread().build().unwrap();
    let set = LocalSet::new();
    let value = Rc::new(());
    let (kept, unstarted) = (value.clone(), value.clone());
    let task = set.block_on(&runtime, async {
        let task = tokio::task::spawn_local(async move {
            let (_kept, _panics) = (kept, Panics);
            pending::<()>().await
        });
        yield_now().await;
        task
    });
    let unstarted = set.spawn_local(async move { drop(unstarted) });
    drop(set);
    assert!(runtime.block_on(unstarted).unwrap_err().is_cancelled());
    assert_eq!(Rc::strong_count(&value), 1);
    assert!(runtime.block_on(task).unwrap_err().is_panic());
}

/// A runtime that another thread drops leaves its tasks to its own thread, until that makes or runs
/// another one.
#[test]
fn runtimes_dropped_elsewhere_end() {
    let value = Arc::new(());
    let start = || {
        let runtime = Builder::new_current_thread().build().unwrap();
        let kept = value.clone();
        let task = runtime.spawn(async move {
            let _kept = kept;
            pending::<()>().await
        });
        runtime.block_on(yield_now());
        std::thread::spawn(move || drop(runtime)).join().unwrap();
        task
    };
    let tasks = [start(), start()];
    let waiting = Builder::new_current_thread().build().unwrap();
    assert_eq!(Arc::strong_count(&value), 1);
    for task in tasks {
        assert!(waiting.block_on(task).unwrap_err().is_cancelled());
    }
}
