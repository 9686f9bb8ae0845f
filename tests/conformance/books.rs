//! Who is told of what: the rules of the specification, on plain lists.
//!
//! Everything is scanned, nothing is indexed, and nothing is remembered that can be looked up.
//! Where the real kernel keeps its books up to date bit by bit, [`State::settle`] puts everything
//! right after each change, in one place.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use pikake::kernel::FOREIGN_GRACE;
use pikake::time::Rate;
use pikake::traps::{Interrupted, ScopeId, TaskId, TaskRef, Until};

/// One tick is one nanosecond.
pub(crate) const RATE: Rate = Rate::NANOS;

/// Who a cause belongs to: it concerns what waits inside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Owner {
    Task(TaskId),
    Scope(u64),
}

/// Where something is polled.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Place {
    pub(crate) task: TaskId,
    pub(crate) scope: Option<u64>,
}

/// What answers a record, besides an interruption.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The next step of its task begins.
    NextStep,
    Moment(u64),
    WakeOf(u32),
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Answer {
    Done,
    Told(Owner),
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) place: Place,
    /// Orders the records of one place.
    pub(crate) came: u32,
    /// Of the last poll, if it was not the task's own.
    pub(crate) waker: Option<Waker>,
    pub(crate) event: Event,
    /// It is told of nothing, and to the rules it is not there.
    pub(crate) is_deaf: bool,
    pub(crate) answer: Option<Answer>,
    /// Orders the sleeps of one deadline.
    pub(crate) was_set: u32,
    /// It got its answer since the last step began.
    pub(crate) is_fresh: bool,
    /// Causes that came up when it had its answer: due to its branch.
    pub(crate) owed: Vec<Owner>,
}

#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) place: Place,
    pub(crate) waker: Option<Waker>,
    pub(crate) is_shield: bool,
    pub(crate) deadline: u64,
    pub(crate) grace_ends: u64,
    pub(crate) is_doomed: bool,
    /// What a shield was told in the place of those inside.
    pub(crate) held: Vec<Owner>,
    /// How often the task had been woken in this step when the scope was entered.
    pub(crate) wakes: u32,
}

/// A deadline that passed, or a request to end.
#[derive(Debug)]
pub(crate) struct Cause {
    pub(crate) why: Interrupted,
    pub(crate) is_collected: bool,
    /// Nobody was told: the next wait inside that would suspend will be.
    pub(crate) is_pending: bool,
    /// When the foreign grace ends, if it has begun.
    pub(crate) foreign_ends: Option<u64>,
    pub(crate) is_overdue: bool,
}

impl Cause {
    pub(crate) fn new(why: Interrupted) -> Self {
        let (is_collected, is_pending, is_overdue) = (false, false, false);
        Self { why, is_collected, is_pending, foreign_ends: None, is_overdue }
    }
}

#[derive(Default, Debug)]
pub(crate) struct State {
    pub(crate) now: u64,
    pub(crate) last_number: u32,
    pub(crate) turns: u32,
    pub(crate) is_closing: bool,
    /// Every task that has not ended, and whether it was ever stepped.
    pub(crate) tasks: BTreeMap<TaskId, (TaskRef, bool)>,
    pub(crate) ready: VecDeque<TaskId>,
    pub(crate) doomed: VecDeque<(TaskId, Interrupted)>,
    pub(crate) records: BTreeMap<u32, Record>,
    pub(crate) scopes: BTreeMap<u64, Scope>,
    pub(crate) causes: BTreeMap<Owner, Cause>,
    /// What is being polled, during a step.
    pub(crate) here: Option<Place>,
    /// How often the current task was woken in its step.
    pub(crate) wakes: u32,
    /// Causes due to the current branch.
    pub(crate) due: Vec<Owner>,
    /// The current task, if it is to be ready when its step is over.
    pub(crate) again: Option<TaskId>,
    /// Wakers to call when the current step is over.
    pub(crate) after_step: Vec<Waker>,
    /// User code to run when the state is not borrowed: wakers to call, things to drop.
    pub(crate) calls: Vec<Waker>,
    pub(crate) trash: Vec<Box<dyn Any>>,
}

impl State {
    pub(crate) fn number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn moment(&self, until: Until) -> u64 {
        match until {
            Until::After(length) => self.now.saturating_add(RATE.ticks_ceil(length)),
            Until::At(deadline) => deadline.ticks().get(),
        }
    }

