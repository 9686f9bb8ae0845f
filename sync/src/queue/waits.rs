//! The waits of a queue: for an item, and for room.
//!
//! They are hand-written futures, since most of them are ready at the first poll and then never
//! reach the wait.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use pikake_traps::{About, Interrupted, KernelTrap, Queued, TakeTrap, WaitQueue, take_at, timed};

use super::AnyQueue;
use crate::error::{NotPut, PutError, TryGetError, TryPutError};
use crate::permits::{PermitRequest, Taking};
use crate::store::Store;

/// The calls that wait.
impl<S: Store> AnyQueue<S> {
    /// Puts an item, waiting for room.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. An interruption returns the item in the error. Dropping
    /// the future drops the item, unless the channel or queue has already taken it in.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: the wait was interrupted, or the queue is closed.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    #[inline]
    pub fn put(&self, item: S::Item) -> impl Future<Output = Result<(), PutError<S::Item>>> {
        Put::new(self, item, Location::caller())
    }

    /// Puts an item, waiting at most `length` for room. The inner error is the item, if there was
    /// no room in time.
    ///
    /// # Cancellation
    ///
    /// As [`put`](Self::put).
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    ///
    /// # Panics
    ///
    /// Outside a task of a kernel.
    #[track_caller]
    pub fn put_timeout(
        &self,
        item: S::Item,
        length: Duration,
    ) -> impl Future<Output = Result<Result<(), S::Item>, PutError<S::Item>>> {
        let put = timed(length, self.put(item));
        async move {
            let put = put.await;
            let outcome =
                put.output.expect("an expired wait on a trap alone returns, and is not dropped");
            match outcome {
                Err(late) if put.expired && late.interrupted().is_some() => Ok(Err(late.item)),
                outcome => outcome.map(Ok),
            }
        }
    }

    /// Gets the next item, waiting until there is one; `None` once the queue is closed and empty.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. A dropped future stops waiting; an item that was granted
    /// to it goes to the next getter.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; `get` can be called again.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    #[inline]
    pub fn get(&self) -> impl Future<Output = Result<Option<S::Item>, Interrupted>> {
        self.next(Location::caller())
    }

    /// Returns a stream of `Result<S::Item, Interrupted>`, which ends when the queue is closed and
    /// empty, and continues after an interruption.
    ///
    /// # Cancellation
    ///
    /// As [`get`](Self::get), for each item.
    #[track_caller]
    pub fn stream(&self) -> QueueStream<'_, S> {
        QueueStream::new(self, Location::caller())
    }

    /// The wait for the next item.
    #[inline]
    pub(crate) fn next(&self, place: &'static Location<'static>) -> Next<GetRequest<'_, S>> {
        Next::new(GetRequest(self), place)
    }

    /// Gets all items that are not granted to other getters, waiting until there is one; none once
    /// the queue is closed and empty.
    ///
    /// # Cancellation
    ///
    /// As [`get`](Self::get).
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn pop_all(&self) -> impl Future<Output = Result<Vec<S::Item>, Interrupted>> {
        let first = self.get();
        async move {
            let mut all = Vec::from_iter(first.await?);
            while let Ok(item) = self.try_get() {
                all.push(item);
            }
            Ok(all)
        }
    }
}

/// A request for an item of a queue, held by reference or shared.
pub(crate) trait ItemRequest: PermitRequest {
    type Store: Store;

    fn item_queue(&self) -> &AnyQueue<Self::Store>;
}

/// A request for an item of a queue held by reference.
pub(crate) struct GetRequest<'a, S: Store>(pub(super) &'a AnyQueue<S>);

impl<S: Store> Clone for GetRequest<'_, S> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

impl<S: Store> ItemRequest for GetRequest<'_, S> {
    type Store = S;

    #[inline]
    fn item_queue(&self) -> &AnyQueue<S> {
        self.0
    }
}

impl<S: Store> PermitRequest for GetRequest<'_, S> {}

impl<S: Store> Queued for GetRequest<'_, S> {
    #[inline]
    fn queue(&self) -> &WaitQueue {
        &self.0.getters
    }

    fn about(&self) -> About {
        self.0.about()
    }
}

impl<S: Store> AnyQueue<S> {
    /// The permits of the getters.
    #[inline]
    pub(crate) fn getters(&self) -> &WaitQueue {
        &self.getters
    }
}

/// The wait for the next item; `None` if the queue is closed and empty.
pub(crate) struct Next<G: ItemRequest> {
    taking: Taking<G>,
    awaited_at: &'static Location<'static>,
}

impl<G: ItemRequest> Next<G> {
    #[inline]
    pub(crate) fn new(getter: G, awaited_at: &'static Location<'static>) -> Self {
        Self { taking: Taking::new(getter), awaited_at }
    }

    #[track_caller]
    #[inline]
    fn wait(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<<G::Store as Store>::Item>, Interrupted>> {
        let getter = ready!(self.taking.poll(cx, self.awaited_at))?;
        Poll::Ready(Ok(getter.item_queue().take_out(0)))
    }
}

impl<G: ItemRequest> Unpin for Next<G> {}

impl<G: ItemRequest> Future for Next<G> {
    type Output = Result<Option<<G::Store as Store>::Item>, Interrupted>;

