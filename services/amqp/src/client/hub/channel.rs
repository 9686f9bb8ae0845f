//! The shared state of a channel: consumers, prefetch, end.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use amq_protocol::protocol::{AMQPClass, basic, confirm};
use amq_protocol::types::ShortString;
use pikake_sync::oneshot;
use pikake_traps::WaitQueue;

use super::{Answer, ChannelInner, Connection, ConsumerInner, Hub, Requester};
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

    /// The error that closed the channel or its connection, if one has.
    pub(crate) fn closed(&self) -> Option<Error> {
        self.ended.borrow().clone().or_else(|| self.hub().closed())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    pub(crate) fn end(&self, error: &Error) {
        // Another channel may reuse the number, and must not settle deliveries of this one.
        self.number.set(0);
        self.ended.borrow_mut().get_or_insert_with(|| error.clone());
        for consumer in self.live_consumers() {
            consumer.end(error.clone());
            // The broker has requeued them with the end of the channel.
            consumer.drop_unsettled();
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

    /// Releases the number, and drops buffered deliveries, after the connection was lost.
    pub(crate) fn detach(&self) {
        self.number.set(0);
        self.drop_buffered();
    }

    /// Drops buffered deliveries, which the broker has requeued.
    pub(crate) fn drop_buffered(&self) {
        for consumer in self.live_consumers() {
            consumer.drop_unsettled();
        }
    }

    /// The request that sets the prefetch of later consumers, or of the whole channel.
    pub(crate) fn qos(prefetch_count: u16, global: bool) -> AMQPClass {
        AMQPClass::Basic(basic::AMQPMethod::Qos(basic::Qos { prefetch_count, global }))
    }

    /// The requests that restore the settings on a new channel.
    pub(crate) fn settings(&self) -> Vec<AMQPClass> {
        let select = confirm::Select { nowait: false };
        let select = AMQPClass::Confirm(confirm::AMQPMethod::Select(select));
        let limit = self.global_limit.get().map(|limit| Self::qos(limit, true));
        self.confirms.then_some(select).into_iter().chain(limit).collect()
    }

    /// Records the prefetch of the whole channel.
    pub(crate) fn set_global_limit(&self, prefetch: u16) {
        self.global_limit.set(Some(prefetch));
    }

    /// The prefetch request before a consumer; RabbitMQ applies it to later consumers. `None` with
    /// `no_ack`, or if the channel has a global prefetch, which the request would remove.
    pub(crate) fn prefetch_request(&self, consumer: &ConsumerInner) -> Option<AMQPClass> {
        let needs_none = consumer.options.no_ack || self.global_limit.get().is_some();
        (!needs_none).then(|| Self::qos(consumer.options.prefetch, false))
    }

    /// Sends a request, and waits for its answer.
    pub(crate) async fn ask(self: &Rc<Self>, method: AMQPClass) -> Result<Answer, Error> {
        self.hub().until_ready().await?;
        let (sender, receiver) = oneshot::channel();
        // An unclaimed answer to basic.get is requeued.
        let channel = Some(Rc::downgrade(self));
        self.request(method, Requester { sender: Some(sender), channel })?;
        self.hub().answer(receiver).await
    }

    pub(crate) fn request(&self, method: AMQPClass, requester: Requester) -> Result<(), Error> {
        if let Some(error) = self.closed() {
            return Err(error);
        }
        let asked =
            self.hub().with(|session| session.request(self.number.get(), method, requester));
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
            drop(hub.with(|session| session.close_channel(number, Requester::NONE)));
        }
    }
}
