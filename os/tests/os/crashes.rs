//! What a program that panics prints to standard error: each panic once, at a line of the program.
//!
//! Each program is a child process.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::process::Output;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use pikake::sync::{Queue, broadcast, mpsc};
use pikake::task::{Builder, ordered_map};
use pikake::thread::{run_in_thread, spawn_thread};
use pikake::{Bound, Kernel, TaskError, TaskGroup, sleep, spawn, timeout_after, yield_now};

use crate::support::child::{child, is_child};

const HOUR: Duration = Duration::from_secs(3_600);

fn output_of(test: &str) -> Output {
    child(test).env_remove("RUST_LOG").env("RUST_BACKTRACE", "0").output().unwrap()
}

/// The lines of standard error, without empty ones, the hint at backtraces, thread names and times.
fn reports(output: &Output) -> Vec<String> {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    let without = |line: &str| match (line.split_once(" panicked at "), line.split_once(" ERROR "))
    {
        (Some((_, place)), None) if line.starts_with("thread ") => format!("at {place}"),
        (_, Some((_, event))) => event.to_owned(),
        _ => line.to_owned(),
    };
    let is_kept = |line: &&str| !line.is_empty() && !line.starts_with("note: run with");
    text.lines().filter(is_kept).map(without).collect()
}

/// This file at a line.
fn at(line: u32, column: u32) -> String {
    format!("{}:{line}:{column}", file!())
}

#[test]
fn detached_panic_names_task_and_lines() {
    /// The line of the spawn and of the panic.
    const LINE: u32 = line!() + 4;

    #[pikake::main]
    async fn program() {
        let task = Builder::new().name("reader").spawn(async { panic!("no {} today", "luck") });
        task.detach();
        yield_now().await.unwrap();
    }

    let test = "crashes::detached_panic_names_task_and_lines";
    if is_child(test) {
        return program();
    }
    let output = output_of(test);
    assert!(output.status.success(), "{output:?}");
    let (spawned, panicked) = (at(LINE, 50), at(LINE, 64));
    assert_eq!(
        reports(&output),
        [
            format!("at {panicked}:"),
            "no luck today".to_owned(),
            format!(
                "pikake_traps::cell: task crashed: it panicked and was not joined task=2 \
                 name=\"reader\" spawned_at={spawned} panicked_at={panicked} panic=\"no luck today\""
            ),
        ]
    );
}

/// The main task's panic ends the program, and the joiner gets a joined task's.
#[test]
fn main_panic_and_joined_panic_are_printed_once() {
    const LINE: u32 = line!() + 4;

    #[pikake::main]
    async fn program() {
        let error = spawn(async { panic!("joined") }).await.unwrap_err();
        let thread = run_in_thread(|| panic!("in a thread")).await.unwrap_err();
        let place = |error: &TaskError| error.panic().unwrap().place().unwrap().to_owned();
        panic!("{error} ({}); {thread} ({})", place(&error), place(&thread));
    }

    let test = "crashes::main_panic_and_joined_panic_are_printed_once";
    if is_child(test) {
        return program();
    }
    let output = output_of(test);
    assert!(!output.status.success());
    let places = [at(LINE, 35), at(LINE + 1, 39), at(LINE + 3, 9)];
    let [joined, in_thread, main] = &places;
    assert_eq!(
        reports(&output)[..6],
        [
            format!("at {joined}:"),
            "joined".to_owned(),
            format!("at {in_thread}:"),
            "in a thread".to_owned(),
            format!("at {main}:"),
            format!(
                "the task panicked: joined ({joined}); the task panicked: in a thread ({in_thread})"
            ),
        ]
    );
    assert_eq!(reports(&output).len(), 6, "{output:?}");
}

/// A hook that the program sets stays, and is called once for each panic.
#[test]
fn hook_of_the_program_stays() {
    #[pikake::main]
    async fn program() {
        std::panic::set_hook(Box::new(|panic| {
            println!("the hook got {:?}", panic.payload_as_str());
        }));
        spawn(async { panic!("no luck") }).detach();
        yield_now().await.unwrap();
    }

    let test = "crashes::hook_of_the_program_stays";
    if is_child(test) {
        return program();
    }
    let output = output_of(test);
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(printed.matches("the hook got Some(\"no luck\")").count(), 1, "{printed}");
    let [report] = &reports(&output)[..] else { panic!("{output:?}") };
    assert!(report.starts_with("pikake_traps::cell: task crashed"), "{report}");
    assert!(report.ends_with("panic=\"no luck\"") && !report.contains("panicked_at"), "{report}");
}

/// Polls a future once, outside a task.
fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Calls a closure, and prints its line. The closure panics there.
#[track_caller]
fn misuse<T>(closure: impl FnOnce() -> T) {
    println!("\nat {}", std::panic::Location::caller().line());
    assert!(catch_unwind(AssertUnwindSafe(closure)).is_err(), "there was no panic");
}

