//! Channels whose ends are arguments of calls: items travel while the call is under way.
//!
//! ```text
//! client: channel() ─▶ Receiver as argument │ items ─▶ │ server: Receiver      (upload)
//! client: channel() ─▶ Sender as argument   │ ◀─ items │ server: Sender        (download)
//! ```
//!
//! A channel is local until an end of it is serialized as an argument. It then has a *port*: for an
//! export the items leave by the connection, for an import they arrive by it. The importing side
//! grants credit for items, and closes the port by `STOP`; the exporting side closes it by `END`.
//! The end of the call closes both.
//!
//! ```text
//! export   open ──▶ END sent, or STOP received, or the call is over: closed
//! import   open ──▶ END received, or STOP sent, or the call is over: closed
//! ```
//!
//! The items are complete only if the sender says so ([`Sender::finish`]). A sender that is
//! dropped, as by a panic or an interruption, sends an `END` that is `INCOMPLETE`.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::pin;
use std::rc::Rc;

use pikake_traps::{About, Interrupted, Panic, WaitQueue, catch_and_log, park_at};
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::ser::{Error as _, Serializer};
use serde::{Deserialize, Serialize};

use crate::codec::Codec;
use crate::either::either;
use crate::packet_error::PacketError;
use crate::packets::Outbox;
use crate::protocol::{CREDIT, END, INCOMPLETE, ITEM, MOST_CHANNELS, STOP};
use crate::wire::put_number;

/// Makes a channel that buffers up to `capacity` items. Either end may be an argument of a call.
///
/// An end that travels may be part of a larger argument, such as a struct, an `Option` or a `Vec`.
/// It travels once. The items that are under way are then limited by the server and the client, by
/// 16 each unless they say otherwise. At the end of the call the channel ends as well.
///
/// # Examples
///
/// ```
/// use pikake::net::TcpListener;
/// use pikake::rpc::{Client, Receiver, Sender, Server, channel};
///
/// #[pikake::service]
/// pub trait Squares {
///     /// Answers each number by its square.
///     async fn square(&self, numbers: Receiver<u64>, squares: Sender<u64>) -> Result<(), String>;
/// }
///
/// struct Table;
///
/// impl Squares for Table {
///     async fn square(&self, numbers: Receiver<u64>, squares: Sender<u64>) -> Result<(), String> {
///         while let Some(number) = numbers.recv().await.map_err(|error| error.to_string())? {
///             squares.send(number * number).await.map_err(|error| error.to_string())?;
///         }
///         squares.finish();
///         Ok(())
///     }
/// }
///
/// # pikake::sim::example(async {
/// # let listener = TcpListener::bind("127.0.0.1:7000").await.unwrap();
/// # let server = Server::new().add(SquaresServer::new(Table));
/// # let server = pikake::spawn(server.serve(listener));
/// let squares = SquaresClient::new(Client::tcp("127.0.0.1:7000"));
/// let (numbers, to_square) = channel(4);
/// let (squared, results) = channel(4);
/// let call = pikake::spawn(squares.square(to_square, squared));
/// numbers.send(3).await.unwrap();
/// assert_eq!(results.recv().await.unwrap(), Some(9));
/// numbers.send(4).await.unwrap();
/// assert_eq!(results.recv().await.unwrap(), Some(16));
/// numbers.finish();
/// assert_eq!(results.recv().await.unwrap(), None);
/// call.await.unwrap().unwrap();
/// # server.cancel().await.unwrap(); });
/// ```
///
/// # Panics
///
/// If `capacity` is zero.
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a channel must have room for at least one item");
    let channel = Rc::new(Channel::new(capacity));
    (Sender::of(&channel), Receiver::of(&channel))
}