    /// The owners around a place, innermost first: all, or those that no shield keeps out.
    pub(crate) fn around(&self, place: Place, through_shields: bool) -> Vec<Owner> {
        let mut owners = Vec::new();
        let mut inner = place.scope;
        while let Some(id) = inner {
            let scope = &self.scopes[&id];
            if scope.is_shield && !through_shields {
                return owners;
            }
            owners.push(Owner::Scope(id));
            inner = scope.place.scope;
        }
        owners.push(Owner::Task(place.task));
        owners
    }

    pub(crate) fn make_ready(&mut self, id: TaskId) {
        self.wakes += u32::from(self.here.is_some_and(|here| here.task == id));
        if self.tasks.contains_key(&id) && !self.ready.contains(&id) {
            self.ready.push_back(id);
        }
    }

    pub(crate) fn wake(&mut self, task: TaskId, waker: Option<Waker>) {
        match waker {
            Some(waker) => self.calls.push(waker),
            None => self.make_ready(task),
        }
    }

    /// Has the owner of a cause polled, to see whether it can be told at all.
    pub(crate) fn rouse(&mut self, owner: Owner) {
        match owner {
            Owner::Task(id) => self.make_ready(id),
            Owner::Scope(id) => {
                let scope = self.scopes.get_mut(&id).expect("an open scope");
                let (task, waker) = (scope.place.task, scope.waker.take());
                self.wake(task, waker);
            }
        }
    }

    /// Sees to it that a wait for the next step is polled in it. A waker that is not the task's own
    /// is called when the current step is over, lest the wait be polled again in this one.
    pub(crate) fn rouse_for_next_step(&mut self, key: u32) {
        let record = self.records.get_mut(&key).expect("a record");
        if matches!(record.event, Event::NextStep) {
            let (task, waker) = (record.place.task, record.waker.take());
            match waker {
                Some(waker) => self.after_step.push(waker),
                None => {
                    self.wakes += 1;
                    self.again = Some(task);
                }
            }
        }
    }

    /// The waits of a task for its next step, which begins or is to be.
    pub(crate) fn next_steps(&self, task: TaskId) -> Vec<u32> {
        let waits = |r: &Record| {
            matches!((r.event, r.answer), (Event::NextStep, None)) && r.place.task == task
        };
        self.records.iter().filter(|(_, record)| waits(record)).map(|(key, _)| *key).collect()
    }

    pub(crate) fn answer(&mut self, key: u32, answer: Answer) {
        let record = self.records.get_mut(&key).expect("a record");
        (record.answer, record.is_fresh) = (Some(answer), true);
        let (task, waker) = (record.place.task, record.waker.take());
        self.wake(task, waker);
    }

    /// Whether somebody was told of a cause and may still collect it.
    pub(crate) fn is_told(&self, owner: Owner) -> bool {
        self.records.values().any(|r| r.answer == Some(Answer::Told(owner)))
            || self.records.values().any(|record| record.owed.contains(&owner))
            || self.scopes.values().any(|scope| scope.held.contains(&owner))
            || self.due.contains(&owner)
    }

    /// Puts right who is told of what: nobody of what does not concern them any more, and
    /// everybody inside of a cause that nobody was told of.
    pub(crate) fn settle(&mut self) {
        for key in self.records.keys().copied().collect::<Vec<_>>() {
            let around = self.around(self.records[&key].place, false);
            let concerns =
                |owner: &Owner| around.contains(owner) && self.causes.contains_key(owner);
            let record = self.records.get_mut(&key).expect("listed above");
            record.owed.retain(concerns);
            match record.answer {
                Some(Answer::Told(owner)) if !concerns(&owner) => {}
                _ => continue,
            }
            if record.owed.is_empty() {
                self.wait_on(key);
            } else {
                let owner = record.owed.remove(0);
                self.answer(key, Answer::Told(owner));
            }
        }
        for id in self.scopes.keys().copied().collect::<Vec<_>>() {
            let around = self.around(self.scopes[&id].place, false);
            let concerns =
                |owner: &Owner| around.contains(owner) && self.causes.contains_key(owner);
            self.scopes.get_mut(&id).expect("listed above").held.retain(concerns);
        }
        self.due.retain(|owner| self.causes.contains_key(owner));
        for owner in self.causes.keys().copied().collect::<Vec<_>>() {
            let cause = &self.causes[&owner];
            if !cause.is_collected && !cause.is_pending && !self.is_told(owner) {
                self.tell(owner);
            }
        }
    }

