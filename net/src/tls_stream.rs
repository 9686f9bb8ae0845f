//! A stream inside of a stream: rustls between a program and what carries its bytes.
//!
//! rustls does no I/O. It is fed what arrives, and asked for what is to go out, and in between
//! are two buffers, which are the stream's and outlive every wait:
//!
//! ```text
//!   carrier ──read──▶ incoming ──▶ rustls ──▶ plaintext ──▶ read
//!   carrier ◀──write── outgoing ◀── rustls ◀── plaintext ◀── write
//! ```
//!
//! So a wait that is interrupted leaves half a record where it was. The one thing that cannot be
//! taken back is a record that was made: plaintext that has gone into it counts as written, and an
//! error that comes while it is sent says how much that was.
//!
//! The two directions share rustls, which is borrowed between waits only, and nothing else: one task
//! may read while another writes.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, Read as _, Write as _};
use std::pin::pin;
use std::task::Poll;

use pikake_traps::{Direction, ResourceBusy, shield};
use rustls::Connection;
use rustls::pki_types::CertificateDer;

use crate::buffered::{Buffer, fill};
use crate::error::{ReadExactError, WriteAllError};
use crate::read_write::{Read, Write};

/// Records that were made and not sent, from `sent` on.
#[derive(Default)]
struct Outgoing {
    records: Vec<u8>,
    sent: usize,
}

/// What is to be sent, while somebody sends it. It is put back however that ends.
struct Sending<'a> {
    home: &'a Cell<Option<Outgoing>>,
    outgoing: Outgoing,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.home.set(Some(std::mem::take(&mut self.outgoing)));
    }
}

/// A TLS connection on a stream. Made by a [`TlsConnector`](crate::tls::TlsConnector) or
/// [`TlsAcceptor`](crate::tls::TlsAcceptor).
///
/// It takes `&self` as sockets do: to read and write in two tasks, share it in an
/// [`Rc`](std::rc::Rc).
///
/// # The end
///
/// TLS says goodbye (`close_notify`), so that an end can be told from a cut. [`finish`](Self::finish)
/// says it. A peer that closes its connection without is an error here,
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof), and so is this side to the peer when the stream
/// is dropped without: dropping never waits.
pub struct TlsStream<S> {
    carrier: S,
    tls: RefCell<Connection>,
    incoming: RefCell<Buffer>,
    /// `None` while somebody sends.
    outgoing: Cell<Option<Outgoing>>,
}

impl<S> TlsStream<S> {
    pub(crate) fn new(carrier: S, tls: Connection) -> Self {
        let outgoing = Cell::new(Some(Outgoing::default()));
        Self { carrier, tls: RefCell::new(tls), incoming: RefCell::default(), outgoing }
    }

    /// What carries it.
    pub fn get_ref(&self) -> &S {
        &self.carrier
    }

    /// The protocol that was agreed upon (ALPN), as `b"h2"`.
    pub fn alpn_protocol(&self) -> Option<Vec<u8>> {
        self.tls.borrow().alpn_protocol().map(<[u8]>::to_vec)
    }

    /// The name that the client wanted to speak to (SNI); of a client's own stream, `None`.
    pub fn server_name(&self) -> Option<String> {
        match &*self.tls.borrow() {
            Connection::Server(server) => server.server_name().map(str::to_owned),
            Connection::Client(_) => None,
        }
    }