struct Channel<T> {
    items: RefCell<VecDeque<T>>,
    capacity: Cell<usize>,
    /// No more items are sent.
    is_ended: Cell<bool>,
    /// No more items are wanted.
    is_stopped: Cell<bool>,
    /// Why the items are not all that were sent.
    loss: RefCell<Option<ReceiveError>>,
    senders: WaitQueue,
    receivers: WaitQueue,
    port: RefCell<Option<Port<T>>>,
}

/// Where a channel meets a connection.
enum Port<T> {
    /// Items leave.
    Export { place: Place, credit: u64, write: WriteItem<T> },
    /// Items arrive.
    Import {
        place: Place,
        /// The items that the peer may send.
        credit: u64,
        /// The items that were received and not granted to the peer again yet.
        taken: u64,
        /// The items in front that were sent here, before the sender left.
        local: usize,
    },
}

type WriteItem<T> = fn(Codec, &T, &mut Vec<u8>) -> Result<(), String>;

/// A channel of a call, on a connection.
#[derive(Clone)]
struct Place {
    out: Rc<Outbox>,
    codec: Codec,
    call: u64,
    index: usize,
}

impl Place {
    /// Sends a packet of the channel. A connection that has failed closes its channels otherwise.
    fn put(
        &self,
        (kind, flags): (u8, u8),
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), String>,
    ) -> Result<(), String> {
        let put = self.out.put((kind, flags, self.call), |bytes| {
            put_number(bytes, self.index as u64);
            // `Serialize` of an item is the user's code.
            let written = catch_unwind(AssertUnwindSafe(|| write(bytes)));
            written
                .unwrap_or_else(|payload| Err(panicked("Serialize", payload)))
                .map_err(PutFailure::Item)
        });
        match put {
            Err(PutFailure::Item(text)) => Err(text),
            Err(PutFailure::Packet(error @ PacketError::TooLarge { .. })) => Err(error.to_string()),
            Ok(_) | Err(PutFailure::Packet(_)) => Ok(()),
        }
    }
}

/// A panic of a user's trait, in words.
fn panicked(of: &str, payload: Box<dyn Any + Send>) -> String {
    let panic = Panic::new(payload);
    format!("its `{of}` panicked: {}", panic.message().unwrap_or("(not a text)"))
}

/// Drops items that nobody gets. Their destructors are the user's code.
fn drop_items<I>(items: I) {
    catch_and_log("the destructor of a channel's item", || drop(items));
}

enum PutFailure {
    Item(String),
    Packet(PacketError),
}

impl From<PacketError> for PutFailure {
    fn from(error: PacketError) -> Self {
        Self::Packet(error)
    }
}

impl<T> Channel<T> {
    fn new(capacity: usize) -> Self {
        Self {
            items: RefCell::default(),
            capacity: Cell::new(capacity),
            is_ended: Cell::new(false),
            is_stopped: Cell::new(false),
            loss: RefCell::default(),
            senders: WaitQueue::new(),
            receivers: WaitQueue::new(),
            port: RefCell::default(),
        }
    }

