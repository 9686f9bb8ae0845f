//! Signals as interruptions of the main task.
//!
//! Each test runs this binary anew as a child process, with the test [`child`] alone and a variable
//! that names its program. The child reports on its standard error, and the test signals it.

use std::future::pending;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio, exit};
use std::thread;
use std::time::Duration;

use pikake::{Interrupted, Kernel, interrupt_on_signals, sleep, spawn, yield_now};
use rustix::process::{Pid, Signal, kill_process};

/// Tells the child which program to be.
const PROGRAM: &str = "PIKAKE_TEST_PROGRAM";

/// Longer than any test takes. A child that nobody signals ends after it.
const FOREVER: Duration = Duration::from_secs(60);

/// Long enough to be seen as a wait.
const A_MOMENT: Duration = Duration::from_millis(2);

/// The exit code of a child that ended by itself.
const ENDED: i32 = 42;

#[test]
fn child() {
    let Ok(program) = std::env::var(PROGRAM) else { return };
    match &*program {
        "polite" => drop(polite()),
        "stubborn" => stubborn(),
        "foreign" => foreign(),
        "stuck" => stuck(),
        "as_usual" => as_usual(),
        "without_macro" => without_macro(),
        "two_kernels" => {
            let other = thread::spawn(without_macro);
            without_macro();
            other.join().unwrap();
        }
        other => unreachable!("no program is called {other}"),
    }
    exit(ENDED);
}

/// Says goodbye, and lets a task of its own do so.
#[pikake::main(signals)]
async fn polite() -> Result<(), Interrupted> {
    spawn(async {
        let why = sleep(FOREVER).await.unwrap_err();
        eprintln!("task: {why}");
    })
    .detach();
    yield_now().await?;
    eprintln!("ready");
    let why = sleep(FOREVER).await.unwrap_err();
    sleep(A_MOMENT).await?;
    eprintln!("main: {why}");
    Err(why)
}

/// Takes its time to say goodbye.
#[pikake::main(name = "the stubborn one", signals)]
async fn stubborn() {
    eprintln!("ready");
    let why = sleep(FOREVER).await.unwrap_err();
    eprintln!("main: {why}");
    sleep(FOREVER).await.unwrap();
}

/// Is in one step for ever.
#[pikake::main(signals, name = "the stuck one")]
async fn stuck() {
    // The log to standard error begins after the first step.
    yield_now().await.unwrap();
    eprintln!("ready");
    thread::sleep(FOREVER);
}

/// Waits for what nobody can interrupt.
#[pikake::main(signals)]
async fn foreign() {
    spawn(async {
        sleep(FOREVER).await.unwrap_err();
        eprintln!("task: goodbye");
    })
    .detach();
    yield_now().await.unwrap();
    eprintln!("ready");
    pending().await
}

/// Has had enough of signals.
fn as_usual() {
    let kernel = Kernel::new().unwrap();
    drop(interrupt_on_signals(&kernel.handle()).unwrap());
    kernel.run(async {
        eprintln!("ready");
        sleep(FOREVER).await.unwrap();
    });
}

fn without_macro() {
    let kernel = Kernel::new().unwrap();
    let _on_signals = interrupt_on_signals(&kernel.handle()).unwrap();
    let why = kernel.run(async {
        eprintln!("ready");
        sleep(FOREVER).await.unwrap_err()
    });
    kernel.shutdown();
    eprintln!("main: {why}");
}

/// A program in a process of its own.
struct Program {
    process: Child,
    reports: Lines<BufReader<ChildStderr>>,
}

impl Program {
    /// Starts it, and waits until so many of its kernels are ready.
    fn start(name: &str, kernels: usize) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["signals::interruptions::child", "--exact", "--nocapture"])
            .env(PROGRAM, name)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let reports = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut program = Self { process, reports };
        for _ in 0..kernels {
            assert_eq!(program.report(), "ready");
        }
        program
    }

    fn report(&mut self) -> String {
        self.reports.next().expect("a report, and not the end").unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// The rest of its reports, and how it ended.
    fn end(mut self) -> (Vec<String>, ExitStatus) {
        let reports = self.reports.by_ref().map(Result::unwrap).collect();
        (reports, self.process.wait().unwrap())
    }
}

