//! A limit that several pools have in common, on one kernel or on several.
//!
//! Each object of such a pool has a *unit* of the limit, whose drop gives it back. A pool that
//! needs a unit and gets none enters a *request*, which stands for its first waiter. A free unit
//! goes to the oldest request. While none is free, a pool gives up an object for a request:
//!
//! * an idle one ([`Membership::gives_idle`]). The pool whose object has been idle for longest
//!   looks at the moment at which the request may have it ([`State::watch`]);
//! * one that comes back ([`Membership::gives_returned`]).
//!
//! The objects that were given up, and are not destroyed yet, cover as many of the oldest requests.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use pikake_time::{Deadline, Rate, Ticks};

/// The least creation time. A shorter wait may come from other programs on the processor, and says
/// nothing about the shares of the pools.
const LEAST_CREATION_TIME: Duration = Duration::from_millis(5);

/// The greatest creation time, so that a creation that nearly failed does not hold objects in their
/// pools for long.
const GREATEST_CREATION_TIME: Duration = Duration::from_secs(1);

/// The part of each creation's time in the creation time of the limit: one in so many.
const SMOOTHING: u64 = 4;

/// A pool gives up one object that is in use within so many creation times. While each of two pools
/// has too few objects, and they exchange one all the time, a sixteenth of its time is lost.
const PACE: u64 = 16;

/// The greatest number of objects that several pools have together.
///
/// The pools may be of several types, and on several kernels of a process. Each keeps the objects
/// that it has created. It gives an object up, so that another pool may create one, only if callers
/// there have waited for longer than a creation takes. Pools with a steady load create nothing.
///
/// The *creation time* is the time of [`create`](crate::Manager::create), smoothed over the last
/// creations of all pools: at least 5 ms and at most 1 s.
///
/// * **The limit is never exceeded**, not even while one object replaces another.
/// * **A free place is taken at once.** Of several pools, that one gets the place whose caller has
///   waited for longest.
/// * **An idle object** goes once it has been idle for a creation time, and a caller of another
///   pool has waited for one. If that pool has no object, its caller need not have waited.
/// * **An object that comes back** goes if a caller of another pool has waited for more than a
///   creation time and twice as long as the first caller here. A pool gives up at most one such
///   object in 16 creation times.
/// * **No pool starves.** Suppose a caller has been the longest waiting one of all pools for 16
///   creation times, and has waited for a creation time and twice as long as the callers of the
///   other pools. The next object that comes back, to any pool, makes room for it. The time in
///   which one object is destroyed and another created comes on top.
/// * **An uneven load moves objects** to where callers wait: idle ones as fast as the pool creates
///   objects, those in use one in 16 creation times. The pool that gives up comes to rest when
///   callers of the other one wait for at most twice as long. If no share suits both pools, such as
///   with one object for two of them, an object goes to and fro at that pace.
///
/// All kernels of the pools need the same clock: that of the system, or that of one simulation.
///
/// # Examples
///
/// ```
/// # use pikake::pool::Manager;
/// # struct Connections(&'static str);
/// # impl Manager for Connections {
/// #     type Object = &'static str;
/// #     type Error = std::io::Error;
/// #     async fn create(&self) -> std::io::Result<&'static str> { Ok(self.0) }
/// # }
/// use pikake::pool::{Limit, Pool};
/// use pikake::time::Instant;
/// use std::time::Duration;
///
/// # pikake::sim::example(async {
/// let limit = Limit::new(1);
/// let pool = |host| Pool::builder(Connections(host)).common_limit(&limit).build();
/// let (one, other) = (pool("one"), pool("other"));
/// drop(one.get().await?);
/// assert_eq!(limit.used(), 1, "an idle object");
///
/// let begin = Instant::now();
/// assert_eq!(*other.get().await?, "other"); // in place of the idle one
/// assert!(begin.elapsed() >= Duration::from_millis(5), "it has to be idle for that long");
/// assert_eq!(one.stats().total, 0);
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Limit(Arc<Mutex<State>>);

struct State {
    limit: usize,
    used: usize,
    next_member: u64,
    /// The smoothed time of a creation, in ticks.
    creation_time: u64,
    /// The requests, by the moment since which their first callers wait, and their pools. Whether
    /// the pool has no object that could come to its caller.
    requests: BTreeMap<(Ticks, u64), bool>,
    /// How many units belong to objects that were given up for a request.
    given_up: usize,
    members: BTreeMap<u64, Member>,
    /// The pools that have idle objects, by the moment since which the first one is idle.
    idle: BTreeSet<(Ticks, u64)>,
    /// The pools to be called when a unit is free that nobody asked for.
    short: BTreeSet<u64>,
}

