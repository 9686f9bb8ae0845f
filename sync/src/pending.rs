//! Items that wait for room, in the order in which they were brought.

use std::collections::VecDeque;

/// Items that wait for room. Each has a number, by which who brought it takes it back.
pub(crate) struct Pending<T> {
    /// `None` for what was taken back between others.
    items: VecDeque<Option<T>>,
    /// The number of the first.
    first: u64,
    count: usize,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), first: 0, count: 0 }
    }
}

impl<T> Pending<T> {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Adds an item at the end, and gives its number.
    pub(crate) fn push(&mut self, item: T) -> u64 {
        self.items.push_back(Some(item));
        self.count += 1;
        self.first + (self.items.len() - 1) as u64
    }

    /// Takes the first item out.
    pub(crate) fn pop(&mut self) -> Option<T> {
        while let Some(first) = self.items.pop_front() {
            self.first += 1;
            if first.is_some() {
                self.count -= 1;
                return first;
            }
        }
        None
    }

    /// Takes an item back, if it is still there.
    pub(crate) fn take_back(&mut self, number: u64) -> Option<T> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let item = self.items.get_mut(index)?.take()?;
        self.count -= 1;
        // So that what leaves at either end leaves nothing behind.
        while let Some(None) = self.items.back() {
            self.items.pop_back();
        }
        while let Some(None) = self.items.front() {
            self.items.pop_front();
            self.first += 1;
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::Pending;

    #[test]
    fn items_leave_from_front_middle_and_end() {
        let mut pending = Pending::default();
        let numbers: Vec<_> = (0..6).map(|item| pending.push(item)).collect();
        assert_eq!(pending.take_back(numbers[0]), Some(0));
        assert_eq!(pending.take_back(numbers[3]), Some(3));
        assert_eq!(pending.take_back(numbers[3]), None, "it was taken back");
        assert_eq!(pending.take_back(numbers[5]), Some(5));
        assert_eq!((pending.pop(), pending.pop()), (Some(1), Some(2)));
        assert_eq!(pending.take_back(numbers[2]), None, "it was taken out");
        let next = pending.push(6);
        assert_eq!((pending.pop(), pending.pop(), pending.pop()), (Some(4), Some(6), None));
        assert_eq!((pending.take_back(next), pending.len()), (None, 0));
    }
}
