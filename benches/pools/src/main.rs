//! Pools of pikake, and deadpool and bb8 on tokio's current-thread runtime, on the same work.
//!
//! * `pikake-pool-bench ready POOL COUNT`: one task gets and gives back a ready object, `COUNT`
//!   times; prints nanoseconds each.
//! * `pikake-pool-bench waiters POOL ROUNDS`: 1,000 tasks take one of 10 objects in turns, and keep
//!   it over a yield; prints how many others were served while one waited, at most, over the 990
//!   that this must be, and nanoseconds a lease.
//!
//! `pikake` has objects that come back clean. Those of `pikake-clean` are cleaned when they come
//! back, and the cleaning does not wait.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Instant;

const TASKS: usize = 1000;
const OBJECTS: usize = 10;

/// How many leases of others the last of a fair queue sees.
const IDEAL: f64 = (TASKS - OBJECTS) as f64;

/// A pool of any kind.
trait Lend: Clone + 'static {
    type Lease: 'static;

    fn get(&self) -> impl Future<Output = Self::Lease>;

    fn yield_now() -> impl Future<Output = ()>;

    /// Begins a task that nobody joins.
    fn spawn(future: impl Future<Output = ()> + 'static);
}

#[derive(Clone)]
struct Numbers {
    is_clean: bool,
}

impl pikake::pool::Manager for Numbers {
    type Object = u64;
    type Error = Infallible;

    async fn create(&self) -> Result<u64, Infallible> {
        Ok(7)
    }

    fn is_clean(&self, _: &u64) -> bool {
        self.is_clean
    }

    async fn clean(&self, number: &mut u64) -> Result<(), Infallible> {
        *number = 7;
        Ok(())
    }
}

impl Lend for pikake::pool::Pool<Numbers> {
    type Lease = pikake::pool::Lease<Numbers>;

    async fn get(&self) -> Self::Lease {
        self.get().await.unwrap()
    }

    async fn yield_now() {
        pikake::yield_now().await.unwrap();
    }

    fn spawn(future: impl Future<Output = ()> + 'static) {
        pikake::spawn(future).detach();
    }
}

impl deadpool::managed::Manager for Numbers {
    type Type = u64;
    type Error = Infallible;

    async fn create(&self) -> Result<u64, Infallible> {
        Ok(7)
    }

    async fn recycle(
        &self,
        number: &mut u64,
        _: &deadpool::managed::Metrics,
    ) -> deadpool::managed::RecycleResult<Infallible> {
        *number = 7;
        Ok(())
    }
}

impl Lend for deadpool::managed::Pool<Numbers> {
    type Lease = deadpool::managed::Object<Numbers>;

    async fn get(&self) -> Self::Lease {
        self.get().await.unwrap()
    }

    async fn yield_now() {
        tokio::task::yield_now().await;
    }

    fn spawn(future: impl Future<Output = ()> + 'static) {
        drop(tokio::task::spawn_local(future));
    }
}

impl bb8::ManageConnection for Numbers {
    type Connection = u64;
    type Error = Infallible;

    async fn connect(&self) -> Result<u64, Infallible> {
        Ok(7)
    }

    async fn is_valid(&self, _: &mut u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, _: &mut u64) -> bool {
        false
    }
}

impl Lend for bb8::Pool<Numbers> {
    type Lease = bb8::PooledConnection<'static, Numbers>;

    async fn get(&self) -> Self::Lease {
        self.get_owned().await.unwrap()
    }

    async fn yield_now() {
        tokio::task::yield_now().await;
    }

    fn spawn(future: impl Future<Output = ()> + 'static) {
        drop(tokio::task::spawn_local(future));
    }
}

async fn ready<P: Lend>(pool: P, count: usize) {
    drop(pool.get().await);
    P::yield_now().await;
    let begin = Instant::now();
    for _ in 0..count {
        drop(pool.get().await);
    }
    println!("{:.1} ns", begin.elapsed().as_nanos() as f64 / count as f64);
}

/// Counts the tasks that have not ended. The last one wakes the main task, so that the wait for the
/// end costs as much beside each pool.
#[derive(Default)]
struct Ends {
    left: Cell<usize>,
    waker: RefCell<Option<Waker>>,
}

impl Ends {
    fn end(&self) {
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.waker.take().expect("the main task waits").wake();
        }
    }

    async fn wait(&self) {
        poll_fn(|cx| {
            if self.left.get() == 0 {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

async fn waiters<P: Lend>(pool: P, rounds: usize) {
    let (served, worst) = (Rc::new(Cell::new(0_usize)), Rc::new(Cell::new(0)));
    let ends = Rc::new(Ends { left: Cell::new(TASKS), ..Ends::default() });
    let begin = Instant::now();
    for _ in 0..TASKS {
        let (pool, served, worst) = (pool.clone(), served.clone(), worst.clone());
        let ends = ends.clone();
        P::spawn(async move {
            for _ in 0..rounds {
                let before = served.get();
                let lease = pool.get().await;
                worst.set(worst.get().max(served.get() - before));
                served.set(served.get() + 1);
                P::yield_now().await;
                drop(lease);
            }
            ends.end();
        });
    }
    ends.wait().await;
    let each = begin.elapsed().as_nanos() as f64 / (TASKS * rounds) as f64;
    println!("worst wait {:.2} of the ideal, {each:.0} ns", worst.get() as f64 / IDEAL);
}

async fn run<P: Lend>(work: &str, pool: P, count: usize) {
    match work {
        "ready" => ready(pool, count).await,
        "waiters" => waiters(pool, count).await,
        _ => panic!("there is no such work"),
    }
}

fn on_tokio(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [work, pool, count] = &arguments[..] else {
        panic!("usage: pikake-pool-bench ready|waiters pikake|pikake-clean|deadpool|bb8 COUNT")
    };
    let count = count.parse().expect("a number");
    match &**pool {
        "pikake" | "pikake-clean" => pikake::run(async {
            let numbers = Numbers { is_clean: pool == "pikake" };
            let pool = pikake::pool::Pool::builder(numbers).limit(OBJECTS).wait(None).build();
            run(work, pool, count).await;
        }),
        "deadpool" => on_tokio(async {
            let pool =
                deadpool::managed::Pool::builder(Numbers { is_clean: true }).max_size(OBJECTS);
            run(work, pool.build().unwrap(), count).await;
        }),
        "bb8" => on_tokio(async {
            let pool = bb8::Pool::builder().max_size(OBJECTS as u32).test_on_check_out(false);
            let pool = pool.connection_timeout(std::time::Duration::from_secs(3600));
            run(work, pool.build_unchecked(Numbers { is_clean: true }), count).await;
        }),
        _ => panic!("there is no such pool"),
    }
}
