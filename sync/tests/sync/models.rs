//! Random programs against simple models: no permit and no item is ever lost or made.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use futures::future::join;
use pikake::sync::{Queue, RwLock, Semaphore, TryGetError, TryPutError};
use pikake::{ignore_after, sleep, spawn};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{ms, run};

/// The plan of one task: its start, its request, its timeout, its cancel or drop, and how long it
/// keeps the permits.
#[derive(Clone, Debug)]
struct Asker {
    begins: u64,
    wants: usize,
    waits: Option<u64>,
    ended: Option<(u64, bool)>,
    keeps: u64,
}

fn asker(most: usize) -> impl Strategy<Value = Asker> {
    let waits = proptest::option::weighted(0.3, 0..12u64);
    let ended = proptest::option::weighted(0.3, (0..30u64, any::<bool>()));
    (0..20u64, 1..=most, waits, ended, 0..6u64).prop_map(|(begins, wants, waits, ended, keeps)| {
        Asker { begins, wants, waits, ended, keeps }
    })
}

/// Spawns the askers, ends those that are to be ended, and waits until all is over.
async fn play<F: Future<Output = ()> + 'static>(
    askers: Vec<Asker>,
    ask: impl Fn(usize, Asker) -> F,
) {
    let mut all = Vec::new();
    for (number, asker) in askers.into_iter().enumerate() {
        let task = spawn(ask(number, asker.clone()));
        let end = spawn({
            let task = task.task_ref().clone();
            async move {
                let Some((when, abort)) = asker.ended else { return };
                sleep(ms(when)).await.unwrap();
                let why = pikake::Interrupted::cancelled("enough");
                if abort { task.request_abort(why) } else { task.request_cancel(why) }
            }
        });
        all.push((task, end));
    }
    for (task, end) in all {
        let _ = task.await;
        end.await.unwrap();
    }
}

const PERMITS: usize = 5;

