//! The tasks of a server: its handlers.
//!
//! A handler's task holds an [`EndGuard`], whose drop notifies the server of any end: a return, a
//! panic, an abort, or a drop before the first step. The server holds the task's handle until then,
//! so dropping the server requests a cancel of all handlers.

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

use pikake_time::Ticks;
use pikake_traps::details::{Described, describe};
use pikake_traps::{
    Builder, CancelOnDrop, Interrupted, TaskId, WaitQueue, elapsed_since, now, park, timeout_after,
};
use slab::Slab;

use crate::error::interruption;

/// A shortage that returns within this time counts as the same one, and is not reported again.
const SHORTAGE_REPORTED_FOR: Duration = Duration::from_secs(10);

/// The name of the tasks that handle connections.
pub(crate) const HANDLER_NAME: &str = "connection";

/// State that the handlers' tasks share with the accept loop.
#[derive(Default)]
pub(crate) struct Shared {
    /// The keys of handlers that have ended and were not reaped yet.
    ended: RefCell<Vec<usize>>,
    /// Woken when a handler ends.
    pub(crate) ended_one: WaitQueue,
}

/// Notifies the server of a handler's end, on drop.
struct EndGuard {
    shared: Rc<Shared>,
    key: usize,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.shared.ended.borrow_mut().push(self.key);
        self.shared.ended_one.wake(1);
    }
}

/// The task of a handler.
struct Running {
    task: CancelOnDrop<()>,
    _described: Option<Described>,
}

/// The running handlers. The drop requests their cancel.
pub(crate) struct Handlers {
    pub(crate) limit: usize,
    /// The name of their tasks.
    name: &'static str,
    /// The place where the server was made, which counts as the place of their spawn.
    place: &'static Location<'static>,
    pub(crate) shared: Rc<Shared>,
    tasks: Slab<Running>,
    pub(crate) shortage: Shortage,
}

/// The address of a peer, if it is one of the network.
pub(crate) fn peer_of<A: 'static>(address: &A) -> Option<SocketAddr> {
    (address as &dyn Any).downcast_ref().copied()
}

impl Handlers {
    pub(crate) fn new(limit: usize, name: &'static str, place: &'static Location<'static>) -> Self {
        let (shared, shortage) = (Rc::default(), Shortage::default());
        Self { limit, name, place, shared, tasks: Slab::new(), shortage }
    }

    /// Whether one more may be started.
    #[cfg(feature = "tls")]
    pub(crate) fn has_room(&self) -> bool {
        self.tasks.len() < self.limit
    }

    #[cfg(feature = "tls")]
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Removes the handlers that have ended.
    pub(crate) fn reap(&mut self) {
        for key in self.shared.ended.take() {
            drop(self.tasks.remove(key));
        }
    }

    /// Waits until fewer than `count` handlers run.
    pub(crate) async fn fewer_than(&mut self, count: usize) -> Result<(), Interrupted> {
        loop {
            self.reap();
            if self.tasks.len() < count {
                return Ok(());
            }
            park(&self.shared.ended_one).await?;
        }
    }

    /// Waits until a handler ends and releases its resources, at most `length`.
    pub(crate) async fn pause(&self, length: Duration) -> Result<(), Interrupted> {
        timeout_after(length, park(&self.shared.ended_one)).await.unwrap_or(Ok(()))
    }

    /// Starts a handler for a peer, and returns its key, which is unique while it runs. The task
    /// calls `handler`, so a panic of the call ends that task only, and the task's cell holds the
    /// future once, not twice.
    pub(crate) fn start<F>(
        &mut self,
        peer: Option<SocketAddr>,
        handler: impl FnOnce() -> F + 'static,
    ) -> usize
    where
        F: Future<Output = ()> + 'static,
    {
        let entry = self.tasks.vacant_entry();
        let key = entry.key();
        let guard = EndGuard { shared: self.shared.clone(), key };
        let task = Builder::new().name(self.name).spawned_at(self.place).spawn(async move {
            // The connection is closed before the guard is dropped.
            let _guard = guard;
            handler().await;
        });
        let peer = peer.map(|peer| describe(task.task_ref(), || Box::new(peer)));
        entry.insert(Running { task: task.cancel_on_drop(), _described: peer.flatten() });
        key
    }

    /// The keys and tasks of the handlers that were not reaped.
    pub(crate) fn running(&self) -> impl Iterator<Item = (usize, TaskId)> {
        self.tasks.iter().map(|(key, running)| (key, running.task.id()))
    }

    pub(crate) fn request_cancel(&self, reason: &str) {
        self.tasks.iter().for_each(|(_, running)| running.task.request_cancel(reason));
    }

    pub(crate) fn abort(&self) {
        self.tasks.iter().for_each(|(_, running)| running.task.abort());
    }

    /// Waits until all handlers have ended. An interruption cancels them, a second one aborts them.
    /// Returns the last error.
    pub(crate) async fn end(mut self, mut error: io::Error) -> io::Error {
        let mut is_cancelled = false;
        // Held: what follows is cleanup after these, too.
        let mut errors_before = Vec::new();
        loop {
            if interruption(&error).is_some() {
                if is_cancelled {
                    self.abort();
                } else {
                    self.request_cancel("the server is ending");
                }
                is_cancelled = true;
            }
            match self.fewer_than(1).await {
                Ok(()) => return error,
                Err(again) => errors_before.push(std::mem::replace(&mut error, again.into())),
            }
        }
    }
}

/// The time of the last shortage.
#[derive(Default)]
pub(crate) struct Shortage {
    last: Option<Ticks>,
}

impl Shortage {
    pub(crate) fn report(&mut self, error: &io::Error) {
        let is_known = self.last.is_some_and(|last| elapsed_since(last) < SHORTAGE_REPORTED_FOR);
        self.last = Some(now());
        if !is_known {
            tracing::warn!(
                %error,
                "a connection cannot be accepted and waits in the backlog; trying again until it \
                 can be. Raise the process's limit of open files, or lower the limit of `serve`"
            );
        }
    }
}
