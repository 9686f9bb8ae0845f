//! The rules of interruption, on plain lists.
//!
//! The rules scan their lists, have no index, and store nothing that they can look up. A *region*
//! is a task, a scope or a shield. Regions and waits name the region around their last poll; these
//! names form the tree of owners and sub-waits.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::Location;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::machine::{Mail, Task};
use super::{Interrupted, nanos};

/// The place of a call in a program.
pub(super) type At = &'static Location<'static>;

/// Names a task, a scope, a wait or a queue. No number is used twice on one thread.
pub(super) type Number = u64;

/// How long an interrupted body may wait for foreign futures alone.
const FOREIGN_GRACE_MS: u64 = 1_000;

/// The number of places that a cause keeps: the last ones that returned it.
const PLACES: usize = 4;

/// The number of scopes that a cause keeps: the outermost ones around the waits that returned it.
const SCOPES: usize = 4;

/// How many steps may go on, one inside the other.
const STEPS_AT_ONCE: usize = 8;

/// The time from a cause to the poll that reports its owner's cleanup as slow.
const REPORT_MS: u64 = 1_000;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Task,
    /// A deadline, and how long the body may go on after it.
    Scope {
        deadline: u64,
        grace: Option<u64>,
    },
    Shield,
}

pub(super) struct Region {
    pub(super) number: Number,
    pub(super) kind: Kind,
    /// The moment at which the region was opened; 0 for a task.
    opened: u64,
    place: Place,
    /// Of the last poll, if it was not the task's own.
    waker: Option<Waker>,
    /// The waker was called since the last poll.
    was_called: bool,
    /// Orders the scopes of one deadline; set at the end of the first poll.
    armed: Option<Number>,
    /// Counts the pending polls up to the last one of this shield.
    polled: u64,
    /// The region is a sub-wait, or has had one in it.
    is_listed: bool,
    pub(super) cause: Option<Cause>,
}

impl Region {
    fn new(number: Number, kind: Kind, opened: u64, place: Place) -> Self {
        Self {
            number,
            kind,
            opened,
            place,
            waker: None,
            was_called: false,
            armed: None,
            polled: 0,
            is_listed: false,
            cause: None,
        }
    }
}

/// Where a wait or a region was polled last.
#[derive(Clone, Copy)]
struct Place {
    task: Number,
    /// The region around it; `None` for a task, and in a task that has ended.
    outer: Option<Number>,
    /// Orders the sub-waits, and the regions with sub-waits, in one region by when they became so.
    came: Number,
}

/// A deadline that passed, or a request to end.
pub(super) struct Cause {
    why: Interrupted,
    number: u64,
    is_returned: bool,
    /// The last places that returned the cause, each once.
    caught_at: Vec<At>,
    /// The scopes inside the owner, the outermost first, in which all these waits were.
    returned_inside: Vec<Number>,
    /// The number of waits that the owner has begun since, outside of shields.
    waits: u64,
    /// When the owner's own grace ends.
    grace_ends: Option<u64>,
    /// When the foreign grace ends, if one has begun.
    foreign_ends: Option<u64>,
    report_at: u64,
    is_reported: bool,
    /// When the next of these polls the owner, and the number of that timer.
    alarm: Option<(u64, Number)>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Event {
    /// A step after this one.
    NextStep(u64),
    Moment(u64),
    /// A moment, of a wait that is not interrupted.
    Elapse(u64),
    WakeOf(Number),
    EndOf(Number),
    /// An event that only a future of another library knows.
    Foreign,
}

struct Wait {
    number: Number,
    event: Event,
    is_satisfied: bool,
    place: Place,
    /// Of the last poll, if it was not the task's own.
    waker: Option<Waker>,
    /// The newest moment at the last poll.
    stamp: u64,
    /// Counts the pending polls up to the last one of this wait.
    polled: u64,
    /// The waker was called since the last poll of this wait.
    was_called: bool,
}

/// Up to which moment a wait or a branch has seen causes, and of which owners.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    stamp: u64,
    floor: u64,
}

