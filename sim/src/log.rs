//! The log of a run: its last events, and a hash of all events.
//!
//! The hash is chained: each event is mixed into the hash of the events before it. So two runs with
//! the same final hash had the same events.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

use pikake_traps::{Exit, TaskId, TrapKind};

use crate::clock::shown;
use crate::rng::{MIX_START, mix};

/// The number of events that a failure shows.
const SHOWN: usize = 40;

/// A kernel of a host, by the numbers of both. The main kernel has the number zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct KernelKey {
    pub(crate) host: usize,
    pub(crate) kernel: usize,
}

impl KernelKey {
    /// The main kernel of a host.
    pub(crate) fn main_of(host: usize) -> Self {
        Self { host, kernel: 0 }
    }
}

/// The name of a host, and the number of its kernels.
#[derive(Clone, Debug)]
pub(crate) struct HostName {
    pub(crate) host: String,
    pub(crate) kernels: usize,
}

impl HostName {
    /// The name of a kernel in messages: that of the host, with a number if the host has several
    /// kernels, as `server#1`.
    pub(crate) fn of_kernel(&self, kernel: usize) -> String {
        match self.kernels {
            1 => self.host.clone(),
            _ => format!("{}#{kernel}", self.host),
        }
    }
}

/// The reason why something did not reach its receiver.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Loss {
    /// By the link's own chance of loss.
    Chance,
    /// No packets go between the two hosts.
    Cut,
    /// A segment before it is missing, so both are sent again.
    Early,
    /// Nobody receives at the address.
    Nobody,
    /// The receiver has no room for it.
    Full,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chance => "lost by the link",
            Self::Cut => "the link is cut",
            Self::Early => "an earlier segment is missing",
            Self::Nobody => "nobody receives there",
            Self::Full => "the receiver has no room",
        })
    }
}

/// The kind of an event, with its data.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum EventKind {
    Created(TaskId, Option<Rc<str>>),
    Stepping(TaskId),
    Trapped(TaskId, TrapKind, &'static Location<'static>),
    Answered(TaskId, TrapKind, bool),
    Exited(TaskId, Exit),
    /// A packet arrived: its kind, its sender's host and its bytes.
    Packet(&'static str, usize, usize),
    /// A fault was applied.
    Fault(Rc<str>),
    /// A segment, datagram or request to connect was lost: its kind, its sender's host, and why.
    Lost(&'static str, usize, Loss),
    /// A closure on a helper thread ended.
    BlockingCall,
}

/// An event of a host at a virtual time.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LogEvent {
    pub(crate) at: u64,
    /// The kernel of a task's event; for any other event the main kernel of its host.
    pub(crate) key: KernelKey,
    pub(crate) kind: EventKind,
}

impl LogEvent {
    fn hash_onto(&self, hash: u64) -> u64 {
        let (kind, numbers): (u8, [u64; 3]) = match &self.kind {
            EventKind::Created(task, _) => (0, [task.0, 0, 0]),
            EventKind::Stepping(task) => (1, [task.0, 0, 0]),
            EventKind::Trapped(task, kind, place) => {
                let place = u64::from(place.line()) << 32 | u64::from(place.column());
                (2, [task.0, mix(MIX_START, kind.name().as_bytes()), place])
            }
            EventKind::Answered(task, kind, is_interrupted) => {
                (3, [task.0, mix(MIX_START, kind.name().as_bytes()), u64::from(*is_interrupted)])
            }
            EventKind::Exited(task, exit) => (4, [task.0, *exit as u64, 0]),
            EventKind::Packet(name, from, length) => {
                (5, [mix(MIX_START, name.as_bytes()), *from as u64, *length as u64])
            }
            EventKind::Fault(text) => (6, [mix(MIX_START, text.as_bytes()), 0, 0]),
            EventKind::Lost(name, from, why) => {
                (7, [mix(MIX_START, name.as_bytes()), *from as u64, *why as u64])
            }
            EventKind::BlockingCall => (8, [0; 3]),
        };
        let hash = mix(hash, &[kind]);
        let key = self.key.host as u64 | (self.key.kernel as u64) << 32;
        let numbers = [self.at, key].into_iter().chain(numbers);
        // A word at a time, since this runs for every event.
        numbers.fold(hash, |hash, number| (hash ^ number).wrapping_mul(WORD_FACTOR).rotate_left(23))
    }

