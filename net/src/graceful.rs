//! Graceful shutdown of a server.
//!
//! A shutdown has conflicting goals: to lose no request, to end the process, and to end it soon.
//! Two deadlines settle the conflict:
//!
//! ```text
//!  serving ──(1)──▶ ending ─────────(2)────────▶ interrupted ────────(3)───────▶ dropped
//!                   no further connections;      every handler gets an           remaining handlers,
//!                   requests are finished        error at its await, and         reported by name
//!                   until the soft deadline      may clean up until the
//!                                                hard deadline
//! ```
//!
//! (1) [`Closing::begin`], an interruption of the server, or a failure of its listener. Connections
//! in the backlog are accepted as far as there is room, since their clients may have sent a
//! request. (2) The soft deadline, or a second interruption. (3) The hard deadline, or a third
//! interruption. In each state, the server ends when no handler runs any more.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::Location;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_time::Ticks;
use pikake_traps::{
    Interrupted, TaskId, TimedOut, WaitQueue, elapsed_since, now, park, shield, timeout_after,
};

use crate::ended::{Ended, is_closed};
use crate::error::interruption;
use crate::handlers::{HANDLER_NAME, Handlers, peer_of};
use crate::serve::{Listener, next_connection};

/// The reason of the cancel at the soft deadline.
const SOFT_REASON: &str = "the server is ending, and its soft deadline has passed";

/// The reason of the cancel if the server was interrupted before that.
const INTERRUPTED_REASON: &str = "the server was interrupted while it was ending";

/// How long a server's handlers may take when the server ends.
///
/// The sum should be less than the time that a service manager waits before it kills the process,
/// often 30 s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// The time until handlers are interrupted.
    pub soft: Duration,
    /// The time from the interruption until handlers are dropped.
    pub hard: Duration,
}

impl Default for Patience {
    /// 20 s to finish requests, and 5 s to clean up.
    fn default() -> Self {
        Self { soft: Duration::from_secs(20), hard: Duration::from_secs(5) }
    }
}

/// Requests the shutdown of a server, and notifies its handlers. Clones share one state.
///
/// A handler that waits for the next request of an idle client waits for this too, and ends its
/// connection between two requests.
///
/// # Examples
///
/// See [`serve_until`].
#[derive(Clone, Default)]
pub struct Closing {
    shared: Rc<(Cell<bool>, WaitQueue)>,
}

impl Closing {
    /// Creates a `Closing` that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests the shutdown. A second call has no effect.
    pub fn begin(&self) {
        let (has_begun, waiting) = &*self.shared;
        has_begun.set(true);
        waiting.wake(usize::MAX);
    }

    /// Whether the shutdown was requested.
    pub fn has_begun(&self) -> bool {
        self.shared.0.get()
    }

    /// Waits until the shutdown is requested.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// The interruption.
    pub async fn begun(&self) -> Result<(), Interrupted> {
        while !self.has_begun() {
            park(&self.shared.1).await?;
        }
        Ok(())
    }
}

impl fmt::Debug for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Closing").field(&self.has_begun()).finish()
    }
}

/// A handler that still ran at a deadline.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Left<A> {
    /// The address of the client.
    pub address: A,
    /// The handler's task.
    pub task: TaskId,
    /// How long the handler had been running.
    pub age: Duration,
}

impl<A: fmt::Debug> fmt::Display for Left<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, task, age } = self;
        write!(f, "the connection of {address:?} (task {}), after {age:.1?}", task.0)
    }
}

/// The report of a server that has ended. See [`serve_until`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Farewell<A> {
    /// Why the server has ended.
    pub why: Ended,
    /// The number of connections handled.
    pub handled: u64,
    /// The handlers interrupted at the soft deadline, oldest first.
    pub interrupted: Vec<Left<A>>,
    /// The handlers dropped at the hard deadline.
    pub dropped: Vec<Left<A>>,
}

impl<A> Farewell<A> {
    /// Whether no handler was interrupted.
    pub fn is_clean(&self) -> bool {
        self.interrupted.is_empty()
    }
}

