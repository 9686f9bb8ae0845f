//! Shared by the tests: a kernel whose time is moved by hand or by itself, and a recorder of what
//! the kernel does.
#![allow(
    dead_code,
    reason = "each test binary uses its part; an `expect` would fail in those that use all"
)]

use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use pikake::kernel::{Builder, Observer};
use pikake::time::ManualClock;
use pikake::traps::{Exit, TaskRef, TrapKind};
use pikake::{Kernel, task};

/// A length of time, in milliseconds.
pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A kernel whose time jumps to the next timer when nothing else is to be done.
pub(crate) fn kernel() -> Kernel<ManualClock> {
    builder().build().expect("a kernel")
}

/// The builder of [`kernel`].
pub(crate) fn builder() -> Builder<ManualClock> {
    Kernel::builder().clock(ManualClock::auto())
}

/// Runs a future on such a kernel, and checks that nothing is left of it afterwards.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    let kernel = kernel();
    let output = kernel.run(future);
    kernel.shutdown();
    assert_eq!((kernel.task_count(), kernel.socket_count()), (0, 0), "tasks and sockets left");
    output
}

/// Spawns a task with a name.
pub(crate) fn named<F: Future + 'static>(name: &str, future: F) -> task::Task<F::Output> {
    task::Builder::new().name(name).spawn(future)
}

/// A list of events, compared whole.
#[derive(Clone, Default, Debug)]
pub(crate) struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, event: impl Display) {
        self.0.borrow_mut().push(event.to_string());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut())
    }
}

/// Records into a [`Log`] what the kernel does with tasks.
#[derive(Clone, Default, Debug)]
pub(crate) struct Recorder(pub(crate) Log);

impl Observer for Recorder {
    fn created(&self, task: &TaskRef) {
        self.0.add(format_args!("created {}", task.name()));
    }

    fn stepping(&self, task: &TaskRef) {
        self.0.add(format_args!("step {}", task.name()));
    }

    fn trapped(&self, task: &TaskRef, kind: TrapKind, _: &'static std::panic::Location<'static>) {
        self.0.add(format_args!("  {} waits: {kind}", task.name()));
    }

    fn answered(&self, task: &TaskRef, kind: TrapKind, interrupted: bool) {
        let how = if interrupted { "interrupted" } else { "done" };
        self.0.add(format_args!("  {} goes on: {kind} {how}", task.name()));
    }

    fn exited(&self, task: &TaskRef, exit: Exit) {
        self.0.add(format_args!("exit {} {exit:?}", task.name()));
    }
}
