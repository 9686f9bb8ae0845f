//! The figures of a kernel's clients.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pikake_time::Ticks;
use pikake_traps::figures::{Figure, Figures, Times, are_times_measured};
use pikake_traps::{elapsed_since, now};

use crate::error::{CallError, CallFailure};
use crate::protocol::ERROR;
use crate::service::{Answered, Method};

/// How a call ended for its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The service returned a value, or a notice was sent.
    Answered,
    /// The service returned its error.
    Error,
    /// The server did not begin the call.
    Refused,
    /// The handler ended without an answer, or with one that cannot be read.
    Ended,
    /// The connection could not be made, or was lost.
    Connection,
    /// The arguments could not be sent, or no server may get a call.
    NotSent,
    /// The caller was interrupted or dropped.
    Abandoned,
}

impl Outcome {
    const ALL: [Self; 7] = [
        Self::Answered,
        Self::Error,
        Self::Refused,
        Self::Ended,
        Self::Connection,
        Self::NotSent,
        Self::Abandoned,
    ];

    pub(crate) fn of(result: &Result<Answered, CallError>) -> Self {
        match result.as_ref().map_err(|error| &error.failure) {
            Ok(answer) if answer.flags & ERROR != 0 => Self::Error,
            Ok(_) => Self::Answered,
            Err(CallFailure::Interrupted(_)) => Self::Abandoned,
            Err(CallFailure::Connection(_)) => Self::Connection,
            Err(CallFailure::Encode(_) | CallFailure::BreakerOpen) => Self::NotSent,
            Err(CallFailure::Panicked | CallFailure::Ended(_) | CallFailure::Answer(_)) => {
                Self::Ended
            }
            Err(_) => Self::Refused,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Error => "error",
            Self::Refused => "refused",
            Self::Ended => "ended",
            Self::Connection => "connection",
            Self::NotSent => "not_sent",
            Self::Abandoned => "given_up",
        }
    }
}

/// The figures of all clients of a kernel.
#[derive(Default)]
pub(crate) struct ClientFigures {
    connections: Cell<u64>,
    failed_connections: Cell<u64>,
    repeats: Cell<u64>,
    /// By the methods' numbers.
    methods: RefCell<BTreeMap<u32, Rc<MethodFigures>>>,
}

/// The figures of a method.
pub(crate) struct MethodFigures {
    name: &'static str,
    under_way: Cell<u64>,
    ended: [Cell<u64>; Outcome::ALL.len()],
    times: Times,
}

fn add(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

impl ClientFigures {
    pub(crate) fn method(&self, method: &Method) -> Rc<MethodFigures> {
        let make = || {
            Rc::new(MethodFigures {
                name: method.name,
                under_way: Cell::default(),
                ended: Default::default(),
                times: Times::default(),
            })
        };
        self.methods.borrow_mut().entry(method.number).or_insert_with(make).clone()
    }

    pub(crate) fn connected(&self, is_open: bool) {
        add(if is_open { &self.connections } else { &self.failed_connections });
    }

    pub(crate) fn repeated(&self) {
        add(&self.repeats);
    }
}

impl MethodFigures {
    /// Counts a call that begins, and returns the moment, if calls are timed.
    pub(crate) fn began(&self) -> Option<Ticks> {
        add(&self.under_way);
        are_times_measured().then(now)
    }

    pub(crate) fn ended(&self, outcome: Outcome, began: Option<Ticks>) {
        self.under_way.set(self.under_way.get() - 1);
        add(&self.ended[outcome as usize]);
        if let Some(began) = began.filter(|_| outcome != Outcome::Abandoned) {
            self.times.note(elapsed_since(began));
        }
    }
}

impl Figures for ClientFigures {
    fn show(&self, shown: &mut Vec<Figure>) {
        for (outcome, count) in
            [("opened", &self.connections), ("failed", &self.failed_connections)]
        {
            let help = "Connections that RPC clients have opened, or could not open.";
            let count = Figure::counter("pikake_rpc_client_connections", help, count.get());
            shown.push(count.label("outcome", outcome));
        }
        let help = "Attempts of calls after the first.";
        shown.push(Figure::counter("pikake_rpc_client_repeats", help, self.repeats.get()));
        let methods = self.methods.borrow();
        for method in methods.values() {
            let help = "Calls that wait for their answers.";
            let count = method.under_way.get();
            let count = Figure::gauge("pikake_rpc_client_running_calls", help, count);
            shown.push(count.label("method", method.name));
        }
        for method in methods.values() {
            for (outcome, count) in Outcome::ALL.into_iter().zip(&method.ended) {
                let help = "Calls that have ended, by their outcome.";
                let count = Figure::counter("pikake_rpc_client_calls", help, count.get());
                shown.push(count.label("method", method.name).label("outcome", outcome.name()));
            }
        }
        for method in methods.values() {
            let help = "Time from a call to its end, with all attempts.";
            let times = Figure::times("pikake_rpc_client_call_time", help, &method.times);
            shown.push(times.label("method", method.name));
        }
    }
}
