//! Packets over a byte stream: the layer below calls, usable by itself.
//!
//! ```text
//! each side sends   hello · frame · frame · … · finish
//! hello             "PKRP" · lowest version (1 byte) · highest version (1 byte) · frame limit (number)
//!                   · silence in ms (number) · length of the greeting (number) · greeting
//! frame             length of the body (number) · kind and flags (1 byte) · id (number) · body
//! number            LEB128: seven bits a byte, the lowest first; the highest bit says that another byte follows
//! finish            a frame of the kind 30, the last one
//! ```
//!
//! The kind of a frame are the upper five bits of its byte, and the flags the lower three. The
//! kinds up to 29 are packets. A frame of the kind 31 is a heartbeat, which says nothing but that
//! the sender is alive. The bodies of heartbeats and of `finish` are ignored. A number has no more
//! bytes than it needs, and at most 64 bits.
//!
//! Both sides send their hello at once. The version of the frames is 1, the only one so far. A side
//! takes no frame whose body is larger than the frame limit that it has declared. It gives up when
//! nothing has come for its silence, and so the other side sends a heartbeat whenever it has sent
//! nothing for a third of that.
//!
//! The sides finish independently: after `finish` a side half-closes the stream, and goes on
//! receiving. A stream that ends without `finish` has failed, in both directions.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::panic::Location;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pikake_net::{Read, Write};
use pikake_time::{Deadline, Ticks};
use pikake_traps::{
    About, Builder, Interrupted, Task, TimedOut, WaitQueue, clock_rate, now, park_at, take_at,
    timeout_after, try_current,
};

pub use crate::packet_error::PacketError;
use crate::timer::LazyTimer;
use crate::wire::{ALL_FLAGS, Header, MOST_KIND, put_number, take_number};

const MAGIC: [u8; 4] = *b"PKRP";
/// The only version of the frames.
const VERSION: u8 = 1;
/// Says that the sender is alive.
const HEARTBEAT: u8 = MOST_KIND;
/// Says that the sender sends nothing more.
const FINISH: u8 = MOST_KIND - 1;
/// The most bytes of a greeting.
const GREETING_LIMIT: usize = 64 * 1024;
/// The number of heartbeats in the time after which the peer gives up.
const BEATS: u32 = 3;
const LEAST_BEAT: Duration = Duration::from_millis(100);
/// A peer may send heartbeats as rarely as that.
const LEAST_SILENCE: Duration = Duration::from_millis(100 * (BEATS as u64 + 1));
/// The bytes that a reader asks for at first, and again after it was idle.
const LEAST_READ: usize = 1024;
/// More permits than a queue has waiters.
pub(crate) const MANY: usize = usize::MAX / 4;
/// A buffer that has grown beyond this is not kept.
const KEPT_SIZE: usize = 64 * 1024;

/// How packets are sent and received.
///
/// # Examples
///
/// ```
/// use pikake::rpc::packets::PacketOptions;
/// use std::time::Duration;
///
/// let small = PacketOptions::new().frame_limit(64 * 1024).queue_limit(16 * 1024);
/// let patient = small.clone().stall(Duration::from_secs(120));
/// ```
#[derive(Clone, Debug)]
pub struct PacketOptions {
    pub(crate) frame_limit: usize,
    pub(crate) queue_limit: usize,
    pub(crate) silence: Duration,
    pub(crate) stall: Duration,
    pub(crate) greeting: Vec<u8>,
}

impl PacketOptions {
    /// The greatest kind of a packet that users may send. The kinds above are those of the stream.
    pub const MOST_KIND: u8 = FINISH - 1;
    /// The flags that a packet may have.
    pub const ALL_FLAGS: u8 = ALL_FLAGS;

    /// The default options.
    pub fn new() -> Self {
        Self {
            frame_limit: 1024 * 1024,
            queue_limit: 256 * 1024,
            silence: Duration::from_secs(30),
            stall: Duration::from_secs(30),
            greeting: Vec::new(),
        }
    }

    /// The most bytes of a body that this side receives, 1 MiB by default. The peer learns the
    /// limit and sends no larger one. With zero, packets have no body, and no call can be made.
    pub fn frame_limit(mut self, bytes: usize) -> Self {
        self.frame_limit = bytes;
        self
    }

    /// The bytes that may wait to be written before [`PacketWriter::send`] waits, 256 KiB by
    /// default. The last packet may exceed the limit.
    pub fn queue_limit(mut self, bytes: usize) -> Self {
        self.queue_limit = bytes;
        self
    }

    /// After how long without a byte of the peer this side gives up, 30 s by default. The peer
    /// learns the time, and sends a heartbeat whenever it has sent nothing for a third of it. Less
    /// than 400 ms counts as 400 ms.
    ///
    /// Only the time in which a task waits in [`PacketReader::next`] counts.
    pub fn silence(mut self, length: Duration) -> Self {
        self.silence = length;
        self
    }

