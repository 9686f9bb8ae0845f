//! Values of this thread inside of what has to be `Send`.
//!
//! Some libraries demand that all they are given can go to another thread, and never send it there.
//! What such a library holds is a number; the value stays in a table of its thread. Used on another
//! thread, it panics; dropped there, the value waits in the table for the thread's end.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::thread::{self, ThreadId};

thread_local! {
    static KEPT: RefCell<BTreeMap<u64, Rc<dyn Any>>> = const { RefCell::new(BTreeMap::new()) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// A value that stays on the thread it was made on.
pub(crate) struct Bound<T> {
    key: u64,
    thread: ThreadId,
    value: PhantomData<fn() -> T>,
}

impl<T: 'static> Bound<T> {
    pub(crate) fn new(value: T) -> Self {
        let key = NEXT.replace(NEXT.get() + 1);
        KEPT.with_borrow_mut(|kept| kept.insert(key, Rc::new(value)));
        Self { key, thread: thread::current().id(), value: PhantomData }
    }

    /// The value.
    ///
    /// # Panics
    ///
    /// On another thread.
    pub(crate) fn get(&self) -> Rc<T> {
        assert!(
            self.thread == thread::current().id(),
            "a name lookup of one kernel was polled on the thread of another: each kernel needs a \
             resolver of its own"
        );
        let value = KEPT.with_borrow(|kept| kept.get(&self.key).cloned());
        let value = value.and_then(|value| value.downcast().ok());
        value.expect("a value is kept for as long as its owner lives")
    }
}

impl<T> Drop for Bound<T> {
    fn drop(&mut self) {
        if self.thread == thread::current().id() {
            // The table is gone at the thread's end. What is taken out is dropped outside of it.
            let value = KEPT.try_with(|kept| kept.borrow_mut().remove(&self.key));
            drop(value);
        }
    }
}

impl<T> fmt::Debug for Bound<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("key", &self.key).field("thread", &self.thread).finish()
    }
}

type Pinned<T> = Pin<Box<dyn Future<Output = T>>>;

/// A future of this thread.
pub(crate) struct BoundFuture<T: 'static>(Bound<RefCell<Pinned<T>>>);

impl<T: 'static> BoundFuture<T> {
    pub(crate) fn new(future: impl Future<Output = T> + 'static) -> Self {
        Self(Bound::new(RefCell::new(Box::pin(future))))
    }
}

impl<T: 'static> Future for BoundFuture<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.0.get().borrow_mut().as_mut().poll(cx)
    }
}
