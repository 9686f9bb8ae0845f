//! Properties of each kind of queue and channel.

use std::cell::Cell;
use std::rc::Rc;

use futures::stream::StreamExt;
use pikake::sync::oneshot::TryRecvError;
use pikake::sync::{
    LifoQueue, NotPut, PriorityQueue, Queue, TryGetError, TryPutError, broadcast, mpsc, oneshot,
    watch,
};
use pikake::{sleep, spawn, timeout_after, yield_now};

use crate::support::{OnDrop, ms, run};

#[path = "broadcast_cases.rs"]
mod cases;

#[test]
fn queues_give_out_in_their_order() {
    fn drain<S: pikake::sync::Store>(queue: &pikake::sync::AnyQueue<S>) -> Vec<S::Item> {
        std::iter::from_fn(|| queue.try_get().ok()).collect()
    }

    let (fifo, lifo, smallest) =
        (Queue::unbounded(), LifoQueue::unbounded(), PriorityQueue::unbounded());
    for item in [(2, 'a'), (1, 'b'), (2, 'c'), (1, 'd')] {
        fifo.try_put(item).unwrap();
        lifo.try_put(item).unwrap();
        smallest.try_put(item).unwrap();
    }
    fifo.push_front((0, 'e'));
    assert_eq!(drain(&fifo), [(0, 'e'), (2, 'a'), (1, 'b'), (2, 'c'), (1, 'd')]);
    assert_eq!(drain(&lifo), [(1, 'd'), (2, 'c'), (1, 'b'), (2, 'a')]);
    assert_eq!(drain(&smallest), [(1, 'b'), (1, 'd'), (2, 'a'), (2, 'c')]);
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Equal;

#[test]
fn equal_priorities_are_first_in_first_out() {
    #[derive(Debug)]
    struct Job(u8, char);
    impl PartialEq for Job {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }
    impl Eq for Job {}
    impl PartialOrd for Job {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }
    impl Ord for Job {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            self.0.cmp(&other.0)
        }
    }

    let queue = PriorityQueue::unbounded();
    for name in 'a'..='z' {
        queue.try_put(Job(1, name)).unwrap();
    }
    let names: String = std::iter::from_fn(|| queue.try_get().ok().map(|job| job.1)).collect();
    assert_eq!(names, ('a'..='z').collect::<String>());
    assert!(Equal == Equal);
}

#[test]
fn rendezvous_put_returns_after_the_handover() {
    run(async {
        let queue = Rc::new(Queue::bounded(0));
        assert!(queue.is_full() && queue.is_empty());
        assert_eq!(queue.try_put(0), Err(TryPutError::Full(0)));
        let putter = spawn({
            let queue = queue.clone();
            async move { queue.put(1).await.unwrap() }
        });
        sleep(ms(5)).await.unwrap();
        assert!(!putter.is_finished() && queue.is_empty() && queue.putting() == 1);
        assert_eq!(queue.get().await, Ok(Some(1)));
        putter.await.unwrap();

        let getter = spawn({
            let queue = queue.clone();
            async move { queue.get().await.unwrap() }
        });
        yield_now().await.unwrap();
        queue.try_put(2).unwrap();
        assert_eq!(queue.try_put(3).unwrap_err().into_item(), 3);
        assert_eq!(getter.await.unwrap(), Some(2));
    });
}

#[test]
fn put_after_close_returns_the_item() {
    run(async {
        let queue = Queue::bounded(1);
        assert_eq!(queue.put_timeout(1, ms(5)).await, Ok(Ok(())));
        assert_eq!(queue.put_timeout(2, ms(5)).await, Ok(Err(2)));
        let around = timeout_after(ms(1), queue.put_timeout(3, ms(5))).await;
        assert_eq!(around.unwrap_err(), pikake::TimedOut);
        assert_eq!((queue.len(), queue.putting()), (1, 0));
    });
}

#[test]
fn pop_all_returns_all_items() {
    run(async {
        let queue = Rc::new(Queue::bounded(2));
        let getter = spawn({
            let queue = queue.clone();
            async move { queue.pop_all().await.unwrap() }
        });
        yield_now().await.unwrap();
        for item in 1..=5 {
            queue.put(item).await.unwrap();
        }
        assert_eq!(getter.await.unwrap(), [1, 2, 3], "what waits for room is there as well");
        let mut got = Vec::new();
        while let Ok(item) = queue.try_get() {
            got.push(item);
        }
        assert_eq!(got, [4, 5]);
    });
}

#[test]
fn closed_queue_returns_its_remaining_items() {
    run(async {
        let queue = Rc::new(Queue::bounded(2));
        let putters: Vec<_> = (0..3)
            .map(|item| {
                let queue = queue.clone();
                spawn(async move { queue.put(item).await })
            })
            .collect();
        yield_now().await.unwrap();
        queue.close();
        let mut outcomes = Vec::new();
        for putter in putters {
            outcomes.push(putter.await.unwrap().map_err(|error| (error.item, error.why)));
        }
        assert_eq!(outcomes, [Ok(()), Ok(()), Err((2, NotPut::Closed))]);
        assert_eq!((queue.get().await, queue.get().await), (Ok(Some(0)), Ok(Some(1))));
        assert_eq!(queue.get().await, Ok(None));

        let queue: Rc<Queue<u8>> = Rc::new(Queue::unbounded());
        let getter = spawn({
            let queue = queue.clone();
            async move { queue.get().await }
        });
        yield_now().await.unwrap();
        queue.close();
        assert_eq!(getter.await.unwrap(), Ok(None));
    });
}

