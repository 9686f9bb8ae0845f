//! The channel that messages are published over, and that the answers to them come to.
//!
//! The broker closes a channel for a message that it refuses, and all messages share one. So there
//! is one channel after the other, and every publisher waits here for the next one, within a limit.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::{Channel, Error};
use pikake_sync::{Mutex, OnceCell};
use pikake_time::Deadline;
use pikake_traps::{deadline_after, timeout_at};

use crate::broker::BrokerError;
use crate::brokers::rabbitmq::replies::{Replies, ReplyReader};

/// How many channels may wait for answers at a time, of some two thousand that a broker grants. If
/// the broker grants few, a quarter of them may wait.
const MOST_REPLY_CHANNELS: usize = 256;

/// How long a message waits to be sent, over all of its waits together.
pub(crate) struct WaitLimit {
    length: Duration,
    /// Set by the first wait.
    until: Cell<Option<Deadline>>,
}

impl WaitLimit {
    pub(crate) fn new(length: Duration) -> Self {
        Self { length, until: Cell::new(None) }
    }

    /// Waits for something, as long as the waits before have left.
    pub(crate) async fn within<T, E: Into<BrokerError>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, BrokerError> {
        let until = self.until.get().unwrap_or_else(|| deadline_after(self.length));
        self.until.set(Some(until));
        match timeout_at(until, work).await {
            Ok(done) => done.map_err(Into::into),
            Err(_) => {
                Err(BrokerError::Lost(format!("it could not be sent within {:?}", self.length)))
            }
        }
    }
}

/// A channel for messages, and the answers to them.
pub(crate) struct PublishChannel {
    pub(crate) channel: Channel,
    pub(crate) replies: OnceCell<Rc<ReplyReader>>,
}

impl PublishChannel {
    fn new(channel: Channel) -> Self {
        Self { channel, replies: OnceCell::new() }
    }

    /// Whether the broker has closed the channel, or the channel could not be recovered. (Or the
    /// connection is closed: then there is no other channel either.)
    pub(crate) fn is_closed(&self) -> bool {
        self.channel.closed().is_some()
    }

    /// Whether answers are to come to the channel.
    fn awaits_answers(&self) -> bool {
        // Each question that is not answered keeps the reader.
        self.replies.get().is_some_and(|reader| Rc::strong_count(reader) > 1)
    }

    /// Reads the answers that come to the channel from now on.
    async fn read(&self, replies: &Replies) -> Result<(), Error> {
        let read = async || replies.read(&self.channel).await;
        self.replies.get_or_try_init(read).await.map(drop)
    }
}

/// The channel that all messages share, one after the other.
pub(crate) struct SharedChannel {
    current: RefCell<Rc<PublishChannel>>,
    /// Locked while the next one is opened.
    opening: Mutex<()>,
    /// Whether somebody expects answers.
    reads_replies: Cell<bool>,
}

impl SharedChannel {
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            current: RefCell::new(Rc::new(PublishChannel::new(channel))),
            opening: Mutex::default(),
            reads_replies: Cell::new(false),
        }
    }

    pub(crate) fn current(&self) -> Rc<PublishChannel> {
        self.current.borrow().clone()
    }

    /// The current channel, or the next one if the current one is closed. A message that
    /// `may_close` its channel gets one to which no answers are to come, up to
    /// [`MOST_REPLY_CHANNELS`].
    pub(crate) async fn open(
        &self,
        replies: &Replies,
        limit: &WaitLimit,
        may_close: bool,
    ) -> Result<Rc<PublishChannel>, BrokerError> {
        self.open_for(replies, limit, may_close, false).await
    }

    /// The same. A caller that `must_read` gets an error if the broker refuses to send answers.
    async fn open_for(
        &self,
        replies: &Replies,
        limit: &WaitLimit,
        may_close: bool,
        must_read: bool,
    ) -> Result<Rc<PublishChannel>, BrokerError> {
        let granted = self.current().channel.connection().channel_max();
        let most = granted.map_or(MOST_REPLY_CHANNELS, |granted| {
            MOST_REPLY_CHANNELS.min(usize::from(granted) / 4)
        });
        let is_usable = |channel: &PublishChannel| {
            let is_shared = || !channel.awaits_answers() || replies.readers() >= most;
            !channel.is_closed() && (!may_close || is_shared())
        };
        let current = self.current();
        if is_usable(&current) {
            return Ok(current);
        }
        limit.within(self.open_next(replies, is_usable, must_read)).await
    }

    async fn open_next(
        &self,
        replies: &Replies,
        is_usable: impl Fn(&PublishChannel) -> bool,
        must_read: bool,
    ) -> Result<Rc<PublishChannel>, Error> {
        let _opening = self.opening.lock().await?;
        let current = self.current();
        if is_usable(&current) {
            return Ok(current);
        }
        let connection = current.channel.connection();
        let mut next = PublishChannel::new(connection.channel().await?);
        if self.reads_replies.get() {
            if let Err(error) = next.read(replies).await {
                // Nothing was sent over this channel: the broker refuses to send answers.
                let is_refused = matches!(error, Error::ChannelClosed(_));
                self.reads_replies.set(!is_refused);
                if must_read || !is_refused {
                    return Err(error);
                }
                next = PublishChannel::new(connection.channel().await?);
            }
        }
        let next = Rc::new(next);
        self.current.replace(next.clone());
        Ok(next)
    }

    /// Reads the answers to what is published from now on.
    pub(crate) async fn read(
        &self,
        replies: &Replies,
        limit: &WaitLimit,
    ) -> Result<(), BrokerError> {
        loop {
            // From now on the next channels are read as well.
            self.reads_replies.set(true);
            let channel = self.open_for(replies, limit, false, true).await?;
            let reading = async {
                match channel.read(replies).await {
                    Err(Error::ChannelClosed(_)) if channel.is_closed() => Ok(false),
                    read => read.map(|()| true),
                }
            };
            if limit.within(reading).await? {
                // A failure of another caller may have cleared it.
                self.reads_replies.set(true);
                return Ok(());
            }
            // A message has cost the channel meanwhile.
        }
    }
}
