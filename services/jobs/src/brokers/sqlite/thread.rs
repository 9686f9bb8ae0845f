//! The thread that owns a database: how tasks call it, and when a transaction begins.
//!
//! Calls that arrive while a transaction is being written share the next one: a hundred tasks that
//! publish share one write to the disk. The thread sleeps until a call arrives or something is due:
//! a delayed message, a heartbeat, a look at the messages and outcomes of other processes, which
//! cannot call it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use pikake_traps::{Reply, future_wait, start_thread, yield_thread_before_sleep};
use rusqlite::ErrorCode;

use crate::broker::BrokerError;
use crate::brokers::sqlite::bus::Subscriptions;
use crate::brokers::sqlite::database::Database;
use crate::brokers::sqlite::inbox::{Inbox, InboxState};
use crate::brokers::sqlite::maintenance::Maintenance;
use crate::brokers::sqlite::outcomes::Watches;
use crate::brokers::sqlite::schema::{concerns_all, failed};

/// The most calls in one transaction: the first one waits for all of them.
const CALLS_AT_ONCE: usize = 1_000;

/// After a transaction of this length, other processes get a gap to begin theirs in: they may be
/// waiting for the lock.
const LONG_TRANSACTION: Duration = Duration::from_millis(20);
/// The length of the gap, in which a waiting process tries to begin its transaction at least once.
const GAP: Duration = Duration::from_millis(3);

/// Why a call failed.
pub(crate) enum Failure {
    Broker(BrokerError),
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl From<BrokerError> for Failure {
    fn from(error: BrokerError) -> Self {
        Self::Broker(error)
    }
}

/// Work to be done in a transaction.
pub(crate) trait Call: Send {
    /// Does the work; an error fails the whole transaction.
    fn run(&mut self, database: &mut Database) -> rusqlite::Result<()>;
    /// Replies, after the transaction has been committed or has failed.
    fn finish(self: Box<Self>, failed: Option<BrokerError>);
}

struct Asked<W, T> {
    work: Option<W>,
    done: Option<Result<T, BrokerError>>,
    reply: Reply<Result<T, BrokerError>>,
}

impl<W, T> Call for Asked<W, T>
where
    W: FnOnce(&mut Database) -> Result<T, Failure> + Send,
    T: Send,
{
    fn run(&mut self, database: &mut Database) -> rusqlite::Result<()> {
        let Some(work) = self.work.take() else { return Ok(()) };
        self.done = Some(match work(database) {
            Ok(value) => Ok(value),
            Err(Failure::Broker(error)) => Err(error),
            Err(Failure::Database(error)) if concerns_all(&error) => return Err(error),
            Err(Failure::Database(error)) => Err(failed(&database.path, &error)),
        });
        Ok(())
    }

    fn finish(self: Box<Self>, failed: Option<BrokerError>) {
        match (failed, self.done) {
            (Some(error), _) => self.reply.send(Err(error)),
            (None, Some(done)) => self.reply.send(done),
            (None, None) => {}
        }
    }
}

/// The end of a consumer. A call like others, so that the acknowledgements before it take effect.
struct Ending {
    inbox: Arc<Inbox>,
    state: InboxState,
    reply: Reply<()>,
}

impl Call for Ending {
    fn run(&mut self, _: &mut Database) -> rusqlite::Result<()> {
        self.inbox.set_state(self.state);
        Ok(())
    }

    /// Ends the consumer also if the transaction failed before `run`.
    fn finish(self: Box<Self>, _: Option<BrokerError>) {
        self.inbox.set_state(self.state);
        self.reply.send(());
    }
}

enum Command {
    Call(Box<dyn Call>),
    /// Nothing: sending it shows whether the thread lives.
    Look,
    /// Ends the thread; the reply comes when everything is on the disk.
    Close(Reply<()>),
}

/// The way to the thread. When it is dropped, the thread requeues what its consumers hold, and
/// ends.
#[derive(Debug)]
pub(crate) struct Link {
    commands: Sender<Command>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) subscriptions: Arc<Subscriptions>,
}

impl Link {
    /// Opens a database in a thread of its own.
    pub(crate) async fn open(path: PathBuf, lease: Duration) -> Result<Self, BrokerError> {
        let (commands, received) = channel();
        let watches = Arc::new(Watches::default());
        let (reply, replied) = Reply::channel();
        let inside = watches.clone();
        let subscriptions = Arc::new(Subscriptions::default());
        let shared = subscriptions.clone();
        let life = move || match Database::open(path, lease, inside) {
            Ok(mut database) => {
                database.bus.subscriptions = shared;
                reply.send(Ok(()));
                Thread { database, maintenance: Maintenance::default(), received }.live();
            }
            Err(error) => reply.send(Err(error)),
        };
        start_thread("pikake-sqlite", life).map_err(BrokerError::Io)?;
        match future_wait(replied).await? {
            Some(opened) => opened.map(|()| Self { commands, watches, subscriptions }),
            None => Err(BrokerError::Closed),
        }
    }

