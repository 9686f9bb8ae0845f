//! A server's side of a connection: requests become tasks.
//!
//! ```text
//!                (1)               (2)                (3)                (4)
//!   hello ──▶ answering ──▶ leaving or half-closed ──▶ written ──▶ closed
//!                │ (5)          │ (5)
//!                ▼              ▼        (6)
//!                ending: handlers are interrupted ──▶ as (3), or closed if the connection is lost
//! ```
//!
//! (1) The server is asked to end, and says `LEAVE`; or the client sends nothing more. (2) The last
//! handler has ended. (3) What is queued is written. (4) The client has closed, or does not in
//! time. (5) The connection is lost, or the task of the connection is interrupted. (6) The handlers
//! have ended, or the grace is over and drops them.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::future::pending;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pikake_net::{Closing, Read};
use pikake_time::Deadline;
use pikake_traps::{
    About, Builder, Claim, Interrupted, WaitQueue, deadline_after, elapsed_since, ignore_after,
    now, park_at, shield, should_offer, sleep, yield_now,
};

use crate::call::{CallInfo, EndOfCall, MovedCall, Running, answer_of_other, handle};
use crate::calls::Calls;
use crate::codec::{ArgumentReader, Codec};
use crate::either::{Either, either};
use crate::figures::ServerFigures;
use crate::link::take_channel_packet;
use crate::moved::moved;
use crate::packet_error::PacketError;
use crate::packets::{Outbox, Packet, PacketReader, open};
use crate::peer::{Peer, Transport};
use crate::protocol::{
    ANSWER, BEGUN, CANCEL, ClientGreeting, DEADLINE, FAILURE, Failure, ITEM, LEAVE, METADATA,
    METHOD_BYTES, Metadata, NOTICE, REQUEST, ServerGreeting, take_metadata,
};
use crate::server::{Core, UnfinishedCall};
use crate::stream::Channels;
use crate::trace::TraceContext;
use crate::wire::{Malformed, whole_number};

/// How long a server that is overdue waits for the client to close a connection on which everything
/// is written, and how long one that ends waits for a client's hello. A close with bytes that were
/// not read resets the connection, and the client may lose answers.
const LINGER: Duration = Duration::from_secs(1);
/// The most calls that the description of a wait names.
const NAMED_CALLS: usize = 8;

/// A connection of a server.
pub(crate) struct Session {
    out: Rc<Outbox>,
    client: ClientGreeting,
    core: Rc<Core>,
    peer: Rc<Peer>,
    calls: RefCell<Calls<Running>>,
    /// Of these, notices.
    notices: Cell<usize>,
    /// The greatest id of a request.
    last: Cell<u64>,
    is_leaving: Cell<bool>,
    /// The server ends, and its soft deadline has passed.
    is_overdue: Cell<bool>,
    /// The wait for the end of a handler.
    ended: WaitQueue,
}

