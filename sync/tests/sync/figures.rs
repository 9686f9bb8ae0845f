//! Figures of locks: waits and holds, in virtual time.

use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

use pikake::sim::Sim;
use pikake::sync::{Mutex, RwLock, Semaphore};
use pikake::task::Builder;
use pikake::traps::figures::measure_times;
use pikake::traps::locks::{LockRow, lock_rows};
use pikake::{Interrupted, TaskGroup, sleep};

const MS: Duration = Duration::from_millis(1);

/// Runs a future in a simulation, and returns the rows of its kernel.
fn rows<F>(future: fn() -> F) -> Vec<Rc<LockRow>>
where
    F: Future<Output = Result<(), Interrupted>> + 'static,
{
    measure_times();
    let (sender, rows) = std::sync::mpsc::channel();
    let mut sim = Sim::new(1);
    sim.client("client", move || {
        let sender = sender.clone();
        async move {
            future().await.unwrap();
            sender.send(lock_rows()).unwrap();
        }
    });
    sim.run().unwrap();
    rows.recv().unwrap()
}

fn count(counts: &[u64]) -> u64 {
    counts.iter().sum()
}

/// A slow holder and twenty waiters, each of which then has the lock for a millisecond.
#[test]
fn slow_holder_of_a_mutex_is_named() {
    let rows = rows(|| async {
        let stock = Rc::new(Mutex::new(0).named("stock"));
        let mut tasks = TaskGroup::new();
        let slow = stock.clone();
        let slow = Builder::new().name("slow").spawn(async move {
            let _stock = slow.lock().await?;
            sleep(800 * MS).await
        });
        sleep(10 * MS).await?;
        for _ in 0..20 {
            let stock = stock.clone();
            tasks.spawn(async move {
                let _stock = stock.lock().await?;
                sleep(MS).await
            });
        }
        tasks.join_all().await.unwrap();
        slow.await.unwrap()
    });
    let [row] = &*rows else { panic!("{rows:?}") };
    assert_eq!(format!("{}{}", row.kind, row.name.unwrap()), "mutex `stock`");
    // The last one waited for the slow one and for nineteen others; steps take no time.
    let about = |length: Duration, expected: Duration| {
        assert!(length >= expected && length < expected + MS, "{length:?}, not {expected:?}");
    };
    assert_eq!(count(&row.waits.counts()), 20);
    about(row.longest_wait.get(), 809 * MS);
    // Nobody waited for the last one.
    assert_eq!(count(&row.holds.counts()), 20);
    about(row.longest_hold.get(), 790 * MS);
    let holder = row.longest_holder.borrow();
    let (task, place) = holder.as_ref().unwrap();
    assert!(task.ends_with("`slow`") && place.file().ends_with("figures.rs"), "{task} {place}");
}

#[test]
fn uncontended_locks_have_no_figures() {
    let rows = rows(|| async {
        let (mutex, lock, semaphore) = (Mutex::new(0), RwLock::new(0), Semaphore::new(1));
        drop((mutex.lock().await?, lock.read().await?, semaphore.acquire().await?));
        drop(lock.write().await?);
        Ok(())
    });
    assert!(rows.is_empty(), "{rows:?}");
}

/// Locks that are made at one place share a row.
#[test]
fn unnamed_locks_are_shown_by_their_place() {
    let rows = rows(|| async {
        for _ in 0..3 {
            let lock = Rc::new(RwLock::new(0));
            let write = lock.write().await?;
            let reader = lock.clone();
            let reader = pikake::spawn(async move { reader.read().await.map(|value| *value) });
            sleep(5 * MS).await?;
            drop(write);
            assert_eq!(reader.await.unwrap()?, 0);
        }
        Ok(())
    });
    let [row] = &*rows else { panic!("{rows:?}") };
    let place = Location::caller().file();
    let name = row.name.unwrap().to_string();
    assert!(row.kind == "reader-writer lock" && name.contains(place), "{row:?}");
    assert_eq!((count(&row.waits.counts()), count(&row.holds.counts())), (3, 3));
}

/// The time between a wait that was given up and the next wait is no hold.
#[test]
fn hold_after_interrupted_waits_is_right() {
    let rows = rows(|| async {
        let lock = Rc::new(RwLock::new(()));
        let write = lock.clone();
        let write = move || {
            let lock = write.clone();
            pikake::spawn(async move { lock.write().await.map(drop) })
        };
        let held = lock.read().await?;
        let given_up = write();
        sleep(MS).await?;
        given_up.request_cancel("enough");
        assert!(given_up.await.unwrap().is_err());
        sleep(1_000 * MS).await?;
        let waits = write();
        sleep(5 * MS).await?;
        drop(held);
        waits.await.unwrap()
    });
    let [row] = &*rows else { panic!("{rows:?}") };
    assert_eq!((count(&row.waits.counts()), count(&row.holds.counts())), (1, 1));
    assert!(row.longest_hold.get() < 6 * MS, "{row:?}");
}

/// A wait that is given up is no wait, and what follows is right.
#[test]
fn interrupted_waits_do_not_count() {
    let rows = rows(|| async {
        let lock = Rc::new(Mutex::new(()));
        let held = lock.lock().await?;
        let waiter = lock.clone();
        let waiter = pikake::spawn(async move { waiter.lock().await.map(drop) });
        sleep(MS).await?;
        waiter.request_cancel("enough");
        assert!(waiter.await.unwrap().is_err());
        drop(held);
        drop(lock.lock().await?);
        Ok(())
    });
    assert!(rows.is_empty(), "{rows:?}");
}
