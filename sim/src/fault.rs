//! Faults, as values and as text.
//!
//! A plan, drawn from a seed or written by hand, is a list of faults with times. It can be printed,
//! parsed, and made smaller by removing entries.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::latency::{Latency, ParseError, parse_length};

/// The links of a fault: those between two groups of hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Between {
    /// The hosts on one side.
    pub one: Vec<String>,
    /// The hosts on the other side.
    pub other: Vec<String>,
    /// Whether only the links from the first side to the second are meant.
    pub one_way: bool,
}

impl Between {
    /// The links between two groups, in both directions.
    pub fn two_way<S: Into<String>>(
        one: impl IntoIterator<Item = S>,
        other: impl IntoIterator<Item = S>,
    ) -> Self {
        let names = |side: &mut dyn Iterator<Item = S>| side.map(Into::into).collect();
        let (one, other) = (names(&mut one.into_iter()), names(&mut other.into_iter()));
        Self { one, other, one_way: false }
    }

    /// The links from the first group to the second.
    pub fn one_way<S: Into<String>>(
        from: impl IntoIterator<Item = S>,
        to: impl IntoIterator<Item = S>,
    ) -> Self {
        Self { one_way: true, ..Self::two_way(from, to) }
    }
}

/// A property of links that can be set.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum LinkChange {
    /// How long a packet takes.
    Latency(Latency),
    /// The probability that a packet is lost.
    Loss(f64),
    /// The probability that a datagram arrives twice.
    Duplicate(f64),
    /// The probability that a datagram is delayed, so later ones overtake it.
    Reorder(f64),
    /// Bytes per second; `None`: unlimited.
    Bandwidth(Option<u64>),
    /// The probability that a segment causes a reset.
    Reset(f64),
    /// The probability that an attempt to connect is refused.
    Refuse(f64),
}

/// A fault, or the repair of one.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The links lose all packets.
    Partition(Between),
    /// All links from and to a host lose all packets.
    Isolate(String),
    /// The links deliver packets again.
    Heal(Between),
    /// Repairs everything: links have no faults, and every host runs.
    HealAll,
    /// A property of links changes.
    Link(Between, LinkChange),
    /// The host refuses new connections, until [`Fault::Admit`].
    Refuse(String),
    /// The host accepts connections again.
    Admit(String),
    /// Resets all connections over the links.
    Reset(Between),
    /// Delays new connections to the host by this time before they can be accepted.
    SlowAccept(String, Duration),
    /// Sets the host's wall clock forward by these nanoseconds, or back.
    SetClock(String, i64),
    /// Makes the host's wall clock too fast by these millionths, or too slow.
    Drift(String, i32),
    /// Pauses the host. Packets still reach it.
    Pause(String),
    /// Resumes the host.
    Resume(String),
    /// Ends the host's tasks, as a loss of power. Its peers get no packets any more.
    PowerOff(String),
    /// Ends the host's tasks, as a kill of its process. Its peers get resets of their connections.
    Kill(String),
    /// Restarts a host that was powered off or killed, or whose program has ended.
    Restart(String),
    /// Makes the next step on the host take this time.
    LongStep(String, Duration),
    /// Sets the number of the host's helper threads; with zero, all closures wait.
    Helpers(String, usize),
    /// Cancels a task of the host while it waits in one of its traps; both are counted from one.
    /// The time of such an entry is ignored.
    Cancel {
        /// The host; for a task of one of its other kernels with the number of the kernel, as
        /// `server#1`.
        host: String,
        /// The task's number.
        task: u64,
        /// The number of the trap, of those that wait.
        trap: u64,
    },
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.one_way { '>' } else { '|' };
        write!(f, "{} {sign} {}", self.one.join(","), self.other.join(","))
    }
}

impl FromStr for Between {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let names = |side: &str| side.split(',').map(|name| name.trim().to_owned()).collect();
        for (sign, one_way) in [('|', false), ('>', true)] {
            if let Some((one, other)) = text.split_once(sign) {
                return Ok(Self { one: names(one), other: names(other), one_way });
            }
        }
        Err(ParseError::new("two groups of hosts, as `a,b | c` or `a > b`", text))
    }
}

