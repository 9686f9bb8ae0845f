//! The idle objects of a pool, in the order in which they became idle, and by age.

use std::collections::{BTreeSet, VecDeque};

use pikake_time::{Deadline, Ticks};

use crate::limit::Unit;

/// An object of the pool, with what the pool knows of it.
pub(crate) struct Kept<T> {
    pub(crate) object: T,
    /// When the object is too old.
    pub(crate) expires: Deadline,
    pub(crate) uses: u64,
    /// The object's part of a common limit.
    pub(crate) unit: Option<Unit>,
}

/// An object that is ready.
pub(crate) struct Idle<T> {
    pub(crate) kept: Box<Kept<T>>,
    pub(crate) since: Ticks,
    /// The count of the objects that became idle before.
    number: u64,
}

pub(crate) struct IdleObjects<T> {
    /// In the order of their numbers, and so of the moments at which they became idle.
    objects: VecDeque<Idle<T>>,
    /// The objects that become too old, by that moment: their numbers.
    ages: BTreeSet<(Deadline, u64)>,
    next: u64,
}

impl<T> IdleObjects<T> {
    pub(crate) fn new() -> Self {
        Self { objects: VecDeque::new(), ages: BTreeSet::new(), next: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    #[inline]
    pub(crate) fn push(&mut self, kept: Box<Kept<T>>, since: Ticks) {
        let number = self.next;
        self.next += 1;
        if !kept.expires.is_never() {
            self.ages.insert((kept.expires, number));
        }
        self.objects.push_back(Idle { kept, since, number });
    }

    /// The object that became idle first.
    #[inline]
    pub(crate) fn first(&self) -> Option<&Idle<T>> {
        self.objects.front()
    }

    /// The part of a common limit of the object that became idle first.
    pub(crate) fn first_unit(&mut self) -> Option<&mut Unit> {
        self.objects.front_mut()?.kept.unit.as_mut()
    }

    /// The object that became idle last.
    #[inline]
    pub(crate) fn last(&self) -> Option<&Idle<T>> {
        self.objects.back()
    }

    /// Takes the object that became idle first.
    #[inline]
    pub(crate) fn pop_first(&mut self) -> Option<Box<Kept<T>>> {
        let popped = self.objects.pop_front()?;
        Some(self.taken(popped))
    }

    /// Takes the object that became idle last.
    #[inline]
    pub(crate) fn pop_last(&mut self) -> Option<Box<Kept<T>>> {
        let popped = self.objects.pop_back()?;
        Some(self.taken(popped))
    }

    #[inline]
    fn taken(&mut self, idle: Idle<T>) -> Box<Kept<T>> {
        if !idle.kept.expires.is_never() {
            self.ages.remove(&(idle.kept.expires, idle.number));
        }
        idle.kept
    }

    /// Takes an object that is too old.
    pub(crate) fn pop_too_old(&mut self, now: Ticks) -> Option<Box<Kept<T>>> {
        let (expires, number) = self.ages.first().copied()?;
        if !expires.is_due(now) {
            return None;
        }
        let index = self.objects.binary_search_by_key(&number, |idle| idle.number).ok();
        let idle = index.and_then(|index| self.objects.remove(index));
        Some(self.taken(idle.expect("an object that has an age here is idle")))
    }

    /// The moment at which the next object is too old.
    pub(crate) fn too_old_at(&self) -> Deadline {
        self.ages.first().map_or(Deadline::NEVER, |(expires, _)| *expires)
    }

    /// Takes all objects, for a look at them.
    pub(crate) fn take_all(&mut self) -> VecDeque<Idle<T>> {
        self.ages.clear();
        std::mem::take(&mut self.objects)
    }

    /// Puts objects back that [`take_all`](Self::take_all) has returned, in the same order.
    pub(crate) fn put_back(&mut self, mut objects: VecDeque<Idle<T>>) {
        let mortal = objects.iter().filter(|idle| !idle.kept.expires.is_never());
        self.ages.extend(mortal.map(|idle| (idle.kept.expires, idle.number)));
        // Those that became idle meanwhile are behind.
        objects.append(&mut self.objects);
        self.objects = objects;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// The same as a list that is searched each time.
        #[test]
        fn objects_are_found_by_order_and_by_age(
            steps in proptest::collection::vec((0..6_u8, 0..40_u64), 1..100)
        ) {
            let mut idle = IdleObjects::new();
            let mut list: Vec<(u64, Deadline)> = Vec::new();
            for (number, (step, value)) in (0_u64..).zip(steps) {
                match step {
                    0 | 1 => {
                        let expires = match value % 4 {
                            0 => Deadline::NEVER,
                            _ => Deadline::at(Ticks::new(value)),
                        };
                        let kept = Kept { object: number, expires, uses: 0, unit: None };
                        idle.push(Box::new(kept), Ticks::new(number));
                        list.push((number, expires));
                    }
                    2 => {
                        let popped = idle.pop_last().map(|kept| kept.object);
                        assert_eq!(popped, list.pop().map(|(number, _)| number));
                    }
                    3 => {
                        let first = (!list.is_empty()).then(|| list.remove(0).0);
                        assert_eq!(idle.pop_first().map(|kept| kept.object), first);
                    }
                    4 => {
                        let now = Ticks::new(value);
                        while let Some(kept) = idle.pop_too_old(now) {
                            let index = list.iter().position(|it| it.0 == kept.object).unwrap();
                            assert!(list.remove(index).1.is_due(now));
                        }
                        assert!(list.iter().all(|(_, expires)| !expires.is_due(now)));
                    }
                    _ => {
                        let mut all = idle.take_all();
                        all.retain(|it| it.kept.object % 5 != value % 5);
                        list.retain(|(number, _)| number % 5 != value % 5);
                        idle.put_back(all);
                    }
                }
                assert_eq!(idle.len(), list.len());
                let first = list.first().map(|(number, _)| Ticks::new(*number));
                assert_eq!(idle.first().map(|idle| idle.since), first);
                let next = list.iter().map(|(_, expires)| *expires).min();
                assert_eq!(idle.too_old_at(), next.unwrap_or(Deadline::NEVER));
            }
        }
    }
}