    /// How long a frame may take to arrive, and how long the peer may take no byte while something
    /// is to be written, 30 s by default. Also the limit of the hello, and of the end of the
    /// stream.
    ///
    /// Only the time in which a task waits in [`PacketReader::next`] counts for a frame. With zero,
    /// the first wait for the peer ends the connection.
    pub fn stall(mut self, length: Duration) -> Self {
        self.stall = length;
        self
    }

    /// Sets the bytes that the peer gets before the first packet, at most 64 KiB.
    /// [`Client`](crate::Client) and [`Server`](crate::Server) have greetings of their own, and
    /// replace these.
    pub fn greeting(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.greeting = bytes.into();
        self
    }
}

impl Default for PacketOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A packet, to be sent or received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Packet<'a> {
    /// The meaning of the packet, at most [`PacketOptions::MOST_KIND`].
    pub kind: u8,
    /// Three bits.
    pub flags: u8,
    /// The number of the conversation that the packet belongs to.
    pub id: u64,
    /// The content.
    pub body: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A packet without flags.
    pub fn new(kind: u8, id: u64, body: &'a [u8]) -> Self {
        Self { kind, flags: 0, id, body }
    }

    /// Sets the flags.
    pub fn with_flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }
}

/// Begins to send and receive packets on a stream: sends the hello, and waits for the peer's.
///
/// A task writes what is sent, joined into few writes. The task ends, and half-closes the stream,
/// when all writers have been dropped and everything is written.
///
/// # Examples
///
/// ```
/// use pikake::net::MemoryStream;
/// use pikake::rpc::packets::{Packet, PacketOptions, open};
///
/// # pikake::sim::example(async {
/// let (here, there) = MemoryStream::pair(4096);
/// let peer = pikake::spawn(async move {
///     let (mut packets, sender) = open(there, PacketOptions::new()).await?;
///     while let Some(packet) = packets.next().await? {
///         sender.send(Packet::new(packet.kind, packet.id, &packet.body.to_ascii_uppercase())).await?;
///     }
///     Ok::<_, pikake::rpc::packets::PacketError>(())
/// });
/// let (mut packets, sender) = open(here, PacketOptions::new()).await?;
/// sender.send(Packet::new(1, 7, b"hello")).await?;
/// let packet = packets.next().await?.unwrap();
/// assert_eq!((packet.id, packet.body), (7, &b"HELLO"[..]));
/// drop(sender);
/// peer.await.unwrap()?;
/// # Ok::<_, pikake::rpc::packets::PacketError>(()) }).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. A call that is dropped or interrupted closes the stream.
///
/// # Errors
///
/// [`PacketError`]; also if the peer is none of this protocol, or of no version in common.
///
/// # Panics
///
/// Outside a task.
pub async fn open<S: Read + Write + 'static>(
    stream: S,
    options: PacketOptions,
) -> Result<(PacketReader<S>, PacketWriter), PacketError> {
    if options.greeting.len() > GREETING_LIMIT {
        return Err(PacketError::TooLarge { size: options.greeting.len(), limit: GREETING_LIMIT });
    }
    let stream = Rc::new(stream);
    let shared: Rc<dyn TryWrite> = stream.clone();
    let out = Rc::new(Outbox::new(&options, Rc::downgrade(&shared)));
    let sender = PacketWriter::new(&out);
    // Made here: a task that is cancelled before its first step ends without one.
    let ended = Ended { out: out.clone(), is_whole: false };
    let writing = write_packets(stream.clone(), ended, options.stall);
    let task = Builder::new().name("packets: writer").spawn(writing);
    out.writer.replace(Some(task));
    let mut reader = PacketReader {
        stream,
        out: out.clone(),
        buffer: Vec::new(),
        taken: 0,
        filled: 0,
        read_size: LEAST_READ,
        silent: Waited { limit: options.silence.max(LEAST_SILENCE), ticks: 0 },
        stalled: Waited { limit: options.stall, ticks: 0 },
        timer: LazyTimer::default(),
        is_finished: false,
        frame_limit: options.frame_limit,
        greeting: Vec::new(),
    };
    let mut opening = Opening(Some(out));
    match timeout_after(options.stall, reader.receive_hello()).await {
        Ok(Ok(())) => {
            opening.0 = None;
            Ok((reader, sender))
        }
        Ok(Err(error)) => Err(reader.fail(error)),
        Err(_) => Err(reader.fail(PacketError::Silent(options.stall))),
    }
}

/// A stream of any type, for writes without a wait.
trait TryWrite {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
}

impl<S: Write> TryWrite for S {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        Write::try_write(self, bytes)
    }
}

/// The wait for the hello. Its drop closes the stream.
struct Opening(Option<Rc<Outbox>>);

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(out) = self.0.take() {
            out.fail(PacketError::Disconnected);
        }
    }
}