    /// Whether an end may travel.
    fn check_travel(&self, has_left: &Cell<bool>) -> Result<(), &'static str> {
        if has_left.get() {
            return Err("this end of a channel has travelled before");
        }
        if self.port.borrow().is_some() {
            return Err("the other end of this channel belongs to a call already");
        }
        Ok(())
    }

    /// Whether an item may be sent. One that leaves needs credit, so nothing of an exported channel
    /// is left when its sender is dropped.
    fn has_room(&self) -> bool {
        let count = self.items.borrow().len();
        match &*self.port.borrow() {
            Some(Port::Export { credit, .. }) => *credit > 0 && count == 0,
            _ => count < self.capacity.get(),
        }
    }

    /// The connection by which the items leave.
    fn exported_by(&self) -> Option<Rc<Outbox>> {
        match &*self.port.borrow() {
            Some(Port::Export { place, .. }) => Some(place.out.clone()),
            _ => None,
        }
    }

    /// Takes credit for an item. `None`: no item may leave.
    fn take_credit(&self) -> Option<(Place, WriteItem<T>)> {
        match &mut *self.port.borrow_mut() {
            Some(Port::Export { place, credit: credit @ 1.., write }) => {
                *credit -= 1;
                Some((place.clone(), *write))
            }
            _ => None,
        }
    }

    /// Sends an item, for which credit was taken.
    fn put(&self, (place, write): (Place, WriteItem<T>), item: &T) -> Result<(), String> {
        let written = place.put((ITEM, 0), |bytes| write(place.codec, item, bytes));
        if written.is_err() {
            // The credit was not used.
            if let Some(Port::Export { credit, .. }) = &mut *self.port.borrow_mut() {
                *credit += 1;
            }
        }
        written
    }

    /// Sends what may leave.
    fn flush(&self) {
        while !self.items.borrow().is_empty() {
            let Some(port) = self.take_credit() else { break };
            let Some(item) = self.items.borrow_mut().pop_front() else { break };
            if self.put(port, &item).is_err() {
                // The sender has gone on: its receiver misses the item.
                self.lose(ReceiveError::Lost);
            }
            drop_items(item);
        }
        self.senders.wake(usize::MAX);
    }

    /// Says that no more items follow, once all have left.
    fn end_export(&self) {
        if !self.is_ended.get() || !self.items.borrow().is_empty() {
            return;
        }
        let port = self.port.borrow_mut().take_if(|port| matches!(port, Port::Export { .. }));
        if let Some(Port::Export { place, .. }) = port {
            let flags = if self.loss.borrow().is_some() { INCOMPLETE } else { 0 };
            // Nothing to serialize, so nothing fails.
            let _ = place.put((END, flags), |_| Ok(()));
        }
    }

    /// The receiver has taken an item.
    fn taken(&self) {
        self.senders.wake(usize::MAX);
        let half = (self.capacity.get() as u64).div_ceil(2);
        let grant = match &mut *self.port.borrow_mut() {
            Some(Port::Import { local: local @ 1.., .. }) => {
                *local -= 1;
                None
            }
            Some(Port::Import { place, credit, taken, .. }) => {
                *taken += 1;
                (*taken >= half).then(|| {
                    *credit += *taken;
                    (place.clone(), std::mem::take(taken))
                })
            }
            _ => None,
        };
        if let Some((place, count)) = grant {
            let _ = place.put((CREDIT, 0), |bytes| {
                put_number(bytes, count);
                Ok(())
            });
        }
    }

    /// Notes that items are missing.
    fn lose(&self, loss: ReceiveError) {
        self.loss.borrow_mut().get_or_insert(loss);
    }

    fn end(&self) {
        self.is_ended.set(true);
        self.end_export();
        self.receivers.wake(usize::MAX);
    }

    fn stop(&self) {
        self.is_stopped.set(true);
        let items = self.items.take();
        self.stop_import();
        self.senders.wake(usize::MAX);
        drop_items(items);
    }

    /// Says that no more items are wanted.
    fn stop_import(&self) {
        let port = self.port.borrow_mut().take_if(|port| matches!(port, Port::Import { .. }));
        if let Some(Port::Import { place, .. }) = port {
            let _ = place.put((STOP, 0), |_| Ok(()));
        }
    }
}

/// A channel of a call, as its connection uses it.
pub(crate) trait Ported {
    /// The request is queued: items may follow.
    fn begin(&self);
    /// An item has arrived.
    fn item(&self, bytes: &[u8]) -> Result<(), PacketError>;
    /// No more items follow. Those that came may be `INCOMPLETE`.
    fn ended(&self, flags: u8) -> Result<(), PacketError>;
    /// The peer takes `count` items more.
    fn credit(&self, count: u64) -> Result<(), PacketError>;
    /// The peer wants no more items.
    fn stopped(&self) -> Result<(), PacketError>;
    /// The call is over.
    fn close(&self);
}

struct Exported<T>(Rc<Channel<T>>);

