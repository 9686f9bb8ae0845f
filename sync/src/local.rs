//! State that tasks share without a lock, and hold across no await.

use std::cell::RefCell;
use std::fmt;

/// State that the tasks of one kernel share without a lock.
///
/// Between two awaits a task runs alone, so it can change shared state without a lock, if it keeps
/// no reference to the state while it waits. This cell lends its state to closures only, and a
/// closure cannot await. To hold state across an await, use [`Mutex`](crate::Mutex).
///
/// # Examples
///
/// ```
/// use pikake::sync::Local;
/// use std::collections::HashMap;
/// use std::rc::Rc;
///
/// let sessions = Rc::new(Local::new(HashMap::new()));
/// sessions.with(|sessions| sessions.insert(17, "ada"));
/// assert_eq!(sessions.with(|sessions| sessions.len()), 1);
/// ```
#[derive(Default)]
pub struct Local<T: ?Sized>(RefCell<T>);

impl<T> Local<T> {
    /// Wraps a state.
    pub const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// The state.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// A copy of the state.
    ///
    /// # Panics
    ///
    /// Inside a closure that [`with`](Self::with) runs.
    #[track_caller]
    pub fn get(&self) -> T
    where
        T: Clone,
    {
        self.with(|value| value.clone())
    }

    /// Replaces the state, and returns the previous one.
    ///
    /// # Panics
    ///
    /// Inside a closure that [`with`](Self::with) runs.
    #[track_caller]
    pub fn replace(&self, value: T) -> T {
        self.with(|state| std::mem::replace(state, value))
    }
}

impl<T: ?Sized> Local<T> {
    /// Calls `work` with the state.
    ///
    /// # Panics
    ///
    /// Inside another call of `with`.
    #[track_caller]
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        match self.0.try_borrow_mut() {
            Ok(mut value) => work(&mut value),
            Err(_) => panic!(
                "shared state was used inside a closure that works with it already: do one thing \
                 after the other, or pass on the reference that the closure got"
            ),
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Local<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.try_borrow() {
            Ok(value) => f.debug_tuple("Local").field(&&*value).finish(),
            Err(_) => f.write_str("Local(<in use>)"),
        }
    }
}
