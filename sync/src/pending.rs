//! Items that wait for room, in order of arrival.

use std::collections::VecDeque;

/// Items that wait for room. The putter of an item takes it back by its number.
pub(crate) struct Pending<T> {
    /// In the order of their numbers; `None` for an item that was taken back.
    items: VecDeque<(u64, Option<T>)>,
    /// The number of the next item.
    next: u64,
    /// The number of items, without those taken back.
    count: usize,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), next: 0, count: 0 }
    }
}

impl<T> Pending<T> {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Adds an item at the end, and returns its number.
    pub(crate) fn push(&mut self, item: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.items.push_back((number, Some(item)));
        self.count += 1;
        number
    }

    /// Takes the first item out.
    pub(crate) fn pop(&mut self) -> Option<T> {
        while let Some((_, first)) = self.items.pop_front() {
            if first.is_some() {
                self.count -= 1;
                return first;
            }
        }
        None
    }

    /// Takes an item back, if it is still there.
    pub(crate) fn take_back(&mut self, number: u64) -> Option<T> {
        let index = self.items.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        let (_, item) = &mut self.items[index];
        let item = item.take()?;
        self.count -= 1;
        // At most half of the entries are gaps, so each item is moved once on average.
        if self.items.len() > 2 * self.count {
            self.items.retain(|(_, item)| item.is_some());
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
        assert_eq!(pending.take_back(numbers[3]), None, "item 3 was taken back");
        assert_eq!(pending.take_back(numbers[5]), Some(5));
        assert_eq!((pending.pop(), pending.pop()), (Some(1), Some(2)));
        assert_eq!(pending.take_back(numbers[2]), None, "item 2 was popped");
        let next = pending.push(6);
        assert_eq!((pending.pop(), pending.pop(), pending.pop()), (Some(4), Some(6), None));
        assert_eq!((pending.take_back(next), pending.len()), (None, 0));
    }

    #[test]
    fn gaps_do_not_accumulate() {
        let mut pending = Pending::default();
        let stays = pending.push(0);
        let mut last = pending.push(1);
        for item in 2..10_000 {
            let next = pending.push(item);
            assert_eq!(pending.take_back(last), Some(item - 1));
            last = next;
        }
        assert!(pending.items.len() <= 2 * pending.len());
        assert_eq!(
            (pending.take_back(stays), pending.pop(), pending.len()),
            (Some(0), Some(9_999), 0)
        );
    }
}
