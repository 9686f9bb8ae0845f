//! A client's side of a connection: calls under way.
//!
//! ```text
//!          (1)            (2)                (3)
//!   place ────▶ waiting ────▶ answered        │
//!                 │    (4)             (5)    ▼
//!                 └────────▶ given up ──────▶ gone
//! ```
//!
//! (1) The request is queued, in a place of the server's limit. (2) The answer arrived, the
//! connection was lost, or the server left before it took the call. (3) The caller has the answer.
//! (4) The caller was interrupted or dropped: the server gets a cancel. (5) The answer arrived all
//! the same, and nobody wants it; only then is the place free.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::rc::{Rc, Weak};
use std::time::Duration;

use pikake_net::{Read, Write};
use pikake_time::Deadline;
use pikake_traps::{
    About, Builder, Interrupted, Task, WaitQueue, clock_rate, ignore_after, nearest_deadline, now,
    park_at, sleep, take_at,
};

use crate::calls::Calls;
use crate::codec::{ArgumentWriter, Codec};
use crate::error::{CallError, CallFailure, Executed};
use crate::packet_error::PacketError;
use crate::packets::{MANY, Outbox, Packet, PacketOptions, PacketReader, PacketWriter, open};
use crate::protocol::{
    ANSWER, CANCEL, CREDIT, ClientGreeting, DEADLINE, END, ITEM, LEAVE, METADATA, MOST_CHANNELS,
    NOTICE, REQUEST, STOP, ServerGreeting, put_metadata,
};
use crate::service::{Answered, Method};
use crate::stream::{Channels, Ported};
use crate::wire::{put_number, whole_number};

/// Writes the arguments of a call.
pub(crate) type Arguments<'a> =
    &'a RefCell<dyn FnMut(&mut ArgumentWriter<'_>) -> Result<(), String> + 'a>;

/// The most calls that a client has under way on a connection, whatever the server's limit is.
const MOST_CALLS: u64 = u32::MAX as u64;
/// How long a connection that nobody uses waits for the server's end of it, so that what was sent
/// last is not lost by a reset.
const DRAIN: Duration = Duration::from_secs(1);
/// A timer that is due fires within this time.
const TIMER_DELAY: Duration = Duration::from_millis(1);

/// How a client speaks on its connections.
#[derive(Clone, Debug)]
pub(crate) struct LinkOptions {
    pub(crate) codec: Codec,
    /// The items that may arrive in a channel before the first credit.
    pub(crate) items: usize,
    pub(crate) packets: PacketOptions,
}

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Progress {
    #[default]
    Unsent,
    Sent,
    /// The request has channels, which travel once.
    SentWithChannels,
}

/// A connection to a server, shared by the calls on it.
pub(crate) struct Link {
    packets: RefCell<Option<PacketWriter>>,
    out: Rc<Outbox>,
    peer: Rc<str>,
    codec: Codec,
    server: ServerGreeting,
    /// The items that may arrive in a channel before the first credit.
    items: usize,
    /// The places of the server's limit.
    places: WaitQueue,
    calls: RefCell<Calls<Call>>,
    /// The callers, also those whose answer has come and who have not taken it yet.
    callers: Cell<usize>,
    next: Cell<u64>,
    /// The last call that the server took, if it takes no more.
    last_taken: Cell<Option<u64>>,
    has_answered: Cell<bool>,
    reader: RefCell<Option<Task<()>>>,
}

/// A call under way.
struct Call {
    end: Cell<Option<End>>,
    waiter: WaitQueue,
    is_given_up: Cell<bool>,
    channels: RefCell<Vec<Rc<dyn Ported>>>,
}

enum End {
    Answer {
        flags: u8,
        body: Vec<u8>,
    },
    Lost(PacketError),
    /// The server left, and had not taken the call.
    NotTaken,
}

impl Call {
    fn end(&self, end: End) {
        self.end.set(Some(end));
        for channel in self.channels.take() {
            channel.close();
        }
        self.waiter.wake(usize::MAX);
    }
}

