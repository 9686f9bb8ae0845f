//! Opening a broker by its URL.
//!
//! This file is the only one that knows all brokers.

mod memory;
#[cfg(feature = "amqp")]
mod rabbitmq;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::rc::Rc;

use crate::broker::{Broker, BrokerError, LocalFuture, Opening};

pub use memory::{MemoryBroker, MemoryStore};
#[cfg(feature = "amqp")]
pub use rabbitmq::AmqpBroker;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteBroker;

/// The schemes of broker URLs, with the features of this build.
const SCHEMES: &[&str] = &[
    "memory",
    #[cfg(feature = "sqlite")]
    "sqlite",
    #[cfg(feature = "amqp")]
    "amqp",
    #[cfg(all(feature = "amqp", feature = "tls"))]
    "amqps",
];

/// The URL if its scheme is known, or else an error text.
pub(crate) fn check_url(url: String) -> Result<String, String> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    if SCHEMES.contains(&scheme) {
        return Ok(url);
    }
    Err(missing_feature(scheme).unwrap_or_else(|| {
        let schemes = SCHEMES.join("://`, `");
        format!("`{url}` is not a broker's URL; such a URL begins with `{schemes}://`")
    }))
}

/// The error text for a scheme that a build with more features knows.
fn missing_feature(scheme: &str) -> Option<String> {
    let features = match scheme {
        "sqlite" if !cfg!(feature = "sqlite") => "the feature `jobs-sqlite`",
        "amqp" if !cfg!(feature = "amqp") => "the feature `jobs-amqp`",
        "amqps" if !cfg!(feature = "amqp") => "the features `jobs-amqp` and `tls`",
        "amqps" if !cfg!(feature = "tls") => "the feature `tls`",
        _ => return None,
    };
    Some(format!("`{scheme}://` needs {features} of the crate `pikake` in `Cargo.toml`"))
}

/// Opens the broker at a URL.
///
/// | URL | broker |
/// | --- | --- |
/// | `memory://` | in memory, with a store of its own |
/// | `memory://name` | in memory, with the store of this name in this process |
/// | `sqlite:///path` | in a SQLite database at `/path`; `sqlite://path`: at a relative path |
/// | `sqlite:///path?lease=30` | the same with a lease of 30 seconds (see `SqliteBroker`) |
/// | `amqp://user:password@host:port/vhost` | RabbitMQ; with the feature `tls`, `amqps://` |
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// let broker = pikake::jobs::open("memory://example").await?;
/// assert_eq!(broker.state(), "open");
/// # Ok::<_, pikake::jobs::BrokerError>(()) }).unwrap();
/// ```
///
/// # Errors
///
/// [`BrokerError::Refused`] for a URL that names no broker.
pub fn open(url: &str) -> LocalFuture<'_, Result<Rc<dyn Broker>, BrokerError>> {
    open_as(url, Opening::default())
}

#[cfg_attr(not(feature = "amqp"), expect(unused_variables, reason = "only RabbitMQ has options"))]
pub(crate) fn open_as(
    url: &str,
    opening: Opening,
) -> LocalFuture<'_, Result<Rc<dyn Broker>, BrokerError>> {
    Box::pin(async move {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(BrokerError::Refused(format!("`{url}` is not a URL such as `memory://`")));
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Rc::new(MemoryStore::new().open()) as Rc<dyn Broker>),
            "memory" => Ok(Rc::new(MemoryStore::named(rest).open())),
            #[cfg(feature = "sqlite")]
            "sqlite" if rest.is_empty() => {
                Err(BrokerError::Refused("`sqlite://` lacks the path of a file".to_owned()))
            }
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let (path, lease) = sqlite::path_and_lease(rest).map_err(BrokerError::Refused)?;
                Ok(Rc::new(SqliteBroker::open_with_lease(path, lease).await?))
            }
            #[cfg(feature = "amqp")]
            "amqp" | "amqps" if SCHEMES.contains(&scheme) => {
                Ok(Rc::new(AmqpBroker::open_as(url, opening).await?))
            }
            _ => Err(BrokerError::Refused(missing_feature(scheme).unwrap_or_else(|| {
                format!("`{scheme}://` is not the scheme of a broker, such as `memory://`")
            }))),
        }
    })
}
