//! A TLS stream: rustls between a program and the stream that carries its records, the *carrier*.
//!
//! rustls does no I/O. This stream passes it the bytes that arrive and sends its records. Two
//! buffers of the stream are in between, and outlive every wait:
//!
//! ```text
//!   carrier ──read──▶ incoming ──▶ rustls ──▶ plaintext ──▶ read
//!   carrier ◀──write── outgoing ◀── rustls ◀── plaintext ◀── write
//! ```
//!
//! So an interrupted wait keeps half a record in its buffer. A record cannot be taken back: its
//! plaintext counts as written, and an error while it is sent has the number of bytes.
//!
//! The two directions share only rustls, which is not borrowed during waits: one task may read
//! while another writes.
//!
//! All of this is in [`Inner`]. A [`TlsStream`] and the waits of its poll-based traits share it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use pikake_traps::{Direction, ResourceBusy, shield};
use rustls::pki_types::CertificateDer;
use rustls::{Connection, Writer};

use crate::buffered::{ReadBuffer, fill};
use crate::chunk::{give_memory, take_memory};
use crate::error::{ReadExactError, WriteAllError};
use crate::read_write::{Read, Write, read_exact};
#[cfg(feature = "io-traits")]
use crate::tls::polled::Waits;

/// Records to send; those before `sent` are sent.
#[derive(Default)]
struct Outgoing {
    records: Vec<u8>,
    sent: usize,
}

/// The records while a call sends them. Its drop puts them back.
struct Sending<'a> {
    slot: &'a Cell<Option<Outgoing>>,
    outgoing: Outgoing,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.slot.set(Some(std::mem::take(&mut self.outgoing)));
    }
}

/// A TLS connection on a stream, from a [`TlsConnector`](crate::tls::TlsConnector) or
/// [`TlsAcceptor`](crate::tls::TlsAcceptor).
///
/// Its methods take `&self`, as those of sockets: to read and write in two tasks, share it in an
/// [`Rc`](std::rc::Rc).
///
/// # The end
///
/// TLS ends with a message (`close_notify`), to distinguish an end from a truncation.
/// [`finish`](Self::finish) sends it. If a peer closes its connection without that message, reads
/// fail with [`UnexpectedEof`](io::ErrorKind::UnexpectedEof). A drop never waits and sends no
/// `close_notify`, so the peer gets such an error.
///
/// # Other libraries
///
/// With the feature `io-traits`, the stream implements the traits of `tokio::io`
/// and `futures_io`. Their `poll_write` returns once the data is encrypted, and sends as much as
/// the carrier takes. The rest is sent by the next write, by a flush, or by the end of the stream:
/// a program that waits for an answer flushes first. A dropped future of these traits loses no
/// bytes.
pub struct TlsStream<S> {
    pub(super) inner: Rc<Inner<S>>,
    #[cfg(feature = "io-traits")]
    pub(super) waits: Waits,
}

/// What a stream and its waits share.
pub(super) struct Inner<S> {
    pub(super) carrier: S,
    tls: RefCell<Connection>,
    incoming: RefCell<ReadBuffer>,
    /// `None` while a call sends.
    outgoing: Cell<Option<Outgoing>>,
    /// Whether `close_notify` was sent or waits to be sent.
    is_finished: Cell<bool>,
    /// Whether the peer's records are invalid; rustls then repeats its error.
    has_failed: Cell<bool>,
}

impl<S> TlsStream<S> {
    pub(crate) fn new(carrier: S, tls: Connection) -> Self {
        let inner = Inner {
            carrier,
            tls: RefCell::new(tls),
            incoming: RefCell::default(),
            outgoing: Cell::new(Some(Outgoing::default())),
            is_finished: Cell::new(false),
            has_failed: Cell::new(false),
        };
        Self {
            inner: Rc::new(inner),
            #[cfg(feature = "io-traits")]
            waits: Waits::default(),
        }
    }

