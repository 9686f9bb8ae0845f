//! The state that handles and tasks of a connection share: the session, the waiters, and the parts
//! that refer to each other. A connection lists its channels, a channel its consumers, a consumer
//! holds deliveries, and a delivery keeps its channel and connection open.
//!
//! Handles call the session and wake the writer. The reader passes bytes to the session and
//! dispatches its events (`dispatch`). No event is handled while the session is borrowed, since the
//! handler may call the session.

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

/// Bytes of queued output above which publishers wait.
const MAX_QUEUED: usize = 8 * 1024 * 1024;

/// The state of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum State {
    /// The first connection is being established.
    Connecting,
    /// The connection is usable.
    Open,
    /// The broker accepts no messages (connection.blocked). Publishers wait.
    Blocked {
        /// The broker's reason, for example `low on memory`.
        reason: String,
    },
    /// The connection was lost, and the client reconnects.
    Recovering {
        /// The number of the current attempt, from 1.
        attempt: u32,
    },
    /// The connection is closed for good, with its cause.
    Closed(Error),
}

/// A connection to a broker, which reconnects when it is lost.
///
/// A connection belongs to the kernel of the task that opened it. One connection, shared by clones,
/// is enough for all tasks of the kernel. Other threads send messages over a queue of `pikake-sync`
/// to a task that publishes them. When the last clone, channel, consumer and unsettled delivery are
/// dropped, the connection closes in the background, within three seconds.
///
/// A broker that is short of memory or disk stops reading from connections that publish, including
/// their acknowledgements. A program that must consume even then opens two connections, and
/// publishes over one of them only.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # let listener = pikake::net::TcpListener::bind("127.0.0.1:5672").await?;
/// # let serving = pikake_amqp_testing::serve(pikake_amqp_testing::Broker::new(), listener);
/// # let _serving = pikake::spawn(serving).cancel_on_drop();
/// use pikake::amqp::{Connection, ConsumeOptions, Options, QueueOptions, persistent};
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
/// # pikake::sim::example(async { example().await.unwrap() });
/// ```
#[derive(Clone)]
pub struct Connection(Rc<Handle>);

/// The shared handle, whose drop closes the connection.
struct Handle(Rc<Hub>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.request_close();
    }
}

impl Connection {
    /// The first handle of a connection.
    pub(super) fn first_handle(hub: &Rc<Hub>) -> Self {
        Self(Rc::new(Handle(hub.clone())))
    }

    pub(super) fn hub(&self) -> &Rc<Hub> {
        &self.0.0
    }
}

/// The shared state of a connection.
pub(crate) struct Hub {
    pub(super) address: Address,
    pub(super) options: Options,
    pub(super) state: RefCell<State>,
    /// The number of state changes.
    pub(super) changes: Cell<u64>,
    pub(super) changed: WaitQueue,
    /// `None` between two connections.
    pub(super) session: RefCell<Option<HubSession>>,
    /// The number of lost connections. Deliveries of an earlier epoch are stale.
    pub(super) epoch: Cell<u64>,
    /// Whether callers may use the session: it is open, and recovery is complete.
    pub(super) is_ready: Cell<bool>,
    /// All live channels. An interrupted recovery must not forget channels that the session does
    /// not know yet.
    all_channels: RefCell<Vec<Weak<ChannelInner>>>,
    /// The channels of the session, by number.
    pub(super) channels: RefCell<BTreeMap<u16, Weak<ChannelInner>>>,
    pub(super) topology: RefCell<Topology>,
    /// Whether recovery declares one by one, to find the declaration that closes the connection.
    declares_one_by_one: Cell<bool>,
    retained: RefCell<Vec<Retained>>,
    /// The reason and start of connection.blocked.
    pub(super) blocked: RefCell<Option<(String, Duration)>>,
    /// Waiters for a usable connection, or for a broker that accepts messages.
    pub(super) gate: WaitQueue,
    /// The next task that opens a channel waits here for a free number.
    number_freed: WaitQueue,
    /// Orders the tasks that open channels, first come first served.
    open_order: Mutex<()>,
    /// The writer waits here for output.
    pub(super) writer: WaitQueue,
    /// Wakes the timer when a deadline may have become earlier.
    pub(super) timer: WaitQueue,
    pub(super) milestone: RefCell<Option<Milestone>>,
    pub(super) supervisor: WaitQueue,
    pub(super) close_requested: Cell<bool>,
    origin: Ticks,
}

