//! A channel, as its connection knows it: its consumers, its limits, its end.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use amq_protocol::protocol::{AMQPClass, basic, confirm};
use amq_protocol::types::ShortString;
use pikake_sync::oneshot;
use pikake_traps::WaitQueue;

use super::{Answer, Asker, ChannelInner, Connection, ConsumerInner, Hub};
use crate::error::Error;
use crate::message::short;

impl ChannelInner {
    /// A channel that the session has opened under the number.
    pub(crate) fn open(connection: Connection, number: u16, confirms: bool) -> Rc<Self> {
        let channel = Rc::new(Self {
            connection,
            number: Cell::new(number),
            confirms,
            global_limit: Cell::new(None),
            consumers: RefCell::default(),
            next_consumer: Cell::new(1),
            ended: RefCell::default(),
            window: WaitQueue::new(),
        });
        channel.hub().add_channel(number, &channel);
        channel
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn hub(&self) -> &Rc<Hub> {
        self.connection.hub()
    }

    /// Why it is closed, if it is.
    pub(crate) fn closed(&self) -> Option<Error> {
        self.ended.borrow().clone().or_else(|| self.hub().end())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    pub(crate) fn end(&self, error: &Error) {
        // Another channel may get the number, and deliveries of this one must not be taken for its.
        self.number.set(0);
        self.ended.borrow_mut().get_or_insert_with(|| error.clone());
        for consumer in self.live_consumers() {
            consumer.end(error.clone());
            // The broker has taken them back with the channel.
            consumer.forget_deliveries();
        }
        self.wake_all();
    }

    pub(crate) fn wake_all(&self) {
        self.window.wake(usize::MAX);
    }

    fn live_consumers(&self) -> Vec<Rc<ConsumerInner>> {
        self.consumers.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn consumer(&self, tag: &str) -> Option<Rc<ConsumerInner>> {
        let consumers = self.consumers.borrow();
        let mut live = consumers.iter().filter_map(Weak::upgrade);
        live.find(|consumer| consumer.tag.as_str() == tag)
    }

    /// The tag of the next consumer.
    pub(crate) fn new_tag(&self) -> Result<ShortString, Error> {
        let number = self.next_consumer.get();
        self.next_consumer.set(number + 1);
        short(&format!("pikake-{number}"))
    }

    pub(crate) fn add_consumer(&self, consumer: &Rc<ConsumerInner>) {
        self.consumers.borrow_mut().push(Rc::downgrade(consumer));
    }

    pub(crate) fn forget_consumer(&self, gone: &Rc<ConsumerInner>) {
        self.consumers.borrow_mut().retain(|known| !Weak::ptr_eq(known, &Rc::downgrade(gone)));
    }

    /// Its connection has gone.
    pub(crate) fn forget_deliveries(&self) {
        self.number.set(0);
        self.forget_waiting();
    }

    /// What was delivered and not taken is the broker's again.
    pub(crate) fn forget_waiting(&self) {
        for consumer in self.live_consumers() {
            consumer.forget_deliveries();
        }
    }

    /// The request that limits the unacknowledged deliveries of a consumer, or of the whole channel.
    pub(crate) fn qos(prefetch_count: u16, global: bool) -> AMQPClass {
        AMQPClass::Basic(basic::AMQPMethod::Qos(basic::Qos { prefetch_count, global }))
    }

    /// What a new channel has to be told to be this one.
    pub(crate) fn settings(&self) -> Vec<AMQPClass> {
        let select = confirm::Select { nowait: false };
        let select = AMQPClass::Confirm(confirm::AMQPMethod::Select(select));
        let limit = self.global_limit.get().map(|limit| Self::qos(limit, true));
        self.confirms.then_some(select).into_iter().chain(limit).collect()
    }

    /// The broker has set a limit for the whole channel.
    pub(crate) fn limit_all(&self, prefetch: u16) {
        self.global_limit.set(Some(prefetch));
    }

    /// The limit to be set before a consumer; RabbitMQ applies it to those that come after. It would
    /// take a limit of the whole channel away, so it is one or the other.
    pub(crate) fn limit(&self, consumer: &ConsumerInner) -> Option<AMQPClass> {
        let is_limited = consumer.options.no_ack || self.global_limit.get().is_some();
        (!is_limited).then(|| Self::qos(consumer.options.prefetch, false))
    }

    /// Asks the broker, and waits for its answer.
    pub(crate) async fn ask(self: &Rc<Self>, method: AMQPClass) -> Result<Answer, Error> {
        self.hub().ready().await?;
        let (sender, receiver) = oneshot::channel();
        // What is got and not taken is given back.
        let channel = Some(self.clone());
        self.request(method, Asker { sender: Some(sender), channel })?;
        self.hub().answer(receiver).await
    }

    pub(crate) fn request(&self, method: AMQPClass, asker: Asker) -> Result<(), Error> {
        if let Some(error) = self.closed() {
            return Err(error);
        }
        let asked = self.hub().with(|session| session.request(self.number.get(), method, asker));
        match asked {
            Some(Ok(())) => Ok(()),
            Some(Err((error, _))) => Err(error),
            None => Err(Error::ConnectionLost("just now".to_owned())),
        }
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        let number = self.number.get();
        let hub = self.connection.hub();
        let was_open = self.ended.borrow().is_none();
        if number != 0 && was_open {
            hub.channels.borrow_mut().remove(&number);
            drop(hub.with(|session| session.close_channel(number, Asker::NOBODY)));
        }
    }
}
