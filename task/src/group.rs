//! Task groups: spawning, and the policies of joining. `policy.rs` has the common parts of the
//! policies.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;

use pikake_traps::{Interrupted, TaskError, TaskRef};

use crate::bounded::BoundedGroup;
use crate::error::{BoxError, GroupError};
use crate::failure_rule::{AnyOutput, OnlyOk};
use crate::member::Member;
use crate::members::Members;
use crate::spawner::{MemberBuilder, Spawner};

/// The number of places that a warning shows.
const SPAWN_PLACES: usize = 8;

/// Tasks that end before their owner goes on.
///
/// [`task_group`](crate::task_group) makes a group for a block, and joins the group on every way
/// out of the block, also by `?`. A group of one's own is for what a block cannot express. A
/// program makes the group, adds members, and joins the group by one of its policies; the crate's
/// front page lists them. A policy returns after the end of every member. The group has then
/// *ended*, and takes no further members. ([`join_next`](Self::join_next) does not end the group.)
///
/// # Examples
///
/// A group that leaves no member behind, whatever happens in its block:
///
/// ```
/// use pikake::task::GroupError;
/// use pikake::{sleep, task_group};
/// use std::time::Duration;
///
/// # async fn answer(line: u32) {}
/// # pikake::sim::example(async {
/// let lines = task_group(async |group| {
///     for line in 0..10 {
///         group.spawn(answer(line));
///         sleep(Duration::from_millis(1)).await?; // an interruption ends the members, too
///     }
///     Ok::<_, GroupError>(10)
/// })
/// .await?;
/// assert_eq!(lines, 10);
/// # Ok::<_, GroupError>(())
/// # })
/// # .unwrap();
/// ```
///
/// A group of one's own, whose values are wanted:
///
/// ```
/// # async fn fetch(page: u32) -> Result<String, std::io::Error> { Ok(page.to_string()) }
/// # async fn example() -> Result<(), pikake::task::GroupError> {
/// use pikake::TaskGroup;
///
/// let mut group = TaskGroup::new();
/// for page in 1..=3 {
///     group.spawn(fetch(page));
/// }
/// let pages: Vec<String> = group.try_join_all().await?; // in the order of the spawns
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interrupted policy asks all members to end, and waits for their ends without a limit and
/// without further interruptions. The policy then reports the interruption in its [`GroupError`]. A
/// dropped policy leaves the outcomes in the group, and a policy may be called again.
///
/// The drop of a group before its members have ended, as by a `?` before the join, cannot wait for
/// them. The drop asks them to end, leaves them to the kernel, and logs a warning with the places
/// of the group and of the spawns. (A drop by a panic logs none, since the panic is reported.)
#[doc(alias = "JoinSet")]
#[must_use = "a group that is dropped asks its members to end: join it"]
pub struct TaskGroup<T: 'static> {
    pub(crate) members: Rc<Members<T>>,
    /// An interruption that ended the group and was not reported yet.
    pub(crate) interrupted: Option<Interrupted>,
}

/// A member that has ended. Given by [`TaskGroup::join_next`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Done<T> {
    /// The member.
    pub member: Member,
    /// The outcome of the member's task.
    pub outcome: Result<T, TaskError>,
}

