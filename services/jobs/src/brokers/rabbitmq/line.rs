//! The channel that messages go out over, and that the answers come to which they ask for.
//!
//! It is one channel after the other, as a message may
//! cost it, and all who publish wait here for the next one, none of them longer than it has patience.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;

use pikake_amqp::{Channel, Error};
use pikake_sync::{Mutex, OnceCell};
use pikake_time::Deadline;
use pikake_traps::{deadline_after, timeout_at};

use crate::broker::BrokerError;
use crate::brokers::rabbitmq::replies::{Reading, Replies};

/// So many lines are kept for answers to messages that were sent again, of some two thousand channels that
/// a broker grants.
const MOST_KEPT: usize = 256;

/// How long a message waits for its turn in all, counted from the first wait.
pub(crate) struct Patience {
    length: Duration,
    until: Cell<Option<Deadline>>,
}

impl Patience {
    pub(crate) fn of(length: Duration) -> Self {
        Self { length, until: Cell::new(None) }
    }

    /// Waits for something, which may have waited for others before.
    pub(crate) async fn in_time<T, E: Into<BrokerError>>(
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
pub(crate) struct Line {
    pub(crate) channel: Channel,
    pub(crate) reading: OnceCell<Rc<Reading>>,
}

impl Line {
    pub(crate) fn on(channel: Channel) -> Self {
        Self { channel, reading: OnceCell::new() }
    }

    /// It was closed by the broker, or could not be made again on another connection. (Or the connection
    /// was closed: then there is no other line either.)
    pub(crate) fn is_closed(&self) -> bool {
        self.channel.closed().is_some()
    }

    /// Has the answers read that come to it.
    pub(crate) async fn read(&self, replies: &Replies) -> Result<(), Error> {
        let read = async || replies.read(&self.channel).await;
        self.reading.get_or_try_init(read).await.map(drop)
    }
}

/// The line that all share.
pub(crate) struct SharedLine {
    current: RefCell<Rc<Line>>,
    /// Locked while it is closed, and another is made.
    reopening: Mutex<()>,
    /// Answers are to be read.
    is_read: Cell<bool>,
}

impl SharedLine {
    pub(crate) fn on(channel: Channel) -> Self {
        Self {
            current: RefCell::new(Rc::new(Line::on(channel))),
            reopening: Mutex::default(),
            is_read: Cell::new(false),
        }
    }

    pub(crate) fn current(&self) -> Rc<Line> {
        self.current.borrow().clone()
    }

    /// The current one, after it was made if it is closed.
    pub(crate) async fn open(
        &self,
        replies: &Replies,
        patience: &Patience,
    ) -> Result<Rc<Line>, BrokerError> {
        let line = self.current();
        if !line.is_closed() {
            return Ok(line);
        }
        patience.in_time(self.reopened(replies)).await
    }

    async fn reopened(&self, replies: &Replies) -> Result<Rc<Line>, Error> {
        let _one = self.reopening.lock().await?;
        let old = self.current();
        if old.is_closed() {
            let new = Line::on(old.channel.connection().channel().await?);
            if self.is_read.get() {
                new.read(replies).await?;
            }
            self.current.replace(Rc::new(new));
        }
        Ok(self.current())
    }

    /// Has the answers read that come to what is published from now on.
    pub(crate) async fn read(
        &self,
        replies: &Replies,
        patience: &Patience,
    ) -> Result<(), BrokerError> {
        // From now on a new line is read before it is anybody's.
        self.is_read.set(true);
        loop {
            let line = self.open(replies, patience).await?;
            let reading = async {
                match line.read(replies).await {
                    Err(Error::ChannelClosed(_)) if line.is_closed() => Ok(false),
                    read => read.map(|()| true),
                }
            };
            if patience.in_time(reading).await? {
                return Ok(());
            }
            // A message of somebody else has cost it meanwhile.
        }
    }
}

/// Lines that were one message's each, and live as long as somebody waits for an answer over them.
#[derive(Default)]
pub(crate) struct KeptLines(RefCell<VecDeque<Weak<Reading>>>);

impl KeptLines {
    /// One of them for one message more, if there are as many as there may be: should it cost the line, it
    /// costs the answers to the others as well.
    pub(crate) fn take(&self) -> Option<Line> {
        let mut kept = self.0.borrow_mut();
        kept.retain(|reading| reading.strong_count() > 0);
        if kept.len() < MOST_KEPT {
            return None;
        }
        let reading = kept.pop_front()?.upgrade()?;
        let line = Line::on(reading.channel.clone());
        line.reading.set(reading).ok()?;
        (!line.is_closed()).then_some(line)
    }

    pub(crate) fn put(&self, line: &Line) {
        self.0.borrow_mut().extend(line.reading.get().map(Rc::downgrade));
    }
}
