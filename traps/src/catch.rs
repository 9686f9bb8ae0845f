//! Running other people's destructors and wakers without being taken down by them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `work`, which may panic; a panic is logged with `what` and goes no further.
///
/// Not even when the panic's payload panics in turn while it is dropped: that one is leaked.
pub fn catch_and_log(what: &str, work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        tracing::error!(panic = text_of(&*panic).unwrap_or("(not a text)"), "{what} panicked");
        discard(panic);
    }
}

/// Drops the payload of a panic, or leaks it if that panics.
pub(crate) fn discard(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}

/// What somebody panicked with, where that is a text.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> Option<&str> {
    match panic.downcast_ref::<&'static str>() {
        Some(text) => Some(text),
        None => panic.downcast_ref::<String>().map(String::as_str),
    }
}
