//! Random operations on a queue, compared with a plain model after each operation.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use pikake::sync::{Queue, TryGetError, TryPutError};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::run;

#[derive(Clone, Debug)]
enum Op {
    /// Begins a put.
    Put,
    TryPut,
    /// Begins a get.
    Get,
    TryGet,
    /// Begins to get all.
    PopAll,
    PushFront,
    Close,
    /// Polls one of the waits.
    Poll(prop::sample::Index),
    /// Drops one of the waits.
    Drop(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => Just(Op::Put),
        3 => Just(Op::TryPut),
        5 => Just(Op::Get),
        3 => Just(Op::TryGet),
        2 => Just(Op::PopAll),
        1 => Just(Op::PushFront),
        1 => Just(Op::Close),
        6 => any::<prop::sample::Index>().prop_map(Op::Poll),
        5 => any::<prop::sample::Index>().prop_map(Op::Drop),
    ]
}

/// How many operations there are before one of them may close the queue.
fn program() -> impl Strategy<Value = Vec<Op>> {
    let open = op().prop_filter("it stays open", |op| !matches!(op, Op::Close));
    (vec(open, 0..40), vec(op(), 0..30)).prop_map(|(mut ops, more)| {
        ops.extend(more);
        ops
    })
}

/// An answer of an operation, or of a wait.
#[derive(Clone, PartialEq, Debug)]
enum Answer {
    Waits,
    Put,
    Refused(TryPutError<u32>),
    Got(Vec<u32>),
    NotGot(TryGetError),
}
use Answer::{Got, NotGot, Put, Refused, Waits};

/// Somebody who waits, in the model.
#[derive(Clone, Debug)]
enum Wait {
    /// For room for its item.
    Room(u32),
    /// Its item is in the queue.
    TakenIn,
    /// The queue was closed before there was room.
    Back(u32),
    /// For an item; for all, if so.
    Item { all: bool },
    /// An item is promised to it, or the news that there is none.
    Promised { all: bool },
}

/// The rules of a queue, without a thought of how they are kept.
struct Model {
    capacity: usize,
    is_closed: bool,
    items: VecDeque<u32>,
    /// In the order in which they came; `None`: it is over.
    waits: Vec<Option<Wait>>,
    next: u32,
}

impl Model {
    fn new(capacity: usize) -> Self {
        Self { capacity, is_closed: false, items: VecDeque::new(), waits: Vec::new(), next: 0 }
    }

    fn count(&self, is_one: impl Fn(&Wait) -> bool) -> usize {
        self.waits.iter().flatten().filter(|wait| is_one(wait)).count()
    }

    /// How many have an item that is in their hands; also those that do not know yet that they have
    /// to keep it.
    fn putting(&self) -> usize {
        self.count(|wait| matches!(wait, Wait::Room(_) | Wait::Back(_)))
    }

    fn getting(&self) -> usize {
        self.count(|wait| matches!(wait, Wait::Item { .. }))
    }

    fn promised(&self) -> usize {
        self.count(|wait| matches!(wait, Wait::Promised { .. }))
    }

    fn is_over(&self) -> bool {
        self.is_closed && self.items.is_empty()
    }

    fn has_room(&self) -> bool {
        match self.capacity {
            0 => self.getting() > 0,
            capacity => self.items.len() < capacity,
        }
    }

    /// Does what follows from a change: items are promised, room is filled, news told.
    fn settle(&mut self) {
        loop {
            let is_over = self.is_over();
            let has_spare = self.items.len() > self.promised();
            let getter =
                self.waits.iter_mut().flatten().find(|wait| matches!(wait, Wait::Item { .. }));
            if let Some(getter) = getter
                && (has_spare || is_over)
            {
                let Wait::Item { all } = *getter else { unreachable!() };
                *getter = Wait::Promised { all };
                continue;
            }
            let has_room = self.has_room();
            let putter = self.waits.iter_mut().flatten().find(|wait| matches!(wait, Wait::Room(_)));
            let Some(putter) = putter else { return };
            let Wait::Room(item) = *putter else { unreachable!() };
            if self.is_closed {
                *putter = Wait::Back(item);
            } else if has_room {
                *putter = Wait::TakenIn;
                self.items.push_back(item);
            } else {
                return;
            }
        }
    }

