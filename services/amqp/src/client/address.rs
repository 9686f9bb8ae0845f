//! The `amqp://` or `amqps://` URL of a broker.

pub(crate) mod query;

use std::fmt;
use std::io;
use std::str::FromStr;

use amq_protocol::uri::{AMQPScheme, AMQPUri};

use crate::client::address::query::Query;
use crate::error::Error;

/// The URL of a broker: where it runs, and the user who connects.
///
/// The format is `amqp://user:password@host:port/vhost`; `amqps` is TLS. User, password and virtual
/// host are percent-decoded; the defaults are guest, guest and `/` (also for an empty path).
/// `Debug` and `Display` do not show the password.
///
/// RabbitMQ's query parameters may follow, as in
/// `amqps://host?cacertfile=/etc/ca.pem&heartbeat=10`. They override [`Options`](crate::Options).
///
/// | parameter | meaning |
/// | --- | --- |
/// | `cacertfile` | trusts the certificate authorities in this PEM file, instead of the platform's |
/// | `certfile`, `keyfile` | the client certificate and its key; PEM files. Without `keyfile`, `certfile` has the key |
/// | `verify` | `verify_none` accepts any certificate, so a man in the middle can pose as the broker. `verify_peer` is the default |
/// | `server_name_indication` | the name that the broker's certificate must have, instead of the host's |
/// | `auth_mechanism` | `external` authenticates with `certfile`, instead of user and password. `plain` is the default |
/// | `heartbeat` | in seconds: [`Options::heartbeat`](crate::Options::heartbeat) |
/// | `connection_timeout` | in milliseconds: [`Options::connect_timeout`](crate::Options::connect_timeout) |
/// | `channel_max` | [`Options::channel_max`](crate::Options::channel_max) |
///
/// The first five are for `amqps` only. Each connection reads the files anew, so the next
/// connection uses a renewed certificate.
///
/// # Examples
///
/// ```
/// use pikake::amqp::Address;
///
/// let address: Address = "amqp://ann:s%40crt@broker.example/%2Fjobs".parse()?;
/// assert_eq!((address.host(), address.port(), address.vhost()), ("broker.example", 5672, "/jobs"));
/// assert_eq!(address.to_string(), "amqp://ann@broker.example:5672/%2Fjobs");
/// # Ok::<(), pikake::amqp::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    uri: AMQPUri,
    query: Query,
}

impl Address {
    /// The host's name or IP address.
    pub fn host(&self) -> &str {
        &self.uri.authority.host
    }

    /// The port: 5672 (5671 with TLS) unless the URL says otherwise.
    pub fn port(&self) -> u16 {
        self.uri.authority.port
    }

    /// The virtual host.
    pub fn vhost(&self) -> &str {
        &self.uri.vhost
    }

    /// The user.
    pub fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    /// Whether the scheme is `amqps://`.
    pub fn is_tls(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    pub(crate) fn query(&self) -> &Query {
        &self.query
    }

    pub(crate) fn password(&self) -> &str {
        &self.uri.authority.userinfo.password
    }

    /// The error of a failed connection attempt.
    pub(crate) fn connect_error(&self, source: io::Error) -> Error {
        Error::Connect { address: self.host_and_port(), source: source.into() }
    }

    /// Host and port, for error messages.
    pub(crate) fn host_and_port(&self) -> String {
        match self.host().contains(':') {
            true => format!("[{}]:{}", self.host(), self.port()),
            false => format!("{}:{}", self.host(), self.port()),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    /// # Errors
    ///
    /// [`Error::Invalid`], without the URL, which may contain a password.
    fn from_str(url: &str) -> Result<Self, Error> {
        let invalid = |why: &str| {
            Error::Invalid(format!("the broker's URL: {why} (amqp://user:password@host/vhost)"))
        };
        // The library does not parse IPv6 addresses, and falls back to its default host.
        let host = url.find("://").map_or(0, |at| at + "://".len());
        let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |length| host + length);
        let (plain, number) = match (url[..end].find('['), url[..end].find(']')) {
            (Some(from), Some(to)) if from < to => {
                let number = &url[from + 1..to];
                number.parse::<std::net::Ipv6Addr>().map_err(|e| invalid(&e.to_string()))?;
                (format!("{}host{}", &url[..from], &url[to + 1..]), Some(number.to_owned()))
            }
            _ => (url.to_owned(), None),
        };
        let mut uri: AMQPUri = plain.parse().map_err(|why: String| invalid(&why))?;
        if let Some(number) = number {
            uri.authority.host = number;
        }
        if uri.authority.host.is_empty() {
            return Err(invalid("no host"));
        }
        if uri.vhost.is_empty() {
            uri.vhost = "/".to_owned();
        }
        let without_fragment = url.split('#').next().unwrap_or_default();
        let query = without_fragment.split_once('?').map_or("", |(_, query)| query);
        let query = Query::parse(query, uri.scheme == AMQPScheme::AMQPS);
        Ok(Self { uri, query: query.map_err(|why| invalid(&why))? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls() { "amqps" } else { "amqp" };
        let vhost = self.vhost().replace('%', "%25").replace('/', "%2F");
        write!(f, "{scheme}://{}@{}/{vhost}", self.user(), self.host_and_port())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(url: &str) -> (String, u16, String, String) {
        let a: Address = url.parse().unwrap();
        (a.host().into(), a.port(), a.vhost().into(), a.user().into())
    }

    #[test]
    fn missing_parts_have_defaults() {
        let usual = ("h".into(), 5672, "/".into(), "guest".into());
        for url in ["amqp://h", "amqp://h/", "amqp://h/%2F", "amqp://h:5672/%2f", "amqp://guest@h"]
        {
            assert_eq!(parts(url), usual, "{url}");
        }
        assert_eq!(parts("amqps://h").1, 5671);
        assert_eq!(
            parts("amqp://a%3Ab:c@[::1]:7/v%20w"),
            ("::1".into(), 7, "v w".into(), "a:b".into())
        );
        assert_eq!(
            parts("amqps://[::1]:7/v?cacertfile=/a[2].pem"),
            ("::1".into(), 7, "v".into(), "guest".into())
        );
        assert_eq!(parts("amqps://h?cacertfile=/a[2].pem").0, "h");
        assert_eq!(
            parts("amqp://127.0.0.1:9"),
            ("127.0.0.1".into(), 9, "/".into(), "guest".into())
        );
    }

    #[test]
    fn errors_do_not_show_the_password() {
        for url in [
            "",
            "h",
            "http://u:secret@h",
            "amqp://u:secret@h:99999",
            "amqp://[::g]/",
            "amqp:h",
            "amqp://u:secret@h/?colour=blue",
            "amqps://h/?password=secret",
        ] {
            let error = url.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("amqp://user:password@host/vhost"), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(
            !format!("{:?}", "amqp://u:secret@h".parse::<Address>().unwrap()).contains("secret")
        );
    }
}