/// A pool, as the others see it.
#[derive(Default)]
struct Member {
    /// The key of the request.
    waits_since: Option<Ticks>,
    /// Units that were granted and not collected.
    granted: usize,
    /// When the pool looks whether to give up an idle object.
    looks_at: Option<Ticks>,
    /// When the pool may give up another object that is in use.
    gives_from: Ticks,
    waker: Option<Waker>,
    is_called: bool,
}

impl Limit {
    /// A limit of `limit` objects.
    ///
    /// # Panics
    ///
    /// If the limit is zero.
    #[track_caller]
    pub fn new(limit: usize) -> Self {
        assert!(limit > 0, "a common limit is at least 1");
        Self(Arc::new(Mutex::new(State {
            limit,
            used: 0,
            next_member: 0,
            creation_time: 0,
            requests: BTreeMap::new(),
            given_up: 0,
            members: BTreeMap::new(),
            idle: BTreeSet::new(),
            short: BTreeSet::new(),
        })))
    }

    /// The greatest number of objects.
    pub fn limit(&self) -> usize {
        self.lock().limit
    }

    /// The number of objects of all pools.
    pub fn used(&self) -> usize {
        self.lock().used
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and then wakes the pools that `change` returns.
    fn change<R, W>(&self, change: impl FnOnce(&mut State) -> (R, W)) -> R
    where
        W: IntoIterator<Item = Waker>,
    {
        let (result, wakers) = change(&mut self.lock());
        wakers.into_iter().for_each(Waker::wake);
        result
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit").field("limit", &self.limit()).field("used", &self.used()).finish()
    }
}

impl State {
    /// Gives a free unit to the oldest request. Without a request, calls the pools that have too
    /// few idle objects.
    fn grant(&mut self) -> Vec<Waker> {
        if self.used >= self.limit {
            return Vec::new();
        }
        let Some(((_, id), _)) = self.requests.pop_first() else {
            let short = std::mem::take(&mut self.short);
            let called = short.iter().filter_map(|id| self.members.get_mut(id)?.call());
            return called.collect();
        };
        self.used += 1;
        let Some(member) = self.members.get_mut(&id) else { return Vec::new() };
        member.waits_since = None;
        member.granted += 1;
        member.call().into_iter().collect()
    }

    /// Takes a unit, if one is free and nobody asked for it before.
    fn take_free(&mut self) -> bool {
        let is_free = self.used < self.limit && self.requests.is_empty();
        self.used += usize::from(is_free);
        is_free
    }

    /// Enters a request in place of the one that the pool has.
    fn set_request(&mut self, id: u64, request: Option<(Ticks, bool)>) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if let Some(since) = member.waits_since.take() {
            self.requests.remove(&(since, id));
        }
        member.waits_since = request.map(|(since, _)| since);
        self.requests.extend(request.map(|(since, has_none)| ((since, id), has_none)));
    }

    /// The oldest request that no object on its way covers: since when, of which pool, and whether
    /// that has no object.
    fn uncovered(&self) -> Option<(&(Ticks, u64), &bool)> {
        self.requests.iter().nth(self.given_up)
    }

    /// Notes that a unit's object is destroyed for a request. Whether there is a unit.
    fn give_up(&mut self, unit: Option<&mut Unit>) -> bool {
        let unit = unit.map(|unit| unit.is_given_up = true);
        self.given_up += usize::from(unit.is_some());
        unit.is_some()
    }

    /// The pool that may give up an idle object first, for the oldest request, and when.
    fn next_idle(&self) -> Option<(u64, Ticks)> {
        let (&(asked, other), has_none) = self.uncovered()?;
        let &(idle, id) = self.idle.iter().find(|(_, id)| *id != other)?;
        let since = if *has_none { idle } else { asked.max(idle) };
        Some((id, asked.max(since.saturating_add(self.creation_time))))
    }

    /// Calls the pool that may give up an idle object first, unless it looks early enough by
    /// itself. To be called after each change of the requests and of the idle objects, but for a
    /// grant, which calls a pool that enters its next request.
    fn watch(&mut self) -> Option<Waker> {
        let (id, at) = self.next_idle()?;
        let member = self.members.get_mut(&id)?;
        if member.looks_at.is_some_and(|looks_at| looks_at <= at) {
            return None;
        }
        member.looks_at = Some(at);
        member.call()
    }
}

