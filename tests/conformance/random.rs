//! Random programs give the same trace on every kernel and on the model.
//!
//! A program is a tree of blocks. Each task notes the answer of each wait, with the virtual time.
//! The traces show every answer that two kernels give differently, in another order, or at another
//! time; proptest then makes the program small.
//!
//! A program does something else when its tasks run in another order. The simulated kernel then has
//! to end every task, and to repeat a trace by its seed. The model has no libraries on top of it,
//! so its programs have no locks, channels and groups.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, LocalBoxFuture, select};
use futures::stream::{FuturesUnordered, StreamExt};
use pikake::sim::Schedule;
use proptest::prelude::*;

use crate::api::Api;
use crate::random_sync::{
    ALL_GIVEN_BACK, Exchange, Held, UNBALANCED, exchange, held, held_permits, permits,
};
use crate::runner::{
    IN_ANY_ORDER, Modelled, Real, Reference, Runner, Simulated, World, describe, drawn, ms,
    poll_once,
};

const QUEUES: usize = 2;

/// How long the main task lets the others run before it ends and the kernel shuts down.
const LIFE: u64 = 200;

#[derive(Clone, Debug)]
enum Op {
    Sleep(u64),
    /// A wait that cannot be interrupted.
    Elapse(u64),
    Yield,
    Check,
    Pending,
    Park(usize),
    Wake(usize, usize),
    /// A wait of so long on a future of another library, which is visible to the kernel or not.
    Foreign(u64, bool),
    /// An endless wait on a future of another library, which is visible to the kernel or not.
    Never(bool),
    /// A deadline, perhaps with a grace.
    Timed(u64, Option<u64>, Block),
    /// The same, but a late output is dropped.
    Timeout(u64, Option<u64>, Block),
    Shield(Block),
    /// A task that begins later, or at once.
    Spawn(bool, Block),
    JoinChild,
    /// A request to end, perhaps with a grace.
    CancelChild(Option<u64>),
    /// A request to some task, perhaps to itself.
    Cancel(usize),
    Abort(usize),
    /// The first of two to end; the other is dropped.
    Select(Block, Block),
    Join(Block, Block),
    Unordered(Vec<Block>),
    /// A group of tasks that is joined for all, for any, or not at all before its block ends.
    Group(u8, Vec<Block>),
    /// A sleep that is begun, perhaps in a scope of its own, left alone during a block, and then
    /// awaited.
    Carry(u64, Option<u64>, Block),
    /// A sleep that is begun and dropped.
    Abandon(u64),
    /// A block that is polled once and then left for any task's `Resume`.
    Begin(Block),
    /// Runs the block on that was left first, by any task.
    Resume,
    /// A shared object that the task waits for, and holds during a block.
    Held(Held, Block),
    Exchange(Exchange),
}

/// Some steps; one that is interrupted ends the block, unless it is stubborn.
#[derive(Clone, Debug)]
struct Block {
    is_stubborn: bool,
    ops: Vec<Op>,
}

/// The system that a program is for.
#[derive(Clone, Copy, PartialEq, Debug)]
enum For {
    TheKernels,
    /// With little else than permits of wait queues, which many tasks want.
    Permits,
    TheModel,
}

