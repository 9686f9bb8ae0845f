//! A connection to Redis that is made again whenever it is lost, with growing pauses and one
//! warning for an outage.
//!
//! Commands of many tasks go out in one write, and each reply belongs to the oldest command that
//! lacks one. A lost connection answers its commands with [`BrokerError::ResultsLost`]; none is
//! sent again. A connection on which nothing arrives, and nothing can be written, is asked for a
//! sign of life, and is lost without one.
//!
//! ```text
//! connecting ──1──▶ open ──3──▶ closed
//!         ▲─────2────┘
//! ```
//!
//! 1 the server has answered the handshake (`connect`), 2 the server hung up, is silent or does not
//! speak the protocol (`serve`), 3 [`Link::close`], from any state, or the drop of the link.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_sync::oneshot;
use pikake_time::Ticks;
use pikake_traps::{
    Builder, Task, WaitQueue, elapsed_since, ignore_after, now, park, shield, sleep, timeout_after,
};

use crate::broker::BrokerError;
use crate::results::redis::address::Address;
use crate::results::redis::protocol::{Reader, Reply, write};
use crate::results::redis::stream::Stream;
use crate::worker::settle::Pauses;

/// For a connection and its handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Nothing arrives for so long: the server is asked for a sign of life. Without one, the connection
/// is lost after the same time again.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a close waits for the replies that are under way.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);
/// A link of subscriptions that is lost so often in succession, while the link of commands is open,
/// has an outage of its own.
const LOST_ALONE: u32 = 3;
/// A connection that is lost sooner is part of the outage before it.
const STEADY: Duration = Duration::from_secs(1);
/// The size of the read buffer, in bytes.
const READ_SIZE: usize = 16 * 1024;
/// How many bytes are written at a time. A write that makes progress is a sign of life.
const WRITE_SIZE: usize = 64 * 1024;
/// The capacity, in bytes, to which an empty write buffer is shrunk.
const MAX_KEPT_BUFFER: usize = 256 * 1024;

/// What a link does with replies that answer no command, and with the changes of its connection.
pub(crate) trait Subscriber {
    /// A message of a channel, or the confirmation of a subscription.
    fn pushed(&self, reply: Reply) -> Result<(), String>;
    /// A new connection is open: the commands to begin it with.
    fn opened(&self, output: &mut Vec<u8>);
}

/// The link of one connection. Dropped, it closes the connection.
pub(crate) struct Link {
    hub: Rc<Hub>,
    supervisor: Task<()>,
}

/// What a connection of subscriptions has, on which all replies are pushed.
struct Subscriptions {
    subscriber: Rc<dyn Subscriber>,
    /// The link of commands, which tells of the outages of both.
    commands: Rc<Hub>,
}

struct Hub {
    address: Address,
    subscriptions: Option<Subscriptions>,
    output: RefCell<Vec<u8>>,
    /// Whether output is being written.
    is_writing: Cell<bool>,
    /// How many parts of the output were written.
    written: Cell<u64>,
    /// The commands that lack replies, in their order.
    asked: RefCell<VecDeque<Asked>>,
    is_open: Cell<bool>,
    is_closed: Cell<bool>,
    /// Why there is no connection.
    why: RefCell<String>,
    /// The writer, which waits for output.
    writer: WaitQueue,
    /// Those that wait until all commands have replies.
    settled: WaitQueue,
}

/// Commands that were sent together.
struct Asked {
    lacking: usize,
    replies: Vec<Reply>,
    /// `None`: nobody waits for the replies.
    asker: Option<oneshot::Sender<Vec<Reply>>>,
}

impl Link {
    /// Connects.
    ///
    /// # Errors
    ///
    /// [`BrokerError::ResultsRefused`] if the server does not let this program in,
    /// [`BrokerError::ResultsLost`] if none answers.
    pub(crate) async fn open(address: &Address) -> Result<Self, BrokerError> {
        let connected = connect(address).await?;
        Ok(Self::start(address, None, Some(connected)))
    }

    /// Starts the link of subscriptions beside the one of commands.
    pub(crate) fn start_beside(commands: &Self, subscriber: Rc<dyn Subscriber>) -> Self {
        let subscriptions = Subscriptions { subscriber, commands: commands.hub.clone() };
        Self::start(&commands.hub.address, Some(subscriptions), None)
    }