    /// A wait was told of what does not concern it any more: a sleep waits on, any other wait is
    /// answered.
    pub(crate) fn wait_on(&mut self, key: u32) {
        let number = self.number();
        let record = self.records.get_mut(&key).expect("a record");
        (record.answer, record.was_set) = (None, number);
        if !matches!(record.event, Event::Moment(_)) {
            record.event = Event::Nothing;
            self.answer(key, Answer::Done);
        }
    }

    /// A record comes to a place, perhaps the one where it is.
    pub(crate) fn bring(&mut self, key: u32, place: Place) {
        let number = self.number();
        let record = self.records.get_mut(&key).expect("a record");
        if record.place != place {
            (record.place, record.came) = (place, number);
        }
    }

    /// A scope ends: the records in it are inside of nothing, and what they were told of is told to
    /// others. Gives the records and their tasks, to be put back there.
    pub(crate) fn let_go(&mut self, scope: u64) -> Vec<(u32, TaskId)> {
        let mut left = Vec::new();
        for key in self.records.keys().copied().collect::<Vec<_>>() {
            let record = self.records.get_mut(&key).expect("listed above");
            if record.place.scope != Some(scope) {
                continue;
            }
            record.owed.clear();
            left.push((key, record.place.task));
            if let Some(Answer::Told(_)) = record.answer {
                self.wait_on(key);
            }
            let nowhere = Place { task: TaskId::default(), scope: None };
            self.records.get_mut(&key).expect("listed above").place = nowhere;
        }
        left
    }

    /// Tells all that wait inside the owner of a cause: from the outside in, who came first first.
    pub(crate) fn tell(&mut self, owner: Owner) {
        let mut will_be_polled = false;
        let mut keys: Vec<_> = self.records.keys().copied().collect();
        keys.sort_by_cached_key(|key| {
            let mut around = self.around(self.records[key].place, true);
            around.reverse();
            (around, self.records[key].came)
        });
        for key in keys {
            let record = &self.records[&key];
            if record.is_deaf || !self.around(record.place, false).contains(&owner) {
                continue;
            }
            if let (Event::NextStep, Some(Answer::Done)) =
                (&self.records[&key].event, self.records[&key].answer)
            {
                continue; // its step has come
            }
            if self.records[&key].answer.is_none() {
                self.answer(key, Answer::Told(owner));
                will_be_polled = true;
            } else {
                self.records.get_mut(&key).expect("a record").owed.push(owner);
            }
        }
        for id in self.scopes.keys().copied().collect::<Vec<_>>() {
            let scope = &self.scopes[&id];
            if scope.is_shield && self.around(scope.place, false).contains(&owner) {
                self.scopes.get_mut(&id).expect("a scope").held.push(owner);
                will_be_polled = true;
            }
        }
        let is_pending = !self.is_told(owner);
        self.causes.get_mut(&owner).expect("a cause").is_pending = is_pending;
        let is_polled = self.here.is_some_and(|here| self.around(here, true).contains(&owner));
        if is_pending || !(will_be_polled || is_polled) {
            self.rouse(owner);
        }
    }

    /// What the next wait here that would suspend is interrupted by: the outermost.
    pub(crate) fn due_here(&self) -> Option<Owner> {
        let around = self.around(self.here?, false);
        let pending = |owner: &Owner| self.causes.get(owner).is_some_and(|cause| cause.is_pending);
        around.into_iter().rev().find(|owner| self.due.contains(owner) || pending(owner))
    }

    pub(crate) fn collect(&mut self, owner: Owner) -> Interrupted {
        self.due.retain(|due| *due != owner);
        let cause = self.causes.get_mut(&owner).expect("a cause");
        (cause.is_collected, cause.is_pending) = (true, false);
        cause.why.clone()
    }