/// The bytes that wait to be written, shared by the writers, the task that writes, and the reader.
pub(crate) struct Outbox {
    bytes: RefCell<Vec<u8>>,
    /// The length of the last body.
    last_length: Cell<usize>,
    /// The number of bytes that were queued, of those that were begun to be written, and of those
    /// that were written.
    queued: Cell<u64>,
    begun: Cell<u64>,
    written: Cell<u64>,
    /// When bytes were written last. A heartbeat is due some time later.
    written_at: Cell<Ticks>,
    stream: Weak<dyn TryWrite>,
    /// Those that add packets now, or write them at once when they end.
    holds: Cell<usize>,
    limit: usize,
    /// The most bytes of a body: no more than the peer takes.
    frame_limit: Cell<usize>,
    beat: Cell<Duration>,
    /// The task waits here until there is something to do.
    work: WaitQueue,
    /// The permit of the sender whose turn it is. The others wait for it, the first one first.
    turn: WaitQueue,
    /// The sender whose turn it is waits here.
    room: WaitQueue,
    /// The waits for the end of the task, and for bytes to be written.
    ended: WaitQueue,
    /// The waits for a failure, beside that of the reader.
    failed: WaitQueue,
    writers: Cell<usize>,
    /// The last writer is gone, and everything is written.
    is_finished: Cell<bool>,
    failure: RefCell<Option<PacketError>>,
    /// The wait of the reader.
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Task<()>>>,
}

impl Outbox {
    fn new(options: &PacketOptions, stream: Weak<dyn TryWrite>) -> Self {
        let mut hello = MAGIC.to_vec();
        hello.extend([VERSION, VERSION]);
        put_number(&mut hello, options.frame_limit as u64);
        put_number(&mut hello, u64::try_from(options.silence.as_millis()).unwrap_or(u64::MAX));
        put_number(&mut hello, options.greeting.len() as u64);
        hello.extend(&options.greeting);
        Self {
            queued: Cell::new(hello.len() as u64),
            begun: Cell::new(0),
            written: Cell::new(0),
            written_at: Cell::new(now()),
            bytes: RefCell::new(hello),
            last_length: Cell::new(0),
            stream,
            holds: Cell::new(0),
            limit: options.queue_limit.max(1),
            frame_limit: Cell::new(usize::MAX),
            beat: Cell::new(options.stall),
            work: WaitQueue::new(),
            turn: WaitQueue::with_permits(1),
            room: WaitQueue::new(),
            ended: WaitQueue::new(),
            failed: WaitQueue::new(),
            writers: Cell::new(0),
            is_finished: Cell::new(false),
            failure: RefCell::default(),
            reader: RefCell::default(),
            writer: RefCell::default(),
        }
    }

    /// Queues a packet, however much is queued. Returns its end, in the bytes of the connection.
    pub(crate) fn put<E: From<PacketError>>(
        &self,
        (kind, flags, id): (u8, u8, u64),
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<u64, E> {
        if let Some(failure) = &*self.failure.borrow() {
            return Err(match failure {
                // A packet of the peer was too large, and not this one.
                PacketError::TooLarge { .. } => PacketError::Disconnected.into(),
                failure => failure.clone().into(),
            });
        }
        if self.is_finished.get() {
            return Err(PacketError::Disconnected.into());
        }
        let mut queue = Queue::take(self);
        let bytes = &mut queue.bytes;
        let start = bytes.len();
        // The length is known when the body is written, and most often as large as the last one.
        let header = Header { kind, flags, id, length: self.last_length.get() };
        header.put(bytes);
        let body = bytes.len();
        let before = self.queued.get();
        write(bytes)?;
        let (size, limit) = (bytes.len() - body, self.frame_limit.get());
        if size > limit {
            return Err(PacketError::TooLarge { size, limit }.into());
        }
        header.set_length(size, bytes, start);
        self.last_length.set(size);
        let length = (bytes.len() - start) as u64;
        self.queued.set(self.queued.get() + length);
        queue.end = bytes.len();
        // Packets that `write` has queued follow this one.
        Ok(before + length)
    }

    /// Keeps back the packets that are queued from now on, until the drop of the last hold writes
    /// them. Nobody may wait meanwhile.
    pub(crate) fn hold(&self) -> Hold<'_> {
        self.holds.set(self.holds.get() + 1);
        Hold(self)
    }

    /// Ends a hold. The task writes what is left.
    fn release(&self) {
        self.holds.set(self.holds.get() - 1);
        if self.holds.get() == 0 && !self.bytes.borrow().is_empty() {
            self.work.wake(1);
        }
    }

    /// Writes what the stream takes without a wait, unless the task is writing.
    fn write_at_once(&self) {
        let Some(stream) = self.stream.upgrade() else { return };
        if self.begun != self.written || self.failure.borrow().is_some() {
            return;
        }
        let mut queue = Queue::take(self);
        match stream.try_write(&queue.bytes) {
            Ok(count) => {
                queue.bytes.drain(..count);
                queue.end -= count;
                if queue.end == 0 && queue.bytes.capacity() > KEPT_SIZE {
                    queue.bytes = Vec::new();
                }
                self.begun.set(self.begun.get() + count as u64);
                self.note_written();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                queue.end = 0;
                self.fail(error.into());
            }
        }
    }

