//! What handles and tasks of a connection share: the session, the waiters, and the parts that refer to
//! each other. A connection lists its channels, a channel its consumers, a consumer holds deliveries, and a
//! delivery keeps its channel and connection open.
//!
//! Handles ask the session and wake the writer. The reader feeds the session and hands its events out
//! (`dispatch`). The session is never borrowed while anybody is told something, as whoever is told may
//! ask at once.

mod channel;
mod consumer;
mod delivery;
mod dispatch;
mod recovery;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use amq_protocol::types::ShortString;
use pikake_sync::{Mutex, oneshot};
use pikake_time::Ticks;
use pikake_traps::{WaitQueue, elapsed_since, now, park, timeout_after};

use crate::client::address::Address;
use crate::client::error::PublishError;
use crate::client::options::Options;
use crate::client::topology::Topology;
use crate::error::Error;
use crate::message::{ConsumeOptions, Message, Properties, Queue};
use crate::session::Session;
use crate::session::event::Ended;

/// No more than so many bytes wait to be written; then publishers wait.
const MOST_QUEUED: usize = 8 * 1024 * 1024;

/// How a connection is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum State {
    /// The first connection is being made.
    Connecting,
    /// All is well.
    Open,
    /// The broker takes no messages, for the reason it gives. Messages are held back.
    Blocked {
        /// In the broker's words: `low on memory`.
        reason: String,
    },
    /// The connection was lost and is being made again.
    Recovering {
        /// Which attempt is under way, from 1 on.
        attempt: u32,
    },
    /// Over, and why.
    Closed(Error),
}

/// A connection to a broker, which is made again when it is lost.
///
/// It belongs to the kernel of the task that opened it, whose tasks share it by clones; one connection
/// is enough for all of them. Threads do not touch it: they send what they have over a queue of
/// `pikake-sync` to a task that does. When the last clone is gone, with the last channel, consumer and
/// unsettled delivery, it is closed in the background, within three seconds.
///
/// While a broker is short of memory or disk it stops reading from connections that publish, and so it
/// does not see their acknowledgements either. A program that must go on draining its queues then opens
/// two connections, and publishes over one of them only.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # let listener = pikake_net::TcpListener::bind("127.0.0.1:5672").await?;
/// # let serving = pikake_amqp_testing::serve(pikake_amqp_testing::Broker::new(), listener);
/// # let _serving = pikake_traps::spawn(serving).cancel_on_drop();
/// use pikake_amqp::{ConsumeOptions, Connection, Options, QueueOptions, persistent};
///
/// let address = "amqp://guest:guest@127.0.0.1/".parse()?;
/// let connection = Connection::open(&address, Options::default()).await?;
/// let channel = connection.channel().await?;
/// channel.declare_queue("jobs", QueueOptions::quorum()).await?;
/// channel.publish("", "jobs", persistent(), b"hello".to_vec(), true).await?;
///
/// let mut consumer = channel.consume("jobs", ConsumeOptions::default()).await?;
/// let delivery = consumer.next().await?;
/// assert_eq!(delivery.body, b"hello");
/// delivery.ack()?;
/// connection.close().await?;
/// # Ok(()) }
/// # pikake_sim::example(async { example().await.unwrap() });
/// ```
#[derive(Clone)]
pub struct Connection(Rc<Handle>);

/// As long as this lives, so does the connection.
struct Handle(Rc<Hub>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.request_close();
    }
}

impl Connection {
    /// The first handle of a connection.
    pub(super) fn of(hub: &Rc<Hub>) -> Self {
        Self(Rc::new(Handle(hub.clone())))
    }

    pub(super) fn hub(&self) -> &Rc<Hub> {
        &self.0.0
    }
}

/// What handles and tasks of a connection share.
pub(crate) struct Hub {
    pub(super) address: Address,
    pub(super) options: Options,
    pub(super) state: RefCell<State>,
    /// How often the state has changed.
    pub(super) changes: Cell<u64>,
    pub(super) changed: WaitQueue,
    /// There is none between two connections.
    pub(super) session: RefCell<Option<HubSession>>,
    /// How often the connection was lost. What belongs to an earlier one is stale.
    pub(super) epoch: Cell<u64>,
    /// Callers may use the session: it is open, and everything is as it was before.
    pub(super) is_ready: Cell<bool>,
    /// All that live, whether or not the session knows them: a recovery that is cut short must not
    /// forget those whose turn had not come.
    all_channels: RefCell<Vec<Weak<ChannelInner>>>,
    /// By their number in the session.
    pub(super) channels: RefCell<BTreeMap<u16, Weak<ChannelInner>>>,
    pub(super) topology: RefCell<Topology>,
    /// Something in it costs the connection, and it is not known what.
    is_careful: Cell<bool>,
    retained: RefCell<Vec<Retained>>,
    /// Why the broker takes no messages, and since when.
    pub(super) blocked: RefCell<Option<(String, Duration)>>,
    /// Who waits for a connection, or for a broker that takes messages.
    pub(super) gate: WaitQueue,
    /// Where one waits for the number of a channel to become free,
    numbers: WaitQueue,
    /// and where the others do, until it is their turn.
    openers: Mutex<()>,
    /// Where the writer waits for something to write.
    pub(super) writer: WaitQueue,
    /// Where the timer waits for less.
    pub(super) timer: WaitQueue,
    pub(super) milestone: RefCell<Option<Milestone>>,
    pub(super) supervisor: WaitQueue,
    pub(super) close_requested: Cell<bool>,
    origin: Ticks,
}

