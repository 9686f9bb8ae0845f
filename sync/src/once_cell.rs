//! A value that is made once, by whoever needs it first.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::Location;

use pikake_traps::{Interrupted, WaitQueue, shown_at};

use crate::name::Name;
use crate::signals::{Signals, signal};

/// A value that is made once, by whoever needs it first; the others wait for it.
///
/// If the one that makes it fails, is interrupted or dropped, the next of those who wait tries.
///
/// # Examples
///
/// ```
/// # pikake_sim::example(async {
/// use pikake_sync::OnceCell;
///
/// let greeting = OnceCell::new();
/// let text = greeting.get_or_init(async || "hello").await?;
/// assert_eq!(*text, "hello");
/// assert_eq!(greeting.get(), Some(&"hello"));
/// # Ok::<_, pikake_traps::Interrupted>(()) }).unwrap();
/// ```
#[derive(Default)]
pub struct OnceCell<T> {
    value: std::cell::OnceCell<T>,
    /// Somebody makes it.
    is_being_made: Cell<bool>,
    waiters: WaitQueue,
    name: Name,
}

impl<T> OnceCell<T> {
    /// A cell without a value.
    pub const fn new() -> Self {
        Self {
            value: std::cell::OnceCell::new(),
            is_being_made: Cell::new(false),
            waiters: WaitQueue::new(),
            name: Name::NONE,
        }
    }

    /// The same with a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// The value, if it has been made.
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// Gives it its value, if it has none; those who wait go on. Who is making one makes it in
    /// vain.
    ///
    /// # Errors
    ///
    /// The value that was to be its, because it has one.
    pub fn set(&self, value: T) -> Result<(), T> {
        self.value.set(value)?;
        self.waiters.wake(usize::MAX);
        Ok(())
    }

    /// The value, if it has been made.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// The value; it is made if there is none, or waited for if somebody is making it.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits for somebody else. What happens to one that makes the
    /// value is the matter of `make`; if it returns, that is the value. Dropped, it lets the next
    /// try.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], while it waited for somebody else.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn get_or_init(
        &self,
        make: impl AsyncFnOnce() -> T,
    ) -> impl Future<Output = Result<&T, Interrupted>> {
        self.get_or_try_init(async || Ok(make().await))
    }

    /// [`get_or_init`](Self::get_or_init) with something that may fail, by an interruption or
    /// otherwise.
    ///
    /// # Cancellation
    ///
    /// As there.
    ///
    /// # Errors
    ///
    /// What `make` returned; then the next of those who wait tries. [`Interrupted`], made into an
    /// error of that type, while it waited for somebody else.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn get_or_try_init<E: From<Interrupted>>(
        &self,
        make: impl AsyncFnOnce() -> Result<T, E>,
    ) -> impl Future<Output = Result<&T, E>> {
        let place = Location::caller();
        async move {
            loop {
                if let Some(value) = self.get() {
                    return Ok(value);
                }
                if !self.is_being_made.get() {
                    break;
                }
                signal(self, place).await?;
            }
            let making = Making::begin(self);
            let value = shown_at(make(), place).await?;
            // Somebody may have set one meanwhile; then theirs is the value.
            drop(self.value.set(value));
            drop(making);
            Ok(self.get().expect("it has just been set"))
        }
    }

    /// How many wait for the value.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

/// Somebody makes the value, until this is dropped.
struct Making<'a, T>(&'a OnceCell<T>);

impl<'a, T> Making<'a, T> {
    fn begin(cell: &'a OnceCell<T>) -> Self {
        cell.is_being_made.set(true);
        Self(cell)
    }
}

impl<T> Drop for Making<'_, T> {
    fn drop(&mut self) {
        self.0.is_being_made.set(false);
        self.0.waiters.wake(if self.0.get().is_some() { usize::MAX } else { 1 });
    }
}

impl<T> Signals for OnceCell<T> {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> String {
        format!("once cell{}, which is being initialised", self.name)
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("OnceCell");
        self.name.show(&mut shown);
        shown
            .field("value", &self.get())
            .field("is_being_made", &self.is_being_made.get())
            .field("waiting", &self.waiting())
            .finish()
    }
}
