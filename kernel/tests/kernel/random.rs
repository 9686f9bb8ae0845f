//! Random programs against a model: nothing is lost, nothing is polled after its end, everything
//! is dropped once, and virtual time passes as the sum of the sleeps says.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use pikake::time::{elapsed_since, now};
use pikake::traps::{WaitQueue, park};
use pikake::{Task, sleep, spawn, timeout_after, yield_now};
use proptest::prelude::*;

use crate::support::{cases, kernel, ms};

const QUEUES: usize = 3;

/// How long a wait for a permit may take, in milliseconds, lest a program wait for ever.
const PATIENCE: u64 = 40;

#[derive(Clone, Debug)]
enum Op {
    Sleep(u64),
    Yield,
    /// A sleep with a deadline around it, both in milliseconds.
    Timed(u64, u64),
    /// A sleep inside two deadlines.
    Nested(u64, u64, u64),
    /// Two sleeps side by side, the loser dropped.
    Race(u64, u64),
    /// Two sleeps side by side, both awaited.
    Join(u64, u64),
    /// A sleep that is polled once and dropped.
    Abandon(u64),
    Give(usize),
    Take(usize),
    Spawn(Vec<Op>),
    /// Waits for all children.
    JoinChildren,
    /// Asks the newest child to end.
    CancelChild,
    AbortChild,
}

fn op() -> impl Strategy<Value = Op> {
    let time = 0..20_u64;
    let leaf = prop_oneof![
        3 => time.clone().prop_map(Op::Sleep),
        3 => Just(Op::Yield),
        2 => (time.clone(), time.clone()).prop_map(|(a, b)| Op::Timed(a, b)),
        2 => (time.clone(), time.clone(), time.clone()).prop_map(|(a, b, c)| Op::Nested(a, b, c)),
        1 => (time.clone(), time.clone()).prop_map(|(a, b)| Op::Race(a, b)),
        1 => (time.clone(), time.clone()).prop_map(|(a, b)| Op::Join(a, b)),
        1 => time.prop_map(Op::Abandon),
        2 => (0..QUEUES).prop_map(Op::Give),
        2 => (0..QUEUES).prop_map(Op::Take),
        1 => Just(Op::JoinChildren),
        1 => Just(Op::CancelChild),
        1 => Just(Op::AbortChild),
    ];
    leaf.prop_recursive(3, 60, 8, |op| prop::collection::vec(op, 0..8).prop_map(Op::Spawn))
}

/// The length of a program in milliseconds, if no other program changes it.
fn length(program: &[Op]) -> Option<u64> {
    program.iter().try_fold(0, |sum, op| {
        Some(
            sum + match *op {
                Op::Sleep(time) => time,
                Op::Timed(limit, time) => limit.min(time),
                Op::Nested(outer, inner, time) => outer.min(inner).min(time),
                Op::Race(one, other) => one.min(other),
                Op::Join(one, other) => one.max(other),
                Op::Yield | Op::Abandon(_) | Op::Give(_) | Op::Spawn(_) => 0,
                Op::Take(_) | Op::JoinChildren | Op::CancelChild | Op::AbortChild => return None,
            },
        )
    })
}

/// Permits, counted, with a queue for those who wait.
#[derive(Default)]
struct Permits {
    free: Cell<u64>,
    waiters: WaitQueue,
}

#[derive(Default)]
struct World {
    permits: [Permits; QUEUES],
    given: Cell<u64>,
    taken: Cell<u64>,
    /// Task number to (polls after its end, drops).
    lives: RefCell<BTreeMap<u32, (u32, u32)>>,
    last: Cell<u32>,
}

/// Counts what happens to a task's future.
struct Watched<F> {
    number: u32,
    world: Rc<World>,
    done: bool,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if self.done {
            self.world.lives.borrow_mut().get_mut(&self.number).unwrap().0 += 1;
        }
        let polled = self.future.as_mut().poll(cx);
        self.done = polled.is_ready();
        polled
    }
}

impl<F> Drop for Watched<F> {
    fn drop(&mut self) {
        self.world.lives.borrow_mut().get_mut(&self.number).unwrap().1 += 1;
    }
}

