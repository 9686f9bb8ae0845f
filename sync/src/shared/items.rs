//! What is in a queue or a channel between threads, who waits for it, and the ways to wait.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::time::Instant;

use super::line::{Line, Shared, Side, State, Wakers};
use super::wait::{Trapped, Wait};
use crate::error::{GetError, NotPut, PutError, TryGetError};

/// What is in a queue, and who waits.
pub(crate) struct Items<T> {
    /// In the order of their numbers.
    pub(crate) items: VecDeque<Numbered<T>>,
    /// The number of the next to be put, and of the last that was put before all others.
    pub(crate) next: i64,
    pub(crate) first: i64,
    pub(crate) capacity: usize,
    /// How many items were given to getters that have not seen them and may be gone before they do.
    pub(crate) on_the_way: usize,
    pub(crate) closed: bool,
    pub(crate) getters: Line<(), Numbered<T>>,
    pub(crate) putters: Line<T, ()>,
    /// How many were put and not reported done.
    pub(crate) unfinished: usize,
    pub(crate) joiners: Line<(), ()>,
}

/// An item with its number, by which it finds its place again if it comes back.
pub(crate) struct Numbered<T>(pub(crate) i64, pub(crate) T);

impl<T> Items<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            items: VecDeque::new(),
            next: 0,
            first: 0,
            capacity,
            on_the_way: 0,
            closed: false,
            getters: Line::new(),
            putters: Line::new(),
            unfinished: 0,
            joiners: Line::new(),
        }
    }

    fn has_room(&self) -> bool {
        match self.capacity {
            0 => self.items.is_empty() && self.getters.has_callable(),
            capacity => self.items.len() < capacity,
        }
    }

    fn is_over(&self) -> bool {
        self.closed && self.items.is_empty() && self.on_the_way == 0
    }

    fn take_in(&mut self, item: T) {
        self.items.push_back(Numbered(self.next, item));
        self.next += 1;
        self.unfinished += 1;
    }

    pub(crate) fn put_back(&mut self, item: Numbered<T>) {
        let place = self.items.partition_point(|other| other.0 < item.0);
        self.items.insert(place, item);
    }

    pub(crate) fn try_put(&mut self, item: T) -> Result<(), PutError<T>> {
        if self.closed {
            return Err(PutError::new(item, NotPut::Closed));
        }
        if !self.putters.is_empty() || !self.has_room() {
            return Err(PutError::new(item, NotPut::Full));
        }
        self.take_in(item);
        Ok(())
    }

    fn try_get(&mut self) -> Option<Numbered<T>> {
        if self.getters.is_empty() { self.items.pop_front() } else { None }
    }
}

impl<T> State for Items<T> {
    fn serve(&mut self, wakers: &mut Wakers) {
        if self.closed {
            self.putters.dismiss_all(wakers);
        }
        loop {
            if self.getters.has_callable()
                && let Some(item) = self.items.pop_front()
            {
                self.getters.call(wakers, || item);
                self.on_the_way += 1;
            } else if self.has_room()
                && let Some(item) = self.putters.call(wakers, || ())
            {
                self.take_in(item);
            } else {
                break;
            }
        }
        if self.is_over() {
            self.getters.dismiss_all(wakers);
        }
        while self.unfinished == 0 && self.joiners.call(wakers, || ()).is_some() {}
    }
}

/// Those who wait for an item.
pub(crate) struct Getting;

impl<T> Side<Items<T>> for Getting {
    type Request = ();
    type Gets = Numbered<T>;

    fn line(items: &mut Items<T>) -> &mut Line<(), Numbered<T>> {
        &mut items.getters
    }

    fn now(items: &mut Items<T>, (): ()) -> Result<Numbered<T>, ()> {
        items.try_get().ok_or(())
    }

    fn collected(items: &mut Items<T>) {
        items.on_the_way -= 1;
    }

    fn give_back(items: &mut Items<T>, item: Numbered<T>) {
        items.on_the_way -= 1;
        items.put_back(item);
    }
}

/// Those who wait for room.
pub(crate) struct Putting;

impl<T> Side<Items<T>> for Putting {
    type Request = T;
    type Gets = ();
    const STEPS_ASIDE: bool = true;

    fn line(items: &mut Items<T>) -> &mut Line<T, ()> {
        &mut items.putters
    }

    fn now(items: &mut Items<T>, item: T) -> Result<(), T> {
        items.try_put(item).map_err(PutError::into_item)
    }

    /// It has been taken in, and stays there.
    fn give_back(_: &mut Items<T>, (): ()) {}
}

/// Those who wait until everything is done.
pub(crate) struct Joining;

impl<T> Side<Items<T>> for Joining {
    type Request = ();
    type Gets = ();

    fn line(items: &mut Items<T>) -> &mut Line<(), ()> {
        &mut items.joiners
    }

    fn now(items: &mut Items<T>, (): ()) -> Result<(), ()> {
        if items.unfinished == 0 { Ok(()) } else { Err(()) }
    }

    fn give_back(_: &mut Items<T>, (): ()) {}
}

impl<T> Shared<Items<T>> {
    pub(crate) fn show(&self, shown: &mut fmt::DebugStruct<'_, '_>) {
        let items = self.lock();
        let [length, getting, putting, unfinished] = [
            items.items.len() + items.on_the_way,
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

    /// Ends the queue from the getting side: what is in it is dropped.
    pub(crate) fn abandon(&self) {
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
    let mut wait = Trapped::<_, _, Putting>::new(shared, item, place);
    match (&mut wait).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(item)) => Err(PutError::new(item, NotPut::Closed)),
        Err(interrupted) => {
            let item = wait.take_back().expect("what was not taken is there");
            Err(PutError::new(item, NotPut::Interrupted(interrupted)))
        }
    }
}

pub(crate) fn put_blocking<T>(
    shared: &Shared<Items<T>>,
    item: T,
    until: Option<Instant>,
) -> Result<(), PutError<T>> {
    let mut wait = Wait::<_, _, Putting>::new(shared, item);
    match wait.block(until) {
        Some(Ok(())) => Ok(()),
        Some(Err(item)) => Err(PutError::new(item, NotPut::Closed)),
        None => match wait.take_back() {
            Some(item) => Err(PutError::new(item, NotPut::TimedOut)),
            None => Ok(()), // taken in the last moment
        },
    }
}

pub(crate) async fn get<T, P>(shared: P, place: &'static Location<'static>) -> Result<T, GetError>
where
    P: Deref<Target = Shared<Items<T>>>,
{
    match Trapped::<_, _, Getting>::new(shared, (), place).await? {
        Ok(Numbered(_, item)) => Ok(item),
        Err(()) => Err(GetError::Closed),
    }
}

pub(crate) fn get_blocking<T>(
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
