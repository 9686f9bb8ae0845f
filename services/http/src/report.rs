//! What a server says at its end.

use std::error::Error;
use std::fmt;
use std::io;

/// What a server has done, and whom it had to cut short.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// How many requests were answered.
    pub answered: u64,
    /// Who was left at the soft deadline and was told to end.
    pub told: Vec<Left>,
    /// Who was left at the hard deadline and was dropped.
    pub dropped: Vec<Left>,
}

impl Report {
    pub(crate) fn because(self, source: io::Error) -> ServeError {
        ServeError { report: self, source }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests were answered", self.answered)?;
        for (what, left) in [("told to end", &self.told), ("dropped", &self.dropped)] {
            for (number, left) in left.iter().enumerate() {
                f.write_str(if number == 0 { "; " } else { ", " })?;
                match number {
                    0 => write!(f, "{what}: {left}")?,
                    _ => write!(f, "{left}")?,
                }
            }
        }
        Ok(())
    }
}

/// A request that was not answered in time, or a connection without one.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Left {
    /// Where it came from.
    pub peer: String,
    /// Method and target; `None` for a connection that was in no request.
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

/// Why a server ended that was not asked to, and what it had done by then.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServeError {
    /// What it had done.
    pub report: Report,
    /// The interruption, which [`pikake_net::interruption`] finds, or the listener's error.
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
