//! The calls of random programs on the system that runs them: pikake, or the model.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use pikake::task::GroupError;
use pikake::traps::HowSwallowed;
use pikake::{Interrupted, traps, try_task_group};

use crate::random_sync::{ALL_GIVEN_BACK, Exchange, Held, Points};
use crate::runner::{OnDrop, World};
use crate::{model, runner};

/// The result of a body with a deadline: its output, whether it expired, how late it was.
pub(crate) type Timed<T> = (Option<T>, bool, Duration);

/// The error of a group: how many tasks failed, how many more afterwards, and the interruption of
/// its owner, if any.
pub(crate) type Failures<A> = (usize, usize, Option<<A as Api>::Interrupted>);

/// The calls of a program.
pub(crate) trait Api: Sized + 'static {
    type Interrupted: Clone + fmt::Display + 'static;
    type Queue: Default;
    /// A task without an output.
    type Task: 'static;
    type Current: 'static;
    /// The locks and channels that the tasks share.
    type Points;

    fn sleep(length: Duration) -> impl Future<Output = Result<(), Self::Interrupted>> + Unpin;
    fn elapse(length: Duration) -> impl Future<Output = ()>;
    fn yield_now() -> impl Future<Output = Result<(), Self::Interrupted>>;
    fn future_wait<F: Future>(
        future: F,
    ) -> impl Future<Output = Result<F::Output, Self::Interrupted>>;
    fn timed<F: Future>(
        length: Duration,
        grace: Option<Duration>,
        body: F,
    ) -> impl Future<Output = Timed<F::Output>>;
    /// As `timed`, but drops a late output.
    fn timeout_after<F: Future>(
        length: Duration,
        grace: Option<Duration>,
        body: F,
    ) -> impl Future<Output = Option<F::Output>>;
    fn shield<F: Future>(body: F) -> impl Future<Output = F::Output>;
    fn check_interrupt() -> Result<(), Self::Interrupted>;
    fn pending_interrupt() -> Option<Self::Interrupted>;
    fn is_cancel(why: &Self::Interrupted) -> bool;

    fn park(queue: &Self::Queue) -> impl Future<Output = Result<(), Self::Interrupted>>;
    fn wake(queue: &Self::Queue, count: usize) -> usize;
    fn len(queue: &Self::Queue) -> usize;

    fn spawn(body: impl Future<Output = ()> + 'static) -> Self::Task;
    /// Starts a task inside the current step, if it may.
    fn spawn_eagerly(body: impl Future<Output = ()> + 'static) -> Self::Task;
    /// Waits for a task's end. Returns whether the task returned, or why this wait was interrupted.
    fn join(task: Self::Task) -> impl Future<Output = Result<bool, Self::Interrupted>>;
    /// Asks a task to end, waits for its end, and aborts it after the grace, if there is one.
    fn cancel(
        task: &Self::Task,
        grace: Option<Duration>,
    ) -> LocalBoxFuture<'static, Result<(), Self::Interrupted>>;
    fn request_cancel(task: &Self::Task, reason: &str);
    fn abort(task: &Self::Task);
    fn is_finished(task: &Self::Task) -> bool;
    fn current() -> Self::Current;
    /// The number of waits since the current task caught a cancel.
    fn waits_since_cancel() -> Option<u64>;
    /// The number of waits since the first interruption that was swallowed.
    fn swallowed() -> Option<u64>;
    fn request_cancel_of(current: &Self::Current, reason: &str);

    fn points(world: &World) -> Self::Points;
    /// Runs a block while it holds a lock or another shared object.
    fn hold(
        points: &Self::Points,
        held: Held,
        note: impl Fn(String),
        block: impl Future<Output = Result<(), Self::Interrupted>>,
    ) -> impl Future<Output = Result<(), Self::Interrupted>>;
    fn exchange(
        points: &Self::Points,
        exchange: Exchange,
        note: impl Fn(String),
    ) -> impl Future<Output = Result<(), Self::Interrupted>>;
    /// Runs blocks as the tasks of a group that is joined for all, for any, or not at all.
    fn group(
        policy: u8,
        blocks: Vec<impl Future<Output = Result<(), Self::Interrupted>> + 'static>,
    ) -> impl Future<Output = Result<(), Failures<Self>>>;
}

/// The calls that have the same names in pikake and in the model.
macro_rules! calls {
    ($system:ident, $traps:ident, $runner:ident) => {
        type Interrupted = $system::Interrupted;
        type Queue = $traps::WaitQueue;
        type Task = $system::Task<()>;

        fn sleep(length: Duration) -> impl Future<Output = Result<(), Self::Interrupted>> + Unpin {
            $system::sleep(length)
        }

        fn elapse(length: Duration) -> impl Future<Output = ()> {
            $traps::elapse(length)
        }

        fn yield_now() -> impl Future<Output = Result<(), Self::Interrupted>> {
            $system::yield_now()
        }

        fn future_wait<F: Future>(
            future: F,
        ) -> impl Future<Output = Result<F::Output, Self::Interrupted>> {
            $system::future_wait(future)
        }

        async fn timed<F: Future>(
            length: Duration,
            grace: Option<Duration>,
            body: F,
        ) -> Timed<F::Output> {
            let scope = $system::timed(length, body);
            let timed = match grace {
                Some(grace) => scope.grace(grace).await,
                None => scope.await,
            };
            (timed.output, timed.expired, timed.late)
        }

        async fn timeout_after<F: Future>(
            length: Duration,
            grace: Option<Duration>,
            body: F,
        ) -> Option<F::Output> {
            let scope = $system::timeout_after(length, body);
            let in_time = match grace {
                Some(grace) => scope.grace(grace).await,
                None => scope.await,
            };
            in_time.ok()
        }

        fn shield<F: Future>(body: F) -> impl Future<Output = F::Output> {
            $system::shield(body)
        }

        fn check_interrupt() -> Result<(), Self::Interrupted> {
            $system::check_interrupt()
        }

        fn pending_interrupt() -> Option<Self::Interrupted> {
            $system::pending_interrupt()
        }

        fn is_cancel(why: &Self::Interrupted) -> bool {
            why.is_cancel()
        }

        fn park(queue: &Self::Queue) -> impl Future<Output = Result<(), Self::Interrupted>> {
            $traps::park(queue)
        }

        fn wake(queue: &Self::Queue, count: usize) -> usize {
            queue.wake(count)
        }

        fn len(queue: &Self::Queue) -> usize {
            queue.len()
        }

        fn spawn(body: impl Future<Output = ()> + 'static) -> Self::Task {
            $system::spawn(body)
        }

        fn spawn_eagerly(body: impl Future<Output = ()> + 'static) -> Self::Task {
            $runner::spawn_eagerly(body)
        }

        async fn join(task: Self::Task) -> Result<bool, Self::Interrupted> {
            match task.await {
                Err($system::TaskError::Interrupted(why)) => Err(why),
                outcome => Ok(outcome.is_ok()),
            }
        }

        fn cancel(
            task: &Self::Task,
            grace: Option<Duration>,
        ) -> LocalBoxFuture<'static, Result<(), Self::Interrupted>> {
            match grace {
                Some(grace) => Box::pin(task.cancel_within(grace)),
                None => Box::pin(task.cancel()),
            }
        }

        fn request_cancel(task: &Self::Task, reason: &str) {
            task.request_cancel(reason);
        }

        fn abort(task: &Self::Task) {
            task.abort();
        }

        fn is_finished(task: &Self::Task) -> bool {
            task.is_finished()
        }

        fn current() -> Self::Current {
            $system::current()
        }

        fn request_cancel_of(current: &Self::Current, reason: &str) {
            current.request_cancel(reason);
        }
    };
}

