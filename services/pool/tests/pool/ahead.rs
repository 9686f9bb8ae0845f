//! Cleanings that begin in the drop of the lease: whose task they are, and what reaches them.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use pikake::kernel::inspect::tasks_from;
use pikake::pool::{Lease, Manager, Pool, Verify};
use pikake::sync::Mutex;
use pikake::task::Builder;
use pikake::time::{Instant, deadline_after};
use pikake::traps::{nearest_deadline, pending_interrupt};
use pikake::{Interrupted, TimedOut, current, shield, sleep, spawn, timeout_after, yield_now};

use crate::objects::MS;

const HOUR: Duration = Duration::from_secs(3600);

/// Makes numbers, and cleans them by a function.
struct Cleaned<F>(F);

impl<F: AsyncFn() -> Result<(), Interrupted> + 'static> Manager for Cleaned<F> {
    type Object = u32;
    type Error = Interrupted;

    async fn create(&self) -> Result<u32, Interrupted> {
        Ok(7)
    }

    async fn clean(&self, _: &mut u32) -> Result<(), Interrupted> {
        (self.0)().await
    }
}

fn pool<F: AsyncFn() -> Result<(), Interrupted> + 'static>(clean: F) -> Pool<Cleaned<F>> {
    Pool::builder(Cleaned(clean)).name("numbers").limit(2).build()
}

/// Notes what a cleaning sees, for the test to compare.
type Notes<T> = Rc<RefCell<Vec<T>>>;

/// The object is ready when the drop returns, and no task was spawned for it.
#[pikake::test]
async fn a_cleaning_that_does_not_wait_costs_no_task() {
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    let pool = pool(async move || {
        counted.set(counted.get() + 1);
        Ok(())
    });
    drop(pool.get().await.unwrap());
    let tasks = |page: pikake::kernel::inspect::TaskPage| page.tasks.len();
    let before = tasks(tasks_from(0, 100));
    for _ in 0..100 {
        drop(pool.try_get().expect("the object is back"));
    }
    assert_eq!((count.get(), tasks(tasks_from(0, 100))), (101, before));
    let last = spawn(async { current().id() }).await.unwrap();
    assert!(last.0 < 10, "{last}");
}

/// From its first line on, and also after it has waited.
#[pikake::sim(seeds = 10)]
async fn a_cleaning_is_in_one_task_of_the_pool() {
    let seen = Notes::default();
    let notes = seen.clone();
    let pool = pool(async move || {
        let first = current().id();
        sleep(MS).await?;
        notes.borrow_mut().push((first, current().id(), current().name().to_owned()));
        Ok(())
    });
    let own = current().id();
    let leases = [pool.get().await.unwrap(), pool.get().await.unwrap()];
    drop(leases);
    sleep(5 * MS).await.unwrap();
    let seen = seen.take();
    assert_eq!(seen.len(), 2);
    for (first, last, name) in &seen {
        assert_eq!((first, &**name), (last, "pool `numbers` cleans an object"));
        assert_ne!(*first, own);
    }
    assert_ne!(seen[0].0, seen[1].0, "two that wait at the same time");
    assert_eq!(pool.stats().idle, 2);
}

/// Neither a cause of the holder nor one of its deadlines is the cleaning's, and the cleaning takes
/// none away.
#[pikake::sim(seeds = 10)]
async fn the_holders_interruption_is_not_the_cleanings() {
    for waits in [false, true] {
        let seen = Notes::default();
        let notes = seen.clone();
        let pool = pool(async move || {
            let is_own = nearest_deadline() > deadline_after(100 * MS);
            notes.borrow_mut().push((pending_interrupt().is_some(), is_own));
            if waits {
                sleep(10 * MS).await?;
            }
            Ok(())
        });
        // Dropped after the deadline, before another wait has returned the interruption.
        let late = timeout_after(5 * MS, async {
            let lease = pool.get().await.unwrap();
            shield(sleep(10 * MS)).await.unwrap();
            assert!(pending_interrupt().is_some());
            drop(lease);
        });
        let _ = late.await;
        // Dropped before the deadline, which passes while the cleaning waits.
        let early = timeout_after(5 * MS, async {
            drop(pool.get().await.unwrap());
            sleep(HOUR).await
        });
        let _ = early.await;
        sleep(50 * MS).await.unwrap();
        // The only deadline is that of `clean_within`.
        assert_eq!(seen.take(), [(false, true); 2]);
        let stats = pool.stats();
        assert_eq!((stats.clean_failures, stats.idle, stats.destroyed), (0, stats.total, 0));
    }
}

