//! The report of a server at its end.

use std::error::Error;
use std::fmt;
use std::io;

use pikake_traps::Interrupted;

/// What a server did up to its end: its count of requests, and those that a shutdown has cut short.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// How many requests were answered.
    pub answered: u64,
    /// The requests and connections that were interrupted at the soft deadline.
    pub interrupted: Vec<Left>,
    /// The requests and connections that were dropped, at the hard deadline or by a second
    /// interruption.
    pub dropped: Vec<Left>,
    /// The interruption that began the shutdown, for example by a signal; `None` if
    /// [`shutdown_when`](crate::Server::shutdown_when) did.
    pub ended_by: Option<Interrupted>,
    /// The interruption during the shutdown, if there was one: it drops what is left.
    pub cut_short_by: Option<Interrupted>,
}

impl Report {
    pub(crate) fn because(self, source: io::Error) -> ServeError {
        ServeError { report: self, source }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests were answered", self.answered)?;
        for (what, left) in [("interrupted", &self.interrupted), ("dropped", &self.dropped)] {
            for (number, left) in left.iter().enumerate() {
                f.write_str(if number == 0 { "; " } else { ", " })?;
                match number {
                    0 => write!(f, "{what}: {left}")?,
                    _ => write!(f, "{left}")?,
                }
            }
        }
        for (what, cause) in [("ended", &self.ended_by), ("cut short", &self.cut_short_by)] {
            if let Some(cause) = cause {
                write!(f, "; {what}: {cause}")?;
            }
        }
        Ok(())
    }
}

/// A request that was not answered in time, or a connection without one.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Left {
    /// The client's address.
    pub peer: String,
    /// Method and target; `None` for a connection without a request.
    pub request: Option<String>,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.request {
            Some(request) => write!(f, "{request} from {}", self.peer),
            None => write!(f, "the connection from {}", self.peer),
        }
    }
}

/// Why a server failed, and its report.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServeError {
    /// The report up to then.
    pub report: Report,
    /// The listener's error, or the panic of its `accept`.
    pub source: io::Error,
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "serving HTTP ended: {} ({})", self.source, self.report)
    }
}

impl Error for ServeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}