    /// Notes that all is written that was begun.
    fn note_written(&self) {
        self.written.set(self.begun.get());
        self.written_at.set(now());
        self.room.wake(1);
        self.ended.wake(usize::MAX);
    }

    /// Sends no bodies that are larger, also if the peer takes them.
    pub(crate) fn limit_frames(&self, limit: usize) {
        self.frame_limit.set(self.frame_limit.get().min(limit));
    }

    /// The bytes that are not written yet.
    fn waiting(&self) -> u64 {
        self.queued.get() - self.written.get()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.waiting() < self.limit as u64
    }

    /// Whether no write was begun of a packet's last byte. `end` is the packet's end.
    pub(crate) fn is_unsent(&self, end: u64) -> bool {
        end > self.begun.get()
    }

    pub(crate) fn failure(&self) -> Option<PacketError> {
        self.failure.borrow().clone()
    }

    /// Waits until there is room, or the connection has failed. Callers get their turn in the order
    /// of their calls.
    pub(crate) async fn wait_for_room(
        &self,
        place: &'static Location<'static>,
    ) -> Result<(), Interrupted> {
        /// Passes the turn on.
        struct Turn<'a>(&'a WaitQueue);

        impl Drop for Turn<'_> {
            fn drop(&mut self) {
                self.0.give(1);
            }
        }

        let is_over = || self.has_room() || self.failure.borrow().is_some();
        if self.turn.free() > 0 && is_over() {
            return Ok(());
        }
        let about =
            || About::new(format!("room to send: {} bytes wait for the peer", self.waiting()));
        take_at((&self.turn, about), 1, place).await?;
        let _turn = Turn(&self.turn);
        while !is_over() {
            park_at((&self.room, about), place).await?;
        }
        Ok(())
    }

    /// Waits until there is room, or the connection has failed, for a caller that sends nothing. It
    /// has no turn, so no sender that nobody polls holds it up.
    pub(crate) async fn wait_until_written(
        &self,
        place: &'static Location<'static>,
    ) -> Result<(), Interrupted> {
        while !self.has_room() && self.failure.borrow().is_none() {
            let about = || About::new(format!("the peer to take {} bytes", self.waiting()));
            park_at((&self.ended, about), place).await?;
        }
        Ok(())
    }

    /// Waits until the connection has failed. For listings, `about` says what goes on meanwhile.
    pub(crate) async fn failed(
        &self,
        place: &'static Location<'static>,
        about: impl Fn() -> About,
    ) -> Result<(), Interrupted> {
        while self.failure.borrow().is_none() {
            park_at((&self.failed, &about), place).await?;
        }
        Ok(())
    }

    /// Ends the connection, unless it has failed before. Returns the first failure.
    pub(crate) fn fail(&self, error: PacketError) -> PacketError {
        let is_first = self.failure.borrow().is_none();
        let first = self.failure.borrow_mut().get_or_insert(error).clone();
        if is_first {
            // Also the senders behind one that nobody polls learn it.
            self.turn.give(MANY);
        }
        self.bytes.take();
        self.room.wake(usize::MAX);
        self.ended.wake(usize::MAX);
        self.work.wake(1);
        if let Some(writer) = &*self.writer.borrow() {
            writer.request_cancel("the connection has failed");
        }
        self.failed.wake(usize::MAX);
        let reader = self.reader.take();
        if let Some(reader) = reader {
            reader.wake();
        }
        first
    }

    /// Has the failure wake the reader.
    fn poll_failed(&self, cx: &Context<'_>) -> Poll<PacketError> {
        if let Some(failure) = self.failure() {
            return Poll::Ready(failure);
        }
        let mut reader = self.reader.borrow_mut();
        if !reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            reader.replace(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Keeps packets back. The drop of the last hold writes them, or has the task write them.
pub(crate) struct Hold<'a>(&'a Outbox);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let out = self.0;
        if out.holds.get() == 1 && !out.bytes.borrow().is_empty() {
            out.write_at_once();
        }
        out.release();
    }
}

/// The bytes that are queued, while a packet is added or some are written. The drop takes half a
/// packet back, as after an error or a panic.
///
/// The code that writes a body may be the user's, and send as well: those packets follow.
struct Queue<'a> {
    out: &'a Outbox,
    bytes: Vec<u8>,
    /// The end of the last whole packet.
    end: usize,
}

impl<'a> Queue<'a> {
    fn take(out: &'a Outbox) -> Self {
        out.holds.set(out.holds.get() + 1);
        let bytes = out.bytes.take();
        Self { out, end: bytes.len(), bytes }
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        self.bytes.truncate(self.end);
        let mut later = self.out.bytes.replace(mem::take(&mut self.bytes));
        if !later.is_empty() {
            self.out.bytes.borrow_mut().append(&mut later);
        }
        self.out.release();
    }
}

