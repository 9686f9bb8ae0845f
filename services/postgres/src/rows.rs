//! The rows of a statement, one by one.

use std::fmt;
use std::pin::Pin;

use futures_util::TryStreamExt;
use pikake_traps::future_wait;
use tokio_postgres::{Row, RowStream};

use crate::connection::{Connection, OnInterrupt, Running};
use crate::error::Error;

/// The rows of a statement, as the server sends them. See [`Connection::query_rows`].
///
/// The connection reads a few rows ahead, and no more. A drop before the last row cancels the
/// statement, as that of another statement's future.
///
/// # Examples
///
/// ```no_run
/// # async fn example(connection: pikake::postgres::Connection) -> Result<(), pikake::postgres::Error> {
/// let mut rows = connection.query_rows("SELECT name FROM item ORDER BY name", &[]).await?;
/// while let Some(row) = rows.next().await? {
///     println!("{}", row.get::<_, &str>(0));
/// }
/// # Ok(()) }
/// ```
pub struct Rows<'c> {
    connection: &'c Connection,
    rows: Pin<Box<RowStream>>,
    /// `None` after the last row.
    running: Option<Running<'c>>,
}

impl<'c> Rows<'c> {
    pub(crate) fn new(connection: &'c Connection, rows: RowStream) -> Self {
        let running = Some(connection.begin(OnInterrupt::CancelStream));
        Self { connection, rows: Box::pin(rows), running }
    }

    /// The next row, or `None` after the last.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interrupted or dropped wait loses no row; the statement runs on
    /// until the rows are dropped.
    ///
    /// # Errors
    ///
    /// As for [`Connection`].
    pub async fn next(&mut self) -> Result<Option<Row>, Error> {
        if self.running.is_none() {
            return Ok(None);
        }
        let row = future_wait(self.rows.try_next()).await?;
        let row = row.map_err(|error| self.connection.failed(error));
        if !matches!(row, Ok(Some(_))) {
            if let Some(running) = self.running.take() {
                running.end();
            }
        }
        row
    }
}

impl fmt::Debug for Rows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("connection", self.connection).finish_non_exhaustive()
    }
}
