//! Wakers to call, and wakes to report, as soon as nothing of the kernel is borrowed.

use std::cell::{Cell, RefCell};
use std::task::Waker;
use std::time::Instant;

use pikake_time::Ticks;

use crate::catch::catch_and_log;
use crate::cell::reference::TaskRef;

/// A wake of an observed task.
pub(crate) struct Woken {
    pub(crate) task: TaskRef,
    /// The reading of the kernel's clock when the task was made ready.
    pub(crate) at: Ticks,
    /// The moment of the call of the waker, if that was on another thread.
    pub(crate) sent: Option<Instant>,
}

/// The rare work of a kernel between polls.
#[derive(Default)]
pub(crate) struct Wakers {
    /// Rare work is due. See [`Local::needs_attention`](crate::Local::needs_attention).
    pub(crate) attention: Cell<bool>,
    /// Wakers to call as soon as nothing is borrowed.
    now: RefCell<Vec<Waker>>,
    /// Wakers to call when the current step is over.
    after_step: RefCell<Vec<Waker>>,
    /// Wakes of observed tasks to report as soon as nothing is borrowed.
    pub(crate) woken: RefCell<Vec<Woken>>,
}

impl Wakers {
    /// Clears the attention, unless there is something left here.
    pub(crate) fn clear_attention(&self) {
        let is_left = !self.now.borrow().is_empty()
            || !self.after_step.borrow().is_empty()
            || !self.woken.borrow().is_empty();
        self.attention.set(is_left);
    }

    pub(crate) fn add(&self, wakers: impl IntoIterator<Item = Waker>) {
        self.now.borrow_mut().extend(wakers);
        self.attention.set(true);
    }

    pub(crate) fn add_after_step(&self, waker: Waker) {
        self.after_step.borrow_mut().push(waker);
        self.attention.set(true);
    }

    pub(crate) fn after_step(&self) -> usize {
        self.after_step.borrow().len()
    }

    /// Calls the wakers to call after a step, without those that were there before.
    pub(crate) fn call_after_step(&self, before: usize) {
        let wakers = self.after_step.borrow_mut().split_off(before);
        call(wakers);
    }

    /// Calls the wakers, and those that they add.
    pub(crate) fn call(&self) {
        while !self.now.borrow().is_empty() {
            call(self.now.take());
        }
    }
}

fn call(wakers: Vec<Waker>) {
    for waker in wakers {
        catch_and_log("a combinator's waker", || waker.wake());
    }
}
