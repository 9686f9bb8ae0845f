//! `shared::{broadcast, watch, Notify}`: the cases of their namesakes in one kernel, and what
//! threads and several kernels add.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use futures::stream::StreamExt;
use pikake::sync::shared::{Notify, broadcast, watch};
use pikake::{Kernel, sleep, spawn, timeout_after, yield_now};

use crate::support::{ms, run, within};

#[path = "broadcast_cases.rs"]
mod channels;
#[path = "notify_cases.rs"]
mod notify;

fn assert_shared<T: Send + Sync>() {}

#[test]
fn shared_channels_are_send_and_sync() {
    assert_shared::<Notify>();
    assert_shared::<broadcast::Sender<std::cell::Cell<u8>>>();
    assert_shared::<broadcast::Receiver<std::cell::Cell<u8>>>();
    assert_shared::<watch::Sender<std::cell::Cell<u8>>>();
    assert_shared::<watch::Receiver<std::cell::Cell<u8>>>();
}

/// The tasks of two kernels, and a thread, receive what another thread sends.
#[test]
fn two_kernels_and_a_thread_receive_every_item() {
    const ITEMS: usize = 500;
    within(|| {
        let (sender, mut receiver) = broadcast::channel(ITEMS);
        let kernels: Vec<_> = (0..2)
            .map(|_| {
                let receiver = receiver.resubscribe();
                thread::spawn(move || {
                    pikake::run(async move {
                        let tasks: Vec<_> = (0..3)
                            .map(|_| {
                                let mut receiver = receiver.resubscribe();
                                spawn(async move {
                                    let items = receiver.stream().map(|item| item.unwrap());
                                    let items = items.map(Result::unwrap);
                                    items.collect::<Vec<_>>().await
                                })
                            })
                            .collect();
                        drop(receiver);
                        for task in tasks {
                            assert_eq!(task.await.unwrap(), (0..ITEMS).collect::<Vec<_>>());
                        }
                    });
                })
            })
            .collect();
        let sending = thread::spawn(move || {
            for number in 0..ITEMS {
                sender.send(number).unwrap();
                thread::yield_now();
            }
            sender
        });
        for number in 0..ITEMS {
            assert_eq!(receiver.blocking_recv(), Ok(number));
        }
        let sender = sending.join().unwrap();
        let error = receiver.blocking_recv_timeout(ms(1));
        assert_eq!(error, Err(broadcast::TryRecvError::Empty));
        drop(sender);
        assert_eq!(receiver.blocking_recv(), Err(broadcast::RecvError::Closed));
        kernels.into_iter().for_each(|kernel| kernel.join().unwrap());
    });
}

#[test]
fn two_kernels_and_a_thread_see_the_last_change() {
    within(|| {
        let (sender, mut receiver) = watch::channel(0);
        let kernels: Vec<_> = (0..2)
            .map(|_| {
                let mut receiver = receiver.clone();
                thread::spawn(move || {
                    pikake::run(async {
                        let mut seen = Vec::new();
                        while receiver.changed().await.is_ok() {
                            seen.push(*receiver.borrow());
                        }
                        let mut states = receiver.stream();
                        assert!(states.next().await.is_none());
                        seen
                    })
                })
            })
            .collect();
        let sending = thread::spawn(move || {
            for number in 1..=500 {
                assert_eq!(sender.send_replace(number), number - 1);
                thread::yield_now();
            }
            assert_eq!(*sender.borrow(), 500);
        });
        while receiver.blocking_changed().is_ok() {}
        assert_eq!(*receiver.borrow(), 500);
        sending.join().unwrap();
        let closed = Err(watch::RecvError::Closed);
        assert_eq!(receiver.blocking_changed_timeout(ms(1)), Some(closed));
        for kernel in kernels {
            let seen = kernel.join().unwrap();
            assert!(seen.is_sorted() && seen.last() == Some(&500), "{seen:?}");
        }
    });
}

