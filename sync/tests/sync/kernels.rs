//! Locks and queues that several kernels use, one after the other and at once.

use std::fmt::Debug;
use std::future::Future;
use std::rc::Rc;

use pikake::sync::{Mutex, Queue, RwLock, Semaphore};
use pikake::traps::{WaitQueue, take};
use pikake::{sleep, spawn, timeout_after};

use crate::support::{kernel, ms, run, within};

/// Has a task wait in one kernel, and another one in another kernel that lives as well: the second
/// is refused, and the first is served. `counts` is the same before and after.
fn refused_by_another<T: 'static, C: PartialEq + Debug, F: Future<Output = ()> + 'static>(
    shared: T,
    wait: impl Fn(Rc<T>) -> F,
    counts: impl Fn(&T) -> C,
    serve: impl Fn(&T),
) {
    let shared = Rc::new(shared);
    let (one, other) = (kernel(), kernel());
    let [task] = one.run(async {
        let task = spawn(wait(shared.clone()));
        sleep(ms(1)).await.unwrap();
        [task]
    });
    let before = counts(&shared);
    let refused = other.try_run(wait(shared.clone())).unwrap_err();
    assert!(refused.panic_message().unwrap().contains("two kernels"), "{refused}");
    assert_eq!(counts(&shared), before);
    serve(&shared);
    one.run(task).unwrap();
}

#[test]
fn a_wait_in_a_second_living_kernel_panics() {
    within(|| {
        refused_by_another(
            WaitQueue::with_permits(1),
            |queue| async move { take(&queue, 2).await.unwrap() },
            |queue| (queue.len(), queue.free(), queue.granted()),
            |queue| queue.give(1),
        );
        let lent = Rc::new(Semaphore::new(3));
        refused_by_another(
            lent.clone(),
            |semaphore| async move { drop(semaphore.acquire_many(4).await.unwrap()) },
            |semaphore| (semaphore.waiting(), semaphore.available_permits()),
            |semaphore| semaphore.add_permits(1).unwrap(),
        );
        assert_eq!((lent.available_permits(), lent.waiting()), (4, 0));
        refused_by_another(
            Queue::bounded(1),
            |queue| async move { assert_eq!(queue.get().await, Ok(Some(1))) },
            |queue| (queue.getting(), queue.len()),
            |queue| queue.try_put(1).unwrap(),
        );
        refused_by_another(
            Queue::bounded(0),
            |queue| async move { queue.put(1).await.unwrap() },
            |queue| (queue.putting(), queue.len()),
            |queue| assert_eq!(queue.try_get(), Ok(1)),
        );
    });
}

#[test]
fn a_lock_in_a_second_living_kernel_panics() {
    within(|| {
        let mutex = Rc::new(Mutex::new(()));
        let held = std::cell::RefCell::new(mutex.try_lock().ok());
        let shared = mutex.clone();
        let (one, other) = (kernel(), kernel());
        let [task] = one.run(async {
            let task = spawn(async move { drop(shared.lock().await.unwrap()) });
            sleep(ms(1)).await.unwrap();
            [task]
        });
        let refused = other.try_run(async { drop(mutex.lock().await) }).unwrap_err();
        assert!(refused.panic_message().unwrap().contains("two kernels"), "{refused}");
        assert_eq!((mutex.waiting(), mutex.is_locked()), (1, true));
        drop(held.take());
        one.run(task).unwrap();
        assert!(mutex.try_lock().is_ok());
    });
}

/// What was handed over in a kernel that has ended, to a wait that nobody drops, is there in the
/// next kernel.
#[test]
fn second_kernel_gets_permits_of_a_forgotten_wait() {
    let (mutex, semaphore, queue) = (Mutex::new(()), Semaphore::new(0), Queue::bounded(1));
    let lock = RwLock::new(());
    run(async {
        let held = (mutex.lock().await.unwrap(), lock.read().await.unwrap());
        let mut waits = (
            Box::pin(mutex.lock()),
            Box::pin(semaphore.acquire_many(2)),
            Box::pin(queue.get()),
            Box::pin(lock.write()),
        );
        assert!(futures::poll!(waits.0.as_mut()).is_pending());
        assert!(futures::poll!(waits.1.as_mut()).is_pending());
        assert!(futures::poll!(waits.2.as_mut()).is_pending());
        assert!(futures::poll!(waits.3.as_mut()).is_pending());
        drop(held);
        semaphore.add_permits(3).unwrap();
        queue.try_put(1).unwrap();
        assert_eq!((semaphore.available_permits(), queue.try_get().ok()), (1, None));
        std::mem::forget(waits);
    });
    assert!(mutex.is_locked() && lock.is_writing());
    run(async {
        let all = timeout_after(ms(10), async {
            drop(mutex.lock().await.unwrap());
            assert_eq!(semaphore.acquire_many(3).await.unwrap().num_permits(), 3);
            assert_eq!(queue.get().await, Ok(Some(1)));
            drop(lock.write().await.unwrap());
        });
        all.await.expect("nobody holds anything");
    });
    assert!(mutex.try_lock().is_ok() && lock.try_write().is_ok());
    assert_eq!((semaphore.available_permits(), queue.is_empty()), (3, true));
}

/// The waits of a kernel that has ended are in no queue any more, and keep nobody waiting.
#[test]
fn a_second_kernel_waits_behind_no_ended_waits() {
    let semaphore = Semaphore::new(1);
    let queue = Queue::<u8>::bounded(1);
    let mut left = (Box::pin(semaphore.acquire_many(2)), Box::pin(queue.get()));
    run(async {
        assert!(futures::poll!(left.0.as_mut()).is_pending());
        assert!(futures::poll!(left.1.as_mut()).is_pending());
        assert_eq!((semaphore.waiting(), queue.getting()), (1, 1));
    });
    assert_eq!((semaphore.waiting(), queue.getting()), (0, 0));
    run(async {
        let all = timeout_after(ms(10), async {
            drop(semaphore.acquire().await.unwrap());
            queue.put(1).await.unwrap();
            assert_eq!(queue.get().await, Ok(Some(1)));
        });
        all.await.expect("nobody waits before it");
        drop(left);
    });
    assert_eq!((semaphore.available_permits(), queue.len()), (1, 0));
}

/// Waits that the program forgot leave the kernel's tables with their queue.
#[test]
fn a_dropped_queue_leaves_no_waits_behind() {
    let kernel = kernel();
    let queue = WaitQueue::new();
    kernel.run(async {
        for count in 1..=3 {
            let mut wait = take(&queue, count);
            assert!(futures::poll!(&mut wait).is_pending());
            std::mem::forget(wait);
        }
    });
    assert_eq!(kernel.wait_count(), 3);
    drop(queue);
    assert_eq!(kernel.wait_count(), 0);
}
