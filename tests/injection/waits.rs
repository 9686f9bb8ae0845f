//! Traps, one by one and combined.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use futures::future::{Either, select};
use futures::stream::{FuturesUnordered, StreamExt};
use pikake::task::run_in_thread;
use pikake::testing::{Injector, Kind, interrupt_everywhere};
use pikake::traps::{
    Attempt, OpenSocket, Opened, WaitQueue, attempt, lookup, open_socket, park, read_wait, take,
    write_wait,
};
use pikake::{
    Interrupted, check_interrupt, future_wait, ignore_after, shield, sleep, sleep_until, spawn,
    timed, timeout_after, yield_now,
};

use crate::support::insist::{
    A_FEW, FOREVER, Insistent, a_few_steps, a_moment, insist_inside, insist_on_sockets,
    insist_outside, ms,
};

#[test]
fn sleeps_and_yields() {
    insist_inside(6, async |insistent| {
        let mut done = 0;
        insistent.on(|| sleep(ms(10))).await;
        done += 1;
        insistent.on(|| sleep(Duration::ZERO)).await;
        done += 1;
        let deadline = pikake::time::deadline_after(ms(10));
        insistent.on(|| sleep_until(deadline)).await;
        done += 1;
        for _ in 0..A_FEW {
            insistent.on(yield_now).await;
            done += 1;
        }
        done
    });
}

#[test]
fn a_wait_queue_wakes_each_waiter_once() {
    insist_inside((A_FEW, 0), async |insistent| {
        let permits = Rc::new((Cell::new(0), WaitQueue::new()));
        let mut giver = spawn({
            let permits = permits.clone();
            async move {
                for _ in 0..A_FEW {
                    a_few_steps().await;
                    permits.0.set(permits.0.get() + 1);
                    permits.1.wake(1);
                }
            }
        });
        let mut taken = 0;
        while taken < A_FEW {
            while permits.0.get() == 0 {
                insistent.on(|| park(&permits.1)).await;
            }
            permits.0.set(permits.0.get() - 1);
            taken += 1;
        }
        insistent.on(async || (&mut giver).await).await;
        (taken, permits.1.len())
    });
}

#[test]
fn interrupted_waiter_passes_its_wake_on() {
    // Two wait for one permit each. Whoever is interrupted takes no permit with it.
    let program = || async {
        let permits = Rc::new((Cell::new(0), WaitQueue::new()));
        let other = spawn({
            let permits = permits.clone();
            async move {
                yield_now().await.unwrap(); // second in the queue
                while permits.0.get() == 0 {
                    park(&permits.1).await.unwrap();
                }
                permits.0.set(permits.0.get() - 1);
            }
        });
        let giver = spawn({
            let permits = permits.clone();
            async move {
                a_few_steps().await;
                permits.0.set(1);
                permits.1.wake(1);
            }
        });
        let mut got = false;
        while permits.0.get() == 0 {
            if park(&permits.1).await.is_err() {
                break;
            }
        }
        if permits.0.get() > 0 {
            permits.0.set(0);
            got = true;
        }
        shield(giver).await.unwrap();
        let both = ignore_after(ms(10), shield(sleep(ms(1)))).await;
        assert_eq!(both, Some(Ok(())));
        (got, other.is_finished())
    };
    interrupt_everywhere(program, |run| {
        let (got, other) = run.output.unwrap();
        assert!(got ^ other, "one permit is taken by one: {got} {other}");
    });
}

#[test]
fn taking_permits_of_a_queue() {
    insist_inside((A_FEW, 0, 0, 0), async |insistent| {
        let queue = Rc::new(WaitQueue::with_permits(1));
        let mut giver = spawn({
            let queue = queue.clone();
            async move {
                for _ in 1..2 * A_FEW {
                    a_few_steps().await;
                    queue.give(1);
                }
            }
        });
        let mut taken = 0;
        while taken < A_FEW {
            insistent.on(|| take(&queue, 2)).await;
            taken += 1;
        }
        insistent.on(async || (&mut giver).await).await;
        (taken, queue.free(), queue.granted(), queue.len())
    });
}

#[test]
fn interrupted_waiter_passes_its_permits_on() {
    // Two permits come in one step, for a wait for both; another one waits for one of them.
    let program = || async {
        let queue = Rc::new(WaitQueue::new());
        let other = spawn({
            let queue = queue.clone();
            async move {
                yield_now().await.unwrap(); // second in the queue
                take(&queue, 1).await.unwrap();
            }
        });
        let giver = spawn({
            let queue = queue.clone();
            async move {
                a_few_steps().await;
                queue.give(2);
            }
        });
        let got = take(&queue, 2).await.is_ok();
        shield(giver).await.unwrap();
        shield(sleep(ms(1))).await.unwrap();
        (got, other.is_finished(), queue.free(), queue.granted(), queue.len())
    };
    interrupt_everywhere(program, |run| {
        let left = run.output.unwrap();
        let expected = [(true, false, 0, 0, 1), (false, true, 1, 0, 0)];
        assert!(expected.contains(&left), "{left:?}");
    });
}