impl<T: 'static> TaskGroup<T> {
    /// A group without members.
    #[track_caller]
    pub fn new() -> Self {
        Self::at(Location::caller())
    }

    pub(crate) fn at(place: &'static Location<'static>) -> Self {
        Self { members: Members::new(place), interrupted: None }
    }

    /// Starts a task as a member of the group.
    ///
    /// # Panics
    ///
    /// Outside a kernel. When the group has ended; a [`Spawner`] gives an error instead.
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> Member
    where
        F: Future<Output = T> + 'static,
    {
        unless_ended(self.member().spawn(future))
    }

    /// Starts a task with a name as a member of the group.
    ///
    /// # Panics
    ///
    /// As for [`spawn`](Self::spawn).
    #[track_caller]
    pub fn spawn_named<F>(&mut self, name: impl Into<Box<str>>, future: F) -> Member
    where
        F: Future<Output = T> + 'static,
    {
        unless_ended(self.member().name(name).spawn(future))
    }

    /// Starts a task as a member of the group, with work that may begin on any kernel of the
    /// process. See [`spawn_anywhere`](crate::spawn_anywhere).
    ///
    /// # Panics
    ///
    /// As for [`spawn`](Self::spawn).
    #[track_caller]
    pub fn spawn_anywhere<M, F>(&mut self, make: M) -> Member
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send,
    {
        unless_ended(self.member().spawn_anywhere(make))
    }

    /// Starts a task as a daemon of the group. Joins do not wait for a daemon, and ignore its value
    /// and its errors. The end of the group cancels its daemons.
    ///
    /// # Panics
    ///
    /// As for [`spawn`](Self::spawn).
    #[track_caller]
    pub fn spawn_daemon<F>(&mut self, future: F) -> Member
    where
        F: Future<Output = T> + 'static,
    {
        unless_ended(self.member().daemon().spawn(future))
    }

    /// A builder of a member, with more settings than [`spawn`](Self::spawn).
    pub fn member(&mut self) -> MemberBuilder<'_, T> {
        MemberBuilder::new(&self.members)
    }

    /// A handle that adds members from elsewhere, for example from inside a member.
    pub fn spawner(&self) -> Spawner<T> {
        Spawner::new(self.members.clone())
    }

    /// A group in which no more than `limit` members run at a time: spawning waits for room.
    ///
    /// # Panics
    ///
    /// When the limit is zero.
    #[track_caller]
    pub fn bounded(limit: usize) -> BoundedGroup<T> {
        BoundedGroup::new(Self::at(Location::caller()), limit)
    }

    /// The number of members that have not ended, without daemons.
    pub fn running(&self) -> usize {
        self.members.running()
    }

    /// Waits for the next member to end, in the order of their ends; `None` when there is none.
    ///
    /// Later policies do not see the outcomes that this call returns. A failure does not end the
    /// other members. The call does not wait for daemons.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(mut group: pikake::TaskGroup<u32>) -> Result<(), pikake::task::GroupError> {
    /// while let Some(done) = group.join_next().await? {
    ///     match done.outcome {
    ///         Ok(value) => println!("{} gave {value}", done.member.id()),
    ///         Err(error) => println!("{} failed: {error}", done.member.id()),
    ///     }
    /// }
    /// # Ok(()) }
    /// # pikake::sim::example(async {
    /// #     let mut group = pikake::TaskGroup::new();
    /// #     group.spawn(async { 7 });
    /// #     example(group).await
    /// # })
    /// # .unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// An interruption point while the call waits; it may be repeated. Nothing is lost when the
    /// future is dropped.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; the members run on.
    ///
    /// # Panics
    ///
    /// When the call has to wait outside a task of a kernel.
    #[track_caller]
    pub fn join_next(&mut self) -> impl Future<Output = Result<Option<Done<T>>, Interrupted>> {
        let place = Location::caller();
        async move {
            loop {
                if let Some(done) = self.try_join_next() {
                    return Ok(Some(done));
                }
                if self.members.running() == 0 {
                    return Ok(None);
                }
                self.members.next_end(place).await?;
            }
        }
    }

    /// Takes the next member that has ended, without waiting.
    ///
    /// A group keeps the outcomes of its members until they are taken. A server, whose group never
    /// ends, must take them.
    pub fn try_join_next(&mut self) -> Option<Done<T>> {
        let (task, outcome) = self.members.take(0)?.into_outcome();
        Some(Done { member: Member(task), outcome })
    }

    /// Waits for all members, also for members that are spawned meanwhile, and returns their values
    /// in the order of the spawns.
    ///
    /// As soon as one member fails, the others are asked to end, and the call waits for their ends.
    ///
    /// # Cancellation
    ///
    /// See [`TaskGroup`].
    ///
    /// # Errors
    ///
    /// [`GroupError`]: a member panicked or was cancelled from outside, or the caller was
    /// interrupted. The values are dropped.
    ///
    /// # Panics
    ///
    /// When the call has to wait outside a task of a kernel.
    #[track_caller]
    pub fn join_all(&mut self) -> impl Future<Output = Result<Vec<T>, GroupError>> {
        self.join::<AnyOutput>(Location::caller())
    }

    /// Waits for the first end of a member, and returns its value. The other members are asked to
    /// end, and the call waits for their ends.
    ///
    /// Outcomes of the other members are ignored; panics are logged if the call succeeds.
    ///
    /// # Cancellation
    ///
    /// See [`TaskGroup`].
    ///
    /// # Errors
    ///
    /// [`GroupError`]: the first member to end panicked or was cancelled from outside, and is the
    /// first of the failures. Or the caller was interrupted, or there was [no
    /// member](GroupError::had_no_members).
    ///
    /// # Panics
    ///
    /// When the call has to wait outside a task of a kernel.
    #[track_caller]
    pub fn join_any(&mut self) -> impl Future<Output = Result<T, GroupError>> {
        self.any::<AnyOutput>(Location::caller())
    }

    /// Waits for the first member that succeeds, and returns its value. The other members are asked
    /// to end, and the call waits for their ends.
    ///
    /// Failures are logged if the call succeeds.
    ///
    /// # Cancellation
    ///
    /// See [`TaskGroup`].
    ///
    /// # Errors
    ///
    /// [`GroupError`]: all members failed, or the caller was interrupted, or there was
    /// [no member](GroupError::had_no_members).
    ///
    /// # Panics
    ///
    /// When the call has to wait outside a task of a kernel.
    #[track_caller]
    pub fn first_value(&mut self) -> impl Future<Output = Result<T, GroupError>> {
        self.first::<AnyOutput>(Location::caller())
    }

    /// Asks all members to end, the newest first, and waits for their ends.
    ///
    /// # Cancellation
    ///
    /// Not an interruption point: an interruption of the caller is due at its next wait.
    ///
    /// # Errors
    ///
    /// [`GroupError`]: members had failed before, or panicked while they cleaned up.
    ///
    /// # Panics
    ///
    /// When the call has to wait outside a task of a kernel.
    #[doc(alias = "abort_all")]
    #[track_caller]
    pub fn cancel_all(&mut self) -> impl Future<Output = Result<(), GroupError>> {
        let place = Location::caller();
        async move {
            self.end("its group was cancelled", place).await;
            let summary = self.take_summary::<AnyOutput>();
            if summary.failures.is_empty() { Ok(()) } else { Err(summary.into_error(None)) }
        }
    }
}

