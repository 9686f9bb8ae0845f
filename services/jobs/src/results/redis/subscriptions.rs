//! The channels on which outcomes are announced, for those that wait here.
//!
//! A waiter subscribes first, and looks for the outcome after the confirmation: an outcome is found
//! by that look, or its announcement comes. After a lost connection, all channels are subscribed to
//! and looked at again. If the server refuses the subscription, the waiter looks once, and the wait
//! fails.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pikake_traps::{Interrupted, WaitQueue, park};

use crate::results::redis::link::{Subscriber, is_transient};
use crate::results::redis::protocol::{Reply, write};

/// The channels that are subscribed to, or are to be.
#[derive(Debug, Default)]
pub(crate) struct Channels(RefCell<BTreeMap<Vec<u8>, Rc<Channel>>>);

/// A channel, for all its waiters.
#[derive(Debug, Default)]
pub(crate) struct Channel {
    /// Counts confirmations, refusals and announcements: the reasons to look for the outcome.
    news: Cell<u64>,
    /// Whether the server has confirmed the subscription on this connection.
    is_confirmed: Cell<bool>,
    /// Why the server refuses the subscription.
    refusal: RefCell<Option<String>>,
    waiters: WaitQueue,
}

impl Channel {
    pub(crate) fn news(&self) -> u64 {
        self.news.get()
    }

    /// Why no announcement comes.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refusal.borrow().clone()
    }

    /// Waits until there may be something new.
    pub(crate) async fn changed(&self) -> Result<(), Interrupted> {
        park(&self.waiters).await
    }

    /// Has all waiters look again.
    pub(crate) fn notify(&self) {
        self.news.set(self.news.get() + 1);
        self.waiters.wake(usize::MAX);
    }
}

impl Channels {
    /// Adds a waiter. Returns whether the channel is new, and has to be subscribed to.
    pub(crate) fn join(&self, name: &[u8]) -> (Rc<Channel>, bool) {
        let mut channels = self.0.borrow_mut();
        if let Some(channel) = channels.get(name) {
            return (channel.clone(), false);
        }
        let channel = Rc::<Channel>::default();
        channels.insert(name.to_owned(), channel.clone());
        (channel, true)
    }

    /// Removes a waiter, which gives its channel back. Returns whether it was the last one, and the
    /// channel has to be unsubscribed from.
    pub(crate) fn leave(&self, name: &[u8], channel: Rc<Channel>) -> bool {
        drop(channel);
        let mut channels = self.0.borrow_mut();
        let is_last = channels.get(name).is_some_and(|channel| Rc::strong_count(channel) == 1);
        if is_last {
            channels.remove(name);
        }
        is_last
    }

    /// Has the waiters of a channel look again.
    pub(crate) fn notify(&self, name: &[u8]) {
        let channel = self.0.borrow().get(name).cloned();
        if let Some(channel) = channel {
            channel.notify();
        }
    }

    /// Has all waiters look again.
    pub(crate) fn notify_all(&self) {
        let channels: Vec<_> = self.0.borrow().values().cloned().collect();
        channels.iter().for_each(|channel| channel.notify());
    }

    fn confirm(&self, name: &[u8]) {
        if let Some(channel) = self.0.borrow().get(name) {
            channel.is_confirmed.set(true);
            channel.refusal.take();
        }
    }

    /// Ends the waits that depend on subscriptions which are not confirmed. The error of the server
    /// names no channel, and its rights are the same for all: their names begin alike.
    fn refuse(&self, why: &str) {
        let channels: Vec<_> = self.0.borrow().values().cloned().collect();
        for channel in channels.iter().filter(|channel| !channel.is_confirmed.get()) {
            channel.refusal.replace(Some(why.to_owned()));
            channel.notify();
        }
    }
}

impl Subscriber for Channels {
    fn pushed(&self, reply: Reply) -> Result<(), String> {
        let parts = match reply {
            Reply::List(parts) => parts,
            // The answer to PING, while nothing is subscribed to.
            Reply::Status(_) => return Ok(()),
            Reply::Error(why) if is_transient(&why) => {
                return Err(format!("the server refuses a subscription: {why}"));
            }
            // A new connection would be refused, too, and the confirmed subscriptions need this
            // one.
            Reply::Error(why) => {
                self.refuse(&why);
                return Ok(());
            }
            _ => return Err("the server sent something that is no message".to_owned()),
        };
        match parts.as_slice() {
            [Reply::Bytes(kind), Reply::Bytes(name), ..]
                if matches!(&**kind, b"subscribe" | b"message") =>
            {
                if **kind == *b"subscribe" {
                    self.confirm(name);
                }
                self.notify(name);
                Ok(())
            }
            [Reply::Bytes(kind), ..] if matches!(&**kind, b"unsubscribe" | b"pong") => Ok(()),
            _ => Err("the server sent something that is no message".to_owned()),
        }
    }

    fn opened(&self, output: &mut Vec<u8>) {
        let channels = self.0.borrow();
        channels.values().for_each(|channel| channel.is_confirmed.set(false));
        if !channels.is_empty() {
            let names = channels.keys().map(Vec::as_slice);
            let command: Vec<&[u8]> = [b"SUBSCRIBE".as_slice()].into_iter().chain(names).collect();
            write(&command, output);
        }
    }
}
