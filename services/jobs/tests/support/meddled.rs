//! A broker of which a test decides what becomes of each call: it may take its time, fail before
//! anything is done, or fail afterwards. All other calls are the inner broker's.

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

use crate::handed_on::handed_on;

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
    has_facts: bool,
}

impl Meddled {
    pub(crate) fn new(
        inner: Rc<dyn Broker>,
        before: impl Fn(Asked<'_>) -> LocalFuture<'static, Result<(), BrokerError>> + 'static,
    ) -> Self {
        Self {
            inner,
            hooks: Hooks { before: Rc::new(before), after: Rc::new(|_| Ok(())) },
            has_facts: true,
        }
    }

    /// A broker that keeps no facts for its workers.
    pub(crate) fn without_facts(inner: Rc<dyn Broker>) -> Self {
        Self { has_facts: false, ..Self::new(inner, |_| at_once(Ok(()))) }
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

/// Defines methods around which the hooks are called, with what is asked.
macro_rules! meddled {
    (
        |$this:ident| $inner:expr;
        $(
            $asked:expr => fn $method:ident($($argument:ident: $type:ty),*) -> $done:ty;
        )+
    ) => {
        $(fn $method<'a>(
            &'a self $(, $argument: $type)*
        ) -> LocalFuture<'a, Result<$done, BrokerError>> {
            let $this = self;
            self.around(move || $asked, move || $inner.$method($($argument),*))
        })+
    };
}

impl Broker for Meddled {
    meddled! {
        |this| this.inner;
        Asked::Declare => fn declare(queue: &'a str, options: &'a QueueOptions) -> ();
        Asked::Ack(receipt) => fn ack(receipt: Receipt) -> ();
        Asked::GiveBack => fn give_back(receipt: Receipt) -> ();
        Asked::Bury => fn bury(receipt: Receipt, message: Message, reason: String) -> ();
        Asked::Outcome => fn outcome(job: &'a JobId) -> Option<Outcome>;
        Asked::Wait => fn wait(job: &'a JobId) -> Outcome;
        Asked::Join => fn join_chord(member: &'a ChordMember) -> Option<AllMembers>;
        Asked::Join => fn end_chord(chord: &'a str) -> ();
        Asked::Unlock => fn unlock(lock: &'a UniqueLock) -> ();
    }

    handed_on! {
        |this| this.inner;
        fn max_priority(queue: &'a str) -> Result<Option<u8>, BrokerError>;
        fn publish_unique(
            queue: &'a str,
            message: Message,
            not_before: Option<SystemTime>,
            lock: &'a UniqueLock
        ) -> Result<UniqueSent, PublishError>;
        fn counts(queue: &'a str) -> Result<Counts, BrokerError>;
        fn purge(queue: &'a str) -> Result<u64, BrokerError>;
        fn dead(queue: &'a str, limit: usize) -> Result<Vec<DeadJob>, BrokerError>;
        fn replay(queue: &'a str, job: Option<&'a JobId>) -> Result<u64, BrokerError>;
        fn expect(message: &'a mut Message) -> Result<(), BrokerError>;
        fn expect_later(job: &'a JobId) -> Result<Option<String>, BrokerError>;
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
    meddled! {
        |this| this.inner_bus();
        Asked::Notify => fn notify(notice: Notice) -> ();
    }

    handed_on! {
        |this| this.inner_bus();
        fn subscribe(topic: Topic, name: &'a str) -> Result<Box<dyn Notices>, BrokerError>;
        fn workers() -> Result<Option<Vec<String>>, BrokerError>;
        fn share(fact: &'a SharedFact) -> Result<bool, BrokerError>;
        fn has_others() -> Result<bool, BrokerError>;
    }

    fn shared(&self) -> LocalFuture<'_, Result<Option<SharedFacts>, BrokerError>> {
        match self.has_facts {
            true => self.inner_bus().shared(),
            false => at_once(Ok(None)),
        }
    }

    fn heartbeat_interval(&self) -> Option<Duration> {
        self.inner_bus().heartbeat_interval()
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