    /// Drops an abandoned wait of a poll-based trait, since a new operation of its direction
    /// begins.
    fn begin(&self, direction: Direction) {
        #[cfg(feature = "io-traits")]
        self.waits.abandon(direction);
        #[cfg(not(feature = "io-traits"))]
        let _ = direction;
    }

    /// The carrier.
    pub fn get_ref(&self) -> &S {
        &self.inner.carrier
    }

    /// The negotiated protocol (ALPN), as `b"h2"`.
    pub fn alpn_protocol(&self) -> Option<Vec<u8>> {
        self.inner.tls.borrow().alpn_protocol().map(<[u8]>::to_vec)
    }

    /// The server name that the client requested (SNI); `None` on a client's stream.
    pub fn server_name(&self) -> Option<String> {
        match &*self.inner.tls.borrow() {
            Connection::Server(server) => server.server_name().map(str::to_owned),
            Connection::Client(_) => None,
        }
    }

    /// The certificates of the peer, its own first; none if no certificate was requested or sent.
    pub fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        self.inner.tls.borrow().peer_certificates().map(<[_]>::to_vec).unwrap_or_default()
    }

    /// The version and the cipher as text: `TLSv1_3, TLS13_AES_256_GCM_SHA384`.
    pub fn description(&self) -> String {
        let tls = self.inner.tls.borrow();
        let version = tls.protocol_version().map(|version| format!("{version:?}"));
        let cipher = tls.negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()));
        [version, cipher].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl<S: Read + Write> TlsStream<S> {
    /// Reads some bytes, waiting until there are any. Returns 0 at the end, after the peer's
    /// `close_notify`.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is nothing to read. A read that is dropped or interrupted
    /// takes no bytes.
    ///
    /// # Errors
    ///
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the connection was cut;
    /// [`InvalidData`](io::ErrorKind::InvalidData) for invalid TLS; the carrier's error; the
    /// interruption.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.begin(Direction::Read);
        loop {
            if let Some(read) = self.inner.read_plaintext(buffer) {
                return read;
            }
            self.inner.receive().await?;
            if self.inner.has_an_answer() {
                self.inner.drain().await?;
            }
        }
    }

    /// Reads until the buffer is full.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The error of an interruption has the number of bytes read; a drop
    /// loses it.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read), with the number of bytes that were read.
    pub async fn read_exact(&self, buffer: &mut [u8]) -> Result<(), ReadExactError> {
        read_exact(self, buffer).await
    }

    /// Writes some of the data, waiting until the carrier has taken it, and returns the number of
    /// bytes.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interrupted write has written nothing, unless its error contains a
    /// [`WriteAllError`] with the number of bytes; these are sent with the next write or by
    /// [`flush`](Self::flush). A drop loses the number.
    ///
    /// # Errors
    ///
    /// The carrier's error; the interruption; [`ResourceBusy`] if another task is writing;
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe) after [`finish`](Self::finish).
    pub async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.begin(Direction::Write);
        self.inner.drain().await?;
        let written = self.inner.write_plaintext(|writer| writer.write(data))?;
        match self.inner.drain().await {
            Ok(()) => Ok(written),
            Err(source) => Err(WriteAllError { written, source }.into()),
        }
    }

    /// Writes all of the data.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The error of an interruption has the number of bytes that count as
    /// written, as for [`write`](Self::write); a drop loses it.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write), with the number of bytes that were written.
    pub async fn write_all(&self, data: &[u8]) -> Result<(), WriteAllError> {
        Write::write_all(self, data).await
    }

    /// Sends the records that an interrupted [`write`](Self::write) has left.
    ///
    /// # Cancellation
    ///
    /// An interruption point; a drop loses nothing.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub async fn flush(&self) -> io::Result<()> {
        self.begin(Direction::Write);
        self.inner.drain().await?;
        self.inner.carrier.flush().await
    }

    /// Sends `close_notify` and ends this direction of the carrier. The other direction continues.
    ///
    /// # Cancellation
    ///
    /// An interruption point; a second call sends the rest.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub async fn finish(&self) -> io::Result<()> {
        self.begin(Direction::Write);
        self.inner.say_goodbye();
        self.inner.drain().await?;
        self.inner.carrier.finish().await
    }

    /// Exchanges records until the handshake is complete.
    pub(crate) async fn shake_hands(&self) -> io::Result<()> {
        self.inner.shake_hands().await
    }
}

