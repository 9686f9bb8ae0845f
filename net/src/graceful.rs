//! Ending a server without hurting anybody who can still be served.
//!
//! Who stops a server wants three things that contradict each other: no request is lost, the
//! process ends, and it ends soon. Two deadlines say how that is settled:
//!
//! ```text
//!  serving ──(1)──▶ ending ─────────(2)────────▶ interrupted ────────(3)───────▶ dropped
//!                   no further connections;      every handler has an            what is left,
//!                   requests come to their end   error at its await, and         by name
//!                   until the soft deadline      may say goodbye until
//!                                                the hard one
//! ```
//!
//! (1) [`Closing::begin`], an interruption of the server, or an end of its listener. Whoever was in the
//! backlog by then is let in, if there is room: they may have sent a request. (2) The soft
//! deadline, or another interruption. (3) The hard one, or yet another. From each state it is over
//! as soon as no handler runs any more.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_time::Ticks;
use pikake_traps::{Interrupted, TaskId, WaitQueue, elapsed_since, now, park, timeout_after};

use crate::error::interruption;
use crate::handlers::Handlers;
use crate::serve::{Listener, next_connection};

/// What handlers are told when the soft deadline has passed.
const SOFT_REASON: &str = "the server is ending, and its soft deadline has passed";

/// How long a server that ends looks for connections in its listener's backlog: enough to ask the
/// system once, which a kernel does not before everything is done that it knows of.
pub const BACKLOG_WAIT: Duration = Duration::from_millis(1);

/// How long a server's handlers may take when it ends.
///
/// The two together should be less than whoever ends the process waits before it kills: 30 s, for
/// many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// Until handlers are interrupted.
    pub soft: Duration,
    /// From then on, until they are dropped.
    pub hard: Duration,
}

impl Default for Patience {
    /// 20 s to come to an end, and 5 s to say goodbye.
    fn default() -> Self {
        Self { soft: Duration::from_secs(20), hard: Duration::from_secs(5) }
    }
}

/// Tells a server that it is to end, and its handlers that it does. Clones are one.
///
/// A handler that waits for the next request of a client, who may be in no hurry, waits for this as
/// well, and ends its connection between two requests.
///
/// # Examples
///
/// See [`serve_until`].
#[derive(Clone, Default)]
pub struct Closing {
    shared: Rc<(Cell<bool>, WaitQueue)>,
}

impl Closing {
    /// Nobody has asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The server is to end. Once is enough.
    pub fn begin(&self) {
        let (has_begun, waiting) = &*self.shared;
        has_begun.set(true);
        waiting.wake(usize::MAX);
    }

    /// Whether the server is to end.
    pub fn has_begun(&self) -> bool {
        self.shared.0.get()
    }

    /// Waits until the server is to end.
    ///
    /// # Cancellation
    ///
    /// An interruption point, until then. Nothing is lost when it is dropped.
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

/// Why a server has ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended {
    /// [`Closing::begin`] was called.
    Asked,
    /// Its task was interrupted.
    Interrupted(Interrupted),
    /// Its listener has failed.
    Failed(io::Error),
}

/// A handler that did not end by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Left<A> {
    /// Where its connection came from.
    pub address: A,
    /// The handler's task.
    pub task: TaskId,
    /// How long it had been running.
    pub age: Duration,
}

impl<A: fmt::Debug> fmt::Display for Left<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, task, age } = self;
        write!(f, "the connection of {address:?} (task {}), after {age:.1?}", task.0)
    }
}

/// How a server has ended, and who was still there. See [`serve_until`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Farewell<A> {
    /// Why it has ended.
    pub why: Ended,
    /// How many connections it has handled.
    pub handled: u64,
    /// Who ran at the soft deadline and was interrupted, oldest first.
    pub interrupted: Vec<Left<A>>,
    /// Who of them ran at the hard deadline and was dropped.
    pub dropped: Vec<Left<A>>,
}

