//! Each call of a control, interrupted at every moment at which it waits: it says so, it may be
//! made again, the worker goes on, and neither channels nor queues are left over at the server.

use std::rc::Rc;
use std::time::Duration;

use pikake_amqp_testing as fake;
use pikake_jobs::{AmqpBroker, App, Broker, JobError, MemoryStore};
use pikake_net::TcpListener;
use pikake_traps::{sleep, spawn};

use super::world::{MANY, MOMENT, QUIET, URL, is_interrupted, within};
use crate::{Running, SECOND, add, nap};

const WORKER: &str = "one@here";
const QUEUE: &str = "pikake";

/// A worker, and an application beside it that controls the worker.
struct World {
    client: App,
    worker: Running,
    is_amqp: bool,
}

/// Runs a case again and again, interrupted one moment later each time, until it no longer is. A
/// case makes one call that is interrupted after so long, makes it again, checks what came of it,
/// and tells whether it was interrupted.
fn at_every_moment(case: impl AsyncFn(&World, Duration) -> bool) {
    for is_amqp in [false, true] {
        let mut moments = 0;
        while interrupted_after(is_amqp, MOMENT * moments, &case) {
            moments += 1;
            assert!(moments < MANY, "it does not come to its end");
        }
        println!("over AMQP {is_amqp}: interrupted at {moments} moments");
        assert!(!is_amqp || moments > 10, "it hardly waits");
    }
}

fn interrupted_after(
    is_amqp: bool,
    length: Duration,
    case: impl AsyncFn(&World, Duration) -> bool,
) -> bool {
    pikake_sim::example(async {
        let (server, store) = (fake::Broker::new(), MemoryStore::new());
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let _serving = spawn(fake::serve(server.clone(), listener)).cancel_on_drop();
        let open = async || match is_amqp {
            true => Rc::new(AmqpBroker::open(URL).await.unwrap()) as Rc<dyn Broker>,
            false => Rc::new(store.open()),
        };
        let app = App::on(open().await).named(WORKER).jobs((add, nap));
        let worker = Running::start(&app, SECOND).await;
        let client = App::on(open().await).connect().await.unwrap();
        // The queue is declared, and the client has the channel that its commands go over.
        assert_eq!(add.with(1, 2).on(&client).send().await.unwrap().wait().await.unwrap(), 3);
        assert_eq!(client.control().ping().await.unwrap(), [WORKER]);
        sleep(QUIET).await.unwrap();
        let left = || {
            let mut queues = server.queues();
            queues.retain(|queue| !queue.contains("_delayed_"));
            (server.channels(), queues)
        };
        let before = left();
        let world = World { client, worker, is_amqp };
        let is_interrupted = case(&world, length).await;
        sleep(QUIET).await.unwrap();
        let World { client, worker, .. } = world;
        if !worker.task.is_finished() {
            assert_eq!(left(), before);
            // The worker goes on.
            let job = add.with(2, 3).on(&client).send().await.unwrap();
            assert_eq!(job.wait().await.unwrap(), 5);
            drop(worker.end().await);
        }
        client.close().await.unwrap();
        sleep(QUIET).await.unwrap();
        assert_eq!(server.connections(), 0);
        is_interrupted
    })
}

impl World {
    fn control(&self) -> pikake_jobs::Control {
        self.client.control().to([WORKER])
    }

    /// Whether a job that is sent now is run soon.
    async fn runs_jobs(&self) -> bool {
        let job = add.with(1, 1).on(&self.client).send().await.unwrap();
        let waited = within(2 * SECOND, job.wait()).await;
        assert!(matches!(waited, Ok(2) | Err(JobError::Interrupted(_))), "{waited:?}");
        waited.is_ok()
    }
}

#[test]
fn ping() {
    at_every_moment(async |world, length| {
        let told = within(length, world.control().ping()).await;
        let is_interrupted = is_interrupted(&told);
        assert_eq!(told.unwrap_or_else(|_| vec![WORKER.to_owned()]), [WORKER]);
        assert_eq!(world.control().ping().await.unwrap(), [WORKER]);
        is_interrupted
    });
}

/// Three questions at a time.
#[test]
fn workers() {
    at_every_moment(async |world, length| {
        let told = within(length, world.control().workers()).await;
        let workers = world.control().workers().await.unwrap();
        assert_eq!((&*workers[0].name, &*workers[0].queues), (WORKER, &[QUEUE.to_owned()][..]));
        is_interrupted(&told)
    });
}

#[test]
fn pause() {
    at_every_moment(async |world, length| {
        let told = within(length, world.control().pause(QUEUE)).await;
        let is_interrupted = is_interrupted(&told);
        world.control().pause(QUEUE).await.unwrap();
        assert_eq!(world.client.control().paused().await.unwrap(), [QUEUE]);
        assert!(!world.runs_jobs().await);
        world.control().resume(QUEUE).await.unwrap();
        assert!(world.runs_jobs().await);
        is_interrupted
    });
}

#[test]
fn resume() {
    at_every_moment(async |world, length| {
        world.control().pause(QUEUE).await.unwrap();
        let told = within(length, world.control().resume(QUEUE)).await;
        let is_interrupted = is_interrupted(&told);
        world.control().resume(QUEUE).await.unwrap();
        assert!(world.client.control().paused().await.unwrap().is_empty());
        assert!(world.runs_jobs().await);
        is_interrupted
    });
}

#[test]
fn revoke_and_terminate() {
    for terminates in [false, true] {
        at_every_moment(async |world, length| {
            let job = nap.with(3).on(&world.client);
            // One runs, and the other one does not begin.
            let job = if terminates { job } else { job.countdown(3 * SECOND) };
            let job = job.send().await.unwrap();
            sleep(SECOND).await.unwrap();
            let id = &job.id().0;
            let told = within(length, world.control().revoke(id, terminates)).await;
            let is_interrupted = is_interrupted(&told);
            world.control().revoke(id, terminates).await.unwrap();
            assert!(matches!(job.wait().await, Err(JobError::Revoked(why)) if why == "cancelled"));
            is_interrupted
        });
    }
}

#[test]
fn shutdown() {
    at_every_moment(async |world, length| {
        let told = within(length, world.control().shutdown()).await;
        let is_interrupted = is_interrupted(&told);
        if is_interrupted {
            sleep(QUIET).await.unwrap();
            world.control().shutdown().await.unwrap();
        }
        sleep(QUIET).await.unwrap();
        assert!(world.worker.task.is_finished());
        // A command waits for room on its channel alone.
        is_interrupted || (world.is_amqp && length < 20 * MOMENT)
    });
}

#[test]
fn events() {
    at_every_moment(async |world, length| {
        world.control().enable_events(true).await.unwrap();
        let told = within(length, world.client.control().events()).await;
        let mut is_one_interrupted = is_interrupted(&told);
        drop(told);
        let mut events = world.client.control().events().await.unwrap();
        add.with(1, 1).on(&world.client).send().await.unwrap().wait().await.unwrap();
        let mut kinds = Vec::new();
        // Also the wait for the next one may be made again, and loses none.
        while kinds.last().is_none_or(|kind| kind != "task-succeeded") {
            let next = within(length, events.next()).await;
            is_one_interrupted |= is_interrupted(&next) && length < SECOND / 1_000;
            let event = match next {
                Ok(event) => event,
                Err(_) => events.next().await.unwrap(),
            };
            if event.kind.starts_with("task-") {
                kinds.push(event.kind);
            }
        }
        assert_eq!(kinds, ["task-received", "task-started", "task-succeeded"]);
        is_one_interrupted
    });
}