#[pikake::sim(seeds = 10)]
async fn a_holder_who_was_cancelled_gives_back_a_clean_object() {
    let pool = pool(async || sleep(MS).await);
    let other = pool.clone();
    let holder = spawn(async move {
        let lease = other.get().await.unwrap();
        let slept = sleep(HOUR).await;
        drop(lease);
        slept
    });
    sleep(MS).await.unwrap();
    holder.request_cancel("");
    holder.await.unwrap().unwrap_err();
    sleep(5 * MS).await.unwrap();
    assert_eq!((pool.stats().idle, pool.stats().clean_failures), (1, 0));
}

#[pikake::sim(seeds = 10)]
async fn a_cleaning_has_its_own_deadlines() {
    let ended = Notes::default();
    let notes = ended.clone();
    let pool = pool(async move || {
        let begin = Instant::now();
        let quick = timeout_after(MS, async { 7 }).await;
        let slow = timeout_after(5 * MS, sleep(HOUR)).await;
        notes.borrow_mut().push((quick, slow.map(drop), begin.elapsed().as_millis()));
        Ok(())
    });
    let slept = timeout_after(MS, async {
        drop(pool.get().await.unwrap());
        sleep(HOUR).await
    });
    assert!(matches!(slept.await, Err(TimedOut)));
    sleep(10 * MS).await.unwrap();
    assert_eq!(ended.take(), [(Ok(7), Err(TimedOut), 5)]);
    assert_eq!(pool.stats().idle, 1);
}

/// A lock that the cleaning takes before it waits is that of the pool's task: the holder of the
/// lease waits for the lock, and does not deadlock with itself, and neither does a second cleaning.
#[pikake::sim(seeds = 10)]
async fn locks_of_a_cleaning_are_not_the_holders() {
    let lock = Rc::new(Mutex::new(0));
    let inner = lock.clone();
    let pool = pool(async move || {
        let mut count = inner.lock().await?;
        sleep(MS).await?;
        *count += 1;
        Ok(())
    });
    drop([pool.get().await.unwrap(), pool.get().await.unwrap()]);
    assert!(*lock.lock().await.unwrap() <= 2);
    sleep(5 * MS).await.unwrap();
    assert_eq!((*lock.lock().await.unwrap(), pool.stats().idle), (2, 2));
}

/// The cleaning's task is cancelled, and nothing else: the object is destroyed.
#[pikake::sim(seeds = 10)]
async fn a_cleaning_that_cancels_its_task_ends_nothing_else() {
    for waits in [false, true] {
        let pool = pool(async move || {
            current().task_ref().request_cancel(Interrupted::cancelled("by the cleaning"));
            if waits { sleep(MS).await } else { Ok(()) }
        });
        for _ in 0..3 {
            drop(pool.get().await.unwrap());
            sleep(2 * MS).await.unwrap();
        }
        let stats = pool.stats();
        assert_eq!((stats.clean_failures, stats.created), if waits { (3, 3) } else { (0, 1) });
    }
}