    fn item(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn try_put(&mut self, item: u32) -> Answer {
        if self.is_closed {
            return Refused(TryPutError::Closed(item));
        }
        if self.putting() > 0 || !self.has_room() {
            return Refused(TryPutError::Full(item));
        }
        self.items.push_back(item);
        self.settle();
        Put
    }

    fn try_get(&mut self) -> Answer {
        let promised = self.promised();
        if self.items.len() > promised {
            let item = self.items.remove(promised).expect("it is there");
            self.settle();
            return Got(vec![item]);
        }
        if self.is_over() {
            return NotGot(TryGetError::Closed);
        }
        // Without room, an item goes from hand to hand.
        let putter = self.waits.iter_mut().flatten().find(|wait| matches!(wait, Wait::Room(_)));
        if self.capacity == 0
            && let Some(putter) = putter
            && let Wait::Room(item) = *putter
        {
            *putter = Wait::TakenIn;
            return Got(vec![item]);
        }
        NotGot(TryGetError::Empty)
    }

    fn get(&mut self, all: bool) -> Answer {
        match self.try_get() {
            NotGot(TryGetError::Empty) => {
                self.waits.push(Some(Wait::Item { all }));
                self.settle();
                Waits
            }
            Got(items) => self.rest(items, all),
            closed => closed,
        }
    }

    fn rest(&mut self, mut items: Vec<u32>, all: bool) -> Answer {
        while all && let Got(more) = self.try_get() {
            items.extend(more);
        }
        Got(items)
    }

    fn put(&mut self, item: u32) -> Answer {
        match self.try_put(item) {
            Refused(TryPutError::Full(item)) => {
                self.waits.push(Some(Wait::Room(item)));
                Waits
            }
            answer => answer,
        }
    }

    fn poll(&mut self, number: usize) -> Answer {
        let answer = match self.waits[number].take().expect("it waits") {
            wait @ (Wait::Room(_) | Wait::Item { .. }) => {
                self.waits[number] = Some(wait);
                return Waits;
            }
            Wait::TakenIn => Put,
            Wait::Back(item) => Refused(TryPutError::Closed(item)),
            Wait::Promised { all } => match self.items.pop_front() {
                None => NotGot(TryGetError::Closed),
                Some(item) => {
                    self.settle();
                    self.rest(vec![item], all)
                }
            },
        };
        self.settle();
        answer
    }

    /// Whether a poll of the wait is due.
    fn is_ready(&self, number: usize) -> bool {
        let wait = self.waits[number].as_ref().expect("it waits");
        !matches!(wait, Wait::Room(_) | Wait::Item { .. })
    }
}

/// A wait on the real queue, and whether its waker was called.
struct Waiting<'a> {
    future: Pin<Box<dyn Future<Output = Answer> + 'a>>,
    is_woken: Arc<IsWoken>,
}

#[derive(Default)]
struct IsWoken(AtomicBool);

impl Wake for IsWoken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Waiting<'_> {
    fn poll(&mut self) -> Answer {
        let waker = Waker::from(self.is_woken.clone());
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => answer,
            Poll::Pending => Waits,
        }
    }

    fn was_woken(&self) -> bool {
        self.is_woken.0.load(Ordering::Relaxed)
    }
}

async fn put(queue: &Queue<u32>, item: u32) -> Answer {
    match queue.put(item).await {
        Ok(()) => Put,
        Err(closed) => Refused(TryPutError::Closed(closed.item)),
    }
}

async fn get(queue: &Queue<u32>, all: bool) -> Answer {
    let got = if all { queue.pop_all().await } else { queue.get().await.map(Vec::from_iter) };
    match got.unwrap() {
        items if items.is_empty() => NotGot(TryGetError::Closed),
        items => Got(items),
    }
}

fn try_get(queue: &Queue<u32>) -> Answer {
    queue.try_get().map_or_else(NotGot, |item| Got(vec![item]))
}

fn try_put(queue: &Queue<u32>, item: u32) -> Answer {
    queue.try_put(item).map_or_else(Refused, |()| Put)
}

/// The waits of the real queue, with the numbers that they have in the model.
#[derive(Default)]
struct WaitsOf<'a>(Vec<Option<Waiting<'a>>>);

impl<'a> WaitsOf<'a> {
    /// Begins a wait, which is kept if it is not over at once.
    fn begin(&mut self, future: impl Future<Output = Answer> + 'a) -> Answer {
        let mut waiting = Waiting { future: Box::pin(future), is_woken: Arc::default() };
        let answer = waiting.poll();
        if answer == Waits {
            self.0.push(Some(waiting));
        }
        answer
    }

    fn pick(&self, index: prop::sample::Index) -> Option<usize> {
        let waiting: Vec<_> =
            (0..self.0.len()).filter(|number| self.0[*number].is_some()).collect();
        (!waiting.is_empty()).then(|| waiting[index.index(waiting.len())])
    }
}

