//! A task moves items from one queue to another, and is replaced now and then.
//!
//! The bug: a cancel during the wait for room drops the item that the task holds.

use std::rc::Rc;
use std::time::Duration;

use pikake::sim::{Cause, Sim};
use pikake::sync::Queue;
use pikake::{Interrupted, random, sleep, spawn};

const ITEMS: u32 = 20;
const PAUSE_MICROS: u64 = 1_000;
/// Than moving them all takes.
const MUCH_LONGER: Duration = Duration::from_secs(1);

type Items = Rc<Queue<u32>>;

async fn move_items(from: Items, to: Items, bug: bool) {
    while let Ok(Some(item)) = from.get().await {
        if let Err(not_put) = to.put(item).await {
            if !bug {
                from.push_front(not_put.into_item());
            }
            return;
        }
    }
}

async fn pause() -> Result<(), Interrupted> {
    sleep(Duration::from_micros(random::range(0..PAUSE_MICROS))).await
}

fn world(sim: &mut Sim, bug: bool) {
    sim.client("queues", move || async move {
        let (source, sink): (Items, Items) =
            (Rc::new(Queue::unbounded()), Rc::new(Queue::bounded(1)));
        let (from, to) = (source.clone(), sink.clone());
        let keeper = spawn(async move {
            loop {
                let mover = spawn(move_items(from.clone(), to.clone(), bug));
                // A new one every so often, as when a setting has changed.
                sleep(Duration::from_micros(random::range(0..40 * PAUSE_MICROS))).await?;
                let _ = mover.cancel().await;
            }
            #[expect(unreachable_code, reason = "it tells the type")]
            Ok::<(), Interrupted>(())
        });
        let producer = spawn(async move {
            for item in 0..ITEMS {
                pause().await?;
                source.put(item).await.expect("it is not closed");
            }
            Ok::<_, Interrupted>(())
        });
        for expected in 0..ITEMS {
            pause().await?;
            assert_eq!(sink.get().await?, Some(expected));
        }
        let _ = (producer.await, keeper.cancel().await);
        Ok::<_, Interrupted>(())
    });
    sim.time_limit(MUCH_LONGER);
}

#[test]
fn lossy_cancel_is_found_within_20_seeds() {
    let failure = super::found_within(20, world);
    // Another item in the place of the lost one, or none for ever, if it was the last.
    assert!(matches!(failure.cause, Cause::Panicked { .. } | Cause::TimeLimit(_)), "{failure}");
}

#[test]
fn sound_program_fails_no_seed() {
    super::sound(world);
}
