//! How messages go out: over one channel, which a message may cost, and then over the next.
//!
//! Apart from the broker. A message that RabbitMQ cannot take (too large, or its exchange is gone)
//! costs the channel that it came over, and with it the confirms of all others that are under way.
//! Which one it was is not told: each of them is sent again over a channel of its own, so those that
//! had been taken already are there twice, and only the one to blame is refused.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::{
    Channel, Connection, Error, Message as Publishing, PublishError as Unpublished, persistent,
};
use pikake_sync::{Mutex, OnceCell, WaitGroup};
use pikake_traps::{Interrupted, ignore_after};

use crate::amqp_error::unpublished;
use crate::amqp_queues::to_queue;
use crate::amqp_replies::{Reading, Replies};
use crate::broker::{BrokerError, PublishFailure};
use crate::message::JobId;

/// A broker that takes messages has confirmed one by then.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// A channel for messages, and the answers to them.
struct Line {
    channel: Channel,
    reading: OnceCell<Rc<Reading>>,
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

/// What was not sent, or not confirmed.
#[derive(Debug)]
pub(crate) struct Unsent {
    /// It may be there all the same.
    pub(crate) is_uncertain: bool,
    pub(crate) cause: PublishFailure,
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

    /// Publishes a message, which `asks` for the outcome of that job.
    ///
    /// If its channel is lost while it is under way, because of it or because of another one, it is made
    /// again and goes over a channel of its own: what that one is lost for is this message.
    pub(crate) async fn publish(
        &self,
        asks: Option<&JobId>,
        make: impl AsyncFn() -> Result<Publishing, BrokerError>,
    ) -> Result<(), Unsent> {
        let _under_way = self.under_way.enter();
        let unsent = |error| Unsent { is_uncertain: false, cause: PublishFailure::Broker(error) };
        let mut message = make().await.map_err(unsent)?;
        let lost = loop {
            let line = self.line().await.map_err(|error| unsent(error.into()))?;
            match self.publish_over(&line, message, asks).await {
                Ok(()) => return Ok(()),
                Err(Unpublished::Closed { error: Error::ChannelClosed(reason), message: back }) => {
                    match back {
                        // It was still here when another one cost the channel.
                        Some(back) => message = *back,
                        None => break reason,
                    }
                }
                Err(error) => return Err(unpublished(error, self.patience)),
            }
        };
        let again = async {
            let message = make().await?;
            let alone = Line::on(self.connection().channel().await?);
            if asks.is_some() {
                alone.read(&self.replies).await?;
            }
            Ok::<_, BrokerError>(self.publish_over(&alone, message, asks).await)
        };
        match again.await {
            Ok(Ok(())) => Ok(()),
            // Lost for the same reason, it was that before.
            Ok(Err(Unpublished::Closed { error: Error::ChannelClosed(reason), .. })) => {
                let is_uncertain = reason != lost;
                Err(Unsent { is_uncertain, ..unsent(Error::ChannelClosed(reason).into()) })
            }
            Ok(Err(error)) => {
                Err(Unsent { is_uncertain: true, ..unpublished(error, self.patience) })
            }
            Err(error) => Err(Unsent { is_uncertain: true, ..unsent(error) }),
        }
    }

    async fn publish_over(
        &self,
        line: &Line,
        message: Publishing,
        asks: Option<&JobId>,
    ) -> Result<(), Unpublished> {
        line.channel.post(message).await?.await?;
        if let Some((job, reading)) = asks.zip(line.reading.get()) {
            self.replies.is_asked(job, reading);
        }
        Ok(())
    }

    /// Sends a message of the broker's own.
    pub(crate) async fn send(
        &self,
        make: impl Fn() -> Result<Publishing, Error>,
    ) -> Result<(), BrokerError> {
        let sent = self.publish(None, async || Ok(make()?)).await;
        sent.map_err(|unsent| match unsent.cause {
            PublishFailure::Broker(error) => error,
            blocked => BrokerError::Lost(blocked.to_string()),
        })
    }

    /// Sends a message that goes nowhere: whoever publishes is told that the broker takes none.
    pub(crate) async fn probe(&self) -> Result<(), BrokerError> {
        let nowhere = || Ok(Publishing { mandatory: false, ..to_queue("", persistent(), vec![])? });
        match ignore_after(PROBE_LIMIT, self.send(nowhere)).await {
            // Who may send nothing is not kept from sending.
            None | Some(Err(BrokerError::Refused(_))) => Ok(()),
            Some(sent) => sent,
        }
    }

    /// Waits until no message is under way.
    pub(crate) async fn settled(&self) -> Result<(), Interrupted> {
        self.under_way.wait().await
    }
}
