//! The waits for a queue: for an item, and for room. See `queue.rs` for what they wait for.
//!
//! They are written out, and not async functions, because most of them find what they want at the
//! first look.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pikake_traps::Interrupted;

use crate::error::{GetError, NotPut, PutError, TryGetError};
use crate::line::{Line, Serve};
use crate::line_turn::{Turn, Turned};
use crate::queue::AnyQueue;
use crate::store::Store;

/// Somebody who waits for an item, by what they know the queue.
pub(crate) trait Gets: Serve<Brings = ()> {
    type Store: Store;

    fn queue(&self) -> &AnyQueue<Self::Store>;
}

/// Those who wait for an item.
pub(crate) struct Getters<'a, S: Store>(pub(crate) &'a AnyQueue<S>);

impl<S: Store> Gets for Getters<'_, S> {
    type Store = S;

    #[inline]
    fn queue(&self) -> &AnyQueue<S> {
        self.0
    }
}

impl<S: Store> Serve for Getters<'_, S> {
    type Brings = ();

    #[inline]
    fn line(&self) -> &Line<()> {
        &self.0.getters
    }

    #[inline]
    fn serve(&self) {
        self.0.serve();
    }

    fn give_back(&self) {
        self.0.give_back();
    }
}

/// Those who wait for room.
pub(crate) struct Putters<'a, S: Store>(pub(crate) &'a AnyQueue<S>);

impl<S: Store> Serve for Putters<'_, S> {
    type Brings = S::Item;

    #[inline]
    fn line(&self) -> &Line<S::Item> {
        &self.0.putters
    }

    #[inline]
    fn serve(&self) {
        self.0.serve();
    }

    /// It has been taken in, and stays there.
    fn give_back(&self) {}
}

/// The next item; `None` if there will be none.
pub(crate) struct Next<G: Gets>(pub(crate) Turn<G>);

impl<G: Gets> Next<G> {
    #[inline]
    fn wait(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<<G::Store as Store>::Item>, Interrupted>> {
        let turned = ready!(Pin::new(&mut self.0).poll(cx))?;
        Poll::Ready(Ok(match turned {
            Turned::Called => Some(self.0.source().queue().collect()),
            Turned::Dismissed => None,
        }))
    }
}

impl<G: Gets> Unpin for Next<G> {}

impl<G: Gets> Future for Next<G> {
    type Output = Result<Option<<G::Store as Store>::Item>, Interrupted>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let got = self.0.at_once(|getter, ()| match getter.queue().try_get() {
            Ok(item) => Ok(Some(item)),
            Err(TryGetError::Closed) => Ok(None),
            Err(TryGetError::Empty) => Err(()),
        });
        match got {
            Some(got) => Poll::Ready(Ok(got)),
            None => self.wait(cx),
        }
    }
}

/// The future of [`AnyQueue::get`].
pub(crate) struct Get<G: Gets>(pub(crate) Next<G>);

impl<G: Gets> Future for Get<G> {
    type Output = Result<<G::Store as Store>::Item, GetError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let got = ready!(Pin::new(&mut self.0).poll(cx))?;
        Poll::Ready(got.ok_or(GetError::Closed))
    }
}

/// The items of a queue as a stream. Made by [`AnyQueue::stream`].
#[must_use = "nothing is taken until it is polled"]
pub struct QueueStream<'a, S: Store> {
    pub(crate) queue: &'a AnyQueue<S>,
    pub(crate) next: Option<Next<Getters<'a, S>>>,
    pub(crate) made_at: &'static Location<'static>,
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
pub(crate) struct Put<'a, S: Store>(pub(crate) Turn<Putters<'a, S>>);

impl<S: Store> Put<'_, S> {
    #[inline(never)]
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), PutError<S::Item>>> {
        let why = match ready!(Pin::new(&mut self.0).poll(cx)) {
            Ok(Turned::Called) => return Poll::Ready(Ok(())),
            Ok(Turned::Dismissed) => NotPut::Closed,
            Err(interrupted) => NotPut::Interrupted(interrupted),
        };
        let item = self.0.take_back().expect("what was not taken is there");
        Poll::Ready(Err(PutError::new(item, why)))
    }
}

impl<S: Store> Unpin for Put<'_, S> {}

impl<S: Store> Future for Put<'_, S> {
    type Output = Result<(), PutError<S::Item>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let put = self.0.at_once(|putter, item| match putter.0.put_now(item) {
            Ok(()) => Ok(Ok(())),
            Err((item, NotPut::Full)) => Err(item),
            Err((item, why)) => Ok(Err(PutError::new(item, why))),
        });
        match put {
            Some(put) => Poll::Ready(put),
            None => self.wait(cx),
        }
    }
}