/// The lines that [`misuse`] printed, and those of the panics.
fn lines_of(test: &str) -> (Vec<String>, Vec<String>) {
    let output = output_of(test);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    let called = printed.lines().filter(|line| line.starts_with("at "));
    let called = called.map(|line| format!("at {}:{}:", file!(), &line[3..])).collect();
    let is_place = |line: &&String| line.starts_with("at ");
    let without_column = |line: &String| {
        let (place, _) = line.trim_end_matches(':').rsplit_once(':').unwrap();
        format!("{place}:")
    };
    (called, reports(&output).iter().filter(is_place).map(without_column).collect())
}

#[test]
fn misuse_outside_a_kernel_panics_at_its_line() {
    let test = "crashes::misuse_outside_a_kernel_panics_at_its_line";
    if is_child(test) {
        misuse(|| spawn(async {}));
        misuse(|| Builder::new().name("a task").spawn(async {}));
        misuse(|| pikake::current());
        misuse(|| pikake::now());
        misuse(|| pikake::time::wall_time());
        misuse(|| pikake::random::u64());
        misuse(|| Bound::new(1));
        misuse(|| TaskGroup::new().spawn(async {}));
        misuse(|| poll(async { sleep(HOUR).await }));
        misuse(|| poll(async { sleep(Duration::ZERO).await }));
        misuse(|| poll(async { yield_now().await }));
        misuse(|| poll(async { pikake::future_wait(std::future::pending::<()>()).await }));
        misuse(|| poll(async { timeout_after(HOUR, async {}).await }));
        misuse(|| poll(async { pikake::timed(HOUR, async {}).await }));
        misuse(|| poll(async { pikake::shield(async {}).await }));
        misuse(|| poll(async { run_in_thread(|| 1).await }));
        misuse(|| poll(async { spawn_thread(|| 1).await }));
        misuse(|| poll(async { ordered_map(1..3, 1, async |n| n).next_outcome().await }));
        misuse(|| poll(async { TaskGroup::bounded(1).spawn(async {}).await.map(drop) }));
        misuse(|| poll(async { TcpStream::connect("127.0.0.1:9").await }));
        misuse(|| poll(async { TcpStream::connect("localhost:9").await }));
        misuse(|| poll(async { TcpListener::bind("127.0.0.1:0").await }));
        misuse(|| poll(async { TcpListener::bind_shared("127.0.0.1:0").await }));
        misuse(|| poll(async { UdpSocket::bind("127.0.0.1:0").await }));
        misuse(|| poll(async { UnixStream::connect("/no/socket").await }));
        misuse(|| poll(async { pikake::fs::read("/etc/hostname").await }));
        misuse(|| poll(async { pikake::fs::File::open("/etc/hostname").await }));
        misuse(|| poll(async { pikake::stdio::stdin().read(&mut [0]).await }));
        misuse(|| poll(async { pikake::stdio::stdout().write_all(b"text").await }));
        misuse(|| poll(async { pikake::process::Command::new("true").output().await }));
        misuse(|| poll(async { Queue::<u8>::bounded(1).get().await.map(drop) }));
        misuse(|| poll(async { mpsc::channel::<u8>(1).1.recv().await }));
        return;
    }
    let (called, panicked) = lines_of(test);
    assert_eq!((called.len(), panicked), (32, called));
}

#[test]
fn misuse_of_kernels_panics_at_its_line() {
    let test = "crashes::misuse_of_kernels_panics_at_its_line";
    if is_child(test) {
        let kernel = Kernel::new().unwrap();
        let mut waiting = Some(sleep(HOUR));
        kernel.run(async {
            misuse(|| pikake::run(async {}));
            misuse(|| Kernel::new().unwrap().run(async {}));
            misuse(|| Kernel::new().unwrap().shutdown());
            assert!(poll(waiting.as_mut().unwrap()).is_pending());
        });
        misuse(|| pikake::run(async { waiting.take().unwrap().await }));
        misuse(|| kernel.enter(|| poll(async { sleep(HOUR).await })));
        misuse(|| kernel.enter(|| poll(async { timeout_after(HOUR, async {}).await })));
        misuse(|| kernel.enter(|| pikake::current()));
        let bound = kernel.enter(|| Bound::new(1)).unwrap();
        let future = kernel.enter(|| Bound::future(async {})).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                misuse(|| *bound.get());
                misuse(|| poll(async { (future.await, 1) }));
            });
        });
        misuse(|| TaskGroup::<()>::bounded(0));
        misuse(|| broadcast::channel::<u8>(0));
        misuse(|| kernel.run(async { pikake::random::range(0..0) }));
        return;
    }
    let (called, panicked) = lines_of(test);
    assert_eq!((called.len(), panicked), (12, called));
}
