//! Listeners to signals.
//!
//! Each test has signals of its own, since handlers belong to the process. Signals that end a
//! process go to a child.

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio, exit};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use futures::StreamExt;
use pikake::net::interruption;
use pikake::signal::{
    self, SIGALRM, SIGHUP, SIGINT, SIGIO, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH,
    Signals, ctrl_c,
};
use pikake::{
    Kernel, TimedOut, interrupt_on_signals, sleep, spawn, timed, timeout_after, yield_now,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::child::{self, is_child};

/// Tells the child which program to be.
const PROGRAM: &str = "PIKAKE_TEST_PROGRAM";

/// Longer than any test takes.
const FOREVER: Duration = Duration::from_secs(60);

/// Long enough to be seen as a wait.
const A_MOMENT: Duration = Duration::from_millis(20);

/// Handled before it returns. One that is sent to the process is handled by any thread, some time.
fn raise(signal: i32) {
    signal_hook::low_level::raise(signal).unwrap();
}

#[pikake::test]
async fn a_signal_wakes_a_kernel_that_sleeps() {
    let mut signals = Signals::new([SIGUSR1, SIGUSR2]).unwrap();
    let since = Instant::now();
    std::thread::spawn(|| {
        std::thread::sleep(A_MOMENT);
        raise(SIGUSR1);
        std::thread::sleep(A_MOMENT);
        raise(SIGUSR2);
    });
    let waiting = async { [signals.next().await.unwrap(), signals.next().await.unwrap()] };
    assert_eq!(timeout_after(FOREVER, waiting).await, Ok([SIGUSR1, SIGUSR2]));
    assert!(since.elapsed() >= 2 * A_MOMENT);
    assert_eq!(signals.try_next(), None);
}

#[pikake::test]
async fn repeated_signal_reaches_each_listener_once() {
    let mut one = Signals::new([SIGALRM]).unwrap();
    let mut two = Signals::new([SIGALRM]).unwrap();
    for _ in 0..10 {
        raise(SIGALRM);
    }
    let mut late = Signals::new([SIGALRM]).unwrap();
    for listener in [&mut one, &mut two] {
        assert_eq!(listener.next().await.unwrap(), SIGALRM);
        assert_eq!(listener.try_next(), None);
        assert!(matches!(timeout_after(A_MOMENT, listener.next()).await, Err(TimedOut)));
    }
    assert_eq!(late.try_next(), None);
    // The same when the process is sent it.
    let id = Pid::from_raw(std::process::id() as i32).unwrap();
    kill_process(id, Signal::ALARM).unwrap();
    assert_eq!(late.next().await.unwrap(), SIGALRM);
    // A storm, and somebody who listens to it: told at least once after the last.
    drop(two);
    let storm = spawn(pikake::thread::run_in_thread(|| (0..20_000).for_each(|_| raise(SIGALRM))));
    let mut told = 0;
    while !storm.is_finished() {
        let done = timed(A_MOMENT, one.next()).await;
        told += usize::from(done.output.is_some_and(|told| told.is_ok()));
    }
    assert!(told > 0);
    raise(SIGALRM);
    assert_eq!(one.next().await.unwrap(), SIGALRM);
    assert_eq!(late.next().await.unwrap(), SIGALRM);
}

#[pikake::test]
async fn an_interrupted_wait_loses_no_signal() {
    let mut signals = Signals::new([SIGVTALRM]).unwrap();
    for _ in 0..20 {
        assert!(matches!(timeout_after(A_MOMENT / 10, signals.next()).await, Err(TimedOut)));
        raise(SIGVTALRM);
        assert_eq!(signals.next().await.unwrap(), SIGVTALRM);
    }
}

#[pikake::test]
async fn signals_are_a_stream() {
    let signals = Signals::new([SIGWINCH]).unwrap();
    let task = spawn(async move { signals.take(2).map(Result::unwrap).collect::<Vec<_>>().await });
    for _ in 0..2 {
        sleep(A_MOMENT).await.unwrap();
        raise(SIGWINCH);
    }
    assert_eq!(task.await.unwrap(), [SIGWINCH, SIGWINCH]);
}

#[pikake::test]
async fn ctrl_c_ends_with_the_next_sigint() {
    let waiting = spawn(ctrl_c());
    yield_now().await.unwrap();
    raise(SIGINT);
    waiting.await.unwrap().unwrap();

    let waiting = spawn(ctrl_c());
    yield_now().await.unwrap();
    waiting.cancel().await.unwrap();
    assert!(interruption(&waiting.await.unwrap().unwrap_err()).is_some());
}

#[pikake::test]
async fn invalid_signals_are_refused() {
    for number in [SIGKILL, signal::SIGSEGV, 0, -1, 1000] {
        let error = Signals::new([number]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(&number.to_string()), "{error}");
    }
    assert!(Signals::new([SIGKILL]).unwrap_err().to_string().contains("SIGKILL"));
}

/// Counts the descriptors of a child process, which has no other tests.
#[test]
fn dropped_listeners_leave_no_descriptor() {
    const NAME: &str = "signals::listeners::dropped_listeners_leave_no_descriptor";
    const COUNTED: &str = "the counts are equal";
    if !is_child(NAME) {
        let (is_good, printed) = child::run(&mut child::child(NAME));
        assert!(is_good && printed.contains(COUNTED), "{printed}");
        return;
    }
    let listen = async || {
        let mut signals = Signals::new([SIGIO]).unwrap();
        assert!(timeout_after(Duration::ZERO, signals.next()).await.is_err());
    };
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    pikake::run(async {
        listen().await;
        let before = count();
        for _ in 0..200 {
            listen().await;
        }
        assert_eq!(count(), before);
    });
    println!("{COUNTED}");
}

#[test]
fn child() {
    let Ok(program) = std::env::var(PROGRAM) else { return };
    let kernel = Kernel::new().unwrap();
    match &*program {
        "listened" => kernel.run(async {
            let mut signals = Signals::new([SIGTERM, SIGINT]).unwrap();
            eprintln!("ready");
            for _ in 0..3 {
                eprintln!("{}", signals.next().await.unwrap());
            }
            drop(signals);
            eprintln!("dropped");
            sleep(FOREVER).await.unwrap();
        }),
        "with_an_interruption" => {
            let on_signals = interrupt_on_signals(&kernel.handle()).unwrap();
            kernel.run(async {
                let mut signals = Signals::new([SIGTERM]).unwrap();
                yield_now().await.unwrap();
                sleep(A_MOMENT).await.unwrap();
                eprintln!("ready");
                let why = sleep(FOREVER).await.unwrap_err();
                eprintln!("{} {why}", signals.next().await.unwrap());
                // From here on nobody interrupts, and somebody listens.
                drop(on_signals);
                eprintln!("alone");
                for _ in 0..2 {
                    eprintln!("{}", signals.next().await.unwrap());
                }
            });
        }
        "ignored" => kernel.run(async {
            drop(Signals::new([SIGHUP]).unwrap());
            eprintln!("ready");
            sleep(10 * A_MOMENT).await.unwrap();
        }),
        "with_threads" => pikake::__macros::with_threads(2, || {
            pikake::__macros::run_main_until_signal("main", async {
                let told = || async {
                    eprintln!("ready");
                    eprintln!("{}", sleep(FOREVER).await.unwrap_err());
                };
                pikake::other_kernels()[0].spawn(told).unwrap();
                // It cannot be told, and gives no exit code.
                std::future::pending().await
            })
        }),
        "begins" => kernel.run(async {
            let delay = Duration::from_micros(u64::from(std::process::id() % 50) * 5);
            let both = Arc::new(Barrier::new(2));
            let other = both.clone();
            std::thread::spawn(move || {
                other.wait();
                let since = Instant::now();
                while since.elapsed() < delay {}
                kill_process(rustix::process::getpid(), Signal::TERM).unwrap();
            });
            both.wait();
            let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).unwrap();
            let told = timeout_after(1_000 * A_MOMENT, signals.next()).await;
            exit(if told.is_ok() { 42 } else { 1 });
        }),
        other => unreachable!("no program is called {other}"),
    }
    exit(42);
}

