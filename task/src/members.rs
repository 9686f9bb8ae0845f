//! The members of a group: their slots, and the reports of their ends.
//!
//! ```text
//!             (1)              (2)                  (3)
//!   future ────────▶ placed ────────▶ finished ────────────▶ taken
//!                      │
//!                      └─────▶ gone: a daemon, or the group has no owner any more
//! ```
//!
//! (1) [`Members::spawn`]: the member gets a slot, and a task around its future. (2) The end of the
//! task drops its [`Report`] last. The report frees the slot and wakes the joiner. (3) A policy in
//! `group.rs` takes the outcome.
//!
//! The report comes from inside the ending task, right before the task counts as ended and has its
//! outcome. The joiner, another task, is stepped later.
//!
//! A task may be over before it is in its slot: a kernel that is being shut down drops the future
//! inside `spawn`. The slot notes that until the task arrives.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use pikake_traps::{
    About, Builder, Claim, Interrupted, KernelTrap, Park, Queued, Task, TaskError, TaskId, TaskRef,
    WaitQueue, park_at,
};

use crate::error::GroupEnded;
use crate::member::Member;

/// The state that a group's owner, its spawners and its members share.
pub(crate) struct Members<T> {
    list: RefCell<List<T>>,
    /// The queue in which the joiner waits for the next end.
    ends: WaitQueue,
    /// The number of spawners that exist.
    spawners: Cell<usize>,
    pub(crate) made_at: &'static Location<'static>,
}

struct List<T> {
    slots: Vec<Option<Slot<T>>>,
    free: Vec<usize>,
    /// In the order of their ends.
    finished: VecDeque<Finished<T>>,
    /// The number of members that were spawned, with daemons.
    spawned: u64,
    /// The number of members that have not ended, without daemons.
    running: usize,
    /// The number of daemons that have not ended.
    daemons: usize,
    state: State,
    /// The reason with which the members were asked to end.
    why: Option<Interrupted>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The group takes new members.
    Open,
    /// The members have been asked to end, or have ended.
    Ended,
    /// The owner is gone, and no outcome will be taken.
    Ownerless,
}

struct Slot<T> {
    state: MemberState<T>,
    /// The number of members that were spawned before.
    number: u64,
    is_daemon: bool,
}

enum MemberState<T> {
    /// The task is being made.
    Expected,
    /// The task has ended before it was in the slot.
    Over { was_asked: bool },
    /// The task runs.
    Running(Task<T>),
    /// The task runs, and its outcome will not be taken.
    Detached,
}

/// A member that has ended.
pub(crate) struct Finished<T> {
    task: Task<T>,
    /// The number of members that were spawned before.
    pub(crate) number: u64,
    /// The member ended after the group had asked it to end.
    pub(crate) was_asked: bool,
    outcome: Option<Result<T, TaskError>>,
}

impl<T> Finished<T> {
    pub(crate) fn outcome(&mut self) -> &Result<T, TaskError> {
        self.outcome.get_or_insert_with(|| take(&mut self.task))
    }

    pub(crate) fn into_outcome(mut self) -> (TaskRef, Result<T, TaskError>) {
        let outcome = self.outcome.unwrap_or_else(|| take(&mut self.task));
        (self.task.task_ref().clone(), outcome)
    }
}

/// The outcome of a task that has ended.
fn take<T>(task: &mut Task<T>) -> Result<T, TaskError> {
    task.try_join().expect("the outcome of a member is taken once, after its end")
}

