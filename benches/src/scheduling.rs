//! Workloads of tasks among themselves: no sockets, no other threads.

use std::future::Future;
use std::marker::PhantomData;

use futures_util::join;

use crate::figures::{Figures, Stopwatch};
use crate::runtime::{Channel, Runtime, wake_oneself};

/// Batches of tasks that return at once.
pub async fn spawn_join<R: Runtime>(size: usize, rounds: usize) -> Figures {
    let mut tasks = Vec::with_capacity(size);
    let watch = Stopwatch::start();
    for round in 0..rounds {
        tasks.extend((0..size).map(|number| R::spawn(async move { number ^ round })));
        for (number, task) in tasks.drain(..).enumerate() {
            assert_eq!(R::join(task).await, number ^ round);
        }
    }
    watch.per(size * rounds)
}

/// Runs a task so many times at once, and waits for all.
pub async fn side_by_side<R, F>(size: usize, task: impl Fn() -> F)
where
    R: Runtime,
    F: Future<Output = ()> + 'static,
{
    let tasks: Vec<_> = (0..size).map(|_| R::spawn(task())).collect();
    for task in tasks {
        R::join(task).await;
    }
}

/// What is repeated in a task.
pub trait Step: 'static {
    fn step() -> impl Future<Output = u32> + 'static;
}

/// The runtime's own way to let other tasks run.
pub struct Yield<R>(PhantomData<R>);

impl<R: Runtime> Step for Yield<R> {
    async fn step() -> u32 {
        R::yield_now().await;
        1
    }
}

/// Waking oneself, the same for all.
pub struct WakeOneself;

impl Step for WakeOneself {
    async fn step() -> u32 {
        wake_oneself().await;
        1
    }
}

/// Something that does not have to be waited for.
pub struct AtOnce<R>(PhantomData<R>);

impl<R: Runtime> Step for AtOnce<R> {
    async fn step() -> u32 {
        R::at_once().await;
        1
    }
}

/// One async function around another.
pub struct Nested<S>(PhantomData<S>);

impl<S: Step> Step for Nested<S> {
    async fn step() -> u32 {
        S::step().await + 1
    }
}

type Nested2<S> = Nested<Nested<S>>;
type Nested4<S> = Nested2<Nested2<S>>;
pub type Nested8<S> = Nested4<Nested4<S>>;
pub type Nested32<S> = Nested8<Nested8<Nested8<Nested8<S>>>>;

/// Sixteen at once, by `join!`.
pub struct Join16<S>(PhantomData<S>);

impl<S: Step> Step for Join16<S> {
    async fn step() -> u32 {
        let s = S::step;
        let sixteen = async {
            join!(s(), s(), s(), s(), s(), s(), s(), s(), s(), s(), s(), s(), s(), s(), s(), s())
        };
        sixteen.await.0
    }
}

/// Tasks that repeat a step.
pub async fn repeat<R: Runtime, S: Step>(size: usize, rounds: usize) -> Figures {
    let watch = Stopwatch::start();
    side_by_side::<R, _>(size, || async move {
        let mut sum = 0;
        for _ in 0..rounds {
            sum += u64::from(S::step().await);
        }
        assert!(sum >= rounds as u64);
    })
    .await;
    watch.per(size * rounds)
}

/// Pairs of tasks that send a number to and fro.
pub async fn ping_pong<R: Runtime, C: Channel>(size: usize, rounds: usize) -> Figures {
    let watch = Stopwatch::start();
    side_by_side::<R, _>(size, || async move {
        let (mut to, mut from_other) = C::new(1);
        let (mut to_other, mut from) = C::new(1);
        let other = R::spawn(async move {
            for _ in 0..rounds {
                let number = C::receive(&mut from_other).await;
                C::send(&mut to_other, number + 1).await;
            }
        });
        let mut number = 0;
        for _ in 0..rounds {
            C::send(&mut to, number).await;
            number = C::receive(&mut from).await;
        }
        assert_eq!(number as usize, rounds);
        R::join(other).await;
    })
    .await;
    watch.per(size * rounds)
}
