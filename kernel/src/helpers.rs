//! Helper threads: where blocking closures run.
//!
//! ```text
//!            (1)                       (2)              (3)
//!   (none) ───────▶ busy: runs a call ───────▶ idle ───────────▶ (none)
//!                     ▲    │ ▲                  │
//!                     │    └─┘ (4)              │ (5)
//!                     └─────────────────────────┘
//! ```
//!
//! (1) [`Helpers::run`], if no thread is idle and there are fewer threads than the limit. (2) No
//! call is left. (3) No call came for the idle time, or the driver was dropped. (4) The thread
//! takes the next call. (5) [`Helpers::run`] wakes the thread that became idle last, so that the
//! others reach their idle time.
//!
//! A thread counts against the limit from its start to its end, even if no task waits for its call
//! any more. The kernel never waits for a thread.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use pikake_traps::{BlockingCall, CallQueue, catch_and_log};

use crate::driver::HelperThreads;
use crate::threads::{Builder, Condvar, Instant, Mutex, MutexGuard, wait_until};

#[cfg(all(test, pikake_shuttle))]
mod tests;

/// The number of closures that may run on helper threads at the same time.
///
/// Further closures wait in a queue. Curio has the same limit.
pub const HELPER_THREADS: usize = 64;

/// The time after which an idle helper thread ends.
pub const HELPER_IDLE_EXIT: Duration = Duration::from_secs(10);

struct State {
    calls: CallQueue,
    /// The condition variables of the idle threads. The thread that became idle last is woken
    /// first, and the call that wakes a thread removes its variable.
    idle: Vec<Arc<Condvar>>,
    /// For each number, whether a thread has it in its name.
    numbers: Vec<bool>,
    limit: usize,
    idle_exit: Duration,
    ended: bool,
}

impl State {
    fn idle_index(&self, wake: &Arc<Condvar>) -> Option<usize> {
        self.idle.iter().rposition(|other| Arc::ptr_eq(other, wake))
    }

    fn is_idle(&self, wake: &Arc<Condvar>) -> bool {
        self.idle_index(wake).is_some()
    }

    /// The number of threads.
    fn threads(&self) -> usize {
        self.numbers.iter().filter(|is_taken| **is_taken).count()
    }

    /// Takes the lowest number that no thread has in its name.
    fn take_number(&mut self) -> usize {
        let free = self.numbers.iter().position(|is_taken| !is_taken);
        let number = free.unwrap_or_else(|| {
            self.numbers.push(false);
            self.numbers.len() - 1
        });
        self.numbers[number] = true;
        number
    }
}

struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No call runs under the lock, so the state behind a poisoned lock is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a thread.
    fn work(&self, number: usize) {
        let wake = Arc::new(Condvar::new());
        let mut state = self.lock();
        loop {
            if let Some(call) = state.calls.pop() {
                drop(state);
                self.run_and_reply(call, &wake);
                state = self.lock();
            } else if state.ended {
                break;
            } else {
                state.idle.push(wake.clone());
            }
            if state.is_idle(&wake) {
                let is_woken;
                (state, is_woken) = self.wait_idle(state, &wake);
                if !is_woken {
                    break;
                }
            }
        }
        state.numbers[number] = false;
    }

    /// Runs a call and replies.
    ///
    /// If no other call waits, the thread counts as idle before it replies. So a task that makes
    /// one call after the other uses one thread.
    fn run_and_reply(&self, mut call: BlockingCall, wake: &Arc<Condvar>) {
        // The call replies with a panic of its closure. The drop of an unwanted result may panic,
        // too, and so may the waker that the reply calls.
        catch_and_log("a helper thread's closure", || call.run());
        // The drop of an unwanted result may take long, so the thread does not count as idle
        // before.
        if call.is_wanted() {
            let mut state = self.lock();
            if state.calls.is_empty() && !state.ended {
                state.idle.push(wake.clone());
            }
        }
        catch_and_log("a helper thread's reply", || drop(call));
    }

    /// Waits until the thread is woken. Returns `false` if no call came for the idle time.
    fn wait_idle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        wake: &Arc<Condvar>,
    ) -> (MutexGuard<'a, State>, bool) {
        let since = Instant::now();
        loop {
            let idle_exit = state.idle_exit;
            let is_over;
            (state, is_over) = wait_until(&self.0, wake, state, since, idle_exit);
            let Some(index) = state.idle_index(wake) else { return (state, true) };
            if is_over {
                state.idle.remove(index);
                return (state, false);
            }
        }
    }
}

/// The helper threads of one driver.
pub(crate) struct Helpers(Arc<Shared>);

impl Default for Helpers {
    fn default() -> Self {
        Self(Arc::new(Shared(Mutex::new(State {
            calls: CallQueue::default(),
            idle: Vec::new(),
            numbers: Vec::new(),
            limit: HELPER_THREADS,
            idle_exit: HELPER_IDLE_EXIT,
            ended: false,
        }))))
    }
}

impl Helpers {
    pub(crate) fn limit(&self, limit: usize, idle_exit: Duration) {
        let mut state = self.0.lock();
        (state.limit, state.idle_exit) = (limit, idle_exit);
    }

    pub(crate) fn count(&self) -> HelperThreads {
        let state = self.0.lock();
        let idle = state.idle.len();
        let waiting = state.calls.wanted();
        HelperThreads { limit: state.limit, busy: state.threads() - idle, idle, waiting }
    }

    /// Hands over a call. Returns the call if there is no thread and none can be started.
    pub(crate) fn run(&self, call: BlockingCall) -> Result<(), BlockingCall> {
        let mut state = self.0.lock();
        let unwanted = state.calls.push(call);
        let result = self.provide_thread(&mut state);
        drop(state);
        drop(unwanted);
        result
    }

    /// Wakes or starts a thread for the newest call, unless all threads are busy.
    fn provide_thread(&self, state: &mut State) -> Result<(), BlockingCall> {
        if let Some(idle) = state.idle.pop() {
            idle.notify_one();
            return Ok(());
        }
        if state.threads() >= state.limit {
            return Ok(());
        }
        let number = state.take_number();
        let shared = self.0.clone();
        // Linux shows fifteen bytes of a name.
        let name = format!("pikake-helper{number}");
        match Builder::new().name(name).spawn(move || shared.work(number)) {
            Ok(_) => Ok(()),
            Err(_) => {
                state.numbers[number] = false;
                match state.threads() {
                    0 => Err(state.calls.take_back().expect("the newest call is in the queue")),
                    _ => Ok(()),
                }
            }
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        let calls = {
            let mut state = self.0.lock();
            state.ended = true;
            for idle in state.idle.drain(..) {
                idle.notify_one();
            }
            std::mem::take(&mut state.calls)
        };
        drop(calls);
    }
}