impl<T: 'static> Members<T> {
    pub(crate) fn new(made_at: &'static Location<'static>) -> Rc<Self> {
        let list = List {
            slots: Vec::new(),
            free: Vec::new(),
            finished: VecDeque::new(),
            spawned: 0,
            running: 0,
            daemons: 0,
            state: State::Open,
            why: None,
        };
        let (list, ends, spawners) = (RefCell::new(list), WaitQueue::new(), Cell::new(0));
        Rc::new(Self { list, ends, spawners, made_at })
    }

    pub(crate) fn add_spawner(&self) {
        self.spawners.set(self.spawners.get() + 1);
    }

    pub(crate) fn remove_spawner(&self) {
        self.spawners.set(self.spawners.get() - 1);
    }

    /// Whether no further member can come while the joiner waits.
    fn is_complete(&self) -> bool {
        self.spawners.get() == 0 || !self.is_open()
    }

    #[track_caller]
    pub(crate) fn spawn<F>(
        self: &Rc<Self>,
        builder: Builder,
        is_daemon: bool,
        future: F,
    ) -> Result<Member, GroupEnded>
    where
        F: Future<Output = T> + 'static,
    {
        let report = self.reserve(is_daemon)?;
        let slot = report.slot;
        Ok(self.fill(slot, builder.spawn(Reporting { future, report })))
    }

    /// [`spawn`](Self::spawn), for work that another kernel may begin.
    #[track_caller]
    pub(crate) fn spawn_anywhere<M, F>(
        self: &Rc<Self>,
        builder: Builder,
        is_daemon: bool,
        make: M,
    ) -> Result<Member, GroupEnded>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send,
    {
        let report = self.reserve(is_daemon)?;
        let slot = report.slot;
        let around = |claim: Claim<M, T>| Reporting { future: claim.output(), report };
        Ok(self.fill(slot, builder.spawn_anywhere_in(make, around)))
    }

    fn reserve(self: &Rc<Self>, is_daemon: bool) -> Result<Report<T>, GroupEnded> {
        let slot = self.list.borrow_mut().reserve_slot(is_daemon).ok_or(GroupEnded)?;
        Ok(Report { members: self.clone(), slot })
    }

    fn fill(&self, slot: usize, task: Task<T>) -> Member {
        let member = Member(task.task_ref().clone());
        let mut list = self.list.borrow_mut();
        let ended = list.why.clone();
        let unplaced = list.fill(slot, task);
        drop(list);
        drop(unplaced);
        if let Some(why) = ended {
            // An observer of the kernel has ended the group when it saw the new task.
            member.0.request_cancel(why);
        }
        member
    }

    fn report(&self, slot: usize) {
        let left = self.list.borrow_mut().end_member(slot);
        // The task is still being stepped, so this is not the last reference.
        drop(left);
        self.ends.wake(usize::MAX);
    }

    /// Closes the group to new members, and asks the running members to end, the newest first.
    pub(crate) fn end(&self, why: &Interrupted) {
        for task in self.close(State::Ended, why) {
            task.request_cancel(why.clone());
        }
    }

    /// As [`end`](Self::end), and drops all tasks and outcomes. Returns the running members.
    pub(crate) fn abandon(&self, why: &Interrupted) -> Vec<TaskRef> {
        let left = self.close(State::Ownerless, why);
        for task in &left {
            task.request_cancel(why.clone());
        }
        let mut list = self.list.borrow_mut();
        let finished = std::mem::take(&mut list.finished);
        let detached: Vec<_> = list.slots.iter_mut().flatten().filter_map(Slot::detach).collect();
        drop(list);
        drop((finished, detached));
        left
    }

    fn close(&self, state: State, why: &Interrupted) -> Vec<TaskRef> {
        let mut list = self.list.borrow_mut();
        list.state = state;
        // Only the first request to a task has an effect.
        list.why.get_or_insert_with(|| why.clone());
        let mut left: Vec<(u64, TaskRef)> = list
            .slots
            .iter()
            .flatten()
            .filter_map(|slot| match &slot.state {
                MemberState::Running(task) => Some((slot.number, task.task_ref().clone())),
                _ => None,
            })
            .collect();
        drop(list);
        left.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        left.into_iter().map(|(_, task)| task).collect()
    }

    /// Waits for the next end of a member. Listings show the wait at `place`.
    pub(crate) fn next_end(
        &self,
        place: &'static Location<'static>,
    ) -> KernelTrap<Park<Joiners<'_, T>>> {
        park_at(Joiners(self), place)
    }

    /// The tasks for whose ends the joiner waits: those of the members, and of the daemons once the
    /// group has asked them to end. In the order of the spawns.
    fn awaited(&self) -> Vec<TaskId> {
        let list = self.list.borrow();
        let counts = |slot: &&Slot<T>| !slot.is_daemon || list.state != State::Open;
        let slots = list.slots.iter().flatten().filter(counts);
        let tasks = slots.filter_map(|slot| match &slot.state {
            MemberState::Running(task) => Some(task.id()),
            _ => None,
        });
        let mut tasks: Vec<TaskId> = tasks.collect();
        tasks.sort_unstable();
        tasks
    }

    /// The reason with which the members were asked to end.
    pub(crate) fn why(&self) -> Option<Interrupted> {
        self.list.borrow().why.clone()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.list.borrow().state == State::Open
    }

    /// The number of members that have not ended, without daemons.
    pub(crate) fn running(&self) -> usize {
        self.list.borrow().running
    }

    /// The number of daemons that have not ended.
    pub(crate) fn daemons(&self) -> usize {
        self.list.borrow().daemons
    }

    /// The number of members that have ended and were not taken.
    pub(crate) fn finished(&self) -> usize {
        self.list.borrow().finished.len()
    }

    /// Calls `check` with the `nth` finished member, from zero. `check` must not run user code.
    pub(crate) fn check<R>(
        &self,
        nth: usize,
        check: impl FnOnce(&mut Finished<T>) -> R,
    ) -> Option<R> {
        self.list.borrow_mut().finished.get_mut(nth).map(check)
    }

    /// Takes the `nth` finished member, from zero.
    pub(crate) fn take(&self, nth: usize) -> Option<Finished<T>> {
        self.list.borrow_mut().finished.remove(nth)
    }

    /// Takes all finished members, in the order of their ends.
    pub(crate) fn take_finished(&self) -> VecDeque<Finished<T>> {
        std::mem::take(&mut self.list.borrow_mut().finished)
    }
}

