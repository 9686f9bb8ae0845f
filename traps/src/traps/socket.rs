//! The traps `read_wait` and `write_wait`: repeat an attempt on a socket until it succeeds or
//! fails.

use std::io;
use std::panic::Location;

use crate::attempts::attempt;
use crate::kind::{TrapKind, TrapName};
use crate::local::TrapHandler;
use crate::seen::{About, SeenThing};
use crate::socket::{Address, Attempt, Direction, SocketId};
use crate::trap::{KernelTrap, OneEntry, Progress, Trap, TrapContext, kernel_trap_at};
use crate::wait::{Outcome, WaitPlace};

static READ: TrapName = TrapName::new("read_wait");
static WRITE: TrapName = TrapName::new("write_wait");

/// Waits until an attempt to read, to receive or to accept is worthwhile.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when the future is dropped.
///
/// # Errors
///
/// [`Interrupted`](crate::Interrupted), [`ResourceBusy`](crate::ResourceBusy) or
/// [`Closed`](crate::Closed), each inside
/// an [`io::Error`].
///
/// # Panics
///
/// When polled outside a task of the socket's kernel.
#[track_caller]
pub fn read_wait(socket: SocketId) -> KernelTrap<SocketTrap<IsReady>> {
    socket_wait(socket, IsReady(Direction::Read))
}

/// Waits until an attempt to write, to send or to finish connecting is worthwhile.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when the future is dropped.
///
/// # Errors
///
/// As for [`read_wait`].
///
/// # Panics
///
/// When polled outside a task of the socket's kernel.
#[track_caller]
pub fn write_wait(socket: SocketId) -> KernelTrap<SocketTrap<IsReady>> {
    socket_wait(socket, IsReady(Direction::Write))
}

/// Repeats an attempt on a socket until it succeeds or fails, waiting in between.
///
/// # Cancellation
///
/// An interruption point while the attempt would block. An attempt that succeeded is never
/// interrupted.
///
/// # Errors
///
/// The attempt's errors, and those of [`read_wait`].
///
/// # Panics
///
/// When polled outside a task of the socket's kernel.
#[track_caller]
#[inline]
pub fn socket_wait<A: AsAttempt>(socket: SocketId, attempt: A) -> KernelTrap<SocketTrap<A>> {
    kernel_trap_at(SocketTrap::new(socket, attempt), Location::caller())
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

impl<A: AsAttempt> SocketTrap<A> {
    /// Calls `wait` with the trap's place, and turns the outcome of the attempt into the answer.
    #[inline(always)]
    fn at_place(
        &mut self,
        wait: impl FnOnce(WaitPlace<'_>) -> Progress<()>,
    ) -> Progress<io::Result<A::Output>> {
        let mut outcome = Outcome::default();
        let place = WaitPlace::Socket(self.socket, self.what.attempt(), &mut outcome);
        wait(place).map(|()| outcome.take().map(|moved| self.what.output(moved)))
    }
}

impl<A: AsAttempt> Trap for SocketTrap<A> {
    type Answer = io::Result<A::Output>;
    type Entries = OneEntry;

    #[inline(always)]
    fn kind(&mut self) -> TrapKind {
        match self.what.attempt().direction() {
            Some(Direction::Write) => TrapKind::of(&WRITE),
            _ => TrapKind::of(&READ),
        }
    }

    #[inline(always)]
    fn begin(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Self::Answer> {
        self.at_place(|place| cx.park(entry, place))
    }

    #[inline(always)]
    fn collect(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Self::Answer> {
        self.at_place(|place| cx.collect(entry, place))
    }

    fn is_accepting(&mut self) -> bool {
        matches!(self.what.attempt(), Attempt::Accept(_))
    }

    fn leave(&mut self, [entry]: &mut OneEntry, kernel: &dyn TrapHandler) {
        let mut none = Outcome::default();
        entry.leave(kernel, WaitPlace::Socket(self.socket, self.what.attempt(), &mut none));
    }

    fn about(&self) -> Option<About> {
        let about = self.what.about().unwrap_or_else(|| about_socket(self.socket));
        Some(about.of(SeenThing::Socket(self.socket)))
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
