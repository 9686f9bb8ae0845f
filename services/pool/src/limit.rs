//! A limit that several pools have in common, on one kernel or on several.
//!
//! Each object of such a pool has a *unit* of the limit, whose drop gives it back. A pool that
//! needs a unit and gets none is entered in a queue of *requests*, numbered in the order of its
//! first waiter. A unit that comes back belongs to the first request. So that units come back, a
//! request takes an idle object of another pool, and a pool destroys an object that comes back if a
//! request is older than the first of its own waiters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The greatest number of objects that several pools have together.
///
/// The pools may be of several types, and on several kernels of a process. Callers are served in
/// the order of asking, over all pools: if another pool's caller has waited longer, an object that
/// comes back is destroyed and makes room for it.
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
///
/// # pikake::sim::example(async {
/// let limit = Limit::new(1);
/// let pool = |host| Pool::builder(Connections(host)).common_limit(&limit).build();
/// let (one, other) = (pool("one"), pool("other"));
/// drop(one.get().await?);
/// assert_eq!(limit.used(), 1, "an idle object");
/// assert_eq!(*other.get().await?, "other"); // in place of the idle one
/// assert_eq!(one.stats().total, 0);
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Limit(Arc<Mutex<State>>);

struct State {
    limit: usize,
    used: usize,
    /// The number of the next waiter of any pool.
    next: u64,
    next_member: u64,
    /// The waiting pools, by the number of their first waiter at the time of the request.
    requests: BTreeMap<u64, u64>,
    members: BTreeMap<u64, Member>,
    /// The pools that have an idle object which they have not been asked to destroy, by
    /// [`Member::idle_since`].
    idle: BTreeMap<u64, u64>,
    /// The pools to be called when a unit is free that nobody asked for.
    short: BTreeSet<u64>,
}

/// A pool, as the others see it.
#[derive(Default)]
struct Member {
    request: Option<u64>,
    /// Units that were granted and not collected.
    granted: usize,
    /// Idle objects that the pool has been asked to destroy.
    reclaimed: usize,
    idle: usize,
    /// The number of the moment at which an object of the pool became idle last.
    idle_since: u64,
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
            next: 0,
            next_member: 0,
            requests: BTreeMap::new(),
            members: BTreeMap::new(),
            idle: BTreeMap::new(),
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
        let state = self.lock();
        f.debug_struct("Limit").field("limit", &state.limit).field("used", &state.used).finish()
    }
}

impl State {
    /// Gives a free unit to the first request. Without a request, calls the pools that have too few
    /// idle objects.
    fn grant(&mut self) -> Vec<Waker> {
        if self.used >= self.limit {
            return Vec::new();
        }
        let Some((_, id)) = self.requests.pop_first() else {
            let short = std::mem::take(&mut self.short);
            let called = short.iter().filter_map(|id| self.members.get_mut(id)?.call());
            return called.collect();
        };
        self.used += 1;
        let member = self.members.get_mut(&id).map(|member| {
            member.request = None;
            member.granted += 1;
            member.call()
        });
        member.flatten().into_iter().collect()
    }

    /// Changes a member, and where it is in the order of the idle ones.
    fn update<R: Default>(&mut self, id: u64, change: impl FnOnce(&mut Member) -> R) -> R {
        let Some(member) = self.members.get_mut(&id) else { return R::default() };
        if member.idle > member.reclaimed {
            self.idle.remove(&member.idle_since);
        }
        let result = change(member);
        if member.idle > member.reclaimed {
            self.idle.insert(member.idle_since, id);
        }
        result
    }

    /// The oldest request of another pool than this one: its number and its pool.
    fn first_but(&self, own: u64) -> Option<(u64, u64)> {
        let request = self.requests.iter().find(|(_, id)| **id != own);
        request.map(|(number, id)| (*number, *id))
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
}

impl Membership {
    pub(crate) fn new(limit: &Limit) -> Self {
        let id = {
            let mut state = limit.lock();
            state.next_member += 1;
            let id = state.next_member;
            state.members.insert(id, Member::default());
            id
        };
        Self { limit: limit.clone(), id }
    }

    /// The number of a new waiter, greater than those of all waiters of all pools.
    pub(crate) fn next_number(&self) -> u64 {
        let mut state = self.limit.lock();
        state.next += 1;
        state.next
    }

    /// A unit, if one is free and nobody asked for it before. Otherwise enters a request with the
    /// number of the pool's first waiter, and asks another pool for an idle object.
    pub(crate) fn take(&self, number: u64) -> Option<Unit> {
        let id = self.id;
        let is_taken = self.limit.change(|state| {
            if let Some(member) = state.members.get_mut(&id).filter(|member| member.granted > 0) {
                member.granted -= 1;
                return (true, None);
            }
            if state.used < state.limit && state.requests.is_empty() {
                state.used += 1;
                return (true, None);
            }
            let is_new = state.members.get_mut(&id).is_some_and(|member| {
                let is_new = member.request.is_none();
                member.request.get_or_insert(number);
                is_new
            });
            if !is_new {
                return (false, None);
            }
            state.requests.insert(number, id);
            let chosen = state.idle.values().copied().find(|other| *other != id);
            let waker = chosen.and_then(|other| {
                state.update(other, |member| {
                    member.reclaimed += 1;
                    member.call()
                })
            });
            (false, waker)
        });
        is_taken.then(|| Unit(self.limit.clone()))
    }

