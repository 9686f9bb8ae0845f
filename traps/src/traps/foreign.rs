//! The trap `future_wait`: a wait that code outside of the kernel ends.
//!
//! The trap waits at no place. It makes the wait visible to the kernel, and interruptible.

use std::any::type_name;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use crate::cell::flags::Flags;
use crate::door;
use crate::interrupt::Interrupted;
use crate::kind::{TrapKind, TrapName};
use crate::local::TrapHandler;
use crate::seen::About;
use crate::trap::{Entry, KernelTrap, Progress, Trap, TrapContext, kernel_trap_at};

pub(crate) static NAME: TrapName = TrapName::new("future_wait");

/// Awaits a future of another library as a trap: visible to the kernel, and interruptible.
///
/// The future is polled first, so its output wins over an interruption of the same moment. The wait
/// owns and drops a future that is passed by value; pass `pin!(future).as_mut()` or `&mut future`
/// to keep the future.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake::Interrupted> {
/// use std::future::ready;
///
/// assert_eq!(pikake::future_wait(ready(7)).await?, 7);
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. The future's library documents the effects of a drop.
///
/// # Errors
///
/// [`Interrupted`], while the future was still pending.
///
/// # Panics
///
/// When the future is pending, and the poll is outside a task of a kernel.
#[track_caller]
pub fn future_wait<F: Future>(future: F) -> FutureWait<F> {
    future_wait_at(future, Location::caller())
}

/// [`future_wait`], reported as awaited at `place`.
pub fn future_wait_at<F: Future>(future: F, place: &'static Location<'static>) -> FutureWait<F> {
    foreign_wait(future, &NAME, about_future::<F>, place)
}

/// [`future_wait`], reported as awaited at `place`, under another name and description.
pub(crate) fn foreign_wait<F: Future, A: Fn() -> About>(
    future: F,
    name: &'static TrapName,
    about: A,
    place: &'static Location<'static>,
) -> FutureWait<F, A> {
    FutureWait { future, trap: kernel_trap_at(ForeignTrap { name, about }, place) }
}

/// Awaits a foreign future without making it interruptible, and shows the wait in listings at
/// `place`.
///
/// For futures that must not be interrupted; elsewhere [`future_wait`] is better. Listings show a
/// future that awaits traps by these traps, and do not show a future that is polled with a
/// combinator's waker.
pub async fn shown_at<F: Future>(future: F, place: &'static Location<'static>) -> F::Output {
    let mut future = pin!(future);
    let kind = TrapKind::of(&NAME);
    kind.number();
    poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            door::try_with_task(|local, task| {
                if task.owns(cx.waker()) && task.flags().kind_number() == 0 {
                    task.set_wait(kind, place);
                    if task.flags().has(Flags::INSPECTED) {
                        let about = about_future::<F>();
                        local.note_seen(task, None, (kind, place), Some(about));
                    }
                }
            });
        }
        polled
    })
    .await
}

/// The trap that makes a wait for a foreign future visible. See [`future_wait`].
#[derive(Debug)]
pub struct ForeignTrap<A = fn() -> About> {
    name: &'static TrapName,
    /// Describes the thing that the wait is for.
    about: A,
}

impl<A: Fn() -> About> ForeignTrap<A> {
    /// A wait whose waker is called by code outside of the kernel. Only an interruption answers it.
    /// `about` describes the thing that the wait is for, for listings.
    pub fn new(about: A) -> Self {
        Self { name: &NAME, about }
    }
}

impl<A: Fn() -> About> Trap for ForeignTrap<A> {
    type Answer = Result<(), Interrupted>;
    type Entries = [Entry; 0];

    #[inline(always)]
    fn kind(&mut self) -> TrapKind {
        TrapKind::of(self.name)
    }

    fn begin(&mut self, _: &mut [Entry; 0], _: &TrapContext<'_>) -> Progress<Self::Answer> {
        Progress::Waits
    }

    fn collect(&mut self, _: &mut [Entry; 0], _: &TrapContext<'_>) -> Progress<Self::Answer> {
        Progress::Waits
    }

    fn leave(&mut self, _: &mut [Entry; 0], _: &dyn TrapHandler) {}

    fn about(&self) -> Option<About> {
        Some((self.about)())
    }
}

/// The greatest length of a type's name in a listing.
const TYPE_NAME_LENGTH: usize = 160;

fn about_future<F>() -> About {
    About::new(format!("future `{}`", shortened(type_name::<F>())))
}

/// The beginning of a type's name.
pub(crate) fn shortened(name: &str) -> String {
    match name.char_indices().nth(TYPE_NAME_LENGTH) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

pin_project_lite::pin_project! {
    /// The future of [`future_wait`].
    #[must_use = "a future does nothing until it is awaited"]
    pub struct FutureWait<F, A = fn() -> About>
    where
        A: Fn() -> About,
    {
        #[pin]
        future: F,
        trap: KernelTrap<ForeignTrap<A>>,
    }
}

impl<F, A: Fn() -> About> fmt::Debug for FutureWait<F, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FutureWait").finish_non_exhaustive()
    }
}

impl<F: Future, A: Fn() -> About> Future for FutureWait<F, A> {
    type Output = Result<F::Output, Interrupted>;

    #[track_caller]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(output) = this.future.as_mut().poll(cx) {
            this.trap.finish_satisfied();
            return Poll::Ready(Ok(output));
        }
        match Pin::new(&mut *this.trap).poll(cx) {
            Poll::Ready(Err(interrupted)) => Poll::Ready(Err(interrupted)),
            // The next call of the future's waker causes a poll.
            _ => Poll::Pending,
        }
    }
}
