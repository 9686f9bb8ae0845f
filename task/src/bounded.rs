//! A group that has room for so many members at a time.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

use pikake_traps::Interrupted;

use crate::group::TaskGroup;
use crate::spawner::Member;

/// A [`TaskGroup`] in which only so many members run at a time: [`spawn`](Self::spawn) waits for
/// room. Made by [`TaskGroup::bounded`].
///
/// In everything else it is that group, and is joined as that is. Room is what its owner waits for:
/// a member that adds members by a [`Spawner`](crate::Spawner) does not, since all might then wait
/// for each other. Those members count, daemons do not.
///
/// # Examples
///
/// No more requests are taken from the queue than can be answered:
///
/// ```no_run
/// # struct Requests;
/// # impl Requests { async fn next(&mut self) -> Result<u32, pikake_traps::Interrupted> { Ok(1) } }
/// # async fn answer(request: u32) {}
/// # async fn example(mut requests: Requests) -> Result<(), pikake_task::GroupError> {
/// use pikake_task::TaskGroup;
///
/// let mut group = TaskGroup::bounded(100);
/// for _ in 0..10_000 {
///     group.room().await?;
///     let request = requests.next().await?;
///     group.spawn(answer(request)).await?;
///     while let Some(done) = group.try_next_done() {
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
    pub(crate) fn around(group: TaskGroup<T>, limit: usize) -> Self {
        check(limit);
        Self { group, limit }
    }

    /// Waits for room, and starts a task as a member of the group.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits for room; the future is then dropped without having been
    /// polled. Who wants to keep it awaits [`room`](Self::room) first. The same when this is dropped
    /// while it waits.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; the members run on.
    ///
    /// # Panics
    ///
    /// When the group has ended. When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> impl Future<Output = Result<Member, Interrupted>>
    where
        F: Future<Output = T> + 'static,
    {
        self.spawn_at(None, future, Location::caller())
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
        self.spawn_at(Some(name.into()), future, Location::caller())
    }

    /// Starts a task as a member of the group if there is room, and gives the future back if not.
    ///
    /// # Errors
    ///
    /// The future: there is no room.
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
    /// An interruption point while it waits. Nothing is lost when it is dropped.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; the members run on.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn room(&mut self) -> impl Future<Output = Result<(), Interrupted>> {
        self.group.wait_for_room(self.limit, Location::caller())
    }

    /// How many members there is room for.
    pub fn free(&self) -> usize {
        self.limit.saturating_sub(self.group.running())
    }

    /// How many members may run at a time.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Changes how many members may run at a time. Those that run are left alone.
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
    assert!(limit > 0, "a group that has room for nobody would have everybody wait for ever");
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
