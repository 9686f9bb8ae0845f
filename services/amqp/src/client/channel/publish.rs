//! Publishing: waits until the broker accepts messages and the window has room, and sends.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use pikake_sync::oneshot;
use pikake_traps::{deadline_after, park, timeout_at};

use super::Channel;
use crate::client::error::PublishError;
use crate::client::hub::{ChannelInner, Publisher};
use crate::error::Error;
use crate::message::{Message, Properties, short};

/// Whether a message can be sent now.
enum Readiness {
    Ready,
    /// The broker accepts no messages, or has paused the channel, or there is no connection.
    Blocked(String),
    /// The channel has too many unconfirmed messages.
    WindowFull,
    Closed(Error),
}

impl Channel {
    /// Publishes a message, and waits for its confirm. A quorum queue confirms when most of its
    /// replicas have the message on disk.
    ///
    /// With confirms, an unroutable message is an error only if it is `mandatory`. For many
    /// messages in flight, use [`post`](Self::post) or several tasks.
    ///
    /// # Cancellation
    ///
    /// An interruption point. If the message was not sent, the error of the interruption contains
    /// the message. After that, or when the future is dropped, the outcome is uncertain.
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

    /// Sends a message, and returns the future of its confirm, which may be awaited later or never.
    /// One task can thus have many messages in flight.
    ///
    /// # Cancellation
    ///
    /// An interruption point, while [`Options::publish_window`](crate::Options::publish_window) is
    /// full, the broker accepts no messages, or there is no connection. The error of an
    /// interruption contains the message; a dropped future drops the message unsent.
    ///
    /// # Errors
    ///
    /// [`PublishError`], with the message.
    pub fn post(
        &self,
        message: Message,
    ) -> impl Future<Output = Result<Confirm, PublishError>> + use<> {
        let room = self.room();
        async move {
            match room.await {
                Ok(room) => room.post(message),
                Err(error) => Err(error.with_message(message)),
            }
        }
    }

    /// Waits until a message can be sent, for callers that create the message only then.
    ///
    /// # Cancellation
    ///
    /// An interruption point, as [`post`](Self::post) is. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`PublishError`], without a message.
    pub fn room(&self) -> impl Future<Output = Result<Room, PublishError>> + use<> {
        let channel = self.0.clone();
        async move {
            let mut deadline = None;
            let mut room = Room { channel, passes_wake_on: false };
            loop {
                let hub = room.channel.hub();
                let waited = match readiness(&room.channel) {
                    Readiness::Ready => return Ok(room),
                    Readiness::Closed(error) => {
                        return Err(PublishError::Closed { error, message: None });
                    }
                    Readiness::WindowFull => {
                        // The broker accepts messages now, so a later block has a new deadline.
                        deadline = None;
                        room.passes_wake_on = false;
                        let waited = park(&room.channel.window).await;
                        room.passes_wake_on = true;
                        waited
                    }
                    Readiness::Blocked(reason) => {
                        let limit = hub.options.blocked_deadline;
                        let until = *deadline.get_or_insert_with(|| deadline_after(limit));
                        match timeout_at(until, park(&hub.gate)).await {
                            Ok(waited) => waited,
                            Err(_) => return Err(PublishError::Blocked { reason, message: None }),
                        }
                    }
                };
                if let Err(why) = waited {
                    return Err(PublishError::Interrupted { why, message: None });
                }
            }
        }
    }
}

/// Room for one message on a channel. Use it before the next await: the room is not reserved.
#[must_use = "post a message with the room"]
pub struct Room {
    channel: Rc<ChannelInner>,
    /// Whether the drop wakes the next publisher, because this room consumed a wake and was not
    /// used.
    passes_wake_on: bool,
}

impl Room {
    /// Sends a message, as [`Channel::post`] does.
    ///
    /// # Errors
    ///
    /// [`PublishError::Closed`], with the message unless it was sent.
    pub fn post(mut self, message: Message) -> Result<Confirm, PublishError> {
        let sent = send(&self.channel, Box::new(message));
        self.passes_wake_on &= sent.is_err();
        sent
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("channel", &self.channel.number.get()).finish_non_exhaustive()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.passes_wake_on {
            self.channel.window.wake(1);
        }
    }
}

fn readiness(channel: &ChannelInner) -> Readiness {
    let hub = channel.hub();
    if let Some(error) = channel.closed() {
        return Readiness::Closed(error);
    }
    if let Some(reason) = hub.obstacle() {
        return Readiness::Blocked(reason);
    }
    let number = channel.number.get();
    let window = hub.session.borrow().as_ref().and_then(|session| session.window(number));
    match window {
        None => Readiness::Closed(Error::Closed),
        Some((false, _)) => Readiness::Blocked("the broker has paused the channel".to_owned()),
        Some((true, unconfirmed)) if unconfirmed < hub.options.publish_window.max(1) => {
            Readiness::Ready
        }
        Some(_) => Readiness::WindowFull,
    }
}

fn send(channel: &Rc<ChannelInner>, message: Box<Message>) -> Result<Confirm, PublishError> {
    let hub = channel.hub();
    let number = channel.number.get();
    let (sender, receiver) = oneshot::channel();
    let publisher = Publisher { sender, channel: channel.clone(), lost_at: None };
    let confirm = Confirm { receiver, channel: channel.clone(), epoch: None };
    match hub.with(|session| session.publish(number, message, publisher)) {
        Some(Ok(None)) => Ok(confirm),
        Some(Ok(Some(publisher))) => {
            // Without confirms, a queued message is done.
            let _receiver_dropped = publisher.sender.send(Ok(hub.epoch.get()));
            Ok(confirm)
        }
        Some(Err((error, message, _))) => {
            Err(PublishError::Closed { error, message: Some(message) })
        }
        None => Err(PublishError::Uncertain),
    }
}

/// The future of a message's confirm, which keeps the channel open.
///
/// # Cancellation
///
/// An interruption point. After an interruption `&mut confirm` may be awaited again. Dropping the
/// future does not take the message back, but its outcome is lost.
#[must_use = "the result says whether the broker confirmed the message"]
pub struct Confirm {
    receiver: oneshot::Receiver<Result<u64, PublishError>>,
    channel: Rc<ChannelInner>,
    /// The epoch of the connection that brought the confirm.
    epoch: Option<u64>,
}

impl Confirm {
    /// The [epoch](crate::Connection::epoch) of the connection that brought the confirm, if it has
    /// arrived.
    pub fn epoch(&self) -> Option<u64> {
        self.epoch
    }
}

impl Future for Confirm {
    type Output = Result<(), PublishError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(cx).map(|received| match received {
            Ok(Ok(result)) => result.map(|epoch| self.epoch = Some(epoch)),
            Ok(Err(_)) => {
                let error = self.channel.closed().unwrap_or(Error::Closed);
                Err(PublishError::Closed { error, message: None })
            }
            Err(why) => Err(PublishError::Interrupted { why, message: None }),
        })
    }
}

impl fmt::Debug for Confirm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Confirm").field("receiver", &self.receiver).finish_non_exhaustive()
    }
}