/// Sends packets. The clones share a connection.
///
/// The drop of the last one finishes this side, as [`finish`](Self::finish) does.
pub struct PacketWriter(Rc<Outbox>);

impl PacketWriter {
    fn new(out: &Rc<Outbox>) -> Self {
        out.writers.set(out.writers.get() + 1);
        Self(out.clone())
    }

    pub(crate) fn out(&self) -> &Rc<Outbox> {
        &self.0
    }

    /// Queues a packet. Waits while the queue has no room; callers that wait get their turn in the
    /// order of their calls.
    ///
    /// # Examples
    ///
    /// See [`open`].
    ///
    /// # Cancellation
    ///
    /// An interruption point. A call that is dropped or interrupted sends nothing. A call that
    /// waits and that nobody polls holds up the callers behind it, also when there is room again.
    ///
    /// # Errors
    ///
    /// The end of the connection; [`PacketError::TooLarge`], if the peer takes no packet of that
    /// size.
    ///
    /// # Panics
    ///
    /// If the kind or the flags are none of a packet.
    #[track_caller]
    pub fn send<'a>(
        &'a self,
        packet: Packet<'a>,
    ) -> impl Future<Output = Result<(), PacketError>> + 'a {
        let Packet { kind, flags, id, body } = packet;
        assert!(kind <= PacketOptions::MOST_KIND, "{kind} is no kind of a packet");
        assert!(
            flags <= PacketOptions::ALL_FLAGS,
            "{flags} has other flags than those of a packet"
        );
        let place = Location::caller();
        async move {
            self.0.wait_for_room(place).await.map_err(PacketError::Interrupted)?;
            self.0
                .put((kind, flags, id), |bytes| {
                    bytes.extend_from_slice(body);
                    Ok(())
                })
                .map(drop)
        }
    }

    /// Drops this writer, and waits until all is written that was queued before. If it was the last
    /// one, the stream is half-closed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::net::MemoryStream;
    /// use pikake::rpc::packets::{Packet, PacketOptions, open};
    ///
    /// # pikake::sim::example(async {
    /// let (here, there) = MemoryStream::pair(4096);
    /// let peer = pikake::spawn(open(there, PacketOptions::new()));
    /// let (_packets, sender) = open(here, PacketOptions::new()).await?;
    /// let (mut received, _sender) = peer.await.unwrap()?;
    /// sender.send(Packet::new(1, 0, b"the last")).await?;
    /// sender.finish().await?;
    /// assert_eq!(received.next().await?.unwrap().body, b"the last");
    /// assert!(received.next().await?.is_none());
    /// # Ok::<_, pikake::rpc::packets::PacketError>(()) }).unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// An interruption point. What is queued is written all the same.
    ///
    /// # Errors
    ///
    /// The end of the connection.
    #[track_caller]
    pub fn finish(self) -> impl Future<Output = Result<(), PacketError>> {
        let (place, out) = (Location::caller(), self.0.clone());
        drop(self);
        let queued = out.queued.get();
        async move {
            let is_written = || out.writers.get() > 0 && out.written.get() >= queued;
            while out.writer.borrow().is_some() && !is_written() {
                let about = || About::new("the end of what is sent");
                park_at((&out.ended, about), place).await.map_err(PacketError::Interrupted)?;
            }
            out.failure().map_or(Ok(()), Err)
        }
    }
}

impl Clone for PacketWriter {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for PacketWriter {
    fn drop(&mut self) {
        self.0.writers.set(self.0.writers.get() - 1);
        if self.0.writers.get() == 0 {
            self.0.work.wake(1);
        }
    }
}

/// How long the reader has waited. Time in which nobody receives does not count: the bytes may be
/// there.
struct Waited {
    limit: Duration,
    ticks: u64,
}

impl Waited {
    /// When the limit is reached by a wait that begins now.
    fn end(&self, now: Ticks) -> Deadline {
        let limit = clock_rate().ticks_ceil(self.limit);
        Deadline::at(now.saturating_add(limit.saturating_sub(self.ticks)))
    }
}

/// A wait for bytes. Its drop counts the time.
struct WaitForBytes<'a> {
    begun: Ticks,
    silent: &'a mut Waited,
    stalled: &'a mut Waited,
    /// A frame has begun to arrive.
    is_in_frame: bool,
    has_bytes: bool,
}

impl Drop for WaitForBytes<'_> {
    fn drop(&mut self) {
        if self.has_bytes {
            self.silent.ticks = 0;
            if !self.is_in_frame {
                return;
            }
        }
        // A kernel that has ended has no time.
        let ticks = try_current().map_or(0, |_| now().since(self.begun));
        self.silent.ticks += if self.has_bytes { 0 } else { ticks };
        self.stalled.ticks += if self.is_in_frame { ticks } else { 0 };
    }
}

