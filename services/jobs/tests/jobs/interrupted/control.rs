//! Each call of a control: it may be made again, the worker goes on, and neither channels nor
//! queues are left over at the server.

use std::rc::Rc;

use pikake_amqp_testing as fake;
use pikake_jobs::{AmqpBroker, App, Broker, JobError, MemoryStore};
use pikake_traps::{sleep, timeout_after};

use super::brokers::URL;
use super::{BOTH, Interruption, Kind, MOMENT, QUIET};
use crate::amqp::fake::serving;
use crate::{Running, SECOND, add, nap};

const WORKER: &str = "one@here";
const QUEUE: &str = "pikake";

/// A worker, and an application beside it that controls the worker.
struct World {
    client: App,
    worker: Running,
    is_amqp: bool,
}

/// Interrupts a case on each broker. It makes one call that is interrupted, makes it again, and
/// checks what came of it.
fn at_every_moment(case: impl AsyncFn(&World, &Interruption)) {
    for kind in BOTH {
        super::at_every_moment(kind, MOMENT, async |interruption| {
            let store = MemoryStore::new();
            let open = async || Rc::new(store.open()) as Rc<dyn Broker>;
            World::run(false, open, || (0, vec![]), &case, interruption).await;
        });
    }
    let moments = super::at_every_moment(Kind::Timeout, MOMENT, async |interruption| {
        let server = fake::Broker::new();
        let _serving = serving(&server).await.cancel_on_drop();
        let open = async || Rc::new(AmqpBroker::open(URL).await.unwrap()) as Rc<dyn Broker>;
        let left = || {
            let mut queues = server.queues();
            queues.retain(|queue| !queue.contains("_delayed_"));
            (server.channels(), queues)
        };
        World::run(true, open, left, &case, interruption).await;
        sleep(QUIET).await.unwrap();
        assert_eq!(server.connections(), 0);
    });
    assert!(moments > 3, "it hardly waits");
}

impl World {
    async fn run(
        is_amqp: bool,
        open: impl AsyncFn() -> Rc<dyn Broker>,
        left: impl Fn() -> (usize, Vec<String>),
        case: &impl AsyncFn(&World, &Interruption),
        interruption: &Interruption,
    ) {
        let app = App::on(open().await).named(WORKER).jobs([add::JOB, nap::JOB]);
        let worker = Running::start(&app, SECOND).await;
        let client = App::on(open().await).connect().await.unwrap();
        // The queue is declared, and the client has the channel that its commands go over.
        assert_eq!(add::with(1, 2).on(&client).send().await.unwrap().wait().await.unwrap(), 3);
        assert_eq!(client.control().ping().await.unwrap(), [WORKER]);
        sleep(QUIET).await.unwrap();
        let before = left();
        let world = Self { client, worker, is_amqp };
        case(&world, interruption).await;
        sleep(QUIET).await.unwrap();
        let Self { client, worker, .. } = world;
        if !worker.task.is_finished() {
            assert_eq!(left(), before);
            // The worker goes on.
            let job = add::with(2, 3).on(&client).send().await.unwrap();
            assert_eq!(job.wait().await.unwrap(), 5);
            drop(worker.end().await);
        }
        client.close().await.unwrap();
    }

    fn control(&self) -> pikake_jobs::Control {
        self.client.control().to([WORKER])
    }

    /// Whether a job that is sent now is run soon.
    async fn runs_jobs(&self) -> bool {
        let job = add::with(1, 1).on(&self.client).send().await.unwrap();
        match timeout_after(2 * SECOND, job.wait()).await {
            Ok(waited) => assert_eq!(waited.unwrap(), 2),
            Err(_) => return false,
        }
        true
    }
}

#[test]
fn ping() {
    at_every_moment(async |world, interruption| {
        let told = interruption.call(world.control().ping()).await;
        assert_eq!(told.unwrap_or_else(|_| vec![WORKER.to_owned()]), [WORKER]);
        assert_eq!(world.control().ping().await.unwrap(), [WORKER]);
    });
}

/// Three questions at a time.
#[test]
fn workers() {
    at_every_moment(async |world, interruption| {
        drop(interruption.call(world.control().workers()).await);
        let workers = world.control().workers().await.unwrap();
        assert_eq!((&*workers[0].name, &*workers[0].queues), (WORKER, &[QUEUE.to_owned()][..]));
    });
}

#[test]
fn pause() {
    at_every_moment(async |world, interruption| {
        drop(interruption.call(world.control().pause(QUEUE)).await);
        world.control().pause(QUEUE).await.unwrap();
        assert_eq!(world.client.control().paused().await.unwrap(), [QUEUE]);
        assert!(!world.runs_jobs().await);
        world.control().resume(QUEUE).await.unwrap();
        assert!(world.runs_jobs().await);
    });
}

#[test]
fn resume() {
    at_every_moment(async |world, interruption| {
        world.control().pause(QUEUE).await.unwrap();
        drop(interruption.call(world.control().resume(QUEUE)).await);
        world.control().resume(QUEUE).await.unwrap();
        assert!(world.client.control().paused().await.unwrap().is_empty());
        assert!(world.runs_jobs().await);
    });
}

#[test]
fn revoke_and_terminate() {
    for terminates in [false, true] {
        at_every_moment(async |world, interruption| {
            let job = nap::with(3).on(&world.client);
            // One runs, and the other one does not begin.
            let job = if terminates { job } else { job.countdown(3 * SECOND) };
            let job = job.send().await.unwrap();
            sleep(SECOND).await.unwrap();
            let id = &job.id().0;
            drop(interruption.call(world.control().revoke(id, terminates)).await);
            world.control().revoke(id, terminates).await.unwrap();
            assert!(matches!(job.wait().await, Err(JobError::Revoked(why)) if why == "cancelled"));
        });
    }
}

#[test]
fn shutdown() {
    at_every_moment(async |world, interruption| {
        if interruption.call(world.control().shutdown()).await.is_err() {
            sleep(QUIET).await.unwrap();
            world.control().shutdown().await.unwrap();
        }
        sleep(QUIET).await.unwrap();
        assert!(world.worker.task.is_finished());
        // A command waits for room on its channel alone.
        if world.is_amqp && interruption.after < 20 * MOMENT {
            interruption.is_met.set(true);
        }
    });
}

#[test]
fn events() {
    at_every_moment(async |world, interruption| {
        world.control().enable_events(true).await.unwrap();
        drop(interruption.call(world.client.control().events()).await);
        let mut events = world.client.control().events().await.unwrap();
        add::with(1, 1).on(&world.client).send().await.unwrap().wait().await.unwrap();
        let mut kinds = Vec::new();
        // Also the wait for the next one may be made again, and loses none.
        while kinds.last().is_none_or(|kind| kind != "task-succeeded") {
            let is_soon = interruption.after < SECOND / 1_000;
            let event = match interruption.call_if(is_soon, events.next()).await {
                Ok(event) => event,
                Err(_) => events.next().await.unwrap(),
            };
            if event.kind.starts_with("task-") {
                kinds.push(event.kind);
            }
        }
        assert_eq!(kinds, ["task-received", "task-started", "task-succeeded"]);
    });
}
