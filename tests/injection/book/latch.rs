//! A condition, and a queue of tasks that wait for it.

use std::cell::Cell;
use std::rc::Rc;

use pikake::spawn;

use crate::support::insist::{a_few_steps, insist_inside};

// ANCHOR: latch
use pikake::Interrupted;
use pikake::traps::{WaitQueue, park};

struct Latch {
    left: Cell<u32>,
    waiters: WaitQueue,
}

impl Latch {
    fn new(count: u32) -> Self {
        Self { left: Cell::new(count), waiters: WaitQueue::new() }
    }

    fn count_down(&self) {
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.waiters.wake(usize::MAX); // all of them
        }
    }

    async fn wait(&self) -> Result<(), Interrupted> {
        while self.left.get() > 0 {
            park(&self.waiters).await?;
        }
        Ok(())
    }
}
// ANCHOR_END: latch

#[test]
fn latch_opens_at_zero() {
    insist_inside((0, 0), async |insistent| {
        let latch = Rc::new(Latch::new(3));
        for _ in 0..3 {
            let latch = latch.clone();
            spawn(async move {
                a_few_steps().await;
                latch.count_down();
            })
            .detach();
        }
        insistent.on(async || latch.wait().await).await;
        (latch.left.get(), latch.waiters.len())
    });
}
