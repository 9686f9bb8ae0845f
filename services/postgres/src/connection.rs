//! A connection whose statements can be interrupted, and which knows what they have left behind.
//!
//! A statement that does not reach its end leaves something on the server: it still runs, or a
//! transaction is open. The connection only notes that ([`Leftovers`]), since a drop cannot wait.
//! [`Connection::settle`] does the work: in the interrupted call itself, before the next statement,
//! and when the connection comes back to its pool.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join;
use pikake_sync::Mutex;
use pikake_traps::{Builder, Task, future_wait, ignore_after, shield, try_current};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row, SimpleQueryMessage, Statement};

use crate::config::{Config, Reset, Server};
use crate::connect::{Driver, Session, cancel};
use crate::error::{Error, Fate};
use crate::reset::Resets;
use crate::rows::Rows;
use crate::statements::Statements;
use crate::transaction::Transaction;
use crate::wire::{Seen, Status};

/// How long the server may take to end a statement that was interrupted. After that, the connection
/// is closed.
pub const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// When a request to cancel is repeated: the first may have arrived before the statement that it is
/// for.
const CANCEL_AGAIN: Duration = Duration::from_millis(500);

/// A session with a database.
///
/// Statements are prepared once and kept (see [`Config::statement_cache`]), and their text is the
/// key. The parameters are those of tokio-postgres.
///
/// # Cancellation
///
/// Each method that awaits is an interruption point. If the wait for a statement is interrupted,
/// the method asks the server to cancel the statement and waits, shielded and for at most
/// [`CANCEL_WITHIN`], until the statement has ended. The error then tells what became of the
/// statement ([`Fate`]).
///
/// If the future of a statement is dropped, the next statement of the connection does that first,
/// or the pool when the connection comes back.
///
/// Statements of one connection run one after the other. While others run, none is cancelled.
///
/// # Errors
///
/// Each method returns an [`Error`]: the server's, if it refuses the statement; [`Error::Lost`], if
/// the connection has ended; the interruption.
pub struct Connection {
    client: Rc<Client>,
    config: Rc<Config>,
    server: Server,
    /// As of the last message of the server.
    seen: Rc<Seen>,
    line: Rc<Line>,
    driver: Task<()>,
    statements: RefCell<Statements>,
    left: Leftovers,
    /// How many savepoints were begun.
    savepoints: Cell<u32>,
    /// Held while the leftovers are removed. Statements wait for that.
    settling: Mutex<()>,
}

/// What a connection has in common with the task that moves its bytes.
struct Line {
    /// Why the connection has ended.
    end: RefCell<Option<Arc<tokio_postgres::Error>>>,
    resets: Resets,
}

/// What statements have left behind on the server.
#[derive(Default)]
pub(crate) struct Leftovers {
    /// How many statements run and are awaited.
    running: Cell<u32>,
    /// How many statements were begun. A statement has their number as its own.
    begun: Cell<u64>,
    /// The last number when a statement was abandoned: it may still run, and is not awaited any
    /// more.
    abandoned: Cell<Option<u64>>,
    /// Whether the abandoned statement is one that is never cancelled.
    is_committing: Cell<bool>,
    /// Whether the server may have more to say about the last statement, so that `status` may be
    /// old.
    is_unsure: Cell<bool>,
    /// Whether the holder has the client of tokio-postgres, whose requests are not noted.
    is_shared: Cell<bool>,
    /// The outermost transaction that was not ended; 0 is that of `BEGIN`, others are savepoints.
    transaction: Cell<Option<u32>>,
    /// Whether something has run since the last reset.
    is_used: Cell<bool>,
    /// Whether the connection is beyond repair.
    is_broken: Cell<bool>,
    /// Whether a pool replaces the connection: the server has ended the session, has become
    /// read-only, against the configuration, or has forgotten statements of the driver.
    is_unfit: Cell<bool>,
}

impl Leftovers {
    /// A statement has returned something. What was abandoned before it was begun has ended, since
    /// the server answers in order.
    fn has_reached(&self, number: u64) {
        if self.abandoned.get().is_some_and(|last| last < number) {
            self.abandoned.set(None);
            self.is_committing.set(false);
        }
    }
}

/// A statement that runs. Dropped before [`end`](Self::end), it is abandoned.
pub(crate) struct Running<'c> {
    left: &'c Leftovers,
    number: u64,
    on_interrupt: OnInterrupt,
    has_ended: bool,
}

