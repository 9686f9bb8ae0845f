//! The servers of several kernels, which answer each other's calls.
//!
//! A call that comes while its kernel is late is offered to the other kernels
//! ([`Builder::offer`](pikake_traps::Builder::offer)). The kernel that takes the call answers it
//! with the services and interceptors of its own server. The bytes of the arguments cross, and
//! those of the answer. A call with channels stays with its connection.
//!
//! The servers of one `serve_on_all` have one list in common. Each enters its core when it begins,
//! and removes it when it ends.

use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pikake_time::Deadline;
use pikake_traps::{Bound, Taken, TaskError};

use crate::call::{CallInfo, Running, in_call};
use crate::codec::{ArgumentReader, Codec};
use crate::peer::Peer;
use crate::protocol::{Failure, Metadata};
use crate::server::Core;
use crate::service::{Answer, Encode, Given, Handler};
use crate::trace::TraceContext;

/// The cores of a server, one for each of its kernels.
#[derive(Default)]
pub(crate) struct Takers(Mutex<Vec<Bound<Rc<Core>>>>);

/// A call on its way to another kernel.
pub(crate) struct MovedCall {
    pub(crate) method: u32,
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) deadline: Deadline,
    pub(crate) metadata: Metadata,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) codec: Codec,
    pub(crate) arguments: Vec<u8>,
}

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

impl Takers {
    fn list(&self) -> MutexGuard<'_, Vec<Bound<Rc<Core>>>> {
        // No user code runs under the lock, so the list behind a poisoned lock is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the server of the current kernel, until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>, core: Rc<Core>) -> Entered {
        self.list().push(Bound::new(core));
        Entered(self.clone())
    }

    /// Answers a call of another kernel with the server of this one.
    pub(crate) async fn answer(self: Arc<Self>, call: MovedCall) -> MovedAnswer {
        let core = self.list().iter().find(|core| core.is_home()).map(|core| core.get().clone());
        let Some(core) = core else { return MovedAnswer::NotBegun };
        let Some(offer) = core.find(call.method) else { return MovedAnswer::NotBegun };
        let MovedCall { method: _, id, peer, deadline, metadata, trace, codec, arguments } = call;
        let read = ArgumentReader::new(codec, &arguments).and_then(|reader| offer.call(reader));
        let handler = match read {
            Ok(handler) => handler,
            Err(text) => return MovedAnswer::Failure(Failure::Arguments, text),
        };
        let (method, peer) = (offer.method, Rc::new(peer));
        let info = Rc::new(CallInfo { method, id, peer, deadline, metadata, trace });
        let running = Running::new(info.clone(), false, Vec::new());
        let handler = core.intercepted(&running, handler);
        let answer = in_call(&info, handler).await;
        running.has_ended.set(true);
        match answer.0 {
            Given::Failure(failure, text) => MovedAnswer::Failure(failure, text),
            Given::Value(value) => {
                let mut bytes = Vec::new();
                match value.encode(codec, &mut bytes) {
                    Ok(()) => MovedAnswer::Value { bytes, is_error: value.is_error() },
                    Err(text) => MovedAnswer::Failure(Failure::Answer, text),
                }
            }
        }
    }
}

/// The entry of a server, while it serves.
pub(crate) struct Entered(Arc<Takers>);

impl Drop for Entered {
    fn drop(&mut self) {
        let mut list = self.0.list();
        let index = list.iter().position(Bound::is_home);
        let core = index.map(|index| list.swap_remove(index));
        drop(list);
        drop(core);
    }
}

/// A handler that waits for the answer of another kernel. If that has not begun the call, the
/// handler of this one begins.
pub(crate) fn moved(
    taken: Taken<MovedAnswer>,
    core: Rc<Core>,
    running: Rc<Running>,
    handler: Handler,
) -> Handler {
    Box::pin(async move {
        running.is_begun.set(true);
        match taken.outcome().await {
            Ok(MovedAnswer::Value { bytes, is_error }) => {
                Answer(Given::Value(Box::new(Encoded { bytes, is_error })))
            }
            Ok(MovedAnswer::Failure(failure, text)) => Answer(Given::Failure(failure, text)),
            Ok(MovedAnswer::NotBegun) => {
                running.is_begun.set(false);
                core.intercepted(&running, handler).await
            }
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
