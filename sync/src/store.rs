//! The stores of a queue, which determine the order of its items.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;

/// Holds the items of a [queue](crate::AnyQueue), and determines their order.
pub trait Store: Default {
    /// The type of the items.
    type Item;

    /// Adds an item.
    fn push(&mut self, item: Self::Item);

    /// Removes the next item for a getter behind `granted` getters, to which items are granted
    /// that they have not collected.
    fn pop(&mut self, granted: usize) -> Option<Self::Item>;

    /// The number of items.
    fn len(&self) -> usize;

    /// Whether there are no items.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// First in, first out.
#[derive(Clone, Debug)]
pub struct Fifo<T>(pub(crate) VecDeque<T>);

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Store for Fifo<T> {
    type Item = T;

    fn push(&mut self, item: T) {
        self.0.push_back(item);
    }

    #[inline]
    fn pop(&mut self, granted: usize) -> Option<T> {
        if granted == 0 { self.0.pop_front() } else { self.0.remove(granted) }
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Last in, first out.
#[derive(Clone, Debug)]
pub struct Lifo<T>(Vec<T>);

impl<T> Default for Lifo<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Store for Lifo<T> {
    type Item = T;

    fn push(&mut self, item: T) {
        self.0.push(item);
    }

    fn pop(&mut self, _granted: usize) -> Option<T> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// The smallest item comes out first; equal items in order of arrival.
pub struct Smallest<T> {
    heap: BinaryHeap<Reverse<Numbered<T>>>,
    next: u64,
}

struct Numbered<T> {
    item: T,
    number: u64,
}

impl<T: Ord> Default for Smallest<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), next: 0 }
    }
}

impl<T: Ord> Store for Smallest<T> {
    type Item = T;

    fn push(&mut self, item: T) {
        self.heap.push(Reverse(Numbered { item, number: self.next }));
        self.next += 1;
    }

    fn pop(&mut self, _granted: usize) -> Option<T> {
        self.heap.pop().map(|Reverse(numbered)| numbered.item)
    }

    fn len(&self) -> usize {
        self.heap.len()
    }
}

impl<T: Ord> Ord for Numbered<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.item.cmp(&other.item).then(self.number.cmp(&other.number))
    }
}

impl<T: Ord> PartialOrd for Numbered<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord> PartialEq for Numbered<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T: Ord> Eq for Numbered<T> {}

impl<T> fmt::Debug for Smallest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Smallest").field("length", &self.heap.len()).finish()
    }
}