/// Of the causes around a poll, those that came up until then may be returned.
const AT_ANY_TIME: u64 = u64::MAX;

/// The state before the poll of a region, for comparison after the poll.
#[derive(Clone, Copy)]
pub(super) struct Before {
    back_to: Option<Number>,
    pending_polls: u64,
    wakes: u64,
}

/// The step of a task, or the drop of one.
#[derive(Default)]
struct Step {
    number: u64,
    /// The moment at which the step began.
    began: u64,
    /// The task of the step, and the innermost region that is being polled.
    task: Option<Number>,
    region: Option<Number>,
    branch: Option<Seen>,
    /// How often the task was woken in its step.
    wakes: u64,
    /// The task is to be ready when its step is over, and these wakers called.
    yields: bool,
    after_step: Vec<Waker>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) now: u64,
    /// How many causes have come up and scopes were opened.
    moment: u64,
    pub(super) turns: u32,
    pub(super) is_closing: bool,
    pub(super) mail: Mail,
    /// All tasks so far, oldest first.
    pub(super) tasks: Vec<Task>,
    /// In the order in which they became ready.
    pub(super) ready: VecDeque<Number>,
    /// Tasks to drop without another step.
    pub(super) doomed: VecDeque<(Number, Interrupted)>,
    regions: Vec<Region>,
    waits: Vec<Wait>,

    /// The number of steps so far.
    steps: u64,
    step: Step,
    /// The steps around the current one, the outermost first.
    around: Vec<Step>,
    /// How many waits and shields were polled and are pending.
    pending_polls: u64,

    /// The first interruption that was swallowed: how many waits had begun since, the last one at
    /// a place that had returned it, while the program held no error of it.
    pub(super) swallowed: Option<u64>,

    /// Called and dropped when the state is not borrowed.
    pub(super) calls: Vec<Waker>,
    pub(super) trash: Vec<Box<dyn Any>>,
}

impl State {
    fn count_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn find(&self, number: Number) -> Option<&Region> {
        self.regions.iter().find(|region| region.number == number)
    }

    fn region(&self, number: Number) -> &Region {
        self.find(number).expect("a region that has not ended")
    }

    fn region_mut(&mut self, number: Number) -> &mut Region {
        let mut regions = self.regions.iter_mut();
        regions.find(|region| region.number == number).expect("a region that has not ended")
    }

    fn cause_mut(&mut self, owner: Number) -> &mut Cause {
        self.region_mut(owner).cause.as_mut().expect("a cause")
    }

    pub(super) fn task_here(&self) -> Number {
        self.step.task.expect("inside a step of a task")
    }

    pub(super) fn this_step(&self) -> u64 {
        self.step.number
    }

    /// Marks a region, and the regions around it, as ones that have a sub-wait.
    fn list(&mut self, number: Number) {
        let Region { is_listed, place, .. } = *self.region(number);
        if let (false, Some(outer)) = (is_listed, place.outer) {
            self.list(outer);
            let region = self.region_mut(number);
            region.is_listed = true;
            region.place.came = super::next_number();
        }
    }

    fn list_here(&mut self) {
        let here = self.step.region.expect("inside a step of a task");
        self.list(here);
    }

    /// The place of the current poll: `before`, if that is the same.
    fn here(&self, before: Option<Place>) -> Place {
        let (task, outer) = (self.task_here(), self.step.region);
        match before {
            Some(before) if before.task == task && before.outer == outer => before,
            _ => Place { task, outer, came: super::next_number() },
        }
    }
}

/// Which cause a poll returns.
impl State {
    /// The owners around the current poll, the innermost first, up to a shield.
    fn owners(&self) -> Vec<&Region> {
        let mut owners = Vec::new();
        let mut next = self.step.region;
        while let Some(number) = next {
            let region = self.region(number);
            if region.kind == Kind::Shield {
                break;
            }
            owners.push(region);
            next = region.place.outer;
        }
        owners
    }