impl<T> Ported for Exported<T> {
    fn begin(&self) {
        self.0.flush();
        self.0.end_export();
    }

    fn item(&self, _: &[u8]) -> Result<(), PacketError> {
        Err(PacketError::Malformed("an item against the channel's direction"))
    }

    fn ended(&self, _: u8) -> Result<(), PacketError> {
        Err(PacketError::Malformed("an end against the channel's direction"))
    }

    fn credit(&self, count: u64) -> Result<(), PacketError> {
        if let Some(Port::Export { credit, .. }) = &mut *self.0.port.borrow_mut() {
            *credit = credit
                .checked_add(count)
                .ok_or(PacketError::Malformed("more credit than a number holds"))?;
        }
        self.begin();
        Ok(())
    }

    fn stopped(&self) -> Result<(), PacketError> {
        self.close();
        Ok(())
    }

    fn close(&self) {
        self.0.port.take();
        self.0.stop();
    }
}

struct Imported<T> {
    channel: Rc<Channel<T>>,
    codec: Codec,
    read: fn(Codec, &[u8]) -> Result<T, String>,
    /// The peer has said that no more items follow.
    is_ended: Cell<bool>,
}

impl<T> Ported for Imported<T> {
    fn begin(&self) {
        // The receiver may have gone before its sender travelled.
        if self.channel.is_stopped.get() {
            self.channel.stop_import();
        }
    }

    fn item(&self, bytes: &[u8]) -> Result<(), PacketError> {
        if self.is_ended.get() {
            return Err(PacketError::Malformed("an item after the last one"));
        }
        let channel = &self.channel;
        match &mut *channel.port.borrow_mut() {
            Some(Port::Import { credit, .. }) => match credit.checked_sub(1) {
                Some(left) => *credit = left,
                None => return Err(PacketError::Malformed("an item without credit")),
            },
            // The item was on its way when the port was closed here.
            _ => return Ok(()),
        }
        // `Deserialize` of an item is the user's code.
        let read = catch_unwind(AssertUnwindSafe(|| (self.read)(self.codec, bytes)));
        match read.unwrap_or_else(|payload| Err(panicked("Deserialize", payload))) {
            Ok(item) => {
                channel.items.borrow_mut().push_back(item);
                channel.receivers.wake(usize::MAX);
            }
            Err(text) => {
                channel.stop_import();
                channel.lose(ReceiveError::Decode(text));
                channel.end();
            }
        }
        Ok(())
    }

    fn ended(&self, flags: u8) -> Result<(), PacketError> {
        if self.is_ended.replace(true) {
            return Err(PacketError::Malformed("a second end of a channel"));
        }
        self.channel.port.take();
        if flags & INCOMPLETE != 0 {
            self.channel.lose(ReceiveError::Lost);
        }
        self.channel.end();
        Ok(())
    }

    fn credit(&self, _: u64) -> Result<(), PacketError> {
        Err(PacketError::Malformed("credit against the channel's direction"))
    }

    fn stopped(&self) -> Result<(), PacketError> {
        Err(PacketError::Malformed("a stop against the channel's direction"))
    }

    fn close(&self) {
        self.channel.port.take();
        if !self.is_ended.get() {
            self.channel.lose(ReceiveError::Lost);
        }
        self.channel.end();
    }
}

/// A channel among arguments that this side does not know.
struct Unknown;

impl Ported for Unknown {
    fn begin(&self) {}

    fn item(&self, _: &[u8]) -> Result<(), PacketError> {
        Ok(())
    }

    fn ended(&self, _: u8) -> Result<(), PacketError> {
        Ok(())
    }

    fn credit(&self, _: u64) -> Result<(), PacketError> {
        Ok(())
    }

    fn stopped(&self) -> Result<(), PacketError> {
        Ok(())
    }

    fn close(&self) {}
}

