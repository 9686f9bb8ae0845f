//! Work that a kernel has offered, and that it begins itself.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake::task::{Builder, spawn_anywhere};
use pikake::time::{ManualClock, Ticks};
use pikake::traps::{Claim, Home, LATE, LocalHome, Peers, should_offer};
use pikake::{Kernel, Task, TaskError, spawn, yield_now};

/// Runs a task on a kernel beside another one, which takes nothing. No time passes.
fn run_beside_another<T>(body: impl AsyncFnOnce() -> T) -> T {
    let peers = Peers::new();
    let _other = Kernel::builder().peers(&peers).build().unwrap();
    let kernel = Kernel::builder().clock(ManualClock::new()).peers(&peers).build().unwrap();
    kernel.run(body())
}

type Order = Rc<RefCell<Vec<&'static str>>>;

/// Offers work that another kernel would not do. This one notes its beginning.
fn offer(order: &Order, name: &'static str) -> Task<()> {
    let order = order.clone();
    let there = |()| async { unreachable!("no other kernel takes the work") };
    Builder::new().offer((), there, move |claim: Claim<(), ()>| async move {
        assert!(matches!(claim, Claim::Here(())));
        order.borrow_mut().push(name);
    })
}

#[test]
fn offers_begin_after_all_other_work() {
    let order = run_beside_another(async || {
        let order = Order::default();
        let offers = [offer(&order, "first offer"), offer(&order, "second offer")];
        let of_task = order.clone();
        let task = spawn(async move {
            for name in ["step 1", "step 2", "step 3"] {
                of_task.borrow_mut().push(name);
                yield_now().await.unwrap();
            }
        });
        for offer in offers {
            offer.await.unwrap();
        }
        task.await.unwrap();
        order.take()
    });
    assert_eq!(order, ["step 1", "step 2", "step 3", "first offer", "second offer"]);
}

/// One at each poll of the driver that comes while tasks are ready.
#[test]
fn busy_kernel_begins_its_offers_in_the_end() {
    let steps = run_beside_another(async || {
        let order = Order::default();
        let offers = [(); 3].map(|()| offer(&order, ""));
        let mut steps = 0;
        while !offers.iter().all(Task::is_finished) {
            yield_now().await.unwrap();
            steps += 1;
            assert!(steps < 10_000, "{} of the offers have begun", order.borrow().len());
        }
        steps
    });
    assert!(steps > 100, "offers begin before other work: {steps}");
}

#[test]
fn offer_is_listed_as_a_wait() {
    run_beside_another(async || {
        let offer = offer(&Order::default(), "");
        let task = offer.task_ref();
        let (wait, place) = task.last_wait().unwrap();
        assert_eq!((wait.name(), task.is_ready()), ("offer", false));
        assert_eq!(place, task.spawned_at());
        offer.await.unwrap();
    });
}

/// The work ends with the task, without a step.
#[test]
fn cancelled_offer_never_begins() {
    let order = run_beside_another(async || {
        let order = Order::default();
        let (first, second) = (offer(&order, "first"), offer(&order, "second"));
        first.request_cancel("not wanted");
        second.await.unwrap();
        assert!(matches!(first.await, Err(TaskError::Cancelled(_))));
        order.take()
    });
    assert_eq!(order, ["second"]);
}

/// For some time after a long step the kernel offers to an idle one before it is late again.
#[test]
fn kernel_stays_late_for_a_time() {
    let (clock, peers) = (ManualClock::new(), Peers::new());
    let _idle = stuck(&peers);
    let kernel = Kernel::builder().clock(clock.clone()).peers(&peers).build().unwrap();
    let long_step = kernel.run(async {
        let on_time = should_offer();
        let since = spawn(async { should_offer() });
        clock.advance(2 * LATE);
        [on_time, since.await.unwrap()]
    });
    // The time between two runs is nobody's.
    let later = [1, 8, 5].map(|millis| {
        clock.advance(Duration::from_millis(millis));
        kernel.run(async { should_offer() })
    });
    assert_eq!((long_step, later), ([false, true], [true, true, false]));
}

/// A kernel that says that it waits for work, and whose thread never gets up.
fn stuck(peers: &Peers) -> LocalHome {
    let home = Home::open(|| {});
    home.set_late_from(Ticks::MAX);
    assert!(home.fall_asleep());
    peers.add(home.shared());
    home
}

/// The kernel leaves its work to the woken one for a time, and then begins it.
#[test]
fn offer_is_not_left_to_a_kernel_that_does_not_get_up() {
    let peers = Peers::new();
    let _stuck = stuck(&peers);
    let kernel = Kernel::builder().peers(&peers).build().unwrap();
    let began = kernel.run(async {
        spawn(async {}).detach();
        let offered = Instant::now();
        spawn_anywhere(move || async move { offered.elapsed() }).await.unwrap()
    });
    assert!(began >= Duration::from_micros(100), "{began:?}");
}
