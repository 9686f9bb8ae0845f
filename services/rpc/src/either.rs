//! The first of two waits.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// The output of the future that was ready first.
pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

impl<A> Either<A, A> {
    pub(crate) fn either(self) -> A {
        match self {
            Self::First(output) | Self::Second(output) => output,
        }
    }
}

/// Waits for the first of two futures. They stay where they are: each request would move them
/// otherwise.
pub(crate) fn either<A: Future, B: Future>(
    mut first: Pin<&mut A>,
    mut second: Pin<&mut B>,
) -> impl Future<Output = Either<A::Output, B::Output>> {
    poll_fn(move |cx| match first.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Either::First(output)),
        Poll::Pending => second.as_mut().poll(cx).map(Either::Second),
    })
}
