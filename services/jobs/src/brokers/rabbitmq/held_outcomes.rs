//! Outcomes that are kept during an alarm, so that their jobs need not wait for its end.
//!
//! In an alarm RabbitMQ takes no messages. Over a connection that publishes nothing it still
//! delivers, and takes acknowledgements. If the message of a job stayed unacknowledged until its
//! outcome is sent, a queue of awaited jobs would not drain, and an alarm that ends when the queue
//! has drained would never end. So outcomes are kept here up to a bound, and their jobs are
//! acknowledged.
//!
//! An outcome is lost with the process, as RabbitMQ loses it when it restarts: outcomes are
//! transient messages. What a job leads to besides (the jobs that follow it, a retry, a dead
//! letter) is never kept, but waits for the broker.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_amqp::{Connection, Error, Message as Publishing, State};
use pikake_sync::Event;
use pikake_traps::{Builder, sleep};

use crate::broker::BrokerError;
use crate::brokers::rabbitmq::publisher::Publisher;

/// How many outcomes are kept.
const MOST: usize = 10_000;
/// The bytes of all kept outcomes together.
const MOST_BYTES: usize = 64 << 20;
/// How many outcomes are sent at a time when the alarm is over.
const SENDERS: usize = 16;
/// The pause before an outcome is sent again.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);

/// An outcome, and the name to which it is sent.
type Outcome = (String, Publishing);

/// The outcomes that wait for the end of an alarm.
#[derive(Default)]
pub(crate) struct HeldOutcomes {
    held: RefCell<VecDeque<Outcome>>,
    bytes: Cell<usize>,
    /// How many tasks send outcomes. A task has one of them besides those that are held.
    senders: Cell<usize>,
    /// Set when the last of these tasks has ended.
    is_idle: Event,
}

impl HeldOutcomes {
    /// Sends an outcome. If the broker takes none, keeps a final one, if there is room, and drops
    /// another: a later one replaces it, and progress would take the room of the ends.
    pub(crate) async fn send(
        self: &Rc<Self>,
        publisher: &Rc<Publisher>,
        to: &str,
        is_final: bool,
        make: impl Fn() -> Result<Publishing, Error>,
    ) -> Result<(), BrokerError> {
        let connection = publisher.connection();
        let (mut sent, mut blocked) =
            (pin!(publisher.answer(to, &make)), pin!(until_blocked(&connection)));
        let early = poll_fn(|cx| match blocked.as_mut().poll(cx) {
            Poll::Ready(blocked) => Poll::Ready(blocked.map(|()| None)),
            Poll::Pending => sent.as_mut().poll(cx).map(|sent| Ok(Some(sent))),
        });
        match early.await? {
            Some(sent) => sent,
            None if !is_final => Ok(()),
            // It may have been sent already, and then comes twice.
            None if self.keep(to, make()?) => {
                self.start_senders(publisher);
                Ok(())
            }
            None => sent.await,
        }
    }

    /// Keeps an outcome; `false` if there is no room.
    fn keep(&self, to: &str, message: Publishing) -> bool {
        let bytes = self.bytes.get() + message.body.len();
        let mut held = self.held.borrow_mut();
        let has_room = held.len() < MOST && bytes <= MOST_BYTES;
        if has_room {
            if held.is_empty() {
                tracing::warn!(
                    "the broker takes no messages: keeps outcomes in this process, and acknowledges their jobs"
                );
            }
            self.bytes.set(bytes);
            held.push_back((to.to_owned(), message));
        }
        has_room
    }

    fn start_senders(self: &Rc<Self>, publisher: &Rc<Publisher>) {
        if self.senders.get() > 0 {
            return;
        }
        self.is_idle.clear();
        for _ in 0..SENDERS {
            // Counted until it ends, also if that is before its first step.
            let sender = Sender::new(self.clone());
            let publisher = publisher.clone();
            let sending = async move { sender.send_all(&publisher).await };
            Builder::new().name("held outcomes").spawn(sending).detach();
        }
    }

    /// Waits until the broker has all outcomes.
    pub(crate) async fn flush(&self) -> Result<(), BrokerError> {
        while self.senders.get() > 0 {
            self.is_idle.wait().await?;
        }
        Ok(())
    }

    /// Drops what is left, with a warning.
    pub(crate) fn close(&self) {
        let lost = self.held.take().len();
        if lost > 0 {
            tracing::warn!(
                lost,
                "outcomes are lost: the broker took no messages until the worker's end"
            );
        }
    }
}

/// A task that sends what is held.
struct Sender {
    outcomes: Rc<HeldOutcomes>,
    /// What it has taken, and not sent yet.
    current: RefCell<Option<Outcome>>,
}

impl Sender {
    fn new(outcomes: Rc<HeldOutcomes>) -> Self {
        outcomes.senders.set(outcomes.senders.get() + 1);
        Self { outcomes, current: RefCell::default() }
    }

    /// Sends until nothing is held, or the broker has been closed.
    async fn send_all(&self, publisher: &Publisher) {
        while until_takes(&publisher.connection()).await.is_ok() {
            let Some((to, message)) = self.outcomes.held.borrow_mut().pop_front() else { return };
            let bytes = message.body.len();
            self.current.replace(Some((to.clone(), message.clone())));
            let sent = publisher.answer(&to, || Ok(message.clone())).await;
            match sent {
                Err(BrokerError::Interrupted(_) | BrokerError::Closed) => return,
                Err(error) if error.is_lost() => {
                    let again = self.current.take();
                    self.outcomes.held.borrow_mut().extend(again);
                    if sleep(AGAIN_PAUSE).await.is_err() {
                        return;
                    }
                    continue;
                }
                Err(error) => tracing::warn!(to, %error, "an outcome that was kept cannot be sent"),
                Ok(()) => {}
            }
            self.current.take();
            self.outcomes.bytes.set(self.outcomes.bytes.get() - bytes);
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let outcomes = &self.outcomes;
        outcomes.held.borrow_mut().extend(self.current.take());
        outcomes.senders.set(outcomes.senders.get() - 1);
        if outcomes.senders.get() == 0 {
            outcomes.is_idle.set();
        }
    }
}

/// Waits until the broker says that it takes no messages.
async fn until_blocked(connection: &Connection) -> Result<(), Error> {
    let mut state = connection.state();
    loop {
        match state {
            State::Blocked { .. } => return Ok(()),
            // Another wait says so.
            State::Closed(_) => pending().await,
            _ => state = connection.changed().await?,
        }
    }
}

/// Waits until the broker takes messages.
async fn until_takes(connection: &Connection) -> Result<(), Error> {
    let mut state = connection.state();
    loop {
        match state {
            State::Open => return Ok(()),
            State::Closed(error) => return Err(error),
            _ => state = connection.changed().await?,
        }
    }
}