    /// The owner whose cause an unsatisfied wait returns.
    fn due(&self, seen: Option<Seen>, until: u64) -> Option<Number> {
        let qualifies = |owner: &&&Region| {
            let Some(cause) = &owner.cause else { return false };
            let came_up_since = |seen: Seen| {
                owner.opened <= seen.stamp
                    && owner.opened >= seen.floor
                    && seen.stamp < cause.number
            };
            cause.number <= until && (!cause.is_returned || seen.is_some_and(came_up_since))
        };
        self.owners().iter().rfind(qualifies).map(|owner| owner.number)
    }

    /// Returns a cause from a poll. From now on the branch sees only causes of owners further in.
    fn give(&mut self, owner: Number, seen: Option<Seen>, at: At) -> Interrupted {
        let floor = self.region(owner).opened + 1;
        self.step.branch = seen.map(|seen| Seen { floor, ..seen });
        let around = self.owners().into_iter().map(|region| region.number);
        let mut scopes: Vec<_> = around.take_while(|scope| *scope != owner).collect();
        scopes.reverse();
        scopes.truncate(SCOPES);
        let cause = self.cause_mut(owner);
        if cause.is_returned {
            let both = scopes.iter().zip(&cause.returned_inside);
            let same = both.take_while(|(now, before)| now == before).count();
            scopes.truncate(same);
        }
        cause.returned_inside = scopes;
        cause.is_returned = true;
        cause.caught_at.retain(|before| *before != at);
        cause.caught_at.insert(0, at);
        cause.caught_at.truncate(PLACES);
        cause.why.clone()
    }

    /// Makes the causes due again that a scope, which has ended, has dropped with the output of its
    /// body.
    pub(super) fn take_back(&mut self, scope: Number) {
        let owners: Vec<Number> = self.owners().iter().map(|owner| owner.number).collect();
        for owner in owners {
            let Some(cause) = &mut self.region_mut(owner).cause else { continue };
            if cause.returned_inside.contains(&scope) {
                cause.returned_inside.clear();
                cause.caught_at.clear();
                (cause.is_returned, cause.waits) = (false, 0);
                self.poll_soon(owner);
                self.wake_sub_waits(owner);
            }
        }
    }

    /// Counts a wait that begins at a place for all owners around it whose cause was returned.
    fn count_wait(&mut self, at: At) {
        let owners: Vec<Number> = self.owners().iter().map(|owner| owner.number).collect();
        for owner in owners {
            let Some(cause) = &mut self.region_mut(owner).cause else { continue };
            if !cause.is_returned {
                continue;
            }
            cause.waits += 1;
            let is_dropped = Rc::strong_count(&cause.why.held) == 1;
            let waits = (is_dropped && cause.caught_at.contains(&at)).then_some(cause.waits);
            self.swallowed = self.swallowed.or(waits);
        }
    }
}

/// The polls of waits.
impl State {
    /// The first poll of a wait: its answer, or its number.
    pub(super) fn begin_wait(
        &mut self,
        event: Event,
        waker: Option<Waker>,
        at: At,
    ) -> Result<Number, Result<(), Interrupted>> {
        if waker.is_some() {
            self.list_here();
        }
        let has_happened = match event {
            Event::EndOf(task) => self.has_ended(task),
            Event::Elapse(moment) => moment <= self.now,
            _ => false,
        };
        if has_happened {
            self.trash.push(Box::new(waker));
            return Err(Ok(()));
        }
        if !matches!(event, Event::Elapse(_)) {
            if let Some(owner) = self.due(self.step.branch, AT_ANY_TIME) {
                self.trash.push(Box::new(waker));
                return Err(Err(self.give(owner, self.step.branch, at)));
            }
            self.step.branch = None;
            self.count_wait(at);
        }
        let (number, place) = (super::next_number(), self.here(None));
        let (is_satisfied, stamp, polled, was_called) = (false, 0, 0, false);
        let wait = Wait { number, event, is_satisfied, place, waker, stamp, polled, was_called };
        self.waits.push(wait);
        self.park(self.waits.len() - 1);
        Ok(number)
    }

