//! Interruptions whose waits are dropped, or go from scope to scope.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use futures::future::select;
use futures::stream::{FuturesUnordered, StreamExt};
use pikake::testing::interrupt_everywhere;
use pikake::traps::{WaitQueue, park};
use pikake::{Interrupted, future_wait, shield, sleep, spawn, timeout_after};

use crate::support::insist::{Insistent, ms};

/// Interrupts something everywhere that may drop waits, or be told several times. Whatever it does,
/// somebody is told: if not it, then the wait after it.
#[track_caller]
fn never_lost(suspends: usize, body: impl AsyncFn(&Insistent)) {
    let body = &body;
    let program = || async move {
        let insistent = Insistent::default();
        body(&insistent).await;
        let inside = insistent.told.get();
        let afterwards = sleep(ms(1)).await.is_err();
        let twice = sleep(ms(1)).await.is_err();
        (inside, afterwards, twice)
    };
    let report = interrupt_everywhere(program, |run| {
        let (inside, afterwards, twice) = run.output.expect("it waits on traps");
        match &run.interruption {
            None => assert!(inside == 0 && !afterwards && !twice),
            Some(by) if by.suspension == by.suspensions => {}
            Some(by) if by.suspension == by.suspensions - 1 => assert!(afterwards ^ twice),
            Some(_) => {
                assert!(!twice && (inside > 0 || afterwards), "{inside} inside, {afterwards}");
            }
        }
    });
    assert_eq!(report.suspensions, suspends + 2);
    assert!(report.missed <= 1, "only a timeout at the end is never told: {report:?}");
}

impl Insistent {
    /// Polls once.
    async fn poll(&self, wait: &mut (impl Future<Output = Result<(), Interrupted>> + Unpin)) {
        let mut wait = pin!(wait);
        let polled = poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await;
        if let Poll::Ready(result) = polled {
            self.note_if(result);
        }
    }
}

#[test]
fn interruption_survives_dropped_waits() {
    // The loser of a select.
    never_lost(2, async |insistent| {
        let queue = WaitQueue::new();
        let first = select(sleep(ms(1)), park(&queue)).await.factor_first().0;
        insistent.note_if(first);
    });
    // All but the first of many.
    never_lost(4, async |insistent| {
        let mut naps: FuturesUnordered<_> = (1..=4).map(|number| sleep(ms(number))).collect();
        insistent.note_if(naps.next().await.unwrap());
    });
    // Polled once and forgotten about, for a while.
    never_lost(3, async |insistent| {
        let mut nap = sleep(ms(9));
        insistent.poll(&mut nap).await;
        insistent.note_if(sleep(ms(1)).await);
        drop(nap);
        insistent.note_if(sleep(ms(1)).await);
    });
    // A join whose branches end at different times.
    never_lost(2, async |insistent| {
        let (one, two) = futures::join!(sleep(ms(1)), sleep(ms(2)));
        insistent.note_if(one);
        insistent.note_if(two);
    });
    // Inside a combinator inside `future_wait`.
    never_lost(3, async |insistent| {
        let first = future_wait(select(sleep(ms(1)), sleep(ms(2)))).await;
        match first {
            Ok(first) => insistent.note_if(first.factor_first().0),
            Err(why) => insistent.note(&why),
        }
    });
}

#[test]
fn interruption_passes_through_every_scope() {
    // Of an own deadline and one from outside, both are told to whom they concern.
    never_lost(2, async |insistent| {
        insistent.note_if(timeout_after(ms(1), sleep(ms(5))).await.unwrap_or(Ok(())));
        insistent.note_if(timeout_after(ms(5), sleep(ms(1))).await.unwrap_or(Ok(())));
    });
    // A wait that moves from scope to scope.
    never_lost(2, async |insistent| {
        let mut nap = sleep(ms(5));
        let inside = timeout_after(ms(1), async {
            insistent.poll(&mut nap).await;
            sleep(ms(3)).await
        });
        insistent.note_if(inside.await.unwrap_or(Ok(())));
        insistent.poll(&mut nap).await;
        drop(nap);
    });
    // A task that is joined again and again.
    never_lost(2, async |insistent| {
        let mut task = spawn(async {
            let _ = sleep(ms(3)).await;
        });
        for _ in 0..2 {
            if let Ok(Err(error)) = timeout_after(ms(1), &mut task).await {
                insistent.note(&error);
            }
        }
    });
    // Behind a shield, and beside it: both branches are told, the one when its shield is gone.
    never_lost(2, async |insistent| {
        let (_, beside) = futures::join!(shield(sleep(ms(2))), sleep(ms(1)));
        insistent.note_if(beside);
    });
    never_lost(3, async |_| {
        shield(async {
            let _ = timeout_after(ms(1), shield(sleep(ms(2)))).await;
            let _ = select(sleep(ms(1)), sleep(ms(2))).await;
        })
        .await;
    });
}
