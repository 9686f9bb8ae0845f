//! How messages go out: over one channel, which a message may cost, and then over the next.
//!
//! Apart from the broker. A message that RabbitMQ cannot take (too large, or its exchange is gone)
//! costs the channel that it came over, and with it the confirms of all others that are under way.
//! Which one it was is not told: each of them is sent again over a channel of its own, so those that
//! had been taken already are there twice, and only the one to blame is refused. One that the broker
//! stumbles over (an answer to a name that only looks like one of its own) costs the connection: then
//! those that were under way are sent again one after the other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::{
    Channel, Connection, Error, Message as Publishing, PublishError as Unpublished, State,
    persistent,
};
use pikake_sync::{Mutex, MutexGuard, OnceCell, Semaphore, WaitGroup};
use pikake_traps::{Interrupted, ignore_after};

use crate::amqp_error::unpublished;
use crate::amqp_queues::to_queue;
use crate::amqp_replies::{Reading, Replies};
use crate::broker::{BrokerError, PublishFailure};
use crate::message::JobId;

/// A broker that takes messages has confirmed one by then.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// A message that has cost so many connections by itself, after one that it may have cost, is to blame.
const STUMBLES: u32 = 2;
/// So many messages at a time are sent again over channels of their own: a broker grants a number of them.
const MOST_ALONE: usize = 16;
/// So many names are remembered that the broker stumbles over.
const MOST_STUMBLES: usize = 100;

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
    /// Locked by a message that is sent again, and may be the one that cost a connection.
    suspects: Mutex<()>,
    /// Messages that have a channel of their own.
    alone: Semaphore,
    /// Names to answer to that cost a connection, the latest first.
    stumbles: RefCell<VecDeque<String>>,
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
    /// It costs the connection each time.
    pub(crate) is_stumbled_over: bool,
}

fn lost(unsent: Unsent) -> BrokerError {
    match unsent.cause {
        PublishFailure::Broker(error) => error,
        blocked => BrokerError::Lost(blocked.to_string()),
    }
}