fn compare<'a>(queue: &'a Queue<u32>, capacity: usize, program: Vec<Op>) {
    let mut model = Model::new(capacity);
    let mut waits = WaitsOf::<'a>::default();
    for op in program {
        let (seen, expected) = match op {
            Op::Put => {
                let item = model.item();
                (waits.begin(put(queue, item)), model.put(item))
            }
            Op::TryPut => {
                let item = model.item();
                (try_put(queue, item), model.try_put(item))
            }
            Op::Get => (waits.begin(get(queue, false)), model.get(false)),
            Op::PopAll => (waits.begin(get(queue, true)), model.get(true)),
            Op::TryGet => (try_get(queue), model.try_get()),
            // Those that were told that there is nothing more need not get what comes nevertheless.
            Op::PushFront if model.is_over() && model.promised() > 0 => continue,
            Op::PushFront => {
                let item = model.item();
                queue.push_front(item);
                model.items.push_front(item);
                model.settle();
                (Put, Put)
            }
            Op::Close => {
                queue.close();
                model.is_closed = true;
                model.settle();
                (Put, Put)
            }
            Op::Poll(index) => {
                let Some(number) = waits.pick(index) else { continue };
                let answer = waits.0[number].as_mut().expect("it waits").poll();
                if answer != Waits {
                    waits.0[number] = None;
                }
                (answer, model.poll(number))
            }
            Op::Drop(index) => {
                let Some(number) = waits.pick(index) else { continue };
                waits.0[number] = None;
                model.waits[number] = None;
                model.settle();
                (Put, Put)
            }
        };
        assert_eq!(seen, expected, "{op:?}");
        let is_full = model.putting() > 0 || !model.has_room();
        assert_eq!(
            (queue.len(), queue.getting(), queue.putting(), queue.is_full(), queue.is_closed()),
            (model.items.len(), model.getting(), model.putting(), is_full, model.is_closed),
            "after {op:?}"
        );
        for (number, waiting) in waits.0.iter().enumerate() {
            if let Some(waiting) = waiting {
                assert_eq!(waiting.was_woken(), model.is_ready(number), "{number} after {op:?}");
            }
        }
    }
    waits.0.clear();
    model.waits.clear();
    model.settle();
    while let Got(items) = model.try_get() {
        assert_eq!(try_get(queue), Got(items));
    }
    assert_eq!((try_get(queue), queue.len()), (model.try_get(), 0));
}

/// The items of completed puts and gets.
#[derive(Default)]
struct Totals {
    put: Vec<u32>,
    refused: Vec<u32>,
    got: Vec<u32>,
}

impl Totals {
    /// Notes the answer of an operation on an item, if it was on one.
    fn note(&mut self, item: Option<u32>, answer: Answer) {
        match answer {
            Put => self.put.extend(item),
            Refused(back) => self.refused.push(back.into_item()),
            Got(items) => self.got.extend(items),
            Waits | NotGot(_) => {}
        }
    }
}

/// Runs a program, drops those that still wait, and empties the queue.
fn play(queue: &Queue<u32>, program: Vec<Op>) -> Totals {
    let (mut totals, mut waits, mut items) = (Totals::default(), WaitsOf::default(), Vec::new());
    for (op, item) in program.into_iter().zip(1..) {
        match op {
            Op::Put | Op::Get | Op::PopAll => {
                let (answer, item) = match op {
                    Op::Put => (waits.begin(put(queue, item)), Some(item)),
                    op => (waits.begin(get(queue, matches!(op, Op::PopAll))), None),
                };
                if answer == Waits {
                    items.push(item);
                }
                totals.note(item, answer);
            }
            Op::TryPut => totals.note(Some(item), try_put(queue, item)),
            Op::TryGet => totals.note(None, try_get(queue)),
            Op::PushFront => {
                queue.push_front(item);
                totals.put.push(item);
            }
            Op::Close => queue.close(),
            Op::Poll(index) => {
                let Some(number) = waits.pick(index) else { continue };
                let answer = waits.0[number].as_mut().expect("it waits").poll();
                if answer != Waits {
                    waits.0[number] = None;
                }
                totals.note(items[number], answer);
            }
            Op::Drop(index) => {
                let Some(number) = waits.pick(index) else { continue };
                waits.0[number] = None;
            }
        }
    }
    waits.0.clear();
    while let Got(items) = try_get(queue) {
        totals.got.extend(items);
    }
    assert_eq!((queue.len(), queue.getting(), queue.putting()), (0, 0, 0));
    totals
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }
}

fn capacity() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![0, 1, 3, usize::MAX])
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn queue_behaves_as_its_model(capacity in capacity(), program in program()) {
        run(async { compare(&Queue::bounded(capacity), capacity, program) });
    }

    /// Also where the model has no opinion: what is put in front of a queue that is over.
    #[test]
    fn a_queue_gives_each_item_once(capacity in capacity(), program in program()) {
        let Totals { put, refused, mut got } =
            run(async { play(&Queue::bounded(capacity), program) });
        got.sort_unstable();
        assert!(got.is_sorted_by(|one, next| one < next), "twice: {got:?}");
        for item in put {
            assert!(got.binary_search(&item).is_ok(), "{item} was put, and is lost: {got:?}");
        }
        for item in refused {
            assert!(got.binary_search(&item).is_err(), "{item} came back, and was got: {got:?}");
        }
    }
}
