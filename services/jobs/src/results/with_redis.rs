//! A broker whose outcomes are in Redis.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use crate::broker::bus::Bus;
use crate::broker::handed_on::handed_on;
use crate::broker::{
    Broker, BrokerError, Counts, DeadJob, Deliveries, LocalFuture, PublishError, QueueOptions,
    Receipt,
};
use crate::message::{AllMembers, ChordMember, JobId, Message, Outcome};
use crate::results::redis::RedisResults;
use crate::unique::{UniqueLock, UniqueSent};

/// How the reply queue of a sender begins that waits at RabbitMQ. Celery's senders name another
/// queue, also if they read their results in Redis alone.
const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// A broker, with outcomes in Redis. A sender that has asked the broker for an outcome gets it
/// there, too.
///
/// A broker that keeps outcomes of its own is still asked for them: it knows the jobs that have
/// expired or were purged.
#[derive(Debug)]
pub(crate) struct WithRedis {
    broker: Rc<dyn Broker>,
    results: RedisResults,
}

impl WithRedis {
    pub(crate) fn new(broker: Rc<dyn Broker>, results: RedisResults) -> Self {
        Self { broker, results }
    }
}

impl Broker for WithRedis {
    handed_on! {
        |this| this.broker;
        fn declare(queue: &'a str, options: &'a QueueOptions) -> Result<(), BrokerError>;
        fn max_priority(queue: &'a str) -> Result<Option<u8>, BrokerError>;
        fn publish(
            queue: &'a str,
            message: Message,
            not_before: Option<SystemTime>
        ) -> Result<(), PublishError>;
        fn publish_unique(
            queue: &'a str,
            message: Message,
            not_before: Option<SystemTime>,
            lock: &'a UniqueLock
        ) -> Result<UniqueSent, PublishError>;
        fn unlock(lock: &'a UniqueLock) -> Result<(), BrokerError>;
        fn consume(queue: &'a str, prefetch: u16) -> Result<Box<dyn Deliveries>, BrokerError>;
        fn ack(receipt: Receipt) -> Result<(), BrokerError>;
        fn give_back(receipt: Receipt) -> Result<(), BrokerError>;
        fn bury(receipt: Receipt, message: Message, reason: String) -> Result<(), BrokerError>;
        fn queues() -> Result<Option<Vec<String>>, BrokerError>;
        fn counts(queue: &'a str) -> Result<Counts, BrokerError>;
        fn counts_of(queues: &'a [String]) -> Result<Vec<Result<Counts, BrokerError>>, BrokerError>;
        fn purge(queue: &'a str) -> Result<u64, BrokerError>;
        fn dead(queue: &'a str, limit: usize) -> Result<Vec<DeadJob>, BrokerError>;
        fn replay(queue: &'a str, job: Option<&'a JobId>) -> Result<u64, BrokerError>;
        fn flush() -> Result<(), BrokerError>;
    }

    fn holds(&self, receipt: Receipt) -> bool {
        self.broker.holds(receipt)
    }

    fn expect<'a>(&'a self, message: &'a mut Message) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            if self.broker.keeps_outcomes() {
                self.broker.expect(message).await?;
            }
            self.results.expect(message)
        })
    }

    fn begin_chord<'a>(
        &'a self,
        chord: &'a str,
        size: u32,
    ) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(self.results.begin_chord(chord, size))
    }

    fn join_chord<'a>(
        &'a self,
        member: &'a ChordMember,
    ) -> LocalFuture<'a, Result<Option<AllMembers>, BrokerError>> {
        Box::pin(async move {
            let members = self.results.join_chord(member).await?;
            Ok(members.map(AllMembers::new))
        })
    }

    fn end_chord<'a>(&'a self, chord: &'a str) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(self.results.end_chord(chord))
    }

    fn shares_chords(&self) -> bool {
        true
    }

    fn store<'a>(
        &'a self,
        message: &'a Message,
        outcome: Outcome,
    ) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            self.results.store(message, &outcome).await?;
            let reply_to = message.reply_to.as_deref().unwrap_or_default();
            match reply_to.starts_with(DIRECT_REPLY_TO) {
                true => self.broker.store(message, outcome).await,
                false => Ok(()),
            }
        })
    }

    fn outcome<'a>(
        &'a self,
        job: &'a JobId,
    ) -> LocalFuture<'a, Result<Option<Outcome>, BrokerError>> {
        Box::pin(async move {
            match self.results.outcome(job).await? {
                None if self.broker.keeps_outcomes() => self.broker.outcome(job).await,
                outcome => Ok(outcome),
            }
        })
    }

    fn wait<'a>(&'a self, job: &'a JobId) -> LocalFuture<'a, Result<Outcome, BrokerError>> {
        Box::pin(async move {
            if !self.broker.keeps_outcomes() {
                return self.results.wait(job).await;
            }
            let (mut stored, mut dropped) = (pin!(self.results.wait(job)), self.broker.wait(job));
            poll_fn(|cx| match stored.as_mut().poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(outcome),
                Poll::Pending => dropped.as_mut().poll(cx),
            })
            .await
        })
    }

    fn forget(&self, job: &JobId) {
        self.results.forget(job);
        if self.broker.keeps_outcomes() {
            self.broker.forget(job);
        }
    }

    fn keep_outcomes(&self, length: Duration) {
        self.broker.keep_outcomes(length);
        self.results.keep_outcomes(length);
    }

    fn state(&self) -> String {
        let state = self.broker.state();
        match self.results.is_lost() {
            true => format!("{state}, without Redis"),
            false => state,
        }
    }

    fn probe(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async {
            self.broker.probe().await?;
            self.results.probe().await
        })
    }

    fn close(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async {
            let closed = self.results.close().await;
            self.broker.close().await.and(closed)
        })
    }

    fn bus(&self) -> Option<&dyn Bus> {
        self.broker.bus()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.broker.as_any()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// The methods that a text has between these two lines.
    fn methods<'a>(text: &'a str, from: &str, to: &str) -> BTreeSet<&'a str> {
        let (_, rest) = text.split_once(from).unwrap();
        let (part, _) = rest.split_once(to).unwrap();
        let names = part.lines().filter_map(|line| line.trim_start().strip_prefix("fn "));
        names.map(|name| name.split(['<', '(']).next().unwrap()).collect()
    }

    /// A method with a default that is not handed on would hide that of the broker.
    #[test]
    fn each_method_is_handed_on() {
        let contract = methods(include_str!("../broker.rs"), "pub trait Broker", "\n}\n");
        let here = methods(include_str!("with_redis.rs"), "impl Broker for WithRedis", "\n}\n");
        let by_default: Vec<_> = contract.difference(&here).copied().collect();
        assert_eq!(by_default, ["expect_later", "keeps_outcomes"]);
    }
}
