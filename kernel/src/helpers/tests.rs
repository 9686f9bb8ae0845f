//! Helper threads under the model checker: each call runs once, within the limit, and each thread
//! ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pikake_traps::{BlockingCall, Replied, Reply};
use shuttle::thread;

use crate::helpers::Helpers;

/// The number of schedules that each program runs under. The checker itself reports a thread that
/// does not end, as a deadlock.
const SCHEDULES: usize = 3_000;

#[track_caller]
fn check(program: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(program, SCHEDULES);
}

/// Wakes a thread of the model.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a reply.
fn result<T>(mut replied: Replied<T>) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match Pin::new(&mut replied).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => thread::park(),
        }
    }
}

/// The number of calls that run now, the most that ran at once, and the number that ran.
#[derive(Default)]
struct Counts {
    running: AtomicUsize,
    most: AtomicUsize,
    ran: AtomicUsize,
}

impl Counts {
    fn work(&self) {
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        thread::yield_now();
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.ran.fetch_add(1, Ordering::SeqCst);
    }
}

/// Hands over a call that counts itself.
fn run(helpers: &Helpers, counts: &Arc<Counts>) -> Replied<()> {
    let (reply, replied) = Reply::channel();
    let counts = counts.clone();
    let call = BlockingCall::new(reply, move |(): &mut ()| counts.work());
    assert!(helpers.run(call).is_ok(), "a thread can be started");
    replied
}

#[test]
fn calls_run_once_within_the_thread_limit() {
    for idle_exit in [Duration::MAX, Duration::ZERO] {
        check(move || {
            let (helpers, counts) = (Helpers::default(), Arc::new(Counts::default()));
            helpers.limit(2, idle_exit);
            let replies: Vec<_> = (0..4).map(|_| run(&helpers, &counts)).collect();
            for reply in replies {
                assert_eq!(result(reply), Some(()));
            }
            assert_eq!(counts.ran.load(Ordering::SeqCst), 4);
            assert!(counts.most.load(Ordering::SeqCst) <= 2, "the limit");
            let count = helpers.count();
            assert!(count.busy + count.idle <= 2 && count.waiting == 0, "{count:?}");
        });
    }
}

#[test]
fn sequential_calls_use_one_thread() {
    check(|| {
        let (helpers, counts) = (Helpers::default(), Arc::new(Counts::default()));
        helpers.limit(3, Duration::MAX);
        for _ in 0..3 {
            assert_eq!(result(run(&helpers, &counts)), Some(()));
            let count = helpers.count();
            assert_eq!(count.busy + count.idle, 1, "{count:?}");
        }
    });
}

#[test]
fn call_runs_while_its_thread_exits() {
    check(|| {
        let (helpers, counts) = (Helpers::default(), Arc::new(Counts::default()));
        // The thread exits by chance whenever it is idle.
        helpers.limit(1, Duration::ZERO);
        for _ in 0..3 {
            assert_eq!(result(run(&helpers, &counts)), Some(()));
            thread::yield_now();
        }
        assert_eq!(counts.ran.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn drop_fails_calls_not_begun() {
    check(|| {
        let (helpers, counts) = (Helpers::default(), Arc::new(Counts::default()));
        helpers.limit(1, Duration::MAX);
        let replies: Vec<_> = (0..3).map(|_| run(&helpers, &counts)).collect();
        thread::yield_now();
        drop(helpers);
        let done = replies.into_iter().filter_map(result).count();
        assert_eq!(counts.ran.load(Ordering::SeqCst), done);
    });
}
