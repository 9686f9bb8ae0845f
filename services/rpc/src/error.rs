//! Why a call has no answer.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use pikake_traps::Interrupted;

use crate::packet_error::PacketError;

/// Whether the server may have executed a call that failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Executed {
    /// The handler has not started: another attempt does nothing twice.
    No,
    /// Nobody here knows.
    Maybe,
    /// The handler has started, and perhaps ended.
    Yes,
}

/// Why a call has no answer of the service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CallFailure {
    /// An interruption of the caller, such as a deadline of `timeout_after` or a cancel.
    Interrupted(Interrupted),
    /// The connection was lost, or could not be made.
    Connection(PacketError),
    /// The arguments could not be made bytes, or are larger than the server takes.
    Encode(String),
    /// The answer could not be understood.
    Answer(String),
    /// The server could not understand the arguments.
    Arguments(String),
    /// The server has no such method.
    UnknownMethod,
    /// The server has too many calls under way.
    Overloaded,
    /// The server is shutting down.
    ShuttingDown,
    /// The server refused the call, as for want of a permission.
    Refused(String),
    /// The handler panicked. The server's log has the message.
    Panicked,
    /// The handler ended without an answer: it was interrupted, or dropped when its time was over.
    Ended(String),
    /// Too many calls have failed recently, so this one was not sent.
    BreakerOpen,
}

/// A call that has no answer of the service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallError {
    /// The service and the method, as `Accounts.transfer`.
    pub method: &'static str,
    /// The server.
    pub peer: String,
    /// Why.
    pub failure: CallFailure,
    /// Whether the server may have executed the call.
    pub executed: Executed,
}

impl CallError {
    /// An error of a call of `method`, such as `Accounts.transfer`. For tests of code that calls
    /// services.
    pub fn new(
        method: &'static str,
        peer: impl Into<String>,
        failure: CallFailure,
        executed: Executed,
    ) -> Self {
        Self { method, peer: peer.into(), failure, executed }
    }

    /// The interruption, if the caller was interrupted.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        match &self.failure {
            CallFailure::Interrupted(interrupted) => Some(interrupted),
            CallFailure::Connection(error) => error.interrupted(),
            _ => None,
        }
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted(interrupted) => write!(f, "{interrupted}"),
            Self::Connection(error) => write!(f, "{error}"),
            Self::Encode(text) => write!(f, "the arguments cannot be sent: {text}"),
            Self::Answer(text) => write!(f, "the answer cannot be read: {text}"),
            Self::Arguments(text) => write!(f, "the server cannot read the arguments: {text}"),
            Self::UnknownMethod => f.write_str("the server has no such method"),
            Self::Overloaded => f.write_str("the server has too many calls under way"),
            Self::ShuttingDown => f.write_str("the server is shutting down"),
            Self::Refused(text) => write!(f, "refused: {text}"),
            Self::Panicked => f.write_str("the handler panicked"),
            Self::Ended(text) => write!(f, "the handler ended without an answer: {text}"),
            Self::BreakerOpen => f.write_str("not sent, because too many calls have failed"),
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, peer, failure, executed } = self;
        write!(f, "{method} at {peer}: {failure}")?;
        match executed {
            Executed::No => f.write_str("; not executed"),
            Executed::Maybe => f.write_str("; perhaps executed"),
            Executed::Yes => Ok(()),
        }
    }
}

impl StdError for CallFailure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Interrupted(interrupted) => Some(interrupted),
            Self::Connection(error) => Some(error),
            _ => None,
        }
    }
}

/// The source is that of the failure, whose text is part of the error's.
impl StdError for CallError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.failure.source()
    }
}

impl From<CallError> for io::Error {
    fn from(error: CallError) -> Self {
        if let Some(interrupted) = error.interrupted() {
            return interrupted.clone().into();
        }
        let kind = match &error.failure {
            CallFailure::Connection(error) => Self::from(error.clone()).kind(),
            CallFailure::Encode(_) => io::ErrorKind::InvalidInput,
            CallFailure::Answer(_) => io::ErrorKind::InvalidData,
            CallFailure::UnknownMethod => io::ErrorKind::Unsupported,
            CallFailure::Refused(_) => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Why a call of a method that returns a `Result` has no value: the service's own error, or none of
/// the service.
#[derive(Clone, Debug)]
pub enum Error<E> {
    /// The handler returned this error.
    Service(E),
    /// There is no answer of the service.
    Call(CallError),
}

impl<E> Error<E> {
    /// The interruption, if the caller was interrupted.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        match self {
            Self::Service(_) => None,
            Self::Call(error) => error.interrupted(),
        }
    }

    /// Whether the server may have executed the call.
    pub fn executed(&self) -> Executed {
        match self {
            Self::Service(_) => Executed::Yes,
            Self::Call(error) => error.executed,
        }
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(error) => error.fmt(f),
            Self::Call(error) => error.fmt(f),
        }
    }
}

impl<E: StdError + 'static> StdError for Error<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Service(error) => error.source(),
            Self::Call(error) => error.source(),
        }
    }
}

/// A service's error has the kind [`Other`](io::ErrorKind::Other).
impl<E: StdError + Send + Sync + 'static> From<Error<E>> for io::Error {
    fn from(error: Error<E>) -> Self {
        match error {
            Error::Service(error) => Self::other(error),
            Error::Call(error) => error.into(),
        }
    }
}

impl<E> From<CallError> for Error<E> {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}
