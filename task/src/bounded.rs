//! A group that limits the number of members that run at a time.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

use pikake_traps::{Interrupted, in_kernel};

use crate::group::TaskGroup;
use crate::member::Member;

/// A [`TaskGroup`] with a limit of running members: [`spawn`](Self::spawn) waits for room. Made by
/// [`TaskGroup::bounded`].
///
/// Everything else is as in a `TaskGroup`, to which this type dereferences. A member that adds
/// members by a [`Spawner`](crate::Spawner) does not wait for room, since all members might then
/// wait for each other. Such members count against the limit; daemons do not.
///
/// # Examples
///
/// The program takes a request from the queue only when it has room for the answer:
///
/// ```no_run
/// # struct Requests;
/// # impl Requests { async fn next(&mut self) -> Result<u32, pikake::Interrupted> { Ok(1) } }
/// # async fn answer(request: u32) {}
/// # async fn example(mut requests: Requests) -> Result<(), pikake::task::GroupError> {
/// use pikake::TaskGroup;
///
/// let mut group = TaskGroup::bounded(100);
/// for _ in 0..10_000 {
///     group.room().await?;
///     let request = requests.next().await?;
///     group.spawn(answer(request)).await?;
///     while let Some(done) = group.try_join_next() {
///         if let Err(error) = done.outcome {
///             eprintln!("{error}");
///         }
///     }
/// }
/// group.join_all().await?;
/// # Ok(()) }
/// ```
#[must_use = "a group that is dropped asks its members to end: join it"]
pub struct BoundedGroup<T: 'static> {
    group: TaskGroup<T>,
    limit: usize,
}

impl<T: 'static> BoundedGroup<T> {
    #[track_caller]
    pub(crate) fn new(group: TaskGroup<T>, limit: usize) -> Self {
        check(limit);
        Self { group, limit }
    }

    /// Waits for room, and starts a task as a member of the group.
    ///
    /// # Cancellation
    ///
    /// An interruption point while the call waits for room. An interruption, or a drop of the call,
    /// drops the future unpolled; to keep the future, await [`room`](Self::room) first.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; the members run on.
    ///
    /// # Panics
    ///
    /// When the group has ended. When the call has to wait outside a task of a kernel.
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> impl Future<Output = Result<Member, Interrupted>>
    where
        F: Future<Output = T> + 'static,
    {
        in_kernel(self.spawn_at(None, future, Location::caller()))
    }

    /// As [`spawn`](Self::spawn), with a name.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn).
    ///
    /// # Panics
    ///
    /// As [`spawn`](Self::spawn).
    #[track_caller]
    pub fn spawn_named<F>(
        &mut self,
        name: impl Into<Box<str>>,
        future: F,
    ) -> impl Future<Output = Result<Member, Interrupted>>
    where
        F: Future<Output = T> + 'static,
    {
        in_kernel(self.spawn_at(Some(name.into()), future, Location::caller()))
    }

    /// Starts a task as a member of the group if there is room.
    ///
    /// # Errors
    ///
    /// The future itself: there is no room.
    ///
    /// # Panics
    ///
    /// When the group has ended.
    #[track_caller]
    pub fn try_spawn<F>(&mut self, future: F) -> Result<Member, F>
    where
        F: Future<Output = T> + 'static,
    {
        if self.free() > 0 { Ok(self.group.spawn(future)) } else { Err(future) }
    }

    /// Waits until there is room for a member.
    ///
    /// # Cancellation
    ///
    /// An interruption point while the call waits. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; the members run on.
    ///
    /// # Panics
    ///
    /// When the call has to wait outside a task of a kernel.
    #[track_caller]
    pub fn room(&mut self) -> impl Future<Output = Result<(), Interrupted>> {
        self.group.wait_for_room(self.limit, Location::caller())
    }

    /// The number of members that may be added without a wait.
    pub fn free(&self) -> usize {
        self.limit.saturating_sub(self.group.running())
    }

    /// The number of members that may run at a time.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Changes the number of members that may run at a time. Running members are left alone.
    ///
    /// # Panics
    ///
    /// When the limit is zero.
    #[track_caller]
    pub fn set_limit(&mut self, limit: usize) {
        check(limit);
        self.limit = limit;
    }

    /// The group, without its limit.
    pub fn into_group(self) -> TaskGroup<T> {
        self.group
    }

    async fn spawn_at<F>(
        &mut self,
        name: Option<Box<str>>,
        future: F,
        place: &'static Location<'static>,
    ) -> Result<Member, Interrupted>
    where
        F: Future<Output = T> + 'static,
    {
        self.group.wait_for_room(self.limit, place).await?;
        let mut member = self.group.member().spawned_at(place);
        if let Some(name) = name {
            member = member.name(name);
        }
        match member.spawn(future) {
            Ok(member) => Ok(member),
            Err(ended) => panic!("{ended} (spawned at {place})"),
        }
    }
}

#[track_caller]
fn check(limit: usize) {
    assert!(limit > 0, "a group with a limit of zero would wait for room for ever");
}

impl<T: 'static> Deref for BoundedGroup<T> {
    type Target = TaskGroup<T>;

    fn deref(&self) -> &TaskGroup<T> {
        &self.group
    }
}

impl<T: 'static> DerefMut for BoundedGroup<T> {
    fn deref_mut(&mut self) -> &mut TaskGroup<T> {
        &mut self.group
    }
}

impl<T> fmt::Debug for BoundedGroup<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedGroup")
            .field("limit", &self.limit)
            .field("group", &self.group)
            .finish()
    }
}