    /// Starts the link, which connects unless a connection is given.
    fn start(
        address: &Address,
        subscriptions: Option<Subscriptions>,
        connected: Option<Connected>,
    ) -> Self {
        let hub = Rc::new(Hub {
            address: address.clone(),
            subscriptions,
            output: RefCell::default(),
            is_writing: Cell::new(false),
            written: Cell::new(0),
            asked: RefCell::default(),
            is_open: Cell::new(false),
            is_closed: Cell::new(false),
            why: RefCell::new(format!("connecting to Redis at {}", address.host_and_port())),
            writer: WaitQueue::new(),
            settled: WaitQueue::new(),
        });
        if connected.is_some() {
            hub.enter_open();
        }
        // A shutdown does not interrupt the connection: jobs that end then have outcomes.
        let body = shield(supervise(hub.clone(), connected));
        let supervisor = Builder::new().name("redis").spawn(body);
        Self { hub, supervisor }
    }

    /// Sends commands, and returns their replies.
    ///
    /// # Cancellation
    ///
    /// Interrupted or dropped, the commands are carried out or not.
    pub(crate) async fn ask(&self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, BrokerError> {
        let (asker, replies) = oneshot::channel();
        self.hub.send(commands, Some(asker))?;
        replies.await?.map_err(|_| self.hub.lost())
    }

    /// Sends a command whose reply does not matter, if the connection is open.
    pub(crate) fn post(&self, command: &[&[u8]]) {
        if self.hub.send(&[command], None).is_err() {
            tracing::debug!("a command was not sent, for there is no connection to Redis");
        }
    }

    /// Sends commands whose replies are pushed, if the connection is open.
    pub(crate) fn push(&self, commands: &[&[u8]]) {
        if self.hub.is_open.get() {
            write(commands, &mut self.hub.output.borrow_mut());
            self.hub.writer.wake(1);
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.hub.is_open.get()
    }

    /// Closes the connection, once all commands have replies. Commands that are sent after this
    /// fail.
    pub(crate) async fn close(&self) -> Result<(), BrokerError> {
        self.hub.is_closed.set(true);
        let settled = async {
            while self.hub.is_open.get() && !self.hub.asked.borrow().is_empty() {
                park(&self.hub.settled).await?;
            }
            Ok(())
        };
        let settled = ignore_after(CLOSE_LIMIT, settled).await.unwrap_or(Ok(()));
        self.supervisor.abort();
        self.hub.lose("");
        settled
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("address", &self.hub.address)
            .field("is_open", &self.is_open())
            .finish_non_exhaustive()
    }
}

impl Hub {
    fn send(
        &self,
        commands: &[&[&[u8]]],
        asker: Option<oneshot::Sender<Vec<Reply>>>,
    ) -> Result<(), BrokerError> {
        if self.is_closed.get() || !self.is_open.get() {
            return Err(self.lost());
        }
        let mut output = self.output.borrow_mut();
        commands.iter().for_each(|command| write(command, &mut output));
        let asked = Asked { lacking: commands.len(), replies: Vec::new(), asker };
        self.asked.borrow_mut().push_back(asked);
        self.writer.wake(1);
        Ok(())
    }

    fn lost(&self) -> BrokerError {
        match self.is_closed.get() {
            true => BrokerError::Closed,
            false => BrokerError::ResultsLost(self.why.borrow().clone()),
        }
    }

    fn enter_open(&self) {
        self.is_open.set(true);
        if let Some(of) = &self.subscriptions {
            of.subscriber.opened(&mut self.output.borrow_mut());
        }
    }

    /// Answers all commands with the loss of the connection, by dropping their askers.
    fn lose(&self, why: &str) {
        self.is_open.set(false);
        self.is_writing.set(false);
        why.clone_into(&mut self.why.borrow_mut());
        self.output.borrow_mut().clear();
        let asked = self.asked.take();
        drop(asked);
        self.settled.wake(usize::MAX);
    }

    /// Gives a reply to the command that it answers.
    fn answer(&self, reply: Reply) -> Result<(), String> {
        if let Some(of) = &self.subscriptions {
            return of.subscriber.pushed(reply);
        }
        let mut all = self.asked.borrow_mut();
        let Some(asked) = all.front_mut() else {
            return Err("the server sent a reply to no command".to_owned());
        };
        asked.replies.push(reply);
        asked.lacking -= 1;
        if asked.lacking > 0 {
            return Ok(());
        }
        let asked = all.pop_front();
        if all.is_empty() {
            self.settled.wake(usize::MAX);
        }
        drop(all);
        if let Some(Asked { replies, asker: Some(asker), .. }) = asked {
            // The asker may have been interrupted.
            let _ = asker.send(replies);
        }
        Ok(())
    }
}

/// A connection that has been made, with what arrived after the handshake.
pub(crate) struct Connected {
    stream: Stream,
    reader: Reader,
}

/// Connects, logs in and chooses the database.
async fn connect(address: &Address) -> Result<Connected, BrokerError> {
    let at = address.host_and_port();
    let lost = |why: &dyn fmt::Display| BrokerError::ResultsLost(lost_at(address, why));
    let connecting = async {
        let stream =
            Stream::connect(address).await.map_err(|error| {
                match pikake_net::interruption(&error) {
                    Some(why) => BrokerError::Interrupted(why.clone()),
                    None => lost(&error),
                }
            })?;
        let mut connected = Connected { stream, reader: Reader::default() };
        let mut output = Vec::new();
        let db = address.db.to_string();
        let mut commands = Vec::new();
        match (&address.user, &address.password) {
            (Some(user), password) => {
                let password = password.as_deref().unwrap_or_default();
                commands.push(("logs in", vec!["AUTH", user, password]));
            }
            (None, Some(password)) => commands.push(("logs in", vec!["AUTH", password])),
            (None, None) => {}
        }
        commands.push(("chooses the database", vec!["SELECT", &db]));
        for (_, command) in &commands {
            let command: Vec<_> = command.iter().map(|part| part.as_bytes()).collect();
            write(&command, &mut output);
        }
        connected.stream.write_all(&output).await.map_err(|error| lost(&error))?;
        let mut refused = None;
        for (what, _) in &commands {
            match connected.reply().await.map_err(|error| lost(&error))? {
                Reply::Status(_) => {}
                Reply::Error(why) if is_transient(&why) => return Err(lost(&why)),
                Reply::Error(why) => {
                    // Without a login, the server refuses the database, too.
                    refused.get_or_insert_with(|| {
                        format!("Redis at {at}, as this program {what}: {why}")
                    });
                }
                _ => return Err(lost(&"the server does not speak Redis's protocol")),
            }
        }
        match refused {
            Some(why) => Err(BrokerError::ResultsRefused(why)),
            None => Ok(connected),
        }
    };
    let limit = || lost(&format_args!("no connection and handshake within {CONNECT_LIMIT:?}"));
    timeout_after(CONNECT_LIMIT, connecting).await.unwrap_or_else(|_| Err(limit()))
}

/// Whether the server may accept later what it refuses now with this error.
pub(crate) fn is_transient(error: &str) -> bool {
    const TRANSIENT: [&str; 9] = [
        "LOADING",
        "BUSY",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "MASTERDOWN",
        "READONLY",
        "MISCONF",
        "OOM",
        "NOREPLICAS",
    ];
    let code = error.split_whitespace().next().unwrap_or_default();
    TRANSIENT.contains(&code) || error.starts_with("ERR max number of clients")
}

impl Connected {
    /// The next reply.
    async fn reply(&mut self) -> io::Result<Reply> {
        let mut buffer = vec![0; READ_SIZE];
        loop {
            if let Some(reply) = self.reader.next().map_err(io::Error::other)? {
                return Ok(reply);
            }
            match self.stream.read(&mut buffer).await? {
                0 => return Err(io::Error::other("the server hung up")),
                length => self.reader.push(&buffer[..length]),
            }
        }
    }
}

async fn supervise(hub: Rc<Hub>, connected: Option<Connected>) {
    let mut first = connected;
    let mut pauses = Pauses::new();
    let mut outage = Outage {
        redis: hub.address.host_and_port(),
        is_told: hub.subscriptions.is_none(),
        alone: 0,
        began: None,
    };
    loop {
        let made = match first.take() {
            Some(connected) => Ok(connected),
            None => connect(&hub.address).await.inspect(|_| hub.enter_open()),
        };
        let why = match made {
            Ok(connected) => {
                let opened = now();
                let why = steady(&mut outage, serve(&hub, connected)).await;
                if elapsed_since(opened) >= STEADY {
                    pauses = Pauses::new();
                }
                lost_at(&hub.address, &why)
            }
            Err(BrokerError::ResultsLost(why) | BrokerError::ResultsRefused(why)) => why,
            Err(error) => error.to_string(),
        };
        hub.lose(&why);
        let is_alone = hub.subscriptions.as_ref().is_some_and(|of| of.commands.is_open.get());
        outage.begin(&why, is_alone);
        if sleep(pauses.next()).await.is_err() {
            return;
        }
    }
}

/// What the log says of an outage: a warning at its begin, and one at its end.
struct Outage {
    redis: String,
    /// Whether the warnings are written. The link of commands writes them, also for the one of
    /// subscriptions beside it.
    is_told: bool,
    /// How often the link of subscriptions was lost in succession while the link of commands was
    /// open.
    alone: u32,
    began: Option<Ticks>,
}

impl Outage {
    fn begin(&mut self, why: &str, is_alone: bool) {
        self.alone = if is_alone { self.alone + 1 } else { 0 };
        // When both links are lost, one may notice before the other.
        let is_alone = self.alone == LOST_ALONE;
        let is_begin = self.began.is_none();
        self.began.get_or_insert_with(now);
        if is_alone || (self.is_told && is_begin) {
            let what = if is_alone { " for announcements" } else { "" };
            tracing::warn!(redis = self.redis, error = why, "no connection to Redis{what}");
        }
    }

    fn end(&mut self) {
        let is_told = self.is_told || self.alone >= LOST_ALONE;
        self.alone = 0;
        if let (Some(began), true) = (self.began.take(), is_told) {
            let seconds = elapsed_since(began).as_secs_f64();
            tracing::warn!(redis = self.redis, seconds, "connected to Redis again");
        }
    }
}

/// Runs the service of a connection to its end. An outage before it ends after [`STEADY`].
async fn steady(outage: &mut Outage, serving: impl Future<Output = String>) -> String {
    let (mut serving, mut steady) = (pin!(serving), pin!(sleep(STEADY)));
    poll_fn(|cx| {
        let ended = serving.as_mut().poll(cx);
        if ended.is_pending() && outage.began.is_some() && steady.as_mut().poll(cx).is_ready() {
            outage.end();
        }
        ended
    })
    .await
}

fn lost_at(address: &Address, why: &dyn fmt::Display) -> String {
    format!("no connection to Redis at {}: {why}", address.host_and_port())
}

/// Serves a connection until it is lost, and returns why.
async fn serve(hub: &Hub, connected: Connected) -> String {
    let Connected { stream, reader } = connected;
    let (mut reading, mut writing) =
        (pin!(read(hub, &stream, reader)), pin!(write_out(hub, &stream)));
    poll_fn(|cx| match reading.as_mut().poll(cx) {
        Poll::Ready(why) => Poll::Ready(why),
        Poll::Pending => writing.as_mut().poll(cx),
    })
    .await
}

async fn read(hub: &Hub, stream: &Stream, mut reader: Reader) -> String {
    let mut buffer = vec![0; READ_SIZE];
    let mut is_asked = false;
    let mut written = hub.written.get();
    loop {
        match reader.next() {
            Ok(Some(reply)) => {
                if let Err(why) = hub.answer(reply) {
                    return why;
                }
                continue;
            }
            Ok(None) => {}
            Err(why) => return why,
        }
        match timeout_after(SILENCE, stream.read(&mut buffer)).await {
            Ok(Ok(0)) => return "the server hung up".to_owned(),
            Ok(Ok(length)) => {
                is_asked = false;
                reader.push(&buffer[..length]);
            }
            Ok(Err(error)) => return error.to_string(),
            // Commands that take long to write have no replies yet, and a question would be read
            // after them.
            Err(_) if hub.is_writing.get() && hub.written.get() != written => {
                is_asked = false;
                written = hub.written.get();
            }
            Err(_) if is_asked => return format!("the server was silent for {:?}", 2 * SILENCE),
            Err(_) => {
                is_asked = true;
                hub.ask_for_life();
            }
        }
    }
}

impl Hub {
    fn ask_for_life(&self) {
        match &self.subscriptions {
            Some(_) => {
                write(&[b"PING"], &mut self.output.borrow_mut());
                self.writer.wake(1);
            }
            None => drop(self.send(&[&[b"PING"]], None)),
        }
    }
}

async fn write_out(hub: &Hub, stream: &Stream) -> String {
    let mut buffer = Vec::new();
    loop {
        std::mem::swap(&mut buffer, &mut hub.output.borrow_mut());
        if buffer.is_empty() {
            if let Err(why) = park(&hub.writer).await {
                return why.to_string();
            }
            continue;
        }
        hub.is_writing.set(true);
        for part in buffer.chunks(WRITE_SIZE) {
            if let Err(error) = stream.write_all(part).await {
                return error.to_string();
            }
            hub.written.set(hub.written.get() + 1);
        }
        hub.is_writing.set(false);
        buffer.clear();
        buffer.shrink_to(MAX_KEPT_BUFFER);
    }
}