fn op(whom: For) -> BoxedStrategy<Op> {
    let time = || 0..10_u64;
    let leaf = prop_oneof![
        6 => time().prop_map(Op::Sleep),
        2 => time().prop_map(Op::Elapse),
        2 => Just(Op::Yield),
        1 => Just(Op::Check),
        1 => Just(Op::Pending),
        2 => (0..QUEUES).prop_map(Op::Park),
        3 => (0..QUEUES, 1..3_usize).prop_map(|(queue, count)| Op::Wake(queue, count)),
        2 => (time(), any::<bool>()).prop_map(|(length, visible)| Op::Foreign(length, visible)),
        1 => any::<bool>().prop_map(Op::Never),
        1 => Just(Op::JoinChild),
        1 => prop::option::of(time()).prop_map(Op::CancelChild),
        2 => (0..8_usize).prop_map(Op::Cancel),
        1 => (0..8_usize).prop_map(Op::Abort),
        1 => time().prop_map(Op::Abandon),
        2 => Just(Op::Resume),
    ];
    let leaf = match whom {
        For::TheKernels => prop_oneof![26 => leaf, 6 => exchange().prop_map(Op::Exchange)].boxed(),
        For::Permits => prop_oneof![
            8 => permits().prop_map(Op::Exchange),
            2 => time().prop_map(Op::Sleep),
            2 => Just(Op::Yield),
            2 => (0..8_usize).prop_map(Op::Cancel),
            1 => (0..8_usize).prop_map(Op::Abort),
            1 => Just(Op::Resume),
        ]
        .boxed(),
        For::TheModel => leaf.boxed(),
    };
    let nested =
        move |op: BoxedStrategy<Op>| {
            let block = || {
                (any::<bool>(), prop::collection::vec(op.clone(), 0..5))
                    .prop_map(|(is_stubborn, ops)| Block { is_stubborn, ops })
            };
            let nested = prop_oneof![
                4 => (time(), prop::option::weighted(0.2, time()), block())
                    .prop_map(|(limit, grace, block)| Op::Timed(limit, grace, block)),
                2 => (time(), prop::option::weighted(0.2, time()), block())
                    .prop_map(|(limit, grace, block)| Op::Timeout(limit, grace, block)),
                2 => block().prop_map(Op::Shield),
                4 => (any::<bool>(), block())
                    .prop_map(|(is_eager, block)| Op::Spawn(is_eager, block)),
                2 => (block(), block()).prop_map(|(one, other)| Op::Select(one, other)),
                2 => (block(), block()).prop_map(|(one, other)| Op::Join(one, other)),
                2 => prop::collection::vec(block(), 0..4).prop_map(Op::Unordered),
                1 => (time(), prop::option::of(time()), block())
                    .prop_map(|(length, limit, block)| Op::Carry(length, limit, block)),
                2 => block().prop_map(Op::Begin),
            ];
            match whom {
                For::TheModel => return nested.boxed(),
                For::Permits => return prop_oneof![
                    2 => nested,
                    1 => (held_permits(), block()).prop_map(|(held, block)| Op::Held(held, block)),
                ]
                .boxed(),
                For::TheKernels => {}
            }
            prop_oneof![
                18 => nested,
                2 => (0..3_u8, prop::collection::vec(block(), 0..4))
                    .prop_map(|(policy, blocks)| Op::Group(policy, blocks)),
                4 => (held(), block()).prop_map(|(held, block)| Op::Held(held, block)),
            ]
            .boxed()
        };
    leaf.prop_recursive(4, 40, 5, nested).boxed()
}

fn programs(whom: For) -> impl Strategy<Value = Vec<Block>> {
    let block = (any::<bool>(), prop::collection::vec(op(whom), 0..6))
        .prop_map(|(is_stubborn, ops)| Block { is_stubborn, ops });
    let most = if whom == For::Permits { 8 } else { 4 };
    prop::collection::vec(block, 1..most)
}

/// A task that several tasks may ask to end and one may join. The joining task takes the handle.
struct Child<A: Api> {
    handle: RefCell<Option<A::Task>>,
    /// Set at the task's first step.
    own: OnceCell<A::Current>,
}

struct Shared<A: Api> {
    world: World,
    queues: [A::Queue; QUEUES],
    points: A::Points,
    tasks: RefCell<Vec<Rc<Child<A>>>>,
    /// Blocks that were begun and left alone, until the main task ends.
    begun: RefCell<Option<VecDeque<Outcome<A>>>>,
    /// The number of tasks so far.
    graces: Cell<u64>,
}

type Outcome<A> = LocalBoxFuture<'static, Result<(), <A as Api>::Interrupted>>;

/// One task of a program.
struct Actor<A: Api> {
    shared: Rc<Shared<A>>,
    number: usize,
    children: RefCell<Vec<Rc<Child<A>>>>,
    blocks: Cell<u32>,
}

impl<A: Api> Actor<A> {
    fn note(&self, event: impl Display) {
        self.shared.world.note(format_args!("task {}: {event}", self.number));
    }
}

const DROPPED: &str = "its body is dropped";

struct Dropped<A: Api>(Rc<Actor<A>>);

impl<A: Api> Drop for Dropped<A> {
    fn drop(&mut self) {
        self.0.note(DROPPED);
    }
}