/// Answers the calls of a connection, until the client or the server ends it.
pub(crate) async fn serve_calls<S: Transport>(
    stream: S,
    core: Rc<Core>,
    closing: Closing,
) -> Result<(), PacketError> {
    let _open = OpenConnection::new(&core.figures);
    stream.send_at_once()?;
    let peer = Rc::new(stream.peer());
    let greeting =
        ServerGreeting { calls: core.options.calls as u64, items: core.options.items as u64 };
    let options = core.options.packets.clone().greeting(greeting.bytes());
    let (stall, frame_limit) = (options.stall, options.frame_limit);
    // A server that ends waits for no client that says nothing.
    let ends = async {
        closing.begun().await?;
        sleep(LINGER).await
    };
    let opened = match either(pin!(open(stream, options)), pin!(ends)).await {
        Either::First(opened) => opened,
        Either::Second(Ok(())) => return Ok(()),
        Either::Second(Err(interrupted)) => Err(PacketError::Interrupted(interrupted)),
    };
    let (mut reader, packets) = opened?;
    // The client says how much it takes, and the server how much of its memory that may be.
    packets.out().limit_frames(frame_limit);
    let client = match ClientGreeting::read(reader.greeting()) {
        Ok(client) => client,
        Err(error) => return Err(reader.fail(error)),
    };
    let session = Rc::new(Session {
        out: packets.out().clone(),
        client,
        core,
        peer,
        calls: RefCell::new(Calls::new()),
        notices: Cell::new(0),
        last: Cell::new(0),
        is_leaving: Cell::new(false),
        is_overdue: Cell::new(false),
        ended: WaitQueue::new(),
    });
    let handlers = DropHandlers(&session);
    let served = session.serve(&mut reader, &closing).await;
    let served = served.map_err(|error| match error {
        error @ PacketError::Interrupted(_) => error,
        error => reader.fail(error),
    });
    session.end_calls(&served).await;
    drop(handlers);
    if !matches!(served, Ok(_) | Err(PacketError::Interrupted(_))) {
        return served.map(drop);
    }
    let finished = packets.finish().await;
    if finished.is_ok() {
        let end = async { while let Ok(Some(_)) = reader.next().await {} };
        // The last answers may be a while on their way to the client.
        let linger = if served.is_ok() { stall } else { LINGER };
        ignore_after(linger, end).await;
    }
    match served? {
        // A client that wants no more packets may have closed.
        EndedBy::Client => Ok(()),
        EndedBy::Server => finished,
    }
}

/// Which side has ended a connection in order.
enum EndedBy {
    Client,
    Server,
}

/// Counts a connection while it is open.
struct OpenConnection(Rc<ServerFigures>);

impl OpenConnection {
    fn new(figures: &Rc<ServerFigures>) -> Self {
        figures.connection_opened();
        Self(figures.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connection_closed();
    }
}

/// Drops the handlers that are left at the end of a connection.
struct DropHandlers<'a>(&'a Rc<Session>);

impl Drop for DropHandlers<'_> {
    fn drop(&mut self) {
        let calls = self.0.running();
        if self.0.is_overdue.get() {
            self.0
                .core
                .note_dropped(calls.iter().map(|running| UnfinishedCall::new(&running.info)));
        }
        for running in calls {
            if let Some(task) = running.task.take() {
                task.abort();
            }
        }
    }
}

impl Session {
    pub(crate) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// The calls under way, the oldest first.
    fn running(&self) -> Vec<Rc<Running>> {
        self.calls.borrow().all()
    }

    pub(crate) fn codec(&self) -> Codec {
        self.client.codec
    }

