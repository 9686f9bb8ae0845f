//! How an item gets from a putter into the queue, and from there to a getter.
//!
//! Apart from what is called by users (`queue.rs`): promises are made, kept and taken back here alone.

use crate::queue::AnyQueue;
use crate::store::Store;

impl<S: Store> AnyQueue<S> {
    /// Whether nothing will ever come out. What is promised may come back.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.closed.get() && self.is_empty()
    }

    #[inline]
    pub(crate) fn has_unpromised(&self) -> bool {
        self.len() > self.promised.get()
    }

    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        match self.capacity {
            0 => self.has_hands(),
            capacity => self.len() < capacity,
        }
    }

    /// Whether somebody would take an item from hand to hand.
    #[cold]
    pub(crate) fn has_hands(&self) -> bool {
        !self.has_unpromised() && self.getters.has_callable()
    }

    #[inline]
    pub(crate) fn take_in(&self, item: S::Item) {
        self.unfinished.set(self.unfinished.get() + 1);
        self.items.borrow_mut().push(item);
    }

    /// Takes out an item that comes after so many others; somebody may have room now.
    #[inline]
    pub(crate) fn give_out(&self, after: usize) -> S::Item {
        let item = self.items.borrow_mut().pop(after).expect("an item was counted");
        if !self.putters.is_empty() {
            self.serve_both();
        }
        if self.closed.get() {
            self.dismiss_if_over();
        }
        item
    }

    #[inline(never)]
    pub(crate) fn dismiss_if_over(&self) {
        if self.is_over() {
            self.getters.dismiss_all();
        }
    }

    /// Takes out what was promised.
    #[inline]
    pub(crate) fn collect(&self) -> S::Item {
        self.promised.set(self.promised.get() - 1);
        self.give_out(0)
    }

    #[inline(never)]
    pub(crate) fn hand_to_hand(&self) -> Option<S::Item> {
        if self.has_unpromised() || !self.getters.is_empty() {
            return None;
        }
        let mut putter = self.putters.call()?;
        let item = putter.take();
        self.unfinished.set(self.unfinished.get() + 1);
        putter.wake();
        Some(item)
    }

    pub(crate) fn serve_getters(&self) {
        while self.has_unpromised() && !self.getters.is_empty() && self.promise_to_first() {}
    }

    /// Promises an item that is there to the first getter that can be called, if there is one.
    #[inline(always)]
    pub(crate) fn promise_to_first(&self) -> bool {
        let promised = &self.promised;
        let promise = || promised.set(promised.get() + 1);
        self.getters.hand_to_first(promise, || promised.set(promised.get() - 1))
    }

    /// What was promised to somebody who is gone.
    pub(crate) fn give_back(&self) {
        self.promised.set(self.promised.get() - 1);
        self.serve();
    }

    #[inline]
    pub(crate) fn serve(&self) {
        if !self.putters.is_empty() || self.has_unpromised() {
            self.serve_both();
        }
    }

    #[inline(never)]
    pub(crate) fn serve_both(&self) {
        self.serve_getters();
        while self.has_room()
            && let Some(mut putter) = self.putters.call()
        {
            self.take_in(putter.take());
            putter.wake();
            self.serve_getters();
        }
    }
}