fn start<A: Api>(shared: &Rc<Shared<A>>, is_eager: bool, program: Block) -> Rc<Child<A>> {
    let number = shared.tasks.borrow().len();
    let (children, blocks) = (RefCell::default(), Cell::new(0));
    let actor = Rc::new(Actor { shared: shared.clone(), number, children, blocks });
    let child = Rc::new(Child { handle: RefCell::default(), own: OnceCell::new() });
    shared.tasks.borrow_mut().push(child.clone());
    let body = {
        let child = child.clone();
        async move {
            let _dropped = Dropped(actor.clone());
            assert!(child.own.set(A::current()).is_ok());
            let outcome = run(actor.clone(), program).await;
            actor.note(format_args!("ends: {}", describe(outcome)));
        }
    };
    let task = if is_eager { A::spawn_eagerly(body) } else { A::spawn(body) };
    child.handle.replace(Some(task));
    child
}

fn run<A: Api>(actor: Rc<Actor<A>>, block: Block) -> Outcome<A> {
    Box::pin(async move {
        let number = actor.blocks.get();
        actor.blocks.set(number + 1);
        for (place, op) in block.ops.into_iter().enumerate() {
            let outcome = execute(&actor, op).await;
            let waits = A::waits_since_cancel();
            let waits = waits.map_or_else(String::new, |waits| format!(", {waits} waits since"));
            let outcome_of = describe(outcome.clone());
            actor.note(format_args!("block {number} op {place}: {outcome_of}{waits}"));
            if outcome.is_err() && !block.is_stubborn {
                return outcome;
            }
        }
        Ok(())
    })
}

/// Keeps graces from ending together with sleeps and deadlines, whose order would then be
/// unspecified. Each grace gets a different fraction of a millisecond.
fn out_of_step<A: Api>(shared: &Shared<A>) -> Duration {
    let number = shared.graces.get() + 1;
    shared.graces.set(number);
    Duration::from_micros(100) + Duration::from_nanos(number)
}

/// A future of another library, which another task wakes.
fn foreign<A: Api>(length: u64) -> oneshot::Receiver<()> {
    let (send, receive) = oneshot::channel();
    drop(A::spawn(async move {
        if A::sleep(ms(length)).await.is_ok() {
            let _ = send.send(());
        }
    }));
    receive
}

