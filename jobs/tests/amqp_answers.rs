//! Who waits for an outcome is told when it cannot come any more. On the broker for tests, in virtual time.
#![cfg(feature = "amqp")]

#[path = "support/fake.rs"]
mod fake;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use pikake_amqp::State;
use pikake_jobs::{Broker, BrokerError, JobId};
use pikake_traps::{sleep, timeout_after};

use fake::{SECOND, message, on_a_broker};

#[test]
fn who_looks_at_a_confirm_when_its_connection_has_gone_waits_for_no_outcome() {
    on_a_broker(async |server, broker| {
        let mut asks = message("a");
        broker.expect(&mut asks).await.unwrap();
        let mut publishing = pin!(broker.publish("jobs", asks, None));
        poll_fn(|cx| {
            assert!(publishing.as_mut().poll(cx).is_pending(), "it cannot be confirmed yet");
            Poll::Ready(())
        })
        .await;
        sleep(SECOND).await.unwrap();
        assert_eq!(server.ready("jobs"), 1);
        server.cut();
        while !matches!(broker.connection().changed().await, Ok(State::Open)) {}
        publishing.await.expect("it was confirmed");
        let job = JobId("a".to_owned());
        let waited = timeout_after(10 * SECOND, broker.wait(&job)).await.expect("it hangs");
        assert!(matches!(waited, Err(BrokerError::NoOutcome)), "{waited:?}");
        assert_eq!(server.ready("jobs"), 1, "it was not sent again");
    });
}