/// The channels of a call, as its arguments are written or read.
pub(crate) struct Channels {
    place: Place,
    /// The items that may leave before the first credit.
    credit: u64,
    /// The items that may arrive before the first credit.
    room: usize,
    ports: Vec<Rc<dyn Ported>>,
    /// Why an end cannot travel, for the first one that cannot. The codec may lose the text.
    refusal: Option<&'static str>,
    /// The arguments are written once more, for the text of an error.
    is_repeated: bool,
}

thread_local! {
    /// The calls whose arguments are being written or read, the innermost last.
    static CURRENT: RefCell<Vec<Channels>> = const { RefCell::new(Vec::new()) };
}

impl Channels {
    pub(crate) fn new(out: &Rc<Outbox>, codec: Codec, call: u64, credit: u64, room: usize) -> Self {
        let place = Place { out: out.clone(), codec, call, index: 0 };
        Self { place, credit, room, ports: Vec::new(), refusal: None, is_repeated: false }
    }

    /// Calls `work`, which writes or reads arguments, and returns the channels among them.
    pub(crate) fn around<R>(self, work: impl FnOnce() -> R) -> (R, Vec<Rc<dyn Ported>>) {
        /// After a panic, no call has the channels.
        struct Panicked;

        impl Drop for Panicked {
            fn drop(&mut self) {
                let left = CURRENT.with_borrow_mut(Vec::pop);
                for port in left.into_iter().flat_map(|channels| channels.ports) {
                    port.close();
                }
            }
        }

        CURRENT.with_borrow_mut(|calls| calls.push(self));
        let panicked = Panicked;
        let result = work();
        mem::forget(panicked);
        let ports = CURRENT.with_borrow_mut(|calls| calls.pop().map(|call| call.ports));
        (result, ports.unwrap_or_default())
    }

    /// Writes arguments a second time: ends of channels do not travel again.
    pub(crate) fn repeat<R>(work: impl FnOnce() -> R) -> R {
        let repeat = |is_repeated| {
            CURRENT.with_borrow_mut(|calls| {
                if let Some(channels) = calls.last_mut() {
                    channels.is_repeated = is_repeated;
                }
            });
        };
        repeat(true);
        let result = work();
        repeat(false);
        result
    }

    fn is_repeated() -> bool {
        CURRENT.with_borrow(|calls| calls.last().is_some_and(|call| call.is_repeated))
    }

    /// Why an end of the current call cannot travel.
    pub(crate) fn refusal() -> Option<&'static str> {
        CURRENT.with_borrow(|calls| calls.last()?.refusal)
    }

    /// Notes why an end cannot travel.
    fn refuse<E>(why: &'static str, error: fn(&'static str) -> E) -> E {
        CURRENT.with_borrow_mut(|calls| {
            if let Some(channels) = calls.last_mut() {
                channels.refusal.get_or_insert(why);
            }
        });
        error(why)
    }

    /// Adds a channel to the current call, and returns its index.
    fn add(make: impl FnOnce(Place, u64, usize) -> Rc<dyn Ported>) -> Result<usize, &'static str> {
        Self::add_at(None, make)
    }

    /// Adds a channel to the current call at its index, by default the next one.
    fn add_at(
        index: Option<u64>,
        make: impl FnOnce(Place, u64, usize) -> Rc<dyn Ported>,
    ) -> Result<usize, &'static str> {
        CURRENT.with_borrow_mut(|calls| {
            let Some(channels) = calls.last_mut() else {
                return Err("an end of a channel travels only as an argument of a call");
            };
            let next = channels.ports.len();
            let index = index.map_or(next, |index| usize::try_from(index).unwrap_or(usize::MAX));
            if index >= MOST_CHANNELS {
                return Err("a call has at most 64 channels");
            }
            if index < next {
                return Err("the channels of a call are out of order");
            }
            // Those between are of fields or arguments that this side does not know.
            channels.ports.resize_with(index, || Rc::new(Unknown));
            let place = Place { index, ..channels.place.clone() };
            channels.ports.push(make(place, channels.credit, channels.room));
            Ok(index)
        })
    }
}