impl Member {
    fn call(&mut self) -> Option<Waker> {
        self.is_called = true;
        self.waker.take()
    }
}

/// A pool's part in a limit. The drop leaves the limit.
pub(crate) struct Membership {
    limit: Limit,
    id: u64,
    /// What the limit knows of the pool's idle objects.
    idle_since: Cell<Option<Ticks>>,
    /// The request that the limit has, as far as the pool knows. The next call may change that.
    request: Cell<Option<(Ticks, bool)>>,
}

impl Membership {
    pub(crate) fn new(limit: &Limit) -> Self {
        let mut state = limit.lock();
        state.next_member += 1;
        let id = state.next_member;
        state.members.insert(id, Member::default());
        Self { limit: limit.clone(), id, idle_since: Cell::default(), request: Cell::default() }
    }

    /// Notes the time of a creation; at the first use of a pool, that none is known.
    pub(crate) fn note_creation(&self, ticks: Option<u64>, rate: Rate) {
        let [least, greatest] =
            [LEAST_CREATION_TIME, GREATEST_CREATION_TIME].map(|length| rate.ticks_ceil(length));
        let mut state = self.limit.lock();
        let before = state.creation_time.max(least);
        let sample = ticks.map_or(before, |ticks| ticks.clamp(least, greatest));
        state.creation_time = before - before / SMOOTHING + sample / SMOOTHING;
    }

    /// A unit, if one is free and nobody asked for it before. Otherwise enters a request for the
    /// pool's first waiter, who waits since then.
    pub(crate) fn take(&self, first: Ticks, has_none: bool) -> Option<Unit> {
        let request = Some((first, has_none));
        if self.request.get() == request {
            return None;
        }
        let is_taken = self.limit.change(|state| {
            let granted = state.members.get_mut(&self.id).filter(|member| member.granted > 0);
            let granted = granted.map(|member| member.granted -= 1);
            if granted.is_some() || state.take_free() {
                return (true, None);
            }
            state.set_request(self.id, request);
            (false, state.watch())
        });
        self.request.set(request.filter(|_| !is_taken));
        is_taken.then(|| self.unit())
    }

    fn unit(&self) -> Unit {
        Unit { limit: self.limit.clone(), is_given_up: false }
    }

    /// A unit, if one is free and nobody asked for it before. Otherwise the pool is called when
    /// there is one.
    pub(crate) fn take_free(&self) -> Option<Unit> {
        let mut state = self.limit.lock();
        let is_taken = state.take_free();
        state.short.extend((!is_taken).then_some(self.id));
        is_taken.then(|| self.unit())
    }

    /// How many objects all pools have, and the limit.
    pub(crate) fn usage(&self) -> (usize, usize) {
        (self.limit.used(), self.limit.limit())
    }

    /// The units that were granted and not collected.
    pub(crate) fn take_granted(&self) -> Vec<Unit> {
        let take = |member: &mut Member| std::mem::take(&mut member.granted);
        let granted = self.limit.lock().members.get_mut(&self.id).map_or(0, take);
        (0..granted).map(|_| self.unit()).collect()
    }

    /// Has the pool's request, if it has one, stand for its first waiter, who waits since then.
    /// Without a waiter, takes the request back.
    pub(crate) fn set_first(&self, first: Option<Ticks>) {
        self.request.set(None);
        self.limit.change(|state| {
            if state.members.get(&self.id).is_some_and(|member| member.waits_since.is_some()) {
                state.set_request(self.id, first.map(|first| (first, false)));
            }
            ((), state.watch())
        });
    }

    /// Whether the pool, whose first caller waits since then, gives up an object that comes back.
    pub(crate) fn gives_returned(
        &self,
        unit: Option<&mut Unit>,
        first: Option<Ticks>,
        now: Ticks,
    ) -> bool {
        let mut state = self.limit.lock();
        let length = state.creation_time;
        let Some((&(since, other), _)) = state.uncovered() else { return false };
        let own_wait = first.map_or(0, |first| now.since(first));
        let is_due = now.since(since) > own_wait.saturating_mul(2).saturating_add(length);
        let Some(member) = state.members.get_mut(&self.id) else { return false };
        if other == self.id || !is_due || now < member.gives_from {
            return false;
        }
        member.gives_from = now.saturating_add(length.saturating_mul(PACE));
        state.give_up(unit)
    }