impl fmt::Display for LinkChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latency(latency) => write!(f, "latency {latency}"),
            Self::Loss(likely) => write!(f, "loss {likely}"),
            Self::Duplicate(likely) => write!(f, "duplicate {likely}"),
            Self::Reorder(likely) => write!(f, "reorder {likely}"),
            Self::Bandwidth(Some(rate)) => write!(f, "bandwidth {rate}"),
            Self::Bandwidth(None) => f.write_str("bandwidth unlimited"),
            Self::Reset(likely) => write!(f, "reset {likely}"),
            Self::Refuse(likely) => write!(f, "refuse {likely}"),
        }
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, ParseError> {
    text.trim().parse().map_err(|_| ParseError::new("a number", text))
}

impl FromStr for LinkChange {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (what, value) = first_word(text);
        Ok(match what {
            "latency" => Self::Latency(value.parse()?),
            "loss" => Self::Loss(number(value)?),
            "duplicate" => Self::Duplicate(number(value)?),
            "reorder" => Self::Reorder(number(value)?),
            "bandwidth" if value == "unlimited" => Self::Bandwidth(None),
            "bandwidth" => Self::Bandwidth(Some(number(value)?)),
            "reset" => Self::Reset(number(value)?),
            "refuse" => Self::Refuse(number(value)?),
            _ => return Err(ParseError::new("a property of a link", text)),
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(between) => write!(f, "partition {between}"),
            Self::Isolate(host) => write!(f, "isolate {host}"),
            Self::Heal(between) => write!(f, "heal {between}"),
            Self::HealAll => f.write_str("heal-all"),
            Self::Link(between, change) => write!(f, "link {between} : {change}"),
            Self::Refuse(host) => write!(f, "refuse {host}"),
            Self::Admit(host) => write!(f, "admit {host}"),
            Self::Reset(between) => write!(f, "reset {between}"),
            Self::SlowAccept(host, by) => write!(f, "slow-accept {host} {by:?}"),
            Self::SetClock(host, by) => write!(f, "set-clock {host} {by}"),
            Self::Drift(host, millionths) => write!(f, "drift {host} {millionths}"),
            Self::Pause(host) => write!(f, "pause {host}"),
            Self::Resume(host) => write!(f, "resume {host}"),
            Self::PowerOff(host) => write!(f, "power-off {host}"),
            Self::Kill(host) => write!(f, "kill {host}"),
            Self::Restart(host) => write!(f, "restart {host}"),
            Self::LongStep(host, length) => write!(f, "long-step {host} {length:?}"),
            Self::Helpers(host, count) => write!(f, "helpers {host} {count}"),
            Self::Cancel { host, task, trap } => write!(f, "cancel {host} {task} {trap}"),
        }
    }
}

fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}

impl FromStr for Fault {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (what, rest) = first_word(text);
        let (host, value) = first_word(rest);
        let name = || match host.is_empty() {
            true => Err(ParseError::new("the name of a host", text)),
            false => Ok(host.to_owned()),
        };
        Ok(match what {
            "partition" => Self::Partition(rest.parse()?),
            "isolate" => Self::Isolate(name()?),
            "heal" => Self::Heal(rest.parse()?),
            "heal-all" => Self::HealAll,
            "link" => {
                let (between, change) = rest
                    .split_once(':')
                    .ok_or_else(|| ParseError::new("`link a | b : property`", text))?;
                Self::Link(between.parse()?, change.parse()?)
            }
            "refuse" => Self::Refuse(name()?),
            "admit" => Self::Admit(name()?),
            "reset" => Self::Reset(rest.parse()?),
            "slow-accept" => Self::SlowAccept(name()?, parse_length(value)?),
            "set-clock" => Self::SetClock(name()?, number(value)?),
            "drift" => Self::Drift(name()?, number(value)?),
            "pause" => Self::Pause(name()?),
            "resume" => Self::Resume(name()?),
            "power-off" => Self::PowerOff(name()?),
            "kill" => Self::Kill(name()?),
            "restart" => Self::Restart(name()?),
            "long-step" => Self::LongStep(name()?, parse_length(value)?),
            "helpers" => Self::Helpers(name()?, number(value)?),
            "cancel" => {
                let (task, trap) = first_word(value);
                Self::Cancel { host: name()?, task: number(task)?, trap: number(trap)? }
            }
            _ => return Err(ParseError::new("a fault", text)),
        })
    }
}

/// A fault and its time.
#[derive(Clone, PartialEq, Debug)]
pub struct TimedFault {
    /// The virtual time, from the start of the run.
    pub at: Duration,
    /// The fault.
    pub fault: Fault,
}

impl fmt::Display for TimedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.at, self.fault)
    }
}

impl FromStr for TimedFault {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (at, fault) = first_word(text);
        Ok(Self { at: parse_length(at)?, fault: fault.parse()? })
    }
}
