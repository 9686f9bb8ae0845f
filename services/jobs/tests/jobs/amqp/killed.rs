//! Workers that are killed in simulated worlds, while connections are cut: each chord ends.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use pikake_amqp_testing::{Broker, serve};
use pikake_jobs::{App, map};
use pikake_macros::job;
use pikake_net::TcpListener;
use pikake_sim::{Fault, FaultMix, FaultPlan, Runs, Sim};
use pikake_traps::{Interrupted, random, sleep};

use crate::SECOND;

const MEMBERS: u64 = 12;
const CHORDS: u64 = 3;
const WORKERS: [&str; 3] = ["one", "two", "three"];

thread_local! {
    /// The chords whose last job has run in this world, which is one thread's.
    static ENDED: RefCell<BTreeSet<u64>> = const { RefCell::new(BTreeSet::new()) };
}

#[job(crate = pikake_jobs)]
async fn member(number: u64) -> Result<u64, Interrupted> {
    // Some end while the broker still requeues what their last run held.
    if random::range(0..2) == 1 {
        sleep(Duration::from_millis(random::range(0..3_000))).await?;
    }
    Ok(number)
}

#[job(crate = pikake_jobs, ignore_result)]
async fn total(values: Vec<u64>, chord: u64) {
    assert_eq!(values, (0..MEMBERS).collect::<Vec<_>>());
    ENDED.with_borrow_mut(|ended| ended.insert(chord));
}

fn broker_host(sim: &mut Sim) -> Broker {
    let broker = Broker::new();
    broker.pause_between_ends(SECOND / 2);
    let served = broker.clone();
    sim.host("broker", move || {
        let broker = served.clone();
        async move {
            broker.restart();
            let listener = TcpListener::bind("0.0.0.0:5672").await.unwrap();
            drop(serve(broker, listener).await);
        }
    });
    broker
}

async fn work() -> Result<(), Interrupted> {
    loop {
        let app = App::new("amqp://broker").unwrap().jobs([member::JOB, total::JOB]).concurrency(4);
        // The broker may be away.
        let _ended = app.max_deliveries(u32::MAX).run_worker().await;
        sleep(SECOND / 10).await?;
    }
}

/// Kills of one worker after the other, and of the broker, which start again a little later.
fn kills(sim: &Sim, count: u32) -> FaultPlan {
    let mut rng = sim.rng("kills");
    let (mut plan, mut at) = (FaultPlan::new(), 2 * SECOND);
    let hosts = WORKERS.into_iter().chain(["broker"]);
    for host in hosts.cycle().take(count as usize) {
        at += Duration::from_micros(rng.range(200_000..1_500_000));
        plan = plan.at(at, Fault::Kill(host.to_owned()));
        plan = plan.at(at + SECOND / 10, Fault::Restart(host.to_owned()));
    }
    plan
}

/// A run that has lost its message to another worker takes no values of its chord: killed, it would
/// leave them to nobody. Two runs of a job in one process do not take them over one channel.
#[test]
fn each_chord_ends_under_kills_and_cuts() {
    Runs::new("each_chord_ends_under_kills_and_cuts").seeds(10).run(|sim| {
        ENDED.take();
        let broker = broker_host(sim);
        for worker in WORKERS {
            sim.host(worker, work);
        }
        sim.client("sender", move || {
            let broker = broker.clone();
            async move {
                let app = App::new("amqp://broker").unwrap();
                let mut connected = app.clone().connect().await;
                while connected.is_err() {
                    sleep(SECOND).await?;
                    connected = app.clone().connect().await;
                }
                for chord in 0..CHORDS {
                    let sent =
                        || map(member::with, 0..MEMBERS).then(total::after(chord)).on(&app).send();
                    while sent().await.is_err() {
                        sleep(SECOND / 10).await?;
                    }
                }
                for _ in 0..300 {
                    if ENDED.with_borrow(BTreeSet::len) as u64 == CHORDS {
                        return Ok::<_, Interrupted>(());
                    }
                    sleep(SECOND).await?;
                }
                let left =
                    |queue: &String| (queue.clone(), broker.ready(queue), broker.unacked(queue));
                let left: Vec<_> = broker.queues().iter().map(left).collect();
                panic!("not all ended: {:?}, but {left:?}", ENDED.take());
            }
        });
        let mut mix = FaultMix::network(20 * SECOND);
        mix.resets = 8;
        sim.fault_mix(mix);
        sim.faults(kills(sim, 20));
        sim.time_limit(Duration::from_secs(1_200));
        sim.step_limit(5_000_000);
    });
}