    /// Answers the sleeps that are due.
    pub(crate) fn fire_sleeps(&mut self) {
        let now = self.now;
        let mut sleeps = Vec::new();
        for (key, record) in &self.records {
            match record.event {
                Event::Moment(at) if at <= now && record.answer.is_none() => {
                    sleeps.push((at, record.was_set, *key))
                }
                _ => {}
            }
        }
        sleeps.sort_unstable();
        sleeps.into_iter().for_each(|(_, _, key)| self.answer(key, Answer::Done));
    }

    /// Makes causes of the deadlines that are due; then looks after the graces.
    pub(crate) fn fire_deadlines(&mut self) {
        let now = self.now;
        let mut late: Vec<_> =
            self.scopes.iter().map(|(id, scope)| (scope.deadline, *id)).collect();
        late.retain(|(deadline, _)| *deadline <= now);
        late.sort_unstable();
        for (deadline, id) in late {
            // Those around it that are due no later come first.
            let place = Place { scope: Some(id), ..self.scopes[&id].place };
            for owner in self.around(place, true).into_iter().rev() {
                if let Owner::Scope(id) = owner
                    && self.scopes[&id].deadline <= deadline
                    && !self.causes.contains_key(&owner)
                {
                    self.causes.insert(owner, Cause::new(Interrupted::timed_out(ScopeId(id))));
                    self.settle();
                }
            }
        }
        let mut over = Vec::new();
        for (id, scope) in &mut self.scopes {
            if scope.grace_ends <= now
                && !std::mem::replace(&mut scope.is_doomed, scope.grace_ends <= now)
            {
                over.push(Owner::Scope(*id));
            }
        }
        for (owner, cause) in &mut self.causes {
            if cause.foreign_ends.is_some_and(|end| end <= now) && !cause.is_overdue {
                cause.is_overdue = true;
                over.push(*owner);
            }
        }
        over.into_iter().for_each(|owner| self.rouse(owner));
    }

    /// When the next timer is due.
    pub(crate) fn next_moment(&self) -> Option<u64> {
        let sleeps = self.records.values().filter(|record| record.answer.is_none());
        let sleeps = sleeps.filter_map(|record| match record.event {
            Event::Moment(at) => Some(at),
            _ => None,
        });
        let deadlines =
            self.scopes.iter().filter(|(id, _)| !self.causes.contains_key(&Owner::Scope(**id)));
        let graces = self.scopes.values().filter(|scope| !scope.is_doomed);
        let foreign = self.causes.values().filter(|cause| !cause.is_overdue);
        sleeps
            .chain(deadlines.map(|(_, scope)| scope.deadline))
            .chain(graces.map(|scope| scope.grace_ends))
            .chain(foreign.filter_map(|cause| cause.foreign_ends))
            .filter(|at| *at < u64::MAX)
            .min()
    }

    /// After a poll that left the owner of a cause pending: whether it is to be dropped.
    pub(crate) fn cannot_be_told(&mut self, owner: Owner, wakes: u32) -> bool {
        let inside = |place| self.around(place, true).contains(&owner);
        let waits =
            |r: &Record| !r.is_deaf && (r.answer.is_none() || r.is_fresh) && inside(r.place);
        let waits = self.records.values().any(waits)
            || self.scopes.values().any(|scope| scope.is_shield && inside(scope.place));
        let (now, was_woken) = (self.now, self.wakes > wakes);
        let Some(cause) = self.causes.get_mut(&owner) else {
            return false;
        };
        if waits {
            (cause.foreign_ends, cause.is_overdue) = (None, false);
            return false;
        }
        if was_woken {
            // Perhaps not for its sake: it is polled again, to be asked again.
            self.rouse(owner);
            return false;
        }
        if cause.is_collected && cause.foreign_ends.is_none() {
            cause.foreign_ends = Some(now.saturating_add(RATE.ticks_ceil(FOREIGN_GRACE)));
        }
        !cause.is_collected || cause.is_overdue
    }

    pub(crate) fn wake_queue(&mut self, queue: u32, count: usize) -> usize {
        let waits =
            |r: &Record| r.answer.is_none() && matches!(r.event, Event::WakeOf(q) if q == queue);
        let waiters = self.records.iter().filter(|(_, record)| waits(record)).map(|(key, _)| *key);
        let woken: Vec<_> = waiters.take(count).collect();
        woken.iter().for_each(|key| self.answer(*key, Answer::Done));
        woken.len()
    }
}