    /// Whether the server takes no more calls.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.get()
    }

    async fn serve<S: Read>(
        self: &Rc<Self>,
        reader: &mut PacketReader<S>,
        closing: &Closing,
    ) -> Result<EndedBy, PacketError> {
        let mut event = pin!(self.event(closing));
        let mut hold = None;
        loop {
            if closing.has_begun() {
                self.leave();
            }
            if let Some(failure) = self.out.failure() {
                return Err(failure);
            }
            if self.is_leaving.get() && self.calls.borrow().len() == 0 {
                return Ok(EndedBy::Server);
            }
            let packet = match reader.arrived_packet()? {
                Some(packet) => packet,
                None => {
                    // The answers to what came in one read leave in one write.
                    drop(hold.take());
                    match either(pin!(reader.next()), event.as_mut()).await {
                        Either::First(Ok(Some(packet))) => packet,
                        Either::First(Ok(None)) => break,
                        Either::First(Err(error)) => return Err(error),
                        Either::Second(Ok(())) => {
                            event.set(self.event(closing));
                            continue;
                        }
                        Either::Second(Err(interrupted)) => {
                            return Err(PacketError::Interrupted(interrupted));
                        }
                    }
                }
            };
            // The packets whose answers or credit the client must take.
            let waited = match packet.kind {
                REQUEST | NOTICE | ITEM if !self.out.has_room() || closing.has_begun() => {
                    drop(hold.take());
                    self.wait_for_room(closing).await?
                }
                _ => Duration::ZERO,
            };
            hold.get_or_insert_with(|| self.out.hold());
            self.take(packet, waited)?;
        }
        // The client sends nothing more, also no items and no credit, but gets its answers.
        self.close_channels();
        while self.calls.borrow().len() > 0 {
            if let Some(failure) = self.out.failure() {
                return Err(failure);
            }
            let changed = either(pin!(self.ended()), pin!(self.failed())).await.either();
            changed.map_err(PacketError::Interrupted)?;
        }
        Ok(EndedBy::Client)
    }

    /// Waits for a failure, and for the shutdown to begin or, after that, for the end of a call.
    async fn event(&self, closing: &Closing) -> Result<(), Interrupted> {
        match self.is_leaving.get() {
            false => either(pin!(self.failed()), pin!(closing.begun())).await.either(),
            true => either(pin!(self.failed()), pin!(self.ended())).await.either(),
        }
    }

    /// Waits until there is room for answers and credit: a client that takes none gets no more.
    /// Returns how long it took.
    async fn wait_for_room(&self, closing: &Closing) -> Result<Duration, PacketError> {
        let since = now();
        loop {
            if closing.has_begun() {
                self.leave();
            }
            if let Some(failure) = self.out.failure() {
                return Err(failure);
            }
            if self.out.has_room() {
                return Ok(elapsed_since(since));
            }
            let begun = async {
                match self.is_leaving.get() {
                    true => pending().await,
                    false => closing.begun().await,
                }
            };
            let room = self.out.wait_until_written(Location::caller());
            let changed = either(pin!(room), pin!(begun)).await.either();
            changed.map_err(PacketError::Interrupted)?;
        }
    }

    async fn failed(&self) -> Result<(), Interrupted> {
        self.out.failed(Location::caller(), || About::new(self.describe())).await
    }

    async fn ended(&self) -> Result<(), Interrupted> {
        let about = || About::new(format!("the end of {}", self.describe()));
        park_at((&self.ended, about), Location::caller()).await
    }

    /// The calls under way, in words.
    fn describe(&self) -> String {
        let calls = self.running();
        let plural = if calls.len() == 1 { "" } else { "s" };
        let mut text = format!("{} call{plural} of {}", calls.len(), self.peer);
        for (index, running) in calls.iter().take(NAMED_CALLS).enumerate() {
            let before = if index == 0 { ": " } else { ", " };
            let CallInfo { method, id, .. } = &*running.info;
            let _ = write!(text, "{before}{method} (call {id})");
        }
        if calls.len() > NAMED_CALLS {
            text.push_str(", …");
        }
        text
    }

    /// Tells the client that no further call is taken.
    fn leave(&self) {
        if !self.is_leaving.replace(true) {
            // The loop finds a failure of the connection.
            let _ = self.out.put((LEAVE, 0, self.last.get()), |_| Ok::<_, PacketError>(()));
        }
    }

    fn close_channels(&self) {
        let calls = self.running();
        for running in calls {
            for channel in &*running.channels.borrow() {
                channel.close();
            }
        }
    }

    /// Interrupts the handlers that are left, and waits for them, for no longer than the grace.
    async fn end_calls(&self, served: &Result<EndedBy, PacketError>) {
        let is_overdue = matches!(served, Err(PacketError::Interrupted(_)));
        if is_overdue {
            self.leave();
        }
        let calls = self.running();
        let reason = match is_overdue {
            true => "the server is shutting down",
            false => "the connection of the caller is lost",
        };
        if is_overdue {
            self.is_overdue.set(true);
            self.core
                .note_interrupted(calls.iter().map(|running| UnfinishedCall::new(&running.info)));
        }
        self.close_channels();
        for running in calls {
            running.interrupt(reason);
        }
        let idle = async { while self.calls.borrow().len() > 0 && self.ended().await.is_ok() {} };
        shield(async {
            // Also without a grace, the handlers see their interruption before they are dropped.
            let _ = yield_now().await;
            ignore_after(self.core.options.grace, idle).await;
        })
        .await;
    }

    /// Understands a packet of the client, which has waited for room.
    fn take(self: &Rc<Self>, packet: Packet<'_>, waited: Duration) -> Result<(), PacketError> {
        let id = packet.id;
        if matches!(packet.kind, REQUEST | NOTICE) {
            if id <= self.last.get() {
                return Err(PacketError::Malformed("the id of a call was used before"));
            }
            self.last.set(id);
            return match self.is_leaving.get() {
                // `LEAVE` has said so to the client.
                true => Ok(()),
                false => self.begin(packet, waited),
            };
        }
        let running = self.calls.borrow().get(id);
        match running {
            Some(running) if packet.kind == CANCEL => {
                self.cancel(&running);
                Ok(())
            }
            Some(running) => take_channel_packet(&running.channels, packet),
            // The call ended while the packet was on its way.
            None if id <= self.last.get() => Ok(()),
            None => Err(PacketError::Malformed("a packet for a call that was never made")),
        }
    }

    /// Begins a call.
    fn begin(self: &Rc<Self>, packet: Packet<'_>, waited: Duration) -> Result<(), PacketError> {
        let (id, is_notice) = (packet.id, packet.kind == NOTICE);
        let under_way = self.calls.borrow().len() - self.notices.get();
        if !is_notice && under_way >= self.core.options.calls {
            return Err(PacketError::Malformed("more calls than the server's limit"));
        }
        let (request, arguments) = Request::read(packet)?;
        let refuse = |failure, text: &str| {
            self.core.figures.not_begun(failure);
            match is_notice {
                true => {
                    tracing::debug!(peer = %self.peer, ?failure, text, "a notice was not taken")
                }
                false => self.put_failure_of(id, FAILURE, failure, text),
            }
            Ok(())
        };
        let Some(offer) = self.core.find(request.method) else {
            return refuse(Failure::UnknownMethod, "");
        };
        // A notice that waited would hold up what the client sends behind it.
        let is_full = is_notice && self.notices.get() >= self.core.options.calls;
        let Some(place) = self.core.try_begin().filter(|_| !is_full) else {
            return refuse(Failure::Overloaded, "");
        };
        let (codec, items) = (self.client.codec, self.core.options.items);
        let channels = Channels::new(&self.out, codec, id, self.client.items, items);
        // `Deserialize` of the arguments is the user's code.
        let read = catch_unwind(AssertUnwindSafe(|| {
            channels.around(|| offer.call(ArgumentReader::new(codec, arguments)?))
        }));
        let (handler, channels) = match read {
            Ok((Ok(handler), channels)) => (handler, channels),
            Ok((Err(text), _)) => return refuse(Failure::Arguments, &text),
            Err(_) => return refuse(Failure::Arguments, "their `Deserialize` panicked"),
        };
        if is_notice {
            // The client has closed the other ends.
            channels.iter().for_each(|channel| channel.close());
        }
        let info = Rc::new(CallInfo {
            method: offer.method,
            id,
            peer: self.peer.clone(),
            deadline: request
                .left
                .map_or(Deadline::NEVER, |left| deadline_after(left.saturating_sub(waited))),
            trace: TraceContext::of_caller(&request.metadata).map(|caller| caller.child()),
            metadata: request.metadata,
        });
        let running = Running::new(info, is_notice, channels);
        self.notices.set(self.notices.get() + usize::from(is_notice));
        self.calls.borrow_mut().insert(id, running.clone());
        let end = EndOfCall::new(self.clone(), running.clone(), offer.figures.clone(), place);
        let is_movable = !is_notice && running.channels.borrow().is_empty();
        let task = match self.core.replicas.as_ref().filter(|_| is_movable && should_offer()) {
            Some(replicas) => {
                let CallInfo { id, peer, deadline, metadata, trace, .. } = (*running.info).clone();
                let is_begun = Arc::<AtomicBool>::default();
                let (method, arguments) = (request.method, arguments.to_vec());
                let peer = (*peer).clone();
                let call = MovedCall {
                    method,
                    id,
                    peer,
                    deadline,
                    metadata,
                    trace,
                    codec,
                    arguments,
                    span: end.span().clone(),
                    is_begun: is_begun.clone(),
                };
                let (replicas, core, running) =
                    (replicas.clone(), self.core.clone(), running.clone());
                let there = move |call| answer_of_other(replicas, call);
                let here = |claim| async move {
                    match claim {
                        Claim::Here(_) => handle(end, handler, false).await,
                        Claim::There(taken) => {
                            let set_begun = {
                                let running = running.clone();
                                move |is_begun| running.is_begun.set(is_begun)
                            };
                            let own = async move { core.intercepted(&running, handler).await };
                            let handler = moved(taken, is_begun, set_begun, Box::pin(own));
                            handle(end, handler, true).await;
                        }
                    }
                };
                Builder::new().name(offer.method).offer(call, there, here)
            }
            None => Builder::new().eager().spawn(handle(end, handler, false)),
        };
        if !task.is_finished() {
            task.task_ref().set_name(offer.method);
        }
        running.task.replace(Some(task));
        Ok(())
    }

    /// The caller has given up.
    fn cancel(&self, running: &Rc<Running>) {
        if !running.interrupt("the caller has given up") {
            return;
        }
        let (grace, running_) = (self.core.options.grace, Rc::downgrade(running));
        let after = async move {
            let slept = sleep(grace).await;
            let running = running_.upgrade().filter(|_| slept.is_ok());
            if let Some(task) = running.and_then(|running| running.task.take()) {
                task.abort();
            }
        };
        let after = Builder::new().name("rpc: grace of a call").spawn(after);
        running.grace.replace(Some(after.cancel_on_drop()));
    }

    /// The handler of a call has ended, and the call is answered.
    pub(crate) fn call_ended(&self, id: u64) {
        let running = self.calls.borrow_mut().remove(id);
        if let Some(running) = running {
            for channel in running.channels.take() {
                channel.close();
            }
            self.notices.set(self.notices.get() - usize::from(running.is_notice));
        }
        self.ended.wake(usize::MAX);
    }

    /// Queues an answer.
    pub(crate) fn put_answer<E: From<PacketError>>(
        &self,
        id: u64,
        flags: u8,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        // Other calls may end in the same turn: then the task writes all answers.
        let is_last = self.calls.borrow().len() == 1;
        let _hold = is_last.then(|| self.out.hold());
        self.out.put((ANSWER, flags, id), write).map(drop)
    }

    /// Queues the answer of a call that has none of the service.
    pub(crate) fn put_failure(&self, running: &Running, failure: Failure, text: &str) {
        let flags = if running.is_begun.get() { FAILURE | BEGUN } else { FAILURE };
        self.put_failure_of(running.info.id, flags, failure, text);
    }

    /// Queues a failure. The text is cut if the client takes no packet of that size.
    fn put_failure_of(&self, id: u64, flags: u8, failure: Failure, text: &str) {
        let put = |text: &str| {
            self.out.put((ANSWER, flags, id), |bytes| {
                bytes.push(failure.number());
                bytes.extend_from_slice(text.as_bytes());
                Ok(())
            })
        };
        let Err(PacketError::TooLarge { limit, .. }) = put(text) else { return };
        let mut end = text.len().min(limit.saturating_sub(1));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        if let Err(error) = put(&text[..end]) {
            // A client that takes no byte gets no answer.
            self.out.fail(error);
        }
    }
}

/// The head of a request.
struct Request {
    method: u32,
    left: Option<Duration>,
    metadata: Metadata,
}

impl Request {
    /// Reads the head, and returns the bytes of the arguments.
    fn read(packet: Packet<'_>) -> Result<(Self, &[u8]), Malformed> {
        let Some((method, mut rest)) = packet.body.split_first_chunk::<METHOD_BYTES>() else {
            return Err(Malformed("a request ends before its arguments"));
        };
        let left = match packet.flags & DEADLINE {
            0 => None,
            _ => Some(Duration::from_micros(whole_number(&mut rest)?)),
        };
        let metadata = match packet.flags & METADATA {
            0 => Vec::new(),
            _ => take_metadata(&mut rest)?,
        };
        Ok((Self { method: u32::from_le_bytes(*method), left, metadata }, rest))
    }
}
