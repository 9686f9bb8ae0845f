//! Blocking calls under the model checker: a closure is run or withdrawn, and never both.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use shuttle::thread;

use crate::blocking_call::BlockingCall;
use crate::traps::blocking::{CancelFlag, begin};

/// The number of schedules that each program runs under.
const SCHEDULES: usize = 3_000;

#[track_caller]
fn check(program: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(program, SCHEDULES);
}

/// Counts its drops.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_closure_is_run_or_withdrawn() {
    check(|| {
        let [ran, dropped, results] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let flag = CancelFlag::default();
        let (submit, calls) = mpsc::channel::<BlockingCall>();
        let work = {
            let (ran, closure, results) = (ran.clone(), Dropped(dropped.clone()), results.clone());
            move |(): &mut (), flag: &CancelFlag| {
                let _closure = closure;
                ran.fetch_add(1, Ordering::SeqCst);
                thread::yield_now();
                let _ = flag.is_cancelled();
                Dropped(results)
            }
        };
        let submit = move |call| submit.send(call).expect("it is received below");
        let started = begin(submit, work, flag.clone(), "closure", Location::caller());
        let mut call = calls.recv().expect("it was sent above");
        let helper = thread::spawn(move || {
            thread::yield_now();
            call.run();
            call.is_wanted()
        });
        thread::yield_now();
        // This is the order of `Blocking::cancel_call`.
        flag.cancel();
        let is_withdrawn = started.work.withdraw();
        let ran_before = ran.load(Ordering::SeqCst);
        drop(started.wait);
        helper.join().expect("no panics");
        assert_eq!(ran.load(Ordering::SeqCst), usize::from(!is_withdrawn));
        assert!(!is_withdrawn || ran_before == 0, "a withdrawn closure has not run");
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "the closure is dropped once");
        assert_eq!(results.load(Ordering::SeqCst), usize::from(!is_withdrawn), "the result, too");
    });
}

#[test]
fn a_reply_wakes_the_waiter() {
    use std::pin::Pin;
    use std::task::{Context, Poll, Wake, Waker};

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    check(|| {
        let (reply, mut replied) = crate::Reply::channel();
        let has_result = shuttle::rand::Rng::gen_bool(&mut shuttle::rand::thread_rng(), 0.8);
        let helper = thread::spawn(move || {
            let mut call: BlockingCall = BlockingCall::new(reply, |(): &mut ()| 7);
            if has_result {
                call.run();
            }
            drop(call);
        });
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = Context::from_waker(&waker);
        let result = loop {
            match Pin::new(&mut replied).poll(&mut cx) {
                Poll::Ready(result) => break result,
                Poll::Pending => thread::park(),
            }
        };
        assert_eq!(result, has_result.then_some(7));
        helper.join().expect("no panics");
    });
}
