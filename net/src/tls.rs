//! TLS, by rustls.
//!
//! A [`TlsConnector`] starts TLS on a client's stream, a [`TlsAcceptor`] on a server's, each by a
//! handshake with a deadline, on any type that implements [`Read`] and [`Write`]. In a server,
//! handshakes run beside the accept loop, so a client that never finishes its handshake delays no
//! other client: see [`TlsAcceptor::listen`].
//!
//! ```no_run
//! use pikake::net::tls::{Identity, TlsAcceptor};
//! use pikake::net::{TcpListener, serve};
//!
//! # async fn example() -> std::io::Result<()> {
//! let identity = Identity::from_pem_files("server.crt", "server.key")?;
//! let acceptor = TlsAcceptor::builder(identity).build()?;
//! let listener = acceptor.listen(TcpListener::bind("0.0.0.0:443").await?);
//! serve(listener, 1000, async |stream, peer| {
//!     let greeted = async {
//!         stream.write_all(b"hello\n").await?;
//!         stream.finish().await
//!     };
//!     if let Err(error) = greeted.await {
//!         eprintln!("{peer}: {error}");
//!     }
//! })
//! .await?;
//! # Ok(()) }
//! ```
//!
//! The kernel supplies random numbers and the time that certificates are checked against. `ring`
//! takes the keys of an exchange from the system: in a simulation, the seed does not determine
//! their bytes. It determines their number, with keys whose signatures have one length (Ed25519).
//!
//! rustls itself, in the version of these types, is the module `rustls` in this one.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::rustls::crypto::{CryptoProvider, GetRandomFailed, SecureRandom, ring};
use ::rustls::pki_types::pem::PemObject;
use ::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use ::rustls::server::WebPkiClientVerifier;
use ::rustls::time_provider::TimeProvider;
use ::rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};
use pikake_traps::{random, system_random, timeout_after, try_current, wall_time};

use crate::read_write::{Read, Write};
use crate::serve::Listener;

mod listener;
#[cfg(feature = "io-traits")]
mod polled;
mod stream;
mod unverified;
mod validity;

use unverified::AnyCertificate;

pub use listener::{HANDSHAKE_GRACE, HANDSHAKES, TlsListener};
pub use stream::TlsStream;

/// rustls itself. Hidden, or else its own documentation would be shown here once more.
#[doc(hidden)]
pub mod rustls {
    pub use ::rustls::*;
}

/// The default timeout of a handshake: several round trips over a bad connection.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Random bytes from the kernel, or from the system outside a kernel.
#[derive(Debug)]
struct KernelRandom;

impl SecureRandom for KernelRandom {
    fn fill(&self, to: &mut [u8]) -> Result<(), GetRandomFailed> {
        match try_current() {
            Some(_) => random::fill(to),
            None => system_random(to),
        }
        Ok(())
    }
}

/// The kernel's wall clock, or the system's outside a kernel.
#[derive(Debug)]
struct KernelTime;

impl TimeProvider for KernelTime {
    fn current_time(&self) -> Option<UnixTime> {
        let time = try_current().map_or_else(SystemTime::now, |_| wall_time());
        let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(UnixTime::since_unix_epoch(since))
    }
}

fn provider() -> Arc<CryptoProvider> {
    CryptoProvider { secure_random: &KernelRandom, ..ring::default_provider() }.into()
}

const VERSIONS: &[&SupportedProtocolVersion] = rustls::DEFAULT_VERSIONS;

fn refused(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

fn pem_error(what: &str, error: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{what}: {error}"))
}

fn certificates(what: &str, pem: &[u8]) -> io::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| pem_error(what, error))?;
    if found.is_empty() {
        return Err(pem_error(what, "there is no certificate in it"));
    }
    Ok(found)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|error| io::Error::new(error.kind(), format!("read {}: {error}", path.display())))
}

fn add_roots(roots: &mut RootCertStore, what: &str, pem: &[u8]) -> io::Result<()> {
    for certificate in certificates(what, pem)? {
        roots.add(certificate).map_err(|error| pem_error(what, error))?;
    }
    Ok(())
}

fn protocols<P: Into<Vec<u8>>>(alpn: impl IntoIterator<Item = P>) -> Vec<Vec<u8>> {
    alpn.into_iter().map(Into::into).collect()
}

/// An identity: a certificate with its chain, and its key.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads PEM: the certificate followed by its chain, and the key (PKCS#8, PKCS#1 or SEC1).
    ///
    /// A certificate that has expired or is not valid yet is logged (`tracing`, level `warn`), with
    /// its names and the date.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), if the certificate or the key is missing.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> io::Result<Self> {
        let key = PrivateKeyDer::from_pem_slice(key);
        let key = key.map_err(|error| pem_error("the private key", error))?;
        let chain = certificates("the certificate", chain)?;
        if let Some(now) = KernelTime.current_time() {
            validity::warn_of_dates(&chain[0], now);
        }
        Ok(Self { chain, key })
    }

    /// Reads two PEM files, which blocks the thread: for the start of a program.
    ///
    /// # Errors
    ///
    /// The system's error, with the path; as for [`from_pem`](Self::from_pem).
    pub fn from_pem_files(chain: impl AsRef<Path>, key: impl AsRef<Path>) -> io::Result<Self> {
        Self::from_pem(&read(chain.as_ref())?, &read(key.as_ref())?)
    }
}