#[test]
fn a_dropped_take_hands_its_permits_on() {
    // The scope is given up on with a wait inside that may have been granted its permits.
    let program = || async {
        let queue = Rc::new(WaitQueue::new());
        let other = spawn({
            let queue = queue.clone();
            async move {
                yield_now().await.unwrap();
                take(&queue, 1).await.unwrap();
            }
        });
        let giver = spawn({
            let queue = queue.clone();
            async move {
                for _ in 0..2 {
                    a_few_steps().await;
                    queue.give(1);
                }
            }
        });
        let got = {
            // The sleep is polled first, and the other dropped unpolled.
            let first = select(sleep(ms(5)), take(&queue, 2)).await;
            matches!(first, Either::Right((Ok(()), _)))
        };
        shield(giver).await.unwrap();
        shield(sleep(ms(1))).await.unwrap();
        (got, other.is_finished(), queue.free(), queue.granted(), queue.len())
    };
    interrupt_everywhere(program, |run| {
        let left = run.output.unwrap();
        let expected = [(true, false, 0, 0, 1), (false, true, 1, 0, 0)];
        assert!(expected.contains(&left), "{left:?}");
    });
}

#[test]
fn joining_a_task() {
    insist_inside((7, 8), async |insistent| {
        let task = || {
            spawn(async {
                a_few_steps().await;
                7
            })
        };
        let mut joined = task();
        let one = insistent.on(async || (&mut joined).await).await;
        // Cancelling waits as well, and the request stays made.
        let cancelled = spawn(async {
            let _ = sleep(FOREVER).await;
            a_few_steps().await;
            8
        });
        shield(yield_now()).await.unwrap();
        insistent.on(|| cancelled.cancel()).await;
        assert!(cancelled.is_finished());
        (one, cancelled.await.unwrap())
    });
}

#[test]
fn interrupted_join_by_value_detaches_the_task() {
    let program = || async {
        let done = Rc::new(Cell::new(false));
        let task = spawn({
            let done = done.clone();
            async move {
                a_few_steps().await;
                done.set(true);
            }
        });
        let outcome = task.await;
        shield(sleep(ms(1))).await.unwrap();
        (outcome.is_ok(), done.get())
    };
    interrupt_everywhere(program, |run| {
        let (_, done) = run.output.unwrap();
        assert!(done, "the task is not its joiner's");
    });
}

#[test]
fn foreign_futures() {
    insist_inside(7, async |insistent| {
        let (send, mut receive) = futures::channel::oneshot::channel();
        spawn(async move {
            a_few_steps().await;
            send.send(7).unwrap();
        })
        .detach();
        insistent.on(async || future_wait(&mut receive).await).await.unwrap()
    });
}

#[test]
fn foreign_future_is_dropped_with_its_program() {
    let program = || async {
        sleep(ms(1)).await?;
        let (send, receive) = futures::channel::oneshot::channel();
        spawn(async move {
            let _ = sleep(ms(5)).await;
            let _ = send.send(7);
        })
        .detach();
        Ok::<_, Interrupted>(receive.await.unwrap())
    };
    let outputs = RefCell::new(Vec::new());
    interrupt_everywhere(program, |run| {
        let output = run.output.as_ref().map(|output| output.as_ref().ok().copied());
        outputs.borrow_mut().push((run.interruption.as_ref().map(|by| by.kind), output));
    });
    let expected = [
        (None, Some(Some(7))),
        (Some(Kind::CancelWhileWaiting), Some(None)),
        // As the sleep is over: nobody can tell the wait that follows. As that one is over: late.
        (Some(Kind::CancelGoingOn), None),
        (Some(Kind::CancelGoingOn), Some(Some(7))),
        // The same by timeouts: in the sleep, at its end, and late.
        (Some(Kind::Timeout), Some(None)),
        (Some(Kind::Timeout), None),
        (None, Some(Some(7))),
    ];
    assert_eq!(outputs.take(), expected);
}

#[test]
fn helper_threads_and_lookups() {
    insist_outside(7, async |insistent| {
        insistent
            .on(async || {
                let (send, receive) = mpsc::channel();
                spawn(async move {
                    a_few_steps().await;
                    let _ = send.send(7);
                })
                .detach();
                run_in_thread(move || receive.recv().unwrap()).await
            })
            .await
    });
    insist_outside(80, async |insistent| {
        let addresses = insistent.on(|| lookup("localhost", 80)).await;
        // The answer may have come before the wait began.
        insistent.on(|| sleep(ms(1))).await;
        addresses[0].port()
    });
}