/// A cause of the holder that comes up while the cleaning is polled is the holder's.
#[pikake::sim(seeds = 10)]
async fn a_cleaning_may_cancel_the_holder() {
    let holder = Rc::new(RefCell::new(None));
    let task = holder.clone();
    let pool = pool(async move || {
        let holder: pikake::traps::TaskRef = task.borrow().clone().unwrap();
        holder.request_cancel(Interrupted::cancelled("by the cleaning"));
        yield_now().await
    });
    let other = pool.clone();
    let slept = spawn(async move {
        let mut sleeping = pin!(sleep(HOUR));
        assert!(poll_fn(|cx| Poll::Ready(sleeping.as_mut().poll(cx).is_pending())).await);
        drop(other.get().await.unwrap());
        sleeping.await
    });
    *holder.borrow_mut() = Some(slept.task_ref().clone());
    assert!(slept.await.unwrap().unwrap_err().is_cancel());
    sleep(MS).await.unwrap();
    assert_eq!((pool.stats().idle, pool.stats().clean_failures), (1, 0));
}

/// Not in a simulation, which fails with any task that panics.
#[pikake::test]
async fn a_cleaning_that_panics_is_no_panic_of_the_holder() {
    let panics = Rc::new(Cell::new(true));
    let inner = panics.clone();
    let pool = pool(async move || {
        assert!(!inner.get(), "the cleaning panics");
        Ok(())
    });
    drop(pool.get().await.unwrap());
    panics.set(false);
    for _ in 0..3 {
        drop(pool.get().await.unwrap());
    }
    assert_eq!((pool.stats().created, pool.stats().destroyed), (2, 1));
}

/// No code of the manager runs while the thread unwinds.
#[pikake::test]
async fn a_cleaning_waits_for_the_end_of_an_unwind() {
    let seen = Notes::default();
    let notes = seen.clone();
    let pool = pool(async move || {
        notes.borrow_mut().push(std::thread::panicking());
        Ok(())
    });
    let other = pool.clone();
    let holder = spawn(async move {
        let _lease = other.get().await.unwrap();
        panic!("the holder panics");
    });
    assert!(holder.await.unwrap_err().panic().is_some());
    while pool.stats().idle == 0 {
        sleep(MS).await.unwrap();
    }
    assert_eq!(seen.take(), [false]);
}

/// A foreign future that has kept the waker of its first poll gets another one before it waits.
#[pikake::sim(seeds = 10)]
async fn a_cleaning_may_wait_for_a_foreign_future() {
    let (is_set, waker) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(None::<Waker>)));
    let (flag, kept) = (is_set.clone(), waker.clone());
    let pool = pool(async move || {
        poll_fn(|cx| {
            if flag.get() {
                return Poll::Ready(());
            }
            kept.borrow_mut().get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
            Poll::Pending
        })
        .await;
        Ok(())
    });
    drop(pool.get().await.unwrap());
    sleep(MS).await.unwrap();
    assert_eq!(pool.stats().cleaning, 1);
    is_set.set(true);
    waker.take().unwrap().wake();
    sleep(MS).await.unwrap();
    assert_eq!(pool.stats().idle, 1);
}

/// Several waits at a time, with the wakers of a combinator.
#[pikake::sim(seeds = 10)]
async fn a_cleaning_may_wait_for_several_things() {
    let pool = pool(async || {
        let waits = [2, 1, 3].map(|count| timeout_after(5 * MS, sleep(count * MS)));
        let ended: Vec<_> = waits.into_iter().collect::<FuturesUnordered<_>>().collect().await;
        ended.into_iter().try_for_each(|ended| ended.expect("in time"))
    });
    drop(pool.get().await.unwrap());
    sleep(4 * MS).await.unwrap();
    assert_eq!((pool.stats().idle, pool.stats().clean_failures), (1, 0));
}

/// A cleaning gives back a lease of another pool, whose cleaning begins inside.
#[pikake::sim(seeds = 10)]
async fn cleanings_nest() {
    for waits in [false, true] {
        let inner = pool(async move || if waits { sleep(MS).await } else { Ok(()) });
        let used = inner.clone();
        let outer = pool(async move || {
            let own = current().id();
            drop(used.try_get());
            assert_eq!(own, current().id());
            yield_now().await
        });
        drop(inner.get().await.unwrap());
        sleep(2 * MS).await.unwrap();
        drop(outer.get().await.unwrap());
        sleep(2 * MS).await.unwrap();
        assert_eq!((inner.stats().lent, inner.stats().idle, outer.stats().idle), (2, 1, 1));
    }
}