/// Receives packets.
///
/// After its drop nobody receives: the peer waits as soon as the stream's buffers are full. The
/// writers go on.
pub struct PacketReader<S> {
    stream: Rc<S>,
    out: Rc<Outbox>,
    /// The bytes at `taken..filled` have arrived, and were not returned.
    buffer: Vec<u8>,
    taken: usize,
    filled: usize,
    /// The bytes to ask for: more when as many came, fewer when few came.
    read_size: usize,
    /// The wait for any byte.
    silent: Waited,
    /// The wait for the rest of a frame.
    stalled: Waited,
    /// The timer of both.
    timer: LazyTimer,
    is_finished: bool,
    frame_limit: usize,
    greeting: Vec<u8>,
}

impl<S: Read> PacketReader<S> {
    /// The greeting of the peer, which came before the first packet. See
    /// [`PacketOptions::greeting`].
    pub fn greeting(&self) -> &[u8] {
        &self.greeting
    }

    /// The stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Waits for the next packet; `None` when the peer has said that no more follows.
    ///
    /// A peer that takes nothing ends the connection in this direction as well.
    ///
    /// # Examples
    ///
    /// See [`open`].
    ///
    /// # Cancellation
    ///
    /// An interruption point. A call that is dropped or interrupted takes no packet, and no part of
    /// one.
    ///
    /// # Errors
    ///
    /// The end of the connection, in both directions. Interruptions end nothing.
    pub async fn next(&mut self) -> Result<Option<Packet<'_>>, PacketError> {
        let head = loop {
            match self.take_head() {
                Ok(Some(head)) => break head,
                Ok(None) if self.is_finished => return Ok(None),
                Ok(None) => match self.receive().await {
                    Ok(()) => {}
                    Err(error @ PacketError::Interrupted(_)) => return Err(error),
                    Err(error) => return Err(self.fail(error)),
                },
                Err(error) => return Err(self.fail(error)),
            }
        };
        Ok(Some(self.packet(head)))
    }

    /// The next packet, if all of it has arrived.
    pub(crate) fn arrived_packet(&mut self) -> Result<Option<Packet<'_>>, PacketError> {
        match self.take_head() {
            Ok(head) => Ok(head.map(|head| self.packet(head))),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn packet(&self, (header, start): (Header, usize)) -> Packet<'_> {
        let Header { kind, flags, id, length } = header;
        Packet { kind, flags, id, body: &self.buffer[start..start + length] }
    }

    /// Takes the header of the next packet that has arrived, and where its body starts.
    fn take_head(&mut self) -> Result<Option<(Header, usize)>, PacketError> {
        loop {
            match self.take_frame()? {
                Some((header, _)) if header.kind == HEARTBEAT => {}
                Some((header, _)) if header.kind == FINISH => self.is_finished = true,
                Some(_) if self.is_finished => {
                    return Err(PacketError::Malformed("a packet after the last one"));
                }
                frame => return Ok(frame),
            }
        }
    }

    /// The bytes that were not returned.
    fn arrived(&self) -> &[u8] {
        &self.buffer[self.taken..self.filled]
    }

    /// Takes a frame that has arrived: its header, and where its body starts.
    fn take_frame(&mut self) -> Result<Option<(Header, usize)>, PacketError> {
        let arrived = self.arrived();
        let Some((header, size)) = Header::take(arrived)? else { return Ok(None) };
        if header.length > self.frame_limit {
            let (size, limit) = (header.length, self.frame_limit);
            return Err(PacketError::TooLarge { size, limit });
        }
        if arrived.len() - size < header.length {
            return Ok(None);
        }
        let start = self.taken + size;
        self.taken = start + header.length;
        self.stalled.ticks = 0;
        Ok(Some((header, start)))
    }

    /// Waits for bytes. A drop loses none.
    async fn receive(&mut self) -> Result<(), PacketError> {
        if self.taken > 0 {
            self.buffer.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
        }
        let filled = self.filled;
        if filled == 0 && self.buffer.len() > 2 * self.read_size {
            self.buffer = Vec::new();
        }
        // The buffer grows with what has arrived, not with the length that the peer declares.
        let rest = match Header::take(&self.buffer[..filled]) {
            Ok(Some((header, size))) => header.length.saturating_add(size).saturating_sub(filled),
            _ => 0,
        };
        let room = rest.min(filled).max(self.read_size);
        if self.buffer.len() < filled + room {
            self.buffer.resize(filled + room, 0);
        }
        let begun = now();
        let silent = self.silent.end(begun);
        let is_in_frame = filled > 0;
        let stalled = if is_in_frame { self.stalled.end(begun) } else { Deadline::NEVER };
        let mut wait = WaitForBytes {
            begun,
            silent: &mut self.silent,
            stalled: &mut self.stalled,
            is_in_frame,
            has_bytes: false,
        };
        let mut read = pin!(self.stream.read(&mut self.buffer[filled..filled + room]));
        let read = poll_fn(|cx| match read.as_mut().poll(cx) {
            Poll::Ready(read) => Poll::Ready(read.map_err(PacketError::from)),
            Poll::Pending => self.out.poll_failed(cx).map(Err),
        });
        match self.timer.wait(silent.min(stalled), read).await {
            Some(Ok(0)) => Err(PacketError::Disconnected),
            Some(Ok(count)) => {
                self.filled += count;
                if count == room {
                    self.read_size = (2 * self.read_size).min(KEPT_SIZE);
                } else if count < self.read_size / 4 {
                    self.read_size = (self.read_size / 2).max(LEAST_READ);
                }
                wait.has_bytes = true;
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None if stalled < silent => Err(PacketError::Stalled(wait.stalled.limit)),
            None => Err(PacketError::Silent(wait.silent.limit)),
        }
    }

    async fn receive_hello(&mut self) -> Result<(), PacketError> {
        loop {
            match self.take_hello()? {
                true => return Ok(()),
                false => self.receive().await?,
            }
        }
    }

    /// Takes the peer's hello, if all of it has arrived.
    fn take_hello(&mut self) -> Result<bool, PacketError> {
        let arrived = self.arrived();
        let known = arrived.len().min(MAGIC.len());
        if arrived[..known] != MAGIC[..known] {
            return Err(PacketError::Foreign);
        }
        let Some((&[lowest, highest], mut rest)) =
            arrived[known..].split_first_chunk::<2>().filter(|_| known == MAGIC.len())
        else {
            return Ok(false);
        };
        if !(lowest..=highest).contains(&VERSION) {
            return Err(PacketError::Version { lowest, highest });
        }
        let (Some(frame_limit), Some(silence), Some(length)) =
            (take_number(&mut rest)?, take_number(&mut rest)?, take_number(&mut rest)?)
        else {
            return Ok(false);
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > GREETING_LIMIT {
            return Err(PacketError::TooLarge { size: length, limit: GREETING_LIMIT });
        }
        let Some((greeting, rest)) = rest.split_at_checked(length) else { return Ok(false) };
        let (greeting, taken) = (greeting.to_vec(), arrived.len() - rest.len());
        self.greeting = greeting;
        self.taken += taken;
        self.stalled.ticks = 0;
        self.out.frame_limit.set(usize::try_from(frame_limit).unwrap_or(usize::MAX));
        let beat = Duration::from_millis(silence) / BEATS;
        self.out.beat.set(beat.max(LEAST_BEAT));
        // The task waits for the time before the hello.
        self.out.work.wake(1);
        Ok(true)
    }

    /// Ends the connection in both directions.
    pub(crate) fn fail(&self, error: PacketError) -> PacketError {
        self.out.fail(error)
    }
}

impl fmt::Debug for PacketWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketWriter").field("queued", &self.0.waiting()).finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for PacketReader<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffered = self.filled - self.taken;
        f.debug_struct("PacketReader").field("buffered", &buffered).finish_non_exhaustive()
    }
}

