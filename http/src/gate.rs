//! A listener that can be shut from outside, and what a server knows of its connections.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use pikake_net::Listener;
use pikake_traps::{Interrupted, TaskRef, WaitQueue, park};
use slab::Slab;

use crate::request::Requests;

/// A connection that is open.
pub(crate) struct Open {
    pub(crate) task: TaskRef,
    pub(crate) peer: String,
    pub(crate) requests: Rc<Requests>,
}

/// What a server's loop, its connections and its owner share.
#[derive(Default)]
pub(crate) struct Gate {
    shut: Cell<bool>,
    /// Where those wait who want to know.
    waiters: WaitQueue,
    pub(crate) open: RefCell<Slab<Open>>,
    pub(crate) answered: Cell<u64>,
}

impl Gate {
    /// No connection is accepted any more, and none takes another request.
    pub(crate) fn shut(&self) {
        self.shut.set(true);
        self.waiters.wake(usize::MAX);
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut.get()
    }

    /// Waits until it is.
    pub(crate) async fn until_shut(&self) -> Result<(), Interrupted> {
        while !self.shut.get() {
            park(&self.waiters).await?;
        }
        Ok(())
    }
}

/// A listener that is closed, not only left alone, when the gate is shut: so that clients are
/// refused and go elsewhere.
pub(crate) struct Gated<L> {
    pub(crate) listener: RefCell<Option<Rc<L>>>,
    pub(crate) gate: Rc<Gate>,
}

/// What accepting fails with when the gate is shut.
#[derive(Debug)]
pub(crate) struct Shut;

impl fmt::Display for Shut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server is being shut down")
    }
}

impl std::error::Error for Shut {}

impl<L: Listener> Listener for Gated<L> {
    type Connection = L::Connection;
    type Address = L::Address;

    async fn accept(&self) -> io::Result<(L::Connection, L::Address)> {
        let listener = self.listener.borrow().clone();
        let accepted = match listener {
            Some(listener) if !self.gate.is_shut() => {
                let mut accepting = pin!(listener.accept());
                let mut shutting = pin!(self.gate.until_shut());
                poll_fn(|cx| {
                    if let Poll::Ready(told) = shutting.as_mut().poll(cx) {
                        return Poll::Ready(told.map_err(io::Error::from).map(|()| None));
                    }
                    accepting.as_mut().poll(cx).map(|accepted| accepted.map(Some))
                })
                .await?
            }
            _ => None,
        };
        match accepted {
            Some(accepted) => Ok(accepted),
            None => {
                drop(self.listener.take());
                Err(io::Error::other(Shut))
            }
        }
    }
}