impl<A> Farewell<A> {
    /// Whether all handlers have ended by themselves.
    pub fn is_clean(&self) -> bool {
        self.interrupted.is_empty()
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

/// Serves as [`serve`](crate::serve()) does until it is told to end, and then ends gracefully: takes
/// the connections that wait already, as many as there is room for, and no further one; lets
/// handlers end, interrupts them at the soft deadline, drops them at the hard one, and reports who was
/// left.
///
/// An interruption of the task counts as the word to end, so with
/// `#[pikake::main(signals)]` a SIGTERM is all it takes; one by another cause, as a deadline around
/// it, ends the patience of the moment. In a
/// [`timeout_after`](pikake_traps::timeout_after) the farewell is lost; use
/// [`timed`](pikake_traps::timed).
/// The listener is dropped when ending has begun and [`BACKLOG_WAIT`] is over, which closes it unless somebody else has it. Who was
/// in its backlog and there was no room for is reset, and so knows at once that nobody has read what
/// it sent.
///
/// # Examples
///
/// ```
/// use pikake_net::{BufReader, Closing, Patience, TcpListener, TcpStream, serve_until};
///
/// /// Answers line by line; between two lines it may be told that the server ends.
/// async fn answer(stream: TcpStream, closing: Closing) -> std::io::Result<()> {
///     let reader = BufReader::new(&stream);
///     let mut lines = reader.lines();
///     while !closing.has_begun() {
///         let Some(line) = lines.next().await? else { break };
///         stream.write_all(line.to_uppercase().as_bytes()).await?;
///     }
///     Ok(())
/// }
///
/// # async fn example() -> std::io::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:7000").await?;
/// let closing = Closing::new();
/// let told = closing.clone();
/// let farewell = serve_until(listener, 1000, closing, Patience::default(), move |stream, _| {
///     let told = told.clone();
///     async move { drop(answer(stream, told).await) }
/// })
/// .await;
/// println!("{farewell}");
/// # Ok(()) }
/// ```
///
/// # Cancellation
///
/// An interruption point; see above. Dropped, it asks the handlers to end, and nobody waits for
/// them.
///
/// # Panics
///
/// When `limit` is zero; when polled outside a task.
pub fn serve_until<L, H, F>(
    listener: L,
    limit: usize,
    closing: Closing,
    patience: Patience,
    handler: H,
) -> impl Future<Output = Farewell<L::Address>>
where
    L: Listener,
    L::Connection: 'static,
    L::Address: Clone + 'static,
    H: Fn(L::Connection, L::Address) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    assert!(limit > 0, "a server that may handle no connection at a time never handles any");
    let handler = Rc::new(handler);
    async move {
        let mut handlers = Handlers::new(limit);
        let mut begun = Begun::new();
        let mut handled = 0;
        let mut start = |handlers: &mut Handlers, connection, address: L::Address| {
            let (handler, peer) = (handler.clone(), address.clone());
            let key = handlers.start(move || handler(connection, address));
            begun.insert(key, (peer, now()));
            handled += 1;
        };
        let why = loop {
            match next_or_end(&listener, &mut handlers, &closing).await {
                Ok(Some((connection, address))) => start(&mut handlers, connection, address),
                Ok(None) => break Ended::Asked,
                Err(error) => match interruption(&error) {
                    Some(interrupted) => break Ended::Interrupted(interrupted.clone()),
                    None => break Ended::Failed(error),
                },
            }
        };
        closing.begin();
        let mut is_patient = true;
        if !matches!(why, Ended::Failed(_)) {
            // What is in the backlog came in time, and its requests may have been sent.
            let room = handlers.limit.saturating_sub(handlers.running().count());
            let letting_in = timeout_after(BACKLOG_WAIT, async {
                for _ in 0..room {
                    match listener.accept().await {
                        Ok((connection, address)) => start(&mut handlers, connection, address),
                        Err(error) => return interruption(&error).is_none(),
                    }
                }
                true
            });
            is_patient = letting_in.await.unwrap_or(true);
        }
        drop(listener);
        let mut farewell = Farewell { why, handled, interrupted: Vec::new(), dropped: Vec::new() };
        if !is_patient || !all_end(&mut handlers, patience.soft).await {
            farewell.interrupted = left(&mut handlers, &begun);
            handlers.request_cancel(SOFT_REASON);
            if !all_end(&mut handlers, patience.hard).await {
                farewell.dropped = left(&mut handlers, &begun);
                handlers.abort();
                // Their destructors are about to run, which is no matter of patience.
                while handlers.fewer_than(1).await.is_err() {}
            }
        }
        farewell
    }
}

/// Where the handlers' connections come from, and since when.
type Begun<A> = BTreeMap<usize, (A, Ticks)>;

/// The next connection; `None` when the server is to end.
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

/// Whether all handlers end within so long, and this is not interrupted.
async fn all_end(handlers: &mut Handlers, within: Duration) -> bool {
    matches!(timeout_after(within, handlers.fewer_than(1)).await, Ok(Ok(())))
}

/// Those who run, oldest first.
fn left<A: Clone>(handlers: &mut Handlers, begun: &Begun<A>) -> Vec<Left<A>> {
    handlers.reap();
    let of = |(key, task)| {
        let (address, since) = begun.get(&key)?;
        Some(Left { address: address.clone(), task, age: elapsed_since(*since) })
    };
    let mut left: Vec<_> = handlers.running().filter_map(of).collect();
    left.sort_by_key(|left| left.task.0);
    left
}
