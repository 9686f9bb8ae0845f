//! The kernel polls its driver between long steps.
use pikake::kernel::Observer;
use pikake::{sleep, spawn, yield_now};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::alone;
struct Gaps {
    steps: Rc<Cell<u32>>,
    worst: Rc<Cell<u32>>,
}
impl Observer for Gaps {
    fn stepped(&self, _: &pikake::traps::TaskRef, _: Duration) {
        self.steps.set(self.steps.get() + 1);
        self.worst.set(self.worst.get().max(self.steps.get()));
    }
    fn polled(&self, _: usize) {
        self.steps.set(0);
    }
}
#[test]
fn the_driver_is_polled_between_long_steps() {
    alone("polling::the_driver_is_polled_between_long_steps", count_steps_between_polls);
}

fn count_steps_between_polls() {
    let worst = Rc::new(Cell::new(0));
    let kernel = pikake::Kernel::builder()
        .observer(Gaps { steps: Rc::default(), worst: worst.clone() })
        .build()
        .unwrap();
    kernel.run(async {
        for _ in 0..64 {
            spawn(async {
                loop {
                    let at = Instant::now();
                    while at.elapsed() < Duration::from_millis(1) {}
                    if yield_now().await.is_err() {
                        return;
                    }
                }
            })
            .detach();
        }
        sleep(Duration::from_millis(300)).await.unwrap();
    });
    // Each step is longer than `POLL_EVERY`.
    assert!(worst.get() <= 4, "{} steps of 1 ms without a poll", worst.get());
}