/// Builds a [`TlsConnector`]. See [`TlsConnector::builder`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct TlsConnectorBuilder {
    roots: RootCertStore,
    is_unverified: bool,
    identity: Option<Identity>,
    alpn: Vec<Vec<u8>>,
    timeout: Duration,
}

impl TlsConnectorBuilder {
    /// Trusts the platform's root certificates. Reading them blocks the thread.
    ///
    /// # Errors
    ///
    /// [`NotFound`](io::ErrorKind::NotFound), if the platform has no certificates; on Debian they
    /// come with the package `ca-certificates`.
    pub fn platform_roots(mut self) -> io::Result<Self> {
        let found = rustls_native_certs::load_native_certs();
        let (added, _) = self.roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let why: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
            let text = format!(
                "the platform has no root certificates (on Debian: install ca-certificates): {}",
                why.join("; ")
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        Ok(self)
    }

    /// Trusts these root certificates, as PEM.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), if there are none.
    pub fn roots_pem(mut self, pem: &[u8]) -> io::Result<Self> {
        add_roots(&mut self.roots, "the root certificates", pem)?;
        Ok(self)
    }

    /// Accepts any certificate of the server, without a check of its chain, name and dates. An
    /// attacker on the path can then impersonate the server, and read and change all data: use this
    /// only for tests and to examine a certificate.
    pub fn dangerous_unverified(mut self) -> Self {
        self.is_unverified = true;
        self
    }

    /// Sets the identity for servers that request one.
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Sets the protocols to offer, best first (ALPN), as `["h2", "http/1.1"]`.
    pub fn alpn<P: Into<Vec<u8>>>(mut self, protocols_: impl IntoIterator<Item = P>) -> Self {
        self.alpn = protocols(protocols_);
        self
    }

    /// Sets the timeout of a handshake, instead of [`HANDSHAKE_TIMEOUT`].
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Builds the connector.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), if there are no root certificates, or the key
    /// does not match its certificate.
    pub fn build(self) -> io::Result<TlsConnector> {
        let Self { roots, is_unverified, identity, alpn, timeout } = self;
        if roots.is_empty() && !is_unverified {
            let text = "there are no root certificates: call `platform_roots` or `roots_pem`";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let builder = ClientConfig::builder_with_details(provider(), Arc::new(KernelTime))
            .with_protocol_versions(VERSIONS)
            .map_err(refused)?;
        let builder = match is_unverified {
            true => {
                let verifier = Arc::new(AnyCertificate(provider()));
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
            false => builder.with_root_certificates(roots),
        };
        let mut config = match identity {
            Some(Identity { chain, key }) => {
                builder.with_client_auth_cert(chain, key).map_err(refused)?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = alpn;
        Ok(TlsConnector { config: Arc::new(config), timeout })
    }
}

/// A client's side of TLS. Clones share sessions that can be resumed.
///
/// # Examples
///
/// ```no_run
/// use pikake::net::TcpStream;
/// use pikake::net::tls::TlsConnector;
///
/// # async fn example() -> std::io::Result<()> {
/// let connector = TlsConnector::builder().platform_roots()?.build()?;
/// let stream = TcpStream::connect("example.org:443").await?;
/// let stream = connector.connect("example.org", stream).await?;
/// stream.write_all(b"GET / HTTP/1.0\r\nHost: example.org\r\n\r\n").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TlsConnector {
    config: Arc<ClientConfig>,
    timeout: Duration,
}

impl TlsConnector {
    /// Returns a builder. Root certificates have to be set.
    pub fn builder() -> TlsConnectorBuilder {
        let roots = RootCertStore::empty();
        let timeout = HANDSHAKE_TIMEOUT;
        let alpn = Vec::new();
        TlsConnectorBuilder { roots, is_unverified: false, identity: None, alpn, timeout }
    }

    /// Takes a configuration of rustls, for options that the builder lacks.
    pub fn with_config(config: impl Into<Arc<ClientConfig>>) -> Self {
        Self { config: config.into(), timeout: HANDSHAKE_TIMEOUT }
    }

    /// A connector that offers these protocols, best first (ALPN), and is like this one in
    /// everything else.
    pub fn with_alpn<P: Into<Vec<u8>>>(&self, protocols_: impl IntoIterator<Item = P>) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = protocols(protocols_);
        Self { config: Arc::new(config), timeout: self.timeout }
    }

    /// Performs the handshake with the server `name`, which may be a numeric address.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interruption or a drop closes the stream.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](io::ErrorKind::InvalidData) with the [`rustls::Error`] inside, as for a
    /// certificate that is not trusted; [`TimedOut`](io::ErrorKind::TimedOut) if the handshake took
    /// too long; the stream's error; the interruption. Each error names the server.
    pub async fn connect<S: Read + Write>(
        &self,
        name: &str,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let server = ServerName::try_from(name.to_owned()).map_err(|error| {
            let text = format!("{name:?} is no name of a TLS server: {error}");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        let tls = ClientConnection::new(self.config.clone(), server).map_err(refused)?;
        let stream = TlsStream::new(stream, tls.into());
        shake_hands(stream, self.timeout, || format!("TLS handshake with {name}")).await
    }
}

/// Builds a [`TlsAcceptor`]. See [`TlsAcceptor::builder`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct TlsAcceptorBuilder {
    identity: Identity,
    client_roots: Option<(RootCertStore, bool)>,
    alpn: Vec<Vec<u8>>,
    timeout: Duration,
}

impl TlsAcceptorBuilder {
    /// Requires a certificate of every client, issued under one of these root certificates (PEM).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), if there are none.
    pub fn require_clients_of_pem(self, pem: &[u8]) -> io::Result<Self> {
        self.ask_clients(pem, true)
    }

    /// As [`require_clients_of_pem`](Self::require_clients_of_pem), but a client may have none; see
    /// [`TlsStream::peer_certificates`].
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), if there are none.
    pub fn ask_clients_of_pem(self, pem: &[u8]) -> io::Result<Self> {
        self.ask_clients(pem, false)
    }

    fn ask_clients(mut self, pem: &[u8], is_required: bool) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        add_roots(&mut roots, "the clients' root certificates", pem)?;
        self.client_roots = Some((roots, is_required));
        Ok(self)
    }

    /// Sets the supported protocols, best first (ALPN). A client that offers only others is
    /// refused.
    pub fn alpn<P: Into<Vec<u8>>>(mut self, protocols_: impl IntoIterator<Item = P>) -> Self {
        self.alpn = protocols(protocols_);
        self
    }

    /// Sets the timeout of a handshake, instead of [`HANDSHAKE_TIMEOUT`].
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Builds the acceptor.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), if the key does not match the certificate.
    pub fn build(self) -> io::Result<TlsAcceptor> {
        let Self { identity, client_roots, alpn, timeout } = self;
        let builder = ServerConfig::builder_with_details(provider(), Arc::new(KernelTime))
            .with_protocol_versions(VERSIONS)
            .map_err(refused)?;
        let builder = match client_roots {
            None => builder.with_no_client_auth(),
            Some((roots, is_required)) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
                let verifier =
                    if is_required { verifier } else { verifier.allow_unauthenticated() };
                let verifier = verifier.build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| pem_error("the clients' root certificates", error))?,
                )
            }
        };
        let Identity { chain, key } = identity;
        let mut config = builder.with_single_cert(chain, key).map_err(refused)?;
        config.alpn_protocols = alpn;
        Ok(TlsAcceptor { config: Arc::new(config), timeout })
    }
}