/// The end of a [`channel`] that sends.
///
/// [`finish`](Self::finish) says that the items are complete. A sender that is dropped without it,
/// as by a panic or an interruption, leaves its receiver with [`ReceiveError::Lost`] after the
/// items that were sent.
pub struct Sender<T> {
    channel: Rc<Channel<T>>,
    /// The end is finished or has travelled with a call, and this value is what is left.
    has_left: Cell<bool>,
}

/// The end of a [`channel`] that receives. Its drop tells the sender.
pub struct Receiver<T> {
    channel: Rc<Channel<T>>,
    has_left: Cell<bool>,
}

impl<T> Sender<T> {
    fn of(channel: &Rc<Channel<T>>) -> Self {
        Self { channel: channel.clone(), has_left: Cell::new(false) }
    }

    /// Sends an item. Waits while the channel is full.
    ///
    /// # Examples
    ///
    /// See [`channel`].
    ///
    /// # Cancellation
    ///
    /// An interruption point. A call that is interrupted sends nothing, and returns the item. A
    /// call that is dropped sends nothing, and drops the item.
    ///
    /// # Errors
    ///
    /// [`SendError`], with the item.
    #[track_caller]
    pub fn send(&self, item: T) -> impl Future<Output = Result<(), SendError<T>>> {
        let place = Location::caller();
        async move {
            let sent = match self.wait_for_room(place).await {
                Ok(()) => match self.channel.take_credit() {
                    Some(port) => self.channel.put(port, &item).map_err(NotSent::Encode),
                    None => {
                        self.channel.items.borrow_mut().push_back(item);
                        self.channel.receivers.wake(usize::MAX);
                        return Ok(());
                    }
                },
                Err(why) => Err(why),
            };
            sent.map_err(|why| SendError { item, why })
        }
    }

    /// Waits until an item may be sent.
    async fn wait_for_room(&self, place: &'static Location<'static>) -> Result<(), NotSent> {
        let channel = &self.channel;
        let is_closed = || channel.is_stopped.get() || self.has_left.get();
        loop {
            if is_closed() {
                return Err(NotSent::Closed);
            }
            let about = || About::new("room in a channel of a call");
            if !channel.has_room() {
                let waited = park_at((&channel.senders, about), place).await;
                waited.map_err(NotSent::Interrupted)?;
                continue;
            }
            // A connection that has failed takes the item, and the end of the call closes the
            // channel.
            let is_full = |out: &Rc<Outbox>| !out.has_room() && out.failure().is_none();
            let Some(out) = channel.exported_by().filter(is_full) else { return Ok(()) };
            let closed = async {
                while !is_closed() {
                    park_at((&channel.senders, about), place).await?;
                }
                Ok(())
            };
            let waited = either(pin!(out.wait_for_room(place)), pin!(closed)).await.either();
            waited.map_err(NotSent::Interrupted)?;
        }
    }

    /// Ends the channel: the items that were sent are complete.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::rpc::{ReceiveError, channel};
    ///
    /// # pikake::sim::example(async {
    /// let (sender, receiver) = channel(4);
    /// sender.send("whole").await.unwrap();
    /// sender.finish();
    /// assert_eq!(receiver.recv().await.unwrap(), Some("whole"));
    /// assert_eq!(receiver.recv().await.unwrap(), None);
    ///
    /// let (sender, receiver) = channel(4);
    /// sender.send("half").await.unwrap();
    /// drop(sender);
    /// assert_eq!(receiver.recv().await.unwrap(), Some("half"));
    /// assert!(matches!(receiver.recv().await, Err(ReceiveError::Lost)));
    /// # });
    /// ```
    pub fn finish(self) {
        if !self.has_left.replace(true) {
            self.channel.end();
        }
    }

    /// Whether nobody receives any more.
    pub fn is_closed(&self) -> bool {
        self.channel.is_stopped.get()
    }
}

