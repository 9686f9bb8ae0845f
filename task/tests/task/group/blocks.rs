//! Groups as blocks, and `in_parallel`.

use std::error::Error;
use std::pin::pin;

use futures::future::{Either, select};
use pikake::task::{GroupError, in_parallel};
use pikake::{TimedOut, sleep, spawn, task_group, timeout_after, try_task_group};

use super::helpers::{Trace, broken, told, worker};
use crate::support::{ms, run};

#[test]
fn a_block_waits_for_its_members() {
    run(async {
        let trace = Trace::new();
        let result: Result<u8, GroupError> = task_group(async |group| {
            group.spawn(worker("one", 20, 0, trace.clone()));
            group.spawn_daemon(worker("daemon", 100, 5, trace.clone()));
            sleep(ms(10)).await?;
            trace.add("block done");
            Ok(4)
        })
        .await;
        trace.add("over");
        assert_eq!(result.unwrap(), 4);
        assert_eq!(
            trace.take(),
            [
                "10 block done",
                "20 one done",
                "20 daemon told: cancelled: its group has ended",
                "25 daemon clean",
                "25 over",
            ]
        );
    });
}

#[test]
fn a_block_fails_when_a_member_does() {
    run(async {
        let result: Result<(), GroupError> = task_group(async |group| {
            group.spawn_named("bad", broken::<Result<(), String>>(5, "broke"));
            group.spawn(async { Err("only a value".into()) });
            Ok(())
        })
        .await;
        assert_eq!(told(result.unwrap_err().failures()), ["bad: the task panicked: broke"]);

        let result: Result<(), Box<dyn Error>> = try_task_group(async |group| {
            group.spawn(async { Err::<(), _>("a failure") });
            Ok(())
        })
        .await;
        assert!(result.unwrap_err().to_string().contains("a failure"));
    });
}

/// So does a block that is interrupted or panics.
#[test]
fn failed_block_ends_its_members_first() {
    run(async {
        let trace = Trace::new();
        let failed: Result<(), std::io::Error> = task_group(async |group| {
            group.spawn(worker("one", 100, 10, trace.clone()));
            sleep(ms(5)).await?;
            Err(std::io::Error::other("the block's own"))
        })
        .await;
        trace.add(failed.unwrap_err());
        assert_eq!(
            trace.take(),
            [
                "5 one told: cancelled: the block around its group failed",
                "15 one clean",
                "15 the block's own",
            ]
        );

        let trace = Trace::new();
        let block = task_group(async |group| {
            group.spawn(worker("one", 100, 10, trace.clone()));
            sleep(ms(50)).await?;
            Ok::<_, GroupError>(())
        });
        assert!(matches!(timeout_after(ms(5), block).await, Err(TimedOut)));
        trace.add("timed out");
        assert_eq!(
            trace.take(),
            [
                "5 one told: cancelled: the block around its group failed",
                "15 one clean",
                "15 timed out",
            ]
        );

        // Interrupted after the block, while it waits for the members.
        let trace = Trace::new();
        let block = task_group(async |group| {
            group.spawn(worker("one", 100, 10, trace.clone()));
            Ok::<_, GroupError>(())
        });
        assert!(matches!(timeout_after(ms(5), block).await, Err(TimedOut)));
        trace.add("timed out");
        assert_eq!(
            trace.take(),
            [
                "5 one told: cancelled: the join of its group was interrupted",
                "15 one clean",
                "15 timed out",
            ]
        );

        let trace = Trace::new();
        let panics = spawn({
            let trace = trace.clone();
            async move {
                let block = task_group(async |group| {
                    group.spawn(worker("one", 100, 10, trace.clone()));
                    sleep(ms(5)).await?;
                    assert!(trace.take().len() == 7, "the block panics");
                    Ok::<_, GroupError>(())
                });
                block.await
            }
        });
        let error = panics.await.unwrap_err();
        trace.add("panicked");
        assert!(error.panic_message().unwrap().contains("the block panics"), "{error}");
        assert_eq!(
            trace.take(),
            [
                "5 one told: cancelled: the block around its group panicked",
                "15 one clean",
                "15 panicked",
            ]
        );
    });
}

#[test]
fn block_may_join_and_lend_its_group() {
    run(async {
        let sum: Result<u32, GroupError> = task_group(async |group| {
            for number in 0..4 {
                group.spawn(async move { number });
            }
            let mut sum = 0;
            while let Some(done) = group.join_next().await? {
                sum += done.outcome.unwrap();
            }
            Ok(sum)
        })
        .await;
        assert_eq!(sum.unwrap(), 6);

        let first: Result<&str, GroupError> = task_group(async |group| {
            group.spawn(async { "only" });
            group.join_any().await
        })
        .await;
        assert_eq!(first.unwrap(), "only");
    });
}

#[test]
fn dropped_block_cancels_its_members() {
    run(async {
        let trace = Trace::new();
        {
            let block = pin!(task_group(async |group| {
                group.spawn(worker("one", 100, 10, trace.clone()));
                sleep(ms(50)).await?;
                Ok::<_, GroupError>(())
            }));
            let Either::Right(_) = select(block, pin!(sleep(ms(5)))).await else { panic!("early") };
        }
        sleep(ms(50)).await.unwrap();
        let why = "cancelled: its group was dropped without having been joined";
        assert_eq!(trace.take(), [&format!("5 one told: {why}"), "15 one clean"]);
    });
}

#[test]
fn in_parallel_gives_every_outcome_in_order() {
    run(async {
        let trace = Trace::new();
        let outcomes = in_parallel((0..4_u64).map(|number| async move {
            sleep(ms(40 - 10 * number)).await.unwrap();
            assert_ne!(number, 2, "this one breaks");
            number
        }));
        let outcomes = outcomes.await.unwrap();
        trace.add("done");
        assert_eq!(trace.take(), ["40 done"], "they ran side by side, and none was cut short");
        let values: Vec<Option<u64>> = outcomes.into_iter().map(Result::ok).collect();
        assert_eq!(values, [Some(0), Some(1), None, Some(3)]);
    });
}

#[test]
fn interrupted_in_parallel_leaves_no_child_behind() {
    run(async {
        let trace = Trace::new();
        let children = ["one", "two"].map(|name| worker(name, 100, 10, trace.clone()));
        let outcome = timeout_after(ms(5), async {
            let interrupted = in_parallel(children).await.unwrap_err();
            assert!(interrupted.is_timeout());
        });
        assert_eq!(outcome.await, Err(TimedOut));
        trace.add("over");
        assert_eq!(
            trace.take(),
            [
                "5 two told: cancelled: the wait for it was interrupted",
                "5 one told: cancelled: the wait for it was interrupted",
                "15 two clean",
                "15 one clean",
                "15 over",
            ]
        );
    });
}