    /// Whether the pool gives up its idle object that became idle first.
    pub(crate) fn gives_idle(&self, unit: Option<&mut Unit>, now: Ticks) -> bool {
        let mut state = self.limit.lock();
        let gives = state.next_idle().is_some_and(|(id, at)| id == self.id && at <= now);
        gives && state.give_up(unit)
    }

    /// When the pool has to look at its idle objects again.
    pub(crate) fn look_again_at(&self) -> Deadline {
        let mut state = self.limit.lock();
        let at = state.next_idle().filter(|(id, _)| *id == self.id).map(|(_, at)| at);
        if let Some(member) = state.members.get_mut(&self.id) {
            member.looks_at = at;
        }
        at.map_or(Deadline::NEVER, Deadline::at)
    }

    /// Tells since when the first idle object of the pool is idle.
    pub(crate) fn set_idle(&self, since: Option<Ticks>) {
        let before = self.idle_since.replace(since);
        if before == since {
            return;
        }
        self.limit.change(|state| {
            before.map(|before| state.idle.remove(&(before, self.id)));
            state.idle.extend(since.map(|since| (since, self.id)));
            ((), state.watch())
        });
    }

    /// Whether the pool was called since the last call; otherwise the waker is kept for that.
    pub(crate) fn poll_called(&self, waker: &Waker) -> bool {
        let mut state = self.limit.lock();
        let Some(member) = state.members.get_mut(&self.id) else { return false };
        let is_called = std::mem::take(&mut member.is_called);
        self.request.set(self.request.get().filter(|_| !is_called));
        if !is_called && !member.waker.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            member.waker = Some(waker.clone());
        }
        is_called
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.set_first(None);
        self.set_idle(None);
        drop(self.take_granted());
        let mut state = self.limit.lock();
        state.short.remove(&self.id);
        state.members.remove(&self.id);
    }
}

