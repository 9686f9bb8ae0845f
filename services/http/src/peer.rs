//! The address of a request's client.

use pikake_traps::{figures, try_current};

use crate::figures::ServerFigures;

/// The address of the client whose request the current task answers: that of the
/// [listener](pikake_net::Listener), for TCP a [`SocketAddr`](std::net::SocketAddr). `None` outside
/// of the handlers of a server, in tasks that a handler has started, and for another type. A
/// response's body should not ask: over HTTP/1 it gets `None`.
///
/// A request costs nothing for this, until somebody asks.
///
/// # Examples
///
/// ```
/// use pikake::http::peer;
/// use std::net::SocketAddr;
///
/// fn is_local() -> bool {
///     peer().is_some_and(|address: SocketAddr| address.ip().is_loopback())
/// }
/// # assert!(!is_local());
/// ```
pub fn peer<A: Clone + 'static>() -> Option<A> {
    let task = try_current()?;
    let figures = figures::of_kernel::<ServerFigures>();
    // The connection has started the request's task, unless that answers for another kernel.
    let connection = task.parent().and_then(|connection| figures.peer(connection));
    let peer = connection.or_else(|| figures.moved_peer(task.id()))?;
    peer.downcast_ref::<A>().cloned()
}
