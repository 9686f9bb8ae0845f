//! The database file: how it is opened, its tables, and what its errors mean. Versions of the
//! program that share a database have to agree on this file alone.

use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error, ErrorCode, OpenFlags};

use crate::broker::BrokerError;
use crate::brokers::sqlite::bus::make_tables;

/// Marks a database as ours, whatever its file is called ("PKJB").
const APPLICATION_ID: i32 = 0x504B_4A42;

/// The version of the tables below.
const SCHEMA_VERSION: i32 = 3;

/// How long a statement waits for another process that writes; a transaction takes milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between two tries. SQLite's own grow to 100 ms, and miss the gaps between the
/// transactions of a busy process.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// How many prepared statements are kept: all that there are.
const STATEMENTS: usize = 80;

/// Times are microseconds since 1970, but for `clock.now` and `lease.until`, which are the
/// database's own time (`lease.rs`). `rank` is minus the priority. An `id` is never used again, and
/// orders the messages of a rank; a delayed message gets a new one when its time has come.
/// `message.taken_by` is the lease under which the message is held. An outcome is removed a day
/// after its `since`, which lies ahead or back if the outcome is to be kept longer or shorter.
const TABLES: &str = "
CREATE TABLE queue (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    max_priority INTEGER NOT NULL
) STRICT;
CREATE TABLE clock (now INTEGER NOT NULL) STRICT;
INSERT INTO clock VALUES (0);
CREATE TABLE lease (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    until INTEGER NOT NULL
) STRICT;
CREATE TABLE message (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL REFERENCES queue,
    rank INTEGER NOT NULL,
    not_before INTEGER,
    expires INTEGER,
    taken_by INTEGER,
    deliveries INTEGER NOT NULL DEFAULT 0,
    properties TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX message_ready ON message (queue, rank, id) WHERE taken_by IS NULL AND not_before IS NULL;
CREATE INDEX message_delayed ON message (queue, not_before, id) WHERE not_before IS NOT NULL;
CREATE INDEX message_expires ON message (expires) WHERE expires IS NOT NULL;
CREATE INDEX message_taken ON message (taken_by) WHERE taken_by IS NOT NULL;
CREATE TABLE dead (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL REFERENCES queue,
    job TEXT,
    reason TEXT NOT NULL,
    since INTEGER NOT NULL,
    properties TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX dead_queue ON dead (queue, job);
CREATE TABLE outcome (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL UNIQUE,
    since INTEGER NOT NULL,
    state INTEGER NOT NULL,
    result TEXT NOT NULL,
    traceback TEXT
) STRICT;
CREATE INDEX outcome_since ON outcome (since);
";

/// The members of chords. Made by the first one that ends, so that databases of this version get
/// the table, too.
pub(crate) const CHORDS: &str = "
CREATE TABLE IF NOT EXISTS chord (
    chord TEXT NOT NULL,
    place INTEGER NOT NULL,
    job TEXT NOT NULL,
    since INTEGER NOT NULL,
    meta BLOB NOT NULL,
    PRIMARY KEY (chord, place, job)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS chord_since ON chord (since);
";

/// The locks of unique jobs. Made by the first one, so that databases of this version get the
/// table, too.
pub(crate) const LOCKS: &str = "
CREATE TABLE IF NOT EXISTS unique_lock (
    key TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    ends INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS unique_lock_ends ON unique_lock (ends);
";

/// Opens the database, and makes it if there is none.
///
/// WAL: readers never wait for the writer. `synchronous = FULL`: a transaction is on the disk when
/// it has been committed, so neither a killed process nor a power failure loses what was confirmed.
pub(crate) fn open(path: &Path) -> Result<Connection, BrokerError> {
    let fail = |error| failed(path, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(fail)?;
    connection.busy_handler(Some(wait_for_writer)).map_err(fail)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Else a prepared statement is compiled again whenever other values are bound.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(fail)?;
    check_or_make(&connection, path)?;
    let mut tries = 0;
    let mode: String = loop {
        match connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)) {
            // Where two connections change the mode at once, SQLite fails without a call of the
            // busy handler.
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && wait_for_writer(tries) =>
            {
                tries += 1;
            }
            mode => break mode.map_err(fail)?,
        }
    };
    if mode != "wal" {
        return Err(BrokerError::Refused(format!(
            "{}: this file system allows SQLite no write-ahead log (it stays in mode {mode}); put \
             the file on a local disk",
            path.display()
        )));
    }
    connection.execute_batch("PRAGMA synchronous = FULL").map_err(fail)?;
    make_tables(&connection).map_err(fail)?;
    Ok(connection)
}

/// Called by SQLite before each further try to begin a transaction; `false` ends the tries.
fn wait_for_writer(tries: i32) -> bool {
    std::thread::sleep(BUSY_PAUSE);
    u128::from(tries.unsigned_abs()) < BUSY_TIMEOUT.as_millis() / BUSY_PAUSE.as_millis()
}

fn check_or_make(connection: &Connection, path: &Path) -> Result<(), BrokerError> {
    let fail = |error| failed(path, &error);
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i32>(0));
    let is_ours = || -> rusqlite::Result<Option<i32>> {
        let id = number("PRAGMA application_id")?;
        Ok((id == APPLICATION_ID).then_some(number("PRAGMA user_version")?))
    };
    if is_ours().map_err(fail)?.is_none() {
        // Another process may be making it at this moment; it is seen whole, or not at all.
        connection.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
        let made = is_ours().map_err(fail)?.is_some();
        let tables = number("SELECT count(*) FROM sqlite_schema").map_err(fail)?;
        if !made && tables > 0 {
            return Err(BrokerError::Refused(format!(
                "{} is a database of something else; give jobs a file of their own",
                path.display()
            )));
        }
        if !made {
            connection.execute_batch(TABLES).map_err(fail)?;
            connection.pragma_update(None, "application_id", APPLICATION_ID).map_err(fail)?;
            connection.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(fail)?;
        }
        connection.execute_batch("COMMIT").map_err(fail)?;
    }
    match is_ours().map_err(fail)? {
        Some(SCHEMA_VERSION) => Ok(()),
        version => Err(BrokerError::Refused(format!(
            "{} was made by another version of this program (tables of version {}, not \
             {SCHEMA_VERSION}); let that version finish its jobs, or take another file",
            path.display(),
            version.unwrap_or_default()
        ))),
    }
}

/// The broker's error for one of SQLite.
pub(crate) fn failed(path: &Path, error: &Error) -> BrokerError {
    if let Error::InvalidPath(path) = error {
        let what = "it was deleted or replaced while it was open; what it had cannot be reached any \
                    more. Start again";
        let what = format!("{}: {what}", path.display());
        return BrokerError::Io(io::Error::new(io::ErrorKind::NotFound, what));
    }
    let code = error.sqlite_error_code();
    let kind = match code {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            return BrokerError::Lost(format!(
                "{}: another process has been writing for {BUSY_TIMEOUT:?} ({error})",
                path.display()
            ));
        }
        Some(ErrorCode::TooBig) => {
            return BrokerError::Refused(format!("the message is too big for SQLite ({error})"));
        }
        Some(ErrorCode::DiskFull) => io::ErrorKind::StorageFull,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => io::ErrorKind::InvalidData,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => io::ErrorKind::PermissionDenied,
        Some(ErrorCode::CannotOpen) if !directory(path).exists() => io::ErrorKind::NotFound,
        Some(ErrorCode::CannotOpen) => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    let hint = match kind {
        io::ErrorKind::StorageFull => ": make room on the disk and try again; nothing is lost",
        io::ErrorKind::InvalidData => ": restore the file from a copy, or move it out of the way",
        io::ErrorKind::PermissionDenied => ": the file and its directory have to be writable",
        io::ErrorKind::NotFound => ": its directory does not exist",
        _ => "",
    };
    BrokerError::Io(io::Error::new(kind, format!("{}: {error}{hint}", path.display())))
}

/// Whether this error fails the whole transaction, and not one statement alone.
pub(crate) fn concerns_all(error: &Error) -> bool {
    !matches!(error.sqlite_error_code(), Some(ErrorCode::TooBig))
}

/// The directory that the file is in.
pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
