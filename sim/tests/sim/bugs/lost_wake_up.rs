//! A worker checks for work, and then waits for a notification.
//!
//! The bug: the worker checks before it has the lock under which work is added. Work that is added
//! in between notifies no worker.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use pikake::sim::{Cause, Sim};
use pikake::sync::{Condvar, Mutex};
use pikake::{Interrupted, random, sleep, spawn};

const JOBS: u32 = 5;
const PAUSE_MICROS: u64 = 10_000;
const JOURNAL: Duration = Duration::from_micros(500);

#[derive(Default)]
struct Work {
    lock: Mutex<()>,
    added: Condvar,
    jobs: RefCell<VecDeque<u32>>,
}

impl Work {
    async fn add(&self, job: u32) -> Result<(), Interrupted> {
        let _guard = self.lock.lock().await?;
        // The job goes into the journal first.
        sleep(JOURNAL).await?;
        self.jobs.borrow_mut().push_back(job);
        self.added.notify(1);
        Ok(())
    }

    async fn take(&self, bug: bool) -> Result<u32, Interrupted> {
        if bug {
            while self.jobs.borrow().is_empty() {
                let guard = self.lock.lock().await?;
                drop(self.added.wait(guard).await?);
            }
        } else {
            let mut guard = self.lock.lock().await?;
            while self.jobs.borrow().is_empty() {
                guard = self.added.wait(guard).await?;
            }
        }
        Ok(self.jobs.borrow_mut().pop_front().expect("there is one"))
    }
}

fn world(sim: &mut Sim, bug: bool) {
    sim.client("worker", move || async move {
        let work = Rc::new(Work::default());
        let adding = work.clone();
        let producer = spawn(async move {
            for job in 0..JOBS {
                sleep(Duration::from_micros(random::range(0..PAUSE_MICROS))).await?;
                adding.add(job).await?;
            }
            Ok::<_, Interrupted>(())
        });
        for expected in 0..JOBS {
            assert_eq!(work.take(bug).await?, expected);
            sleep(Duration::from_micros(random::range(0..PAUSE_MICROS))).await?;
        }
        producer.await.expect("it does not panic")
    });
}

#[test]
fn lost_wake_is_found_within_200_seeds() {
    let failure = super::found_within(200, world);
    assert_eq!(failure.cause, Cause::Deadlock);
    assert!(failure.tasks.contains("lost_wake_up.rs"), "{failure}");
}

#[test]
fn sound_program_fails_no_seed() {
    super::sound(world);
}
