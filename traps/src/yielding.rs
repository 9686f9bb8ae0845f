//! Yielding: to the end of the ready queue and back.
//!
//! What a yield waits for is certain to come, so most yields need no record: the *light* ones are
//! noted in the task's ledger ([`Light`]) and are done when the task's next step has begun.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::cell::TaskId;
use crate::door;
use crate::handler::{RecordKey, TrapKind, Wait};
use crate::home::KernelId;
use crate::interrupt::Interrupted;
use crate::ledger::{Flag, Ledger, Light};
use crate::task_ref::TaskRef;
use crate::trap::{KernelTrap, Trap, kernel_trap_at, out_of_place};

/// The trap that goes to the end of the ready queue. See [`yield_now`].
#[derive(Debug)]
pub struct YieldTrap;

impl Trap for YieldTrap {
    type Answer = Result<(), Interrupted>;
    const KIND: TrapKind = TrapKind::Yield;

    fn wait(&mut self) -> Wait<'_> {
        Wait::Yield
    }

    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }
}

/// Lets every other task that is ready run once.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// [`Interrupted`].
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
#[inline]
pub fn yield_now() -> YieldNow {
    YieldNow { state: State::New, place: Location::caller() }
}

/// The future of [`yield_now`].
#[must_use = "a trap does nothing until it is awaited"]
#[derive(Debug)]
pub struct YieldNow {
    state: State,
    place: &'static Location<'static>,
}

#[derive(Debug)]
enum State {
    New,
    Light(LightYield),
    Trap(KernelTrap<YieldTrap>),
    Finished,
}

/// A light yield.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LightYield {
    /// The kernel of the task.
    pub kernel: KernelId,
    /// The task in whose ledger it is noted.
    pub task: TaskId,
    /// The step of that task in which it was.
    pub step: u32,
}

impl Ledger {
    /// Notes a light yield, if the task may have one now.
    #[inline]
    fn may_yield_lightly(&self) -> bool {
        match self.scopes.get() {
            Self::NO_SCOPE => self.begin_light_yield(),
            // Only the kernel knows which.
            _ => self.may_have_light_yields() && door::with(|kernel| kernel.begin_light_yield()),
        }
    }

    #[inline]
    fn may_have_light_yields(&self) -> bool {
        matches!(self.light.get(), Light::Free | Light::Parked)
    }

    /// Counts a light yield of the current step, if the task may have one now. For the kernel, which
    /// knows that those of the step are all in one scope.
    #[inline]
    pub fn begin_light_yield(&self) -> bool {
        // The first of a step begins to count anew.
        let before = if self.is(Flag::Again) { self.lights.get() } else { 0 };
        let Some(count) = before.checked_add(1).filter(|_| self.may_have_light_yields()) else {
            return false;
        };
        self.light.set(Light::Parked);
        self.lights.set(count);
        self.ask_again();
        true
    }
}

impl YieldNow {
    /// Begins as a light yield in a scope, or goes on as a trap of its own.
    #[inline(never)]
    fn poll_slowly(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Interrupted>> {
        if let State::Light(light) = self.state {
            if !door::is_inside(light.kernel) {
                out_of_place(YieldTrap::KIND, self.place, light.kernel);
            }
            match light.end() {
                Some(record) => {
                    let trap = KernelTrap::parked(YieldTrap, light.kernel, record, self.place);
                    self.state = State::Trap(trap);
                }
                None if light.has_passed() => {
                    self.state = State::Finished;
                    door::with(|kernel| kernel.let_light_yield_pass());
                    return Poll::Ready(Ok(()));
                }
                None => self.state = State::New,
            }
        }
        if let State::New = self.state {
            self.state = State::Trap(kernel_trap_at(YieldTrap, self.place));
        }
        match &mut self.state {
            State::Trap(trap) => Pin::new(trap).poll(cx),
            _ => panic!("a yield (at {}) was polled after it had answered", self.place),
        }
    }
}

impl LightYield {
    #[inline(never)]
    fn end(self) -> Option<RecordKey> {
        door::reach(self.kernel, |kernel| kernel.end_light_yield(self)).flatten()
    }

    #[inline(never)]
    fn forget(self) {
        if let Some(record) = self.end() {
            door::reach(self.kernel, |kernel| kernel.withdraw(record));
        }
    }

    /// Whether it was in that task. Each kernel counts its tasks for itself.
    #[inline]
    fn is_of(self, task: &TaskRef) -> bool {
        (task.id(), task.kernel()) == (self.task, self.kernel)
    }

    /// Whether its task is the current one, and in a later step.
    fn has_passed(self) -> bool {
        let current = door::try_with(|kernel| kernel.current()).flatten();
        current.is_some_and(|task| self.is_of(&task) && task.ledger().step.get() != self.step)
    }
}

impl Future for YieldNow {
    type Output = Result<(), Interrupted>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // A light yield is parked and polled again here, anything else elsewhere.
        let answer = TaskRef::when_polled_with(cx.waker(), |task| {
            let ledger = task.ledger();
            match this.state {
                State::New if ledger.may_yield_lightly() => {
                    let step = ledger.step.get();
                    let light = LightYield { kernel: task.kernel(), task: task.id(), step };
                    this.state = State::Light(light);
                    Some(Poll::Pending)
                }
                State::Light(light) if light.is_of(task) && !ledger.is(Flag::Troubled) => {
                    if ledger.step.get() == light.step {
                        // In a scope it may have moved.
                        let is_outside = ledger.scopes.get() == Ledger::NO_SCOPE;
                        return is_outside.then_some(Poll::Pending);
                    }
                    this.state = State::Finished;
                    Some(Poll::Ready(Ok(())))
                }
                _ => None,
            }
        });
        match answer {
            Some(Some(answer)) => answer,
            _ => this.poll_slowly(cx),
        }
    }
}

impl Drop for YieldNow {
    #[inline]
    fn drop(&mut self) {
        if let State::Light(light) = self.state {
            light.forget();
        }
    }
}