    /// A later poll.
    pub(super) fn poll_wait(
        &mut self,
        number: Number,
        waker: Option<Waker>,
        awaited_at: At,
    ) -> Poll<Result<(), Interrupted>> {
        let at = self.position(number).expect("a wait that has not ended");
        if waker.is_some() {
            self.list_here();
        }
        let mut place = self.here(Some(self.waits[at].place));
        let wait = &mut self.waits[at];
        if wait.waker.is_none() {
            place.came = super::next_number();
        }
        let before = std::mem::replace(&mut wait.place, place);
        let waker_before = std::mem::replace(&mut wait.waker, waker);
        self.trash.push(Box::new(waker_before));

        let (event, stamp) = (wait.event, wait.stamp);
        // The step around has a smaller number than the one that began the wait inside.
        let is_next_step = matches!(event, Event::NextStep(step) if step != self.step.number);
        let is_satisfied = wait.is_satisfied || is_next_step && before.task != place.task;
        if matches!(event, Event::Elapse(_)) {
            if !is_satisfied {
                return Poll::Pending;
            }
            self.end_wait(at);
            return Poll::Ready(Ok(()));
        }
        let seen = (before.task == place.task).then_some(Seen { stamp, floor: 0 });
        self.step.branch = None;
        let until = if is_next_step { self.step.began } else { AT_ANY_TIME };
        if !is_satisfied && let Some(owner) = self.due(seen, until) {
            self.end_wait(at);
            return Poll::Ready(Err(self.give(owner, seen, awaited_at)));
        }
        if is_satisfied || is_next_step {
            self.end_wait(at);
            self.step.branch = seen;
            return Poll::Ready(Ok(()));
        }
        self.park(at);
        Poll::Pending
    }

    /// A wait on a foreign future, which turned out to be ready.
    pub(super) fn end_foreign_wait(&mut self, number: Number) {
        let at = self.position(number).expect("a wait that has not ended");
        let Wait { place, stamp, .. } = self.waits[at];
        self.end_wait(at);
        self.step.branch = (place.task == self.task_here()).then_some(Seen { stamp, floor: 0 });
    }

    /// A poll that is pending.
    fn park(&mut self, at: usize) {
        let wait = &mut self.waits[at];
        wait.stamp = self.moment;
        wait.was_called = false;
        if !matches!(wait.event, Event::Elapse(_)) {
            self.pending_polls += 1;
            wait.polled = self.pending_polls;
        }
        if matches!(wait.event, Event::NextStep(_)) {
            match &wait.waker {
                Some(waker) => {
                    wait.was_called = true; // before another poll of its task
                    self.step.after_step.push(waker.clone());
                }
                None => self.step.yields = true,
            }
        }
    }

    /// Removes a dropped wait, and passes its uncollected wake on to the next of the queue.
    pub(super) fn drop_wait(&mut self, number: Number) {
        let Some(at) = self.position(number) else { return };
        let Wait { event, is_satisfied, .. } = self.waits[at];
        self.end_wait(at);
        if let (Event::WakeOf(queue), true) = (event, is_satisfied) {
            self.wake_queue(queue, 1);
        }
    }

    fn end_wait(&mut self, at: usize) {
        let wait = self.waits.remove(at);
        self.trash.push(Box::new(wait.waker));
    }

    fn position(&self, number: Number) -> Option<usize> {
        self.waits.iter().position(|wait| wait.number == number)
    }

    /// The number of waits since a cancel of the task was returned.
    pub(super) fn waits_since(&self, task: Number) -> Option<u64> {
        let cause = self.find(task)?.cause.as_ref()?;
        cause.is_returned.then_some(cause.waits)
    }

    pub(super) fn check_interrupt(&mut self, at: At) -> Option<Interrupted> {
        let owner = self.due(self.step.branch, AT_ANY_TIME)?;
        Some(self.give(owner, self.step.branch, at))
    }

