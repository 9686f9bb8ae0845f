//! A broker of which a test decides what becomes of each call: it may take its time, fail before
//! anything is done, or fail afterwards.
//!
//! Apart from the tests, which say in a line what goes wrong; all that they do not speak of is the
//! inner broker's.

use std::fmt;
use std::future::ready;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use pikake_jobs::broker::LocalFuture;
use pikake_jobs::{
    AllMembers, Broker, BrokerError, Bus, ChordMember, Counts, DeadJob, Deliveries, Delivery,
    JobId, Message, Notice, Notices, Outcome, PublishError, PublishFailure, QueueOptions, Receipt,
    SharedFact, SharedFacts, Topic, UniqueLock, UniqueSent,
};

/// What is asked of a broker.
pub(crate) enum Asked<'a> {
    Declare,
    /// And not to be delivered before.
    Publish(Option<SystemTime>),
    Consume,
    Ack(Receipt),
    GiveBack,
    Bury,
    Store(&'a Outcome),
    Outcome,
    Wait,
    /// To add a member of a chord, or to end one.
    Join,
    /// To release the lock of a unique job.
    Unlock,
    /// A message on the bus.
    Notify,
    /// The next delivery of a consumer, which is cancelled first if this is set.
    Next(&'a mut bool),
}

/// What happens before a call, or instead of it.
pub(crate) type Before = dyn Fn(Asked<'_>) -> LocalFuture<'static, Result<(), BrokerError>>;
/// What is said after a call, instead of what came of it.
pub(crate) type After = dyn Fn(Asked<'_>) -> Result<(), BrokerError>;

pub(crate) fn lost() -> BrokerError {
    BrokerError::Lost("cut".into())
}

/// For a call of which there is nothing to say, or that fails.
pub(crate) fn at_once<T: 'static>(said: T) -> LocalFuture<'static, T> {
    Box::pin(ready(said))
}

#[derive(Clone)]
struct Hooks {
    before: Rc<Before>,
    after: Rc<After>,
}

/// See the file's head.
pub(crate) struct Meddled {
    inner: Rc<dyn Broker>,
    hooks: Hooks,
}

impl Meddled {
    pub(crate) fn new(
        inner: Rc<dyn Broker>,
        before: impl Fn(Asked<'_>) -> LocalFuture<'static, Result<(), BrokerError>> + 'static,
    ) -> Self {
        Self { inner, hooks: Hooks { before: Rc::new(before), after: Rc::new(|_| Ok(())) } }
    }

    pub(crate) fn after(
        mut self,
        after: impl Fn(Asked<'_>) -> Result<(), BrokerError> + 'static,
    ) -> Self {
        self.hooks.after = Rc::new(after);
        self
    }

    fn around<'a, T: 'a>(
        &'a self,
        asked: impl Fn() -> Asked<'a> + 'a,
        call: impl FnOnce() -> LocalFuture<'a, Result<T, BrokerError>> + 'a,
    ) -> LocalFuture<'a, Result<T, BrokerError>> {
        Box::pin(async move {
            (self.hooks.before)(asked()).await?;
            let done = call().await?;
            (self.hooks.after)(asked()).map(|()| done)
        })
    }
}

impl Broker for Meddled {
    fn declare<'a>(
        &'a self,
        queue: &'a str,
        options: &'a QueueOptions,
    ) -> LocalFuture<'a, Result<(), BrokerError>> {
        self.around(|| Asked::Declare, move || self.inner.declare(queue, options))
    }
    fn max_priority<'a>(
        &'a self,
        queue: &'a str,
    ) -> LocalFuture<'a, Result<Option<u8>, BrokerError>> {
        self.inner.max_priority(queue)
    }
    fn publish_unique<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
        lock: &'a UniqueLock,
    ) -> LocalFuture<'a, Result<UniqueSent, PublishError>> {
        self.inner.publish_unique(queue, message, not_before, lock)
    }
    fn unlock<'a>(&'a self, lock: &'a UniqueLock) -> LocalFuture<'a, Result<(), BrokerError>> {
        self.around(|| Asked::Unlock, move || self.inner.unlock(lock))
    }
    fn publish<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
    ) -> LocalFuture<'a, Result<(), PublishError>> {
        Box::pin(async move {
            if let Err(error) = (self.hooks.before)(Asked::Publish(not_before)).await {
                return Err(PublishError::new(message, false, PublishFailure::Broker(error)));
            }
            self.inner.publish(queue, message.clone(), not_before).await?;
            (self.hooks.after)(Asked::Publish(not_before))
                .map_err(|error| PublishError::new(message, true, PublishFailure::Broker(error)))
        })
    }
    fn consume<'a>(
        &'a self,
        queue: &'a str,
        prefetch: u16,
    ) -> LocalFuture<'a, Result<Box<dyn Deliveries>, BrokerError>> {
        Box::pin(async move {
            let consume = move || self.inner.consume(queue, prefetch);
            let inner = self.around(|| Asked::Consume, consume).await?;
            let hooks = self.hooks.clone();
            Ok(Box::new(MeddledDeliveries { inner, hooks }) as Box<dyn Deliveries>)
        })
    }
    fn ack(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        self.around(move || Asked::Ack(receipt), move || self.inner.ack(receipt))
    }
    fn give_back(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        self.around(|| Asked::GiveBack, move || self.inner.give_back(receipt))
    }
    fn bury(
        &self,
        receipt: Receipt,
        message: Message,
        reason: String,
    ) -> LocalFuture<'_, Result<(), BrokerError>> {
        self.around(|| Asked::Bury, move || self.inner.bury(receipt, message, reason))
    }
    fn counts<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<Counts, BrokerError>> {
        self.inner.counts(queue)
    }
    fn purge<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<u64, BrokerError>> {
        self.inner.purge(queue)
    }
    fn dead<'a>(
        &'a self,
        queue: &'a str,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DeadJob>, BrokerError>> {
        self.inner.dead(queue, limit)
    }
    fn replay<'a>(
        &'a self,
        queue: &'a str,
        job: Option<&'a JobId>,
    ) -> LocalFuture<'a, Result<u64, BrokerError>> {
        self.inner.replay(queue, job)
    }
    fn expect<'a>(&'a self, message: &'a mut Message) -> LocalFuture<'a, Result<(), BrokerError>> {
        self.inner.expect(message)
    }
    fn store<'a>(
        &'a self,
        message: &'a Message,
        outcome: Outcome,
    ) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            (self.hooks.before)(Asked::Store(&outcome)).await?;
            self.inner.store(message, outcome.clone()).await?;
            (self.hooks.after)(Asked::Store(&outcome))
        })
    }
    fn outcome<'a>(
        &'a self,
        job: &'a JobId,
    ) -> LocalFuture<'a, Result<Option<Outcome>, BrokerError>> {
        self.around(|| Asked::Outcome, move || self.inner.outcome(job))
    }
    fn wait<'a>(&'a self, job: &'a JobId) -> LocalFuture<'a, Result<Outcome, BrokerError>> {
        self.around(|| Asked::Wait, move || self.inner.wait(job))
    }
    fn expect_later<'a>(
        &'a self,
        job: &'a JobId,
    ) -> LocalFuture<'a, Result<Option<String>, BrokerError>> {
        self.inner.expect_later(job)
    }
    fn join_chord<'a>(
        &'a self,
        member: &'a ChordMember,
    ) -> LocalFuture<'a, Result<Option<AllMembers>, BrokerError>> {
        self.around(|| Asked::Join, move || self.inner.join_chord(member))
    }
    fn end_chord<'a>(&'a self, chord: &'a str) -> LocalFuture<'a, Result<(), BrokerError>> {
        self.around(|| Asked::Join, move || self.inner.end_chord(chord))
    }
    fn forget(&self, job: &JobId) {
        self.inner.forget(job);
    }
    fn bus(&self) -> Option<&dyn Bus> {
        self.inner.bus().is_some().then_some(self)
    }
    fn state(&self) -> String {
        self.inner.state()
    }
    /// The inner one stays open, so that an application may be run on it again.
    fn close(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        at_once(Ok(()))
    }
}

