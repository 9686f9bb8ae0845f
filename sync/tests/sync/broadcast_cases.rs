//! Channels for all receivers, `broadcast` and `watch`, of one kernel or of several.

use std::cell::Cell;
use std::rc::Rc;

use futures::poll;
use pikake::{TimedOut, spawn, timeout_after, yield_now};

use super::broadcast::{self, RecvError};
use super::watch;
use crate::support::{ms, run};

#[test]
fn slow_receiver_learns_how_much_it_missed() {
    run(async {
        let (sender, mut slow) = broadcast::channel(2);
        let mut fast = sender.subscribe();
        for number in 1..=4 {
            assert_eq!(sender.send(number), Ok(2));
            assert_eq!(fast.recv().await, Ok(Ok(number)));
        }
        let mut same = slow.resubscribe();
        for receiver in [&mut slow, &mut same] {
            assert_eq!(receiver.recv().await, Ok(Err(RecvError::Lagged(2))));
            assert_eq!(receiver.recv().await, Ok(Ok(3)));
        }
        drop(fast);
        assert!(format!("{sender:?}").contains("receivers: 2, kept: 1"), "{sender:?}");
        drop((slow, same));
        assert!(format!("{sender:?}").contains("kept: 0"), "{sender:?}");
        assert_eq!(sender.send(5), Err(broadcast::SendError(5)));
    });
}

#[test]
fn watch_reports_the_last_change_and_the_end() {
    run(async {
        let (sender, mut receiver) = watch::channel(1);
        assert!(!receiver.has_changed());
        assert_eq!(sender.send_replace(2), 1);
        sender.send_modify(|value| *value += 1);
        assert_eq!(receiver.changed().await, Ok(()));
        assert_eq!((*receiver.borrow(), receiver.has_changed()), (3, false));
        let late = spawn({
            let mut receiver = sender.subscribe();
            async move { (receiver.changed().await, receiver.changed().await) }
        });
        yield_now().await.unwrap();
        sender.send(4).unwrap();
        yield_now().await.unwrap();
        drop(sender);
        assert_eq!(late.await.unwrap(), (Ok(()), Err(watch::RecvError::Closed)));
        assert_eq!(receiver.changed().await, Ok(()));
        assert_eq!(receiver.changed().await, Err(watch::RecvError::Closed));
    });
}

#[test]
fn watch_without_receivers_refuses_a_value() {
    run(async {
        let (sender, receiver) = watch::channel(1);
        let other = receiver.clone();
        drop(receiver);
        assert_eq!((sender.receiver_count(), sender.send(2)), (1, Ok(())));
        drop(other);
        assert_eq!((sender.receiver_count(), sender.send(3)), (0, Err(watch::SendError(3))));
        assert_eq!(*sender.borrow(), 2);
        let mut late = sender.subscribe();
        sender.send(4).unwrap();
        assert_eq!((*late.borrow(), late.has_changed()), (4, true));
        assert_eq!(*late.borrow_and_update(), 4);
        assert!(!late.has_changed());
    });
}

#[test]
fn receivers_get_items_sent_after_their_creation() {
    run(async {
        let (sender, mut early) = broadcast::channel(4);
        sender.send(1).unwrap();
        let mut late = sender.clone().subscribe();
        assert_eq!((sender.receiver_count(), sender.send(2)), (2, Ok(2)));
        assert_eq!((early.try_recv(), early.try_recv()), (Ok(1), Ok(2)));
        assert_eq!(
            (late.recv().await, late.try_recv()),
            (Ok(Ok(2)), Err(broadcast::TryRecvError::Empty))
        );
        sender.send(3).unwrap();
        drop(sender);
        let ends = (late.recv().await, late.recv().await);
        assert_eq!(ends, (Ok(Ok(3)), Ok(Err(RecvError::Closed))));
        drop(late);
        assert_eq!(
            (early.try_recv(), early.try_recv()),
            (Ok(3), Err(broadcast::TryRecvError::Closed))
        );
    });
}