    pub(super) fn pending_interrupt(&self) -> Option<Interrupted> {
        let owner = self.due(self.step.branch, AT_ANY_TIME)?;
        self.region(owner).cause.as_ref().map(|cause| cause.why.clone())
    }
}

/// The events that satisfy waits.
impl State {
    fn satisfy(&mut self, at: usize) {
        self.waits[at].is_satisfied = true;
        let was_called = std::mem::replace(&mut self.waits[at].was_called, true);
        let task = self.waits[at].place.task;
        match self.waits[at].waker.clone() {
            Some(waker) if !was_called => self.calls.push(waker),
            _ => self.make_ready(task),
        }
    }

    /// The indices of the unsatisfied waits for an event, oldest first.
    fn waiting_for(&self, is_it: impl Fn(Event) -> bool) -> Vec<usize> {
        let waits = |at: &usize| !self.waits[*at].is_satisfied && is_it(self.waits[*at].event);
        (0..self.waits.len()).filter(waits).collect()
    }

    pub(super) fn queue_len(&self, queue: Number) -> usize {
        self.waiting_for(|event| event == Event::WakeOf(queue)).len()
    }

    pub(super) fn wake_queue(&mut self, queue: Number, count: usize) -> usize {
        let mut waiting = self.waiting_for(|event| event == Event::WakeOf(queue));
        waiting.truncate(count);
        waiting.iter().for_each(|at| self.satisfy(*at));
        waiting.len()
    }

    /// Fires the due sleeps, and polls the due owners, by their times, then in the order of
    /// setting.
    pub(super) fn fire_sleeps(&mut self) {
        let now = self.now;
        let waiting = self.waiting_for(|event| moment_of(event).is_some_and(|at| at <= now));
        let sleeps = waiting.into_iter().filter_map(|at| {
            let wait = &self.waits[at];
            Some((moment_of(wait.event)?, wait.number, None))
        });
        let alarms = self.regions.iter().filter_map(|region| {
            let (at, number) = region.cause.as_ref()?.alarm?;
            (at <= now).then_some((at, number, Some(region.number)))
        });
        let mut due: Vec<_> = sleeps.chain(alarms).collect();
        due.sort_unstable();
        for (_, number, owner) in due {
            match (owner, self.position(number)) {
                (Some(owner), _) => {
                    self.cause_mut(owner).alarm = None;
                    self.poll_soon(owner);
                }
                (None, Some(at)) => self.satisfy(at),
                (None, None) => {}
            }
        }
    }

    /// When the next timer is due.
    pub(super) fn next_timer(&self) -> Option<u64> {
        let waits = self.waits.iter().filter(|wait| !wait.is_satisfied);
        let deadlines =
            self.regions.iter().filter_map(|region| match (&region.cause, region.kind) {
                (None, Kind::Scope { deadline, .. }) => Some(deadline),
                _ => None,
            });
        let causes = self.regions.iter().filter_map(|region| region.cause.as_ref());
        let alarms = causes.filter_map(|cause| cause.alarm);
        waits
            .filter_map(|wait| moment_of(wait.event))
            .chain(deadlines)
            .chain(alarms.map(|(at, _)| at))
            .filter(|moment| *moment < u64::MAX)
            .min()
    }
}

/// How causes come up.
impl State {
    /// Gives an owner a cause, unless it has one.
    fn raise(&mut self, owner: Number, why: Interrupted) {
        if self.region(owner).cause.is_some() {
            return;
        }
        let (number, now) = (self.count_moment(), self.now);
        let grace = match self.region(owner).kind {
            Kind::Scope { grace, .. } => grace,
            Kind::Task | Kind::Shield => None,
        };
        self.region_mut(owner).cause = Some(Cause {
            why,
            number,
            is_returned: false,
            caught_at: Vec::new(),
            returned_inside: Vec::new(),
            waits: 0,
            grace_ends: grace.map(|grace| now.saturating_add(grace)),
            foreign_ends: None,
            report_at: now.saturating_add(nanos(super::ms(REPORT_MS))),
            is_reported: false,
            alarm: None,
        });
        self.poll_soon(owner);
        self.wake_sub_waits(owner);
    }

