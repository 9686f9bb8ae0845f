//! The figures of a kernel's servers.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use pikake_time::Ticks;
use pikake_traps::figures::{Figure, Figures, Times, are_times_measured};
use pikake_traps::{TaskId, elapsed_since, now};

/// The address of a client.
pub(crate) type Peer = Arc<dyn Any + Send + Sync>;

/// The classes of status codes, from 100 on.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The figures of all servers of a kernel.
#[derive(Default)]
pub(crate) struct ServerFigures {
    connections: Cell<u64>,
    /// The addresses of the clients, by the tasks of their connections, which start those of the
    /// requests.
    peers: RefCell<HashMap<TaskId, Peer>>,
    running: Cell<u64>,
    upgrades: Cell<u64>,
    responses: [Cell<u64>; CLASSES.len()],
    unanswered: Cell<u64>,
    shed: Cell<u64>,
    times: Times,
}

fn add(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

fn subtract(count: &Cell<u64>) {
    count.set(count.get() - 1);
}

impl ServerFigures {
    pub(crate) fn connection_opened(&self) {
        add(&self.connections);
    }

    pub(crate) fn connection_closed(&self) {
        subtract(&self.connections);
    }

    /// Shows a client's address to the tasks that this one, of its connection, starts; until the
    /// guard is dropped.
    pub(crate) fn show_peer(self: Rc<Self>, connection: TaskId, peer: Peer) -> ShownPeer {
        self.peers.borrow_mut().insert(connection, peer);
        ShownPeer { figures: self, connection }
    }

    /// The address of the client of a connection, by its task.
    pub(crate) fn peer(&self, connection: TaskId) -> Option<Peer> {
        self.peers.borrow().get(&connection).cloned()
    }

    pub(crate) fn task_began(&self) {
        add(&self.running);
    }

    pub(crate) fn task_ended(&self) {
        subtract(&self.running);
    }

    pub(crate) fn upgrade_began(&self) {
        add(&self.upgrades);
    }

    pub(crate) fn upgrade_ended(&self) {
        subtract(&self.upgrades);
    }

    /// The moment at which a request has begun, if it is timed.
    pub(crate) fn request_began(&self) -> Option<Ticks> {
        are_times_measured().then(now)
    }

    /// Counts a response whose head is ready. Returns the time that it took, if it was timed.
    pub(crate) fn responded(&self, status: StatusCode, began: Option<Ticks>) -> Option<Duration> {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        // Codes from 600 on are none of HTTP; the type admits them.
        add(&self.responses[class.min(CLASSES.len() - 1)]);
        let took = began.map(elapsed_since);
        if let Some(took) = took {
            self.times.note(took);
        }
        took
    }

    /// Counts a request that was answered without its service, since the server is late.
    pub(crate) fn shed(&self) {
        add(&self.shed);
    }

    /// Counts a request without a response.
    pub(crate) fn left_unanswered(&self) {
        add(&self.unanswered);
    }
}

/// Made by [`ServerFigures::show_peer`].
pub(crate) struct ShownPeer {
    figures: Rc<ServerFigures>,
    connection: TaskId,
}

impl Drop for ShownPeer {
    fn drop(&mut self) {
        let peer = self.figures.peers.borrow_mut().remove(&self.connection);
        drop(peer);
    }
}

impl Figures for ServerFigures {
    fn show(&self, shown: &mut Vec<Figure>) {
        let help = "Open connections of HTTP servers.";
        shown.push(Figure::gauge("pikake_http_connections", help, self.connections.get()));
        let help = "Requests whose handlers run.";
        shown.push(Figure::gauge("pikake_http_running_requests", help, self.running.get()));
        let help = "Open connections and streams that were upgraded to another protocol.";
        shown.push(Figure::gauge("pikake_http_upgrades", help, self.upgrades.get()));
        for (class, count) in CLASSES.into_iter().zip(&self.responses) {
            let help = "Responses by the class of their status.";
            let count = Figure::counter("pikake_http_responses", help, count.get());
            shown.push(count.label("status", class));
        }
        let help = "Requests that got no response.";
        shown.push(Figure::counter("pikake_http_unanswered_requests", help, self.unanswered.get()));
        let help = "Requests that were answered 503 since the server was late.";
        shown.push(Figure::counter("pikake_http_shed_requests", help, self.shed.get()));
        let help = "Time from the head of a request to that of its response.";
        shown.push(Figure::times("pikake_http_response_time", help, &self.times));
    }
}
