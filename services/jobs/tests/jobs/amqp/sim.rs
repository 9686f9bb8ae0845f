//! Jobs over AMQP in simulated worlds: the client and the worker with the real codec, a broker that
//! lives in the program, partitions, cuts and alarms in many orders, over one connection and over
//! two. No job that was confirmed is lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use pikake_amqp_testing::{Broker, serve};
use pikake_jobs::{App, AppError, current_job};
use pikake_macros::job;
use pikake_net::TcpListener;
use pikake_sim::{FaultMix, Runs, Sim};
use pikake_traps::{Interrupted, random, sleep, spawn};

const SECOND: Duration = Duration::from_secs(1);
const QUEUE: &str = "pikake";
/// How many jobs there are. Of every third, the value is wanted.
const COUNT: u32 = 60;

thread_local! {
    /// How often each job was done in this world, which is one thread's.
    static DONE: RefCell<BTreeMap<u32, u32>> = const { RefCell::new(BTreeMap::new()) };
}

#[job(crate = pikake_jobs, retries = 3, backoff(first = "300ms", cap = "2s"))]
async fn count(number: u32) -> Result<u32, String> {
    sleep(Duration::from_millis(random::range(0..200))).await.map_err(|why| why.to_string())?;
    if number % 7 == 0 && current_job().retries() == 0 {
        return Err("the first time".into());
    }
    DONE.with_borrow_mut(|done| *done.entry(number).or_default() += 1);
    Ok(number)
}

fn app() -> App {
    let connections = random::range(1..3) as usize;
    App::new("amqp://broker").unwrap().jobs([count::JOB]).concurrency(4).connections(connections)
}

/// Connected, however often that takes.
async fn connected() -> Result<App, Interrupted> {
    loop {
        if let Ok(app) = app().connect().await {
            return Ok(app);
        }
        sleep(SECOND).await?;
    }
}

fn broker_host(sim: &mut Sim) -> Broker {
    let broker = Broker::new();
    sim.host("broker", {
        let broker = broker.clone();
        move || {
            let broker = broker.clone();
            async move {
                broker.restart();
                let listener = TcpListener::bind("0.0.0.0:5672").await.unwrap();
                drop(serve(broker, listener).await);
            }
        }
    });
    broker
}

fn done() -> usize {
    DONE.with_borrow(BTreeMap::len)
}

async fn send_all() -> Result<(), Interrupted> {
    let app = connected().await?;
    for number in 0..COUNT {
        let call = count::with(number).id(number.to_string()).on(&app);
        let call = if number % 3 == 0 { call } else { call.ignore_result() };
        // Not confirmed, it is sent again.
        while let Err(error) = call.clone().send().await {
            assert!(!matches!(error, pikake_jobs::SendError::NoApp), "{error}");
            sleep(SECOND).await?;
        }
        sleep(Duration::from_millis(random::range(0..800))).await?;
    }
    Ok(())
}

/// Works until all has been done and nothing is left.
async fn work(broker: Broker) -> Result<(), AppError> {
    loop {
        let app = app();
        let mut worker = spawn(app.run_worker());
        loop {
            if worker.is_finished() {
                // It was not let in.
                match (&mut worker).await.expect("it does not panic") {
                    Ok(_) => panic!("nobody told it to end"),
                    Err(AppError::Broker(error)) if error.is_lost() => break,
                    Err(error) => return Err(error),
                }
            }
            let left = broker.ready(QUEUE) + broker.unacked(QUEUE);
            if done() == COUNT as usize && left == 0 {
                assert_eq!(broker.ready("pikake.dead"), 0);
                worker.request_cancel("all is done");
                drop(worker.await);
                return Ok(());
            }
            sleep(SECOND).await?;
        }
    }
}

/// Lets the broker be short of memory now and then.
async fn alarms(broker: Broker) -> Result<(), Interrupted> {
    for _ in 0..3 {
        sleep(Duration::from_millis(random::range(1_000..15_000))).await?;
        broker.block(Some("memory"));
        sleep(Duration::from_millis(random::range(100..10_000))).await?;
        broker.block(None);
    }
    Ok(())
}

#[test]
fn no_confirmed_job_is_lost_under_faults() {
    let twice = Cell::new(0);
    let count_twice =
        || twice.set(twice.get() + DONE.take().values().sum::<u32>().saturating_sub(COUNT));
    Runs::new("no_confirmed_job_is_lost_under_faults").seeds(10).run(|sim| {
        count_twice();
        let broker = broker_host(sim);
        sim.client("sender", send_all);
        let seen = broker.clone();
        sim.client("worker", move || work(seen.clone()));
        sim.client("memory", move || alarms(broker.clone()));
        sim.fault_mix(FaultMix::network(20 * SECOND));
        sim.time_limit(Duration::from_secs(1_200));
        sim.step_limit(2_000_000);
    });
    count_twice();
    println!("{} jobs were done twice", twice.get());
    assert!(twice.get() > 0, "there were no faults to speak of");
}