    fn poll_soon(&mut self, owner: Number) {
        let region = self.region_mut(owner);
        let was_called = std::mem::replace(&mut region.was_called, true);
        let task = region.place.task;
        match region.waker.clone() {
            Some(waker) if !was_called => self.calls.push(waker),
            _ => self.make_ready(task),
        }
    }

    /// The sub-waits and regions right inside of a region, in the order in which they came there.
    fn inside(&self, region: Number) -> Vec<Inside> {
        let mut inside = Vec::new();
        for wait in &self.waits {
            let is_sub_wait = wait.waker.is_some() && !matches!(wait.event, Event::Elapse(_));
            if wait.place.outer == Some(region) && is_sub_wait {
                inside.push((wait.place.came, Inside::SubWait(wait.number)));
            }
        }
        for inner in &self.regions {
            if inner.place.outer == Some(region) {
                inside.push((inner.place.came, Inside::Region(inner.number)));
            }
        }
        inside.sort_by_key(|(came, _)| *came);
        inside.into_iter().map(|(_, inside)| inside).collect()
    }

    fn wake_sub_waits(&mut self, region: Number) {
        for inside in self.inside(region) {
            match inside {
                Inside::SubWait(wait) => {
                    let at = self.position(wait).expect("listed above");
                    if !std::mem::replace(&mut self.waits[at].was_called, true) {
                        self.calls.extend(self.waits[at].waker.clone());
                    }
                }
                Inside::Region(inner) if self.region(inner).kind == Kind::Shield => {}
                Inside::Region(inner) => {
                    let region = self.region_mut(inner);
                    if !std::mem::replace(&mut region.was_called, true) {
                        let waker = region.waker.clone();
                        self.calls.extend(waker);
                    }
                    self.wake_sub_waits(inner);
                }
            }
        }
    }

    /// Whether a wait or a shield that the given condition holds for is below a region.
    fn is_below(
        &self,
        region: Number,
        wait: &dyn Fn(&Wait) -> bool,
        shield: &dyn Fn(&Region) -> bool,
    ) -> bool {
        let waits = self.waits.iter().filter(|wait| wait.place.outer == Some(region));
        let inner = self.regions.iter().filter(|inner| inner.place.outer == Some(region));
        waits.filter(|wait| !matches!(wait.event, Event::Elapse(_))).any(wait)
            || inner.into_iter().any(|inner| {
                (inner.kind == Kind::Shield && shield(inner))
                    || self.is_below(inner.number, wait, shield)
            })
    }

    /// Raises the causes of the deadlines that are due.
    pub(super) fn fire_deadlines(&mut self) {
        let now = self.now;
        let mut due = Vec::new();
        for region in &self.regions {
            if let (Kind::Scope { deadline, .. }, None) = (region.kind, &region.cause)
                && deadline <= now
            {
                due.push((deadline, region.armed, region.number));
            }
        }
        due.sort_unstable();
        due.into_iter().for_each(|(_, _, scope)| self.raise(scope, Interrupted::timed_out(scope)));
    }

    /// Asks a task to end, and drops it after the grace, if there is one. The first grace that ends
    /// counts.
    pub(super) fn request_cancel(&mut self, task: Number, why: Interrupted, grace: Option<u64>) {
        match self.tasks.iter().find(|one| one.number == task) {
            Some(one) if one.end.is_some() => return,
            Some(one) if !one.was_stepped => return self.doomed.push_back((task, why)),
            _ => {}
        }
        match self.region(task).cause {
            None => self.raise(task, why),
            Some(_) if grace.is_some() => self.poll_soon(task),
            Some(_) => {}
        }
        let ends = grace.map(|grace| self.now.saturating_add(grace));
        let cause = self.cause_mut(task);
        cause.grace_ends = [cause.grace_ends, ends].into_iter().flatten().min();
    }
}

