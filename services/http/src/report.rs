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
    /// How many of them were upgraded: their connections, or streams of HTTP/2, went on with
    /// another protocol ([`upgrade`](crate::upgrade)).
    pub upgraded: u64,
    /// How many requests were answered 503, without the service, since the server was
    /// [late](crate::Server::shed_after).
    pub shed: u64,
    /// The requests, upgrades and connections that were interrupted at the soft deadline.
    pub interrupted: Vec<Left>,
    /// The requests, upgrades and connections that were dropped, at the hard deadline or by a
    /// second interruption.
    pub dropped: Vec<Left>,
    /// The interruption that began the shutdown, for example by a signal; `None` if
    /// [`shutdown_when`](crate::Server::shutdown_when) did.
    pub ended_by: Option<Interrupted>,
    /// The interruption during the shutdown, if there was one: it drops what is left.
    pub cut_short_by: Option<Interrupted>,
}

impl Report {
    /// How many upgrades were interrupted at the soft deadline.
    pub fn upgrades_interrupted(&self) -> usize {
        count_upgrades(&self.interrupted)
    }

    /// How many upgrades were dropped, at the hard deadline or by a second interruption.
    pub fn upgrades_dropped(&self) -> usize {
        count_upgrades(&self.dropped)
    }

    pub(crate) fn because(self, source: io::Error) -> ServeError {
        ServeError { report: self, source }
    }
}

fn count_upgrades(left: &[Left]) -> usize {
    left.iter().filter(|left| left.is_upgrade).count()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests were answered", self.answered)?;
        if self.upgraded > 0 {
            write!(f, ", {} upgraded", self.upgraded)?;
        }
        if self.shed > 0 {
            write!(f, ", {} were shed", self.shed)?;
        }
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

/// A request that was not answered in time, an upgrade that had not ended, or a connection without
/// one.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Left {
    /// The client's address.
    pub peer: String,
    /// Method and target; `None` for a connection without a request.
    pub request: Option<String>,
    /// Whether the request was upgraded.
    pub is_upgrade: bool,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.request {
            Some(request) => {
                let upgrade = if self.is_upgrade { "upgrade " } else { "" };
                write!(f, "{upgrade}{request} from {}", self.peer)
            }
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