impl<T> Receiver<T> {
    fn of(channel: &Rc<Channel<T>>) -> Self {
        Self { channel: channel.clone(), has_left: Cell::new(false) }
    }

    /// Waits for the next item; `None` after the last, if the sender has
    /// [finished](Sender::finish).
    ///
    /// # Examples
    ///
    /// See [`channel`].
    ///
    /// # Cancellation
    ///
    /// An interruption point. A call that is dropped or interrupted takes no item.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]. All but an interruption come again with each further call.
    #[track_caller]
    pub fn recv(&self) -> impl Future<Output = Result<Option<T>, ReceiveError>> {
        let place = Location::caller();
        async move {
            let channel = &self.channel;
            loop {
                if self.has_left.get() {
                    return Ok(None);
                }
                let item = channel.items.borrow_mut().pop_front();
                if let Some(item) = item {
                    channel.taken();
                    return Ok(Some(item));
                }
                if channel.is_ended.get() {
                    return channel.loss.borrow().clone().map_or(Ok(None), Err);
                }
                let about = || About::new("an item of a channel of a call");
                let waited = park_at((&channel.receivers, about), place).await;
                waited.map_err(ReceiveError::Interrupted)?;
            }
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if !self.has_left.get() {
            self.channel.lose(ReceiveError::Lost);
            self.channel.end();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if !self.has_left.get() {
            self.channel.stop();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

impl<T: Serialize + 'static> Serialize for Receiver<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if Channels::is_repeated() {
            return serializer.serialize_u64(0);
        }
        let export = |place, credit, _| {
            let write: WriteItem<T> = |codec, item, bytes| codec.write(item, bytes);
            self.channel.port.replace(Some(Port::Export { place, credit, write }));
            Rc::new(Exported(self.channel.clone())) as Rc<dyn Ported>
        };
        self.channel
            .check_travel(&self.has_left)
            .map_err(|why| Channels::refuse(why, S::Error::custom))?;
        let index = Channels::add(export).map_err(|why| Channels::refuse(why, S::Error::custom))?;
        self.has_left.set(true);
        serializer.serialize_u64(index as u64)
    }
}

impl<T: DeserializeOwned + 'static> Serialize for Sender<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if Channels::is_repeated() {
            return serializer.serialize_u64(0);
        }
        let import = |place, _, room| import(&self.channel, place, room);
        self.channel
            .check_travel(&self.has_left)
            .map_err(|why| Channels::refuse(why, S::Error::custom))?;
        let index = Channels::add(import).map_err(|why| Channels::refuse(why, S::Error::custom))?;
        self.has_left.set(true);
        serializer.serialize_u64(index as u64)
    }
}

fn import<T: DeserializeOwned + 'static>(
    channel: &Rc<Channel<T>>,
    place: Place,
    room: usize,
) -> Rc<dyn Ported> {
    channel.capacity.set(room);
    let codec = place.codec;
    let local = channel.items.borrow().len();
    channel.port.replace(Some(Port::Import { place, credit: room as u64, taken: 0, local }));
    let (channel, is_ended) = (channel.clone(), Cell::new(false));
    Rc::new(Imported { channel, codec, read: Codec::read, is_ended })
}

impl<'de, T: DeserializeOwned + 'static> Deserialize<'de> for Receiver<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut receiver = None;
        let make = |place, _, room| {
            let channel = Rc::new(Channel::new(room));
            receiver = Some(Self::of(&channel));
            import(&channel, place, room)
        };
        let index = u64::deserialize(deserializer)?;
        Channels::add_at(Some(index), make)
            .map_err(|why| Channels::refuse(why, D::Error::custom))?;
        receiver.ok_or_else(|| D::Error::custom("no channel"))
    }
}