impl Running<'_> {
    pub(crate) fn end(mut self) {
        self.has_ended = true;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.left.running.set(self.left.running.get() - 1);
        if !self.has_ended {
            self.left.abandoned.set(Some(self.left.begun.get()));
            self.left.is_committing.set(self.on_interrupt == OnInterrupt::Wait);
        }
    }
}

/// What happens to a statement whose wait is interrupted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnInterrupt {
    Cancel,
    /// As [`Cancel`](Self::Cancel). The request may be answered before its statement ends, as with
    /// a stream of rows.
    CancelStream,
    /// The statement is short, and its outcome matters more than its end: `COMMIT`.
    Wait,
}

impl Config {
    /// Connects, outside of any pool.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use pikake::postgres::{Config, Error};
    ///
    /// # async fn example() -> Result<(), Error> {
    /// let config: Config = "postgres://shop@localhost/shop".parse()?;
    /// let connection = config.connect().await?;
    /// let row = connection.query_one("SELECT 1 + $1::INTEGER", &[&1]).await?;
    /// assert_eq!(row.get::<_, i32>(0), 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Connect`], if no host can be connected to; [`Error::Config`]; the interruption.
    ///
    /// # Panics
    ///
    /// If polled outside a task.
    pub async fn connect(&self) -> Result<Connection, Error> {
        let Session { client, driver, seen, server, .. } = Session::open(self).await?;
        let line = Rc::new(Line { end: RefCell::default(), resets: Resets::new() });
        let driver =
            Builder::new().name("postgres connection").spawn(drive(driver, Rc::clone(&line)));
        Ok(Connection {
            client: Rc::new(client),
            config: Rc::new(self.clone()),
            server,
            seen,
            line,
            driver,
            statements: RefCell::new(Statements::new(self.capacity())),
            left: Leftovers::default(),
            savepoints: Cell::default(),
            settling: Mutex::new(()).named("postgres settling"),
        })
    }
}

/// Moves the bytes of a connection until the connection ends, or a reset fails.
///
/// The task is shielded: a shutdown interrupts the tasks that use the connection, and these need it
/// to clean up.
async fn drive(mut driver: Box<dyn Driver>, line: Rc<Line>) {
    let driven = poll_fn(|cx| {
        loop {
            let polled = driver.poll_message(cx);
            // The server's report to a reset says more than the end of the stream behind it.
            let end = match (line.resets.read(), polled) {
                (Err(error), _) | (_, Poll::Ready(Some(Err(error)))) => Some(error.into()),
                (_, Poll::Pending) => return Poll::Pending,
                (_, Poll::Ready(None)) => None,
                (_, Poll::Ready(Some(Ok(AsyncMessage::Notice(notice))))) => {
                    tracing::debug!(severity = notice.severity(), "{}", notice.message());
                    continue;
                }
                (_, Poll::Ready(Some(Ok(_)))) => continue,
            };
            line.end.replace(end);
            line.resets.end();
            return Poll::Ready(());
        }
    });
    drop(shield(future_wait(driven)).await);
}

impl Connection {
    /// Runs a statement, and returns its rows.
    ///
    /// # Errors
    ///
    /// See [`Connection`].
    pub async fn query(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.prepared(statement, async |it| self.client.query(&it, values).await).await
    }