/// What the handles of a channel share with its connection.
pub(crate) struct ChannelInner {
    connection: Connection,
    /// In the session that is; 0 while there is none.
    pub(super) number: Cell<u16>,
    confirms: bool,
    /// The limit for the whole channel.
    global_limit: Cell<Option<u16>>,
    consumers: RefCell<Vec<Weak<ConsumerInner>>>,
    next_consumer: Cell<u64>,
    ended: RefCell<Option<Error>>,
    /// Who waits for a confirm of another message.
    pub(super) window: WaitQueue,
}

/// What channel and consumer share.
pub(crate) struct ConsumerInner {
    pub(super) tag: ShortString,
    pub(super) queue: ShortString,
    options: ConsumeOptions,
    pub(super) buffer: RefCell<VecDeque<Delivery>>,
    pub(super) waiters: WaitQueue,
    pub(super) ended: RefCell<Option<Error>>,
    /// The broker knows that it has ended.
    pub(super) is_gone: Cell<bool>,
}

/// A message that was delivered.
#[derive(Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// The content.
    pub body: Vec<u8>,
    /// Headers and the rest.
    pub properties: Properties,
    /// The exchange it was published to.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// It was delivered before, and not settled.
    pub redelivered: bool,
    /// What it is settled with. It can be taken out, to outlive the content.
    pub receipt: Receipt,
}

/// What a delivery is settled with.
///
/// Settling never waits: it queues bytes, which leave when the tasks that are ready have run, many
/// acknowledgements as one. Dropped without having been settled, it gives the message back to its
/// queue. It keeps its channel open.
#[must_use = "dropped, it gives the message back to its queue"]
pub struct Receipt {
    channel: Rc<ChannelInner>,
    tag: u64,
    epoch: u64,
    is_settled: Cell<bool>,
}

/// The answer to a request, as its caller gets it.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Queue(Queue),
    Count(u32),
    Got(Option<Box<Delivery>>),
    /// The message that was there could not be read, and is rejected.
    Rejected,
}

/// Who asked. Nobody, if the sender is `None`.
pub(crate) struct Asker {
    pub(super) sender: Option<oneshot::Sender<Result<Answer, Error>>>,
    /// For a get, which has to be given back if its asker has gone.
    pub(super) channel: Option<Rc<ChannelInner>>,
}

impl Asker {
    pub(crate) const NOBODY: Self = Self { sender: None, channel: None };
}

/// Who published.
pub(crate) struct Publisher {
    /// Told in which epoch it was confirmed.
    pub(super) sender: oneshot::Sender<Result<u64, PublishError>>,
    /// It stays open until the message is confirmed.
    pub(super) channel: Rc<ChannelInner>,
    /// When the first of the connections was lost that it was sent over.
    pub(super) lost_at: Option<Duration>,
}

/// What the one who keeps the connection up waits for.
#[derive(Debug)]
pub(crate) enum Milestone {
    Opened,
    Ended(Ended),
    Lost(String),
}

/// A message that was not confirmed when its connection was lost.
pub(crate) type Retained = (Box<Message>, Publisher);

pub(crate) type HubSession = Session<Asker, Publisher>;

/// The session matches answers to requests, so this is not reached.
pub(crate) fn wrong_answer() -> Error {
    Error::Protocol("an answer to another question".to_owned())
}

impl Hub {
    pub(crate) fn new(address: Address, options: Options) -> Rc<Self> {
        Rc::new(Self {
            address,
            options,
            state: RefCell::new(State::Connecting),
            changes: Cell::new(0),
            changed: WaitQueue::new(),
            session: RefCell::new(None),
            epoch: Cell::new(0),
            is_ready: Cell::new(false),
            all_channels: RefCell::default(),
            channels: RefCell::default(),
            topology: RefCell::default(),
            is_careful: Cell::new(false),
            retained: RefCell::default(),
            blocked: RefCell::default(),
            gate: WaitQueue::new(),
            numbers: WaitQueue::new(),
            openers: Mutex::new(()),
            writer: WaitQueue::new(),
            timer: WaitQueue::new(),
            milestone: RefCell::default(),
            supervisor: WaitQueue::new(),
            close_requested: Cell::new(false),
            origin: now(),
        })
    }

    /// The time since this was made, which is what the session counts in.
    pub(crate) fn time(&self) -> Duration {
        elapsed_since(self.origin)
    }

