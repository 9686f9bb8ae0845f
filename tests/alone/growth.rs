//! The memory of a kernel is the same after a hundred thousand tasks as before.

use std::time::Duration;

use pikake::time::ManualClock;
use pikake::traps::{WaitQueue, park};
use pikake::{Kernel, Task, sleep, spawn, timeout_after, yield_now};

use crate::alone;
use crate::live_bytes::live_bytes;

const TASKS: usize = 100_000;

/// One hundred thousand tasks at a time, of every kind and end.
async fn round() {
    let queue = std::rc::Rc::new(WaitQueue::new());
    let tasks: Vec<Task<()>> = (0..TASKS)
        .map(|number| {
            let queue = queue.clone();
            spawn(async move {
                let _ = match number % 5 {
                    0 => Ok(()),
                    1 => yield_now().await,
                    2 => sleep(Duration::from_micros(number as u64)).await,
                    3 => park(&queue).await,
                    _ => timeout_after(Duration::from_millis(7), park(&queue))
                        .await
                        .unwrap_or(Ok(())),
                };
            })
        })
        .collect();
    sleep(Duration::from_millis(10)).await.unwrap();
    for (number, task) in tasks.into_iter().enumerate() {
        match number % 3 {
            0 => task.request_cancel("enough"),
            1 => task.abort(),
            _ => {
                queue.wake(1);
                if number % 5 != 3 {
                    let _ = task.await;
                }
            }
        }
    }
    queue.wake(usize::MAX);
    sleep(Duration::from_secs(1)).await.unwrap();
}

#[test]
fn a_hundred_thousand_tasks_leave_nothing() {
    alone("growth::a_hundred_thousand_tasks_leave_nothing", compare_memory);
}

fn compare_memory() {
    let kernel = Kernel::builder().clock(ManualClock::auto()).build().unwrap();
    kernel.run(round());
    assert_eq!(kernel.task_count(), 0);
    let before = live_bytes();
    for _ in 0..3 {
        kernel.run(round());
        assert_eq!(kernel.task_count(), 0);
    }
    let after = live_bytes();
    // Tables keep the room they once needed, and grow by doubling; nothing is kept per task.
    assert!(after < before + 64 * 1024, "{before} bytes before, {after} after");
    drop(kernel);
    let left = live_bytes();
    assert!(left < 1024 * 1024, "{left} bytes are left when the kernel is gone");
}
