//! The answer of another kernel to a call.
//!
//! A call that comes while its kernel is late is offered to the other kernels
//! ([`Builder::offer`](pikake_traps::Builder::offer)). The kernel that takes the call answers it
//! with the services and interceptors of its own server. The bytes of the arguments cross, and
//! those of the answer. A call with channels stays with its connection.
//!
//! The servers of one `serve_on_all` know each other by the [`Replicas`](pikake_net::Replicas) of
//! their listeners, where each enters its core.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pikake_traps::{Taken, TaskError};

use crate::codec::Codec;
use crate::protocol::Failure;
use crate::service::{Answer, Encode, Given, Handler};

/// An answer on its way back.
pub(crate) enum MovedAnswer {
    Value {
        bytes: Vec<u8>,
        is_error: bool,
    },
    Failure(Failure, String),
    /// The server has ended on that kernel, and the call has not begun.
    NotBegun,
}

/// A handler that waits for the answer of another kernel. If that has not begun the call, `own`
/// does. `is_begun` tells whether the call has begun there, and `set_begun` notes it here.
pub(crate) fn moved(
    taken: Taken<MovedAnswer>,
    is_begun: Arc<AtomicBool>,
    set_begun: impl Fn(bool) + 'static,
    own: Handler,
) -> Handler {
    Box::pin(async move {
        // Unless the other kernel says otherwise.
        set_begun(true);
        let outcome = taken.outcome().await;
        set_begun(is_begun.load(Ordering::Acquire));
        match outcome {
            Ok(MovedAnswer::Value { bytes, is_error }) => {
                Answer(Given::Value(Box::new(Encoded { bytes, is_error })))
            }
            Ok(MovedAnswer::Failure(failure, text)) => Answer(Given::Failure(failure, text)),
            Ok(MovedAnswer::NotBegun) => own.await,
            Err(TaskError::Panicked(panic)) => resume_unwind(panic.into_payload()),
            Err(error) => Answer(Given::Failure(Failure::Ended, error.to_string())),
        }
    })
}

/// An answer that another kernel has written, for the same client.
struct Encoded {
    bytes: Vec<u8>,
    is_error: bool,
}

impl Encode for Encoded {
    fn encode(&self, _: Codec, into: &mut Vec<u8>) -> Result<(), String> {
        into.extend_from_slice(&self.bytes);
        Ok(())
    }

    fn is_error(&self) -> bool {
        self.is_error
    }
}