    /// Runs a statement that returns one row.
    ///
    /// # Errors
    ///
    /// See [`Connection`]; also if there is another number of rows.
    pub async fn query_one(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, Error> {
        self.prepared(statement, async |it| self.client.query_one(&it, values).await).await
    }

    /// Runs a statement that returns one row or none.
    ///
    /// # Errors
    ///
    /// See [`Connection`]; also if there are more rows.
    pub async fn query_opt(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error> {
        self.prepared(statement, async |it| self.client.query_opt(&it, values).await).await
    }

    /// Runs a statement, and returns its rows one by one.
    ///
    /// # Errors
    ///
    /// See [`Connection`].
    pub async fn query_rows(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Rows<'_>, Error> {
        let begin = async |it| {
            let values = values.iter().map(|value| *value as &(dyn ToSql + Sync));
            self.client.query_raw(&it, values).await
        };
        let rows = self.prepared_as(OnInterrupt::CancelStream, statement, begin).await?;
        Ok(Rows::new(self, rows))
    }

    /// Runs a statement, and returns how many rows it changed.
    ///
    /// # Errors
    ///
    /// See [`Connection`].
    pub async fn execute(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.prepared(statement, async |it| self.client.execute(&it, values).await).await
    }

    /// Runs statements without values, separated by semicolons. They are not prepared.
    ///
    /// The server runs the statements in one transaction, unless they begin or end transactions
    /// themselves.
    ///
    /// # Errors
    ///
    /// See [`Connection`].
    pub async fn batch_execute(&self, statements: &str) -> Result<(), Error> {
        self.request(self.client.batch_execute(statements), OnInterrupt::Cancel).await
    }

    /// Runs statements without values, and returns what each returns, as text.
    ///
    /// # Errors
    ///
    /// See [`Connection`].
    pub async fn simple_query(&self, statements: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
        self.request(self.client.simple_query(statements), OnInterrupt::Cancel).await
    }

    /// Prepares a statement, or finds it among those that the connection keeps.
    ///
    /// The other methods do that themselves. This one is for [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// See [`Connection`].
    pub async fn prepare_cached(&self, statement: &str) -> Result<Statement, Error> {
        let known = self.statements.borrow_mut().get(statement);
        if let Some(known) = known {
            return Ok(known);
        }
        // In a box, as all that is rare: the future of a statement is a part of its caller's.
        let prepared = Box::pin(self.client.prepare(statement));
        let prepared = Box::pin(self.request(prepared, OnInterrupt::Cancel)).await;
        // The driver asks for types by statements that it keeps. A `DEALLOCATE ALL` has removed
        // them for good.
        if matches!(&prepared, Err(error) if error.code() == Some(&SqlState::INVALID_SQL_STATEMENT_NAME))
        {
            self.left.is_unfit.set(true);
        }
        let prepared = prepared?;
        self.statements.borrow_mut().insert(statement, prepared.clone());
        Ok(prepared)
    }

    /// How many prepared statements the connection keeps.
    pub fn cached_statements(&self) -> usize {
        self.statements.borrow().len()
    }

    /// Begins a transaction.
    ///
    /// # Errors
    ///
    /// See [`Connection`].
    pub async fn transaction(&mut self) -> Result<Transaction<'_>, Error> {
        self.transaction_as("").await
    }

    /// Begins a transaction with modes, as `ISOLATION LEVEL SERIALIZABLE, READ ONLY`.
    ///
    /// # Errors
    ///
    /// See [`Connection`].
    pub async fn transaction_as(&mut self, modes: &str) -> Result<Transaction<'_>, Error> {
        Transaction::begin(self, 0, &format!("BEGIN {modes}")).await
    }

    /// Runs any request of tokio-postgres on this connection, with the rules of [`Connection`] for
    /// interruptions.
    ///
    /// The fate of an interrupted request that the server answers is [`Fate::Unknown`], since a
    /// request such as `copy_out` is answered before its statement ends.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(connection: pikake::postgres::Connection) -> Result<(), pikake::postgres::Error> {
    /// let client = connection.client();
    /// let stream = connection.run(client.copy_out("COPY item TO STDOUT")).await?;
    /// # drop(stream);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`Connection`].
    pub async fn run<T>(
        &self,
        request: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        self.request(request, OnInterrupt::CancelStream).await
    }

    async fn request<T>(
        &self,
        request: impl Future<Output = Result<T, tokio_postgres::Error>>,
        on_interrupt: OnInterrupt,
    ) -> Result<T, Error> {
        self.settle().await.map_err(Error::before)?;
        self.perform(request, on_interrupt).await
    }

    /// The client of tokio-postgres. Requests that are not awaited in [`run`](Self::run) are not
    /// cancelled, and do not wait for the reset of the session ([`Reset::Session`]).
    pub fn client(&self) -> &Client {
        self.left.is_used.set(true);
        self.left.is_shared.set(true);
        self.left.is_unsure.set(true);
        &self.client
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.left.is_broken.get() || self.line.resets.has_failed() || self.client.is_closed()
    }

    /// Ends the connection. A statement that still runs is cancelled; a `COMMIT` is awaited, and so
    /// is the reset of a session.
    ///
    /// # Errors
    ///
    /// If a running statement could not be cancelled; the connection has ended then, too.
    pub async fn close(self) -> Result<(), Error> {
        self.settle().await
    }

