//! The state of a queue or channel between threads, and its kinds of waits.

use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;
use std::time::Instant;

use pikake_traps::Interrupted;

use super::wait::{TaskWait, Wait};
use super::waiters::{Shared, WaitKind, Waitable, Waiters, Wakers};
use crate::error::{NotPut, PutError, TryGetError, TryPutError};

/// The items of a queue and its waiters.
pub(crate) struct Items<T> {
    /// Sorted by number.
    pub(crate) items: VecDeque<Numbered<T>>,
    /// The number of the next item that is put at the end.
    pub(crate) next: i64,
    /// The number of the last item that was put before all others.
    pub(crate) first: i64,
    pub(crate) capacity: usize,
    /// Items granted to getters that have not collected them.
    pub(crate) granted: usize,
    pub(crate) closed: bool,
    pub(crate) getters: Waiters<(), Numbered<T>>,
    pub(crate) putters: Waiters<T, ()>,
    /// Items that were put and not reported done.
    pub(crate) unfinished: usize,
    pub(crate) joiners: Waiters<(), ()>,
}

/// An item with its number, which restores its position if a getter gives it back.
pub(crate) struct Numbered<T>(pub(crate) i64, pub(crate) T);

impl<T> Items<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            items: VecDeque::new(),
            next: 0,
            first: 0,
            capacity,
            granted: 0,
            closed: false,
            getters: Waiters::new(),
            putters: Waiters::new(),
            unfinished: 0,
            joiners: Waiters::new(),
        }
    }

    fn has_room(&self) -> bool {
        match self.capacity {
            0 => self.items.is_empty() && self.getters.can_grant(),
            capacity => self.items.len() < capacity,
        }
    }

    fn is_over(&self) -> bool {
        self.closed && self.items.is_empty() && self.granted == 0
    }

    fn take_in(&mut self, item: T) {
        self.items.push_back(Numbered(self.next, item));
        self.next += 1;
        self.unfinished += 1;
    }

    pub(crate) fn put_back(&mut self, item: Numbered<T>) {
        let index = self.items.partition_point(|other| other.0 < item.0);
        self.items.insert(index, item);
    }

    pub(crate) fn try_put(&mut self, item: T) -> Result<(), TryPutError<T>> {
        if self.closed {
            return Err(TryPutError::Closed(item));
        }
        if !self.putters.is_empty() || !self.has_room() {
            return Err(TryPutError::Full(item));
        }
        self.take_in(item);
        Ok(())
    }

    fn try_get(&mut self) -> Option<Numbered<T>> {
        if self.getters.is_empty() { self.items.pop_front() } else { None }
    }
}

impl<T> Waitable for Items<T> {
    fn serve(&mut self, wakers: &mut Wakers) {
        if self.closed {
            self.putters.dismiss_all(wakers);
        }
        loop {
            if self.getters.can_grant() {
                if let Some(item) = self.items.pop_front() {
                    self.getters.grant(wakers, || item);
                    self.granted += 1;
                    continue;
                }
            }
            if !self.has_room() {
                break;
            }
            let Some(item) = self.putters.grant(wakers, || ()) else { break };
            self.take_in(item);
        }
        if self.is_over() {
            self.getters.dismiss_all(wakers);
        }
        while self.unfinished == 0 && self.joiners.grant(wakers, || ()).is_some() {}
    }
}

/// The waits for an item.
pub(crate) struct Getting;

impl<T> WaitKind<Items<T>> for Getting {
    type Request = ();
    type Grant = Numbered<T>;
    const NAME: &'static str = "item of a queue of several threads";

    fn waiters(items: &mut Items<T>) -> &mut Waiters<(), Numbered<T>> {
        &mut items.getters
    }

    fn try_now(items: &mut Items<T>, (): ()) -> Result<Numbered<T>, ()> {
        items.try_get().ok_or(())
    }

    fn collected(items: &mut Items<T>, _: &mut Numbered<T>) {
        items.granted -= 1;
    }

    fn give_back(items: &mut Items<T>, item: Numbered<T>) {
        items.granted -= 1;
        items.put_back(item);
    }
}

/// The waits for room.
pub(crate) struct Putting;

impl<T> WaitKind<Items<T>> for Putting {
    type Request = T;
    type Grant = ();
    const NAME: &'static str = "room in a queue of several threads";
    const MAY_PAUSE: bool = true;

