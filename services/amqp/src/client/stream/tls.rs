//! TLS of a connection: trusted authorities, the client's certificate, and advice on failed
//! handshakes.

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

/// Reads the files anew for each connection, since certificates are renewed while programs run.
pub(crate) async fn connector(tls: &Tls, limit: Duration) -> Result<TlsConnector, Error> {
    let tls = tls.clone();
    let unusable = |error: &dyn Display| Error::Invalid(format!("the broker's URL: {error}"));
    match blocking(move || build_connector(&tls, limit)).await {
        Ok(made) => made.map_err(|error| unusable(&error)),
        Err(TaskError::Interrupted(why)) => Err(why.into()),
        Err(error) => Err(unusable(&error)),
    }
}

fn build_connector(tls: &Tls, limit: Duration) -> io::Result<TlsConnector> {
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
    let identity = Identity::from_pem(&read("certfile", certificate)?, &read("keyfile", key)?);
    identity.and_then(|identity| builder.identity(identity).build()).map_err(|error| {
        let files = || format!("{}, {}", named("certfile", certificate), named("keyfile", key));
        in_context(error, files)
    })
}

pub(crate) async fn handshake(
    connector: &TlsConnector,
    address: &Address,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let name = address.query().tls.name.as_deref().unwrap_or(address.host());
    connector.connect(name, stream).await.map_err(with_advice)
}

/// Adds advice to a TLS error. In TLS 1.3 the broker refuses a client's certificate only after the
/// client's handshake, so reads have such errors, too.
pub(crate) fn with_advice(error: io::Error) -> io::Error {
    match advice(&error) {
        Some(advice) => in_context(error, || advice.to_owned()),
        None => error,
    }
}

fn advice(error: &io::Error) -> Option<&'static str> {
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
            Some("the peer does not speak TLS (this may be the port for amqp://)")
        }
        Some(TlsError::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            Some("no trusted authority signed the broker's certificate (`cacertfile` names others)")
        }
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
        )) => Some("the broker refuses the client's certificate (see `certfile` and `keyfile`)"),
        _ => None,
    }
}