    async fn prepared<T>(
        &self,
        text: &str,
        request: impl AsyncFn(Statement) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Error> {
        self.prepared_as(OnInterrupt::Cancel, text, request).await
    }

    /// Runs a prepared statement. If the server does not accept the prepared form any more,
    /// prepares it again.
    async fn prepared_as<T>(
        &self,
        on_interrupt: OnInterrupt,
        text: &str,
        request: impl AsyncFn(Statement) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Error> {
        let mut is_repeated = false;
        loop {
            let statement = self.prepare_cached(text).await.map_err(Error::before)?;
            // Pinned here, since an argument of an async function has its place twice.
            let request = pin!(request(statement));
            let refused = match self.request(request, on_interrupt).await {
                Err(error) if !is_repeated && is_stale(&error) => error,
                result => return result,
            };
            self.statements.borrow_mut().remove(text);
            self.client.clear_type_cache();
            // In a transaction, which has failed now, nothing more can run.
            self.be_sure().await?;
            if self.status() != Status::Idle {
                return Err(refused);
            }
            is_repeated = true;
        }
    }

    async fn perform<T>(
        &self,
        request: impl Future<Output = Result<T, tokio_postgres::Error>>,
        on_interrupt: OnInterrupt,
    ) -> Result<T, Error> {
        if self.is_closed() {
            return Err(Error::Lost { why: self.end(), fate: Fate::Undone });
        }
        let running = self.begin(on_interrupt);
        let mut request = pin!(request);
        match future_wait(request.as_mut()).await {
            Ok(result) => {
                if result.is_ok() {
                    self.left.has_reached(running.number);
                }
                running.end();
                result.map_err(|error| self.failed(error))
            }
            Err(why) => {
                self.left.is_unsure.set(true);
                let finished = ignore_after(CANCEL_WITHIN, self.finish(request, on_interrupt));
                let fate = match Box::pin(shield(finished)).await {
                    Some(Some(fate)) => {
                        running.end();
                        fate
                    }
                    Some(None) => Fate::Unknown,
                    None => {
                        self.left.is_broken.set(true);
                        Fate::Unknown
                    }
                };
                Err(Error::Interrupted { why, fate })
            }
        }
    }

    /// Awaits the end of an interrupted request. `None` if others run, which a request to cancel
    /// could hit.
    async fn finish<T>(
        &self,
        mut request: Pin<&mut impl Future<Output = Result<T, tokio_postgres::Error>>>,
        on_interrupt: OnInterrupt,
    ) -> Option<Fate> {
        let _turn = match on_interrupt {
            OnInterrupt::Wait => None,
            _ if self.left.running.get() > 1 => return None,
            _ => Some(self.settling.lock().await.ok()?),
        };
        let result = match on_interrupt {
            OnInterrupt::Wait => future_wait(request).await,
            _ => loop {
                let answer = ignore_after(CANCEL_AGAIN, future_wait(request.as_mut()));
                if let (_, Some(answer)) = join(self.cancel(), answer).await {
                    break answer;
                }
            },
        };
        Some(match result.ok()? {
            Ok(output) if on_interrupt == OnInterrupt::CancelStream => {
                drop(output);
                self.end_abandoned().await.ok()?;
                Fate::Unknown
            }
            Ok(_) => Fate::Completed,
            Err(error) => match self.failed(error) {
                // An error of tokio-postgres, as for a row too many, does not tell what the server
                // has done.
                Error::Statement(error) if error.as_db_error().is_some() => Fate::Undone,
                _ => Fate::Unknown,
            },
        })
    }

    /// Asks the server to cancel what runs. If this fails or is dropped, a request may still be
    /// under way, and the connection is not used again.
    async fn cancel(&self) -> Result<(), Error> {
        let was_broken = self.left.is_broken.replace(true);
        cancel(&self.config, &self.server, &self.client.cancel_token()).await?;
        self.left.is_broken.set(was_broken);
        Ok(())
    }

    /// Removes what earlier statements, and the last holder, have left: waits for the end of a
    /// reset, ends a statement that still runs, and rolls transactions back.
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        if self.line.resets.is_under_way() {
            Box::pin(self.line.resets.over()).await?;
        }
        let left = &self.left;
        let is_settled = left.abandoned.get().is_none() && left.transaction.get().is_none();
        if is_settled && !self.settling.is_locked() {
            return Ok(());
        }
        Box::pin(self.remove_leftovers()).await
    }

    async fn remove_leftovers(&self) -> Result<(), Error> {
        let left = &self.left;
        let _turn = self.settling.lock().await?;
        if left.abandoned.get().is_some() && left.running.get() == 0 {
            let ended = shield(ignore_after(CANCEL_WITHIN, self.end_abandoned())).await;
            if !matches!(ended, Some(Ok(()))) {
                left.is_broken.set(true);
            }
            ended.unwrap_or(Err(Error::lost(None)))?;
            left.abandoned.set(None);
            left.is_committing.set(false);
        }
        match left.transaction.get() {
            Some(number) => self.roll_back(number).await,
            None => Ok(()),
        }
    }

    async fn end_abandoned(&self) -> Result<(), Error> {
        self.left.is_unsure.set(true);
        if self.left.is_committing.get() {
            return self.be_sure().await;
        }
        loop {
            self.cancel().await?;
            if let Some(ended) = ignore_after(CANCEL_AGAIN, self.be_sure()).await {
                return ended;
            }
        }
    }

    async fn roll_back(&self, number: u32) -> Result<(), Error> {
        self.be_sure().await?;
        if self.status() == Status::Idle {
            self.left.transaction.set(None);
            return Ok(());
        }
        let text = match number {
            0 => "ROLLBACK".to_owned(),
            _ => format!("ROLLBACK TO SAVEPOINT {}", savepoint(number)),
        };
        let rolled_back = self.perform(self.client.batch_execute(&text), OnInterrupt::Wait).await;
        let (has_ended, result) = match rolled_back {
            // The savepoint itself had failed, and the transaction with it.
            Err(Error::Statement(_)) if number > 0 => (true, Ok(false)),
            Err(error @ Error::Interrupted { fate: Fate::Completed, .. }) => (true, Err(error)),
            Err(error) => (false, Err(error)),
            Ok(()) => (true, Ok(number > 0)),
        };
        if has_ended {
            self.left.transaction.set(None);
        }
        if !result? {
            return Ok(());
        }
        // A request of its own: until here, a rollback that was dropped can be repeated.
        let text = format!("RELEASE SAVEPOINT {}", savepoint(number));
        self.perform(self.client.batch_execute(&text), OnInterrupt::Wait).await
    }

    /// Waits until the server has answered everything, so that `status` is that of now.
    async fn be_sure(&self) -> Result<(), Error> {
        if self.left.is_unsure.get() {
            self.check().await?;
            self.left.is_unsure.set(self.left.is_shared.get());
        }
        Ok(())
    }

    /// Waits for an answer to an empty request.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        future_wait(self.client.check_connection()).await?.map_err(|error| self.failed(error))
    }

