//! The address of a request's client.

use std::rc::Rc;

use pikake_traps::{LocalKey, current, figures, try_current};

use crate::figures::{Peer, ServerFigures};

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
    let moved = || task.local(key())?.downcast_ref::<Peer>().cloned();
    connection.or_else(moved)?.downcast_ref::<A>().cloned()
}

/// The key of the client's address in the task of a request of another kernel.
fn key() -> LocalKey {
    static PLACE: u8 = 0;
    LocalKey(std::ptr::from_ref(&PLACE).addr())
}

/// Shows the client's address to the current task, which answers a request of another kernel.
pub(crate) fn show_to_current(peer: Peer) {
    // A task that runs takes it.
    let _ = current().set_local(key(), Rc::new(peer));
}
