//! Timers on threads without a kernel.

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
