//! Adding members to a group.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;

use pikake_traps::Builder;

use crate::error::GroupEnded;
use crate::member::Member;
use crate::members::Members;

/// Adds members to a group from elsewhere, mostly from inside its members. Clone the handle freely.
///
/// A spawner does not keep the group open. After the group has ended, or while its members are
/// being asked to end, a spawn fails with [`GroupEnded`], and the future is dropped.
///
/// # Examples
///
/// ```
/// use pikake::TaskGroup;
/// use pikake::task::Spawner;
///
/// async fn visit(page: u32, spawner: Spawner<()>) {
///     if page < 1_000 {
///         let next = visit_boxed(page * 10, spawner.clone());
///         let _too_late = spawner.spawn(next);
///     }
/// }
/// # fn visit_boxed(page: u32, spawner: Spawner<()>) -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
/// #     Box::pin(visit(page, spawner))
/// # }
///
/// # async fn example() -> Result<(), pikake::task::GroupError> {
/// let mut group = TaskGroup::new();
/// group.spawn(visit(1, group.spawner()));
/// group.join_all().await?;
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
pub struct Spawner<T: 'static>(Rc<Members<T>>);

impl<T: 'static> Spawner<T> {
    pub(crate) fn new(members: Rc<Members<T>>) -> Self {
        members.add_spawner();
        Self(members)
    }

    /// Starts a task as a member of the group.
    ///
    /// # Errors
    ///
    /// [`GroupEnded`].
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> Result<Member, GroupEnded>
    where
        F: Future<Output = T> + 'static,
    {
        self.member().spawn(future)
    }

    /// A builder of a member, with more settings than [`spawn`](Self::spawn).
    pub fn member(&self) -> MemberBuilder<'_, T> {
        MemberBuilder::new(&self.0)
    }

    /// Whether the group takes members.
    pub fn is_open(&self) -> bool {
        self.0.is_open()
    }
}

impl<T> Clone for Spawner<T> {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl<T> Drop for Spawner<T> {
    fn drop(&mut self) {
        self.0.remove_spawner();
    }
}

impl<T> fmt::Debug for Spawner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawner").field("is_open", &self.is_open()).finish()
    }
}

/// Starts a member of a group with more settings. Made by [`Spawner::member`] and
/// [`TaskGroup::member`](crate::TaskGroup::member).
#[must_use = "a builder does nothing until `spawn` is called"]
pub struct MemberBuilder<'a, T: 'static> {
    members: &'a Rc<Members<T>>,
    builder: Builder,
    is_daemon: bool,
}

impl<'a, T: 'static> MemberBuilder<'a, T> {
    pub(crate) fn new(members: &'a Rc<Members<T>>) -> Self {
        Self { members, builder: Builder::new(), is_daemon: false }
    }

    /// The name that listings, logs and errors show.
    pub fn name(mut self, name: impl Into<Box<str>>) -> Self {
        self.builder = self.builder.name(name);
        self
    }

    /// Makes the member a daemon. Joins do not wait for a daemon, and ignore its value and its
    /// errors. The end of the group cancels its daemons. A panic of a daemon is logged.
    pub fn daemon(mut self) -> Self {
        self.is_daemon = true;
        self
    }

    pub(crate) fn spawned_at(mut self, place: &'static Location<'static>) -> Self {
        self.builder = self.builder.spawned_at(place);
        self
    }

    /// Starts the task as a member of the group.
    ///
    /// # Errors
    ///
    /// [`GroupEnded`].
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> Result<Member, GroupEnded>
    where
        F: Future<Output = T> + 'static,
    {
        self.members.spawn(self.builder, self.is_daemon, future)
    }

    /// Starts the task as a member of the group, with work that may begin on any kernel of the
    /// process. See [`spawn_anywhere`](crate::spawn_anywhere).
    ///
    /// # Errors
    ///
    /// [`GroupEnded`].
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn spawn_anywhere<M, F>(self, make: M) -> Result<Member, GroupEnded>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send,
    {
        self.members.spawn_anywhere(self.builder, self.is_daemon, make)
    }
}

impl<T> fmt::Debug for MemberBuilder<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberBuilder")
            .field("builder", &self.builder)
            .field("is_daemon", &self.is_daemon)
            .finish_non_exhaustive()
    }
}