    fn waiters(items: &mut Items<T>) -> &mut Waiters<T, ()> {
        &mut items.putters
    }

    fn try_now(items: &mut Items<T>, item: T) -> Result<(), T> {
        items.try_put(item).map_err(TryPutError::into_item)
    }

    /// The item is in the queue, and stays there.
    fn give_back(_: &mut Items<T>, (): ()) {}
}

/// The waits until all items are done.
pub(crate) struct Joining;

impl<T> WaitKind<Items<T>> for Joining {
    type Request = ();
    type Grant = ();
    const NAME: &'static str = "end of the work on the items of a queue of several threads";

    fn waiters(items: &mut Items<T>) -> &mut Waiters<(), ()> {
        &mut items.joiners
    }

    fn try_now(items: &mut Items<T>, (): ()) -> Result<(), ()> {
        if items.unfinished == 0 { Ok(()) } else { Err(()) }
    }

    fn give_back(_: &mut Items<T>, (): ()) {}
}

impl<T> Shared<Items<T>> {
    pub(crate) fn show(&self, shown: &mut fmt::DebugStruct<'_, '_>) {
        let items = self.lock();
        let [length, getting, putting, unfinished] = [
            items.items.len() + items.granted,
            items.getters.len(),
            items.putters.len(),
            items.unfinished,
        ];
        let (capacity, closed) = (items.capacity, items.closed);
        drop(items);
        shown
            .field("length", &length)
            .field("capacity", &(capacity < usize::MAX).then_some(capacity))
            .field("getting", &getting)
            .field("putting", &putting)
            .field("unfinished", &unfinished)
            .field("closed", &closed);
    }

    pub(crate) fn close(&self) {
        self.change(|items| items.closed = true);
    }

    /// Closes the queue and drops its items.
    pub(crate) fn close_and_clear(&self) {
        let items = self.change(|items| {
            items.closed = true;
            std::mem::take(&mut items.items)
        });
        drop(items);
    }
}

pub(crate) async fn put<T>(
    shared: &Shared<Items<T>>,
    item: T,
    place: &'static Location<'static>,
) -> Result<(), PutError<T>> {
    let mut wait = TaskWait::<_, _, Putting>::new(shared, item, place);
    match (&mut wait).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(item)) => Err(PutError::new(item, NotPut::Closed)),
        Err(interrupted) => {
            let item = wait.take_back().expect("an interrupted wait keeps its item");
            Err(PutError::new(item, NotPut::Interrupted(interrupted)))
        }
    }
}

pub(crate) fn blocking_put<T>(shared: &Shared<Items<T>>, item: T) -> Result<(), PutError<T>> {
    let put = put_blocking_until(shared, item, None);
    put.map_err(|closed| PutError::new(closed.into_item(), NotPut::Closed))
}

pub(crate) fn put_blocking_until<T>(
    shared: &Shared<Items<T>>,
    item: T,
    until: Option<Instant>,
) -> Result<(), TryPutError<T>> {
    let mut wait = Wait::<_, _, Putting>::new(shared, item);
    match wait.block(until) {
        Some(Ok(())) => Ok(()),
        Some(Err(item)) => Err(TryPutError::Closed(item)),
        // Without an item, it was granted after the time was up.
        None => wait.take_back().map_or(Ok(()), |item| Err(TryPutError::Full(item))),
    }
}

pub(crate) async fn get<T>(
    shared: &Shared<Items<T>>,
    place: &'static Location<'static>,
) -> Result<Option<T>, Interrupted> {
    let got = TaskWait::<_, _, Getting>::new(shared, (), place).await?;
    Ok(got.ok().map(|Numbered(_, item)| item))
}

pub(crate) fn blocking_get<T>(
    shared: &Shared<Items<T>>,
    until: Option<Instant>,
) -> Result<T, TryGetError> {
    match Wait::<_, _, Getting>::new(shared, ()).block(until) {
        Some(Ok(Numbered(_, item))) => Ok(item),
        Some(Err(())) => Err(TryGetError::Closed),
        None => Err(TryGetError::Empty),
    }
}

pub(crate) fn try_get<T>(shared: &Shared<Items<T>>) -> Result<T, TryGetError> {
    shared.change(|items| match items.try_get() {
        Some(Numbered(_, item)) => Ok(item),
        None if items.is_over() => Err(TryGetError::Closed),
        None => Err(TryGetError::Empty),
    })
}
