//! One connection to the broker, however many jobs there are at a time, in tasks and in threads, that send jobs
//! themselves: counted at a real RabbitMQ.

#[path = "support/rabbit.rs"]
mod rabbit;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::App;
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_sync::Event;
use pikake_traps::{blocking, sleep, spawn};

use rabbit::Rabbit;

thread_local! {
    /// How many jobs wait for [`GO_ON`], and what they wait for.
    static WAITING: Cell<usize> = const { Cell::new(0) };
    static GO_ON: Rc<Event> = Rc::default();
}

#[job(crate = pikake_jobs)]
async fn small(number: usize) -> usize {
    number
}

/// Sends another job, and stays until it is told to go on.
#[job(crate = pikake_jobs)]
async fn sends(number: usize) -> Result<usize, String> {
    let value = small.delay(number).await.map_err(|error| error.to_string())?;
    WAITING.set(WAITING.get() + 1);
    GO_ON.with(Rc::clone).wait().await.map_err(|error| error.to_string())?;
    value.wait().await.map_err(|error| error.to_string())
}

#[job(crate = pikake_jobs)]
fn in_a_thread(number: usize) -> usize {
    std::thread::sleep(Duration::from_millis(10));
    number
}

/// How many connections there are to a virtual host, and how many channels.
fn counted(rabbit: &mut Rabbit, host: &str) -> (usize, usize) {
    let lines = rabbit.command("ctl list_connections vhost channels --no-table-headers");
    let ours = lines.iter().filter_map(|line| line.strip_prefix(host));
    let channels: Vec<usize> =
        ours.map(|channels| channels.trim().parse().expect("a number")).collect();
    (channels.len(), channels.iter().sum())
}

#[test]
fn there_is_one() {
    let mut rabbit = Rabbit::start();
    for jobs in [1, 20, 100] {
        let url = rabbit.fresh_url();
        let host = url.rsplit('/').next().expect("a virtual host").to_owned();
        rabbit = Kernel::new().unwrap().run(async move {
            let app = App::new(&url).unwrap().jobs((small, sends, in_a_thread));
            // Besides those that wait, one at a time.
            let app = app.concurrency(jobs + 1).connect().await.unwrap();
            let worker = spawn(app.run_worker());
            WAITING.set(0);
            GO_ON.with(|go_on| go_on.clear());
            let (mut waiting, mut threaded) = (Vec::new(), Vec::new());
            for number in 0..jobs {
                waiting.push(sends.delay(number).await.unwrap());
            }
            while WAITING.get() < jobs {
                sleep(Duration::from_millis(5)).await.unwrap();
            }
            for number in 0..jobs {
                threaded.push(in_a_thread.delay(number).await.unwrap());
            }
            // Asked in a thread: the broker is not to find the connection idle for long.
            let (rabbit, (connections, channels)) = blocking(move || {
                let counted = counted(&mut rabbit, &host);
                (rabbit, counted)
            })
            .await
            .unwrap();
            println!("{jobs} jobs at a time: {connections} connection, {channels} channels");
            assert_eq!(connections, 1);
            assert!(channels <= 8, "{channels} channels");
            GO_ON.with(|go_on| go_on.set());
            for (number, handle) in waiting.iter().enumerate().chain(threaded.iter().enumerate()) {
                assert_eq!(handle.wait().await.unwrap(), number);
            }
            worker.request_cancel("the test is over");
            worker.await.unwrap().unwrap();
            rabbit
        });
    }
}