#[test]
fn readiness_waits() {
    insist_on_sockets((1, 1), async |insistent| {
        let Ok(Opened::Pair(here, there)) = open_socket(OpenSocket::UnixStreamPair) else {
            panic!("a pair of sockets");
        };
        let mut buffer = [0; 8];
        let read = |buffer: &mut [u8]| attempt(here, Attempt::Read(buffer));
        assert_eq!(read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        spawn(async move {
            a_moment().await;
            attempt(there, Attempt::Write(b"x")).unwrap();
        })
        .detach();
        let length = loop {
            insistent.on(|| read_wait(here)).await;
            match read(&mut buffer) {
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                Ok(length) => break length,
            }
        };
        insistent.on(|| write_wait(here)).await;
        let written = attempt(here, Attempt::Write(b"y")).unwrap();
        for socket in [here, there] {
            attempt(socket, Attempt::Close).unwrap();
        }
        (length, written)
    });
}

#[test]
fn shielded_body_completes() {
    let program = || async {
        let mut done = 0;
        let inside = shield(async {
            for _ in 0..A_FEW {
                sleep(ms(1)).await.unwrap();
                assert_eq!(timeout_after(ms(1), sleep(ms(9))).await, Err(pikake::TimedOut));
                done += 1;
            }
        });
        inside.await;
        let afterwards = sleep(ms(1)).await;
        (done, afterwards.is_err())
    };
    let report = interrupt_everywhere(program, |run| {
        let (done, told) = run.output.unwrap();
        assert_eq!(done, A_FEW);
        // The first wait after the shield returns the delayed interruption.
        let ends = run
            .interruption
            .as_ref()
            .is_some_and(|by| by.kind == Kind::CancelGoingOn && by.suspension == by.suspensions);
        assert_eq!(told, run.interruption.is_some() && !ends);
    });
    assert_eq!(report.suspensions, 2 * A_FEW + 1);
}

#[test]
fn deadlines_inside_deadlines() {
    // Foreign timeouts pass through the inner scope.
    let program = || async {
        let inner = timeout_after(ms(20), async {
            sleep(ms(5)).await?;
            timeout_after(ms(5), sleep(ms(50))).await.unwrap_or(Ok(()))?;
            sleep(ms(50)).await
        });
        let inner = inner.await;
        let timed = timed(ms(10), sleep(ms(5))).await;
        (inner, timed.expired)
    };
    interrupt_everywhere(program, |run| {
        let (inner, expired) = run.output.clone().unwrap();
        assert!(!expired);
        match &run.interruption {
            None => assert_eq!(inner, Err(pikake::TimedOut)),
            Some(by) => match inner {
                Ok(result) => {
                    let why = result.unwrap_err();
                    assert_eq!(why.is_cancel(), by.kind.is_cancel());
                }
                Err(_) => assert!(by.suspension >= 3, "its own deadline comes third: {by}"),
            },
        }
    });
}

#[test]
fn check_interrupt_reports_each_interruption() {
    insist_inside(A_FEW, async |insistent| {
        let mut rounds = 0;
        while rounds < A_FEW {
            if let Err(why) = check_interrupt() {
                insistent.note(&why);
            }
            insistent.on(yield_now).await;
            rounds += 1;
        }
        rounds
    });
}

#[test]
fn many_waits_of_one_task() {
    // Each branch is told once, and goes on waiting; all end.
    let program = || async {
        let insistent = Insistent::default();
        let mut naps: FuturesUnordered<_> = (1..=4)
            .map(|number| {
                let insistent = &insistent;
                async move {
                    insistent.on(|| sleep(ms(number))).await;
                    number
                }
            })
            .collect();
        let mut sum = 0;
        while let Some(number) = naps.next().await {
            sum += number;
        }
        drop(naps);
        let (one, two) = futures::join!(
            insistent.on(|| sleep(ms(1))),
            insistent.on(async || sleep(ms(2)).await.map(|()| 3)),
        );
        (one, two, sum, insistent.told.get())
    };
    let report = Injector::new().cleanup_limit(None).run(program, |run| {
        let (one, two, sum, told) = run.output.unwrap();
        assert_eq!((one, two, sum), ((), 3, 10));
        match &run.interruption {
            // The cancel interrupts the waits that have begun, and the one that is polled next, as
            // the cause comes up while the first four are polled. Later waits are not interrupted.
            Some(by) if by.kind == Kind::CancelWhileWaiting && by.suspension <= 4 => {
                assert_eq!(told, (by.suspension + 1).min(4));
            }
            Some(_) => assert!(told <= 4),
            None => assert_eq!(told, 0),
        }
    });
    assert_eq!(report.suspensions, 6);
}
