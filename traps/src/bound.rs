//! Values that are used in their own kernel alone, for interfaces that demand `Send`.
//!
//! A [`Bound`] is `Send` and `Sync` for any value inside, because only the home thread reaches the
//! value. The home thread may have other kernels, as in a simulation, so an access inside a kernel
//! compares the kernels, and one outside of any compares the threads:
//!
//! ```text
//!              on the home thread, in the         in another kernel of the     on another
//!              value's kernel or in none          home thread                  thread
//!
//!   get, poll  the value                          a panic that names the value's kernel
//!   drop       dropped                            sent home through the wake queue, dropped there;
//!    after the                                    if the kernel has ended:
//!    kernel    dropped                            dropped                      leaked
//! ```
//!
//! # Why this is sound
//!
//! The value may be anything that other threads must not touch: an `Rc`, a wait of a kernel. Other
//! threads may own, move and borrow the *wrapper*, so they must neither get a reference to the
//! value nor run its destructor.
//!
//! 1. The value is private. Only `get`, `get_mut` and `into_inner` reach the value, and each checks
//!    [`is_home`](Bound::is_home) first. Inside a kernel, `is_home` compares the kernels: no two
//!    kernels of a process have the same number, and a kernel never leaves its thread. Outside it
//!    compares the threads, which do not share numbers either, also if one has ended before the
//!    other begins.
//! 2. The destructor drops the value where `is_home` holds, and so on the home thread. Elsewhere it
//!    moves the value's bytes into a [`Package`], without reading them; the value is `Unpin`, so a
//!    move is sound.
//! 3. A package drops the value on the home thread, and forgets the value elsewhere. So any thread
//!    may drop a message that was not delivered.
//! 4. No derived impl reads the value: `Debug` shows the home, and the value at home only.
//!
//! So a program with several kernels on one thread behaves as with a thread for each. The current
//! kernel is read from the thread's door, which has no destructor, so it is known in the destructor
//! of another thread-local as well. There, and in `main` after a run, the thread is inside no
//! kernel.
//!
//! A package compares threads only. It is dropped in its kernel, or by that kernel's end, or by a
//! sender that found the kernel ended. In the last two cases another kernel of the thread may be
//! the current one, and no kernel is left where the value could be dropped.

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

/// The number of a thread, never used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Thread(u64);

impl Thread {
    fn current() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            // Without a destructor, so that a destructor of another thread-local can read the
            // number.
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

/// A value that stays in its kernel, in a wrapper that may go anywhere.
///
/// For libraries that demand `Send` (and `Sync`) of values that they poll and drop on the thread
/// where they got them: handlers of axum, connectors, timers. A use on another thread, or in
/// another kernel of the same thread, panics. A drop there sends the value home, and drops it in
/// its kernel. On the home thread, code outside of any kernel may use and drop the value, also
/// after the end of its kernel.
///
/// A `Bound` of a future is a future. Futures are pinned in a box, see [`Bound::future`]; other
/// values are stored inline.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::{Bound, Interrupted, sleep};
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
/// When polled on another thread, or in another kernel.
#[must_use = "a future does nothing until it is awaited"]
pub struct Bound<T: Unpin + 'static> {
    home: Arc<Home>,
    thread: Thread,
    /// `Some` until the destructor takes the value.
    value: Option<T>,
}

// SAFETY: another thread that owns a `Bound` reaches neither the value nor its destructor, see the
// head of this file. The thread can only move the bytes, which is sound for an `Unpin` value. The
// other fields, an `Arc<Home>` and a number, are `Send`.
unsafe impl<T: Unpin> Send for Bound<T> {}

// SAFETY: another thread that borrows a `Bound` gets no reference to the value, since `get`
// calls `is_home` first, as `Debug` does. The other fields are `Sync`.
unsafe impl<T: Unpin> Sync for Bound<T> {}

impl<T: Unpin> Bound<T> {
    /// Binds a value to the current kernel.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn new(value: T) -> Self {
        let home = door::with(|local| local.home().shared().clone());
        Self { home, thread: Thread::current(), value: Some(value) }
    }

    /// Whether the value may be used here: on its home thread, inside its kernel or outside of any
    /// kernel.
    #[inline]
    pub fn is_home(&self) -> bool {
        match door::current_kernel() {
            Some(kernel) => kernel == self.home.id(),
            None => Thread::current() == self.thread,
        }
    }

    /// The value.
    ///
    /// # Panics
    ///
    /// Where [`is_home`](Self::is_home) is `false`.
    #[track_caller]
    #[inline]
    pub fn get(&self) -> &T {
        self.check();
        self.value.as_ref().expect("only the destructor takes the value")
    }

    /// The value, for changes.
    ///
    /// # Panics
    ///
    /// Where [`is_home`](Self::is_home) is `false`.
    #[track_caller]
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.check();
        self.value.as_mut().expect("only the destructor takes the value")
    }

    /// Unwraps the value.
    ///
    /// # Panics
    ///
    /// Where [`is_home`](Self::is_home) is `false`; the value is then sent home and dropped.
    #[track_caller]
    pub fn into_inner(mut self) -> T {
        self.check();
        self.value.take().expect("only the destructor takes the value")
    }

    #[track_caller]
    fn check(&self) {
        assert!(
            self.is_home(),
            "a value that belongs to the thread of kernel {} was used on another thread, or in \
             another kernel: use the value in a task of that kernel",
            self.home.id()
        );
    }
}

impl<F: Future + 'static> Bound<Pin<Box<F>>> {
    /// Binds a future to the current kernel.
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
            // A kernel that has ended returns the package, whose drop forgets the value.
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

/// A value on its way to its home thread, for the drop there.
struct Package {
    thread: Thread,
    value: Option<Box<dyn Any>>,
}

// SAFETY: no code reads the value. Only the destructor drops it, after comparing threads, and
// forgets the value on any thread but its own.
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