/// The state of a channel, shared by its handles.
pub(crate) struct ChannelInner {
    connection: Connection,
    /// The number in the current session; 0 without a session or after the end.
    pub(super) number: Cell<u16>,
    confirms: bool,
    /// The prefetch of the whole channel.
    global_limit: Cell<Option<u16>>,
    consumers: RefCell<Vec<Weak<ConsumerInner>>>,
    next_consumer: Cell<u64>,
    ended: RefCell<Option<Error>>,
    /// Publishers that wait for room in the publish window.
    pub(super) window: WaitQueue,
}

/// The state that channel and consumer share.
pub(crate) struct ConsumerInner {
    pub(super) tag: ShortString,
    pub(super) queue: ShortString,
    options: ConsumeOptions,
    pub(super) buffer: RefCell<VecDeque<Delivery>>,
    pub(super) waiters: WaitQueue,
    pub(super) ended: RefCell<Option<Error>>,
    /// Whether the broker has ended the consumer, or knows of its end.
    pub(super) has_ended_at_broker: Cell<bool>,
}

/// A delivered message.
#[derive(Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// The content.
    pub body: Vec<u8>,
    /// The properties, including the headers.
    pub properties: Properties,
    /// The exchange that the message was published to.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// Whether the message was delivered before without being settled.
    pub redelivered: bool,
    /// Settles the delivery. The receipt can be moved out, to outlive the content.
    pub receipt: Receipt,
}

/// Settles a delivery.
///
/// Settling never waits. Acknowledgements are queued and merged, and are sent when all ready tasks
/// have run. Dropping an unsettled receipt requeues the message. A receipt keeps its channel open.
#[must_use = "dropping a receipt requeues the message"]
pub struct Receipt {
    channel: Rc<ChannelInner>,
    tag: u64,
    epoch: u64,
    is_settled: Cell<bool>,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Queue(Queue),
    Count(u32),
    Got(Option<Box<Delivery>>),
    /// The message for basic.get was unreadable, and is rejected.
    Rejected,
}

/// The task that waits for an answer; no task if the sender is `None`.
pub(crate) struct Requester {
    pub(super) sender: Option<oneshot::Sender<Result<Answer, Error>>>,
    /// The channel on which an unclaimed answer to basic.get is requeued. A request that nobody
    /// waits for keeps no channel open, and no connection: the broker may never answer.
    pub(super) channel: Option<Weak<ChannelInner>>,
}

impl Requester {
    pub(crate) const NONE: Self = Self { sender: None, channel: None };
}

/// The task that waits for a confirm.
pub(crate) struct Publisher {
    /// Receives the epoch of the confirm.
    pub(super) sender: oneshot::Sender<Result<u64, PublishError>>,
    /// Stays open until the message is confirmed.
    pub(super) channel: Rc<ChannelInner>,
    /// The time at which the first connection of the message was lost.
    pub(super) lost_at: Option<Duration>,
}

/// An event that the supervisor waits for.
#[derive(Debug)]
pub(crate) enum Milestone {
    Opened,
    Ended(Ended),
    Lost(String),
}

/// A message that was unconfirmed when its connection was lost.
pub(crate) type Retained = (Box<Message>, Publisher);

pub(crate) type HubSession = Session<Requester, Publisher>;

