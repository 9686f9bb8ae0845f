//! The next item of a stream, if it comes soon: a wait beside a timer, which interrupts nothing.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use pikake_traps::{ElapseTrap, KernelTrap, TimedOut, Until, kernel_trap_at};

/// Waits for the next item of a stream for at most `length`, counted from the first poll.
///
/// The stream does not learn that the time is over. Its waits go on, and keep their positions in
/// queues. The next poll of the stream continues there, so another call can follow.
///
/// [`timeout_after`](pikake_traps::timeout_after) *interrupts* its body. Around the `next()` of a
/// stream that is a generator, the interruption leaves the generator by its first `?`, and so ends
/// it: `timeout_after` drops that last item, and the stream is over without an error. That is right
/// for a deadline that shall end the stream, and wrong for a look at it.
///
/// A receiver of a channel is a stream as well.
///
/// # Examples
///
/// ```
/// use async_stream::try_stream;
/// use futures::Stream;
/// use pikake::{Interrupted, TimedOut, next_timeout, sleep};
/// use std::{pin::pin, time::Duration};
///
/// /// A generator, which needs three seconds for each number.
/// fn numbers() -> impl Stream<Item = Result<u32, Interrupted>> {
///     try_stream! {
///         for number in 1..=2 {
///             sleep(Duration::from_secs(3)).await?;
///             yield number;
///         }
///     }
/// }
///
/// # pikake::sim::example(async {
/// let mut numbers = pin!(numbers());
/// let (mut seen, mut pauses) = (Vec::new(), 0);
/// loop {
///     match next_timeout(Duration::from_secs(1), &mut numbers).await {
///         Ok(Some(number)) => seen.push(number?),
///         Ok(None) => break,
///         Err(TimedOut) => pauses += 1,
///     }
/// }
/// assert_eq!((seen, pauses), (vec![1, 2], 4));
/// # Ok::<_, Interrupted>(())
/// # })
/// # .unwrap();
/// ```
///
/// # Cancellation
///
/// A cancel, and a deadline around the call, interrupt the waits inside the stream, whose item then
/// says so. This call has no interruption of its own: around a stream that waits for foreign
/// futures alone, it is dropped as they are. A drop of the future loses nothing of the stream.
///
/// # Errors
///
/// [`TimedOut`]. The item wins if it has come by the time the task looks.
///
/// # Panics
///
/// If it has to wait outside a task of a kernel.
#[track_caller]
pub fn next_timeout<S>(length: Duration, stream: &mut S) -> NextTimeout<'_, S>
where
    S: Stream + Unpin + ?Sized,
{
    let timer = ElapseTrap::new(Until::After(length));
    NextTimeout { stream, timer: kernel_trap_at(timer, Location::caller()) }
}

/// The future of [`next_timeout`].
#[must_use = "a future does nothing until it is awaited"]
pub struct NextTimeout<'a, S: ?Sized> {
    stream: &'a mut S,
    timer: KernelTrap<ElapseTrap>,
}

impl<S: Stream + Unpin + ?Sized> Future for NextTimeout<'_, S> {
    type Output = Result<Option<S::Item>, TimedOut>;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(item) = Pin::new(&mut *self.stream).poll_next(cx) {
            return Poll::Ready(Ok(item));
        }
        Pin::new(&mut self.timer).poll(cx).map(|()| Err(TimedOut))
    }
}

impl<S: ?Sized> fmt::Debug for NextTimeout<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextTimeout").finish_non_exhaustive()
    }
}
