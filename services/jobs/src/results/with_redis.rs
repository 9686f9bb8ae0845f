//! A broker whose outcomes are in Redis.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use crate::broker::bus::Bus;
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
    fn declare<'a>(
        &'a self,
        queue: &'a str,
        options: &'a QueueOptions,
    ) -> LocalFuture<'a, Result<(), BrokerError>> {
        self.broker.declare(queue, options)
    }

    fn max_priority<'a>(
        &'a self,
        queue: &'a str,
    ) -> LocalFuture<'a, Result<Option<u8>, BrokerError>> {
        self.broker.max_priority(queue)
    }

    fn publish<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
    ) -> LocalFuture<'a, Result<(), PublishError>> {
        self.broker.publish(queue, message, not_before)
    }

    fn publish_unique<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
        lock: &'a UniqueLock,
    ) -> LocalFuture<'a, Result<UniqueSent, PublishError>> {
        self.broker.publish_unique(queue, message, not_before, lock)
    }

    fn unlock<'a>(&'a self, lock: &'a UniqueLock) -> LocalFuture<'a, Result<(), BrokerError>> {
        self.broker.unlock(lock)
    }

    fn consume<'a>(
        &'a self,
        queue: &'a str,
        prefetch: u16,
    ) -> LocalFuture<'a, Result<Box<dyn Deliveries>, BrokerError>> {
        self.broker.consume(queue, prefetch)
    }

    fn ack(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        self.broker.ack(receipt)
    }

    fn holds(&self, receipt: Receipt) -> bool {
        self.broker.holds(receipt)
    }

    fn give_back(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        self.broker.give_back(receipt)
    }

    fn bury(
        &self,
        receipt: Receipt,
        message: Message,
        reason: String,
    ) -> LocalFuture<'_, Result<(), BrokerError>> {
        self.broker.bury(receipt, message, reason)
    }

    fn queues(&self) -> LocalFuture<'_, Result<Option<Vec<String>>, BrokerError>> {
        self.broker.queues()
    }

    fn counts<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<Counts, BrokerError>> {
        self.broker.counts(queue)
    }

    fn counts_of<'a>(
        &'a self,
        queues: &'a [String],
    ) -> LocalFuture<'a, Result<Vec<Result<Counts, BrokerError>>, BrokerError>> {
        self.broker.counts_of(queues)
    }

    fn purge<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<u64, BrokerError>> {
        self.broker.purge(queue)
    }

    fn dead<'a>(
        &'a self,
        queue: &'a str,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DeadJob>, BrokerError>> {
        self.broker.dead(queue, limit)
    }

    fn replay<'a>(
        &'a self,
        queue: &'a str,
        job: Option<&'a JobId>,
    ) -> LocalFuture<'a, Result<u64, BrokerError>> {
        self.broker.replay(queue, job)
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

    fn flush(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        self.broker.flush()
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
        let names = part.lines().filter_map(|line| line.strip_prefix("    fn "));
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