    /// The certificates that the peer has shown, its own first; none if it was not asked for any.
    pub fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        self.tls.borrow().peer_certificates().map(<[_]>::to_vec).unwrap_or_default()
    }

    /// The version and the cipher, for people: `TLSv1_3, TLS13_AES_256_GCM_SHA384`.
    pub fn description(&self) -> String {
        let tls = self.tls.borrow();
        let version = tls.protocol_version().map(|version| format!("{version:?}"));
        let cipher = tls.negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()));
        [version, cipher].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl<S: Read + Write> TlsStream<S> {
    /// Reads what there is, waiting until there is something. 0 is the end that the peer has said.
    ///
    /// # Cancellation
    ///
    /// An interruption point while nothing is there. Dropped or interrupted, it has taken no bytes.
    ///
    /// # Errors
    ///
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the connection was cut;
    /// [`InvalidData`](io::ErrorKind::InvalidData) for what is no TLS; what the carrier reports; the
    /// interruption.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match self.tls.borrow_mut().reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(cut()),
                result => return result,
            }
            self.receive().await?;
            // As an answer to new keys. If somebody sends already, it goes with that.
            if self.tls.borrow().wants_write() && !self.is_sending() {
                self.drain().await?;
            }
        }
    }

    /// Reads until the buffer is full.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted, the error says how many bytes are in the buffer. Dropped,
    /// nobody knows.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read), with the number of bytes that were read.
    pub async fn read_exact(&self, buffer: &mut [u8]) -> Result<(), ReadExactError> {
        let mut read = 0;
        while read < buffer.len() {
            match self.read(&mut buffer[read..]).await {
                Ok(0) => return Err(ReadExactError::at_end(read)),
                Ok(more) => read += more,
                Err(source) => return Err(ReadExactError { read, source }),
            }
        }
        Ok(())
    }

    /// Writes some of the data, waiting until the carrier has taken it, and tells how much it was.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted, nothing was written, unless there is a [`WriteAllError`]
    /// in the error, which says how much was; that is then sent with what is written next, or by
    /// [`flush`](Self::flush). Dropped, nobody knows.
    ///
    /// # Errors
    ///
    /// What the carrier reports; the interruption; [`ResourceBusy`] if another task is writing.
    pub async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.drain().await?;
        let written = self.tls.borrow_mut().writer().write(data)?;
        match self.drain().await {
            Ok(()) => Ok(written),
            Err(source) => Err(WriteAllError { written, source }.into()),
        }
    }

    /// Writes all of the data.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted, the error says how many bytes count as written, as for
    /// [`write`](Self::write). Dropped, nobody knows.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write), with the number of bytes that were written.
    pub async fn write_all(&self, data: &[u8]) -> Result<(), WriteAllError> {
        Write::write_all(self, data).await
    }

    /// Has the carrier take what an interrupted [`write`](Self::write) has left.
    ///
    /// # Cancellation
    ///
    /// An interruption point; nothing is lost.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub async fn flush(&self) -> io::Result<()> {
        self.drain().await?;
        self.carrier.flush().await
    }

    /// Says goodbye (`close_notify`), and ends this direction of the carrier. What the peer still
    /// sends can be read.
    ///
    /// # Cancellation
    ///
    /// An interruption point; what is left to be sent is sent when it is called again.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub async fn finish(&self) -> io::Result<()> {
        self.tls.borrow_mut().send_close_notify();
        self.drain().await?;
        self.carrier.finish().await
    }

    /// Exchanges what it takes until both sides have keys.
    pub(crate) async fn shake_hands(&self) -> io::Result<()> {
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

    /// Passes on to rustls what has arrived, waiting for it if need be; 0 if it was the end.
    async fn receive(&self) -> io::Result<usize> {
        if self.incoming.borrow().bytes().is_empty()
            && fill(&self.incoming, &self.carrier).await? == 0
        {
            return self.tls.borrow_mut().read_tls(&mut io::empty());
        }
        let processed = {
            let (mut tls, mut incoming) = (self.tls.borrow_mut(), self.incoming.borrow_mut());
            let length = tls.read_tls(&mut incoming.bytes())?;
            incoming.consume(length);
            tls.process_new_packets().map(|_| length)
        };
        match processed {
            Ok(length) => Ok(length),
            Err(error) => {
                // The alert that says so, as far as it can be sent without waiting.
                self.drain_at_once().await;
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
        }
    }

    fn is_sending(&self) -> bool {
        let outgoing = self.outgoing.take();
        let is_sending = outgoing.is_none();
        self.outgoing.set(outgoing);
        is_sending
    }

    /// Sends all records that were made.
    async fn drain(&self) -> io::Result<()> {
        let Some(outgoing) = self.outgoing.take() else {
            return Err(ResourceBusy(Direction::Write).into());
        };
        let mut sending = Sending { home: &self.outgoing, outgoing };
        loop {
            let Outgoing { records, sent } = &mut sending.outgoing;
            if *sent == records.len() {
                *sent = 0;
                records.clear();
                let mut tls = self.tls.borrow_mut();
                while tls.wants_write() {
                    tls.write_tls(records)?;
                }
                if records.is_empty() {
                    return Ok(());
                }
            }
            match self.carrier.write(&records[*sent..]).await {
                Ok(0) => return Err(WriteAllError::no_room(0).source),
                Ok(length) => *sent += length,
                Err(error) => {
                    *sent += WriteAllError::written_in(&error);
                    return Err(bare(error));
                }
            }
        }
    }

    async fn drain_at_once(&self) {
        // An interruption is not for this attempt, which nobody hears of.
        let mut draining = pin!(shield(self.drain()));
        poll_fn(|cx| {
            let _ = draining.as_mut().poll(cx);
            Poll::Ready(())
        })
        .await;
    }
}

/// An error without the count of the carrier's bytes, which are records and nobody's data.
fn bare(error: io::Error) -> io::Error {
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
            .field("carrier", &self.carrier)
            .field("tls", &self.description())
            .finish_non_exhaustive()
    }
}
