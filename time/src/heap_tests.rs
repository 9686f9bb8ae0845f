//! The timer heap against a sorted list.
//!
//! The list is the specification: timers in the order of (ticks, insertion). Random programs run on
//! both, and every answer is compared. After each step the heap's own promises are checked: the
//! bounds on dead entries and on memory, and the drop of removed items. Some of the programs start
//! just below the wrap-around of the sequence numbers.

use std::cell::Cell;
use std::rc::Rc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::{PRUNE_SLACK, Ticks, TimerHeap, TimerKey};

/// One call. Keys are chosen among all that were ever returned, so most of them are stale.
#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    Remove(Index),
    /// Removes a pending timer, so that dead entries pile up.
    RemoveLive(Index),
    Next,
    /// Advances the time and takes one timer, if it is due.
    PopDue(u64),
    Drain,
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        // Few different moments, so that many are equal.
        8 => (0u64..20).prop_map(Op::Insert),
        1 => any::<u64>().prop_map(Op::Insert),
        2 => any::<Index>().prop_map(Op::Remove),
        6 => any::<Index>().prop_map(Op::RemoveLive),
        2 => Just(Op::Next),
        2 => (0u64..3).prop_map(Op::PopDue),
        1 => Just(Op::PopDue(0)),
    ]
}

fn programs() -> impl Strategy<Value = Vec<Op>> {
    let long = vec(ops(), 0..600);
    let drained = vec(prop_oneof![30 => ops(), 1 => Just(Op::Drain)], 0..200);
    // A burst of insertions, then mostly removals: the shape that makes the heap prune.
    let burst = (vec((0u64..20).prop_map(Op::Insert), 150), vec(ops(), 0..50)).prop_flat_map(
        |(inserts, rest)| {
            vec(any::<Index>().prop_map(Op::RemoveLive), 100..150)
                .prop_map(move |removes| [inserts.clone(), removes, rest.clone()].concat())
        },
    );
    prop_oneof![long, drained, burst]
}

fn starts() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), u32::MAX - 300..=u32::MAX, any::<u32>()]
}

/// An item that counts the existing items.
#[derive(Debug)]
struct Item {
    number: usize,
    alive: Rc<Cell<usize>>,
}

