//! Timers on threads without a kernel.

use std::future::{poll_fn, Future};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::{sleep, Instant};

/// Libraries poll on threads of their own, as exporters of telemetry do.
#[test]
fn timers_are_polled_outside_of_their_kernel() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let length = Duration::from_millis(20);
    let elapsed = runtime.block_on(async {
        let since = Instant::now();
        let timer = sleep(length);
        let other = std::thread::spawn(move || futures::executor::block_on(timer));
        while !other.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        other.join().unwrap();
        since.elapsed()
    });
    assert!(elapsed >= length);
}

/// A task waits for a timer that another one sets anew, and does not poll in between.
#[test]
fn reset_timers_wake_their_task() {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    for (now, then, by) in [(1000, 10, "another"), (10, 1000, "another"), (1000, 10, "itself")] {
        let [now, then] = [now, then].map(Duration::from_millis);
        let elapsed = runtime.block_on(async {
            let since = Instant::now();
            let timer = Arc::new(Mutex::new(Box::pin(sleep(now))));
            let waiting = {
                let timer = timer.clone();
                let mut is_reset = by == "another";
                tokio::spawn(poll_fn(move |cx| {
                    let mut timer = timer.lock().unwrap();
                    let polled = timer.as_mut().poll(cx);
                    if polled.is_pending() && !std::mem::replace(&mut is_reset, true) {
                        timer.as_mut().reset(since + then);
                    }
                    polled
                }))
            };
            tokio::task::yield_now().await;
            if by == "another" {
                timer.lock().unwrap().as_mut().reset(since + then);
            }
            waiting.await.unwrap();
            since.elapsed()
        });
        assert!(elapsed >= then && elapsed < then + Duration::from_millis(5), "{by}: {elapsed:?}");
    }
}

/// A timer is not due because its kernel has ended.
#[test]
#[should_panic(expected = "being shutdown")]
fn timers_of_ended_kernels_panic() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let timer = {
        let _entered = runtime.enter();
        sleep(Duration::from_secs(3600))
    };
    drop(runtime);
    futures::executor::block_on(timer);
}