#[test]
fn granted_items_are_delivered_after_close() {
    run(async {
        let queue = Rc::new(Queue::unbounded());
        let mut first = Box::pin(queue.get());
        assert!(futures::poll!(first.as_mut()).is_pending());
        queue.put(1).await.unwrap();
        queue.close();
        let second = spawn({
            let queue = queue.clone();
            async move { (queue.get().await, queue.get().await) }
        });
        yield_now().await.unwrap();
        drop(first);
        assert_eq!(second.await.unwrap(), (Ok(Some(1)), Ok(None)));
    });
}

#[test]
fn channel_ends_with_last_sender_or_receiver() {
    run(async {
        let (sender, mut receiver) = mpsc::channel(1);
        let other = sender.clone();
        drop(sender);
        assert_eq!(receiver.try_recv(), Err(TryGetError::Empty));
        other.try_send(1).unwrap();
        drop(other);
        assert_eq!(receiver.recv().await, Ok(Some(1)));
        assert_eq!(receiver.recv().await, Ok(None));

        let (sender, receiver) = mpsc::channel(1);
        let dropped = Rc::new(Cell::new(0));
        let item = || {
            OnDrop({
                let dropped = dropped.clone();
                move || dropped.set(dropped.get() + 1)
            })
        };
        sender.send(item()).await.ok().unwrap();
        let task = spawn({
            let (sender, item) = (sender.clone(), item());
            async move { sender.send(item).await.map_err(|error| error.why) }
        });
        yield_now().await.unwrap();
        drop(receiver);
        assert_eq!(dropped.get(), 1, "what was sent and not received");
        assert_eq!(task.await.unwrap(), Err(NotPut::Closed));
        assert_eq!(dropped.get(), 2);
        assert!(sender.is_closed());
    });
}

#[test]
fn receivers_are_streams() {
    run(async {
        let (sender, mut receiver) = mpsc::channel(1);
        let (to_all, mut each) = broadcast::channel(8);
        let (state, watched) = watch::channel(0);
        spawn(async move {
            for number in 1..=3 {
                sleep(ms(1)).await.unwrap();
                sender.send(number).await.unwrap();
                to_all.send(number).unwrap();
                state.send(number).unwrap();
            }
        })
        .detach();
        // An interruption is an item, and the stream goes on.
        let early = timeout_after(ms(0), async { receiver.next().await }).await;
        assert_eq!(early, Err(pikake::TimedOut));
        let all: Vec<_> = receiver.by_ref().map(Result::unwrap).collect().await;
        assert_eq!(all, [1, 2, 3]);
        assert!(receiver.next().await.is_none());
        let each: Vec<_> = each.by_ref().map(Result::unwrap).collect().await;
        assert_eq!(each, [Ok(1), Ok(2), Ok(3)]);
        let states: Vec<_> = watched.map(Result::unwrap).collect().await;
        assert_eq!(states, [3], "those in between were not looked at in time");
    });
}

#[test]
fn a_receiver_may_change_between_streaming_and_receiving() {
    run(async {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        assert!(futures::poll!(receiver.next()).is_pending());
        sender.send(1).unwrap(); // promised to the stream
        assert_eq!(receiver.try_recv(), Ok(1));
        assert!(futures::poll!(receiver.next()).is_pending());
        sender.send(2).unwrap();
        assert_eq!(receiver.recv().await, Ok(Some(2)));
    });
}

#[test]
fn oneshot_returns_the_item_or_none() {
    run(async {
        let (sender, mut receiver) = oneshot::channel();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert!(timeout_after(ms(1), &mut receiver).await.is_err());
        spawn(async move { sender.send(7).unwrap() }).detach();
        assert_eq!((&mut receiver).await, Ok(Ok(7)));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));

        let (sender, receiver) = oneshot::channel::<u8>();
        spawn(async move { drop(sender) }).detach();
        assert_eq!(receiver.await, Ok(Err(oneshot::RecvError)));

        let (sender, receiver) = oneshot::channel();
        drop(receiver);
        assert!(sender.is_closed());
        assert_eq!(sender.send(8), Err(8));
    });
}

#[test]
fn queue_stream_goes_on_after_an_interruption() {
    run(async {
        let queue = Rc::new(Queue::bounded(1));
        let putting = spawn({
            let queue = queue.clone();
            async move {
                for number in 0..3 {
                    sleep(ms(2)).await.unwrap();
                    queue.put(number).await.unwrap();
                }
                queue.close();
            }
        });
        let mut stream = queue.stream();
        let late = timeout_after(ms(1), stream.next()).await;
        assert!(late.is_err(), "{late:?}");
        assert_eq!(queue.getting(), 0, "who was interrupted is out of the line");
        let mut got = Vec::new();
        while let Some(item) = stream.next().await {
            got.push(item.unwrap());
        }
        assert_eq!(got, [0, 1, 2]);
        putting.await.unwrap();
    });
}