#[test]
fn first_signal_interrupts_the_main_task_then_others() {
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let program = Program::start("polite", 1);
        program.signal(signal);
        let (reports, status) = program.end();
        let expected = [
            format!("main: cancelled: {name}"),
            "task: cancelled: the kernel is being shut down".into(),
        ];
        assert_eq!(reports, expected);
        assert_eq!(status.code(), Some(ENDED));
    }
}

#[test]
fn second_signal_has_its_default_action() {
    for second in [Signal::TERM, Signal::INT] {
        let mut program = Program::start("stubborn", 1);
        program.signal(Signal::TERM);
        assert_eq!(program.report(), "main: cancelled: SIGTERM");
        program.signal(second);
        let (reports, status) = program.end();
        assert_eq!((reports, status.signal()), (vec![], Some(second.as_raw())));
    }
}

#[test]
fn signal_to_a_kernel_in_a_long_step_is_reported() {
    let mut program = Program::start("stuck", 1);
    program.signal(Signal::TERM);
    let mut report = program.report();
    while !report.contains("SIGTERM") {
        assert!(report.contains("a step takes long"), "{report}");
        report = program.report();
    }
    let parts = [
        "SIGTERM waits for the end of a long step",
        "a second SIGINT or SIGTERM ends the process at once",
        "name=\"the stuck one\"",
    ];
    for part in parts {
        assert!(report.contains(part), "{report}");
    }
    program.signal(Signal::INT);
    let (_, status) = program.end();
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()));
}

/// The other tasks clean up first.
#[test]
fn foreign_main_task_ends_by_the_signal() {
    let program = Program::start("foreign", 1);
    program.signal(Signal::TERM);
    let (reports, status) = program.end();
    assert_eq!(reports, ["task: goodbye"]);
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn signal_has_its_default_action_without_a_guard() {
    let program = Program::start("as_usual", 1);
    program.signal(Signal::TERM);
    let (reports, status) = program.end();
    assert_eq!((reports, status.signal()), (vec![], Some(Signal::TERM.as_raw())));
}

#[test]
fn kernel_is_interrupted_without_the_macro() {
    let program = Program::start("without_macro", 1);
    program.signal(Signal::INT);
    let (reports, status) = program.end();
    assert_eq!(reports, ["main: cancelled: SIGINT"]);
    assert_eq!(status.code(), Some(ENDED));
}

#[test]
fn one_signal_interrupts_the_main_tasks_of_kernels() {
    let program = Program::start("two_kernels", 2);
    program.signal(Signal::TERM);
    let (reports, status) = program.end();
    assert_eq!(reports, ["main: cancelled: SIGTERM", "main: cancelled: SIGTERM"]);
    assert_eq!(status.code(), Some(ENDED));
}

#[test]
fn handle_interrupts_only_the_main_task() {
    let kernel = Kernel::new().unwrap();
    let handle = kernel.handle();
    let (why, other) = kernel.run(async move {
        let other = spawn(async { sleep(A_MOMENT).await });
        yield_now().await.unwrap();
        thread::spawn(move || handle.interrupt("enough").unwrap());
        let why = sleep(FOREVER).await.unwrap_err();
        (why, other.await.unwrap())
    });
    assert_eq!((why.reason(), other), (Some("enough"), Ok(())));
    // No main task runs, so the interruption waits for the next one.
    kernel.handle().interrupt("too early").unwrap();
    let error = kernel.try_run(sleep(FOREVER)).unwrap_err();
    assert_eq!(error.to_string(), "the task ended by a cancel (cancelled: too early)");
    kernel.shutdown();
    assert!(kernel.handle().interrupt("too late").is_err());
}