/// The joiners of a group, each of which waits for the next end of a member.
pub(crate) struct Joiners<'a, T>(&'a Members<T>);

impl<T: 'static> Queued for Joiners<'_, T> {
    fn queue(&self) -> &WaitQueue {
        &self.0.ends
    }

    fn about(&self) -> About {
        let awaited = self.0.awaited();
        let text = format!("task group made at {}, {} running", self.0.made_at, awaited.len());
        let about = About::new(text);
        // The end of a member that comes later would end the wait as well.
        if self.0.is_complete() { about.owned_by(awaited) } else { about }
    }
}

impl<T> Slot<T> {
    fn detach(&mut self) -> Option<Task<T>> {
        match std::mem::replace(&mut self.state, MemberState::Detached) {
            MemberState::Running(task) => Some(task),
            other => {
                self.state = other;
                None
            }
        }
    }
}

impl<T> List<T> {
    fn reserve_slot(&mut self, is_daemon: bool) -> Option<usize> {
        if self.state != State::Open {
            return None;
        }
        let slot = Some(Slot { state: MemberState::Expected, number: self.spawned, is_daemon });
        self.spawned += 1;
        *self.count(is_daemon) += 1;
        match self.free.pop() {
            Some(free) => {
                self.slots[free] = slot;
                Some(free)
            }
            None => {
                self.slots.push(slot);
                Some(self.slots.len() - 1)
            }
        }
    }

    fn count(&mut self, is_daemon: bool) -> &mut usize {
        if is_daemon { &mut self.daemons } else { &mut self.running }
    }

    /// Puts a task into its slot. Returns a task whose outcome will not be taken.
    fn fill(&mut self, slot: usize, task: Task<T>) -> Option<Task<T>> {
        let taken = self.slots[slot].as_mut().expect("a slot is kept until its task is there");
        match taken.state {
            MemberState::Over { was_asked } => self.finish(slot, task, was_asked),
            _ if self.state == State::Ownerless => {
                taken.state = MemberState::Detached;
                Some(task)
            }
            _ => {
                taken.state = MemberState::Running(task);
                None
            }
        }
    }

    /// Notes the end of a member. Returns a task whose outcome will not be taken.
    fn end_member(&mut self, slot: usize) -> Option<Task<T>> {
        let was_asked = self.state != State::Open;
        let taken = self.slots[slot].as_mut().expect("a member keeps its slot until it ends");
        let is_daemon = taken.is_daemon;
        let state = std::mem::replace(&mut taken.state, MemberState::Over { was_asked });
        *self.count(is_daemon) -= 1;
        match state {
            MemberState::Running(task) => self.finish(slot, task, was_asked),
            MemberState::Detached => {
                self.free_slot(slot);
                None
            }
            MemberState::Expected | MemberState::Over { .. } => None,
        }
    }

    fn finish(&mut self, slot: usize, task: Task<T>, was_asked: bool) -> Option<Task<T>> {
        let Slot { number, is_daemon, .. } = self.free_slot(slot);
        if is_daemon || self.state == State::Ownerless {
            return Some(task);
        }
        self.finished.push_back(Finished { task, number, was_asked, outcome: None });
        None
    }

    fn free_slot(&mut self, slot: usize) -> Slot<T> {
        self.free.push(slot);
        self.slots[slot].take().expect("a slot is freed once")
    }
}

pin_project_lite::pin_project! {
    /// The future of a member's task.
    struct Reporting<F, R> {
        #[pin]
        future: F,
        // Dropped last, so that the report comes after the drop of the future.
        report: R,
    }
}

impl<F: Future, R> Future for Reporting<F, R> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

/// Reports the end of a member in its drop.
struct Report<T: 'static> {
    members: Rc<Members<T>>,
    slot: usize,
}

impl<T: 'static> Drop for Report<T> {
    fn drop(&mut self) {
        self.members.report(self.slot);
    }
}
