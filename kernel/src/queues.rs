//! Wait queues: lists of records, in the order in which they parked.

use crate::book::{Book, NONE, key};
use crate::pick::Pick;
use crate::record::{Place, State};

/// Names a wait queue, also after it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueRef {
    pub(crate) index: u32,
    serial: u32,
}

impl QueueRef {
    /// In the place of a queue: there is none.
    pub(crate) const NONE: Self = Self { index: NONE, serial: 0 };
}

/// A wait queue: the ends of a list of records.
pub(crate) struct Queue {
    serial: u32,
    /// The task with a light park, who came before all others.
    light: u32,
    first: u32,
    last: u32,
    length: usize,
}

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Notes a light park in an empty queue, which has that number.
    #[inline]
    pub(crate) fn add_light(&mut self, index: u32, task: u32) -> QueueRef {
        self.light = task;
        self.length = 1;
        QueueRef { index, serial: self.serial }
    }
}

impl<P: Pick> Book<P> {
    pub(crate) fn add_queue(&mut self) -> u32 {
        self.last_queue = self.last_queue.wrapping_add(1);
        let serial = self.last_queue;
        key(self.queues.insert(Queue { serial, light: NONE, first: NONE, last: NONE, length: 0 }))
    }

    pub(crate) fn queue_length(&self, queue: u32) -> usize {
        self.queues[queue as usize].length
    }

    /// Wakes up to `count` of those who wait in a queue.
    pub(crate) fn wake_queue(&mut self, queue: u32, count: usize) -> usize {
        let light = self.queues[queue as usize].light;
        if light == NONE || count == 0 {
            return self.wake_records(queue, count);
        }
        self.remove_light(queue);
        self.wake_light(light);
        1 + self.wake_records(queue, count - 1)
    }

    /// Wakes the one who waits in a queue, if it is one, without a record. Tells whether it was so.
    #[inline]
    pub(crate) fn wake_only(&mut self, queue: u32, count: usize) -> bool {
        let found = &mut self.queues[queue as usize];
        let light = found.light;
        let is_so = light != NONE && found.length == 1 && count > 0;
        if is_so {
            (found.light, found.length) = (NONE, 0);
            self.wake_light(light);
        }
        is_so
    }

    fn wake_records(&mut self, queue: u32, count: usize) -> usize {
        let mut woken = 0;
        while woken < count {
            let first = self.queues[queue as usize].first;
            if first == NONE {
                break;
            }
            self.wake_first(queue, first);
            woken += 1;
        }
        woken
    }

    /// Takes the light park out of a queue.
    pub(crate) fn remove_light(&mut self, queue: u32) {
        let found = &mut self.queues[queue as usize];
        found.light = NONE;
        found.length -= 1;
    }

    /// Puts a record into a queue in the place of the light park that it was made of.
    pub(crate) fn put_in_place_of_light(&mut self, record: u32, queue: QueueRef) {
        let Queue { light, first, last, .. } = &mut self.queues[queue.index as usize];
        *light = NONE;
        let next = std::mem::replace(first, record);
        if next == NONE {
            *last = record;
        }
        self.set_neighbours(NONE, next, NONE, record);
        self.put(record, Place::Queue { queue, previous: NONE, next });
    }

    /// Wakes the first record of a queue.
    #[inline]
    fn wake_first(&mut self, queue: u32, first: u32) {
        let State::Parked(Place::Queue { queue: name, next, .. }) = self.record(first).state else {
            unreachable!("it is in that queue")
        };
        let Queue { first: head, last, length, .. } = &mut self.queues[queue as usize];
        *head = next;
        *length -= 1;
        if next == NONE {
            *last = NONE;
        } else if let State::Parked(Place::Queue { previous, .. }) =
            &mut self.record_mut(next).state
        {
            *previous = NONE;
        }
        self.answer(first, Some(name));
    }

    /// Ends a queue. Records that are still in it wait for ever.
    pub(crate) fn remove_queue(&mut self, queue: u32) {
        let light = self.queues[queue as usize].light;
        if light != NONE {
            self.make_record_of(light);
        }
        while self.queues[queue as usize].first != NONE {
            let first = self.queues[queue as usize].first;
            self.take_out(first);
            self.put(first, Place::Nowhere);
        }
        self.queues.remove(queue as usize);
    }

    /// The number of a queue, if it is still there.
    pub(crate) fn queue_index(&self, queue: QueueRef) -> Option<u32> {
        let found = self.queues.get(queue.index as usize)?;
        (found.serial == queue.serial).then_some(queue.index)
    }

    /// Parks a record in a wait queue, behind all others.
    #[inline]
    pub(crate) fn put_queue(&mut self, record: u32, queue: u32) {
        let Queue { serial, first, last, length, .. } = &mut self.queues[queue as usize];
        let name = QueueRef { index: queue, serial: *serial };
        *length += 1;
        let previous = std::mem::replace(last, record);
        if previous == NONE {
            *first = record;
        }
        self.set_neighbours(previous, NONE, record, NONE);
        self.put(record, Place::Queue { queue: name, previous, next: NONE });
    }

    /// Tells the records around a place who is beside them now.
    #[inline]
    fn set_neighbours(&mut self, previous: u32, next: u32, to_next: u32, to_previous: u32) {
        if previous != NONE
            && let State::Parked(Place::Queue { next, .. }) = &mut self.record_mut(previous).state
        {
            *next = to_next;
        }
        if next != NONE
            && let State::Parked(Place::Queue { previous, .. }) = &mut self.record_mut(next).state
        {
            *previous = to_previous;
        }
    }

    /// Takes a record out of the queue it is in, between these two.
    pub(crate) fn leave_queue(&mut self, record: u32, queue: QueueRef, previous: u32, next: u32) {
        self.set_neighbours(previous, next, next, previous);
        let entry = &mut self.queues[queue.index as usize];
        entry.length -= 1;
        if entry.first == record {
            entry.first = next;
        }
        if entry.last == record {
            entry.last = previous;
        }
    }
}
