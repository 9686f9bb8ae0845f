//! Results beside the broker: outcomes in Redis, in the form of Celery's backend of that name.
//!
//! A broker with such results is a broker around another one (`with_redis.rs`): outcomes and chords
//! go to Redis, and all else goes to the broker.

#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod with_redis;

use std::rc::Rc;

use crate::broker::{Broker, BrokerError};

/// The URL if outcomes can be stored there, or else an error text, without the URL's password.
pub(crate) fn check_url(url: String) -> Result<String, String> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    match scheme {
        #[cfg(feature = "redis")]
        "redis" | "rediss" => url.parse::<redis::Address>().map(|_| url),
        #[cfg(not(feature = "redis"))]
        "redis" | "rediss" => Err(format!(
            "`{scheme}://` needs the feature `jobs-redis` of the crate `pikake` in `Cargo.toml`"
        )),
        _ => {
            Err("results can be stored in Redis alone: `redis://:password@host:port/db`".to_owned())
        }
    }
}

/// The broker, with outcomes at the URL.
#[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "no results without Redis"))]
pub(crate) async fn with_results(
    broker: Rc<dyn Broker>,
    url: &str,
) -> Result<Rc<dyn Broker>, BrokerError> {
    #[cfg(feature = "redis")]
    {
        let address = url.parse().map_err(BrokerError::ResultsRefused)?;
        let results = redis::RedisResults::open(address).await?;
        Ok(Rc::new(with_redis::WithRedis::new(broker, results)))
    }
    #[cfg(not(feature = "redis"))]
    Err(BrokerError::ResultsRefused(check_url(url.to_owned()).err().unwrap_or_default()))
}