impl Meddled {
    fn inner_bus(&self) -> &dyn Bus {
        self.inner.bus().expect("it is asked for its bus only where the inner one has one")
    }
}

impl Bus for Meddled {
    fn notify(&self, notice: Notice) -> LocalFuture<'_, Result<(), BrokerError>> {
        self.around(|| Asked::Notify, move || self.inner_bus().notify(notice))
    }
    fn subscribe<'a>(
        &'a self,
        topic: Topic,
        name: &'a str,
    ) -> LocalFuture<'a, Result<Box<dyn Notices>, BrokerError>> {
        self.inner_bus().subscribe(topic, name)
    }
    fn workers(&self) -> LocalFuture<'_, Result<Option<Vec<String>>, BrokerError>> {
        self.inner_bus().workers()
    }
    fn heartbeat_interval(&self) -> Option<Duration> {
        self.inner_bus().heartbeat_interval()
    }
    fn share<'a>(&'a self, fact: &'a SharedFact) -> LocalFuture<'a, Result<bool, BrokerError>> {
        self.inner_bus().share(fact)
    }
    fn shared(&self) -> LocalFuture<'_, Result<Option<SharedFacts>, BrokerError>> {
        self.inner_bus().shared()
    }
    fn has_others(&self) -> LocalFuture<'_, Result<bool, BrokerError>> {
        self.inner_bus().has_others()
    }
}

impl fmt::Debug for Meddled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Meddled").field(&self.inner).finish()
    }
}

struct MeddledDeliveries {
    inner: Box<dyn Deliveries>,
    hooks: Hooks,
}

impl Deliveries for MeddledDeliveries {
    fn next(&mut self) -> LocalFuture<'_, Result<Option<Delivery>, BrokerError>> {
        Box::pin(async {
            let mut is_cancelled = false;
            (self.hooks.before)(Asked::Next(&mut is_cancelled)).await?;
            if is_cancelled {
                self.inner.cancel().await?;
            }
            self.inner.next().await
        })
    }
    fn cancel(&mut self) -> LocalFuture<'_, Result<(), BrokerError>> {
        self.inner.cancel()
    }
}

impl fmt::Debug for MeddledDeliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MeddledDeliveries").field(&self.inner).finish()
    }
}
