//! Futures that panic at the line of their `await` when they are polled outside a kernel.
//!
//! An `async` block has no `#[track_caller]`: a call inside that needs a kernel would report its
//! own line, deep in a library, instead of the line of the program.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::door;

/// The future, which panics at the line of the `await` when it is polled outside a kernel. For
/// libraries.
///
/// # Panics
///
/// When polled outside a kernel, at the line of the `await`.
pub fn in_kernel<F: Future>(future: F) -> InKernel<F> {
    InKernel { future }
}

pin_project_lite::pin_project! {
    /// The future of [`in_kernel`].
    #[must_use = "a future does nothing until it is awaited"]
    pub struct InKernel<F> {
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for InKernel<F> {
    type Output = F::Output;

    #[track_caller]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        door::with(|_| ());
        self.project().future.poll(cx)
    }
}

impl<F> fmt::Debug for InKernel<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InKernel").finish_non_exhaustive()
    }
}