/// Unreachable: the session matches replies to requests.
pub(crate) fn unexpected_answer() -> Error {
    Error::Protocol("the reply to another request".to_owned())
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
            declares_one_by_one: Cell::new(false),
            retained: RefCell::default(),
            blocked: RefCell::default(),
            gate: WaitQueue::new(),
            number_freed: WaitQueue::new(),
            open_order: Mutex::new(()),
            writer: WaitQueue::new(),
            timer: WaitQueue::new(),
            milestone: RefCell::default(),
            supervisor: WaitQueue::new(),
            close_requested: Cell::new(false),
            origin: now(),
        })
    }

    /// The time since the hub was created, as the session counts it.
    pub(crate) fn time(&self) -> Duration {
        elapsed_since(self.origin)
    }

    /// Calls a function with the session, if there is one, and wakes the writer.
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

    pub(crate) fn set_milestone(&self, milestone: Milestone) {
        if !matches!(milestone, Milestone::Opened) {
            // New requests wait for the next connection.
            self.is_ready.set(false);
        }
        let mut slot = self.milestone.borrow_mut();
        // The broker's reason is not replaced by the loss of the connection.
        if !matches!(*slot, Some(Milestone::Ended(_))) {
            *slot = Some(milestone);
        }
        drop(slot);
        self.supervisor.wake(usize::MAX);
    }

    /// The reason why no message can be sent now, if there is one.
    pub(crate) fn obstacle(&self) -> Option<String> {
        if !self.is_ready.get() {
            return Some(match &*self.state.borrow() {
                State::Recovering { attempt } => {
                    format!("no connection to {}, attempt {attempt}", self.address.host_and_port())
                }
                _ => format!("no connection to {} yet", self.address.host_and_port()),
            });
        }
        if let Some((reason, _)) = &*self.blocked.borrow() {
            return Some(format!("the broker is blocked: {reason}"));
        }
        let queued = self.session.borrow().as_ref().map_or(0, Session::queued);
        (queued > MAX_QUEUED).then(|| "the broker reads too slowly".to_owned())
    }

    /// The error of the close, if the connection is closed or about to close.
    pub(crate) fn closed(&self) -> Option<Error> {
        match &*self.state.borrow() {
            State::Closed(error) => Some(error.clone()),
            _ if self.close_requested.get() => Some(Error::Closed),
            _ => None,
        }
    }

    /// Waits until requests can be sent.
    pub(crate) async fn until_ready(&self) -> Result<(), Error> {
        let waiting = async {
            while !self.is_ready.get() {
                if let Some(error) = self.closed() {
                    return Err(error);
                }
                park(&self.gate).await?;
            }
            Ok(())
        };
        if self.is_ready.get() {
            return self.closed().map_or(Ok(()), Err);
        }
        match timeout_after(self.options.blocked_deadline, waiting).await {
            Ok(result) => result,
            Err(_) => Err(Error::Unavailable(self.obstacle().unwrap_or_default())),
        }
    }

    /// Waits until a channel can be opened, in first-come order.
    pub(crate) async fn until_channel_free(&self) -> Result<(), Error> {
        let waiting = async {
            let _turn = self.open_order.lock().await?;
            loop {
                self.until_ready().await?;
                if !self.session.borrow().as_ref().is_some_and(Session::is_full) {
                    return Ok(());
                }
                park(&self.number_freed).await?;
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

    /// Waits for the answer to a request, up to the longer of `blocked_deadline` and
    /// `connect_timeout`.
    pub(crate) async fn answer(
        &self,
        receiver: oneshot::Receiver<Result<Answer, Error>>,
    ) -> Result<Answer, Error> {
        let limit = self.options.blocked_deadline.max(self.options.connect_timeout);
        match timeout_after(limit, receiver).await {
            Ok(Ok(Ok(result))) => result,
            Ok(Ok(Err(_))) => Err(self
                .closed()
                .unwrap_or_else(|| Error::ConnectionLost("before the broker replied".to_owned()))),
            Ok(Err(why)) => Err(why.into()),
            Err(_) => Err(Error::Unavailable(format!("no answer within {limit:?}"))),
        }
    }

    /// Adds an opened channel.
    pub(crate) fn add_channel(&self, number: u16, channel: &Rc<ChannelInner>) {
        let mut all = self.all_channels.borrow_mut();
        all.retain(|channel| channel.strong_count() > 0);
        all.push(Rc::downgrade(channel));
        self.channels.borrow_mut().insert(number, Rc::downgrade(channel));
    }

    /// The live channels that have not ended.
    pub(crate) fn live_channels(&self) -> Vec<Rc<ChannelInner>> {
        let all = self.all_channels.borrow();
        let live = all.iter().filter_map(Weak::upgrade);
        live.filter(|channel| !channel.has_ended()).collect()
    }

    /// Wakes all waiters except the supervisor, to check their conditions again.
    pub(crate) fn wake_all(&self) {
        self.gate.wake(usize::MAX);
        self.number_freed.wake(1);
        self.writer.wake(1);
        self.timer.wake(1);
        for channel in self.live_channels() {
            channel.wake_all();
        }
    }

    /// Requests the close of the connection without waiting.
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
