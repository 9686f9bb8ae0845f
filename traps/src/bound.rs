//! Values that stay on their thread and may be passed around by others: for interfaces that demand
//! `Send` of what they never move.
//!
//! A [`Bound`] is `Send` and `Sync` whatever is inside, because the inside is reached on its home
//! thread only. Every access compares two numbers:
//!
//! ```text
//!                  on the home thread        elsewhere
//!   look, poll     the value                 a panic that says where it belongs
//!   drop           dropped                   sent home through the wake queue, dropped there;
//!                                            leaked if the kernel has ended
//! ```
//!
//! # Why this is sound
//!
//! What is inside may be anything that must not be touched by another thread: an `Rc`, a wait of a
//! kernel. Other threads may own, move and borrow the *wrapper*, so they must never get as far as a
//! reference to the value, nor run its destructor.
//!
//! 1. The value is private. `get`, `get_mut` and `into_inner` are the only ways to it, and each asks
//!    [`is_home`](Bound::is_home) first. A thread's number is given out once and never again, so a
//!    thread that is started after the home thread has ended is not taken for it.
//! 2. The destructor takes the value out where it is dropped. Elsewhere its bytes move into a
//!    [`Package`], without being looked at; they may, since what is inside is `Unpin`.
//! 3. A package does the same: opened or dropped on the home thread it drops the value, and dropped
//!    anywhere else it forgets it. So it does not matter who drops a message that was not delivered.
//! 4. Nothing that is derived reads the value: `Debug` shows the home, and the value at home only.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use crate::door;
use crate::home::{Home, Message};

/// The number of a thread, never given to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Thread(u64);

impl Thread {
    fn current() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            // Without a destructor, so that it can be read as long as the thread runs any code.
            static NUMBER: Cell<u64> = const { Cell::new(0) };
        }
        NUMBER.with(|number| {
            if number.get() == 0 {
                number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
            }
            Self(number.get())
        })
    }
}

/// A value that stays on its kernel's thread, in a wrapper that may go anywhere.
///
/// For libraries that demand `Send` (and `Sync`) of what they keep, and poll and drop it on the
/// thread where they got it: handlers of axum, connectors, timers. What is used on another thread
/// all the same panics there; what is dropped on another thread is dropped at home.
///
/// It is a future if what is inside is one. Such futures are pinned in a box, see
/// [`Bound::future`]; other values lie in it as they are.
///
/// # Examples
///
/// ```
/// # pikake_sim::example(async {
/// use pikake_traps::{Bound, Interrupted, sleep};
/// use std::time::Duration;
///
/// fn demanding<F: Future + Send + 'static>(future: F) -> F {
///     future
/// }
///
/// let nap = Bound::future(async {
///     sleep(Duration::from_millis(20)).await?; // which is not `Send`
///     Ok::<_, Interrupted>("rested")
/// });
/// assert_eq!(demanding(nap).await?, "rested");
/// # Ok::<(), Interrupted>(()) }).unwrap();
/// ```
///
/// # Cancellation
///
/// As that of the future inside.
///
/// # Panics
///
/// Polled on another thread than the one it was made on.
#[must_use = "a future does nothing until it is awaited"]
pub struct Bound<T: Unpin + 'static> {
    home: Arc<Home>,
    thread: Thread,
    /// There until the destructor takes it.
    value: Option<T>,
}

// SAFETY: another thread that owns a `Bound` reaches neither the value nor its destructor, see the
// head of this file; all it can do is move the bytes, which for an `Unpin` value means nothing. The
// rest of it, an `Arc<Home>` and a number, is `Send`.
unsafe impl<T: Unpin> Send for Bound<T> {}

// SAFETY: another thread that borrows a `Bound` gets no reference to the value, since `get` compares
// threads first and `Debug` uses it. The rest of it is `Sync`.
unsafe impl<T: Unpin> Sync for Bound<T> {}

impl<T: Unpin> Bound<T> {
    /// Binds a value to the current kernel's thread.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn new(value: T) -> Self {
        let home = door::with(|local| local.home().shared().clone());
        Self { home, thread: Thread::current(), value: Some(value) }
    }

    /// Whether this is the thread where the value may be used.
    pub fn is_home(&self) -> bool {
        Thread::current() == self.thread
    }

    /// The value.
    ///
    /// # Panics
    ///
    /// On another thread than the value's own.
    #[track_caller]
    pub fn get(&self) -> &T {
        self.check();
        self.value.as_ref().expect("only the destructor takes the value")
    }

    /// The value, to be changed.
    ///
    /// # Panics
    ///
    /// On another thread than the value's own.
    #[track_caller]
    pub fn get_mut(&mut self) -> &mut T {
        self.check();
        self.value.as_mut().expect("only the destructor takes the value")
    }

    /// The value, not bound any more.
    ///
    /// # Panics
    ///
    /// On another thread than the value's own; the value is then sent home and dropped.
    #[track_caller]
    pub fn into_inner(mut self) -> T {
        self.check();
        self.value.take().expect("only the destructor takes the value")
    }

    #[track_caller]
    fn check(&self) {
        assert!(
            self.is_home(),
            "a value that belongs to the thread of kernel {} was used on another thread: let what \
             uses it run in a task of that kernel",
            self.home.id()
        );
    }
}

impl<F: Future + 'static> Bound<Pin<Box<F>>> {
    /// Binds a future to the current kernel's thread.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn future(future: F) -> Self {
        Self::new(Box::pin(future))
    }
}

impl<F: Future + Unpin> Future for Bound<F> {
    type Output = F::Output;

    #[track_caller]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        Pin::new(self.get_mut().get_mut()).poll(cx)
    }
}

impl<T: Unpin> Drop for Bound<T> {
    fn drop(&mut self) {
        if self.is_home() {
            drop(self.value.take());
            return;
        }
        if let Some(value) = self.value.take() {
            let package = Package { thread: self.thread, value: Some(Box::new(value)) };
            // Refused by a kernel that has ended, the package comes back and forgets its value.
            drop(self.home.send(Message::Call(Box::new(|| drop(package)))));
        }
    }
}

impl<T: Unpin + fmt::Debug> fmt::Debug for Bound<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_home() {
            true => f.debug_tuple("Bound").field(self.get()).finish(),
            false => write!(f, "Bound(on the thread of kernel {})", self.home.id()),
        }
    }
}

/// A value on its way home, to be dropped there.
struct Package {
    thread: Thread,
    value: Option<Box<dyn Any>>,
}

// SAFETY: the value is looked at by nobody. It is dropped by the destructor alone, which compares
// threads first and forgets the value on any but its own.
unsafe impl Send for Package {}

impl Drop for Package {
    fn drop(&mut self) {
        let value = self.value.take();
        if Thread::current() == self.thread {
            drop(value);
        } else {
            std::mem::forget(value);
        }
    }
}

impl fmt::Debug for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Package")
    }
}
