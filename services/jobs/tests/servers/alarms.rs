//! A real RabbitMQ that is short of memory: what is sent, what is stored, and how a worker ends
//! meanwhile.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pikake_jobs::broker::PublishFailure;
use pikake_jobs::{App, Call, SendError};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_sync::Event;
use pikake_traps::{elapsed_since, now, sleep, spawn, timeout_after};
use xtask::Kind;

use crate::server::Server;

const MOMENT: Duration = Duration::from_millis(20);
/// How long messages are held back here.
const HELD_BACK: Duration = Duration::from_millis(1_500);
/// What comes at all, comes within this.
const PATIENCE: Duration = Duration::from_secs(30);

thread_local! {
    static DONE: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    /// How many jobs wait for [`GO_ON`].
    static WAITING: Cell<usize> = const { Cell::new(0) };
    static GO_ON: Rc<Event> = Rc::default();
}

#[job(crate = pikake_jobs)]
async fn done(number: u32) -> u32 {
    DONE.with_borrow_mut(|numbers| numbers.push(number));
    number
}

#[job(crate = pikake_jobs)]
async fn waits(number: u32) -> Result<u32, String> {
    WAITING.set(WAITING.get() + 1);
    GO_ON.with(Rc::clone).wait().await.map_err(|why| why.to_string())?;
    DONE.with_borrow_mut(|numbers| numbers.push(number));
    Ok(number)
}

fn app_at(server: &Server) -> App {
    App::new(server.url()).unwrap().jobs([done::JOB, waits::JOB]).blocked_timeout(HELD_BACK)
}

/// Of one test at a time, since an alarm is one of the whole broker. It ends when this process
/// does.
static RABBIT: Mutex<Option<xtask::Server>> = Mutex::new(None);

fn on_a_server<F: Future<Output = ()>>(test: impl FnOnce(Server) -> F) {
    let mut rabbit = RABBIT.lock().unwrap_or_else(PoisonError::into_inner);
    if rabbit.is_none() {
        *rabbit = xtask::Server::start_or_skip(Kind::RabbitMq);
    }
    let Some(rabbit) = rabbit.clone() else { return };
    Kernel::new().unwrap().run(test(Server::of(rabbit)));
}

async fn until(mut is_so: impl FnMut() -> bool) {
    timeout_after(PATIENCE, async {
        while !is_so() {
            sleep(MOMENT).await.unwrap();
        }
    })
    .await
    .expect("it comes to that");
}

fn has_done(number: u32) -> bool {
    DONE.with_borrow(|numbers| numbers.contains(&number))
}

/// What is blocked in the end, and whether the message may be there.
fn blocked(error: SendError) -> (Duration, bool) {
    match error {
        SendError::Publish(error) => match error.cause {
            PublishFailure::Blocked(length) => (length, error.is_uncertain),
            other => panic!("{other:?}"),
        },
        other => panic!("{other}"),
    }
}

#[test]
fn what_is_sent_meanwhile_is_held_back_until_its_time_is_over() {
    on_a_server(async |server| {
        let app = app_at(&server).connect().await.unwrap();
        let broker = app.broker().unwrap();
        done::with(0).on(&app).ignore_result().send().await.unwrap();
        server.alarm(true).await;
        // The broker says it to who has sent something.
        assert_eq!(broker.state(), "open");
        let begun = now();
        let first = done::with(1).on(&app).ignore_result();
        let first = spawn(async move { first.send().await.map(drop) });
        until(|| broker.state() != "open").await;
        assert_eq!(broker.state(), "blocked: low on memory");
        assert!(format!("{app:?}").contains("blocked: low on memory"));
        let second = done::with(2).on(&app).ignore_result().send().await.unwrap_err();
        assert!(second.to_string().contains("took no messages"), "{second}");
        assert_eq!(blocked(second), (HELD_BACK, false));
        // It is on its way, and comes when the broker reads again.
        assert_eq!(blocked(first.await.unwrap().unwrap_err()), (HELD_BACK, true));
        assert!(elapsed_since(begun) < 6 * HELD_BACK);
        // Who only looks is told as well.
        let looks = app_at(&server).connect().await.unwrap();
        looks.broker().unwrap().probe().await.unwrap();
        until(|| looks.broker().unwrap().state() == "blocked: low on memory").await;
        looks.close().await.unwrap();

        server.alarm(false).await;
        until(|| broker.state() == "open").await;
        done::with(3).on(&app).ignore_result().send().await.unwrap();
        let worker = spawn(app_at(&server).run_worker());
        until(|| has_done(3)).await;
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
        assert_eq!(DONE.take(), [0, 1, 3]);
        app.close().await.unwrap();
    });
}