/// Runs a program in a child; each line that it reports is to be what comes before a signal.
fn run(program: &str, ignored: &str, steps: &[(&str, i32)]) -> std::process::ExitStatus {
    let this = std::env::current_exe().unwrap();
    let script = format!(
        "{ignored} exec '{}' signals::listeners::child --exact --nocapture",
        this.display()
    );
    let mut process = Command::new("sh")
        .args(["-c", &script])
        .env(PROGRAM, program)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    for (line, signal) in steps {
        assert_eq!(lines.next().expect("a report").unwrap(), *line);
        if *signal != 0 {
            let signal = Signal::from_named_raw(*signal).unwrap();
            kill_process(Pid::from_child(&process), signal).unwrap();
        }
    }
    process.wait().unwrap()
}

#[test]
fn listener_suppresses_the_default_action_until_dropped() {
    let steps =
        [("ready", SIGTERM), ("15", SIGTERM), ("15", SIGINT), ("2", 0), ("dropped", SIGTERM)];
    assert_eq!(run("listened", "", &steps).signal(), Some(SIGTERM));
}

#[test]
fn signal_reaches_main_task_and_listener() {
    let steps = [
        ("ready", SIGTERM),
        ("15 cancelled: SIGTERM", 0),
        ("alone", SIGTERM),
        ("15", SIGTERM),
        ("15", 0),
    ];
    assert_eq!(run("with_an_interruption", "", &steps).code(), Some(42));
}

#[test]
fn ignored_signal_is_ignored_after_the_listener() {
    let steps = [("ready", SIGHUP)];
    assert_eq!(run("ignored", "trap '' HUP;", &steps).code(), Some(42));
}

/// It is told, or has its default action, in whichever moment of the beginning it comes.
#[test]
fn signal_at_the_start_of_listening_is_kept() {
    for _ in 0..100 {
        let status = run("begins", "", &[]);
        assert!(status.signal() == Some(SIGTERM) || status.code() == Some(42), "{status}");
    }
}

#[test]
fn other_kernels_clean_up_before_the_process_ends() {
    let steps = [("ready", SIGTERM), ("cancelled: the kernel is being shut down", 0)];
    assert_eq!(run("with_threads", "", &steps).signal(), Some(SIGTERM));
}