    /// Does something with the session, then sees to it that what it wants to say is written.
    pub(crate) fn with<R>(&self, ask: impl FnOnce(&mut HubSession) -> R) -> Option<R> {
        let result = self.session.borrow_mut().as_mut().map(ask);
        self.writer.wake(1);
        result
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.replace(state);
        self.changes.set(self.changes.get() + 1);
        self.changed.wake(usize::MAX);
    }

    pub(crate) fn reach(&self, milestone: Milestone) {
        if !matches!(milestone, Milestone::Opened) {
            // Who comes from now on waits for the next connection.
            self.is_ready.set(false);
        }
        let mut slot = self.milestone.borrow_mut();
        // What ended it is worth more than that it has ended.
        if !matches!(*slot, Some(Milestone::Ended(_))) {
            *slot = Some(milestone);
        }
        drop(slot);
        self.supervisor.wake(usize::MAX);
    }

    /// Why nothing may be published just now; `None` if it may.
    pub(crate) fn obstacle(&self) -> Option<String> {
        if !self.is_ready.get() {
            return Some(match &*self.state.borrow() {
                State::Recovering { attempt } => {
                    format!("no connection to {}, attempt {attempt}", self.address.place())
                }
                _ => format!("no connection to {} yet", self.address.place()),
            });
        }
        if let Some((reason, _)) = &*self.blocked.borrow() {
            return Some(format!("the broker is blocked: {reason}"));
        }
        let queued = self.session.borrow().as_ref().map_or(0, Session::queued);
        (queued > MOST_QUEUED).then(|| "the broker reads too slowly".to_owned())
    }

    /// Whether it is closed for good, and why.
    pub(crate) fn end(&self) -> Option<Error> {
        match &*self.state.borrow() {
            State::Closed(error) => Some(error.clone()),
            _ if self.close_requested.get() => Some(Error::Closed),
            _ => None,
        }
    }

    /// Waits until requests can be sent.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        let waiting = async {
            while !self.is_ready.get() {
                if let Some(error) = self.end() {
                    return Err(error);
                }
                park(&self.gate).await?;
            }
            Ok(())
        };
        if self.is_ready.get() {
            return self.end().map_or(Ok(()), Err);
        }
        match timeout_after(self.options.blocked_deadline, waiting).await {
            Ok(result) => result,
            Err(_) => Err(Error::Unavailable(self.obstacle().unwrap_or_default())),
        }
    }

    /// Waits until a channel can be opened. Who came first is first.
    pub(crate) async fn room_for_channel(&self) -> Result<(), Error> {
        let waiting = async {
            let _turn = self.openers.lock().await?;
            loop {
                self.ready().await?;
                if !self.session.borrow().as_ref().is_some_and(Session::is_full) {
                    return Ok(());
                }
                park(&self.numbers).await?;
            }
        };
        if let Ok(result) = timeout_after(self.options.blocked_deadline, waiting).await {
            return result;
        }
        let limits = self.session.borrow().as_ref().map(|session| session.limits);
        Err(Error::Unavailable(match limits.filter(|_| self.is_ready.get()) {
            Some(limits) => format!("all {} channels agreed are in use", limits.channel_max),
            None => self.obstacle().unwrap_or_default(),
        }))
    }

    /// Waits for the answer to a request. No broker needs that long, and a connection of its own would
    /// need no less.
    pub(crate) async fn answer(
        &self,
        receiver: oneshot::Receiver<Result<Answer, Error>>,
    ) -> Result<Answer, Error> {
        let limit = self.options.blocked_deadline.max(self.options.connect_timeout);
        match timeout_after(limit, receiver).await {
            Ok(Ok(result)) => result,
            Ok(Err(oneshot::RecvError::Interrupted(why))) => Err(why.into()),
            Ok(Err(_)) => Err(self.end().unwrap_or_else(|| {
                Error::ConnectionLost("before the broker had answered".to_owned())
            })),
            Err(_) => Err(Error::Unavailable(format!("no answer within {limit:?}"))),
        }
    }

    /// A channel has been opened.
    pub(crate) fn add_channel(&self, number: u16, channel: &Rc<ChannelInner>) {
        let mut all = self.all_channels.borrow_mut();
        all.retain(|channel| channel.strong_count() > 0);
        all.push(Rc::downgrade(channel));
        self.channels.borrow_mut().insert(number, Rc::downgrade(channel));
    }

    /// The channels that live and have not been closed.
    pub(crate) fn live_channels(&self) -> Vec<Rc<ChannelInner>> {
        let all = self.all_channels.borrow();
        let live = all.iter().filter_map(Weak::upgrade);
        live.filter(|channel| !channel.has_ended()).collect()
    }

    /// Everybody looks again.
    pub(crate) fn wake_all(&self) {
        self.gate.wake(usize::MAX);
        self.numbers.wake(1);
        self.writer.wake(1);
        self.timer.wake(1);
        for channel in self.live_channels() {
            channel.wake_all();
        }
    }

    /// Asks for the end of the connection, and does not wait.
    pub(crate) fn request_close(&self) {
        self.close_requested.set(true);
        self.supervisor.wake(usize::MAX);
        self.gate.wake(usize::MAX);
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("address", &self.address)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