/// Writes what is queued, until all writers are gone or the connection has failed.
async fn write_packets<S: Write>(stream: Rc<S>, mut ended: Ended, stall: Duration) {
    match write_until_end(&*stream, &ended.out, stall).await {
        Ok(()) => ended.is_whole = true,
        // Of this task, not of those that send and receive.
        Err(PacketError::Interrupted(_)) => {}
        Err(error) => drop(ended.out.fail(error)),
    }
}

/// Notes the end of the task that writes, also by an abort.
struct Ended {
    out: Rc<Outbox>,
    /// The last byte is written.
    is_whole: bool,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let out = &self.out;
        let task = out.writer.take();
        if !self.is_whole {
            out.fail(PacketError::Disconnected);
        }
        out.ended.wake(usize::MAX);
        drop(task);
    }
}

async fn write_until_end<S: Write>(
    stream: &S,
    out: &Outbox,
    stall: Duration,
) -> Result<(), PacketError> {
    let place = Location::caller();
    let (mut writing, mut timer) = (Vec::new(), LazyTimer::default());
    loop {
        if let Some(failure) = out.failure() {
            return Err(failure);
        }
        mem::swap(&mut writing, &mut *out.bytes.borrow_mut());
        if !writing.is_empty() {
            out.begun.set(out.begun.get() + writing.len() as u64);
            write_bytes(stream, &writing, stall).await?;
            out.note_written();
            match writing.capacity() > KEPT_SIZE {
                true => writing = Vec::new(),
                false => writing.clear(),
            }
            continue;
        }
        if out.writers.get() == 0 {
            break;
        }
        let about = || About::new("packets to send");
        let beat = out.written_at.get().saturating_add(clock_rate().ticks_ceil(out.beat.get()));
        match timer.wait(Deadline::at(beat), park_at((&out.work, about), place)).await {
            Some(woken) => woken.map_err(PacketError::Interrupted)?,
            None => {
                // An idle connection keeps no buffers.
                writing = Vec::new();
                out.bytes.take();
                out.put((HEARTBEAT, 0, 0), |_| Ok::<_, PacketError>(()))?;
            }
        }
    }
    out.is_finished.set(true);
    Header { kind: FINISH, flags: 0, id: 0, length: 0 }.put(&mut writing);
    write_bytes(stream, &writing, stall).await?;
    match timeout_after(stall, stream.finish()).await {
        Ok(finished) => finished.map_err(PacketError::from),
        Err(_) => Err(PacketError::Stalled(stall)),
    }
}

