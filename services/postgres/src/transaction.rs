//! Transactions and savepoints.

use std::ops::Deref;

use crate::connection::{Connection, savepoint};
use crate::error::Error;

/// A transaction, or a savepoint in one. Statements run on it as on the [`Connection`].
///
/// A transaction that is dropped without [`commit`](Self::commit) is rolled back: before the
/// connection's next statement, or when the connection comes back to its pool.
/// [`rollback`](Self::rollback) does so at once.
///
/// # Examples
///
/// ```no_run
/// use pikake::postgres::{Error, Pool};
///
/// # async fn example(pool: Pool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut connection = pool.get().await?;
/// let transaction = connection.transaction().await?;
/// transaction.execute("UPDATE account SET balance = balance - 30 WHERE id = $1", &[&1]).await?;
/// transaction.execute("UPDATE account SET balance = balance + 30 WHERE id = $1", &[&2]).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction<'c> {
    connection: &'c Connection,
    /// 0, or the number of the savepoint.
    number: u32,
    has_ended: bool,
}

impl<'c> Transaction<'c> {
    pub(crate) async fn begin(
        connection: &'c Connection,
        number: u32,
        text: &str,
    ) -> Result<Self, Error> {
        connection.settle().await.map_err(Error::before)?;
        // From here on a drop rolls back, since the server may have begun the transaction.
        let transaction = Self { connection, number, has_ended: false };
        connection.begin_transaction(text).await?;
        Ok(transaction)
    }

    /// Begins a savepoint, which can be rolled back alone.
    ///
    /// # Errors
    ///
    /// As for [`Connection`].
    pub async fn savepoint(&mut self) -> Result<Transaction<'_>, Error> {
        let number = self.connection.number_savepoint();
        let text = format!("SAVEPOINT {}", savepoint(number));
        Transaction::begin(self.connection, number, &text).await
    }

    /// Commits, or releases the savepoint. With `Ok`, the server has confirmed it.
    ///
    /// # Cancellation
    ///
    /// An interruption point. A `COMMIT` that is under way is not cancelled, but awaited for at
    /// most [`CANCEL_WITHIN`](crate::CANCEL_WITHIN); then the error's [`Fate`](crate::Fate) tells
    /// whether it was [`Completed`](crate::Fate::Completed). A drop does not cancel it either, and
    /// tells nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`], if a statement of the transaction has failed; as for [`Connection`]. If
    /// the connection is lost during the call, the server may have committed.
    pub async fn commit(mut self) -> Result<(), Error> {
        let connection = self.connection;
        if !connection.is_committable().await? {
            drop(self);
            connection.settle().await.map_err(Error::before)?;
            return Err(Error::Aborted);
        }
        // The request reaches the server, whatever becomes of this future.
        self.has_ended = true;
        connection.commit(self.number).await
    }

    /// Rolls back, to the savepoint if this is one.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The rollback still happens, as after a drop.
    ///
    /// # Errors
    ///
    /// As for [`Connection`].
    pub async fn rollback(self) -> Result<(), Error> {
        let connection = self.connection;
        drop(self);
        connection.settle().await
    }
}

impl Deref for Transaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.connection.leave(self.number);
        }
    }
}