fn start(world: &Rc<World>, program: Vec<Op>) -> Task<()> {
    let number = world.last.get();
    world.last.set(number + 1);
    world.lives.borrow_mut().insert(number, (0, 0));
    let future = Box::pin(execute(world.clone(), program));
    spawn(Watched { number, world: world.clone(), done: false, future })
}

async fn execute(world: Rc<World>, program: Vec<Op>) {
    let started = now();
    let expected = length(&program);
    let mut children: Vec<Task<()>> = Vec::new();
    let mut interrupted = false;
    for op in program {
        let outcome = match op {
            Op::Sleep(time) => sleep(ms(time)).await,
            Op::Yield => yield_now().await,
            Op::Timed(limit, time) => match timeout_after(ms(limit), sleep(ms(time))).await {
                Ok(slept) => slept,
                Err(_) => Ok(()),
            },
            Op::Nested(outer, inner, time) => {
                let inner = timeout_after(ms(inner), sleep(ms(time)));
                match timeout_after(ms(outer), inner).await {
                    Ok(Ok(slept)) => slept,
                    Ok(Err(_)) | Err(_) => Ok(()),
                }
            }
            Op::Race(one, other) => {
                use futures::future::select;
                select(sleep(ms(one)), sleep(ms(other))).await.factor_first().0
            }
            Op::Join(one, other) => {
                let (one, other) = futures::join!(sleep(ms(one)), sleep(ms(other)));
                one.and(other)
            }
            Op::Abandon(time) => {
                let mut nap = Box::pin(sleep(ms(time)));
                let _ = futures::poll!(nap.as_mut());
                Ok(())
            }
            Op::Give(queue) => {
                let permits = &world.permits[queue];
                world.given.set(world.given.get() + 1);
                permits.free.set(permits.free.get() + 1);
                permits.waiters.wake(1);
                Ok(())
            }
            Op::Take(queue) => {
                let permits = &world.permits[queue];
                let take = async {
                    while permits.free.get() == 0 {
                        park(&permits.waiters).await?;
                    }
                    permits.free.set(permits.free.get() - 1);
                    world.taken.set(world.taken.get() + 1);
                    Ok(())
                };
                match timeout_after(ms(PATIENCE), take).await {
                    Ok(taken) => taken,
                    Err(_) => Ok(()),
                }
            }
            Op::Spawn(program) => {
                children.push(start(&world, program));
                Ok(())
            }
            Op::JoinChildren => {
                for child in children.drain(..) {
                    let _ = child.await;
                }
                Ok(())
            }
            Op::CancelChild => match children.pop() {
                Some(child) => child.cancel().await,
                None => Ok(()),
            },
            Op::AbortChild => {
                if let Some(child) = children.pop() {
                    child.abort();
                }
                Ok(())
            }
        };
        interrupted |= outcome.is_err();
    }
    if let Some(expected) = expected
        && !interrupted
    {
        assert_eq!(elapsed_since(started), ms(expected), "virtual time is the sum of the sleeps");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(100), ..ProptestConfig::default() })]

    #[test]
    fn programs_of_every_kind_end_and_leave_nothing(
        programs in prop::collection::vec(prop::collection::vec(op(), 0..12), 1..6),
    ) {
        let world = Rc::new(World::default());
        let kernel = kernel();
        kernel.run(async {
            let tasks: Vec<_> = programs.into_iter().map(|program| start(&world, program)).collect();
            for task in tasks {
                let ended = task.await;
                let told = "only a cancel may end a program early";
                assert!(ended.as_ref().err().is_none_or(|error| error.is_cancelled()), "{told}: {ended:?}");
            }
            // Detached children are let to their end, too.
            sleep(Duration::from_secs(10)).await.unwrap();
        });
        prop_assert_eq!(kernel.task_count(), 0, "every task ended by itself");
        for (task, life) in world.lives.borrow().iter() {
            prop_assert_eq!(*life, (0, 1), "task {}: polls after its end, drops", task);
        }
        let free: u64 = world.permits.iter().map(|permits| permits.free.get()).sum();
        prop_assert_eq!(free + world.taken.get(), world.given.get(), "no permit is lost or made");
        for permits in &world.permits {
            prop_assert!(permits.waiters.is_empty());
            prop_assert!(permits.free.get() == 0 || permits.waiters.is_empty());
        }
        drop(kernel);
        prop_assert_eq!(Rc::strong_count(&world), 1, "nothing is left of any task");
    }
}