pub(crate) struct Pikake;

impl Api for Pikake {
    calls!(pikake, traps, runner);

    type Current = pikake::task::Current;
    type Points = Points;

    fn points(world: &World) -> Points {
        Points::new(world.clone())
    }

    fn waits_since_cancel() -> Option<u64> {
        Self::current().task_ref().goes_on().map(|goes_on| goes_on.waits)
    }

    fn swallowed() -> Option<u64> {
        let swallowed = traps::swallowed()?;
        assert_eq!(swallowed.how, HowSwallowed::WaitsAgain);
        Some(swallowed.waits)
    }

    async fn hold(
        points: &Points,
        held: Held,
        note: impl Fn(String),
        block: impl Future<Output = Result<(), Interrupted>>,
    ) -> Result<(), Interrupted> {
        points.hold(held, note, block).await
    }

    async fn exchange(
        points: &Points,
        exchange: Exchange,
        note: impl Fn(String),
    ) -> Result<(), Interrupted> {
        points.exchange(exchange, note).await
    }

    async fn group(
        policy: u8,
        blocks: Vec<impl Future<Output = Result<(), Interrupted>> + 'static>,
    ) -> Result<(), Failures<Self>> {
        let outcome: Result<(), GroupError> = try_task_group(async |group| {
            for block in blocks {
                group.spawn(block);
            }
            match policy {
                0 => group.try_join_all().await.map(drop),
                1 => group.try_join_any().await,
                _ => Ok(()),
            }
        })
        .await;
        let failures = |error: GroupError| {
            let (failures, aftermath) = (error.failures().len(), error.aftermath().len());
            (failures, aftermath, error.interrupted().cloned())
        };
        outcome.map_err(failures)
    }
}

/// The model, which has neither locks nor channels nor groups.
pub(crate) struct Model;

impl Api for Model {
    calls!(model, model, model);

    type Current = model::Current;
    /// The model's programs hold no objects that they could fail to give back.
    type Points = OnDrop;

    fn points(world: &World) -> OnDrop {
        world.on_drop(ALL_GIVEN_BACK)
    }

    fn waits_since_cancel() -> Option<u64> {
        Self::current().waits_since_cancel()
    }

    fn swallowed() -> Option<u64> {
        model::swallowed()
    }

    async fn hold(
        _: &OnDrop,
        held: Held,
        _: impl Fn(String),
        _: impl Future<Output = Result<(), model::Interrupted>>,
    ) -> Result<(), model::Interrupted> {
        unreachable!("no program of the model holds {held:?}")
    }

    async fn exchange(
        _: &OnDrop,
        exchange: Exchange,
        _: impl Fn(String),
    ) -> Result<(), model::Interrupted> {
        unreachable!("no program of the model does {exchange:?}")
    }

    async fn group(
        _: u8,
        _: Vec<impl Future<Output = Result<(), model::Interrupted>> + 'static>,
    ) -> Result<(), Failures<Self>> {
        unreachable!("no program of the model has groups")
    }
}