    /// Does some work in the next transaction; returns when it has been committed.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Database) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, BrokerError> {
        let (reply, replied) = Reply::channel();
        let asked = Asked { work: Some(work), done: None, reply };
        self.send(Command::Call(Box::new(asked)))?;
        yield_thread_before_sleep();
        future_wait(replied).await?.ok_or(BrokerError::Closed)?
    }

    /// Does some work in the next transaction, without an answer.
    pub(crate) fn post(
        &self,
        work: impl FnOnce(&mut Database) -> Result<(), Failure> + Send + 'static,
    ) {
        let (reply, _) = Reply::channel();
        // A closed database has nothing left to be done.
        let _ = self.send(Command::Call(Box::new(Asked { work: Some(work), done: None, reply })));
    }

    /// Requeues what a dropped consumer holds.
    pub(crate) fn leave(&self, inbox: Arc<Inbox>) {
        let (reply, _) = Reply::channel();
        let ending = Ending { inbox, state: InboxState::Left, reply };
        let _ = self.send(Command::Call(Box::new(ending)));
    }

    /// Takes no more messages for a consumer, even if nothing can be written; those being taken at
    /// this moment still come.
    pub(crate) async fn cancel(&self, inbox: Arc<Inbox>) -> Result<(), BrokerError> {
        let (reply, replied) = Reply::channel();
        let ending = Ending { inbox, state: InboxState::Cancelled, reply };
        self.send(Command::Call(Box::new(ending)))?;
        future_wait(replied).await?.ok_or(BrokerError::Closed)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.send(Command::Look).is_ok()
    }

    pub(crate) async fn close(&self) -> Result<(), BrokerError> {
        let (reply, replied) = Reply::channel();
        if self.send(Command::Close(reply)).is_ok() {
            future_wait(replied).await?;
        }
        Ok(())
    }

    fn send(&self, command: Command) -> Result<(), BrokerError> {
        self.commands.send(command).map_err(|_| BrokerError::Closed)
    }
}

struct Thread {
    database: Database,
    maintenance: Maintenance,
    received: Receiver<Command>,
}

impl Thread {
    fn live(mut self) {
        loop {
            let mut calls = Vec::new();
            let mut closing = None;
            let mut next = match self.received.recv_timeout(self.maintenance.pause(&self.database))
            {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            while let Some(command) = next {
                match command {
                    Command::Call(call) => calls.push(call),
                    Command::Look => {}
                    Command::Close(reply) => {
                        closing = Some(reply);
                        break;
                    }
                }
                next = match calls.len() < CALLS_AT_ONCE {
                    true => self.received.try_recv().ok(),
                    false => None,
                };
            }
            self.serve(calls);
            if let Some(reply) = closing {
                drop(self.received);
                end(self.database);
                reply.send(());
                return;
            }
        }
        end(self.database);
    }

    /// Logs that the disk is full, and that it is not any more, once each. `before` is how many
    /// rows had been written, if the disk was full.
    fn tell_of_disk(&mut self, done: &rusqlite::Result<()>, before: Option<i64>) {
        let path = self.database.path.display();
        match (done, before) {
            (Err(error), None) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
                tracing::warn!(%path, "the disk is full: jobs wait until there is room for their outcomes and messages");
                self.database.is_disk_full = true;
            }
            (Ok(()), Some(before)) if changes(&self.database) > before => {
                tracing::info!(%path, "the disk has room again, and jobs go on");
                self.database.is_disk_full = false;
            }
            _ => {}
        }
    }

    fn serve(&mut self, mut calls: Vec<Box<dyn Call>>) {
        if let Err(error) = self.maintenance.look_around(&mut self.database) {
            self.database.fail(|| failed(&self.database.path, &error));
        }
        // In a transaction of its own: a call that fails, as on a full disk, must not end the
        // lease.
        if self.maintenance.may_send_heartbeat(&self.database) {
            let sent = transact(&mut self.database, Database::heartbeat);
            self.maintenance.heartbeat_sent(&self.database, sent);
        }
        let is_due = self.maintenance.may_fill(&self.database);
        if !calls.is_empty() || is_due {
            let changes = self.database.is_disk_full.then(|| changes(&self.database));
            let done = transact(&mut self.database, |database| {
                for call in &mut calls {
                    call.run(database)?;
                }
                self.maintenance.work(database)
            });
            self.tell_of_disk(&done, changes);
            for call in calls {
                let error = done.as_ref().err().map(|error| failed(&self.database.path, error));
                call.finish(error);
            }
            self.maintenance.worked(&self.database, done);
        }
        self.maintenance.rest(&mut self.database);
    }
}

/// How many rows have been written so far.
fn changes(database: &Database) -> i64 {
    let asked = database.db.query_row("SELECT total_changes()", [], |row| row.get(0));
    asked.unwrap_or_default()
}

/// Does some work in a transaction.
fn transact(
    database: &mut Database,
    work: impl FnOnce(&mut Database) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    database.check_file()?;
    std::thread::sleep(database.gap_until.saturating_duration_since(Instant::now()));
    database.db.execute_batch("BEGIN IMMEDIATE")?;
    let begun = Instant::now();
    let done = work(database).and_then(|()| database.db.execute_batch("COMMIT"));
    match &done {
        Ok(()) => database.settle(),
        Err(_) => {
            if !database.db.is_autocommit() {
                // If this fails, too, SQLite drops the transaction with the connection.
                let _ = database.db.execute_batch("ROLLBACK");
            }
            database.unsettle();
        }
    }
    if begun.elapsed() > LONG_TRANSACTION {
        database.gap_until = Instant::now() + GAP;
    }
    done
}

/// Requeues everything that is held.
fn end(mut database: Database) {
    // If this fails, the messages are requeued when the lease expires.
    if database.db.execute_batch("BEGIN IMMEDIATE").is_ok() && database.leave().is_ok() {
        let _ = database.db.execute_batch("COMMIT");
    }
}
