//! Work on its way to another thread, as whoever owns that thread sees it.

use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;

use crate::reply::Reply;

/// Something to do on another thread, whose result is replied to a task.
///
/// A kernel's helper threads [`run`](Self::run) it; a thread that owns something runs it
/// [on that](Self::run_on). The reply is given when the call is dropped, so that its thread can be
/// free for the next one before anybody hears of this one. Dropped without having been run, it
/// tells whoever waits that there will be no result.
pub struct BlockingCall<T: ?Sized = ()>(Box<dyn Work<T>>, Option<&'static Location<'static>>);

impl<T: ?Sized + 'static> BlockingCall<T> {
    /// A call that replies what the closure returns.
    ///
    /// When nobody waits for the reply any more the call may be dropped anywhere, also inside a
    /// kernel. So whoever gives up waiting first takes out of the closure what runs code when it is
    /// dropped.
    pub fn new<R: Send + 'static>(
        reply: Reply<R>,
        work: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Self {
        Self(Box::new(Replying { reply: Some(reply), work: Some(work), result: None }), None)
    }

    /// The call, with the place where somebody waits for it.
    #[must_use = "it gives back the call with the place"]
    pub fn awaited_at(self, place: &'static Location<'static>) -> Self {
        Self(self.0, Some(place))
    }

    /// Where somebody waits for it, if that is known.
    pub fn place(&self) -> Option<&'static Location<'static>> {
        self.1
    }

    /// Whether somebody waits for the reply. Once nobody does, nobody ever will: the call can be
    /// dropped, and holds nothing of whoever made it any more.
    pub fn is_wanted(&self) -> bool {
        self.0.is_wanted()
    }

    /// Does it, once, unless nobody waits for it any more.
    ///
    /// A panic of a task's closure is part of the reply. The drop of a result that nobody wants may
    /// panic.
    pub fn run_on(&mut self, what: &mut T) {
        self.0.run_on(what);
    }
}

impl BlockingCall {
    /// Does it. See [`run_on`](Self::run_on).
    pub fn run(&mut self) {
        self.run_on(&mut ());
    }
}

impl<T: ?Sized> fmt::Debug for BlockingCall<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingCall").field("is_wanted", &self.0.is_wanted()).finish()
    }
}

trait Work<T: ?Sized>: Send {
    fn is_wanted(&self) -> bool;
    fn run_on(&mut self, what: &mut T);
}

struct Replying<R, F> {
    /// Taken by the drop.
    reply: Option<Reply<R>>,
    /// Taken when it is run.
    work: Option<F>,
    result: Option<R>,
}

impl<T: ?Sized, R: Send, F: FnOnce(&mut T) -> R + Send> Work<T> for Replying<R, F> {
    fn is_wanted(&self) -> bool {
        self.reply.as_ref().is_some_and(Reply::is_awaited)
    }

    fn run_on(&mut self, what: &mut T) {
        if Work::<T>::is_wanted(self)
            && let Some(work) = self.work.take()
        {
            self.result = Some(work(what));
        }
    }
}

impl<R, F> Drop for Replying<R, F> {
    fn drop(&mut self) {
        if let (Some(reply), Some(result)) = (self.reply.take(), self.result.take()) {
            reply.send(result);
        }
    }
}

/// Unwanted calls are looked for when a line has become twice as long as after the last time, and at
/// least so long. So they never outnumber the others by much, and looking costs little.
const PRUNE_FROM: usize = 64;

/// Jobs that wait for a thread, in the order in which they came.
///
/// Those that nobody wants any more are taken out now and then.
#[derive(Debug)]
pub struct CallQueue<T: ?Sized = ()> {
    calls: VecDeque<BlockingCall<T>>,
    /// At which length it is looked through.
    prune_at: usize,
}

impl<T: ?Sized + 'static> CallQueue<T> {
    /// Puts a call at the end. What comes back is unwanted, and to be dropped.
    pub fn push(&mut self, call: BlockingCall<T>) -> Vec<BlockingCall<T>> {
        let mut unwanted = VecDeque::new();
        if self.calls.len() >= self.prune_at {
            (self.calls, unwanted) = self.calls.drain(..).partition(BlockingCall::is_wanted);
            self.prune_at = PRUNE_FROM.max(2 * self.calls.len());
        }
        self.calls.push_back(call);
        unwanted.into()
    }

    /// Takes the first call, wanted or not.
    pub fn pop(&mut self) -> Option<BlockingCall<T>> {
        self.calls.pop_front()
    }

    /// Takes back the call that was put there last.
    pub fn take_back(&mut self) -> Option<BlockingCall<T>> {
        self.calls.pop_back()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// How many wait that somebody wants.
    pub fn wanted(&self) -> usize {
        self.calls.iter().filter(|call| call.is_wanted()).count()
    }
}

impl<T: ?Sized> Default for CallQueue<T> {
    fn default() -> Self {
        Self { calls: VecDeque::new(), prune_at: PRUNE_FROM }
    }
}