#[track_caller]
fn unless_ended(spawned: Result<Member, crate::GroupEnded>) -> Member {
    match spawned {
        Ok(member) => member,
        Err(ended) => panic!("{ended}"),
    }
}

/// Policies for which a returned `Err` is a failure.
///
/// The error may be of any type that converts into a `Box<dyn Error + Send + Sync>`: errors, texts,
/// `anyhow::Error`.
impl<V: 'static, E: Into<BoxError> + 'static> TaskGroup<Result<V, E>> {
    /// As [`join_all`](TaskGroup::join_all), but an `Err` is a failure, and the values are those
    /// inside `Ok`.
    ///
    /// # Errors
    ///
    /// [`GroupError`], as from `join_all`, or because a member returned an `Err`.
    ///
    /// # Panics
    ///
    /// When the call has to wait outside a task of a kernel.
    #[doc(alias = "try_join")]
    #[track_caller]
    pub fn try_join_all(&mut self) -> impl Future<Output = Result<Vec<V>, GroupError>> {
        self.join::<OnlyOk<E>>(Location::caller())
    }

    /// As [`join_any`](TaskGroup::join_any), but an `Err` is a failure.
    ///
    /// # Errors
    ///
    /// [`GroupError`], as from `join_any`, or because the first member to end returned an `Err`.
    ///
    /// # Panics
    ///
    /// When the call has to wait outside a task of a kernel.
    #[track_caller]
    pub fn try_join_any(&mut self) -> impl Future<Output = Result<V, GroupError>> {
        self.any::<OnlyOk<E>>(Location::caller())
    }

    /// As [`first_value`](TaskGroup::first_value), but an `Err` is a failure.
    ///
    /// # Errors
    ///
    /// [`GroupError`], as from `first_value`.
    ///
    /// # Panics
    ///
    /// When the call has to wait outside a task of a kernel.
    #[track_caller]
    pub fn try_first_value(&mut self) -> impl Future<Output = Result<V, GroupError>> {
        self.first::<OnlyOk<E>>(Location::caller())
    }
}

impl<T: 'static> Default for TaskGroup<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}

impl<T: 'static> Drop for TaskGroup<T> {
    fn drop(&mut self) {
        let why = Interrupted::cancelled("its group was dropped without having been joined");
        let left = self.members.abandon(&why);
        // The panic is reported, and is what has to be mended.
        if !left.is_empty() && !std::thread::panicking() {
            tracing::warn!(
                members = left.len(),
                made_at = %self.members.made_at,
                spawned_at = spawn_places(&left),
                "a task group was dropped before its members had ended: they were asked to end, \
                 and run on unjoined; join the group on every way out of its block, or use \
                 `task_group`, which does"
            );
        }
    }
}

/// The places where tasks were spawned, each once, the first ones only.
fn spawn_places(tasks: &[TaskRef]) -> String {
    let mut places: Vec<_> = tasks.iter().map(TaskRef::spawned_at).collect();
    places.sort_unstable();
    places.dedup();
    let shown = places.iter().take(SPAWN_PLACES).map(ToString::to_string);
    let others = (places.len() > SPAWN_PLACES).then(|| "…".to_owned());
    shown.chain(others).collect::<Vec<_>>().join(", ")
}

impl<T> fmt::Debug for TaskGroup<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskGroup")
            .field("made_at", &format_args!("{}", self.members.made_at))
            .field("running", &self.members.running())
            .field("daemons", &self.members.daemons())
            .field("finished", &self.members.finished())
            .field("is_open", &self.members.is_open())
            .finish()
    }
}
