//! Sleeps on the system's clock end to the microsecond where the system can, not to the
//! millisecond.

use std::time::{Duration, Instant};

use pikake::sleep;

use crate::alone;

/// The least late of many, so that a busy machine does not matter.
async fn least_late(length: Duration) -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..40 {
        let due = Instant::now() + length;
        sleep(length).await.unwrap();
        least = least.min(due.elapsed());
    }
    least
}

#[test]
fn sleep_below_a_millisecond_is_exact() {
    alone("exact_sleeps::sleep_below_a_millisecond_is_exact", measure_sleeps);
}

fn measure_sleeps() {
    pikake::run(async {
        // Rounded up they would be 0.7, 0.8 and 0.6 ms late at least.
        for microseconds in [300, 1_200, 4_400] {
            let late = least_late(Duration::from_micros(microseconds)).await;
            assert!(late < Duration::from_micros(400), "{microseconds} µs: late by {late:?}");
        }
    });
}
