//! Blocking calls and their queue, as the threads that run the calls use them.

use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;

use crate::reply::Reply;

/// A closure for another thread, whose result goes to a task.
///
/// A kernel's helper threads [`run`](Self::run) the call. A thread that owns a value runs the call
/// [on that value](Self::run_on). The drop of the call sends the reply, so that the thread can
/// count as idle before the task gets the result. The drop of a call that did not run sends no
/// result, and ends the wait.
pub struct BlockingCall<T: ?Sized = ()>(Box<dyn Work<T>>, Option<&'static Location<'static>>);

impl<T: ?Sized + 'static> BlockingCall<T> {
    /// A call that replies with the closure's result.
    ///
    /// An unwanted call may be dropped anywhere, also inside a kernel. So a caller that stops
    /// waiting first takes all values whose drop runs user code out of the closure.
    pub fn new<R: Send + 'static>(
        reply: Reply<R>,
        work: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Self {
        Self(Box::new(Replying { reply: Some(reply), work: Some(work), result: None }), None)
    }

    /// Sets the place where a task waits for the call.
    #[must_use = "the call with the place is the result"]
    pub fn awaited_at(self, place: &'static Location<'static>) -> Self {
        Self(self.0, Some(place))
    }

    /// The place where a task waits for the call, if known.
    pub fn place(&self) -> Option<&'static Location<'static>> {
        self.1
    }

    /// Whether a task waits for the reply. An unwanted call stays unwanted, can be dropped, and
    /// holds no values of its maker any more.
    pub fn is_wanted(&self) -> bool {
        self.0.is_wanted()
    }

    /// Runs the closure once, if the call is wanted.
    ///
    /// A panic of a task's closure is part of the reply. The drop of an unwanted result may panic.
    pub fn run_on(&mut self, what: &mut T) {
        self.0.run_on(what);
    }
}

impl BlockingCall {
    /// Runs the closure. See [`run_on`](Self::run_on).
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
    /// Taken by the run.
    work: Option<F>,
    result: Option<R>,
}

impl<T: ?Sized, R: Send, F: FnOnce(&mut T) -> R + Send> Work<T> for Replying<R, F> {
    fn is_wanted(&self) -> bool {
        self.reply.as_ref().is_some_and(Reply::is_awaited)
    }

    fn run_on(&mut self, what: &mut T) {
        if !Work::<T>::is_wanted(self) {
            return;
        }
        if let Some(work) = self.work.take() {
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

/// The shortest queue that is searched for unwanted calls. The next search comes when the queue is
/// twice as long as after the last one, so unwanted calls never outnumber the others by much.
const PRUNE_FROM: usize = 64;

/// A first-in, first-out queue of calls that wait for a thread.
///
/// Now and then the queue drops unwanted calls.
#[derive(Debug)]
pub struct CallQueue<T: ?Sized = ()> {
    calls: VecDeque<BlockingCall<T>>,
    /// The length at which the queue is next searched for unwanted calls.
    prune_at: usize,
}

impl<T: ?Sized + 'static> CallQueue<T> {
    /// Appends a call. Returns unwanted calls, for the caller to drop.
    pub fn push(&mut self, call: BlockingCall<T>) -> Vec<BlockingCall<T>> {
        let mut unwanted = VecDeque::new();
        if self.calls.len() >= self.prune_at {
            (self.calls, unwanted) = self.calls.drain(..).partition(BlockingCall::is_wanted);
            self.prune_at = PRUNE_FROM.max(2 * self.calls.len());
        }
        self.calls.push_back(call);
        unwanted.into()
    }

    /// Removes the first call, wanted or not.
    pub fn pop(&mut self) -> Option<BlockingCall<T>> {
        self.calls.pop_front()
    }

    /// Removes the call that was appended last.
    pub fn take_back(&mut self) -> Option<BlockingCall<T>> {
        self.calls.pop_back()
    }

    /// Whether the queue has no call.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The number of wanted calls in the queue.
    pub fn wanted(&self) -> usize {
        self.calls.iter().filter(|call| call.is_wanted()).count()
    }
}

impl<T: ?Sized> Default for CallQueue<T> {
    fn default() -> Self {
        Self { calls: VecDeque::new(), prune_at: PRUNE_FROM }
    }
}