async fn execute<A: Api>(actor: &Rc<Actor<A>>, op: Op) -> Result<(), A::Interrupted> {
    let shared = &actor.shared;
    let run = |block| run(actor.clone(), block);
    match op {
        Op::Sleep(length) => A::sleep(ms(length)).await?,
        Op::Elapse(length) => A::elapse(ms(length)).await,
        Op::Yield => A::yield_now().await?,
        Op::Check => A::check_interrupt()?,
        Op::Pending => {
            let pending = A::pending_interrupt();
            actor.note(format_args!("{:?}", pending.as_ref().map(A::is_cancel)))
        }
        Op::Park(queue) => A::park(&shared.queues[queue]).await?,
        Op::Wake(queue, count) => {
            let queue = &shared.queues[queue];
            actor.note(format_args!("woke {}, {} left", A::wake(queue, count), A::len(queue)));
        }
        Op::Foreign(length, true) => {
            let outcome = A::future_wait(foreign::<A>(length)).await?;
            actor.note(format_args!("{outcome:?}"));
        }
        Op::Foreign(length, false) => actor.note(format_args!("{:?}", foreign::<A>(length).await)),
        Op::Never(true) => A::future_wait(std::future::pending()).await?,
        Op::Never(false) => std::future::pending().await,
        Op::Timed(limit, grace, block) => {
            let grace = grace.map(|grace| ms(grace) + out_of_step(shared));
            let (output, expired, late) = A::timed(ms(limit), grace, run(block)).await;
            actor.note(format_args!("{expired} late {late:?}"));
            output.unwrap_or(Ok(()))?;
        }
        Op::Timeout(limit, grace, block) => {
            let grace = grace.map(|grace| ms(grace) + out_of_step(shared));
            match A::timeout_after(ms(limit), grace, run(block)).await {
                Some(in_time) => in_time?,
                None => actor.note("timed out"),
            }
        }
        Op::Shield(block) => A::shield(run(block)).await?,
        Op::Spawn(is_eager, block) => {
            let child = start(shared, is_eager, block);
            actor.children.borrow_mut().push(child);
        }
        Op::JoinChild => {
            let child = actor.children.borrow_mut().pop();
            if let Some(handle) = child.and_then(|child| child.handle.take()) {
                let has_returned = A::join(handle).await?;
                actor.note(format_args!("joined: {has_returned}"));
            }
        }
        Op::CancelChild(grace) => {
            let child = actor.children.borrow_mut().pop();
            let grace = grace.map(|grace| ms(grace) + out_of_step(shared));
            let cancel =
                child.and_then(|child| Some(A::cancel(child.handle.borrow().as_ref()?, grace)));
            if let Some(cancel) = cancel {
                cancel.await?;
            }
        }
        Op::Cancel(which) => match shared.tasks.borrow().get(which) {
            Some(child) => match (&*child.handle.borrow(), child.own.get()) {
                (Some(handle), _) => A::request_cancel(handle, "by a program"),
                (None, Some(own)) => A::request_cancel_of(own, "by a program"),
                (None, None) => {}
            },
            None => A::request_cancel_of(&A::current(), "by itself"),
        },
        Op::Abort(which) => {
            if let Some(child) = shared.tasks.borrow().get(which)
                && let Some(handle) = &*child.handle.borrow()
            {
                A::abort(handle);
            }
        }
        Op::Select(one, other) => match select(run(one), run(other)).await {
            Either::Left((outcome, loser)) => {
                drop(loser);
                actor.note("the first");
                outcome?;
            }
            Either::Right((outcome, loser)) => {
                drop(loser);
                actor.note("the second");
                outcome?;
            }
        },
        Op::Join(one, other) => {
            let (one, other) = futures::join!(run(one), run(other));
            one.and(other)?;
        }
        Op::Unordered(blocks) => {
            let mut set: FuturesUnordered<_> = blocks.into_iter().map(run).collect();
            while let Some(outcome) = set.next().await {
                actor.note(describe(outcome));
            }
        }
        Op::Group(policy, blocks) => {
            let blocks = blocks.into_iter().map(run).collect();
            let Err((failures, aftermath, why)) = A::group(policy, blocks).await else {
                return Ok(());
            };
            actor.note(format_args!("{failures} have failed, and then {aftermath}"));
            why.map_or(Ok(()), Err)?;
        }
        Op::Carry(length, limit, block) => {
            let mut nap = A::sleep(ms(length));
            let polled = match limit {
                Some(limit) => A::timed(ms(limit), None, poll_once(&mut nap)).await.0,
                None => Some(poll_once(&mut nap).await),
            };
            match polled {
                Some(Poll::Ready(answer)) => answer?,
                _ => {
                    let outcome = run(block).await;
                    nap.await?;
                    outcome?;
                }
            }
        }
        Op::Abandon(length) => {
            let mut nap = A::sleep(ms(length));
            let polled = poll_once(&mut nap).await.is_pending();
            actor.note(format_args!("begun: {polled}"));
        }
        Op::Begin(block) => {
            let mut begun = run(block);
            match poll_once(&mut begun).await {
                Poll::Ready(outcome) => outcome?,
                Poll::Pending => {
                    let mut left_alone = shared.begun.borrow_mut();
                    if let Some(left_alone) = &mut *left_alone {
                        left_alone.push_back(begun);
                    }
                }
            }
        }
        Op::Resume => {
            let begun = shared.begun.borrow_mut().as_mut().and_then(VecDeque::pop_front);
            if let Some(begun) = begun {
                actor.note("goes on with it");
                begun.await?;
            }
        }
        Op::Held(held, block) => {
            A::hold(&shared.points, held, |event| actor.note(event), run(block)).await?;
        }
        Op::Exchange(exchange) => {
            A::exchange(&shared.points, exchange, |event| actor.note(event)).await?;
        }
    }
    Ok(())
}

