//! The tasks of a server: counting them, waiting for them, ending them.
//!
//! A handler's task holds a [`Place`], whose drop tells the server that it has ended, whatever the
//! end was: a return, a panic, an abort, or being dropped before it ever ran. The server holds the
//! task's handle until then, so that dropping the server asks every handler to end.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake_time::Ticks;
use pikake_traps::{
    Builder, CancelOnDrop, Interrupted, TaskId, WaitQueue, elapsed_since, now, park, timeout_after,
};
use slab::Slab;

use crate::error::interruption;

/// A shortage that comes back within this time counts as the same one, and is not reported again.
const SHORTAGE_REPORTED_FOR: Duration = Duration::from_secs(10);

/// The name of the tasks that handle connections.
const HANDLER_NAME: &str = "connection";

/// What the handlers' tasks share with the loop.
#[derive(Default)]
pub(crate) struct Shared {
    /// The keys of the handlers that have ended and were not reaped yet.
    ended: RefCell<Vec<usize>>,
    /// Where the loop waits for one.
    pub(crate) ended_one: WaitQueue,
}

/// Held by a handler's task for as long as it lives, however it ends.
struct Place {
    shared: Rc<Shared>,
    key: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.ended.borrow_mut().push(self.key);
        self.shared.ended_one.wake(1);
    }
}

/// The handlers that run. Dropping it asks them to end.
pub(crate) struct Handlers {
    pub(crate) limit: usize,
    pub(crate) shared: Rc<Shared>,
    tasks: Slab<CancelOnDrop<()>>,
    pub(crate) shortage: Shortage,
}

impl Handlers {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, shared: Rc::default(), tasks: Slab::new(), shortage: Shortage::default() }
    }

    /// Lets go of the handlers that have ended.
    pub(crate) fn reap(&mut self) {
        for key in self.shared.ended.take() {
            drop(self.tasks.remove(key));
        }
    }

    /// Waits until fewer than so many run.
    pub(crate) async fn fewer_than(&mut self, count: usize) -> Result<(), Interrupted> {
        loop {
            self.reap();
            if self.tasks.len() < count {
                return Ok(());
            }
            park(&self.shared.ended_one).await?;
        }
    }

    /// Waits so long, or until a handler ends and gives back what it held.
    pub(crate) async fn pause(&self, length: Duration) -> Result<(), Interrupted> {
        timeout_after(length, park(&self.shared.ended_one)).await.unwrap_or(Ok(()))
    }

    /// Starts a handler, and gives its key, which is nobody else's while it runs. The task calls `handler`, so a
    /// panic in the call is the task's, and the task has room for one future, not for that future twice.
    pub(crate) fn start<F>(&mut self, handler: impl FnOnce() -> F + 'static) -> usize
    where
        F: Future<Output = ()> + 'static,
    {
        let entry = self.tasks.vacant_entry();
        let key = entry.key();
        let place = Place { shared: self.shared.clone(), key };
        let task = Builder::new().name(HANDLER_NAME).spawn(async move {
            // The connection is closed before its place is free.
            let _place = place;
            handler().await;
        });
        entry.insert(task.cancel_on_drop());
        key
    }

    /// Those that run: their keys and tasks. Reap before.
    pub(crate) fn running(&self) -> impl Iterator<Item = (usize, TaskId)> {
        self.tasks.iter().map(|(key, task)| (key, task.id()))
    }

    pub(crate) fn request_cancel(&self, reason: &str) {
        self.tasks.iter().for_each(|(_, task)| task.request_cancel(reason));
    }

    pub(crate) fn abort(&self) {
        self.tasks.iter().for_each(|(_, task)| task.abort());
    }

    /// Ends the handlers as the error demands, and gives the error that the loop ends with.
    pub(crate) async fn end(mut self, mut error: io::Error) -> io::Error {
        let mut asked = false;
        loop {
            if interruption(&error).is_some() {
                if asked {
                    self.abort();
                } else {
                    self.request_cancel("the server was asked to end");
                }
                asked = true;
            }
            match self.fewer_than(1).await {
                Ok(()) => return error,
                Err(again) => error = again.into(),
            }
        }
    }
}

/// When a shortage was last met.
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
