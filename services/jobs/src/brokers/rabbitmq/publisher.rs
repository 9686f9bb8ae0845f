//! How messages go out: over one channel, which a message may cost, and then over the next.
//!
//! A message that RabbitMQ cannot take (too large, or its exchange is gone)
//! costs the channel that it came over, and with it the confirms of all others that are under way.
//! Which one it was is not told: each of them is sent again over a channel of its own, so those that
//! had been taken already are there twice, and only the one to blame is refused. One that the broker
//! stumbles over (an answer to a name that only looks like one of its own) costs the connection: then
//! those that were under way are sent again one after the other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use pikake_amqp::{
    Channel, Connection, Error, Message as Publishing, PublishError as Unpublished, Room, State,
    persistent,
};
use pikake_sync::{Entered, Mutex, MutexGuard, Semaphore, WaitGroup};
use pikake_traps::{Interrupted, ignore_after};

use crate::broker::{BrokerError, LocalFuture};
use crate::brokers::rabbitmq::error::{Unsent, lost, unpublished};
use crate::brokers::rabbitmq::line::{KeptLines, Line, Patience, SharedLine};
use crate::brokers::rabbitmq::queues::to_queue;
use crate::brokers::rabbitmq::replies::Replies;
use crate::message::JobId;

/// A broker that takes messages has confirmed one by then.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// A message that has cost so many connections by itself, after one that it may have cost, is to blame.
const STUMBLES: u32 = 2;
/// So many messages at a time are sent again over channels of their own: a broker grants a number of them.
const MOST_ALONE: usize = 16;
/// So many names are remembered that the broker stumbles over.
const MOST_STUMBLES: usize = 100;

/// What comes of making a message.
#[expect(clippy::large_enum_variant, reason = "nearly all are messages, and none is kept")]
pub(crate) enum Made<'a> {
    Message(Publishing),
    /// It need not be sent any more.
    Nothing,
    /// This has to be done before.
    After(LocalFuture<'a, Result<(), BrokerError>>),
}

pub(crate) struct Publisher {
    line: SharedLine,
    /// Messages that are sent again, and of which one may have cost a connection,
    suspects: WaitGroup,
    /// one after the other.
    turns: Mutex<()>,
    /// Messages that have a channel of their own.
    alone: Semaphore,
    /// The channels of those of them that are to be answered.
    kept: KeptLines,
    /// Names to answer to that cost a connection, the latest first.
    stumbles: RefCell<VecDeque<String>>,
    pub(crate) replies: Replies,
    /// Messages that are.
    under_way: WaitGroup,
    /// How long a message is held back by a broker that takes none.
    pub(crate) patience: Duration,
}

impl Publisher {
    pub(crate) fn on(channel: Channel, patience: Duration) -> Self {
        Self {
            line: SharedLine::on(channel),
            suspects: WaitGroup::new(),
            turns: Mutex::default(),
            alone: Semaphore::new(MOST_ALONE),
            kept: KeptLines::default(),
            stumbles: RefCell::default(),
            replies: Replies::default(),
            under_way: WaitGroup::new(),
            patience,
        }
    }

    pub(crate) fn connection(&self) -> Connection {
        self.line.current().channel.connection().clone()
    }

    /// Has the answers read that come to what is published from now on.
    pub(crate) async fn read(&self) -> Result<(), BrokerError> {
        self.line.read(&self.replies, &Patience::of(self.patience)).await
    }

