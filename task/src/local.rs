//! Task locals: a static that has a value of its own in every task.
//!
//! The value is kept with the task, under the address of the static. A spawned task inherits no
//! value: its parent passes values on.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

use pikake_traps::{Current, LocalKey, try_current};

/// A static that has a value of its own in every task.
///
/// The value is dropped with its task: after the task's future, on the same thread, while the task
/// is still current. The value need not be `Send`. A spawned task does not inherit it.
///
/// [`local!`](crate::local) declares statics of this type in the way of `thread_local!`.
///
/// # Examples
///
/// ```
/// use pikake::task::TaskLocal;
/// use std::cell::Cell;
///
/// static USER: TaskLocal<String> = TaskLocal::new();
/// static QUERIES: TaskLocal<Cell<u32>> = TaskLocal::starting_with(|| Cell::new(0));
///
/// # async fn example() {
/// USER.set("ada".into());
/// QUERIES.with(|count| count.set(count.get() + 1));
/// assert_eq!(USER.with(|user| user.len()), 3);
/// # }
/// # pikake::sim::example(example());
/// ```
#[doc(alias = "LocalKey")]
pub struct TaskLocal<T: 'static> {
    first: Option<fn() -> T>,
    /// Gives each static of this type an address of its own: a type with a cell inside is neither
    /// promoted from a constant nor merged with an equal static.
    _place: std::sync::atomic::AtomicU8,
    _value: PhantomData<fn(T) -> Cell<T>>,
}

impl<T: 'static> TaskLocal<T> {
    /// A local without a value, until a task sets one.
    #[expect(clippy::new_without_default, reason = "it is of use in a static only")]
    pub const fn new() -> Self {
        Self::made(None)
    }

    /// A local whose value is made at its first use in each task.
    pub const fn starting_with(first: fn() -> T) -> Self {
        Self::made(Some(first))
    }

    const fn made(first: Option<fn() -> T>) -> Self {
        Self { first, _place: std::sync::atomic::AtomicU8::new(0), _value: PhantomData }
    }

    fn key(&'static self) -> LocalKey {
        LocalKey(std::ptr::from_ref(self).addr())
    }

    /// Calls `look` with the current task's value.
    ///
    /// # Panics
    ///
    /// Outside a task; when the local was not set in this task and has no initial value; in the
    /// destructor of a task local.
    #[track_caller]
    pub fn with<R>(&'static self, look: impl FnOnce(&T) -> R) -> R {
        match self.value() {
            Ok(value) => look(&value),
            Err(error) => panic!("a task local cannot be read: {error}"),
        }
    }

    /// Calls `look` with the current task's value, if there is one.
    ///
    /// # Errors
    ///
    /// [`LocalError`]: there is no value.
    pub fn try_with<R>(&'static self, look: impl FnOnce(&T) -> R) -> Result<R, LocalError> {
        Ok(look(&*self.value()?))
    }

    /// A copy of the current task's value.
    ///
    /// # Errors
    ///
    /// [`LocalError`]: there is no value.
    pub fn get(&'static self) -> Result<T, LocalError>
    where
        T: Clone,
    {
        self.try_with(T::clone)
    }

    /// Sets the current task's value; the previous value is dropped.
    ///
    /// # Panics
    ///
    /// Outside a task; in the destructor of a task local.
    #[doc(alias = "scope")]
    #[track_caller]
    pub fn set(&'static self, value: T) {
        if let Err(error) = self.try_set(value) {
            panic!("a task local cannot be set: {error}");
        }
    }

    /// Sets the current task's value, if there is a task.
    ///
    /// # Errors
    ///
    /// [`LocalError`]: there is no task, or it has ended. The value is dropped.
    pub fn try_set(&'static self, value: T) -> Result<(), LocalError> {
        let task = try_current().ok_or(LocalError::OutsideTask)?;
        self.put(&task, Rc::new(value))
    }

    fn put(&'static self, task: &Current, value: Rc<dyn Any>) -> Result<(), LocalError> {
        let before = task.set_local(self.key(), value).map_err(|_dropped| LocalError::TaskEnded)?;
        drop(before);
        Ok(())
    }

    fn value(&'static self) -> Result<Rc<T>, LocalError> {
        let task = try_current().ok_or(LocalError::OutsideTask)?;
        if let Some(value) = task.local(self.key()) {
            return Ok(value.downcast().expect("a static has one type and one address"));
        }
        let first = self.first.ok_or(LocalError::Unset)?;
        let value = Rc::new(first());
        self.put(&task, value.clone())?;
        Ok(value)
    }
}

impl<T> fmt::Debug for TaskLocal<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskLocal").field("type", &std::any::type_name::<T>()).finish()
    }
}

/// The reason why there is no value of a task local.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LocalError {
    /// No task is being stepped on this thread.
    OutsideTask,
    /// This task has not set the local, which has no initial value.
    Unset,
    /// The task has ended, and its values are being dropped or have been dropped.
    TaskEnded,
}

impl fmt::Display for LocalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutsideTask => {
                "this thread is not inside a task: use a task local only in a task, or in functions \
                 that a task calls"
            }
            Self::Unset => {
                "it was not set in this task; a spawned task inherits no value, so set it there, \
                 or declare it with an initial value"
            }
            Self::TaskEnded => "the task has ended, and its values are dropped",
        })
    }
}

impl std::error::Error for LocalError {}

/// Declares task locals.
///
/// An initial value is made at the first use in each task. A task has to set a local without one.
/// Each local is a static of the type [`TaskLocal`](crate::TaskLocal).
///
/// # Examples
///
/// ```
/// use std::cell::Cell;
///
/// pikake::task::local! {
///     /// The user of the request.
///     pub static USER: String;
///     static QUERIES: Cell<u32> = Cell::new(0);
/// }
///
/// # async fn example() {
/// USER.set("ada".into());
/// QUERIES.with(|count| count.set(count.get() + 1));
/// # }
/// # pikake::sim::example(example());
/// ```
#[doc(alias = "task_local")]
#[macro_export]
macro_rules! local {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty $(= $first:expr)?;)*) => {$(
        $(#[$attribute])*
        $visible static $name: $crate::TaskLocal<$type> = $crate::local!(@made $($first)?);
    )*};
    (@made) => { $crate::TaskLocal::new() };
    (@made $first:expr) => { $crate::TaskLocal::starting_with(|| $first) };
}