    pub(crate) fn begin(&self, on_interrupt: OnInterrupt) -> Running<'_> {
        let left = &self.left;
        left.is_used.set(true);
        left.running.set(left.running.get() + 1);
        left.begun.set(left.begun.get() + 1);
        Running { left, number: left.begun.get(), on_interrupt, has_ended: false }
    }

    /// An error of a request that was awaited to its end.
    pub(crate) fn failed(&self, error: tokio_postgres::Error) -> Error {
        self.left.is_unsure.set(true);
        match Error::from_driver(error, Fate::Unknown) {
            Error::Lost { why, fate } => {
                // Also before the driver has seen the end of the stream.
                self.left.is_unfit.set(true);
                Error::Lost { why: why.or_else(|| self.end()), fate }
            }
            error => {
                let is_read_only = error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION);
                if is_read_only && self.config.target() == TargetSessionAttrs::ReadWrite {
                    self.left.is_unfit.set(true);
                }
                error
            }
        }
    }

    fn status(&self) -> Status {
        self.seen.status.get()
    }

    /// Why the connection has ended.
    fn end(&self) -> Option<Arc<tokio_postgres::Error>> {
        self.line.end.borrow().clone()
    }

    /// Whether a pool makes another connection in place of this one.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_closed() || self.left.is_unfit.get()
    }

    /// Whether those who share the connection replace it. While a statement is being cancelled,
    /// that is not known yet, and the next statement waits for it.
    pub(crate) fn is_to_be_replaced(&self) -> bool {
        self.is_dead() && !self.settling.is_locked()
    }

    /// Notes that a transaction was not ended.
    pub(crate) fn leave(&self, number: u32) {
        let outermost = self.left.transaction.get().map_or(number, |other| other.min(number));
        self.left.transaction.set(Some(outermost));
    }

    /// The number of a new savepoint, higher than that of those around it. No two have the same
    /// name, so that none is taken for another.
    pub(crate) fn number_savepoint(&self) -> u32 {
        self.savepoints.set(self.savepoints.get() + 1);
        self.savepoints.get()
    }

    /// Whether the open transaction can be committed: no statement of it has failed.
    pub(crate) async fn is_committable(&self) -> Result<bool, Error> {
        self.settle().await.map_err(Error::before)?;
        self.be_sure().await?;
        Ok(self.status() != Status::Failed)
    }

    /// Ends a transaction with `COMMIT`, or a savepoint with `RELEASE`. Once polled, this reaches
    /// the server.
    pub(crate) async fn commit(&self, number: u32) -> Result<(), Error> {
        let text = match number {
            0 => "COMMIT".to_owned(),
            _ => format!("RELEASE SAVEPOINT {}", savepoint(number)),
        };
        self.perform(self.client.batch_execute(&text), OnInterrupt::Wait).await
    }

    /// Sends the statement that begins a transaction.
    pub(crate) async fn begin_transaction(&self, text: &str) -> Result<(), Error> {
        self.perform(self.client.batch_execute(text), OnInterrupt::Cancel).await
    }

    /// Whether nothing runs, and no transaction is open.
    fn is_idle(&self) -> bool {
        let left = &self.left;
        left.running.get() == 0
            && left.abandoned.get().is_none()
            && !left.is_unsure.get()
            && left.transaction.get().is_none()
            && self.status() == Status::Idle
    }

    fn needs_reset(&self) -> bool {
        self.config.resets() == Reset::Session && self.left.is_used.get()
    }

    /// Whether the next holder would find nothing of this one's.
    pub(crate) fn is_clean(&self) -> bool {
        self.is_idle() && !self.needs_reset()
    }

    /// Ends what is left, and begins to reset the session for the next holder.
    pub(crate) async fn clean(&self) -> Result<(), Error> {
        // The holder of the client is gone.
        self.left.is_shared.set(false);
        if !self.is_idle() {
            self.leave(0);
            self.settle().await?;
        }
        // Whatever has happened: the next holder gets no transaction.
        if self.status() != Status::Idle {
            return Err(Error::lost(None));
        }
        if self.needs_reset() {
            let begun = self.line.resets.begin(self.client.clone(), self.seen.has_prepared.take());
            begun.map_err(|error| self.failed(error))?;
        }
        self.left.is_used.set(false);
        Ok(())
    }
}

