//! Random programs that search for a wait without an answer.
//!
//! Waits are inside combinators with wakers of their own, move to another scope or task after some
//! polls, and meet deadlines, cancels and aborts. Every wait ends: sleeps by themselves, and queues
//! are woken until no waiter is left. A task that is still there in the end has missed a wake-up; a
//! later wake-up cannot repair that, since a woken waiter has left the queue.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use futures::future::select;
use futures::stream::{FuturesUnordered, StreamExt};
use pikake::traps::{WaitQueue, park};
use pikake::{Task, current, future_wait, shield, sleep, spawn, timeout_after, yield_now};
use proptest::prelude::*;

use crate::support::{cases, kernel, ms, within};

const QUEUES: usize = 3;

/// How often the queues are woken before what is still there counts as stuck.
const ROUNDS: usize = 2_000;

/// How long one task waits for another, which may wait for it in turn; in milliseconds.
const PATIENCE: u64 = 30;

/// One wait of a program. Times are milliseconds.
#[derive(Clone, Debug)]
enum Wait {
    Sleep(u64),
    Yield,
    Park(usize),
    /// A foreign future that wakes itself so many times.
    WakeSelf(u32),
    /// A sleep that is visible as a foreign future, too.
    Foreign(u64),
}

#[derive(Clone, Debug)]
enum Op {
    Wait(Wait),
    Timed(u64, Vec<Op>),
    Shield(Vec<Op>),
    Select(Vec<Op>, Vec<Op>),
    Join(Vec<Op>, Vec<Op>),
    /// So many of them are awaited; the rest are dropped, or left in the pool.
    Unordered {
        parts: Vec<Vec<Op>>,
        awaited: usize,
        keep: bool,
    },
    Spawn(Vec<Op>),
    /// Polls a program once and leaves the rest in the pool.
    Leave(Vec<Op>),
    /// Polls something of the pool, once or to its end.
    TakeUp {
        which: usize,
        to_end: bool,
    },
    WakeQueue(usize, usize),
    CancelSelf,
    RequestCancel(usize),
    Cancel(usize),
    JoinTask(usize),
    Abort(usize),
}

fn wait() -> impl Strategy<Value = Wait> {
    prop_oneof![
        (0..20_u64).prop_map(Wait::Sleep),
        Just(Wait::Yield),
        (0..QUEUES).prop_map(Wait::Park),
        (1..4_u32).prop_map(Wait::WakeSelf),
        (0..20_u64).prop_map(Wait::Foreign),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let some = 0..8_usize;
    let leaf = prop_oneof![
        6 => wait().prop_map(Op::Wait),
        2 => wait().prop_map(|wait| Op::Leave(vec![Op::Wait(wait)])),
        3 => (some.clone(), any::<bool>()).prop_map(|(which, to_end)| Op::TakeUp { which, to_end }),
        2 => (0..QUEUES, 0..3_usize).prop_map(|(queue, count)| Op::WakeQueue(queue, count)),
        1 => Just(Op::CancelSelf),
        1 => some.clone().prop_map(Op::RequestCancel),
        1 => some.clone().prop_map(Op::Cancel),
        1 => some.clone().prop_map(Op::JoinTask),
        1 => some.prop_map(Op::Abort),
    ];
    leaf.prop_recursive(4, 80, 6, |op| {
        let ops = || prop::collection::vec(op.clone(), 0..6);
        let parts = prop::collection::vec(ops(), 0..4);
        prop_oneof![
            3 => (0..15_u64, ops()).prop_map(|(limit, ops)| Op::Timed(limit, ops)),
            1 => ops().prop_map(Op::Shield),
            2 => (ops(), ops()).prop_map(|(one, other)| Op::Select(one, other)),
            1 => (ops(), ops()).prop_map(|(one, other)| Op::Join(one, other)),
            3 => (parts, 0..4_usize, any::<bool>())
                .prop_map(|(parts, awaited, keep)| Op::Unordered { parts, awaited, keep }),
            2 => ops().prop_map(Op::Spawn),
            2 => ops().prop_map(Op::Leave),
        ]
    })
}

type Running = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Default)]
struct World {
    queues: [WaitQueue; QUEUES],
    /// Futures that a task has polled and left, for any task to continue.
    pool: RefCell<Vec<Running>>,
    tasks: RefCell<Vec<Task<()>>>,
    /// How many programs have begun, and how many of them were dropped, done or not.
    begun: Cell<usize>,
    dropped: Cell<usize>,
}

struct Begun(Rc<World>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.dropped.set(self.0.dropped.get() + 1);
    }
}

impl World {
    /// Takes one out of a list, whatever number is asked for.
    fn take<T>(list: &RefCell<Vec<T>>, which: usize) -> Option<T> {
        let mut list = list.borrow_mut();
        let which = which.checked_rem(list.len())?;
        Some(list.swap_remove(which))
    }

    fn with_task(&self, which: usize, act: impl FnOnce(&Task<()>)) {
        if let Some(task) = Self::take(&self.tasks, which) {
            act(&task);
            self.tasks.borrow_mut().push(task);
        }
    }