/// The polls of regions, and the drops after them.
impl State {
    /// A poll of a region begins; the first one opens it.
    pub(super) fn enter(&mut self, region: Number, kind: Kind, waker: Option<Waker>) -> Before {
        let before = Before {
            back_to: self.step.region,
            pending_polls: self.pending_polls,
            wakes: self.step.wakes,
        };
        let place = self.here(self.find(region).map(|region| region.place));
        if self.find(region).is_none() {
            self.open(region, kind, place);
        }
        if self.region(region).is_listed {
            self.list_here();
        }
        let entered = self.region_mut(region);
        entered.place = place;
        entered.was_called = false;
        let waker_before = std::mem::replace(&mut entered.waker, waker);
        self.trash.push(Box::new(waker_before));
        self.step.region = Some(region);
        if self.region(region).waker.is_some() {
            self.list(region);
        }
        before
    }

    /// Returns to the region around this one for the next poll.
    pub(super) fn go_back(&mut self, before: Before) {
        self.step.region = before.back_to;
    }

    fn open(&mut self, number: Number, kind: Kind, place: Place) {
        let opened = self.count_moment();
        self.regions.push(Region::new(number, kind, opened, place));
    }

    /// Ends the poll of a region whose body is pending. Returns whether to drop the body.
    pub(super) fn leave(&mut self, number: Number, before: Before) -> bool {
        self.step.region = before.back_to;
        self.pending_polls += 1;
        let polled = self.pending_polls;
        let region = self.region_mut(number);
        region.armed = region.armed.or_else(|| Some(super::next_number()));
        region.polled = polled;
        self.is_dropped(number, before)
    }

    /// Ends the poll of a region whose body has ended.
    pub(super) fn leave_ended(&mut self, number: Number, before: Before) -> (bool, u64) {
        self.step.region = before.back_to;
        let region = self.region(number);
        if region.kind == Kind::Shield {
            self.step.branch = Some(Seen { stamp: region.opened, floor: 0 });
        }
        self.close(number)
    }

    /// Removes a region. Returns whether its cause was returned, and how late after its deadline it
    /// is.
    pub(super) fn close(&mut self, number: Number) -> (bool, u64) {
        let Some(at) = self.regions.iter().position(|region| region.number == number) else {
            return (false, 0);
        };
        let region = self.regions.remove(at);
        let waits = self.waits.iter_mut().map(|wait| &mut wait.place);
        let places = waits.chain(self.regions.iter_mut().map(|region| &mut region.place));
        let mut left: Vec<_> = places.filter(|place| place.outer == Some(number)).collect();
        left.sort_by_key(|place| place.came);
        for place in left {
            (place.outer, place.came) = (region.place.outer, super::next_number());
        }
        let late = match region.kind {
            Kind::Scope { deadline, .. } => self.now.saturating_sub(deadline),
            Kind::Task | Kind::Shield => 0,
        };
        let is_returned = region.cause.as_ref().is_some_and(|cause| cause.is_returned);
        self.trash.push(Box::new(region.waker));
        (is_returned, late)
    }

    /// Whether to drop an owner after a pending poll.
    fn is_dropped(&mut self, owner: Number, before: Before) -> bool {
        let Some(cause) = &self.region(owner).cause else { return false };
        if cause.grace_ends.is_some_and(|ends| ends <= self.now) {
            return true;
        }
        let (is_returned, is_late) = (cause.is_returned, cause.report_at <= self.now);
        self.cause_mut(owner).is_reported |= is_late;
        let was_polled = |polled| polled > before.pending_polls;
        let may_be_interrupted = self.is_below(
            owner,
            &|wait| was_polled(wait.polled) || (wait.waker.is_some() && !wait.was_called),
            &|shield| was_polled(shield.polled) || shield.waker.is_some(),
        );
        let was_called = self.is_below(owner, &|wait| wait.waker.is_some(), &|_| false);
        if may_be_interrupted {
            self.cause_mut(owner).foreign_ends = None;
        } else if self.step.wakes > before.wakes {
            self.poll_soon(owner);
        } else if !(is_returned || was_called) {
            return true;
        } else {
            let now = self.now;
            let ends = now.saturating_add(nanos(super::ms(FOREIGN_GRACE_MS)));
            if *self.cause_mut(owner).foreign_ends.get_or_insert(ends) <= now {
                return true;
            }
        }
        self.set_alarm(owner);
        false
    }