pub(crate) fn savepoint(number: u32) -> String {
    format!("pikake_{number}")
}

/// Whether the server refuses a prepared statement, and would accept it prepared again: its columns
/// have changed, the type of a value is gone, or the server has forgotten it. The server says so
/// before it runs anything.
fn is_stale(error: &Error) -> bool {
    let Some(report) = error.as_db_error() else { return false };
    match *report.code() {
        SqlState::INVALID_SQL_STATEMENT_NAME => true,
        SqlState::INTERNAL_ERROR => report.routine() == Some("getTypeBinaryInputInfo"),
        SqlState::FEATURE_NOT_SUPPORTED => report.routine() == Some("RevalidateCachedQuery"),
        _ => false,
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let left = &self.left;
        let resets = self.line.resets.is_under_way();
        let runs = left.abandoned.get().is_some() || left.is_broken.get() || resets;
        if !runs || self.driver.is_finished() {
            return;
        }
        // The driver would wait for the statement's end.
        self.driver.abort();
        if !left.is_committing.get() && try_current().is_some() {
            let (config, server) = (self.config.clone(), self.server.clone());
            let token = self.client.cancel_token();
            let cancelling = async move {
                let cancelled = ignore_after(CANCEL_WITHIN, cancel(&config, &server, &token)).await;
                if !matches!(cancelled, Some(Ok(()))) {
                    tracing::warn!(%server, "a statement may still run: its connection was dropped");
                }
            };
            Builder::new().name("postgres cancel").spawn(cancelling).detach();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("server", &self.server.to_string())
            .field("status", &self.status())
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