    #[track_caller]
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(getter) = self.taking.if_new() {
            let got = match getter.item_queue().try_get() {
                Ok(item) => Some(Some(item)),
                Err(TryGetError::Closed) => Some(None),
                Err(TryGetError::Empty) => None,
            };
            if let Some(got) = got {
                self.taking.end();
                return Poll::Ready(Ok(got));
            }
        }
        self.wait(cx)
    }
}

/// The items of a queue as a stream. Made by [`AnyQueue::stream`].
#[must_use = "a stream takes no item until it is polled"]
pub struct QueueStream<'a, S: Store> {
    queue: &'a AnyQueue<S>,
    next: Option<Next<GetRequest<'a, S>>>,
    made_at: &'static Location<'static>,
}

impl<'a, S: Store> QueueStream<'a, S> {
    pub(super) fn new(queue: &'a AnyQueue<S>, made_at: &'static Location<'static>) -> Self {
        Self { queue, next: None, made_at }
    }
}

impl<S: Store> Stream for QueueStream<'_, S> {
    type Item = Result<S::Item, Interrupted>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { queue, next, made_at } = &mut *self;
        let got = ready!(Pin::new(next.get_or_insert_with(|| queue.next(made_at))).poll(cx));
        *next = None;
        Poll::Ready(got.transpose())
    }
}

impl<S: Store> fmt::Debug for QueueStream<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueStream").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// The future of [`AnyQueue::put`].
pub(crate) struct Put<'a, S: Store> {
    queue: &'a AnyQueue<S>,
    stage: Stage<'a, S>,
    awaited_at: &'static Location<'static>,
}

enum Stage<'a, S: Store> {
    New(S::Item),
    /// The item is pending, and has this number.
    Waiting(KernelTrap<TakeTrap<Putters<'a, S>>>, u64),
    Ended,
}

/// The putters of a queue, each of which waits until its item moves into the queue.
struct Putters<'a, S: Store>(&'a AnyQueue<S>);

impl<S: Store> Queued for Putters<'_, S> {
    #[inline]
    fn queue(&self) -> &WaitQueue {
        &self.0.putters
    }

    fn about(&self) -> About {
        self.0.about()
    }

    fn left(&self) {
        // The permit was granted for an item that is in the queue, and concerns no other putter.
        self.0.putters.recover();
        self.0.putters.reclaim();
    }
}

impl<'a, S: Store> Put<'a, S> {
    #[inline]
    pub(super) fn new(
        queue: &'a AnyQueue<S>,
        item: S::Item,
        awaited_at: &'static Location<'static>,
    ) -> Self {
        Self { queue, stage: Stage::New(item), awaited_at }
    }

    #[inline(never)]
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), PutError<S::Item>>> {
        let queue = self.queue;
        let answer = match &mut self.stage {
            Stage::New(_) => {
                // A permit granted in an ended kernel was for an item that is in the queue.
                queue.putters.recover();
                queue.putters.reclaim();
                let mut trap = take_at(Putters(queue), 1, self.awaited_at);
                let polled = Pin::new(&mut trap).poll(cx);
                let Stage::New(item) = std::mem::replace(&mut self.stage, Stage::Ended) else {
                    unreachable!("polling the trap does not reach this future")
                };
                match polled {
                    // The item is pending from the moment the putter waits, no sooner.
                    Poll::Pending => {
                        let number = queue.pending.borrow_mut().push(item);
                        self.stage = Stage::Waiting(trap, number);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(())) => unreachable!("no permit for putters is ever free"),
                    Poll::Ready(Err(why)) => {
                        return Poll::Ready(Err(PutError::new(item, NotPut::Interrupted(why))));
                    }
                }
            }
            Stage::Waiting(trap, _) => ready!(Pin::new(trap).poll(cx)),
            Stage::Ended => {
                panic!("a put (awaited at {}) was polled after it had ended", self.awaited_at)
            }
        };
        let item = self.take_back();
        self.stage = Stage::Ended;
        Poll::Ready(match (item, answer) {
            (None, _) => Ok(()),
            (Some(item), Ok(())) => Err(PutError::new(item, NotPut::Closed)),
            (Some(item), Err(why)) => Err(PutError::new(item, NotPut::Interrupted(why))),
        })
    }

    /// Takes the item back, if it is still pending.
    fn take_back(&self) -> Option<S::Item> {
        let Stage::Waiting(_, number) = &self.stage else { return None };
        self.queue.pending.borrow_mut().take_back(*number)
    }
}

impl<S: Store> Unpin for Put<'_, S> {}

impl<S: Store> Future for Put<'_, S> {
    type Output = Result<(), PutError<S::Item>>;

    #[track_caller]
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Stage::New(_) = self.stage {
            if let Stage::New(item) = std::mem::replace(&mut self.stage, Stage::Ended) {
                match self.queue.try_put(item) {
                    Ok(()) => return Poll::Ready(Ok(())),
                    Err(TryPutError::Full(item)) => self.stage = Stage::New(item),
                    Err(TryPutError::Closed(item)) => {
                        return Poll::Ready(Err(PutError::new(item, NotPut::Closed)));
                    }
                }
            }
        }
        self.wait(cx)
    }
}

impl<S: Store> Drop for Put<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if let Stage::Waiting(..) = &self.stage {
            // Putters and items leave together: the item here, and the putter with the trap.
            let item = self.take_back();
            self.stage = Stage::Ended;
            drop(item);
        }
    }
}
