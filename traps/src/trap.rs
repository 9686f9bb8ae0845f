//! Traps as typed values, and the one future that hands them over.
//!
//! [`kernel_trap`] is the only future of pikake's own that returns `Pending` (I2). Every other
//! wait, in this crate and above, awaits it. A [`Trap`] is the typed face of a [`Wait`]: it knows
//! what its answer looks like, so that a sleep cannot be answered like a read.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::door;
use crate::handler::{Executed, RecordKey, TrapKind, Wait};
use crate::home::KernelId;
use crate::interrupt::Interrupted;

/// Something a task asks of its kernel and may have to wait for.
pub trait Trap {
    /// What awaiting the trap gives.
    type Answer;

    /// The trap's name, for the message of a panic outside a kernel.
    const KIND: TrapKind;

    /// What the kernel is handed.
    fn wait(&mut self) -> Wait<'_>;

    /// Turns the kernel's answer into the trap's.
    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer;
}

/// Hands a trap to the kernel that runs the current task, and waits for the answer.
///
/// The trap is executed on the first poll. A future that was made in one task and is polled in
/// another one of the same kernel acts for the one that polls it.
///
/// # Examples
///
/// ```
/// use pikake_traps::{Interrupted, SleepTrap, Until, kernel_trap};
/// use std::time::Duration;
///
/// async fn nap() -> Result<(), Interrupted> {
///     kernel_trap(SleepTrap::new(Until::After(Duration::from_millis(5)))).await
/// }
/// # pikake_sim::example(nap()).unwrap();
/// ```
///
/// # Cancellation
///
/// Dropped while it waits, the trap is withdrawn: it has no effect any more. What a trap does
/// about interruption is said in its own specification.
///
/// # Panics
///
/// When polled outside a kernel, outside a task, in another kernel than before, or again after it
/// gave its answer.
#[track_caller]
#[inline]
pub fn kernel_trap<T: Trap>(trap: T) -> KernelTrap<T> {
    kernel_trap_at(trap, Location::caller())
}

/// [`kernel_trap`], reported as awaited at `place`.
#[inline]
pub fn kernel_trap_at<T: Trap>(trap: T, place: &'static Location<'static>) -> KernelTrap<T> {
    KernelTrap { trap, state: State::New, place, _home: PhantomData }
}

/// The future of [`kernel_trap`].
///
/// It cannot leave its thread:
///
/// ```compile_fail,E0277
/// fn send<T: Send>(_: T) {}
/// send(pikake_traps::yield_now());
/// ```
#[must_use = "a trap does nothing until it is awaited"]
pub struct KernelTrap<T: Trap> {
    trap: T,
    state: State,
    place: &'static Location<'static>,
    /// It belongs to its kernel's thread, where it must be dropped to be withdrawn.
    _home: PhantomData<*const ()>,
}

enum State {
    New,
    Parked { kernel: KernelId, record: RecordKey },
    Finished,
}

impl<T: Trap> KernelTrap<T> {
    /// A trap that waits already, under a record that the kernel has made.
    pub(crate) fn parked(
        trap: T,
        kernel: KernelId,
        record: RecordKey,
        place: &'static Location<'static>,
    ) -> Self {
        Self { trap, state: State::Parked { kernel, record }, place, _home: PhantomData }
    }

    /// The trap.
    #[inline]
    pub fn trap(&self) -> &T {
        &self.trap
    }

    /// Takes the trap back if it waits, so that the next poll executes it anew.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if let State::Parked { kernel, record } = std::mem::replace(&mut self.state, State::New) {
            withdraw(kernel, record);
        }
    }
}

/// Panics because a trap was polled outside of its kernel, or of any.
#[cold]
#[inline(never)]
pub(crate) fn out_of_place(
    kind: TrapKind,
    place: &'static Location<'static>,
    kernel: KernelId,
) -> ! {
    match door::current_kernel() {
        None => door::outside(&format!("the trap `{kind}`"), place),
        Some(other) => panic!(
            "the trap `{kind}` (at {place}) waits in kernel {kernel} and was polled in kernel \
             {other}: a future that has started to wait stays with its kernel"
        ),
    }
}

#[inline(never)]
fn withdraw(kernel: KernelId, record: RecordKey) {
    door::reach(kernel, |kernel| kernel.withdraw(record));
}

// The trap is only ever used by reference and by value, never pinned.
impl<T: Trap> Unpin for KernelTrap<T> {}

impl<T: Trap> Future for KernelTrap<T> {
    type Output = T::Answer;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Answer> {
        let this = &mut *self;
        let result = match this.state {
            State::New => {
                let place = this.place;
                let wait = this.trap.wait();
                let executed = door::try_with(|kernel| {
                    if T::KIND == TrapKind::Park
                        && let Wait::Park(queue) = wait
                        && let Some(record) = kernel.park(queue, place, cx)
                    {
                        return Executed::Parked(record);
                    }
                    kernel.execute(wait, place, cx)
                });
                match executed {
                    Some(Executed::Answered(result)) => result,
                    Some(Executed::Parked(record)) => {
                        this.state = State::Parked { kernel: door::polling().0, record };
                        return Poll::Pending;
                    }
                    None => out_of_place(T::KIND, this.place, KernelId::NONE),
                }
            }
            State::Parked { kernel, record } => {
                if !door::is_inside(kernel) {
                    out_of_place(T::KIND, this.place, kernel);
                }
                match door::with(|kernel| kernel.poll_again(record, cx)) {
                    Poll::Ready(result) => result,
                    Poll::Pending => return Poll::Pending,
                }
            }
            State::Finished => {
                panic!(
                    "the trap `{}` (at {}) was polled after it had answered",
                    T::KIND,
                    this.place
                )
            }
        };
        this.state = State::Finished;
        Poll::Ready(this.trap.answer(result))
    }
}

impl<T: Trap> Drop for KernelTrap<T> {
    #[inline]
    fn drop(&mut self) {
        self.reset();
    }
}

impl<T: Trap + fmt::Debug> fmt::Debug for KernelTrap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::New => "new",
            State::Parked { .. } => "waiting",
            State::Finished => "finished",
        };
        f.debug_struct("KernelTrap").field("trap", &self.trap).field("state", &state).finish()
    }
}