/// One object's part of a limit. The drop gives it back.
pub(crate) struct Unit {
    limit: Limit,
    /// The object is destroyed for a request.
    is_given_up: bool,
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.limit.change(|state| {
            state.used -= 1;
            state.given_up -= usize::from(self.is_given_up);
            ((), state.grant())
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POOLS: usize = 3;

    /// Ticks of a creation, at a thousand in a second.
    const LENGTH: u64 = 5;

    /// A pool with all that it has, in lists that are searched.
    #[derive(Default)]
    struct Model {
        waiters: Vec<Ticks>,
        /// The first caller has waited since the pool had no object.
        has_none: bool,
        has_request: bool,
        idle: Vec<(Ticks, Unit)>,
        leased: Vec<Unit>,
        destroyed: Vec<Unit>,
        gave_at: Option<Ticks>,
        looks_at: Option<Ticks>,
    }

    struct World {
        limit: Limit,
        members: [Membership; POOLS],
        pools: [Model; POOLS],
        now: Ticks,
    }

    impl World {
        fn new(limit: usize) -> Self {
            let limit = Limit::new(limit);
            let members = [(); POOLS].map(|()| Membership::new(&limit));
            members[0].note_creation(None, Rate::from_hz(1_000));
            Self { limit, members, pools: Default::default(), now: Ticks::new(100) }
        }

        /// The first request that is not covered: since when, and of which pool.
        fn uncovered(&self) -> Option<(Ticks, usize)> {
            let pools = self.pools.iter().enumerate();
            let requests = pools.filter(|(_, pool)| pool.has_request);
            let mut requests: Vec<_> = requests.map(|(id, pool)| (pool.waiters[0], id)).collect();
            requests.sort_unstable();
            let given_up = self.pools.iter().flat_map(|pool| &pool.destroyed);
            requests.get(given_up.filter(|unit| unit.is_given_up).count()).copied()
        }

        /// Whether the pool has an idle object that the first request may have.
        fn gives_idle(&self, id: usize) -> bool {
            let (Some((since, other)), Some((idle, _))) =
                (self.uncovered(), self.pools[id].idle.first())
            else {
                return false;
            };
            let has_waited = self.now.since(since) >= LENGTH || self.pools[other].has_none;
            other != id && has_waited && self.now.since(*idle) >= LENGTH
        }

        fn tell_idle(&mut self, id: usize) {
            self.members[id].set_idle(self.pools[id].idle.first().map(|(since, _)| *since));
        }

        /// What the keeper of a pool does.
        fn tend(&mut self, id: usize) {
            while let Some((since, _)) = self.pools[id].idle.first() {
                let since = *since;
                let unit = &mut self.pools[id].idle[0].1;
                if !self.members[id].gives_idle(Some(unit), self.now) {
                    break;
                }
                assert!(self.now.since(since) >= LENGTH);
                let (_, unit) = self.pools[id].idle.remove(0);
                self.pools[id].destroyed.push(unit);
                self.tell_idle(id);
            }
            self.serve(id);
            drop(self.members[id].take_granted());
            let looks_at = self.members[id].look_again_at();
            self.pools[id].looks_at = (!looks_at.is_never()).then(|| looks_at.ticks());
        }

        fn serve(&mut self, id: usize) {
            while let Some(first) = self.pools[id].waiters.first().copied() {
                let pool = &mut self.pools[id];
                if let Some((_, unit)) = pool.idle.pop() {
                    pool.leased.push(unit);
                } else {
                    let has_none = pool.leased.is_empty();
                    let unit = self.members[id].take(first, has_none);
                    (pool.has_request, pool.has_none) = (unit.is_none(), has_none);
                    let Some(unit) = unit else { break };
                    pool.leased.push(unit);
                }
                self.remove_waiter(id, 0);
            }
            self.tell_idle(id);
        }

        fn remove_waiter(&mut self, id: usize, index: usize) {
            let pool = &mut self.pools[id];
            pool.waiters.remove(index);
            pool.has_request &= !pool.waiters.is_empty();
            pool.has_none = false;
            self.members[id].set_first(self.pools[id].waiters.first().copied());
        }

        /// An object comes back, and goes to a waiter, to another pool, or becomes idle.
        fn give_back(&mut self, id: usize) {
            let Some(mut unit) = self.pools[id].leased.pop() else { return };
            let own_wait = self.pools[id].waiters.first().map_or(0, |since| self.now.since(*since));
            let expected = self.uncovered().is_some_and(|(since, other)| {
                let is_due = self.now.since(since) > 2 * own_wait + LENGTH;
                let gave = self.pools[id].gave_at.map_or(u64::MAX, |gave| self.now.since(gave));
                other != id && is_due && gave >= PACE * LENGTH
            });
            let first = self.pools[id].waiters.first().copied();
            assert_eq!(self.members[id].gives_returned(Some(&mut unit), first, self.now), expected);
            if expected {
                self.pools[id].gave_at = Some(self.now);
                self.pools[id].destroyed.push(unit);
            } else {
                self.pools[id].idle.push((self.now, unit));
                self.tell_idle(id);
            }
        }

        /// Runs the pools that are called or look by themselves, until none does.
        fn settle(&mut self) {
            let waker = futures_util::task::noop_waker();
            for _ in 0..100 {
                let is_due = |id: &usize| {
                    let looks = self.pools[*id].looks_at.is_some_and(|at| at <= self.now);
                    self.members[*id].poll_called(&waker) || looks
                };
                let due: Vec<_> = (0..POOLS).filter(is_due).collect();
                due.iter().for_each(|id| self.tend(*id));
                if due.is_empty() {
                    return self.check();
                }
            }
            panic!("the pools call each other for ever");
        }

        fn check(&self) {
            let count = |pool: &Model| pool.idle.len() + pool.leased.len() + pool.destroyed.len();
            let used: usize = self.pools.iter().map(count).sum();
            assert_eq!(used, self.limit.used());
            assert!(used <= self.limit.limit());
            assert!(used == self.limit.limit() || self.uncovered().is_none(), "a free place");
            assert!(!(0..POOLS).any(|id| self.gives_idle(id)), "nobody looks at an idle object");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Each decision is that of the model, and no pool misses the moment for one.
        #[test]
        fn pools_give_up_what_the_model_says(
            limit in 1..4_usize,
            steps in proptest::collection::vec((0..8_u8, 0..POOLS, 0..12_u64), 1..120)
        ) {
            let mut world = World::new(limit);
            for (step, id, value) in steps {
                match step {
                    0 | 1 => {
                        world.pools[id].waiters.push(world.now);
                        world.serve(id);
                    }
                    2 if !world.pools[id].waiters.is_empty() => {
                        let index = value as usize % world.pools[id].waiters.len();
                        world.remove_waiter(id, index);
                    }
                    3 | 4 => {
                        world.give_back(id);
                        world.serve(id);
                    }
                    5 => drop(world.pools[id].destroyed.pop()),
                    _ => {
                        for _ in 0..value {
                            world.now = world.now.saturating_add(1);
                            world.settle();
                        }
                    }
                }
                world.settle();
            }
        }
    }
}
