//! How messages go out: over one channel, which a message may cost, and then over the next.
//!
//! Apart from the broker. A message that RabbitMQ cannot take (too large, or its exchange is gone)
//! costs the channel that it came over.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::{Channel, Connection, Error, Message as Publishing, PublishError as Unpublished};
use pikake_sync::{Mutex, OnceCell, WaitGroup};
use pikake_traps::Interrupted;

use crate::amqp_error::not_sent;
use crate::amqp_replies::{Reading, Replies};
use crate::broker::BrokerError;

/// A channel for messages, and the answers to them.
struct Line {
    channel: Channel,
    reading: OnceCell<Reading>,
}

impl Line {
    fn on(channel: Channel) -> Self {
        Self { channel, reading: OnceCell::new() }
    }

    fn is_closed(&self) -> bool {
        matches!(self.channel.closed(), Some(Error::ChannelClosed(_)))
    }

    /// Has the answers read that come to it.
    async fn read(&self, replies: &Replies) -> Result<(), Error> {
        let read = async || replies.read(&self.channel).await;
        self.reading.get_or_try_init(read).await.map(drop)
    }
}

pub(crate) struct Publisher {
    line: RefCell<Rc<Line>>,
    /// Locked while the broker has closed the line, and another is made.
    reopening: Mutex<()>,
    pub(crate) replies: Replies,
    /// Messages that are.
    under_way: WaitGroup,
    /// How long a message is held back by a broker that takes none.
    pub(crate) patience: Duration,
}

/// The broker has closed the channel: because of this message, or of another one.
pub(crate) fn has_cost_its_channel(error: &Unpublished) -> bool {
    matches!(error, Unpublished::Closed { error: Error::ChannelClosed(_), .. })
}

impl Publisher {
    pub(crate) fn on(channel: Channel, patience: Duration) -> Self {
        Self {
            line: RefCell::new(Rc::new(Line::on(channel))),
            reopening: Mutex::default(),
            replies: Replies::default(),
            under_way: WaitGroup::new(),
            patience,
        }
    }

    pub(crate) fn connection(&self) -> Connection {
        self.current().channel.connection().clone()
    }

    fn current(&self) -> Rc<Line> {
        self.line.borrow().clone()
    }

    async fn line(&self) -> Result<Rc<Line>, Error> {
        if !self.current().is_closed() {
            return Ok(self.current());
        }
        let _one = self.reopening.lock().await?;
        let old = self.current();
        if old.is_closed() {
            let new = Line::on(old.channel.connection().channel().await?);
            if old.reading.get().is_some() {
                new.read(&self.replies).await?;
            }
            self.line.replace(Rc::new(new));
        }
        Ok(self.current())
    }

    /// Has the answers read that come to what is published from now on.
    pub(crate) async fn read(&self) -> Result<(), Error> {
        self.line().await?.read(&self.replies).await
    }

    pub(crate) async fn publish(&self, message: Publishing) -> Result<(), Unpublished> {
        let _under_way = self.under_way.enter();
        match self.line().await {
            Ok(line) => line.channel.post(message).await?.await,
            Err(error) => Err(Unpublished::Closed { error, message: Some(Box::new(message)) }),
        }
    }

    /// The same over a channel that no other message can cost.
    pub(crate) async fn publish_alone(&self, message: Publishing) -> Result<(), Unpublished> {
        let _under_way = self.under_way.enter();
        match self.connection().channel().await {
            Ok(channel) => channel.post(message).await?.await,
            Err(error) => Err(Unpublished::Closed { error, message: Some(Box::new(message)) }),
        }
    }

    /// Sends a message of the broker's own.
    pub(crate) async fn send(&self, message: Publishing) -> Result<(), BrokerError> {
        let sent = self.publish(message).await;
        sent.map_err(|error| not_sent(error, self.patience))
    }

    /// Waits until no message is under way.
    pub(crate) async fn settled(&self) -> Result<(), Interrupted> {
        self.under_way.wait().await
    }
}
