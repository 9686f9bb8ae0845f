//! TLS of a connection: whom to trust, who one is, and what a failed handshake means.
//!
//! Apart from the stream, since it is behind a feature.

use std::error::Error as StdError;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::time::Duration;

use pikake_net::tls::rustls::{AlertDescription, CertificateError, Error as TlsError};
use pikake_net::tls::{Identity, TlsConnector, TlsStream};
use pikake_net::{TcpStream, in_context};
use pikake_traps::{TaskError, blocking};

use crate::client::address::Address;
use crate::client::address::query::Tls;
use crate::error::Error;

/// Files are read for each connection: certificates are renewed while programs run.
pub(crate) async fn connector(tls: &Tls, limit: Duration) -> Result<TlsConnector, Error> {
    let tls = tls.clone();
    let unusable = |error: &dyn Display| Error::Invalid(format!("the broker's URL: {error}"));
    match blocking(move || make(&tls, limit)).await {
        Ok(made) => made.map_err(|error| unusable(&error)),
        Err(TaskError::Interrupted(why)) => Err(why.into()),
        Err(error) => Err(unusable(&error)),
    }
}

fn make(tls: &Tls, limit: Duration) -> io::Result<TlsConnector> {
    let named = |name, path: &Path| format!("`{name}={}`", path.display());
    let read = |name, path: &Path| {
        std::fs::read(path).map_err(|error| in_context(error, || named(name, path)))
    };
    let builder = TlsConnector::builder().handshake_timeout(limit);
    let builder = match &tls.roots {
        _ if tls.is_unverified => builder.dangerous_unverified(),
        Some(path) => {
            let trusting = builder.roots_pem(&read("cacertfile", path)?);
            trusting.map_err(|error| in_context(error, || named("cacertfile", path)))?
        }
        None => builder.platform_roots()?,
    };
    let Some(certificate) = &tls.certificate else { return builder.build() };
    let key = tls.key.as_deref().unwrap_or(certificate);
    let who = Identity::from_pem(&read("certfile", certificate)?, &read("keyfile", key)?);
    who.and_then(|who| builder.identity(who).build()).map_err(|error| {
        let files = || format!("{}, {}", named("certfile", certificate), named("keyfile", key));
        in_context(error, files)
    })
}

pub(crate) async fn shake_hands(
    connector: &TlsConnector,
    address: &Address,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let name = address.query().tls.name.as_deref().unwrap_or(address.host());
    connector.connect(name, stream).await.map_err(explained)
}

/// The error, with what to do about it, where that can be told. A broker's opinion of a client's
/// certificate comes when the client is through with the handshake, and reads.
pub(crate) fn explained(error: io::Error) -> io::Error {
    match meaning(&error) {
        Some(meaning) => in_context(error, || meaning.to_owned()),
        None => error,
    }
}

fn meaning(error: &io::Error) -> Option<&'static str> {
    let mut at: Option<&(dyn StdError + 'static)> = error.get_ref().map(|inside| inside as _);
    let mut tls = None;
    while let Some(error) = at {
        tls = tls.or_else(|| error.downcast_ref::<TlsError>());
        at = match error.downcast_ref::<io::Error>() {
            Some(error) => error.get_ref().map(|inside| inside as _),
            None => error.source(),
        };
    }
    match tls {
        Some(TlsError::InvalidMessage(_)) => {
            Some("what answers does not speak TLS (the port for amqp:// does not)")
        }
        Some(TlsError::InvalidCertificate(CertificateError::UnknownIssuer)) => Some(
            "nobody who is trusted vouches for the broker's certificate (`cacertfile` names others)",
        ),
        Some(TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => Some(
            "the broker's certificate is for another name (`server_name_indication` expects another)",
        ),
        Some(TlsError::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::HandshakeFailure,
        )) => Some("the broker refuses this side (`certfile` and `keyfile` say who it is)"),
        _ => None,
    }
}
