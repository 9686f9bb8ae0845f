//! Errors: what the server refuses, what is lost, and what was interrupted.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use pikake_traps::Interrupted;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// What became of an interrupted statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fate {
    /// The statement was not sent, or the server cancelled or refused it.
    Undone,
    /// The statement had ended before the server could cancel it.
    Completed,
    /// The server has not answered yet, or not in time.
    Unknown,
}

/// Why a statement, a connection or a transaction failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The wait was interrupted, and the server was asked to cancel the statement.
    Interrupted {
        /// The interruption.
        why: Interrupted,
        /// What became of the statement.
        fate: Fate,
    },
    /// The server refused the statement, or the statement and the values do not fit.
    Statement(Arc<tokio_postgres::Error>),
    /// The connection is lost.
    Lost {
        /// The end of the connection, if that is known.
        why: Option<Arc<tokio_postgres::Error>>,
        /// What became of the statement: [`Fate::Undone`] if it was not sent, otherwise
        /// [`Fate::Unknown`].
        fate: Fate,
    },
    /// No host can be connected to.
    Connect(ConnectError),
    /// The transaction cannot be committed, since a statement in it has failed. The transaction was
    /// rolled back.
    Aborted,
    /// The configuration, or the name of a channel, is not usable.
    Config(String),
}

impl Error {
    /// The server's report, if the server refused something.
    pub fn as_db_error(&self) -> Option<&DbError> {
        match self {
            Self::Statement(error) | Self::Lost { why: Some(error), .. } => error.as_db_error(),
            _ => None,
        }
    }

    /// The server's code for what it refused.
    pub fn code(&self) -> Option<&SqlState> {
        self.as_db_error().map(DbError::code)
    }

    /// Whether the wait was interrupted.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Interrupted { .. })
    }

    /// What became of the statement: whether it may have taken effect.
    ///
    /// [`Fate::Unknown`] also for a statement whose answer could not be read, as with
    /// [`query_one`](crate::Connection::query_one) and two rows.
    pub fn fate(&self) -> Fate {
        match self {
            Self::Interrupted { fate, .. } | Self::Lost { fate, .. } => *fate,
            Self::Statement(error) if error.as_db_error().is_none() => Fate::Unknown,
            Self::Statement(_) | Self::Connect(_) | Self::Aborted | Self::Config(_) => Fate::Undone,
        }
    }

    /// The error of something that precedes a statement: the statement itself was not sent.
    pub(crate) fn before(mut self) -> Self {
        if let Self::Interrupted { fate, .. } | Self::Lost { fate, .. } = &mut self {
            *fate = Fate::Undone;
        }
        self
    }

    pub(crate) fn lost(why: Option<Arc<tokio_postgres::Error>>) -> Self {
        Self::Lost { why, fate: Fate::Unknown }
    }

    /// An error that happened while connecting or while a statement ran.
    pub(crate) fn from_driver(error: tokio_postgres::Error, fate: Fate) -> Self {
        let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        match io.and_then(|io| pikake_net::interruption(io)) {
            Some(why) => Self::Interrupted { why: why.clone(), fate },
            None if error.is_closed() => Self::Lost { why: None, fate },
            // A statement that cannot be encoded is not sent.
            None if io.is_some_and(|io| io.kind() != io::ErrorKind::InvalidInput)
                || is_last_word(&error) =>
            {
                Self::Lost { why: Some(error.into()), fate }
            }
            None => Self::Statement(error.into()),
        }
    }

    /// An error that has ended a connection.
    pub(crate) fn from_end(error: tokio_postgres::Error) -> Self {
        match Self::from_driver(error, Fate::Unknown) {
            Self::Statement(error) => Self::lost(Some(error)),
            other => other,
        }
    }
}

/// The wait was interrupted before anything was sent.
impl From<Interrupted> for Error {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted { why, fate: Fate::Undone }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted { why, fate } => {
                let fate = match fate {
                    Fate::Undone => "the statement has not taken effect",
                    Fate::Completed => "the statement had ended already",
                    Fate::Unknown => "it is unknown whether the statement took effect",
                };
                write!(f, "{why}; {fate}")
            }
            Self::Statement(error) => Plain(error).fmt(f),
            Self::Lost { why: None, .. } => f.write_str("the connection to the database is closed"),
            Self::Lost { why: Some(why), .. } => {
                write!(f, "the connection to the database is lost: {}", Plain(why))
            }
            Self::Connect(error) => error.fmt(f),
            Self::Aborted => f.write_str(
                "the transaction was rolled back instead of committed, since a statement in it had failed",
            ),
            Self::Config(text) => f.write_str(text),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Interrupted { why, .. } => Some(why),
            Self::Statement(error) | Self::Lost { why: Some(error), .. } => error.source(),
            _ => None,
        }
    }
}

/// The server's own words, or those of the driver with their cause.
struct Plain<'a>(&'a tokio_postgres::Error);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.as_db_error(), self.0.source()) {
            (Some(report), _) => report.fmt(f),
            (None, Some(source)) => write!(f, "{}: {source}", self.0),
            (None, None) => self.0.fmt(f),
        }
    }
}

/// Whether the server has ended the session with this report.
fn is_last_word(error: &tokio_postgres::Error) -> bool {
    let severity = error.as_db_error().and_then(DbError::parsed_severity);
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

/// Why each host could not be connected to.
#[derive(Clone, Debug)]
pub struct ConnectError {
    pub(crate) attempts: Vec<(String, Refusal)>,
}

/// Why a host could not be connected to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The host cannot be reached, or the TLS handshake failed.
    Io(Arc<io::Error>),
    /// The host did not answer in time.
    TimedOut,
    /// The server, or the login, failed.
    Server(Error),
    /// The server allows no writes, or does, and `target_session_attrs` asks for the other.
    OtherSession,
}

impl ConnectError {
    /// The hosts in the order of the attempts, and why each was not connected to.
    pub fn attempts(&self) -> &[(String, Refusal)] {
        &self.attempts
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Server(Error::Statement(error) | Error::Lost { why: Some(error), .. }) => {
                Plain(error).fmt(f)
            }
            Self::Server(error) => error.fmt(f),
            Self::OtherSession => f.write_str("not the session that target_session_attrs asks for"),
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection to the database")?;
        for (host, refusal) in &self.attempts {
            write!(f, "; {host}: {refusal}")?;
        }
        Ok(())
    }
}

impl StdError for ConnectError {}