#[test]
fn outcomes_and_burials_are_made_up_for() {
    on_a_server(async |server| {
        let asks = app_at(&server).connect().await.unwrap();
        let worker = spawn(app_at(&server).run_worker());
        let value = waits::with(7).on(&asks).send().await.unwrap();
        until(|| WAITING.get() == 1).await;
        server.alarm(true).await;
        // Its connection is blocked by this, which tells the rest.
        let noise = asks.broker().unwrap().probe().await;
        noise.unwrap();
        GO_ON.with(|go_on| go_on.set());
        until(|| has_done(7)).await;
        sleep(2 * HELD_BACK).await.unwrap();
        // Its outcome has not been sent, and so it is not acknowledged.
        server.comes_to("pikake", (0, 1)).await;
        server.alarm(false).await;
        let waited = timeout_after(PATIENCE, value.wait()).await.expect("it is answered");
        assert_eq!(waited.unwrap(), 7);

        worker.request_cancel("it has done its job");
        assert_eq!(worker.await.unwrap().unwrap().stats.all.done, 1);
        server.comes_to("pikake", (0, 0)).await;

        // A poison, which a worker comes to that has its first connections while the broker takes
        // no messages. It asks others what they know later, for that question waits.
        Call::<()>::named("unknown", ()).on(&asks).ignore_result().send().await.unwrap();
        server.alarm(true).await;
        let worker = spawn(app_at(&server).connections(2).run_worker());
        server.comes_to("pikake", (0, 1)).await;
        sleep(2 * HELD_BACK).await.unwrap();
        assert_eq!(server.messages("pikake.dead").await, (0, 0));
        server.alarm(false).await;
        let broker = asks.broker().unwrap();
        let buried = timeout_after(PATIENCE, async {
            while broker.counts("pikake").await.unwrap().dead == 0 {
                sleep(MOMENT).await.unwrap();
            }
        });
        buried.await.expect("it is buried");
        worker.request_cancel("the test is over");
        assert_eq!(worker.await.unwrap().unwrap().stats.all.dead, 1);
        server.comes_to("pikake", (0, 0)).await;
        asks.close().await.unwrap();
        assert_eq!(DONE.take(), [7]);
    });
}

#[test]
fn a_worker_ends_in_its_time_and_gives_back() {
    on_a_server(async |server| {
        let asks = app_at(&server).connect().await.unwrap();
        let worker = spawn(app_at(&server).worker().grace(Duration::from_secs(1)).run());
        let value = waits::with(8).on(&asks).send().await.unwrap();
        until(|| WAITING.get() == 1).await;
        server.alarm(true).await;
        GO_ON.with(|go_on| go_on.set());
        until(|| has_done(8)).await;
        sleep(MOMENT).await.unwrap();
        let begun = now();
        worker.request_cancel("the test is over");
        let report = timeout_after(PATIENCE, worker).await.expect("it ends").unwrap().unwrap();
        let took = elapsed_since(begun);
        // No more messages are asked for, the grace, what jobs have to clean up, and a farewell;
        // the broker hears the first and the last too late.
        assert!(took < Duration::from_secs(1 + 1 + 5 + 3 + 2), "{took:?}");
        assert_eq!((report.left.len(), report.stats.all.given_back), (1, 1));
        server.alarm(false).await;
        // It is run once more, by another one.
        let worker = spawn(app_at(&server).run_worker());
        let waited = timeout_after(PATIENCE, value.wait()).await.expect("it is answered");
        assert_eq!(waited.unwrap(), 8);
        // The outcome may have been on its way the first time, but the message was given back.
        until(|| DONE.with_borrow(|numbers| numbers.len() == 2)).await;
        server.comes_to("pikake", (0, 0)).await;
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
        asks.close().await.unwrap();
        server.comes_to("pikake", (0, 0)).await;
        assert_eq!(DONE.take(), [8, 8]);
    });
}

#[test]
fn with_two_connections_what_is_there_is_worked_off() {
    on_a_server(async |server| {
        let asks = app_at(&server).connect().await.unwrap();
        let app = app_at(&server).connections(2).prefetch(2).connect().await.unwrap();
        let mut awaited = Vec::new();
        for number in 0..20 {
            let job = done::with(number).on(&asks);
            match number % 2 {
                0 => drop(job.ignore_result().send().await.unwrap()),
                _ => awaited.push((number, job.send().await.unwrap())),
            }
        }
        server.alarm(true).await;
        app.broker().unwrap().probe().await.unwrap();
        assert_eq!(app.broker().unwrap().state(), "open; publishing: blocked: low on memory");
        let worker = spawn(app.run_worker());
        until(|| has_done(19)).await;
        timeout_after(PATIENCE, async { while server.messages("pikake").await != (0, 0) {} })
            .await
            .expect("all are acknowledged");
        server.alarm(false).await;
        until(|| app.broker().unwrap().state() == "open").await;
        for (number, job) in awaited {
            let value = timeout_after(PATIENCE, job.wait()).await.expect("its outcome was kept");
            assert_eq!(value.unwrap(), number);
        }
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
        assert_eq!(DONE.take().len(), 20);
        asks.close().await.unwrap();
    });
}