impl Drop for Item {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

proptest! {
    #[test]
    fn the_heap_is_a_sorted_list(program in programs(), start in starts()) {
        let alive = Rc::new(Cell::new(0));
        let mut heap = TimerHeap::with_sequence(start);
        let mut keys: Vec<TimerKey> = Vec::new();
        // (ticks, number), always sorted; numbers count insertions and index `keys`.
        let mut list: Vec<(u64, usize)> = Vec::new();
        let (mut now, mut most) = (0, 0);

        for op in program {
            match op {
                Op::Insert(at) => {
                    let at = at.saturating_add(now);
                    let number = keys.len();
                    alive.set(alive.get() + 1);
                    keys.push(heap.insert(Ticks::new(at), Item { number, alive: alive.clone() }));
                    let place = list.partition_point(|&timer| timer < (at, number));
                    list.insert(place, (at, number));
                }
                Op::Remove(which) if !keys.is_empty() => {
                    let number = which.index(keys.len());
                    let place = list.iter().position(|timer| timer.1 == number);
                    let expected = place.map(|place| list.remove(place).1);
                    prop_assert_eq!(heap.remove(keys[number]).map(|item| item.number), expected);
                }
                Op::RemoveLive(which) if !list.is_empty() => {
                    let (_, number) = list.remove(which.index(list.len()));
                    let removed = heap.remove(keys[number]).map(|item| item.number);
                    prop_assert_eq!(removed, Some(number));
                }
                Op::Remove(_) | Op::RemoveLive(_) => {}
                Op::Next => {
                    prop_assert_eq!(heap.next().map(Ticks::get), list.first().map(|t| t.0));
                }
                Op::PopDue(step) => {
                    now += step;
                    let due = list.first().is_some_and(|timer| timer.0 <= now);
                    let expected = due.then(|| list.remove(0));
                    let popped = heap.pop_due(Ticks::new(now));
                    prop_assert_eq!(popped.map(|(at, item)| (at.get(), item.number)), expected);
                }
                Op::Drain => {
                    let mut drained: Vec<_> = heap.drain().map(|item| item.number).collect();
                    drained.sort_unstable();
                    let mut expected: Vec<_> = list.drain(..).map(|timer| timer.1).collect();
                    expected.sort_unstable();
                    prop_assert_eq!(drained, expected);
                }
            }
            // Most of the last keys are of pending timers, and most of the first ones are stale.
            for number in [0, keys.len() / 2, keys.len().saturating_sub(1)] {
                if let Some(key) = keys.get(number) {
                    let at = list.iter().find(|timer| timer.1 == number).map(|timer| timer.0);
                    prop_assert_eq!(heap.moment(*key).map(Ticks::get), at);
                }
            }
            most = most.max(list.len());
            prop_assert_eq!(heap.len(), list.len());
            prop_assert_eq!(heap.is_empty(), list.is_empty());
            prop_assert_eq!(alive.get(), list.len(), "an item is dropped when it leaves");
            prop_assert!(heap.dead() <= heap.len() + PRUNE_SLACK);
            prop_assert!(heap.slots() <= 2 * most + PRUNE_SLACK);
        }

        let left: Vec<_> = std::iter::from_fn(|| heap.pop_due(Ticks::MAX))
            .map(|(at, item)| (at.get(), item.number))
            .collect();
        prop_assert_eq!(left, list);
        prop_assert_eq!(heap.dead(), 0);
        for key in keys {
            prop_assert!(heap.remove(key).is_none(), "all keys are stale by now");
        }
    }
}

#[test]
fn equal_deadlines_fire_in_order_across_the_wrap_around() {
    let mut heap = TimerHeap::with_sequence(u32::MAX - 1);
    for number in 0..5 {
        heap.insert(Ticks::new(7), number);
    }
    let order: Vec<_> = std::iter::from_fn(|| heap.pop_due(Ticks::new(7))).map(|t| t.1).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

#[test]
fn a_stale_key_misses_its_slots_next_timer() {
    let mut heap = TimerHeap::with_sequence(u32::MAX);
    let old = heap.insert(Ticks::new(1), "old");
    assert_eq!(heap.pop_due(Ticks::new(1)), Some((Ticks::new(1), "old")));
    let new = heap.insert(Ticks::new(1), "new");
    assert_eq!(heap.slots(), 1, "the slot was used again");
    assert_eq!(heap.remove(old), None);
    assert_eq!(heap.remove(new), Some("new"));
}

#[test]
fn keys_from_before_a_drain_are_stale() {
    let mut heap = TimerHeap::new();
    let old = heap.insert(Ticks::new(1), "old");
    heap.clear();
    assert_eq!(heap.next(), None);
    assert_eq!(heap.remove(old), None);
    heap.insert(Ticks::new(2), "new");
    assert_eq!(heap.remove(old), None);
    assert_eq!(heap.len(), 1);
}

#[test]
fn many_dead_entries_are_pruned() {
    let mut heap = TimerHeap::new();
    let live = heap.insert(Ticks::new(1), ());
    // Timeouts come and go below a live timer that stays on top.
    for _ in 0..100 * PRUNE_SLACK {
        let key = heap.insert(Ticks::MAX, ());
        heap.remove(key);
        assert!(heap.dead() <= heap.len() + PRUNE_SLACK);
        assert_eq!(heap.next(), Some(Ticks::new(1)));
    }
    assert!(heap.slots() <= 2 * 2 + PRUNE_SLACK, "slots are used again");
    assert_eq!(heap.remove(live), Some(()));
    assert_eq!(heap.next(), None);
    assert_eq!(heap.dead(), 0);
}