/// The listener of a server failed, so the server has ended. Its handlers had the same time as in a
/// requested shutdown.
///
/// As an [`io::Error`] it has the kind of its source.
#[derive(Debug)]
#[non_exhaustive]
pub struct ListenerFailed<A> {
    /// The number of connections handled.
    pub handled: u64,
    /// The handlers interrupted at the soft deadline, oldest first.
    pub interrupted: Vec<Left<A>>,
    /// The handlers dropped at the hard deadline.
    pub dropped: Vec<Left<A>>,
    /// The listener's error.
    pub source: io::Error,
}

impl<A> fmt::Display for ListenerFailed<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server's listener failed after {} connections: {}",
            self.handled, self.source
        )
    }
}

impl<A: fmt::Debug> Error for ListenerFailed<A> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

impl<A: fmt::Debug + Send + Sync + 'static> From<ListenerFailed<A>> for io::Error {
    fn from(failed: ListenerFailed<A>) -> Self {
        Self::new(failed.source.kind(), failed)
    }
}

impl<A: fmt::Debug> fmt::Display for Farewell<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [interrupted, dropped] = [&self.interrupted, &self.dropped].map(Vec::len);
        write!(f, "{} connections handled", self.handled)?;
        write!(f, "; {interrupted} interrupted, of which {dropped} dropped")?;
        self.dropped.iter().try_for_each(|left| write!(f, "; dropped: {left}"))
    }
}

/// Serves as [`serve`](crate::serve()) until a shutdown is requested, and then ends gracefully. It
/// accepts the connections in the backlog, as far as there is room. Handlers may end; they are
/// interrupted at the soft deadline and dropped at the hard deadline, and both are reported.
///
/// An interruption of the task requests the shutdown, so with `#[pikake::main(signals)]` a SIGTERM
/// suffices. A further interruption, as by a deadline around it, ends the current wait early.
/// [`timeout_after`](pikake_traps::timeout_after) loses the [`Farewell`]; use
/// [`timed`](pikake_traps::timed).
///
/// The listener is dropped when its backlog is empty or there is no room
/// ([`Listener::accept_backlog`]), which closes it unless it is shared. Connections in the backlog
/// for which there was no room are reset, so their clients know at once that the server has read
/// nothing.
///
/// # Examples
///
/// ```
/// use pikake::net::{BufReader, Closing, Patience, TcpListener, TcpStream, serve_until};
/// use pikake::select;
///
/// /// Answers line by line, and ends between two lines if the server ends.
/// async fn answer(stream: TcpStream, closing: Closing) -> std::io::Result<()> {
///     let reader = BufReader::new(&stream);
///     loop {
///         let line = select! {
///             line = reader.next_line() => line?,
///             begun = closing.begun() => return begun.map_err(Into::into),
///         };
///         let Some(line) = line else { return Ok(()) };
///         stream.write_all(line.to_uppercase().as_bytes()).await?;
///     }
/// }
///
/// # async fn example() -> std::io::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:7000").await?;
/// let closing = Closing::new();
/// let for_handlers = closing.clone();
/// let farewell = serve_until(listener, 1000, closing, Patience::default(), move |stream, _| {
///     let closing = for_handlers.clone();
///     async move { drop(answer(stream, closing).await) }
/// })
/// .await?;
/// println!("{farewell}");
/// # Ok(()) }
/// ```
///
/// # Cancellation
///
/// An interruption point; see above. A drop requests a cancel of the handlers and does not wait for
/// them.
///
/// # Errors
///
/// [`ListenerFailed`], with the same report. A requested end, an interruption and a closed listener
/// are no errors, so a program that returns this result exits with the code 0 when a signal ends
/// it.
///
/// # Panics
///
/// If `limit` is zero, or when polled outside a task.
#[track_caller]
pub fn serve_until<L, H, F>(
    listener: L,
    limit: usize,
    closing: Closing,
    patience: Patience,
    handler: H,
) -> impl Future<Output = Result<Farewell<L::Address>, ListenerFailed<L::Address>>>
where
    L: Listener,
    L::Connection: 'static,
    L::Address: Clone + 'static,
    H: Fn(L::Connection, L::Address) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    assert!(limit > 0, "a server must be allowed at least one connection");
    let place = Location::caller();
    let handler = Rc::new(handler);
    async move {
        let mut handlers = Handlers::new(limit, HANDLER_NAME, place);
        let mut begun = Begun::new();
        let mut handled = 0;
        let mut start = |handlers: &mut Handlers, connection, address: L::Address| {
            let (handler, peer) = (handler.clone(), address.clone());
            let key = handlers.start(peer_of(&peer), move || handler(connection, address));
            begun.insert(key, (peer, now()));
            handled += 1;
        };
        let why = loop {
            match next_or_end(&listener, &mut handlers, &closing).await {
                Ok(Some((connection, address))) => start(&mut handlers, connection, address),
                Ok(None) => break Ok(Ended::Asked),
                Err(error) => match interruption(&error) {
                    Some(interrupted) => break Ok(Ended::Interrupted(interrupted.clone())),
                    None if is_closed(&error) => break Ok(Ended::Closed),
                    None => break Err(error),
                },
            }
        };
        closing.begin();
        let mut may_wait = true;
        if why.is_ok() {
            // Connections in the backlog came in time, and their clients may have sent requests.
            let room = handlers.limit.saturating_sub(handlers.running().count());
            for _ in 0..room {
                match listener.accept_backlog().await {
                    Ok(Some((connection, address))) => start(&mut handlers, connection, address),
                    Ok(None) => break,
                    Err(error) => {
                        may_wait = interruption(&error).is_none();
                        break;
                    }
                }
            }
        }
        drop(listener);
        let (mut interrupted, mut dropped) = (Vec::new(), Vec::new());
        // An interruption shortens the patience. It is held meanwhile: what follows is cleanup.
        let soft_end = match may_wait {
            true => all_end_within(&mut handlers, patience.soft).await,
            false => Err(None),
        };
        if soft_end.is_err() {
            interrupted = still_running(&mut handlers, &begun);
            let is_late = matches!(soft_end, Err(None)) && may_wait;
            handlers.request_cancel(if is_late { SOFT_REASON } else { INTERRUPTED_REASON });
            if all_end_within(&mut handlers, patience.hard).await.is_err() {
                dropped = still_running(&mut handlers, &begun);
                handlers.abort();
                // The destructors of the handlers run now, and no deadline cuts them short.
                let _ = shield(handlers.fewer_than(1)).await;
            }
        }
        match why {
            Ok(why) => Ok(Farewell { why, handled, interrupted, dropped }),
            Err(source) => Err(ListenerFailed { handled, interrupted, dropped, source }),
        }
    }
}

