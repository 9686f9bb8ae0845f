//! The calls of a connection that are under way, by their numbers.
//!
//! The peer may choose the numbers, so the hash has a key that it does not know.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::rc::Rc;

use pikake_traps::random;

/// An odd number without a pattern: 2^64 by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Calls, in no order.
pub(crate) struct Calls<C>(HashMap<u64, Rc<C>, Keyed>);

impl<C> Calls<C> {
    pub(crate) fn new() -> Self {
        Self(HashMap::with_hasher(Keyed(random::u64())))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn insert(&mut self, id: u64, call: Rc<C>) {
        self.0.insert(id, call);
    }

    pub(crate) fn get(&self, id: u64) -> Option<Rc<C>> {
        self.0.get(&id).cloned()
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Rc<C>> {
        self.0.remove(&id)
    }

    /// All calls, the oldest first.
    pub(crate) fn all(&self) -> Vec<Rc<C>> {
        self.above(None)
    }

    /// Takes the calls above a number, the oldest first; without a number, all.
    pub(crate) fn take_above(&mut self, last: Option<u64>) -> Vec<Rc<C>> {
        let above = self.above(last);
        self.0.retain(|id, _| last.is_some_and(|last| *id <= last));
        above
    }

    fn above(&self, last: Option<u64>) -> Vec<Rc<C>> {
        let mut above: Vec<_> = self.0.iter().filter(|(id, _)| Some(**id) > last).collect();
        above.sort_unstable_by_key(|(id, _)| **id);
        above.into_iter().map(|(_, call)| call.clone()).collect()
    }
}

/// Hashes a number by its product with a key.
#[derive(Clone, Copy)]
struct Keyed(u64);

impl BuildHasher for Keyed {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

impl Hasher for Keyed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * u128::from(FACTOR);
        self.0 = (product >> u64::BITS) as u64 ^ product as u64;
    }
}