impl<'de, T: Serialize + 'static> Deserialize<'de> for Sender<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut sender = None;
        let make = |place, credit, room| {
            let channel = Rc::new(Channel::new(room));
            let write: WriteItem<T> = |codec, item, bytes| codec.write(item, bytes);
            channel.port.replace(Some(Port::Export { place, credit, write }));
            sender = Some(Self::of(&channel));
            Rc::new(Exported(channel)) as Rc<dyn Ported>
        };
        let index = u64::deserialize(deserializer)?;
        Channels::add_at(Some(index), make)
            .map_err(|why| Channels::refuse(why, D::Error::custom))?;
        sender.ok_or_else(|| D::Error::custom("no channel"))
    }
}

/// An item was not sent. The error holds the item.
///
/// # Examples
///
/// ```
/// use pikake::rpc::{NotSent, channel};
///
/// # pikake::sim::example(async {
/// let (sender, receiver) = channel(4);
/// drop(receiver);
/// let error = sender.send("parcel").await.unwrap_err();
/// assert!(matches!(error.why, NotSent::Closed));
/// assert_eq!(error.into_item(), "parcel");
/// # });
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct SendError<T> {
    /// The item.
    pub item: T,
    /// Why the item was not sent.
    pub why: NotSent,
}

impl<T> SendError<T> {
    /// The item.
    pub fn into_item(self) -> T {
        self.item
    }

    /// The interruption, if the sender was interrupted.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        match &self.why {
            NotSent::Interrupted(interrupted) => Some(interrupted),
            _ => None,
        }
    }
}

/// Why an item was not sent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NotSent {
    /// Nobody receives any more, or the call is over.
    Closed,
    /// An interruption of the sender.
    Interrupted(Interrupted),
    /// The item could not be made bytes, or is too large.
    Encode(String),
}

/// Why there is no item.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReceiveError {
    /// Items are missing. The sender was dropped before it had [finished](Sender::finish), the call
    /// ended or its connection was lost before the last item, or an item from before the call could
    /// not be sent.
    Lost,
    /// The next item could not be understood.
    Decode(String),
    /// An interruption of the receiver.
    Interrupted(Interrupted),
}

impl ReceiveError {
    /// The interruption, if the receiver was interrupted.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        match self {
            Self::Interrupted(interrupted) => Some(interrupted),
            _ => None,
        }
    }
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("nobody receives the items of this channel any more"),
            Self::Interrupted(interrupted) => write!(f, "{interrupted}"),
            Self::Encode(text) => write!(f, "the item cannot be sent: {text}"),
        }
    }
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str("the channel was lost before its last item"),
            Self::Decode(text) => write!(f, "the item cannot be read: {text}"),
            Self::Interrupted(interrupted) => write!(f, "{interrupted}"),
        }
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").field("why", &self.why).finish_non_exhaustive()
    }
}

impl Error for NotSent {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Interrupted(interrupted) => Some(interrupted),
            _ => None,
        }
    }
}

impl<T> Error for SendError<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.why.source()
    }
}

impl Error for ReceiveError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.interrupted().map(|interrupted| interrupted as &(dyn Error + 'static))
    }
}

/// Drops the item. `BrokenPipe` if nobody receives any more, `InvalidInput` if the item cannot be
/// sent. Otherwise as the conversion from [`Interrupted`].
impl<T> From<SendError<T>> for io::Error {
    fn from(error: SendError<T>) -> Self {
        match error.why {
            NotSent::Interrupted(interrupted) => interrupted.into(),
            why @ NotSent::Closed => Self::new(io::ErrorKind::BrokenPipe, why),
            why @ NotSent::Encode(_) => Self::new(io::ErrorKind::InvalidInput, why),
        }
    }
}

impl From<ReceiveError> for io::Error {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Interrupted(interrupted) => interrupted.into(),
            ReceiveError::Lost => Self::new(io::ErrorKind::UnexpectedEof, error),
            ReceiveError::Decode(_) => Self::new(io::ErrorKind::InvalidData, error),
        }
    }
}