    /// Publishes a message, which `asks` for the outcome of that job. Each time it is to be sent it is
    /// made, when nothing is waited for any more.
    ///
    /// If its channel is lost while it is under way, because of it or because of another one, it is made
    /// again and goes over a channel of its own: what that one is lost for is this message.
    pub(crate) async fn publish<'a>(
        &self,
        asks: Option<&JobId>,
        make: impl Fn() -> Result<Made<'a>, BrokerError>,
    ) -> Result<(), Unsent> {
        let _under_way = self.under_way.enter();
        let lost = match self.publish_among_others(asks, &make).await? {
            ControlFlow::Break(()) => return Ok(()),
            ControlFlow::Continue(lost) => lost,
        };
        // That it was sent was progress.
        let patience = Patience::of(self.patience);
        let mut turn = match lost {
            Error::ConnectionClosed(_) => Some(self.turn(&patience).await?),
            _ => None,
        };
        let mut stumbles = 0;
        loop {
            match self.publish_alone(asks, &make, &patience).await.map_err(Unsent::uncertain)? {
                Ok(()) => return Ok(()),
                // Lost for the same reason, it was that before.
                Err(Unpublished::Closed { error: Error::ChannelClosed(reason), .. }) => {
                    let is_it =
                        matches!(lost, Error::ChannelClosed(ref before) if *before == reason);
                    let unsent = Unsent::of(Error::ChannelClosed(reason).into());
                    return Err(Unsent { is_uncertain: !is_it, ..unsent });
                }
                Err(Unpublished::Closed { error: Error::ConnectionClosed(_), .. })
                    if stumbles + 1 < STUMBLES && !self.is_closed() =>
                {
                    match turn {
                        Some(_) => stumbles += 1,
                        // Others were under way: it may have been one of them.
                        None => turn = Some(self.turn(&patience).await?),
                    }
                }
                Err(error) => {
                    return Err(Unsent { is_uncertain: true, ..self.unpublished(error) });
                }
            }
        }
    }

    /// Over the line that all share; or the error that it was lost with after it was sent, for which it
    /// may be to blame.
    async fn publish_among_others<'a>(
        &self,
        asks: Option<&JobId>,
        make: &impl Fn() -> Result<Made<'a>, BrokerError>,
    ) -> Result<ControlFlow<(), Error>, Unsent> {
        let patience = Patience::of(self.patience);
        loop {
            let line = self.line.open(&self.replies, &patience).await.map_err(Unsent::of)?;
            let room = match line.channel.room().await {
                Ok(room) => room,
                // Another message has cost it.
                Err(Unpublished::Closed { .. }) if line.is_closed() && !self.is_closed() => {
                    continue;
                }
                Err(error) => {
                    return Err(Unsent { is_uncertain: false, ..self.unpublished(error) });
                }
            };
            if self.suspects.count() > 0 {
                // It would be lost with what has cost a connection before.
                drop(room);
                patience.in_time(self.suspects.wait()).await.map_err(Unsent::of)?;
                continue;
            }
            let message = match make().map_err(Unsent::of)? {
                Made::Message(message) => message,
                Made::Nothing => return Ok(ControlFlow::Break(())),
                Made::After(first) => {
                    drop(room);
                    patience.in_time(first).await.map_err(Unsent::of)?;
                    continue;
                }
            };
            return match self.publish_over(&line, room, message, asks).await {
                Ok(()) => Ok(ControlFlow::Break(())),
                Err(Unpublished::Closed { error, message: None })
                    if matches!(error, Error::ConnectionClosed(_)) || line.is_closed() =>
                {
                    Ok(ControlFlow::Continue(error))
                }
                Err(error) => Err(self.unpublished(error)),
            };
        }
    }

    /// The turn of a message that may have cost a connection.
    async fn turn(&self, patience: &Patience) -> Result<(Entered<'_>, MutexGuard<'_, ()>), Unsent> {
        let suspect = self.suspects.enter();
        let turn = patience.in_time(self.turns.lock()).await.map_err(Unsent::uncertain)?;
        Ok((suspect, turn))
    }

    fn unpublished(&self, error: Unpublished) -> Unsent {
        unpublished(error, &self.connection(), self.patience)
    }

    fn is_closed(&self) -> bool {
        matches!(self.connection().state(), State::Closed(_))
    }

    /// Over a channel of its own.
    async fn publish_alone<'a>(
        &self,
        asks: Option<&JobId>,
        make: &impl Fn() -> Result<Made<'a>, BrokerError>,
        patience: &Patience,
    ) -> Result<Result<(), Unpublished>, BrokerError> {
        let _one_of_few = patience.in_time(self.alone.acquire(1)).await?;
        let open = async {
            let alone = Line::on(self.connection().channel().await?);
            if asks.is_some() {
                alone.read(&self.replies).await?;
            }
            Ok::<_, Error>(alone)
        };
        let alone = match asks.and_then(|_| self.kept.take()) {
            Some(kept) => kept,
            None => patience.in_time(open).await?,
        };
        loop {
            let room = match alone.channel.room().await {
                Ok(room) => room,
                Err(error) => return Ok(Err(error)),
            };
            match make()? {
                Made::Message(message) => {
                    let sent = self.publish_over(&alone, room, message, asks).await;
                    if asks.is_some() && sent.is_ok() {
                        self.kept.put(&alone);
                    }
                    return Ok(sent);
                }
                Made::Nothing => return Ok(Ok(())),
                Made::After(first) => {
                    drop(room);
                    patience.in_time(first).await?;
                }
            }
        }
    }

    async fn publish_over(
        &self,
        line: &Line,
        room: Room,
        message: Publishing,
        asks: Option<&JobId>,
    ) -> Result<(), Unpublished> {
        let mut confirm = room.post(message)?;
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
        self.publish(None, || Ok(Made::Message(make()?))).await.map_err(lost)
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
        let make = || if is_known() { Ok(Made::Nothing) } else { Ok(Made::Message(make()?)) };
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