    /// The text of the event, with the names of hosts.
    pub(crate) fn shown(&self, names: &[HostName]) -> String {
        let name = |host: usize| names.get(host).map_or("?", |name| name.host.as_str());
        let at = shown(self.at);
        let host = match (&self.kind, names.get(self.key.host)) {
            (EventKind::Packet(..) | EventKind::Lost(..) | EventKind::BlockingCall, Some(name)) => {
                name.host.clone()
            }
            (_, Some(name)) => name.of_kernel(self.key.kernel),
            (_, None) => "?".to_owned(),
        };
        let text = match &self.kind {
            EventKind::Created(task, None) => format!("task {} is created", task.0),
            EventKind::Created(task, Some(name)) => format!("task {} `{name}` is created", task.0),
            EventKind::Stepping(task) => format!("task {} is stepped", task.0),
            EventKind::Trapped(task, kind, place) => {
                format!("task {} waits: {kind} at {place}", task.0)
            }
            EventKind::Answered(task, kind, false) => {
                format!("task {} has its answer: {kind}", task.0)
            }
            EventKind::Answered(task, kind, true) => {
                format!("task {} is interrupted: {kind}", task.0)
            }
            EventKind::Exited(task, exit) => format!("task {} ends: {exit:?}", task.0),
            EventKind::Packet(kind, from, 0) => format!("receives {kind} from {}", name(*from)),
            EventKind::Packet(kind, from, length) => {
                format!("receives {kind} from {}, {length} bytes", name(*from))
            }
            EventKind::Fault(text) => return format!("{at:>14?}  * {text}"),
            EventKind::Lost(kind, from, why) => {
                format!("does not receive {kind} from {}: {why}", name(*from))
            }
            EventKind::BlockingCall => "a closure is done".to_owned(),
        };
        format!("{at:>14?}  {host}: {text}")
    }
}

/// An odd factor with well mixed bits, from splitmix64.
const WORD_FACTOR: u64 = 0xbf58_476d_1ce4_e5b9;

#[derive(Debug)]
struct Inner {
    hash: u64,
    count: u64,
    last: VecDeque<LogEvent>,
    /// All events, for a trace or a comparison.
    all: Option<Vec<LogEvent>>,
    /// Events are not noted.
    is_paused: bool,
}

/// The log of a run. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Log(Rc<RefCell<Inner>>);

impl Log {
    /// Creates a log. With `keeps_all` it stores all events.
    pub(crate) fn new(keeps_all: bool) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            hash: MIX_START,
            count: 0,
            last: VecDeque::new(),
            all: keeps_all.then(Vec::new),
            is_paused: false,
        })))
    }

    pub(crate) fn note(&self, at: u64, key: KernelKey, kind: EventKind) {
        let event = LogEvent { at, key, kind };
        let mut inner = self.0.borrow_mut();
        if inner.is_paused {
            return;
        }
        inner.hash = event.hash_onto(inner.hash);
        inner.count += 1;
        if let Some(all) = &mut inner.all {
            all.push(event.clone());
        }
        if matches!(event.kind, EventKind::Stepping(_)) {
            return;
        }
        if inner.last.len() == SHOWN {
            inner.last.pop_front();
        }
        inner.last.push_back(event);
    }

    /// Does `work`, whose events are not noted.
    pub(crate) fn while_paused(&self, work: impl FnOnce()) {
        self.0.borrow_mut().is_paused = true;
        work();
        self.0.borrow_mut().is_paused = false;
    }

    /// The hash and the number of all events.
    pub(crate) fn state(&self) -> (u64, u64) {
        let inner = self.0.borrow();
        (inner.hash, inner.count)
    }

    pub(crate) fn last(&self, names: &[HostName]) -> Vec<String> {
        self.0.borrow().last.iter().map(|event| event.shown(names)).collect()
    }

    pub(crate) fn take_all(&self) -> Vec<LogEvent> {
        self.0.borrow_mut().all.take().unwrap_or_default()
    }
}
