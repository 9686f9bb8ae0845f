//! Attempts on sockets, made once, or until they succeed or fail.

use std::io;

use crate::door;
use crate::interrupt::Interrupted;
use crate::seen::About;
use crate::socket::{Address, Attempt, Closed, Direction, OpenSocket, Opened, SocketId};
use crate::trap::Trap;
use crate::wait::{Outcome, Wait};

/// Opens a socket in the current kernel, or takes one over.
///
/// # Errors
///
/// The system's; [`Unsupported`](io::ErrorKind::Unsupported) for a kind that the kernel does not
/// have.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn open_socket(what: OpenSocket<'_>) -> io::Result<Opened<SocketId>> {
    door::with(|local| local.kernel().open(what))
}

/// Makes an attempt on a socket, without waiting; also outside its kernel's turn. Returns the
/// number of bytes that were moved.
///
/// # Errors
///
/// [`WouldBlock`](io::ErrorKind::WouldBlock) if the attempt would block, or the task has spent its
/// quota of attempts for this step; [`Closed`], also if the socket's kernel has ended or belongs to
/// another thread; else the system's.
#[inline]
pub fn attempt(socket: SocketId, attempt: Attempt<'_>) -> io::Result<usize> {
    let outcome = door::reach(socket.kernel, |local| {
        local.refill_outside_steps();
        let outcome = local.kernel().attempt(socket, attempt);
        local.call_wakers();
        outcome
    });
    match outcome {
        Some(Some(outcome)) => outcome,
        Some(None) => Err(io::ErrorKind::WouldBlock.into()),
        None => Err(Closed.into()),
    }
}

/// An operation on a socket that can be attempted repeatedly, until it succeeds or fails.
pub trait AsAttempt {
    /// The result of the operation.
    type Output;

    /// The attempt to make. Always in the same direction.
    fn attempt(&mut self) -> Attempt<'_>;

    /// The result of an attempt that succeeded and moved this number of bytes.
    fn output(&mut self, moved: usize) -> Self::Output;

    /// The thing that the operation waits for, for listings. By default, the socket with its
    /// addresses.
    fn about(&self) -> Option<About> {
        None
    }
}

/// Whether an attempt in this direction is worthwhile. See [`Attempt::IsReady`].
#[derive(Clone, Copy, Debug)]
pub struct IsReady(pub Direction);

impl AsAttempt for IsReady {
    type Output = ();

    fn attempt(&mut self) -> Attempt<'_> {
        Attempt::IsReady(self.0)
    }

    fn output(&mut self, _: usize) {}
}

/// The trap that repeats an attempt on a socket. See [`socket_wait`](crate::socket_wait).
#[derive(Debug)]
pub struct SocketTrap<A> {
    socket: SocketId,
    what: A,
}

impl<A> SocketTrap<A> {
    /// The trap that attempts `what` on `socket`.
    #[inline]
    pub fn new(socket: SocketId, what: A) -> Self {
        Self { socket, what }
    }
}

impl<A: AsAttempt> Trap for SocketTrap<A> {
    type Answer = io::Result<A::Output>;
    type Given = Outcome;

    #[inline(always)]
    fn wait<'a>(&'a mut self, outcome: &'a mut Outcome) -> Wait<'a> {
        Wait::Attempt(self.socket, self.what.attempt(), outcome)
    }

    #[inline(always)]
    fn answer(&mut self, result: Result<Outcome, Interrupted>) -> Self::Answer {
        let moved = result?.take()?;
        Ok(self.what.output(moved))
    }

    fn about(&self) -> Option<About> {
        self.what.about().or_else(|| Some(about_socket(self.socket)))
    }
}

/// A socket with its addresses.
fn about_socket(socket: SocketId) -> About {
    let (mut local, mut peer) = (None, None);
    // A descriptor that is no socket has no address.
    let _ = attempt(socket, Attempt::LocalAddress(&mut local));
    let _ = attempt(socket, Attempt::PeerAddress(&mut peer));
    let shown = |address: &Address| match address {
        Address::Ip(address) => address.to_string(),
        Address::Unix(address) => match address.as_pathname() {
            Some(path) => format!("`{}`", path.display()),
            None => "(no path)".to_owned(),
        },
    };
    About::new(match (local.as_ref().map(shown), peer.as_ref().map(shown)) {
        (Some(local), Some(peer)) => format!("socket {local}, connected to {peer}"),
        (Some(local), None) => format!("socket {local}, without a peer"),
        (None, Some(peer)) => format!("socket, connected to {peer}"),
        (None, None) => "descriptor that is not a socket".to_owned(),
    })
}
