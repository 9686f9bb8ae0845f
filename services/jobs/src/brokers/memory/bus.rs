//! The bus of a memory store: the subscribers of all its brokers, and the facts that workers share.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use pikake_sync::shared::Event;

use crate::broker::bus::{Bus, Notice, Notices, SharedFact, SharedFacts, Topic};
use crate::broker::{BrokerError, LocalFuture};
use crate::brokers::memory::{MemoryBroker, Session};
use crate::control::revoked::Revoked;

/// How many unread messages a subscriber has at most.
const UNREAD_LIMIT: usize = 10_000;

#[derive(Debug)]
struct Subscriber {
    session: u64,
    topic: Topic,
    name: String,
    unread: VecDeque<Arc<Notice>>,
    changed: Arc<Event>,
}

impl Subscriber {
    fn receives(&self, notice: &Notice) -> bool {
        self.topic == notice.topic
            && match notice.topic {
                Topic::Commands => true,
                Topic::Replies => self.name == notice.key,
                Topic::Events => notice.key.starts_with(&self.name),
            }
    }
}

/// The subscribers and shared facts of a store.
#[derive(Debug, Default)]
pub(crate) struct MemoryBus {
    subscribers: BTreeMap<u64, Subscriber>,
    last_id: u64,
    revoked: Revoked,
    paused: Vec<String>,
}

impl MemoryBus {
    fn subscribe(&mut self, session: u64, topic: Topic, name: &str) -> u64 {
        self.last_id += 1;
        let subscriber = Subscriber {
            session,
            topic,
            name: name.to_owned(),
            unread: VecDeque::new(),
            changed: Arc::new(Event::new()),
        };
        self.subscribers.insert(self.last_id, subscriber);
        self.last_id
    }

    /// Adds a message for its subscribers, and returns their events.
    fn notify(&mut self, notice: Notice) -> Vec<Arc<Event>> {
        let notice = Arc::new(notice);
        let receivers = self.subscribers.values_mut().filter(|one| one.receives(&notice));
        receivers
            .map(|subscriber| {
                if subscriber.unread.len() == UNREAD_LIMIT {
                    subscriber.unread.pop_front();
                }
                subscriber.unread.push_back(notice.clone());
                subscriber.changed.clone()
            })
            .collect()
    }

    /// Ends the subscriptions of a broker, and returns their events.
    pub(crate) fn close_session(&mut self, session: u64) -> Vec<Arc<Event>> {
        let of_session = |one: &Subscriber| one.session == session;
        let ended = self.subscribers.values().filter(|one| of_session(one));
        let events = ended.map(|one| one.changed.clone()).collect();
        self.subscribers.retain(|_, one| !of_session(one));
        events
    }
}

impl Bus for MemoryBroker {
    fn notify(&self, notice: Notice) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.change(|state, _| {
                let receivers = state.bus.notify(notice);
                state.notify(receivers);
                Ok(())
            })
        })
    }

    fn subscribe<'a>(
        &'a self,
        topic: Topic,
        name: &'a str,
    ) -> LocalFuture<'a, Result<Box<dyn Notices>, BrokerError>> {
        Box::pin(async move {
            let session = self.0.clone();
            let id = session.change(|state, _| Ok(state.bus.subscribe(session.id, topic, name)))?;
            Ok(Box::new(MemoryNotices { session, id }) as Box<dyn Notices>)
        })
    }

    fn workers(&self) -> LocalFuture<'_, Result<Option<Vec<String>>, BrokerError>> {
        Box::pin(async move {
            self.0.change(|state, _| {
                let all = state.bus.subscribers.values();
                let workers = all.filter(|one| one.topic == Topic::Commands);
                Ok(Some(workers.map(|one| one.name.clone()).collect()))
            })
        })
    }

    fn share<'a>(&'a self, fact: &'a SharedFact) -> LocalFuture<'a, Result<bool, BrokerError>> {
        Box::pin(async move {
            self.0.change(|state, now| {
                match fact {
                    SharedFact::Revoked(id) => {
                        state.bus.revoked.insert(id.clone(), now, now);
                    }
                    SharedFact::Paused(queue) if state.bus.paused.contains(queue) => {}
                    SharedFact::Paused(queue) => state.bus.paused.push(queue.clone()),
                    SharedFact::Resumed(queue) => state.bus.paused.retain(|one| one != queue),
                }
                Ok(true)
            })
        })
    }

    fn shared(&self) -> LocalFuture<'_, Result<Option<SharedFacts>, BrokerError>> {
        Box::pin(async move {
            self.0.change(|state, _| {
                let revoked = state.bus.revoked.iter().map(|(id, _)| id.to_owned()).collect();
                Ok(Some(SharedFacts { revoked, paused: state.bus.paused.clone() }))
            })
        })
    }
}

/// A subscription in memory.
#[derive(Debug)]
struct MemoryNotices {
    session: Rc<Session>,
    id: u64,
}

impl Notices for MemoryNotices {
    fn next(&mut self) -> LocalFuture<'_, Result<Notice, BrokerError>> {
        Box::pin(async move {
            loop {
                let next = self.session.store.change(|state| {
                    let one = state.bus.subscribers.get_mut(&self.id).ok_or(BrokerError::Closed)?;
                    one.changed.clear();
                    Ok::<_, BrokerError>(one.unread.pop_front().ok_or(one.changed.clone()))
                });
                match next? {
                    Ok(notice) => return Ok((*notice).clone()),
                    Err(changed) => changed.wait().await?,
                }
            }
        })
    }
}

impl Drop for MemoryNotices {
    fn drop(&mut self) {
        self.session.store.change(|state| state.bus.subscribers.remove(&self.id));
    }
}
