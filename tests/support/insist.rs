//! Programs that retry until they are done, and checks of their results.

use std::cell::Cell;
use std::fmt::Debug;
use std::io::{self};
use std::time::Duration;

use pikake::net::interruption;
use pikake::testing::{Injector, Kind, Report, Run};
use pikake::{Interrupted, TaskError, sleep, yield_now};

/// Longer than any test takes.
pub(crate) const FOREVER: Duration = Duration::from_secs(3600);

/// Enough to let a task that waits be seen to wait.
pub(crate) const A_FEW: usize = 3;

/// How long a socket may take to pass something on to another one of this process.
pub(crate) const SOCKETS: Duration = Duration::from_millis(1);

/// How long a helper thread may take.
pub(crate) const THREADS: Duration = Duration::from_millis(20);

pub(crate) fn ms(length: u64) -> Duration {
    Duration::from_millis(length)
}

/// Lets the others go on; for tasks that nobody interrupts.
pub(crate) async fn a_few_steps() {
    for _ in 0..A_FEW {
        yield_now().await.unwrap();
    }
}

/// Lets everybody go on who can, sockets included; for tasks that nobody interrupts.
pub(crate) async fn a_moment() {
    sleep(ms(1)).await.unwrap();
}

/// An error that may be an interruption.
pub(crate) trait Failure: Debug {
    fn interruption(&self) -> Option<&Interrupted>;
}

impl Failure for Interrupted {
    fn interruption(&self) -> Option<&Interrupted> {
        Some(self)
    }
}

impl Failure for io::Error {
    fn interruption(&self) -> Option<&Interrupted> {
        interruption(self)
    }
}

impl Failure for TaskError {
    fn interruption(&self) -> Option<&Interrupted> {
        match self {
            Self::Interrupted(why) => Some(why),
            _ => None,
        }
    }
}

/// Does everything until it is done.
#[derive(Default)]
pub(crate) struct Insistent {
    pub(crate) told: Cell<usize>,
}

impl Insistent {
    pub(crate) async fn on<T, E: Failure>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, E>,
    ) -> T {
        loop {
            match attempt().await {
                Ok(done) => return done,
                Err(error) => self.note(&error),
            }
        }
    }

    pub(crate) fn note_if<E: Failure>(&self, result: Result<(), E>) {
        if let Err(error) = result {
            self.note(&error);
        }
    }

    pub(crate) fn note(&self, error: &impl Failure) {
        let Some(why) = error.interruption() else { panic!("not an interruption: {error:?}") };
        assert!(why.is_timeout() || why.reason() == Some("injected"), "{why:?}");
        self.told.set(self.told.get() + 1);
    }
}

/// Whether an interruption was told as often as it may be: by every wait that it hit, once.
pub(crate) fn check_told<T>(run: &Run<T>, told: usize) {
    match &run.interruption {
        None => assert_eq!(told, 0),
        // The program may end without another wait, and a lookup may end in the same moment.
        Some(by) if by.kind == Kind::CancelGoingOn || by.trap.name() == "lookup" => {
            assert!(told <= 1, "told {told} times");
        }
        Some(_) => assert_eq!(told, 1),
    }
}

/// Interrupts a program everywhere; it is to come to the same result each time.
#[track_caller]
pub(crate) fn insist<T: PartialEq + Debug>(
    injector: Injector,
    expected: T,
    program: impl AsyncFn(&Insistent) -> T,
) -> Report {
    let program = &program;
    // A program that insists swallows what interrupts it.
    let report = injector.cleanup_limit(None).run(
        || async move {
            let insistent = Insistent::default();
            let result = program(&insistent).await;
            // The program's last wait may have its answer, which beats the interruption. The yield
            // then returns the interruption.
            insistent.on(yield_now).await;
            (result, insistent.told.get())
        },
        |run| {
            let (result, told) = run.output.as_ref().expect("it waits on traps");
            assert_eq!(*result, expected);
            check_told(run, *told);
        },
    );
    assert!(report.suspensions > 0 && report.cancels > 0, "{report:?}");
    report
}

/// For programs that wait on nothing but their kernel; they have no excuse for missed runs but the
/// last instant, at which they end.
#[track_caller]
pub(crate) fn insist_inside<T: PartialEq + Debug>(
    expected: T,
    program: impl AsyncFn(&Insistent) -> T,
) {
    let report = insist(Injector::new(), expected, program);
    assert!(report.timeouts > 0 && report.missed <= report.suspensions, "{report:?}");
}

/// For programs that use sockets of their own.
#[track_caller]
pub(crate) fn insist_on_sockets<T: PartialEq + Debug>(
    expected: T,
    program: impl AsyncFn(&Insistent) -> T,
) {
    insist(Injector::new().patience(SOCKETS), expected, program);
}

/// For programs that use helper threads.
#[track_caller]
pub(crate) fn insist_outside<T: PartialEq + Debug>(
    expected: T,
    program: impl AsyncFn(&Insistent) -> T,
) {
    insist(Injector::new().patience(THREADS), expected, program);
}