/// A server's side of TLS. Clones share the configuration and its sessions.
#[derive(Clone, Debug)]
pub struct TlsAcceptor {
    config: Arc<ServerConfig>,
    timeout: Duration,
}

impl TlsAcceptor {
    /// Returns a builder.
    pub fn builder(identity: Identity) -> TlsAcceptorBuilder {
        let timeout = HANDSHAKE_TIMEOUT;
        TlsAcceptorBuilder { identity, client_roots: None, alpn: Vec::new(), timeout }
    }

    /// Takes a configuration of rustls, for options that the builder lacks, as several
    /// certificates.
    pub fn with_config(config: impl Into<Arc<ServerConfig>>) -> Self {
        Self { config: config.into(), timeout: HANDSHAKE_TIMEOUT }
    }

    /// Performs the handshake with a client.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interruption or a drop closes the stream.
    ///
    /// # Errors
    ///
    /// As for [`TlsConnector::connect`].
    pub async fn accept<S: Read + Write>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let tls = ServerConnection::new(self.config.clone()).map_err(refused)?;
        let stream = TlsStream::new(stream, tls.into());
        shake_hands(stream, self.timeout, || "TLS handshake with a client".to_owned()).await
    }

    /// Wraps a listener, so that its connections are TLS streams and handshakes run beside the
    /// accept loop. See [`TlsListener`].
    pub fn listen<L: Listener>(&self, listener: L) -> TlsListener<L> {
        TlsListener::new(listener, self.clone())
    }
}

async fn shake_hands<S: Read + Write>(
    stream: TlsStream<S>,
    timeout: Duration,
    what: impl FnOnce() -> String,
) -> io::Result<TlsStream<S>> {
    match timeout_after(timeout, stream.shake_hands()).await {
        Ok(Ok(())) => Ok(stream),
        Ok(Err(error)) => {
            let wrong_date = validity::wrong_date(&error);
            Err(crate::error::in_context(error, || match wrong_date {
                Some(wrong_date) => format!("{}: {wrong_date}", what()),
                None => what(),
            }))
        }
        Err(_) => {
            let text = format!("{}: not done within {timeout:?}", what());
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
    }
}