proptest! {
    #[test]
    fn permits_are_neither_lost_nor_made(askers in vec(asker(PERMITS), 1..25)) {
        run(async {
            let semaphore = Rc::new(Semaphore::bounded(PERMITS));
            let out = Rc::new(Cell::new(0));
            play(askers, |_, asker| {
                let (semaphore, out) = (semaphore.clone(), out.clone());
                async move {
                    if sleep(ms(asker.begins)).await.is_err() {
                        return;
                    }
                    let limit = asker.waits.map_or(std::time::Duration::MAX, ms);
                    let Some(Ok(permit)) = ignore_after(limit, semaphore.acquire_many(asker.wants)).await
                    else {
                        return;
                    };
                    struct Out(Rc<Cell<usize>>, usize);
                    impl Drop for Out {
                        fn drop(&mut self) {
                            self.0.set(self.0.get() - self.1);
                        }
                    }
                    out.set(out.get() + asker.wants);
                    assert!(out.get() <= PERMITS, "{} permits are out", out.get());
                    let _out = Out(out.clone(), asker.wants);
                    let _ = sleep(ms(asker.keeps)).await;
                    drop(permit);
                }
            })
            .await;
            assert_eq!((semaphore.available_permits(), semaphore.waiting(), out.get()), (PERMITS, 0, 0));
        });
    }

    #[test]
    fn many_read_or_one_writes(askers in vec(asker(3), 1..25)) {
        run(async {
            let lock = Rc::new(RwLock::new(0));
            let (reading, writing) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            struct In(Rc<Cell<i32>>);
            impl In {
                fn new(count: &Rc<Cell<i32>>) -> Self {
                    count.set(count.get() + 1);
                    Self(count.clone())
                }
            }
            impl Drop for In {
                fn drop(&mut self) {
                    self.0.set(self.0.get() - 1);
                }
            }
            play(askers, |_, asker| {
                let (lock, reading, writing) = (lock.clone(), reading.clone(), writing.clone());
                async move {
                    if sleep(ms(asker.begins)).await.is_err() {
                        return;
                    }
                    let limit = asker.waits.map_or(std::time::Duration::MAX, ms);
                    if asker.wants == 1 {
                        if let Some(Ok(mut value)) = ignore_after(limit, lock.write()).await {
                            let _in = In::new(&writing);
                            assert_eq!((reading.get(), writing.get()), (0, 1));
                            *value += 1;
                            let _ = sleep(ms(asker.keeps)).await;
                        }
                    } else if let Some(Ok(value)) = ignore_after(limit, lock.read()).await {
                        let _in = In::new(&reading);
                        assert_eq!(writing.get(), 0);
                        let before = *value;
                        let _ = sleep(ms(asker.keeps)).await;
                        assert_eq!(before, *value);
                    }
                }
            })
            .await;
            assert_eq!((lock.reading(), lock.is_writing(), lock.waiting()), (0, false, 0));
            assert!(lock.try_write().is_ok());
        });
    }

    #[test]
    fn items_come_once_and_in_order(
        capacity in 0..4usize,
        askers in vec(asker(3), 1..30),
    ) {
        run(async {
            let queue = Rc::new(Queue::bounded(capacity));
            let put = Rc::new(RefCell::new(Vec::new()));
            let back = Rc::new(RefCell::new(Vec::new()));
            let got = Rc::new(RefCell::new(Vec::new()));
            // A putter that is dropped drops its item, unless it was taken in already.
            struct Item(usize, Rc<RefCell<Vec<usize>>>);
            impl Drop for Item {
                fn drop(&mut self) {
                    self.1.borrow_mut().push(self.0);
                }
            }
            let dropped = Rc::new(RefCell::new(Vec::new()));
            let playing = play(askers, |number, asker| {
                let (queue, put, back) = (queue.clone(), put.clone(), back.clone());
                let (got, dropped) = (got.clone(), dropped.clone());
                async move {
                    if sleep(ms(asker.begins)).await.is_err() {
                        return;
                    }
                    let limit = asker.waits.map_or(std::time::Duration::MAX, ms);
                    if asker.wants == 1 {
                        let item = Item(number, dropped);
                        match ignore_after(limit, queue.put(item)).await {
                            Some(Ok(())) => put.borrow_mut().push(number),
                            Some(Err(error)) => back.borrow_mut().push(error.item.0),
                            None => {}
                        }
                    } else if let Some(Ok(Some(item))) = ignore_after(limit, queue.get()).await {
                        got.borrow_mut().push(item.0);
                    } else if let Ok(item) = queue.try_get() {
                        got.borrow_mut().push(item.0);
                    }
                }
            });
            // Every wait ends, since the queue is closed in the end.
            let closing = async {
                sleep(ms(100)).await.unwrap();
                queue.close();
            };
            join(playing, closing).await;
            assert_eq!((queue.getting(), queue.putting()), (0, 0));
            while let Ok(item) = queue.try_get() {
                got.borrow_mut().push(item.0);
            }
            let (put, got, back) = (put.take(), got.take(), back.take());
            let mut once = got.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), got.len(), "nothing comes twice: {got:?}");
            for number in &put {
                assert!(got.contains(number), "{number} was put and is lost: {got:?}");
                assert!(!back.contains(number), "{number} was put and came back");
            }
            for number in &back {
                assert!(!got.contains(number), "{number} came back and was got");
            }
        });
    }

    #[test]
    fn queue_without_waiters_is_a_deque(
        capacity in 1..5usize,
        operations in vec((0..4u8, any::<u16>()), 0..60),
    ) {
        let queue = Queue::bounded(capacity);
        let mut model = VecDeque::new();
        for (operation, item) in operations {
            match operation {
                0 | 1 => match queue.try_put(item) {
                    Ok(()) => {
                        assert!(model.len() < capacity);
                        model.push_back(item);
                    }
                    Err(error) => {
                        assert_eq!(error, TryPutError::Full(item));
                        assert!(model.len() >= capacity);
                    }
                },
                2 => assert_eq!(queue.try_get(), model.pop_front().ok_or(TryGetError::Empty)),
                _ => {
                    queue.push_front(item);
                    model.push_front(item);
                }
            }
            assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
        }
    }
}
