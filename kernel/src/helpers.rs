//! Helper threads: where blocking closures run.
//!
//! Threads are started when there is more work than idle threads, up to a limit, and end when they
//! had nothing to do for a while or the driver is gone. The kernel never waits for one.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pikake_traps::quietly;

use crate::driver::Job;

/// Closures that may run at the same time; more wait their turn. As many as Curio allows.
const HELPER_THREADS: usize = 64;

/// How long a thread waits for more work before it ends.
const IDLE_EXIT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No job runs under the lock, so a poisoned one is whole all the same.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // The job reports a panic of its closure by itself; what is left is the drop of a
                // result that nobody wants any more, and the wakers of others.
                quietly("a helper thread's closure", job);
                state = self.lock();
                continue;
            }
            if state.ended {
                break;
            }
            state.idle += 1;
            let (back, timeout) =
                self.work.wait_timeout(state, IDLE_EXIT).unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}

/// The helper threads of one driver.
#[derive(Default)]
pub(crate) struct Helpers(Arc<Shared>);

impl Helpers {
    /// Hands a closure over. It comes back if there is no thread and none can be started.
    pub(crate) fn run(&self, job: Job) -> Result<(), Job> {
        let mut state = self.0.lock();
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            self.0.work.notify_one();
            return Ok(());
        }
        if state.threads >= HELPER_THREADS {
            return Ok(());
        }
        let shared = self.0.clone();
        let started =
            thread::Builder::new().name("pikake-helper".into()).spawn(move || shared.work());
        match started {
            Ok(_) => state.threads += 1,
            Err(_) if state.threads == 0 => {
                return Err(state.jobs.pop_back().expect("the job was put there just now"));
            }
            Err(_) => {}
        }
        Ok(())
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        let jobs = {
            let mut state = self.0.lock();
            state.ended = true;
            std::mem::take(&mut state.jobs)
        };
        self.0.work.notify_all();
        drop(jobs);
    }
}