#[test]
fn two_kernels_share_the_notifications() {
    const WORK: usize = 300;
    within(|| {
        let shared = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0), Notify::new()));
        assert!(!shared.2.blocking_notified_timeout(ms(1)));
        let kernels: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    pikake::run(async {
                        let (work, done, notify) = &*shared;
                        while done.load(Ordering::SeqCst) < WORK {
                            let less = |left: usize| left.checked_sub(1);
                            match work.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
                                Ok(_) => {
                                    if done.fetch_add(1, Ordering::SeqCst) + 1 == WORK {
                                        notify.notify_waiters();
                                        notify.notify_one();
                                    }
                                    yield_now().await.unwrap();
                                }
                                Err(_) => notify.notified().await.unwrap(),
                            }
                        }
                        notify.notify_one();
                    })
                })
            })
            .collect();
        for _ in 0..WORK {
            shared.0.fetch_add(1, Ordering::SeqCst);
            shared.2.notify_one();
            thread::yield_now();
        }
        kernels.into_iter().for_each(|kernel| kernel.join().unwrap());
        shared.2.blocking_notified();
        assert_eq!(shared.2.waiting(), 0);
    });
}

/// A task that was notified and has not run gets no second wake.
#[test]
fn a_wait_costs_one_message_however_much_is_sent() {
    within(|| {
        let kernel = Kernel::new().unwrap();
        let (to_all, mut item) = broadcast::channel(8);
        let (state, mut watched) = watch::channel(0);
        kernel.run(async {
            let tasks = (
                spawn(async move { item.recv().await }),
                spawn(async move { watched.changed().await }),
            );
            sleep(ms(1)).await.unwrap();
            let messages = || pikake::traps::inspect::kernel_figures().messages;
            let before = messages();
            let sending = thread::spawn(move || {
                for number in 0..5 {
                    to_all.send(number).unwrap();
                    state.send(number).unwrap();
                }
                (to_all, state)
            });
            let _senders = sending.join().unwrap();
            assert_eq!(tasks.0.await.unwrap(), Ok(Ok(0)));
            assert_eq!(tasks.1.await.unwrap(), Ok(()));
            assert_eq!(messages() - before, 2);
        });
    });
}

#[test]
fn waits_outlive_their_kernel() {
    within(|| {
        let notify = Notify::new();
        let (sender, mut receiver) = broadcast::channel(1);
        let mut other = receiver.resubscribe();
        let mut waits = (Box::pin(notify.notified()), Box::pin(receiver.recv()));
        run(async {
            let both = async { drop(futures::join!(&mut waits.0, &mut waits.1)) };
            assert!(timeout_after(ms(1), futures::future::pending::<()>()).await.is_err());
            let _ = futures::poll!(Box::pin(both));
        });
        sender.send(1).unwrap();
        notify.notify_one();
        drop(waits);
        assert_eq!((receiver.try_recv(), other.try_recv()), (Ok(1), Ok(1)));
        assert!(notify.blocking_notified_timeout(ms(1)), "the notification is kept");
    });
}

#[test]
fn debug_shows_waiters_and_the_value() {
    assert_eq!(format!("{:?}", Notify::new()), "Notify { is_notified: false, waiting: 0 }");
    let (sender, receiver) = watch::channel(7);
    let shown = "{ value: 7, changes: 0, waiting: 0, sender_gone: false }";
    assert_eq!(format!("{sender:?}, {receiver:?}"), format!("Sender {shown}, Receiver {shown}"));
    let borrow = sender.borrow();
    assert!(format!("{receiver:?}").contains("value: <in use>"));
    drop(borrow);
    assert_eq!((sender.receiver_count(), sender.send(8)), (1, Ok(())));
    drop(receiver);
    assert_eq!((sender.receiver_count(), sender.send(9)), (0, Err(watch::SendError(9))));
    let mut late = sender.subscribe();
    sender.send(10).unwrap();
    assert_eq!((*late.borrow(), late.has_changed()), (10, true));
    assert_eq!(*late.borrow_and_update(), 10);
    assert!(!late.has_changed());
}
