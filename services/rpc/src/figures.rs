//! The figures of a kernel's servers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pikake_time::Ticks;
use pikake_traps::figures::{Figure, Figures, Times, are_times_measured};
use pikake_traps::{elapsed_since, now};

use crate::protocol::Failure;

/// How a call ended at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The handler returned a value, or ended a notice.
    Answered,
    /// The handler returned the service's error.
    Error,
    /// An interceptor refused the call.
    Refused,
    /// The handler panicked.
    Panicked,
    /// The handler was interrupted or dropped, or its answer could not be sent.
    Ended,
}

impl Outcome {
    const ALL: [Self; 5] =
        [Self::Answered, Self::Error, Self::Refused, Self::Panicked, Self::Ended];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Error => "error",
            Self::Refused => "refused",
            Self::Panicked => "panicked",
            Self::Ended => "ended",
        }
    }
}

/// Why a server did not begin a call.
const NOT_BEGUN: [(Failure, &str); 3] = [
    (Failure::UnknownMethod, "unknown_method"),
    (Failure::Arguments, "arguments"),
    (Failure::Overloaded, "overloaded"),
];

/// The figures of all servers of a kernel.
#[derive(Default)]
pub(crate) struct ServerFigures {
    connections: Cell<u64>,
    not_begun: [Cell<u64>; NOT_BEGUN.len()],
    methods: RefCell<BTreeMap<&'static str, Rc<MethodFigures>>>,
}

/// The figures of a method.
#[derive(Default)]
pub(crate) struct MethodFigures {
    running: Cell<u64>,
    ended: [Cell<u64>; Outcome::ALL.len()],
    times: Times,
}

fn add(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

fn subtract(count: &Cell<u64>) {
    count.set(count.get() - 1);
}

impl ServerFigures {
    pub(crate) fn method(&self, name: &'static str) -> Rc<MethodFigures> {
        self.methods.borrow_mut().entry(name).or_default().clone()
    }

    pub(crate) fn connection_opened(&self) {
        add(&self.connections);
    }

    pub(crate) fn connection_closed(&self) {
        subtract(&self.connections);
    }

    /// Counts a call that was refused before its handler began.
    pub(crate) fn not_begun(&self, why: Failure) {
        if let Some(index) = NOT_BEGUN.iter().position(|(failure, _)| *failure == why) {
            add(&self.not_begun[index]);
        }
    }
}

impl MethodFigures {
    /// Counts a call that begins, and returns the moment, if calls are timed.
    pub(crate) fn began(&self) -> Option<Ticks> {
        add(&self.running);
        are_times_measured().then(now)
    }

    pub(crate) fn ended(&self, outcome: Outcome, began: Option<Ticks>) {
        subtract(&self.running);
        add(&self.ended[outcome as usize]);
        if let Some(began) = began {
            self.times.note(elapsed_since(began));
        }
    }
}

impl Figures for ServerFigures {
    fn show(&self, shown: &mut Vec<Figure>) {
        let help = "Open connections of RPC servers.";
        shown.push(Figure::gauge("pikake_rpc_connections", help, self.connections.get()));
        for ((_, why), count) in NOT_BEGUN.into_iter().zip(&self.not_begun) {
            let help = "Calls that were refused before their handler began.";
            let count = Figure::counter("pikake_rpc_refused_calls", help, count.get());
            shown.push(count.label("why", why));
        }
        let methods = self.methods.borrow();
        for (name, method) in &*methods {
            let help = "Calls whose handlers run.";
            let count = Figure::gauge("pikake_rpc_running_calls", help, method.running.get());
            shown.push(count.label("method", *name));
        }
        for (name, method) in &*methods {
            for (outcome, count) in Outcome::ALL.into_iter().zip(&method.ended) {
                let help = "Calls whose handlers have ended, by their outcome.";
                let count = Figure::counter("pikake_rpc_calls", help, count.get());
                shown.push(count.label("method", *name).label("outcome", outcome.name()));
            }
        }
        for (name, method) in &*methods {
            let help = "Time from a request to the end of its handler.";
            let times = Figure::times("pikake_rpc_call_time", help, &method.times);
            shown.push(times.label("method", *name));
        }
    }
}