    fn start(self: &Rc<Self>, program: Vec<Op>) {
        let task = spawn(execute(self, program));
        self.tasks.borrow_mut().push(task);
    }

    async fn poll_once(&self, mut running: Running) {
        let is_done = poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx).is_ready())).await;
        if !is_done {
            self.pool.borrow_mut().push(running);
        }
    }
}

async fn wait_for(world: &World, wait: Wait) {
    // An interruption is no reason to stop: the program goes on and waits for the next thing.
    match wait {
        Wait::Sleep(time) => drop(sleep(ms(time)).await),
        Wait::Yield => drop(yield_now().await),
        Wait::Park(queue) => drop(park(&world.queues[queue]).await),
        Wait::Foreign(time) => drop(future_wait(sleep(ms(time))).await),
        Wait::WakeSelf(times) => {
            let mut left = times;
            poll_fn(|cx| {
                if left == 0 {
                    return Poll::Ready(());
                }
                left -= 1;
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
    }
}

fn execute(world: &Rc<World>, program: Vec<Op>) -> Running {
    let world = world.clone();
    world.begun.set(world.begun.get() + 1);
    let begun = Begun(world.clone());
    Box::pin(async move {
        let _begun = begun;
        for op in program {
            step(&world, op).await;
        }
    })
}

async fn step(world: &Rc<World>, op: Op) {
    match op {
        Op::Wait(wait) => wait_for(world, wait).await,
        Op::Timed(limit, program) => {
            let _ = timeout_after(ms(limit), execute(world, program)).await;
        }
        Op::Shield(program) => shield(execute(world, program)).await,
        Op::Select(one, other) => drop(select(execute(world, one), execute(world, other)).await),
        Op::Join(one, other) => {
            futures::join!(execute(world, one), execute(world, other));
        }
        Op::Unordered { parts, awaited, keep } => {
            let parts = parts.into_iter().map(|part| execute(world, part));
            let mut parts: FuturesUnordered<Running> = parts.collect();
            for _ in 0..awaited {
                if parts.next().await.is_none() {
                    break;
                }
            }
            if keep {
                world.pool.borrow_mut().extend(parts);
            }
        }
        Op::Spawn(program) => world.start(program),
        Op::Leave(program) => world.poll_once(execute(world, program)).await,
        Op::TakeUp { which, to_end } => match (World::take(&world.pool, which), to_end) {
            (Some(running), true) => drop(future_wait(running).await),
            (Some(running), false) => world.poll_once(running).await,
            (None, _) => {}
        },
        Op::WakeQueue(queue, count) => {
            world.queues[queue].wake(count);
        }
        Op::CancelSelf => current().request_cancel("by itself"),
        Op::RequestCancel(which) => world.with_task(which, |task| task.request_cancel("by one")),
        Op::Abort(which) => world.with_task(which, Task::abort),
        Op::Cancel(which) => {
            if let Some(task) = World::take(&world.tasks, which) {
                let _ = timeout_after(ms(PATIENCE), task.cancel()).await;
            }
        }
        Op::JoinTask(which) => {
            if let Some(task) = World::take(&world.tasks, which) {
                let joined = timeout_after(ms(PATIENCE), task).await;
                assert_no_panic(joined.unwrap_or(Ok(())));
            }
        }
    }
}

fn assert_no_panic(outcome: Result<(), pikake::TaskError>) {
    if let Err(error) = outcome {
        assert!(error.panic_message().is_none(), "a program panicked: {error}");
    }
}

fn check(programs: Vec<Vec<Op>>) {
    let world = Rc::new(World::default());
    let kernel = kernel();
    kernel.run(async {
        for program in programs {
            world.start(program);
        }
        for _ in 0..ROUNDS {
            sleep(ms(1)).await.unwrap();
            for queue in &world.queues {
                queue.wake(usize::MAX);
            }
            if kernel.task_count() > 1 {
                continue;
            }
            // This task is the last one. The futures in the pool must end as well, wherever they
            // were polled before.
            let left = world.pool.take();
            if left.is_empty() {
                break;
            }
            left.into_iter().for_each(|running| spawn(running).detach());
        }
        let tasks = world.tasks.take();
        let stuck: Vec<_> = tasks.iter().filter(|task| !task.is_finished()).collect();
        assert!(stuck.is_empty(), "wait in vain: {stuck:?}");
        assert!(world.pool.borrow().is_empty(), "the pool never runs dry");
        assert_eq!(kernel.task_count(), 1, "somebody who was left in the pool waits in vain");
        for task in tasks {
            assert_no_panic(task.await);
        }
    });
    drop(kernel);
    assert_eq!(world.dropped.get(), world.begun.get(), "every program was dropped once");
    assert_eq!(Rc::strong_count(&world), 1, "nothing is left of any task");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(75), ..ProptestConfig::default() })]

    #[test]
    fn moved_waits_are_never_lost(
        programs in prop::collection::vec(prop::collection::vec(op(), 0..10), 1..5),
    ) {
        within(move || check(programs));
    }
}
