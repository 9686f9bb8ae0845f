//! Helper threads under the model checker: who does what, how many there are, and that each of them
//! ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pikake_traps::{Job, Replied, Reply};
use shuttle::thread;

use crate::helpers::Helpers;

/// How many schedules each program is run under. A thread that does not end is found by itself: then
/// nothing can go on, and that fails.
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

/// What runs now, and what ran.
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

/// Hands a job over that counts.
fn run(helpers: &Helpers, counts: &Arc<Counts>) -> Replied<()> {
    let (reply, replied) = Reply::channel();
    let counts = counts.clone();
    let job = Job::new(reply, move |(): &mut ()| counts.work());
    assert!(helpers.run(job).is_ok(), "a thread can be started");
    replied
}

#[test]
fn every_job_is_done_once_by_no_more_threads_than_the_limit() {
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
fn one_call_after_the_other_takes_one_thread() {
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
fn a_job_that_meets_a_thread_on_its_way_out_is_done() {
    check(|| {
        let (helpers, counts) = (Helpers::default(), Arc::new(Counts::default()));
        // It leaves by chance whenever it has nothing to do.
        helpers.limit(1, Duration::ZERO);
        for _ in 0..3 {
            assert_eq!(result(run(&helpers, &counts)), Some(()));
            thread::yield_now();
        }
        assert_eq!(counts.ran.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn what_is_not_begun_when_the_driver_goes_is_told_so() {
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
