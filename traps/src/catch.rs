//! Calls of user code, such as destructors and wakers, whose panics must not unwind the kernel.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::interrupt::Panic;

/// Calls `work`, and catches a panic and logs it with `what`.
///
/// If the drop of the panic's payload panics, the second payload is leaked.
pub fn catch_and_log(what: &str, work: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        let panic = Panic::new(payload);
        tracing::error!(
            panicked_at = panic.place().map(display),
            panic = panic.message().unwrap_or("(not a text)"),
            "{what} panicked"
        );
        discard(panic.into_payload());
    }
}

/// Drops the payload of a panic. If the drop panics, leaks the second payload.
pub(crate) fn discard(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}
