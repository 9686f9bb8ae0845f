//! The stream below the protocol: plain or TLS, read through a scanner for the state of the
//! session.
//!
//! After each request the server sends `ReadyForQuery` with the state of its transaction, and after
//! each command its name in `CommandComplete`. tokio-postgres shows neither. The scanner finds
//! these messages by the lengths in the headers and copies nothing.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

#[cfg(feature = "tls")]
use pikake_net::tls::{TlsConnector, TlsStream};
use pikake_net::{Read, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream as Session};

/// A stream to the server, for both kinds of traits.
pub(crate) trait Transport: Read + Write + AsyncRead + AsyncWrite + Unpin + 'static {}

impl<S: Read + Write + AsyncRead + AsyncWrite + Unpin + 'static> Transport for S {}

/// The state of the server's transaction, as of the last `ReadyForQuery`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    /// No transaction is open.
    Idle,
    /// A transaction is open.
    Open,
    /// A transaction is open, and refuses all statements but its end.
    Failed,
}

/// What the messages of the server have told of a session.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) status: Cell<Status>,
    /// Whether a `PREPARE` in SQL has succeeded since the last reset.
    pub(crate) has_prepared: Cell<bool>,
}

impl Seen {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self { status: Cell::new(Status::Idle), has_prepared: Cell::new(false) })
    }
}

/// Finds `ReadyForQuery` and `CommandComplete` in the bytes from the server.
struct Scanner {
    seen: Rc<Seen>,
    /// The type and the length of a message, as far as they have arrived.
    header: [u8; HEADER],
    held: usize,
    /// How much of the message's body is still to come.
    body: usize,
}

const HEADER: usize = 5;
/// The header's length counts itself, but not the type.
const LENGTH: usize = 4;
const READY_FOR_QUERY: u8 = b'Z';
const COMMAND_COMPLETE: u8 = b'C';
/// The body of `CommandComplete` after `PREPARE`. No other body of this length begins with its
/// first byte.
const PREPARED: &[u8] = b"PREPARE\0";

impl Scanner {
    fn new(seen: Rc<Seen>) -> Self {
        Self { seen, header: [0; HEADER], held: 0, body: 0 }
    }

    fn scan(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.held < HEADER {
                let take = bytes.len().min(HEADER - self.held);
                self.header[self.held..self.held + take].copy_from_slice(&bytes[..take]);
                self.held += take;
                bytes = &bytes[take..];
                if self.held == HEADER {
                    let [_, length @ ..] = self.header;
                    self.body = (u32::from_be_bytes(length) as usize).saturating_sub(LENGTH);
                }
            } else {
                let take = bytes.len().min(self.body);
                match (self.header[0], self.body, bytes[0]) {
                    (READY_FOR_QUERY, _, b'I') => self.seen.status.set(Status::Idle),
                    (READY_FOR_QUERY, _, b'E') => self.seen.status.set(Status::Failed),
                    (READY_FOR_QUERY, ..) => self.seen.status.set(Status::Open),
                    (COMMAND_COMPLETE, length, first)
                        if length == PREPARED.len() && first == PREPARED[0] =>
                    {
                        self.seen.has_prepared.set(true);
                    }
                    _ => {}
                }
                self.body -= take;
                bytes = &bytes[take..];
            }
            if self.held == HEADER && self.body == 0 {
                self.held = 0;
            }
        }
    }
}

enum Link<S> {
    Plain(S),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<S>>),
}

/// The stream on which the protocol runs.
pub(crate) struct Wire<S> {
    link: Link<S>,
    scanner: Scanner,
    /// Whether the end of the stream waits for that of the server's.
    waits_for_end: bool,
}

impl<S: Transport> AsyncRead for Wire<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(match &mut this.link {
            Link::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            #[cfg(feature = "tls")]
            Link::Tls(stream) => AsyncRead::poll_read(Pin::new(&mut **stream), cx, buffer),
        })?;
        this.scanner.scan(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: Transport> AsyncWrite for Wire<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().link {
            Link::Plain(stream) => Pin::new(stream).poll_write(cx, data),
            #[cfg(feature = "tls")]
            Link::Tls(stream) => AsyncWrite::poll_write(Pin::new(&mut **stream), cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().link {
            Link::Plain(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(feature = "tls")]
            Link::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.waits_for_end {
            let mut buffer = [0; 64];
            let mut buffer = ReadBuf::new(&mut buffer);
            match ready!(self.as_mut().poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Err(error) if pikake_net::interruption(&error).is_some() => {
                    return Poll::Ready(Err(error));
                }
                // A server that closes its socket without a word has ended as well.
                Ok(()) | Err(_) => self.waits_for_end = false,
            }
        }
        match &mut self.get_mut().link {
            Link::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(feature = "tls")]
            Link::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}

impl<S: Transport> Session for Wire<S> {
    fn channel_binding(&self) -> ChannelBinding {
        match &self.link {
            Link::Plain(_) => ChannelBinding::none(),
            #[cfg(feature = "tls")]
            Link::Tls(stream) => {
                let certificate = stream.peer_certificates().into_iter().next();
                let hash = certificate.and_then(|certificate| binding::end_point(&certificate));
                hash.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
            }
        }
    }
}

/// How TLS is to be begun.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub(crate) struct Encryption {
    pub(crate) connector: TlsConnector,
    /// The name that the server's certificate is for.
    pub(crate) name: String,
    /// Whether a server without TLS is refused.
    pub(crate) is_required: bool,
    /// Whether the handshake begins without a question.
    pub(crate) is_direct: bool,
}

/// Makes a [`Wire`] of a stream: asks the server for TLS, if that is wanted.
///
/// tokio-postgres calls this as its TLS, also for plain connections.
pub(crate) struct Negotiation {
    #[cfg(feature = "tls")]
    pub(crate) encryption: Option<Encryption>,
    pub(crate) seen: Rc<Seen>,
    pub(crate) waits_for_end: bool,
}

impl<S: Transport> TlsConnect<S> for Negotiation {
    type Stream = Wire<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Wire<S>>>>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            #[cfg(feature = "tls")]
            let link = match self.encryption {
                Some(encryption) => encryption.begin(stream).await?,
                None => Link::Plain(stream),
            };
            #[cfg(not(feature = "tls"))]
            let link = Link::Plain(stream);
            let scanner = Scanner::new(self.seen);
            Ok(Wire { link, scanner, waits_for_end: self.waits_for_end })
        })
    }
}

