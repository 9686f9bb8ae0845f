//! The names of the facade: a program that uses them compiles, and the attributes do what they say.

use std::time::Duration;

use pikake::prelude::*;
use pikake::traps::{Interrupted as Why, SleepTrap, Trap, Until, kernel_trap};

use crate::support::ms;

/// Bounds that let an error pass through `?` into common error types.
fn travels<E: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn errors_are_send_and_sync() {
    travels::<Interrupted>();
    travels::<TimedOut>();
    travels::<TaskError>();
    travels::<pikake::KernelEnded>();
}

#[pikake::test]
async fn a_test_may_await() {
    sleep(ms(1)).await.unwrap();
    assert_eq!(pikake::current().name(), "a_test_may_await");
}

#[pikake::test(name = "another name")]
async fn a_test_may_return_a_result() -> Result<(), Box<dyn std::error::Error>> {
    assert_eq!(pikake::current().name(), "another name");
    timeout_after(ms(1_000), sleep(ms(1))).await??;
    Ok(())
}

#[test]
fn the_calls_have_the_signatures_that_are_promised() -> std::io::Result<()> {
    let kernel: Kernel = Kernel::new()?;
    let handle: pikake::KernelHandle = kernel.handle();
    let turn: pikake::Turn = kernel.turn(Some(Duration::ZERO))?;
    assert!(!turn.is_ready);
    kernel.run(async {
        let slept: Result<(), Interrupted> = sleep(ms(1)).await;
        slept.unwrap();
        let yielded: Result<(), Interrupted> = yield_now().await;
        yielded.unwrap();
        let waited: Result<u8, Interrupted> = future_wait(std::future::ready(3)).await;
        assert_eq!(waited, Ok(3));
        let timed: Result<u8, TimedOut> = timeout_after(ms(10), async { 4 }).await;
        assert_eq!(timed, Ok(4));
        let instant: pikake::time::Instant = pikake::time::Instant::now();
        pikake::sleep_until(instant + ms(1)).await.unwrap();
        let timed: Result<u8, TimedOut> = pikake::timeout_at(instant, async { 4 }).await;
        assert_eq!(timed, Ok(4));
        let deadline: pikake::time::Deadline = pikake::time::deadline_after(ms(2));
        pikake::sleep_until(deadline).await.unwrap();
        let timed: Result<u8, TimedOut> = pikake::timeout_at(deadline, async { 4 }).await;
        assert_eq!(timed, Ok(4));

        let task: Task<u8> = spawn(async { 5 });
        assert!(!task.is_finished() && task.id().0 > 0 && task.name().is_empty());
        let joined: Result<u8, TaskError> = task.join().await;
        assert_eq!(joined.unwrap(), 5);
        let task =
            pikake::task::Builder::new().name("named").spawn(async { sleep(ms(1_000)).await });
        task.request_cancel("a reason");
        let cancelled: Result<(), Interrupted> = task.cancel().await;
        cancelled.unwrap();
        task.abort();
        let dropped = spawn(std::future::pending::<()>()).cancel_on_drop();
        drop(dropped);

        let trap = SleepTrap::new(Until::After(ms(1)));
        let answer: <SleepTrap as Trap>::Answer = kernel_trap(trap).await;
        let answer: Result<(), Why> = answer;
        answer.unwrap();
    });
    handle.stop().unwrap();
    let stopped: Result<(), TaskError> = kernel.try_run(async { sleep(ms(1)).await.unwrap() });
    assert!(matches!(stopped, Err(TaskError::Stopped)));
    kernel.shutdown();
    assert_eq!(pikake::try_run(async { 6 }).unwrap(), 6);
    assert_eq!(pikake::run(async { 7 }), 7);
    Ok(())
}
