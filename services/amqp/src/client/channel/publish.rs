//! Publishing: sent when the broker takes messages and the window has room, done when confirmed.

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

/// Whether a message can be sent just now.
enum Look {
    Room,
    /// The broker takes none, or none on this channel, or there is no connection.
    Hindered(String),
    /// Too many are unconfirmed.
    Full,
    Closed(Error),
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
        let room = self.room();
        async move {
            match room.await {
                Ok(room) => room.post(message),
                Err(error) => Err(error.about(message)),
            }
        }
    }

    /// Waits until a message can be sent, for those that are to be made only then.
    ///
    /// # Cancellation
    ///
    /// An interruption point, as [`post`](Self::post) is. Nothing is lost when it is dropped.
    ///
    /// # Errors
    ///
    /// [`PublishError`], without a message: there was none yet.
    pub fn room(&self) -> impl Future<Output = Result<Room, PublishError>> + use<> {
        let channel = self.0.clone();
        async move {
            let mut patience = None;
            let mut room = Room { channel, is_unused: false };
            loop {
                let hub = room.channel.hub();
                let waited = match look(&room.channel) {
                    Look::Room => return Ok(room),
                    Look::Closed(error) => {
                        return Err(PublishError::Closed { error, message: None });
                    }
                    Look::Full => {
                        // The broker takes messages: the next hindrance is another one.
                        patience = None;
                        room.is_unused = false;
                        let waited = park(&room.channel.window).await;
                        room.is_unused = true;
                        waited
                    }
                    Look::Hindered(reason) => {
                        let limit = hub.options.blocked_deadline;
                        let until = *patience.get_or_insert_with(|| deadline_after(limit));
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

/// Room for one message on a channel, to be used before anything is awaited: it is there now, and not kept.
#[must_use = "a message is posted with it"]
pub struct Room {
    channel: Rc<ChannelInner>,
    /// It was waited for. If it is not used by whoever has it, the wake is passed on: there may be no other.
    is_unused: bool,
}

impl Room {
    /// Sends a message, as [`Channel::post`] does.
    ///
    /// # Errors
    ///
    /// [`PublishError::Closed`], with the message unless it was sent.
    pub fn post(mut self, message: Message) -> Result<Confirm, PublishError> {
        let sent = send(&self.channel, Box::new(message));
        self.is_unused &= sent.is_err();
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
        if self.is_unused {
            self.channel.window.wake(1);
        }
    }
}

fn look(channel: &ChannelInner) -> Look {
    let hub = channel.hub();
    if let Some(error) = channel.closed() {
        return Look::Closed(error);
    }
    if let Some(reason) = hub.obstacle() {
        return Look::Hindered(reason);
    }
    let number = channel.number.get();
    let window = hub.session.borrow().as_ref().and_then(|session| session.window(number));
    match window {
        None => Look::Closed(Error::Closed),
        Some((false, _)) => Look::Hindered("the broker has paused the channel".to_owned()),
        Some((true, unconfirmed)) if unconfirmed < hub.options.publish_window.max(1) => Look::Room,
        Some(_) => Look::Full,
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
            // Without confirms, that it is queued is all there is to know.
            let _told = publisher.sender.send(Ok(hub.epoch.get()));
            Ok(confirm)
        }
        Some(Err((error, message, _))) => {
            Err(PublishError::Closed { error, message: Some(message) })
        }
        None => Err(PublishError::Uncertain),
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