impl Publisher {
    pub(crate) fn on(channel: Channel, patience: Duration) -> Self {
        Self {
            line: RefCell::new(Rc::new(Line::on(channel))),
            reopening: Mutex::default(),
            suspects: Mutex::default(),
            alone: Semaphore::new(MOST_ALONE),
            stumbles: RefCell::default(),
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

    /// Publishes a message, which `asks` for the outcome of that job. Each time it is to be sent it is
    /// made; none is made of what need not be sent any more.
    ///
    /// If its channel is lost while it is under way, because of it or because of another one, it is made
    /// again and goes over a channel of its own: what that one is lost for is this message.
    pub(crate) async fn publish(
        &self,
        asks: Option<&JobId>,
        make: impl AsyncFn() -> Result<Option<Publishing>, BrokerError>,
    ) -> Result<(), Unsent> {
        let _under_way = self.under_way.enter();
        let unsent = |error| Unsent {
            is_uncertain: false,
            cause: PublishFailure::Broker(error),
            is_stumbled_over: false,
        };
        if self.suspects.is_locked() {
            // It would be lost with what has cost a connection before.
            drop(self.turn().await?);
        }
        let Some(mut message) = make().await.map_err(unsent)? else { return Ok(()) };
        let (lost, mut turn) = loop {
            let line = self.line().await.map_err(|error| unsent(error.into()))?;
            match self.publish_over(&line, message, asks).await {
                Ok(()) => return Ok(()),
                Err(Unpublished::Closed { error: Error::ChannelClosed(reason), message: back }) => {
                    match back {
                        // It was still here when another one cost the channel.
                        Some(back) => message = *back,
                        None => break (reason, None),
                    }
                }
                Err(Unpublished::Closed { error: Error::ConnectionClosed(reason), .. }) => {
                    break (reason, Some(self.turn().await?));
                }
                Err(error) => return Err(self.unpublished(error)),
            }
        };
        let mut tries = 1;
        loop {
            match self.publish_alone(asks, &make).await {
                Ok(Ok(())) => return Ok(()),
                // Lost for the same reason, it was that before.
                Ok(Err(Unpublished::Closed { error: Error::ChannelClosed(reason), .. })) => {
                    let is_uncertain = reason != lost;
                    let error = Error::ChannelClosed(reason).into();
                    return Err(Unsent { is_uncertain, ..unsent(error) });
                }
                Ok(Err(Unpublished::Closed { error: Error::ConnectionClosed(_), .. }))
                    if tries < STUMBLES && !self.is_closed() =>
                {
                    tries += 1;
                    if turn.is_none() {
                        turn = Some(self.turn().await?);
                    }
                }
                Ok(Err(error)) => {
                    return Err(Unsent { is_uncertain: true, ..self.unpublished(error) });
                }
                Err(error) => return Err(Unsent { is_uncertain: true, ..unsent(error) }),
            }
        }
    }

    /// The turn of a message that may have cost a connection.
    async fn turn(&self) -> Result<MutexGuard<'_, ()>, Unsent> {
        let unsent = |why: Interrupted| Unsent {
            is_uncertain: true,
            cause: PublishFailure::Broker(why.into()),
            is_stumbled_over: false,
        };
        self.suspects.lock().await.map_err(unsent)
    }

    fn unpublished(&self, error: Unpublished) -> Unsent {
        unpublished(error, &self.connection(), self.patience)
    }

    fn is_closed(&self) -> bool {
        matches!(self.connection().state(), State::Closed(_))
    }

    /// Over a channel of its own.
    async fn publish_alone(
        &self,
        asks: Option<&JobId>,
        make: &impl AsyncFn() -> Result<Option<Publishing>, BrokerError>,
    ) -> Result<Result<(), Unpublished>, BrokerError> {
        let _one_of_few = self.alone.acquire(1).await?;
        let Some(message) = make().await? else { return Ok(Ok(())) };
        let alone = Line::on(self.connection().channel().await?);
        if asks.is_some() {
            alone.read(&self.replies).await?;
        }
        Ok(self.publish_over(&alone, message, asks).await)
    }

    async fn publish_over(
        &self,
        line: &Line,
        message: Publishing,
        asks: Option<&JobId>,
    ) -> Result<(), Unpublished> {
        let mut confirm = line.channel.post(message).await?;
        (&mut confirm).await?;
        let asked = asks.zip(line.reading.get()).zip(confirm.epoch());
        if let Some(((job, reading), epoch)) = asked {
            self.replies.is_asked(job, reading, epoch);
        }
        Ok(())
    }

    /// Sends a message of the broker's own.
    pub(crate) async fn send(
        &self,
        make: impl Fn() -> Result<Publishing, Error>,
    ) -> Result<(), BrokerError> {
        self.publish(None, async || Ok(Some(make()?))).await.map_err(lost)
    }

    /// Sends an answer. That nobody is there for it is no error, nor is a name that the broker stumbles over:
    /// the message that it came with would have its worker cost a connection again and again.
    pub(crate) async fn answer(
        &self,
        to: &str,
        make: impl Fn() -> Result<Publishing, Error>,
    ) -> Result<(), BrokerError> {
        // It may turn out to be such a name while this waits for its turn.
        let is_known = || self.stumbles.borrow().iter().any(|known| known == to);
        let make = async || if is_known() { Ok(None) } else { Ok(Some(make()?)) };
        match self.publish(None, make).await {
            Err(unsent) if unsent.is_stumbled_over && !self.is_closed() => {
                tracing::warn!(to, "the broker cannot stand this name to answer to");
                let mut stumbles = self.stumbles.borrow_mut();
                stumbles.truncate(MOST_STUMBLES - 1);
                stumbles.push_front(to.to_owned());
                Ok(())
            }
            sent => sent.map_err(lost),
        }
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
