//! Whose turn it is on a connection, and how long a client may take over its own.
//!
//! A connection is held for a client, so a client that owes something must come up with it: the head
//! of a request, the rest of a body that a handler waits for, the reading of a response. As long as
//! the *server* owes something, no clock runs.
//!
//! ```text
//!                  ┌────────── a request has begun ─────────┐
//!                  │                                        ▼
//!     idle: the client owes a head            answering: the server owes a response
//!                  ▲                            │ (1)  ▲         │ (3)  ▲
//!                  │                            ▼      │ (2)     ▼      │ (4)
//!                  │           the client owes a body ─┘   the client owes its reading
//!                  └─────────── the response is gone ──────────────┘
//! ```
//!
//! (1) A handler waits for a piece of the request's body ([`Incoming`](crate::Incoming)); (2) it has
//! come. (3) A piece of the response is ready, and hyper does not ask for the next
//! ([`Reply`](crate::Reply)); (4) it does, and there is none yet. With HTTP/2 there are several
//! requests at a time, and the server owes something if it does for one of them.
//!
//! What a client may take is an allowance of time ([`Allowance`]): its turn uses it up, bytes that
//! get through earn some of it back, and it is whole again whenever the server owes something or a
//! request begins. So neither a client that stops nor one that moves a byte now and then lasts, and
//! one that is merely slow does. This is looked at now and then and not at each change, which costs
//! the requests nothing but counting.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How fast bytes have to get through for a client to last for ever, in bytes a second: a thousandth
/// of what a bad mobile connection manages.
pub const MINIMUM_PACE: u32 = 500;

/// Into how many parts an allowance is divided by the looks at it.
const LOOKS: u32 = 4;

/// Counts what gets through a connection.
pub(crate) struct Counted<S> {
    pub(crate) stream: S,
    pub(crate) moved: Rc<Cell<u64>>,
}

impl<S> Counted<S> {
    fn count(&self, number: usize) {
        self.moved.set(self.moved.get() + number as u64);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.count(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data))?;
        self.count(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, data))?;
        self.count(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// How long a client may take over its turn; `None`: for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// While it is in no request.
    pub(crate) idle: Option<Duration>,
    /// While it is in one.
    pub(crate) stalled: Option<Duration>,
}

impl Limits {
    /// How long to wait between two looks; `None` if there is nothing to look at.
    pub(crate) fn interval(&self) -> Option<Duration> {
        let shortest = [self.idle, self.stalled].into_iter().flatten().min()?;
        Some((shortest / LOOKS).max(Duration::from_millis(1)))
    }

    /// Those of a connection that is being closed: a look's time for each.
    pub(crate) fn goodbye(&self) -> Self {
        Self { idle: self.interval(), stalled: self.stalled }
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Nobody is in a request.
    Idle,
    /// A request waits for its client.
    Client,
    /// A request waits for its handler.
    Server,
}

/// What is left of a client's time.
#[derive(Debug)]
pub(crate) struct Allowance {
    limits: Limits,
    left: Duration,
    /// Bytes and requests up to the last look.
    moved: u64,
    begun: u64,
}

impl Allowance {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, left: Duration::MAX, moved: 0, begun: 0 }
    }

    /// Looks again when so much time has passed, and says whether the client has used up its own.
    pub(crate) fn is_used_up(
        &mut self,
        passed: Duration,
        turn: Turn,
        moved: u64,
        begun: u64,
    ) -> bool {
        let bytes = moved - std::mem::replace(&mut self.moved, moved);
        let is_new = std::mem::replace(&mut self.begun, begun) != begun;
        let limit = match turn {
            Turn::Idle => self.limits.idle,
            Turn::Client => self.limits.stalled,
            Turn::Server => None,
        };
        let Some(limit) = limit.filter(|_| !is_new) else {
            self.left = Duration::MAX;
            return false;
        };
        // The turn may have begun right after the look before, or right before this one: the client
        // has the benefit of the doubt.
        let whole = limit + passed;
        let earned = Duration::from_secs_f64(bytes as f64 / f64::from(MINIMUM_PACE));
        self.left = self.left.min(whole).saturating_add(earned).min(whole).saturating_sub(passed);
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn allowance() -> Allowance {
        Allowance::new(Limits { idle: Some(4 * SECOND), stalled: Some(8 * SECOND) })
    }

    /// At which look, of one a second, it is used up by a turn in which so many bytes move.
    fn lasts(turn: Turn, bytes: u64) -> Option<u64> {
        let mut allowance = allowance();
        (1..100).find(|look| allowance.is_used_up(SECOND, turn, look * bytes, 0))
    }

    #[test]
    fn who_does_nothing_has_its_time_and_no_more() {
        assert_eq!(lasts(Turn::Idle, 0), Some(5));
        assert_eq!(lasts(Turn::Client, 0), Some(9));
        assert_eq!(lasts(Turn::Server, 0), None);
    }

    #[test]
    fn who_is_slow_lasts_and_who_dribbles_does_not() {
        assert_eq!(lasts(Turn::Client, u64::from(MINIMUM_PACE)), None);
        assert_eq!(lasts(Turn::Client, 1), Some(10));
        assert_eq!(lasts(Turn::Client, u64::from(MINIMUM_PACE) / 2), Some(17));
    }

    #[test]
    fn much_at_once_is_not_saved_up() {
        let mut allowance = allowance();
        assert!(!allowance.is_used_up(SECOND, Turn::Client, 1_000_000, 0));
        let lasts = (1..100).find(|_| allowance.is_used_up(SECOND, Turn::Client, 1_000_000, 0));
        assert_eq!(lasts, Some(8));
    }

    #[test]
    fn a_turn_of_the_server_and_a_request_make_it_whole() {
        let mut allowance = allowance();
        for _ in 0..10 {
            assert!(!allowance.is_used_up(3 * SECOND, Turn::Client, 0, 0));
            assert!(!allowance.is_used_up(3 * SECOND, Turn::Server, 0, 0));
        }
        for begun in 0..10 {
            assert!(!allowance.is_used_up(3 * SECOND, Turn::Idle, 0, begun));
        }
    }

    #[test]
    fn without_limits_nobody_looks() {
        let mut limits = Limits { idle: None, stalled: None };
        assert_eq!(limits.interval(), None);
        limits.stalled = Some(4 * SECOND);
        assert_eq!(limits.interval(), Some(SECOND));
        let mut allowance = Allowance::new(limits);
        assert!((1..100).all(|_| !allowance.is_used_up(SECOND, Turn::Idle, 0, 0)));
    }
}