impl<S: Read + Write> Inner<S> {
    /// Exchanges records until the handshake is complete.
    async fn shake_hands(&self) -> io::Result<()> {
        loop {
            self.drain().await?;
            if !self.tls.borrow().is_handshaking() {
                return Ok(());
            }
            if self.receive().await? == 0 {
                let text = "the peer closed the connection in the middle of the handshake";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
        }
    }

    /// Reads decrypted bytes; `None` until more records are received.
    pub(super) fn read_plaintext(&self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        if buffer.is_empty() {
            return Some(Ok(0));
        }
        plaintext(self.tls.borrow_mut().reader().read(buffer))
    }

    /// Reads decrypted bytes of one record into a buffer that need not be initialized; `None` until
    /// more records are received.
    #[cfg(feature = "io-traits")]
    pub(super) fn put_plaintext(
        &self,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Option<io::Result<()>> {
        let mut tls = self.tls.borrow_mut();
        let mut reader = tls.reader();
        let put = reader.fill_buf().map(|bytes| {
            let length = bytes.len().min(buffer.remaining());
            buffer.put_slice(&bytes[..length]);
            length
        });
        plaintext(put).map(|length| length.map(|length| reader.consume(length)))
    }

    /// Whether a read needs nothing from the carrier.
    fn is_readable(&self) -> bool {
        let mut tls = self.tls.borrow_mut();
        self.has_failed.get()
            || !self.incoming.borrow().is_empty()
            || plaintext(tls.reader().fill_buf()).is_some()
    }

    /// Encrypts bytes. `write` passes them to rustls.
    pub(super) fn write_plaintext(
        &self,
        write: impl FnOnce(&mut Writer<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.is_finished.get() {
            let text = "a write after the end of the TLS stream";
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, text));
        }
        write(&mut self.tls.borrow_mut().writer())
    }

    /// Adds `close_notify` to the records to send.
    pub(super) fn say_goodbye(&self) {
        self.is_finished.set(true);
        self.tls.borrow_mut().send_close_notify();
    }

    /// Passes received bytes to rustls, waiting until there are any; 0 at the end of the carrier.
    async fn receive(&self) -> io::Result<usize> {
        self.fill().await?;
        self.process().await
    }

    /// Waits until there are received bytes to pass to rustls, or the carrier has ended.
    pub(super) async fn fill(&self) -> io::Result<()> {
        match self.has_failed.get() || !self.incoming.borrow().is_empty() {
            true => Ok(()),
            false => fill(&self.incoming, &self.carrier, 0).await.map(drop),
        }
    }

    /// Passes received bytes to rustls; 0 at the end of the carrier. Does not wait.
    pub(super) async fn process(&self) -> io::Result<usize> {
        let processed = {
            let (mut tls, mut incoming) = (self.tls.borrow_mut(), self.incoming.borrow_mut());
            // rustls repeats its error. It must not be given an end, which it would report instead.
            let length = match self.has_failed.get() {
                true => 0,
                false => tls.read_tls(&mut &incoming[..])?,
            };
            incoming.advance(length);
            if length == 0 && !self.has_failed.get() {
                return Ok(0);
            }
            tls.process_new_packets().map(|_| length)
        };
        match processed {
            Ok(length) => Ok(length),
            Err(error) => {
                self.has_failed.set(true);
                // Sends the alert, as far as possible without waiting.
                self.drain_without_waiting().await;
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
        }
    }

    /// Whether a reader has to send something: the answer to a key update. A call that is sending
    /// already sends it too.
    pub(super) fn has_an_answer(&self) -> bool {
        let outgoing = self.outgoing.take();
        let is_sending = outgoing.is_none();
        self.outgoing.set(outgoing);
        !is_sending && self.tls.borrow().wants_write()
    }

    /// Sends all records.
    pub(super) async fn drain(&self) -> io::Result<()> {
        let Some(outgoing) = self.outgoing.take() else {
            return Err(ResourceBusy(Direction::Write).into());
        };
        let mut sending = Sending { slot: &self.outgoing, outgoing };
        while self.refill(&mut sending.outgoing)? {
            let Outgoing { records, sent } = &mut sending.outgoing;
            match self.carrier.write(&records[*sent..]).await {
                Ok(0) => return Err(WriteAllError::no_room(0).source),
                Ok(length) => *sent += length,
                Err(error) => {
                    *sent += WriteAllError::written_in(&error);
                    return Err(without_count(error));
                }
            }
        }
        Ok(())
    }

    /// Has records to send, if there are any: those that are left, or else the next of rustls.
    fn refill(&self, outgoing: &mut Outgoing) -> io::Result<bool> {
        let Outgoing { records, sent } = outgoing;
        if *sent < records.len() {
            return Ok(true);
        }
        *sent = 0;
        records.clear();
        let mut tls = self.tls.borrow_mut();
        if !tls.wants_write() {
            give_memory(std::mem::take(records));
            return Ok(false);
        }
        if records.capacity() == 0 {
            *records = take_memory();
        }
        while tls.wants_write() {
            tls.write_tls(records)?;
        }
        Ok(true)
    }

    /// Sends all records that the carrier takes without a wait, and returns whether these were all.
    #[cfg(feature = "io-traits")]
    pub(super) fn try_drain(&self) -> io::Result<bool> {
        let Some(outgoing) = self.outgoing.take() else { return Ok(false) };
        let mut sending = Sending { slot: &self.outgoing, outgoing };
        while self.refill(&mut sending.outgoing)? {
            let Outgoing { records, sent } = &mut sending.outgoing;
            match self.carrier.try_write(&records[*sent..]) {
                Ok(0) => return Err(WriteAllError::no_room(0).source),
                Ok(length) => *sent += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    async fn drain_without_waiting(&self) {
        // Shielded: the attempt returns no error, so it must not collect an interruption.
        let mut draining = pin!(shield(self.drain()));
        poll_fn(|cx| {
            let _ = draining.as_mut().poll(cx);
            Poll::Ready(())
        })
        .await;
    }
}

/// The result of a read from rustls; `None` until more records are received.
fn plaintext<T>(read: io::Result<T>) -> Option<io::Result<T>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Some(Err(cut())),
        result => Some(result),
    }
}

/// An error without the count of the carrier's bytes, which are records and not plaintext.
fn without_count(error: io::Error) -> io::Error {
    match error.downcast::<WriteAllError>() {
        Ok(inside) => inside.source,
        Err(error) => error,
    }
}

#[cold]
fn cut() -> io::Error {
    let text = "the TLS stream was cut: the connection was closed without `close_notify`, so more \
                may have been sent";
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

impl<S: Read + Write> Read for TlsStream<S> {
    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Self::read(self, buffer).await
    }

    async fn readable(&self) -> io::Result<()> {
        match self.inner.is_readable() {
            true => Ok(()),
            false => self.inner.carrier.readable().await,
        }
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    async fn write(&self, data: &[u8]) -> io::Result<usize> {
        Self::write(self, data).await
    }

    async fn flush(&self) -> io::Result<()> {
        Self::flush(self).await
    }

    async fn finish(&self) -> io::Result<()> {
        Self::finish(self).await
    }
}

impl<S: fmt::Debug> fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream")
            .field("carrier", &self.inner.carrier)
            .field("tls", &self.description())
            .finish_non_exhaustive()
    }
}