fn trace<R: Runner>(programs: Vec<Block>) -> Vec<String> {
    R::run(async |world| {
        let (queues, tasks, graces) = Default::default();
        let points = R::Api::points(&world);
        let begun = RefCell::new(Some(VecDeque::new()));
        let shared = Rc::new(Shared::<R::Api> { world, queues, points, tasks, begun, graces });
        for program in programs {
            start(&shared, false, program);
        }
        assert!(R::Api::sleep(ms(LIFE)).await.is_ok());
        let is_left = |child: &&Rc<Child<R::Api>>| match &*child.handle.borrow() {
            Some(handle) => !R::Api::is_finished(handle),
            None => false,
        };
        let left = shared.tasks.borrow().iter().filter(is_left).count();
        let begun = shared.begun.take();
        let not_resumed = begun.as_ref().map_or(0, VecDeque::len);
        shared.world.note(format_args!("{left} are left, {not_resumed} were not resumed"));
        shared.world.note(format_args!("swallowed: {:?}", R::Api::swallowed()));
        drop(begun);
    })
}

/// The tasks whose bodies were dropped never, or more than once.
fn not_ended(trace: &[String]) -> Vec<&str> {
    let mut dropped = BTreeMap::new();
    for event in trace {
        let Some((_, event)) = event.split_once(" task ") else { continue };
        let Some((task, what)) = event.split_once(": ") else { continue };
        *dropped.entry(task).or_insert(0) += u32::from(what == DROPPED);
    }
    dropped.into_iter().filter(|(_, times)| *times != 1).map(|(task, _)| task).collect()
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }
}

/// Runs a program on all kernels. Each in order gives the same trace; in other orders nothing is
/// lost.
fn compare_kernels(programs: Vec<Block>, seed: u64) -> Result<(), TestCaseError> {
    let on_the_real_one = trace::<Real>(programs.clone());
    let is_all_given_back = |event: &String| event.ends_with(ALL_GIVEN_BACK);
    let is_unbalanced = |event: &String| event.ends_with(UNBALANCED);
    prop_assert!(on_the_real_one.iter().any(is_all_given_back), "{on_the_real_one:#?}");
    prop_assert!(!on_the_real_one.iter().any(is_unbalanced), "{on_the_real_one:#?}");
    prop_assert_eq!(&on_the_real_one, &trace::<Reference>(programs.clone()));
    for schedule in IN_ANY_ORDER {
        let simulated = || drawn(seed, *schedule, || trace::<Simulated>(programs.clone()));
        let seen = simulated();
        match schedule {
            Schedule::Fifo => prop_assert_eq!(&on_the_real_one, &seen),
            _ => {
                prop_assert_eq!(&seen, &simulated());
                prop_assert!(not_ended(&seen).is_empty(), "{:#?}", seen);
                prop_assert!(seen.iter().any(is_all_given_back), "{:#?}", seen);
                prop_assert!(!seen.iter().any(is_unbalanced), "{:#?}", seen);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_kernel_runs_the_same_program_alike(
        programs in programs(For::TheKernels),
        seed in any::<u64>(),
    ) {
        compare_kernels(programs, seed)?;
    }

    #[test]
    fn every_kernel_grants_permits_alike(
        programs in programs(For::Permits),
        seed in any::<u64>(),
    ) {
        compare_kernels(programs, seed)?;
    }

    #[test]
    fn the_model_predicts_what_a_program_does(programs in programs(For::TheModel)) {
        prop_assert_eq!(trace::<Real>(programs.clone()), trace::<Modelled>(programs));
    }
}

/// Time that the clock of a test jumps over is no time without a poll, after which a pass is cut
/// short.
#[test]
fn pass_after_a_clock_jump_is_complete() {
    let block = |is_stubborn, ops| Block { is_stubborn, ops };
    let late = Op::Timed(0, None, block(false, vec![Op::Sleep(1)]));
    let programs = vec![block(
        false,
        vec![
            Op::Spawn(false, block(true, vec![Op::Park(0), late])),
            Op::Spawn(false, block(true, vec![Op::Park(0), Op::Yield, Op::Yield])),
        ],
    )];
    assert_eq!(trace::<Real>(programs.clone()), trace::<Reference>(programs));
}

/// A wait for the next step that began inside an inner step is satisfied in the step around, which
/// is one of another task, also if that task was asked to end.
#[test]
fn yield_of_an_inner_step_is_satisfied_around() {
    let block = |ops| Block { is_stubborn: false, ops };
    let inner = block(vec![Op::Begin(block(vec![Op::Yield])), Op::Cancel(0)]);
    let programs = vec![block(vec![Op::Spawn(true, inner), Op::Resume])];
    assert_eq!(trace::<Real>(programs.clone()), trace::<Modelled>(programs));
}