    /// Sets the owner's alarm to its report or to the end of a grace, whichever comes first.
    fn set_alarm(&mut self, owner: Number) {
        let cause = self.cause_mut(owner);
        let report_at = (!cause.is_reported).then_some(cause.report_at);
        let next = [report_at, cause.grace_ends, cause.foreign_ends].into_iter().flatten().min();
        if cause.alarm.map(|(at, _)| at) != next {
            cause.alarm = next.map(|at| (at, super::next_number()));
        }
    }
}

/// The steps of tasks.
impl State {
    pub(super) fn open_task(&mut self, task: Number) {
        let place = Place { task, outer: None, came: task };
        let region = Region::new(task, Kind::Task, 0, place);
        self.regions.push(Region { is_listed: true, ..region });
    }

    fn has_ended(&self, task: Number) -> bool {
        self.tasks.iter().any(|one| one.number == task && one.end.is_some())
    }

    /// Whether a task may make its first step inside the current one.
    pub(super) fn may_begin_at_once(&self) -> bool {
        let is_in_step = self.step.task.is_some() && self.around.len() + 1 < STEPS_AT_ONCE;
        is_in_step && self.doomed.is_empty() && !std::thread::panicking()
    }

    pub(super) fn make_ready(&mut self, task: Number) {
        let steps = self.around.iter_mut().chain([&mut self.step]);
        steps.filter(|step| step.task == Some(task)).for_each(|step| step.wakes += 1);
        if self.find(task).is_some() && !self.ready.contains(&task) {
            self.ready.push_back(task);
        }
    }

    /// A task becomes the current one, for a step or to be dropped.
    pub(super) fn begin_step(&mut self, task: Number) -> Before {
        self.steps += 1;
        let (number, began) = (self.steps, self.moment);
        let (task, region) = (Some(task), Some(task));
        let step = Step { number, began, task, region, ..Step::default() };
        let around = std::mem::replace(&mut self.step, step);
        if around.task.is_some() {
            self.around.push(around);
        }
        Before { back_to: None, pending_polls: self.pending_polls, wakes: 0 }
    }

    /// The step of a task that has not ended is over. Returns why the task is to be dropped, and
    /// whether it yielded.
    pub(super) fn end_step(&mut self, before: Before) -> (Option<Interrupted>, bool) {
        let task = self.task_here();
        let is_dropped = self.is_dropped(task, before);
        let why = self.region(task).cause.as_ref().filter(|_| is_dropped);
        let why = why.map(|cause| cause.why.clone());
        // A wait for this step that was not polled in it is satisfied all the same.
        for wait in &mut self.waits {
            let is_over = matches!(wait.event, Event::NextStep(step) if step < self.step.number);
            wait.is_satisfied |= is_over && wait.place.task == task;
        }
        (why, self.go_on_around())
    }

    /// Goes on with the step around the current one. Returns whether the task of that one yielded.
    fn go_on_around(&mut self) -> bool {
        let around = self.around.pop().unwrap_or_default();
        let Step { yields, mut after_step, .. } = std::mem::replace(&mut self.step, around);
        self.calls.append(&mut after_step);
        yields
    }

    /// A task has ended: its joiners go on.
    pub(super) fn end_task(&mut self, task: Number) {
        let joiners = self.waiting_for(|event| event == Event::EndOf(task));
        joiners.into_iter().for_each(|at| self.satisfy(at));
        self.close(task);
        self.go_on_around();
    }
}

enum Inside {
    SubWait(Number),
    Region(Number),
}

/// When a wait's timer is due, if it has one.
fn moment_of(event: Event) -> Option<u64> {
    match event {
        Event::Moment(moment) | Event::Elapse(moment) => Some(moment),
        _ => None,
    }
}