    /// A unit, if one is free and nobody asked for it before.
    pub(crate) fn take_free(&self) -> Option<Unit> {
        self.free(&mut self.limit.lock())
    }

    fn free(&self, state: &mut State) -> Option<Unit> {
        let is_free = state.used < state.limit && state.requests.is_empty();
        state.used += usize::from(is_free);
        is_free.then(|| Unit(self.limit.clone()))
    }

    /// A unit, if one is free and nobody asked for it before. Otherwise the pool is called when
    /// there is one.
    pub(crate) fn take_free_or_wait(&self) -> Option<Unit> {
        let mut state = self.limit.lock();
        let unit = self.free(&mut state);
        match unit {
            Some(_) => state.short.remove(&self.id),
            None => state.short.insert(self.id),
        };
        unit
    }

    /// How many objects all pools have, and the limit.
    pub(crate) fn usage(&self) -> (usize, usize) {
        (self.limit.used(), self.limit.limit())
    }

    /// The units that were granted and not collected.
    pub(crate) fn take_granted(&self) -> Vec<Unit> {
        let id = self.id;
        let granted = self
            .limit
            .lock()
            .members
            .get_mut(&id)
            .map(|member| std::mem::take(&mut member.granted));
        (0..granted.unwrap_or_default()).map(|_| Unit(self.limit.clone())).collect()
    }

    /// Has the pool's request stand for its first waiter, with this number. Without one, takes the
    /// request back.
    pub(crate) fn set_first(&self, first: Option<u64>) {
        let mut state = self.limit.lock();
        let Some(member) = state.members.get_mut(&self.id) else { return };
        let Some(number) = member.request.take() else { return };
        member.request = first;
        state.requests.remove(&number);
        state.requests.extend(first.map(|first| (first, self.id)));
    }

    /// The number of the oldest request of another pool.
    pub(crate) fn first_of_others(&self) -> Option<u64> {
        self.limit.lock().first_but(self.id).map(|(number, _)| number)
    }

    /// Tells how many objects of the pool are idle, and the number of its first waiter. Whether the
    /// pool is to destroy one of them, for a caller of another pool that has waited longer: such a
    /// request found no idle object when it was entered.
    pub(crate) fn set_idle(&self, idle: usize, first: Option<u64>) -> bool {
        let mut state = self.limit.lock();
        state.next += 1;
        let (now, other) = (state.next, state.first_but(self.id));
        state.update(self.id, |member| {
            let is_more = idle > member.idle;
            if is_more {
                member.idle_since = now;
            }
            member.idle = idle;
            member.reclaimed = member.reclaimed.min(idle);
            let is_other_first =
                other.is_some_and(|(other, _)| first.is_none_or(|own| other < own));
            let is_reclaimed = is_more && is_other_first && idle > member.reclaimed;
            member.reclaimed += usize::from(is_reclaimed);
            is_reclaimed
        })
    }

    /// How many idle objects the pool has been asked to destroy since the last call.
    pub(crate) fn take_reclaimed(&self) -> usize {
        let mut state = self.limit.lock();
        state.update(self.id, |member| std::mem::take(&mut member.reclaimed))
    }

    /// Whether the pool was called since the last call; otherwise the waker is kept for that.
    pub(crate) fn poll_called(&self, waker: &Waker) -> bool {
        let mut state = self.limit.lock();
        let Some(member) = state.members.get_mut(&self.id) else { return false };
        let is_called = std::mem::take(&mut member.is_called);
        if !is_called && !member.waker.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            member.waker = Some(waker.clone());
        }
        is_called
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.set_first(None);
        let granted = self.take_granted();
        {
            let mut state = self.limit.lock();
            state.update(self.id, |member| member.idle = 0);
            state.short.remove(&self.id);
            state.members.remove(&self.id);
        }
        drop(granted);
    }
}

/// One object's part of a limit. The drop gives it back.
pub(crate) struct Unit(Limit);

impl Drop for Unit {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.used -= 1;
            ((), state.grant())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request comes from another kernel after the pool has looked for requests, and before its
    /// object is idle.
    #[test]
    fn a_late_request_reclaims_the_idle_object() {
        let limit = Limit::new(1);
        let (pool, other) = (Membership::new(&limit), Membership::new(&limit));
        let unit = pool.take(pool.next_number());
        assert!(unit.is_some() && pool.first_of_others().is_none());
        let number = other.next_number();
        assert!(other.take(number).is_none());
        assert!(!pool.set_idle(1, Some(number - 1)), "an own caller is first");
        assert!(!pool.set_idle(0, None));
        assert!(pool.set_idle(1, None));
        assert_eq!(pool.take_reclaimed(), 1);
        drop(unit);
        assert!(other.take(number).is_some());
    }
}