/// Items that nobody waits for any more are dropped with their last receiver, wherever it is.
#[test]
fn every_item_is_dropped_once() {
    #[derive(Clone)]
    struct Counted(Rc<Cell<usize>>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    run(async {
        let dropped = Rc::new(Cell::new(0));
        let (sender, first) = broadcast::channel(2);
        let mut second = sender.subscribe();
        for _ in 0..3 {
            sender.send(Counted(dropped.clone())).unwrap();
        }
        assert_eq!(dropped.take(), 1, "the channel keeps two");
        assert!(matches!(second.try_recv(), Err(broadcast::TryRecvError::Lagged(1))));
        assert!(second.try_recv().is_ok());
        assert_eq!(dropped.take(), 1, "a copy");
        drop(first);
        assert_eq!(dropped.take(), 1, "the item that only the first had not received");
        let mut third = second.resubscribe();
        assert!(second.recv().await.unwrap().is_ok());
        assert_eq!(dropped.take(), 1, "a copy");
        assert!(poll!(Box::pin(second.recv())).is_pending());
        drop(sender);
        assert!(third.recv().await.unwrap().is_ok());
        assert_eq!(dropped.take(), 1, "the item itself");
        assert!(second.recv().await.unwrap().is_err() && third.try_recv().is_err());
    });
}

#[test]
fn an_interrupted_receiver_misses_nothing() {
    run(async {
        let (sender, mut receiver) = broadcast::channel(4);
        let (state, mut watched) = watch::channel(0);
        assert_eq!(timeout_after(ms(1), receiver.recv()).await, Err(TimedOut));
        assert_eq!(timeout_after(ms(1), watched.changed()).await, Err(TimedOut));
        // A wait that was notified and is dropped has received nothing.
        let mut wait = Box::pin(receiver.recv());
        let mut change = Box::pin(watched.changed());
        assert!(poll!(&mut wait).is_pending() && poll!(&mut change).is_pending());
        sender.send(1).unwrap();
        state.send(1).unwrap();
        drop((wait, change));
        assert_eq!(receiver.recv().await, Ok(Ok(1)));
        assert_eq!((watched.changed().await, *watched.borrow()), (Ok(()), 1));
        assert!(!watched.has_changed());
    });
}

/// Code that goes on after missed items, as ported from tokio, ends by an interruption nonetheless.
#[test]
fn a_receiver_that_lags_is_cancelled() {
    run(async {
        let (sender, mut receiver) = broadcast::channel(1);
        let task = spawn(async move {
            let mut seen = Vec::new();
            loop {
                match receiver.recv().await.map_err(|why| (seen.clone(), why.is_cancel()))? {
                    Ok(number) => seen.push(number),
                    Err(RecvError::Lagged(missed)) => seen.push(missed * 100),
                    Err(RecvError::Closed) => return Ok::<(), (Vec<u64>, bool)>(()),
                }
            }
        });
        for number in 1..=3 {
            sender.send(number).unwrap();
        }
        yield_now().await.unwrap();
        task.request_cancel("enough");
        assert_eq!(task.await.unwrap(), Err((vec![200, 3], true)));
    });
}

#[test]
fn a_change_wins_over_an_interruption() {
    run(async {
        let (sender, mut receiver) = broadcast::channel(4);
        let (state, mut watched) = watch::channel(0);
        let item = spawn(async move { receiver.recv().await });
        let change = spawn(async move { watched.changed().await });
        yield_now().await.unwrap();
        sender.send(1).unwrap();
        state.send(1).unwrap();
        item.request_cancel("enough");
        change.request_cancel("enough");
        assert_eq!((item.await.unwrap(), change.await.unwrap()), (Ok(Ok(1)), Ok(())));
    });
}

/// A receiver that has been notified is not notified again, and sees the last of the changes.
#[test]
fn many_changes_before_a_receiver_runs_are_one() {
    run(async {
        let (state, watched) = watch::channel(0);
        let copies: Vec<_> = (0..3)
            .map(|_| {
                let mut watched = watched.clone();
                spawn(async move {
                    watched.changed().await.unwrap();
                    (*watched.borrow(), watched.has_changed())
                })
            })
            .collect();
        yield_now().await.unwrap();
        for number in 1..=3 {
            state.send(number).unwrap();
        }
        for copy in copies {
            assert_eq!(copy.await.unwrap(), (3, false));
        }
    });
}