impl Link {
    /// Says hello on a stream, and starts the task that receives answers.
    pub(crate) async fn open<S: Read + Write + 'static>(
        stream: S,
        peer: &Rc<str>,
        LinkOptions { codec, items, packets }: LinkOptions,
    ) -> Result<Rc<Self>, PacketError> {
        let greeting = ClientGreeting { codec, items: items as u64 };
        let (reader, packets) = open(stream, packets.greeting(greeting.bytes())).await?;
        let server = match ServerGreeting::read(reader.greeting()) {
            Ok(ServerGreeting { calls: 0, .. }) => {
                return Err(reader.fail(PacketError::Malformed("a server that takes no calls")));
            }
            Ok(server) => server,
            Err(error) => return Err(reader.fail(error)),
        };
        let places = usize::try_from(server.calls.min(MOST_CALLS)).unwrap_or(MANY);
        let link = Rc::new(Self {
            out: packets.out().clone(),
            packets: RefCell::new(Some(packets)),
            peer: peer.clone(),
            codec,
            server,
            items,
            places: WaitQueue::with_permits(places),
            calls: RefCell::new(Calls::new()),
            callers: Cell::new(0),
            next: Cell::new(1),
            last_taken: Cell::new(None),
            has_answered: Cell::new(false),
            reader: RefCell::default(),
        });
        let task = Builder::new().name(format!("rpc: answers of {peer}"));
        // Made here: a task that is cancelled before its first step ends without one.
        let task = task.spawn(receive(reader, Receiving(Rc::downgrade(&link))));
        link.reader.replace(Some(task));
        Ok(link)
    }

    /// Whether a call may begin.
    pub(crate) fn is_usable(&self) -> bool {
        self.last_taken.get().is_none() && self.failure().is_none()
    }

    /// The failure that ended the connection.
    pub(crate) fn failure(&self) -> Option<PacketError> {
        self.out.failure()
    }

    /// Whether the server has answered a call.
    pub(crate) fn has_answered(&self) -> bool {
        self.has_answered.get()
    }

    /// Sends a request, and waits for its answer.
    pub(crate) async fn call(
        self: &Rc<Self>,
        method: &Method,
        metadata: &[(String, String)],
        arguments: Arguments<'_>,
        progress: &Cell<Progress>,
        place: &'static Location<'static>,
    ) -> Result<Answered, CallError> {
        let not_sent = |failure| self.error(method, failure, Executed::No);
        let about = || About::new(format!("a place for {} at {}", method.name, self.peer));
        if !method.is_notice && !self.places.try_take(1) {
            let waited = take_at((&self.places, about), 1, place).await;
            waited.map_err(|interrupted| not_sent(CallFailure::Interrupted(interrupted)))?;
        }
        self.callers.set(self.callers.get() + 1);
        let mut waiting = Waiting { link: self, method, id: 0, call: None };
        let waited = self.out.wait_for_room(place).await;
        waited.map_err(|interrupted| not_sent(CallFailure::Interrupted(interrupted)))?;
        if has_passed(nearest_deadline()) {
            // The time is over, and no wait has said so yet.
            let waited = sleep(TIMER_DELAY).await;
            waited.map_err(|interrupted| not_sent(CallFailure::Interrupted(interrupted)))?;
        }
        if self.last_taken.get().is_some() {
            return Err(not_sent(CallFailure::ShuttingDown));
        }
        // A call that the arguments' own code makes meanwhile gets the next one.
        let id = self.next.replace(self.next.get() + 1);
        let deadline = deadline_ahead();
        let ((kind, flags), left) = head(method, metadata, deadline);
        // Other callers may call in the same turn: then the task writes all requests.
        let hold = (self.callers.get() == 1).then(|| self.out.hold());
        let write = || {
            self.out.put((kind, flags, id), |bytes| {
                bytes.extend_from_slice(&method.number.to_le_bytes());
                if let Some(left) = left {
                    put_number(bytes, left);
                }
                if !metadata.is_empty() {
                    put_metadata(bytes, metadata).map_err(RequestFailure::Arguments)?;
                }
                let mut writer = ArgumentWriter::new(self.codec, bytes);
                (arguments.borrow_mut())(&mut writer).map_err(RequestFailure::Arguments)?;
                writer.finish();
                Ok(())
            })
        };
        let (put, channels) = match method.is_notice {
            // Nothing says when the channels of a notice end, so it has none.
            true => (write(), Vec::new()),
            false => Channels::new(&self.out, self.codec, id, self.server.items, self.items)
                .around(write),
        };
        if !channels.is_empty() {
            progress.set(Progress::SentWithChannels);
        }
        let queued = match put {
            Ok(end) => end,
            Err(error) => {
                for channel in channels {
                    channel.close();
                }
                return Err(not_sent(match error {
                    RequestFailure::Arguments(text) => CallFailure::Encode(text),
                    RequestFailure::Packet(error @ PacketError::TooLarge { .. }) => {
                        CallFailure::Encode(error.to_string())
                    }
                    RequestFailure::Packet(error) => CallFailure::Connection(error),
                }));
            }
        };
        if progress.get() == Progress::Unsent {
            progress.set(Progress::Sent);
        }
        if method.is_notice {
            return Ok(self.answered(method, 0, Vec::new()));
        }
        let call = Rc::new(Call {
            end: Cell::new(None),
            waiter: WaitQueue::new(),
            is_given_up: Cell::new(false),
            channels: RefCell::new(channels.clone()),
        });
        self.calls.borrow_mut().insert(id, call.clone());
        waiting.id = id;
        waiting.call = Some(call.clone());
        // Serializes items: code of the caller, which may panic or send.
        for channel in channels {
            channel.begin();
        }
        drop(hold);
        loop {
            match call.end.take() {
                Some(End::Answer { flags, body }) => {
                    waiting.call = None;
                    let answer = self.answered(method, flags, body).check();
                    let is_ended =
                        |error: &CallError| matches!(error.failure, CallFailure::Ended(_));
                    return match answer {
                        Err(error) if is_ended(&error) && deadline.is_due(now()) => {
                            Err(or_interruption(error).await)
                        }
                        answer => answer,
                    };
                }
                Some(End::NotTaken) => {
                    waiting.call = None;
                    return Err(not_sent(CallFailure::ShuttingDown));
                }
                Some(End::Lost(error)) => {
                    waiting.call = None;
                    let executed = match self.out.is_unsent(queued) {
                        true => Executed::No,
                        false => Executed::Maybe,
                    };
                    return Err(self.error(method, CallFailure::Connection(error), executed));
                }
                None => {}
            }
            let about = || About::new(format!("{} at {}, call {id}", method.name, self.peer));
            if let Err(interrupted) = park_at((&call.waiter, about), place).await {
                let failure = CallFailure::Interrupted(interrupted);
                return Err(self.error(method, failure, Executed::Maybe));
            }
        }
    }

    fn answered(&self, method: &Method, flags: u8, body: Vec<u8>) -> Answered {
        Answered { method: method.name, peer: self.peer.clone(), codec: self.codec, flags, body }
    }

    fn error(&self, method: &Method, failure: CallFailure, executed: Executed) -> CallError {
        CallError { method: method.name, peer: self.peer.to_string(), failure, executed }
    }

    /// Understands a packet of the server.
    fn take(&self, packet: Packet<'_>) -> Result<(), PacketError> {
        let id = packet.id;
        if packet.kind == LEAVE {
            let before = self.last_taken.replace(Some(id));
            self.last_taken.set(Some(before.map_or(id, |last| last.min(id))));
            let not_taken = self.calls.borrow_mut().take_above(Some(id));
            for call in not_taken {
                self.ended(&call, End::NotTaken);
            }
            if before.is_none() {
                // All that wait for a place learn it.
                self.places.give(MANY);
            }
            self.end_if_left();
            return Ok(());
        }
        if self.last_taken.get().is_some_and(|last| id > last) && id < self.next.get() {
            // The server refuses a call that came after it had left. The caller knows.
            return Ok(());
        }
        let unknown = || PacketError::Malformed("a packet for a call that is not under way");
        if packet.kind == ANSWER {
            let call = self.calls.borrow_mut().remove(id).ok_or_else(unknown)?;
            self.has_answered.set(true);
            self.ended(&call, End::Answer { flags: packet.flags, body: packet.body.to_vec() });
            self.end_if_left();
            return Ok(());
        }
        let call = self.calls.borrow().get(id).ok_or_else(unknown)?;
        if call.is_given_up.get() {
            return Ok(());
        }
        take_channel_packet(&call.channels, packet)
    }

    /// Ends the connection after its last call, if the server takes no more calls.
    fn end_if_left(&self) {
        if self.last_taken.get().is_some() && self.calls.borrow().len() == 0 {
            drop(self.packets.take());
        }
    }

    fn ended(&self, call: &Call, end: End) {
        call.end(end);
        self.places.give(1);
    }

    fn fail_calls(&self, error: &PacketError) {
        let calls = self.calls.borrow_mut().take_above(None);
        for call in calls {
            self.ended(&call, End::Lost(error.clone()));
        }
        // All that wait for a place learn it.
        self.places.give(MANY);
    }

    /// Ends the connection when everything is written.
    pub(crate) async fn finish(self: Rc<Self>) -> Result<(), Interrupted> {
        match self.packets.take().map(PacketWriter::finish) {
            Some(finished) => match finished.await {
                Err(PacketError::Interrupted(interrupted)) => Err(interrupted),
                _ => Ok(()),
            },
            None => Ok(()),
        }
    }
}