/// Writes all bytes. The peer must take some in each `stall`.
async fn write_bytes<S: Write>(
    stream: &S,
    mut bytes: &[u8],
    stall: Duration,
) -> Result<(), PacketError> {
    while !bytes.is_empty() {
        match within(stall, stream.write(bytes)).await {
            Ok(Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
            Ok(Ok(count)) => bytes = &bytes[count..],
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err(PacketError::Stalled(stall)),
        }
    }
    match within(stall, stream.flush()).await {
        Ok(flushed) => flushed.map_err(PacketError::from),
        Err(_) => Err(PacketError::Stalled(stall)),
    }
}

/// Waits for a future for so long. One that is ready at once needs no timer.
async fn within<F: Future>(length: Duration, future: F) -> Result<F::Output, TimedOut> {
    let mut future = pin!(future);
    match poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => timeout_after(length, future).await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pikake_net::{MemoryStream, UnixStream, Write};
    use pikake_traps::{spawn, timeout_after};

    use super::{KEPT_SIZE, LEAST_READ, PacketError, PacketOptions, open};
    use crate::wire::Header;

    fn frame(length: usize, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Header { kind: 1, flags: 0, id: 1, length }.put(&mut bytes);
        [&bytes, body].concat()
    }

    #[test]
    fn buffers_have_the_size_of_what_comes() {
        pikake::sim::example(async {
            let (here, there) = MemoryStream::pair(10_000_000);
            let peer = spawn(open(there, PacketOptions::new()));
            let (mut packets, _sender) = open(here, PacketOptions::new()).await.unwrap();
            let (peer, _peer_sender) = peer.await.unwrap().unwrap();
            // The declared length is within the limit, and nothing of it comes.
            peer.stream().write_all(&frame(1_000_000, &[0; 10])).await.unwrap();
            assert!(timeout_after(Duration::from_secs(1), packets.next()).await.is_err());
            assert!(packets.buffer.capacity() <= 4 * LEAST_READ, "{}", packets.buffer.capacity());
            peer.stream().write_all(&vec![0; 1_000_000 - 10]).await.unwrap();
            assert_eq!(packets.next().await.unwrap().unwrap().body.len(), 1_000_000);
            // A connection that has little to do gives the memory back.
            for _ in 0..20 {
                peer.stream().write_all(&frame(1, &[0])).await.unwrap();
                assert_eq!(packets.next().await.unwrap().unwrap().body.len(), 1);
            }
            assert!(timeout_after(Duration::from_secs(1), packets.next()).await.is_err());
            assert!(packets.buffer.capacity() <= 2 * LEAST_READ, "{}", packets.buffer.capacity());
            assert!(packets.read_size <= KEPT_SIZE);
        });
    }

    /// The task has taken bytes, and has not written them.
    #[test]
    fn no_packet_overtakes_the_task_that_writes() {
        pikake::run(async {
            let (here, there) = UnixStream::pair().unwrap();
            let peer = spawn(open(there, PacketOptions::new()));
            let (_packets, sender) = open(here, PacketOptions::new()).await.unwrap();
            let (mut peer, _peer_sender) = peer.await.unwrap().unwrap();
            let out = sender.out();
            let is_queued = || !out.bytes.borrow().is_empty();
            let hold = out.hold();
            out.begun.set(out.written.get() + 1);
            out.put((1, 0, 7), |_| Ok::<_, PacketError>(())).unwrap();
            drop(hold);
            assert!(is_queued());
            out.begun.set(out.written.get());
            drop(out.hold());
            assert!(!is_queued());
            assert_eq!(peer.next().await.unwrap().unwrap().id, 7);
        });
    }

    /// The bytes of a packet that the code of another one's body has queued follow that one.
    #[test]
    fn a_packet_ends_before_those_that_its_body_has_queued() {
        pikake::run(async {
            let (here, there) = UnixStream::pair().unwrap();
            let peer = spawn(open(there, PacketOptions::new()));
            let (_packets, sender) = open(here, PacketOptions::new()).await.unwrap();
            let _peer = peer.await.unwrap().unwrap();
            let out = sender.out();
            let _hold = out.hold();
            let mut inner = Ok(0);
            let outer = out.put((1, 0, 1), |bytes| {
                bytes.extend([0; 10]);
                inner = out.put((1, 0, 2), |bytes| {
                    bytes.extend([0; 100]);
                    Ok::<_, PacketError>(())
                });
                Ok::<_, PacketError>(())
            });
            let (outer, _) = (outer.unwrap(), inner.unwrap());
            // A short write has taken the outer packet, and a byte more.
            out.begun.set(outer + 1);
            assert!(!out.is_unsent(outer));
            out.begun.set(outer - 1);
            assert!(out.is_unsent(outer));
        });
    }
}
