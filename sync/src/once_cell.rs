//! A value that is initialised once, by the first task that needs it.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::Location;

use pikake_traps::{About, Interrupted, Queued, TaskMark, WaitQueue, park_at, shown_at};

use crate::name::Name;

/// A value that is initialised once, by the first task that needs it; the others wait for it.
///
/// If the initialisation fails, is interrupted or dropped, the next waiter tries.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::sync::OnceCell;
///
/// let greeting = OnceCell::new();
/// let text = greeting.get_or_init(async || "hello").await?;
/// assert_eq!(*text, "hello");
/// assert_eq!(greeting.get(), Some(&"hello"));
/// # Ok::<_, pikake::Interrupted>(()) }).unwrap();
/// ```
#[derive(Default)]
pub struct OnceCell<T> {
    value: std::cell::OnceCell<T>,
    /// The task that initialises the value. [`TaskMark::NONE`] also if no task does, but a future
    /// outside of tasks.
    maker: Cell<TaskMark>,
    is_being_made: Cell<bool>,
    waiters: WaitQueue,
    name: Name,
}

impl<T> OnceCell<T> {
    /// Creates a cell without a value.
    pub const fn new() -> Self {
        Self {
            value: std::cell::OnceCell::new(),
            maker: Cell::new(TaskMark::NONE),
            is_being_made: Cell::new(false),
            waiters: WaitQueue::new(),
            name: Name::NONE,
        }
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// The value, if the cell has one.
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// Sets the value and releases all waiters. The cell drops the result of an initialisation that
    /// is still running.
    ///
    /// # Errors
    ///
    /// The given value, if the cell already has one.
    pub fn set(&self, value: T) -> Result<(), T> {
        self.value.set(value)?;
        self.waiters.wake(usize::MAX);
        Ok(())
    }

    /// The value, if the cell has one.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Returns the value. Calls `make` if there is none, or waits while another task initialises
    /// it.
    ///
    /// # Cancellation
    ///
    /// The wait for another task is an interruption point. `make` handles its own interruptions,
    /// and its output is the value. If the future is dropped, the next waiter tries.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], while it waited for another task.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn get_or_init(
        &self,
        make: impl AsyncFnOnce() -> T,
    ) -> impl Future<Output = Result<&T, Interrupted>> {
        self.get_or_try_init(async || Ok(make().await))
    }

    /// [`get_or_init`](Self::get_or_init) with a `make` that may fail, by an interruption or
    /// otherwise.
    ///
    /// # Cancellation
    ///
    /// As [`get_or_init`](Self::get_or_init).
    ///
    /// # Errors
    ///
    /// The error of `make`; the next waiter tries. [`Interrupted`], converted to that type, while
    /// it waited for another task.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
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
                park_at(self, place).await?;
            }
            let making = Making::begin(self);
            let value = shown_at(make(), place).await?;
            // `set` may have been called meanwhile; its value stays.
            drop(self.value.set(value));
            drop(making);
            Ok(self.get().expect("it has just been set"))
        }
    }

    /// The number of waiters.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

/// Marks the value as being initialised, until the mark is dropped.
struct Making<'a, T>(&'a OnceCell<T>);

impl<'a, T> Making<'a, T> {
    fn begin(cell: &'a OnceCell<T>) -> Self {
        cell.is_being_made.set(true);
        cell.maker.set(TaskMark::current());
        Self(cell)
    }
}

impl<T> Drop for Making<'_, T> {
    fn drop(&mut self) {
        self.0.is_being_made.set(false);
        self.0.waiters.wake(if self.0.get().is_some() { usize::MAX } else { 1 });
    }
}

impl<T> Queued for OnceCell<T> {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> About {
        let maker = self.maker.get();
        let by = if maker.is_none() { String::new() } else { format!(" by {}", maker.label()) };
        // The maker is not the only owner: any task may call `set`.
        About::new(format!("once cell{}, which is being initialised{by}", self.name))
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