/// The interruption in place of the server's word that the caller's time is over, which may be here
/// before the caller's own timer.
async fn or_interruption(error: CallError) -> CallError {
    match sleep(TIMER_DELAY).await {
        Err(interrupted) => CallError { failure: CallFailure::Interrupted(interrupted), ..error },
        Ok(()) => error,
    }
}

/// The caller's nearest deadline. One that has passed interrupts the caller's next wait, and has no
/// pauses before it.
pub(crate) fn deadline_ahead() -> Deadline {
    let nearest = nearest_deadline();
    if has_passed(nearest) { Deadline::NEVER } else { nearest }
}

/// Reads the clock only if there is a deadline.
fn has_passed(deadline: Deadline) -> bool {
    !deadline.is_never() && deadline.is_due(now())
}

/// The kind and flags of a request, and what is left of the caller's time in µs.
fn head(
    method: &Method,
    metadata: &[(String, String)],
    until: Deadline,
) -> ((u8, u8), Option<u64>) {
    let kind = if method.is_notice { NOTICE } else { REQUEST };
    let mut flags = if metadata.is_empty() { 0 } else { METADATA };
    let left = (!until.is_never()).then(|| {
        flags |= DEADLINE;
        let left = clock_rate().duration_ceil(until.ticks().since(now()));
        // Rounded up: the server's time is not over before the caller's.
        u64::try_from(left.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
    });
    ((kind, flags), left)
}

enum RequestFailure {
    Arguments(String),
    Packet(PacketError),
}

impl From<PacketError> for RequestFailure {
    fn from(error: PacketError) -> Self {
        Self::Packet(error)
    }
}

/// Understands a packet of a call's channel.
pub(crate) fn take_channel_packet(
    channels: &RefCell<Vec<Rc<dyn Ported>>>,
    packet: Packet<'_>,
) -> Result<(), PacketError> {
    if !matches!(packet.kind, ITEM | END | CREDIT | STOP) {
        return Err(PacketError::Malformed("a packet of an unknown kind"));
    }
    let mut body = packet.body;
    let index = whole_number(&mut body)?;
    if index >= MOST_CHANNELS as u64 {
        return Err(PacketError::Malformed("a packet for a channel that cannot be"));
    }
    let channel = channels.borrow().get(index as usize).cloned();
    // A peer that is newer may have added an argument with a channel.
    let Some(channel) = channel else { return Ok(()) };
    match packet.kind {
        ITEM => channel.item(body),
        END => channel.ended(packet.flags),
        CREDIT => channel.credit(whole_number(&mut body)?),
        _ => channel.stopped(),
    }
}

/// A caller that waits. Dropped before the answer, it gives up.
struct Waiting<'a> {
    link: &'a Rc<Link>,
    method: &'a Method,
    id: u64,
    call: Option<Rc<Call>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.link.callers.set(self.link.callers.get() - 1);
        if self.id == 0 && !self.method.is_notice {
            self.link.places.give(1);
        }
        let Some(call) = self.call.take() else { return };
        // An answer that has just come is dropped here.
        if call.end.take().is_some() {
            return;
        }
        call.is_given_up.set(true);
        for channel in &*call.channels.borrow() {
            channel.close();
        }
        // A connection that has failed has no calls.
        let _ = self.link.out.put((CANCEL, 0, self.id), |_| Ok::<_, PacketError>(()));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.request_cancel("nobody uses the connection");
        }
    }
}

/// The link of the task that receives. The end of the task fails the calls, also an end by a panic
/// or an abort.
struct Receiving(Weak<Link>);

impl Drop for Receiving {
    fn drop(&mut self) {
        if let Some(link) = self.0.upgrade() {
            link.fail_calls(&link.out.fail(PacketError::Disconnected));
        }
    }
}

/// Receives the server's packets until the connection ends.
async fn receive<S: Read>(mut reader: PacketReader<S>, receiving: Receiving) {
    let error = loop {
        let packet = match reader.next().await {
            Ok(Some(packet)) => packet,
            Ok(None) => break PacketError::Disconnected,
            Err(error) => break error,
        };
        let Some(link) = receiving.0.upgrade() else { break PacketError::Disconnected };
        if let Err(error) = link.take(packet) {
            break error;
        }
    };
    if receiving.0.strong_count() == 0 {
        // Nobody uses the connection: what is queued is written, and the server ends its side.
        let rest = async { while let Ok(Some(_)) = reader.next().await {} };
        ignore_after(DRAIN, rest).await;
        return;
    }
    reader.fail(match error {
        // Of this task, not of the callers.
        PacketError::Interrupted(_) => PacketError::Disconnected,
        error => error,
    });
}
