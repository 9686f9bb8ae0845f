//! Publishing: sent when the broker takes messages and the window has room, done when confirmed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use pikake_sync::oneshot;
use pikake_traps::{WaitQueue, deadline_after, park, timeout_at};

use crate::channel::{Channel, ChannelInner};
use crate::error::{Error, PublishError};
use crate::hub::Publisher;
use crate::message::{Message, Properties, short};

/// What came of an attempt to send a message.
enum Attempt {
    Sent(Confirm),
    /// The broker takes none, or none on this channel, or there is no connection.
    Hindered(Box<Message>, String),
    /// Too many are unconfirmed.
    Full(Box<Message>),
    Failed(PublishError),
}

impl Channel {
    /// Publishes a message, and waits until the broker has confirmed it. On a quorum queue that means
    /// that most of its replicas have it on disk.
    ///
    /// With confirms, a message that no queue takes is an error only if it is `mandatory`. To have many
    /// under way, use [`post`](Self::post), or many tasks.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted before it was sent, the error gives the message back;
    /// afterwards, or dropped, its outcome is uncertain.
    ///
    /// # Errors
    ///
    /// [`PublishError`].
    pub fn publish(
        &self,
        exchange: &str,
        key: &str,
        properties: Properties,
        body: Vec<u8>,
        mandatory: bool,
    ) -> impl Future<Output = Result<(), PublishError>> + use<> {
        let names = short(exchange).and_then(|exchange| Ok((exchange, short(key)?)));
        let channel = self.clone();
        async move {
            let (exchange, routing_key) =
                names.map_err(|error| PublishError::Closed { error, message: None })?;
            let message = Message { exchange, routing_key, properties, body, mandatory };
            channel.post(message).await?.await
        }
    }

    /// Sends a message, and gives the future of its confirm, which may be awaited later or never: many
    /// messages can be under way from one task.
    ///
    /// # Cancellation
    ///
    /// An interruption point, while [`Options::publish_window`](crate::Options::publish_window) is
    /// full, the broker takes no messages, or there is no connection. Interrupted, the error gives the
    /// message back; dropped, it is dropped with it, unsent.
    ///
    /// # Errors
    ///
    /// [`PublishError`], with the message.
    pub fn post(
        &self,
        message: Message,
    ) -> impl Future<Output = Result<Confirm, PublishError>> + use<> {
        let channel = self.0.clone();
        async move {
            let mut message = Box::new(message);
            let mut patience = None;
            let mut turn = Turn { window: &channel.window, is_unused: false };
            loop {
                let hub = channel.hub();
                let waited = match attempt(&channel, message) {
                    Attempt::Sent(confirm) => {
                        turn.is_unused = false;
                        return Ok(confirm);
                    }
                    Attempt::Failed(error) => return Err(error),
                    Attempt::Full(back) => {
                        message = back;
                        // The broker takes messages: the next hindrance is another one.
                        patience = None;
                        turn.is_unused = false;
                        let waited = park(&channel.window).await;
                        turn.is_unused = true;
                        waited
                    }
                    Attempt::Hindered(back, reason) => {
                        message = back;
                        let limit = hub.options.blocked_deadline;
                        let until = *patience.get_or_insert_with(|| deadline_after(limit));
                        match timeout_at(until, park(&hub.gate)).await {
                            Ok(waited) => waited,
                            Err(_) => {
                                let message = Some(message);
                                return Err(PublishError::Blocked { reason, message });
                            }
                        }
                    }
                };
                if let Err(why) = waited {
                    return Err(PublishError::Interrupted { why, message: Some(message) });
                }
            }
        }
    }
}

/// A wake of one who waits for room. If the room is not used by whoever has it, it is passed on: there
/// may be no other.
struct Turn<'a> {
    window: &'a WaitQueue,
    is_unused: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.is_unused {
            self.window.wake(1);
        }
    }
}

fn attempt(channel: &Rc<ChannelInner>, message: Box<Message>) -> Attempt {
    let hub = channel.hub();
    let failed =
        |error, message| Attempt::Failed(PublishError::Closed { error, message: Some(message) });
    if let Some(error) = channel.closed() {
        return failed(error, message);
    }
    if let Some(reason) = hub.obstacle() {
        return Attempt::Hindered(message, reason);
    }
    let number = channel.number.get();
    let window = hub.session.borrow().as_ref().and_then(|session| session.window(number));
    match window {
        None => return failed(Error::Closed, message),
        Some((false, _)) => {
            return Attempt::Hindered(message, "the broker has paused the channel".to_owned());
        }
        Some((true, unconfirmed)) if unconfirmed < hub.options.publish_window.max(1) => {}
        Some(_) => return Attempt::Full(message),
    }
    let (sender, receiver) = oneshot::channel();
    let publisher = Publisher { sender, channel: channel.clone(), lost_at: None };
    let confirm = Confirm { receiver, channel: channel.clone(), epoch: None };
    match hub.with(|session| session.publish(number, message, publisher)) {
        Some(Ok(None)) => Attempt::Sent(confirm),
        Some(Ok(Some(publisher))) => {
            // Without confirms, that it is queued is all there is to know.
            let _told = publisher.sender.send(Ok(hub.epoch.get()));
            Attempt::Sent(confirm)
        }
        Some(Err((error, message, _))) => failed(error, message),
        None => Attempt::Failed(PublishError::Uncertain),
    }
}

/// The future of a message's confirm. Its channel stays open until it has come.
///
/// # Cancellation
///
/// An interruption point. After an interruption `&mut confirm` may be awaited again. Dropped, the
/// message is still published, and nobody is told what became of it.
#[must_use = "whether the message was confirmed is told to whoever awaits this"]
pub struct Confirm {
    receiver: oneshot::Receiver<Result<u64, PublishError>>,
    channel: Rc<ChannelInner>,
    /// Of the connection that has brought it.
    epoch: Option<u64>,
}

impl Confirm {
    /// The [epoch](crate::Connection::epoch) of the connection that brought the confirm, once it has come.
    pub fn epoch(&self) -> Option<u64> {
        self.epoch
    }
}

impl Future for Confirm {
    type Output = Result<(), PublishError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(cx).map(|received| match received {
            Ok(result) => result.map(|epoch| self.epoch = Some(epoch)),
            Err(oneshot::RecvError::Interrupted(why)) => {
                Err(PublishError::Interrupted { why, message: None })
            }
            Err(_) => {
                let error = self.channel.closed().unwrap_or(Error::Closed);
                Err(PublishError::Closed { error, message: None })
            }
        })
    }
}

impl fmt::Debug for Confirm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Confirm").field("receiver", &self.receiver).finish_non_exhaustive()
    }
}
