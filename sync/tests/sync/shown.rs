//! `Debug` of the primitives, inspections of waits, and reports of misuse.

use std::cell::RefCell;
use std::mem::forget;
use std::pin::Pin;
use std::rc::Rc;

use futures::future::join;
use futures::stream::{FuturesUnordered, StreamExt};
use pikake::sync::{
    Barrier, BelowZero, Condvar, Event, Local, Mutex, NothingToDo, OnceCell, Promise, Queue,
    ReentrantMutex, RwLock, Semaphore, TryGetError, TryPutError, WaitGroup, broadcast, mpsc,
    oneshot, watch,
};
use pikake::time::{Clock, Ticks, elapsed_since};
use pikake::{Kernel, shield, sleep, spawn, timeout_after, yield_now};

use crate::support::child;
use crate::support::warnings::OnWarning;
use crate::support::{kernel, ms, named, run};

#[test]
fn lock_debug_shows_holder_and_waiter_count() {
    run(async {
        let shared = Rc::new((Mutex::new(5), RwLock::new(6), ReentrantMutex::new(7)));
        assert_eq!(format!("{:?}", shared.0), "Mutex { value: 5, held_by: None, waiting: 0 }");
        let mut tasks = Vec::new();
        for name in ["ada", "bob"] {
            tasks.push(named(name, {
                let shared = shared.clone();
                async move {
                    let _one = shared.0.lock().await.unwrap();
                    let _two = shared.1.write().await.unwrap();
                    let _three = shared.2.lock().await.unwrap();
                    let _again = shared.2.lock().await.unwrap();
                    sleep(ms(1)).await.unwrap();
                }
            }));
        }
        yield_now().await.unwrap();
        let (ada, file) = (tasks[0].id(), file!());
        let shown = format!("{:?}", shared.0);
        let expected =
            format!("Mutex {{ value: <locked>, held_by: Some(task {ada} `ada` since {file}:");
        assert!(shown.starts_with(&expected), "{shown}");
        assert!(shown.ends_with("), waiting: 1 }"), "{shown}");
        let shown = format!("{:?}", shared.1);
        let expected =
            format!("RwLock {{ value: <locked>, reading: 0, written_by: Some(task {ada} `ada`");
        assert!(shown.starts_with(&expected), "{shown}");
        let shown = format!("{:?}", shared.2);
        assert!(shown.starts_with("ReentrantMutex { depth: 2, held_by: Some(task"), "{shown}");
        assert_eq!(shared.2.owner(), Some(ada));
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn debug_works_outside_a_kernel() {
    let shown = [
        format!("{:?}", Barrier::new(2)),
        format!("{:?}", Condvar::new()),
        format!("{:?}", Event::new()),
        format!("{:?}", Local::new(1)),
        format!("{:?}", Mutex::new(1)),
        format!("{:?}", OnceCell::<u8>::new()),
        format!("{:?}", Promise::<u8>::new()),
        format!("{:?}", Queue::<u8>::bounded(1)),
        format!("{:?}", RwLock::new(1)),
        format!("{:?}", Semaphore::bounded(1)),
        format!("{:?}", WaitGroup::new()),
        format!("{:?}", mpsc::channel::<u8>(1).0),
        format!("{:?}", oneshot::channel::<u8>().1),
        format!("{:?}", broadcast::channel::<u8>(1).0),
        format!("{:?}", watch::channel(1).1),
    ];
    let expected = [
        "Barrier { size: 2, waiting: 0 }",
        "Condvar { waiting: 0 }",
        "Event { is_set: false, waiting: 0 }",
        "Local(1)",
        "Mutex { value: 1, held_by: None, waiting: 0 }",
        "OnceCell { value: None, is_being_made: false, waiting: 0 }",
        "Promise { value: None, waiting: 0 }",
        "Queue { length: 0, capacity: Some(1), granted: 0, getting: 0, putting: 0, unfinished: 0, \
         closed: false }",
        "RwLock { value: 1, reading: 0, written_by: None, waiting_to_read: 0, waiting_to_write: 0 }",
        "Semaphore { available: 1, held: 0, bound: 1, waiting: 0 }",
        "WaitGroup { count: 0, waiting: 0 }",
        "Sender { senders: 1, length: 0, capacity: Some(1), sending: 0, receiving: false, \
         closed: false }",
        "Receiver { receiving: false, sender_gone: false }",
        "Sender { senders: 1, receivers: 1, kept: 0, capacity: 1, waiting: 0 }",
        "Receiver { value: 1, changes: 0, waiting: 0, sender_gone: false }",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn misuse_returns_an_error() {
    let queue = Queue::bounded(1);
    assert_eq!(queue.task_done(), Err(NothingToDo));
    queue.try_put(1).unwrap();
    assert_eq!(queue.try_put(2), Err(TryPutError::Full(2)));
    queue.task_done().unwrap();
    assert_eq!(queue.task_done(), Err(NothingToDo));
    queue.close();
    assert_eq!(queue.try_put(2), Err(TryPutError::Closed(2)));
    assert_eq!(queue.try_get(), Ok(1));
    assert_eq!(queue.try_get(), Err(TryGetError::Closed));

    let semaphore = Semaphore::bounded(2);
    let permit = semaphore.try_acquire().unwrap();
    let error = semaphore.add_permits(1).unwrap_err();
    assert_eq!((error.count, error.bound), (1, 2));
    permit.forget();
    semaphore.add_permits(1).unwrap();
    assert_eq!(semaphore.available_permits(), 2);
    assert!(Semaphore::new(1).add_permits(usize::MAX).is_err());

    let group = WaitGroup::new();
    group.up(2);
    let error: BelowZero = group.down(3).unwrap_err();
    assert_eq!((error.count, error.by, group.count()), (2, 3, 2));
}

#[test]
#[should_panic(expected = "3 permits were asked for, and there are never more than 2")]
fn a_request_that_can_never_be_met_panics() {
    drop(Semaphore::bounded(2).acquire_many(3));
}

#[test]
#[should_panic(expected = "inside a closure that works with it already")]
fn nested_use_of_local_state_panics() {
    let state = Local::new(1);
    state.with(|_| state.with(|_| ()));
}

#[test]
fn debug_shows_the_holder_while_it_is_known() {
    run(async {
        let mutex: &'static Mutex<()> = Box::leak(Box::default());
        let held = mutex.lock().await.unwrap();
        let here = pikake::current().id();
        let shown = |mutex: &Mutex<()>| format!("{mutex:?}");
        assert!(shown(mutex).contains(&format!("held_by: Some(task {here} `main` since ")));
        let next = named("next", async move {
            // Polled with a waker that is not the task's own.
            let mut locks: FuturesUnordered<_> = [mutex.lock()].into_iter().collect();
            let guard = futures::StreamExt::next(&mut locks).await.unwrap().unwrap();
            sleep(ms(1)).await.unwrap();
            std::mem::forget(guard);
        });
        yield_now().await.unwrap();
        drop(held);
        assert!(shown(mutex).contains("handed over, not running yet"));
        let id = next.id();
        yield_now().await.unwrap();
        assert!(shown(mutex).contains(&format!("task {id} `next` since ")), "{}", shown(mutex));
        // A task that has ended has no name any more.
        next.await.unwrap();
        assert!(shown(mutex).contains(&format!("task {id} since ")), "{}", shown(mutex));
    });
    let mutex = Mutex::new(());
    let held = mutex.try_lock().unwrap();
    assert!(format!("{mutex:?}").contains("held_by: Some(a caller outside tasks since "));
    drop(held);
    assert!(format!("{mutex:?}").contains("held_by: None"));
}

#[test]
fn shared_lock_debug_shows_its_holder() {
    let mutex = pikake::sync::shared::Mutex::new(());
    assert_eq!(format!("{mutex:?}"), "Mutex { held_by: None, waiting: 0, .. }");
    let held = mutex.blocking_lock();
    let thread = std::thread::current().id();
    let expected = format!("Mutex {{ held_by: Some({thread:?}), waiting: 0, .. }}");
    assert_eq!(format!("{mutex:?}"), expected);
    drop(held);
    run(async {
        let held = mutex.lock().await.unwrap();
        let task = pikake::current().id();
        let expected =
            format!("Mutex {{ held_by: Some(task {task} in {thread:?}), waiting: 0, .. }}");
        assert_eq!(format!("{mutex:?}"), expected);
        let mut next = std::pin::pin!(mutex.lock());
        assert!(futures::poll!(next.as_mut()).is_pending());
        drop(held);
        assert!(format!("{mutex:?}").contains("Some(handed over, not running yet)"));
        drop(next.await.unwrap());
    });
}

/// The listed waits of a kernel's tasks.
fn waited_for<C: Clock + 'static>(kernel: &Kernel<C>) -> Vec<String> {
    kernel.inspect();
    kernel.run(async { sleep(ms(1)).await.unwrap() });
    let abouts = kernel.waits().into_iter().filter_map(|wait| wait.about);
    let mut abouts: Vec<String> = abouts.map(String::from).collect();
    abouts.sort();
    abouts
}

#[test]
fn inspected_waits_name_their_primitives() {
    let kernel = kernel();
    let holder = kernel.run(async {
        let mutex = Rc::new(Mutex::new(()).named("accounts"));
        let semaphore = Rc::new(Semaphore::new(2).named("connections"));
        let lock = Rc::new(RwLock::new(()));
        let full = Rc::new(Queue::bounded(1).named("orders"));
        let (sender, receiver) = oneshot::channel::<()>();
        full.try_put(()).unwrap();
        let holder = named("holder", {
            let mutex = mutex.clone();
            async move {
                let _held = mutex.lock().await.unwrap();
                sleep(ms(10_000)).await.unwrap();
            }
        });
        yield_now().await.unwrap();
        forget((semaphore.try_acquire(), lock.try_write(), sender));
        let id = holder.id();
        let waits: [Pin<Box<dyn Future<Output = ()>>>; 7] = [
            Box::pin(async move { drop(mutex.lock().await) }),
            Box::pin(async move { drop(semaphore.acquire_many(2).await) }),
            Box::pin({
                let lock = lock.clone();
                async move { drop(lock.read().await) }
            }),
            Box::pin(async move { drop(full.put(()).await) }),
            Box::pin(async { drop(Event::new().wait().await) }),
            Box::pin(async move { drop(receiver.await) }),
            Box::pin(async move { drop(holder.await) }),
        ];
        for wait in waits {
            spawn(wait).detach();
        }
        forget(lock);
        yield_now().await.unwrap();
        id
    });
    let abouts = waited_for(&kernel);
    let places: Vec<&str> = abouts
        .iter()
        .filter_map(|about| about.split_once(" since "))
        .map(|(_, place)| place)
        .collect();
    assert!(places.iter().all(|place| place.starts_with(file!())), "{places:?}");
    let abouts: Vec<&str> =
        abouts.iter().map(|about| about.split(" since ").next().unwrap()).collect();
    assert_eq!(
        abouts,
        [
            "2 of semaphore `connections`, 1 of 2 free",
            "event",
            &format!("mutex `accounts`, held by task {holder} `holder`"),
            "oneshot channel",
            "queue `orders`, length 1 of 1",
            &format!("reader-writer lock made at {}:213:28, written by task 1", file!()),
            &format!("task {holder} `holder`"),
            "timer, 10s left",
        ]
    );
}

#[test]
fn inspected_waits_for_once_cell_name_the_initialiser() {
    let kernel = kernel();
    let maker = kernel.run(async {
        let cell = Rc::new(OnceCell::new().named("settings"));
        let making = cell.clone();
        let maker = named("maker", async move {
            making.get_or_init(std::future::pending::<u32>).await.map(drop).unwrap();
        });
        yield_now().await.unwrap();
        spawn(async move { cell.get_or_init(async || 1).await.map(drop) }).detach();
        yield_now().await.unwrap();
        let id = maker.id();
        maker.detach();
        id
    });
    let abouts = waited_for(&kernel);
    let expected =
        format!("once cell `settings`, which is being initialised by task {maker} `maker`");
    assert_eq!(abouts[1], expected);
    assert!(abouts[0].starts_with("future `"), "{abouts:?}");
    let waits = kernel.waits();
    let about =
        waits.iter().find_map(|wait| wait.about.as_ref().filter(|about| about.text() == expected));
    // Any task may call `set`.
    assert_eq!(about.unwrap().owners(), []);
}

#[test]
fn inspected_sub_waits_name_their_primitives() {
    let kernel = kernel();
    kernel.run(async {
        let (orders, mut next) = mpsc::channel::<()>(8);
        let event = Rc::new(Event::new().named("closing"));
        let of_task = event.clone();
        let task = spawn(async move {
            let mut waits = FuturesUnordered::<Pin<Box<dyn Future<Output = ()>>>>::new();
            waits.push(Box::pin(async move { drop(next.recv().await) }));
            waits.push(Box::pin(async move { drop(shield(of_task.wait()).await) }));
            while waits.next().await.is_some() {}
        });
        yield_now().await.unwrap();
        forget((orders.named("orders"), event, task));
    });
    assert_eq!(waited_for(&kernel), ["event `closing`", "queue `orders`, length 0 of 8"]);
}

#[test]
fn an_inspection_changes_no_cancel() {
    for is_inspected in [false, true] {
        let kernel = kernel();
        let (task, log) = kernel.run(async {
            let log = Rc::new(RefCell::new(Vec::new()));
            let of_task = log.clone();
            let task = spawn(async move {
                let mut waits = FuturesUnordered::new();
                for number in 1..=3_u32 {
                    waits.push(async move { (number, Event::new().wait().await.is_err()) });
                }
                while let Some(ended) = waits.next().await {
                    of_task.borrow_mut().push(ended);
                }
                sleep(ms(5)).await.is_ok()
            });
            yield_now().await.unwrap();
            (task, log)
        });
        if is_inspected {
            kernel.inspect();
        }
        kernel.enter(|| task.request_cancel("at the same moment")).unwrap();
        let cleaned_up = kernel.run(async { task.await.unwrap() });
        assert!(cleaned_up, "inspected: {is_inspected}");
        assert_eq!(*log.borrow(), [(1, true), (2, true), (3, true)], "inspected: {is_inspected}");
    }
}

#[test]
fn channels_have_names() {
    let kernel = kernel();
    kernel.run(async {
        let (orders, mut next_order) = mpsc::channel::<()>(8);
        let (prices, mut next_price) = broadcast::channel::<()>(8);
        let (settings, mut new_settings) = watch::channel(());
        let (result, answer) = oneshot::channel::<()>();
        let (orders, prices) = (orders.named("orders"), prices.named("prices"));
        let (settings, result) = (settings.named("settings"), result.named("result"));
        for shown in [
            format!("{orders:?} {next_order:?}"),
            format!("{prices:?} {next_price:?}"),
            format!("{settings:?} {new_settings:?}"),
            format!("{result:?} {answer:?}"),
        ] {
            assert_eq!(shown.matches("name: \"").count(), 2, "{shown}");
        }
        let waits: [Pin<Box<dyn Future<Output = ()>>>; 4] = [
            Box::pin(async move { drop(next_order.recv().await) }),
            Box::pin(async move { drop(next_price.recv().await) }),
            Box::pin(async move { drop(new_settings.changed().await) }),
            Box::pin(async move { drop(answer.await) }),
        ];
        for wait in waits {
            spawn(wait).detach();
        }
        forget((orders, prices, settings, result));
        yield_now().await.unwrap();
    });
    assert_eq!(
        waited_for(&kernel),
        [
            "broadcast channel `prices`",
            "oneshot channel `result`",
            "queue `orders`, length 0 of 8",
            "watch channel `settings`",
        ]
    );
}

/// A task that is asked to end before it waits for its own lock ends in that step, and its report
/// ends, too.
#[test]
fn the_report_of_an_own_lock_ends_with_its_task() {
    let kernel = kernel();
    kernel.run(async {
        let task = spawn(async {
            let lock = RwLock::new(());
            let _guard = lock.write().await.unwrap();
            pikake::current().request_cancel("by itself");
            lock.read().await.is_err()
        });
        assert!(task.await.unwrap());
        timeout_after(ms(5_000), sleep(ms(2_000))).await.unwrap().unwrap();
        assert_eq!(kernel.task_count(), 1, "the main task alone");
    });
}

/// The test that the next one starts.
const OWN_LOCK: &str = "shown::task_that_waits_for_its_own_lock";

/// A child runs it, alone, so that no other thread meets the warning without a subscriber.
#[test]
fn a_wait_for_ones_own_lock_is_reported() {
    let (is_good, printed) = child::run(&mut child::child(OWN_LOCK));
    assert!(is_good, "{printed}");
    let reports: Vec<_> = printed.lines().filter(|line| line.contains("reported at")).collect();
    let expected = [
        // The task waits for nothing else.
        ("at 900ms", "mutex `accounts`, held by task 1 `main` since", "nothing else"),
        ("at 1.9s", "reader-writer lock `routes`, written by task 1 `main` since", "nothing else"),
        // A timer or a foreign future might make another branch release the lock.
        ("at 3.9s", "mutex `accounts`, held by task 1 `main` since", "unless another branch"),
        ("at 5.9s", "mutex `accounts`, held by task 1 `main` since", "unless another branch"),
    ];
    assert_eq!(reports.len(), expected.len(), "{printed}");
    for (report, (when, lock, why)) in reports.iter().zip(expected) {
        for part in [when, lock, why, "waits_at"] {
            assert!(report.contains(part), "{part} in {report}");
        }
        assert_eq!(report.matches(file!()).count(), 2, "both places: {report}");
    }
}

#[test]
fn task_that_waits_for_its_own_lock() {
    if !child::is_child(OWN_LOCK) {
        return;
    }
    let report = |event: &tracing::Event<'_>| {
        let mut text = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text += &format!(" {}: {value:?}", field.name());
        });
        println!("reported at {:?}:{text}", elapsed_since(Ticks::ZERO));
    };
    tracing::subscriber::with_default(OnWarning(report), || {
        kernel().run(async {
            let mutex = Mutex::new(()).named("accounts");
            // A branch that gives the lock back in time is nobody's mistake.
            let short = async {
                let _held = mutex.lock().await.unwrap();
                sleep(ms(900)).await.unwrap();
            };
            join(short, async { drop(mutex.lock().await.unwrap()) }).await;
            let held = mutex.lock().await.unwrap();
            timeout_after(ms(1_000), mutex.lock()).await.unwrap_err();
            drop(held);

            let lock = RwLock::new(()).named("routes");
            let held = lock.write().await.unwrap();
            timeout_after(ms(1_000), lock.read()).await.unwrap_err();
            drop(held);

            let long = async {
                let _held = mutex.lock().await.unwrap();
                sleep(ms(2_000)).await.unwrap();
            };
            join(long, async { drop(mutex.lock().await.unwrap()) }).await;
            let (sender, receiver) = futures::channel::oneshot::channel();
            spawn(async move {
                sleep(ms(2_000)).await.unwrap();
                sender.send(()).unwrap();
            })
            .detach();
            let foreign = async {
                let _held = mutex.lock().await.unwrap();
                receiver.await.unwrap();
            };
            join(foreign, async { drop(mutex.lock().await.unwrap()) }).await;
        });
    });
}