#[cfg(feature = "tls")]
impl Encryption {
    /// `SSLRequest`: the length of the message, and the number that stands for a version.
    const REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

    async fn begin<S: Transport>(self, stream: S) -> io::Result<Link<S>> {
        if !self.is_direct {
            Write::write_all(&stream, &Self::REQUEST).await?;
            // No byte more: what follows belongs to the handshake.
            let mut answer = [0];
            if Read::read(&stream, &mut answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match (answer, self.is_required) {
                ([b'S'], _) => {}
                ([b'N'], false) => return Ok(Link::Plain(stream)),
                ([b'N'], true) => return Err(io::Error::other("the server offers no TLS")),
                _ => return Err(io::Error::other("the server answers with an error, not TLS")),
            }
        }
        let stream = self.connector.connect(&self.name, stream).await?;
        Ok(Link::Tls(Box::new(stream)))
    }
}

/// Channel binding: the login proves that both sides see the same certificate.
#[cfg(feature = "tls")]
mod binding {
    use sha2::{Digest, Sha256, Sha384, Sha512};
    use x509_cert::Certificate;
    use x509_cert::der::Decode;

    /// The hash of a certificate by RFC 5929, section 4.1: that of the signature, SHA-256 in place
    /// of weaker ones.
    pub(super) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
        let parsed = Certificate::from_der(certificate).ok()?;
        let algorithm = parsed.signature_algorithm().oid.to_string();
        match algorithm.as_str() {
            // MD5, SHA-1 and SHA-256, by RSA; SHA-1 and SHA-256, by ECDSA.
            "1.2.840.113549.1.1.4"
            | "1.2.840.113549.1.1.5"
            | "1.2.840.113549.1.1.11"
            | "1.2.840.10045.4.1"
            | "1.2.840.10045.4.3.2" => Some(Sha256::digest(certificate).to_vec()),
            "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => {
                Some(Sha384::digest(certificate).to_vec())
            }
            "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => {
                Some(Sha512::digest(certificate).to_vec())
            }
            // Others, such as Ed25519, name no hash.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages with bodies of other types, and with the byte `Z` in them.
    fn messages() -> (Vec<u8>, Vec<Status>) {
        let mut bytes = vec![b'D', 0, 0, 0, 9];
        bytes.extend(b"ZZ\0\0\0");
        bytes.extend([b'Z', 0, 0, 0, 5, b'T', b'1', 0, 0, 0, 4, b'Z', 0, 0, 0, 5, b'E']);
        bytes.extend([b'N', 0, 0, 0, 5, b'I', b'Z', 0, 0, 0, 5, b'I']);
        (bytes, vec![Status::Open, Status::Failed, Status::Idle])
    }

    #[test]
    fn scanner_finds_each_state_however_bytes_arrive() {
        let (bytes, expected) = messages();
        for size in 1..=bytes.len() {
            let seen = Seen::new();
            let mut scanner = Scanner::new(seen.clone());
            let mut states = Vec::new();
            for chunk in bytes.chunks(size) {
                let before = seen.status.get();
                scanner.scan(chunk);
                if seen.status.get() != before {
                    states.push(seen.status.get());
                }
            }
            assert_eq!(seen.status.get(), Status::Idle, "{size}");
            assert!(size > 5 || states == expected, "{size}: {states:?}");
            assert!(!seen.has_prepared.get(), "{size}");
        }
    }

    #[test]
    fn scanner_finds_prepare_however_bytes_arrive() {
        let bytes = b"C\0\0\0\x0cPREPARE\0Z\0\0\0\x05I";
        for size in 1..=bytes.len() {
            let seen = Seen::new();
            let mut scanner = Scanner::new(seen.clone());
            bytes.chunks(size).for_each(|chunk| scanner.scan(chunk));
            assert!(seen.has_prepared.get(), "{size}");
        }
        let seen = Seen::new();
        Scanner::new(seen.clone()).scan(b"C\0\0\0\x18PREPARE TRANSACTION\0");
        assert!(!seen.has_prepared.get());
    }
}
