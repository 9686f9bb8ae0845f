//! A message that a real RabbitMQ does not take, among many that it does.

use std::time::Duration;

use pikake_jobs::broker::PublishFailure;
use pikake_jobs::{App, BrokerError, SendError};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{spawn, timeout_after};

use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(30);
const JOBS: usize = 200;
/// The largest message, in octets.
const LARGEST: usize = 100_000;

#[job(crate = pikake_jobs)]
async fn length(text: String) -> usize {
    text.len()
}

#[test]
fn it_alone_is_refused_and_the_others_are_answered() {
    Kernel::new().unwrap().run(async {
        let server = Server::start();
        let limit = format!("ctl eval application:set_env(rabbit,max_message_size,{LARGEST}).");
        server.command(limit).await;
        let app = App::new(server.url()).unwrap().jobs(length).connect().await.unwrap();
        // Has a queue, and answers that are read.
        let worker = spawn(App::new(server.url()).unwrap().jobs(length).run_worker());
        length.with("first".to_owned()).on(&app).send().await.unwrap().wait().await.unwrap();
        let mut sending = Vec::new();
        for number in 0..JOBS {
            let size = if number % 50 == 25 { LARGEST } else { number };
            let call = length.with("x".repeat(size)).on(&app);
            sending.push(spawn(async move { call.send().await }));
        }
        let (mut refused, mut answered, mut unanswered) = (0, 0, 0);
        for (number, sending) in sending.into_iter().enumerate() {
            match sending.await.unwrap() {
                Ok(handle) => match timeout_after(PATIENCE, handle.wait()).await.expect("an end") {
                    Ok(value) => {
                        assert_eq!(value, number);
                        answered += 1;
                    }
                    // Sent over a channel that another one cost afterwards: it cannot be answered.
                    Err(_) => unanswered += 1,
                },
                Err(SendError::Publish(error)) => {
                    assert_eq!(number % 50, 25, "{error}");
                    assert!(!error.is_uncertain);
                    let PublishFailure::Broker(BrokerError::Refused(why)) = &error.cause else {
                        panic!("{error}");
                    };
                    assert!(why.contains("larger than configured max size"), "{why}");
                    refused += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        println!("{refused} refused, {answered} answered, {unanswered} not");
        assert_eq!(refused, 4);
        assert!(answered >= JOBS - 4 - 25, "those before the first that was too large");
        worker.request_cancel("the test is over");
        let done = worker.await.unwrap().unwrap().stats.all.done as usize;
        assert!(done > JOBS - 4, "each was run, {done} in all");
        server.comes_to("pikake", (0, 0)).await;
        app.close().await.unwrap();
    });
}