/// The client and the start of each handler, by its key.
type Begun<A> = BTreeMap<usize, (A, Ticks)>;

/// The next connection; `None` when the shutdown is requested.
async fn next_or_end<L: Listener>(
    listener: &L,
    handlers: &mut Handlers,
    closing: &Closing,
) -> io::Result<Option<(L::Connection, L::Address)>> {
    let mut end = pin!(closing.begun());
    let mut next = pin!(next_connection(listener, handlers));
    poll_fn(|cx| {
        if let Poll::Ready(ended) = end.as_mut().poll(cx) {
            return Poll::Ready(ended.map(|()| None).map_err(Into::into));
        }
        next.as_mut().poll(cx).map_ok(Some)
    })
    .await
}

/// Whether all handlers end in time, without an interruption of this wait.
async fn all_end_within(
    handlers: &mut Handlers,
    within: Duration,
) -> Result<(), Option<Interrupted>> {
    match timeout_after(within, handlers.fewer_than(1)).await {
        Ok(ended) => ended.map_err(Some),
        Err(TimedOut) => Err(None),
    }
}

/// The running handlers, oldest first.
fn still_running<A: Clone>(handlers: &mut Handlers, begun: &Begun<A>) -> Vec<Left<A>> {
    handlers.reap();
    let of = |(key, task)| {
        let (address, since) = begun.get(&key)?;
        Some(Left { address: address.clone(), task, age: elapsed_since(*since) })
    };
    let mut left: Vec<_> = handlers.running().filter_map(of).collect();
    left.sort_by_key(|left| left.task.0);
    left
}
