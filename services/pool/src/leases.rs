//! The notes of a pool's leases: the oldest first, and those of which the pool has not warned.

use std::iter::successors;

use pikake_time::Ticks;
use slab::Slab;

use crate::holder::Note;

/// No lease.
const NONE: usize = usize::MAX;

/// A note in the list of all, which is in the order of lending.
struct Linked {
    note: Note,
    previous: usize,
    next: usize,
}

pub(crate) struct Leases {
    notes: Slab<Linked>,
    first: usize,
    last: usize,
    /// The oldest lease of which the pool has not warned. The pool has warned of all older ones.
    first_quiet: usize,
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self { notes: Slab::new(), first: NONE, last: NONE, first_quiet: NONE }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.notes.len()
    }

    /// Adds the note of a lease that begins now, and returns its key.
    #[inline]
    pub(crate) fn insert(&mut self, note: Note) -> usize {
        let previous = self.last;
        let key = self.notes.insert(Linked { note, previous, next: NONE });
        match self.notes.get_mut(previous) {
            Some(before) => before.next = key,
            None => self.first = key,
        }
        self.last = key;
        if self.first_quiet == NONE {
            self.first_quiet = key;
        }
        key
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: usize) -> Note {
        let Linked { note, previous, next } = self.notes.remove(key);
        match self.notes.get_mut(previous) {
            Some(before) => before.next = next,
            None => self.first = next,
        }
        match self.notes.get_mut(next) {
            Some(behind) => behind.previous = previous,
            None => self.last = previous,
        }
        if self.first_quiet == key {
            self.first_quiet = next;
        }
        note
    }

    /// All notes, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Note> {
        let first = self.notes.get(self.first);
        successors(first, |linked| self.notes.get(linked.next)).map(|linked| &linked.note)
    }

    /// The moment from which the holder has had the oldest lease of which the pool has not warned.
    pub(crate) fn quiet_since(&self) -> Option<Ticks> {
        self.notes.get(self.first_quiet).map(|linked| linked.note.since)
    }

    /// The note of that lease, of which the pool warns now.
    pub(crate) fn warn(&mut self) -> Option<Note> {
        let Linked { note, next, .. } = self.notes.get(self.first_quiet)?;
        self.first_quiet = *next;
        Some(*note)
    }
}