/// The drop of a task by its kernel is no step. The cleaning runs in a task then.
#[pikake::sim(seeds = 10)]
async fn an_aborted_holder_gives_back_a_clean_object() {
    let pool = pool(async || Ok(()));
    let other = pool.clone();
    let holder = Builder::new().spawn(async move {
        let _lease = other.get().await.unwrap();
        sleep(HOUR).await
    });
    sleep(MS).await.unwrap();
    holder.abort();
    sleep(MS).await.unwrap();
    assert_eq!((pool.stats().idle, pool.stats().leased), (1, 0));
}

/// A verification that does not wait needs no other step of the caller either.
#[pikake::sim]
async fn a_verification_that_does_not_wait_costs_no_step() {
    struct Checked;
    impl Manager for Checked {
        type Object = u32;
        type Error = Infallible;

        async fn create(&self) -> Result<u32, Infallible> {
            Ok(7)
        }
    }
    let pool = Pool::builder(Checked).limit(1).verify(Verify::Always).build();
    drop(pool.get().await.unwrap());
    for _ in 0..3 {
        let mut got = pin!(pool.get());
        let lease = poll_fn(|cx| Poll::Ready(got.as_mut().poll(cx))).await;
        let Poll::Ready(Ok(lease)) = lease else { panic!("the caller had to wait") };
        assert_eq!(Lease::uses(&lease) + 1, pool.stats().lent);
    }
}

/// Verifications that fail at once end one after the other, and not one inside the other.
#[pikake::sim(seeds = 1)]
async fn many_stale_objects_are_found_by_one_caller() {
    struct Stale(bool);
    impl Manager for Stale {
        type Object = u32;
        type Error = std::io::Error;

        async fn create(&self) -> std::io::Result<u32> {
            Ok(7)
        }

        async fn verify(&self, _: &mut u32) -> std::io::Result<()> {
            if self.0 { Err(std::io::ErrorKind::NotConnected.into()) } else { Ok(()) }
        }
    }
    const MANY: usize = 1_000;
    let pool = Pool::builder(Stale(true)).limit(MANY).verify(Verify::Always).build();
    for object in 0..MANY {
        pool.add(object as u32).unwrap();
    }
    let got = pool.get().await;
    assert!(got.is_err(), "a new object is stale, too");
    assert_eq!((pool.stats().idle, pool.stats().verify_failures), (0, MANY as u64 + 1));
}

/// A cleaning that cancels the holder, and panics: the holder still learns of the cancel.
#[pikake::sim(seeds = 10)]
async fn a_cleaning_that_cancels_its_caller_and_panics_loses_no_wake() {
    struct Cancels(Rc<RefCell<Option<pikake::traps::TaskRef>>>);
    impl Manager for Cancels {
        type Object = u32;
        type Error = Infallible;

        async fn create(&self) -> Result<u32, Infallible> {
            Ok(7)
        }

        async fn clean(&self, _: &mut u32) -> Result<(), Infallible> {
            let Some(task) = self.0.borrow_mut().take() else { return Ok(()) };
            task.request_cancel(Interrupted::cancelled("by the cleaning"));
            panic!("the cleaning");
        }
    }
    let holder = Rc::new(RefCell::new(None));
    let pool = Pool::new(Cancels(holder.clone()), 1);
    let is_polled_again = Rc::new(Cell::new(false));
    let polled = is_polled_again.clone();
    let task = spawn(async move {
        let lease = pool.get().await.unwrap();
        holder.replace(Some(current().task_ref().clone()));
        drop(lease);
        let mut is_first = true;
        poll_fn(|_| if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) })
            .await;
        polled.set(true);
    });
    sleep(10 * MS).await.unwrap();
    assert!(is_polled_again.get() && task.is_finished());
}
