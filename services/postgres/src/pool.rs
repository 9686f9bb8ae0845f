//! Connections of a pool.

use std::future::Future;
use std::time::Duration;

use pikake_traps::ignore_after;

use crate::config::Config;
use crate::connection::Connection;
use crate::error::Error;

/// How long a connection may take to answer before it is handed out. After that it is replaced by
/// another.
pub const VERIFY_WITHIN: Duration = Duration::from_secs(5);

/// A pool of connections. See the [front page](crate) and [`pikake_pool::Pool`].
pub type Pool = pikake_pool::Pool<Manager>;

/// A connection from a pool, which comes back when the lease is dropped.
pub type Lease = pikake_pool::Lease<Manager>;

/// Makes, checks and cleans the connections of a pool.
///
/// # Examples
///
/// ```no_run
/// use pikake::postgres::{Config, Manager, Pool};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config: Config = "postgres://shop@localhost/shop".parse()?;
/// let builder = Pool::builder(Manager::new(config)).name("shop").limit(20);
/// let pool = builder.wait(Some(Duration::from_secs(2))).build();
/// # drop(pool);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Manager {
    config: Config,
}

impl Manager {
    /// A manager of connections to the same database.
    pub fn new(config: Config) -> Self {
        Self { config }
    }
}

impl Config {
    /// A pool of at most `limit` connections. For other options, see [`Manager`].
    pub fn pool(self, limit: usize) -> Pool {
        Pool::new(Manager::new(self), limit)
    }
}

impl pikake_pool::Manager for Manager {
    type Object = Connection;
    type Error = Error;

    fn create(&self) -> impl Future<Output = Result<Connection, Error>> {
        self.config.connect()
    }

    async fn verify(&self, connection: &mut Connection) -> Result<(), Error> {
        let answered = ignore_after(VERIFY_WITHIN, connection.check()).await;
        answered.unwrap_or(Err(Error::lost(None)))
    }

    fn clean(&self, connection: &mut Connection) -> impl Future<Output = Result<(), Error>> {
        connection.clean()
    }

    fn is_clean(&self, connection: &Connection) -> bool {
        connection.is_clean()
    }

    fn is_dead(&self, connection: &Connection) -> bool {
        connection.is_dead()
    }

    async fn destroy(&self, connection: Connection) {
        if let Err(error) = connection.close().await {
            tracing::debug!(%error, "a connection to the database was closed");
        }
    }
}
