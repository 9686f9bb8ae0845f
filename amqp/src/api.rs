//! Signatures only, so that others can build against them; bodies follow.
#![allow(missing_docs, unused_variables, missing_debug_implementations, clippy::todo)]
use crate::*;
use std::future::Future;

#[derive(Clone)] pub struct Connection(std::rc::Rc<()>);
#[derive(Clone, Debug)] #[non_exhaustive] pub enum State { Connecting, Open, Blocked { reason: String }, Recovering { attempt: u32 }, Closed(Error) }
impl Connection {
    pub fn open(address: &Address, options: Options) -> impl Future<Output = Result<Self, Error>> + use<> { async { todo!() } }
    /// A new channel with publisher confirms.
    pub fn channel(&self) -> impl Future<Output = Result<Channel, Error>> + use<> { async { todo!() } }
    /// One without confirms: `publish` resolves when the bytes are queued.
    pub fn channel_unconfirmed(&self) -> impl Future<Output = Result<Channel, Error>> + use<> { async { todo!() } }
    pub fn state(&self) -> State { todo!() }
    /// Waits for the next change of state.
    pub fn changed(&self) -> impl Future<Output = Result<State, Error>> + use<> { async { todo!() } }
    pub fn close(&self) -> impl Future<Output = Result<(), Error>> + use<> { async { todo!() } }
}
#[derive(Clone)] pub struct Channel(std::rc::Rc<()>);
impl Channel {
    /// post + confirm.
    pub fn publish(&self, exchange: &str, key: &str, properties: Properties, body: Vec<u8>, mandatory: bool) -> impl Future<Output = Result<(), PublishError>> + use<> { async { todo!() } }
    /// Sends (waiting for room in the window), and gives the future of the confirm: to have many in flight from one task.
    pub fn post(&self, message: Message) -> impl Future<Output = Result<Confirm, PublishError>> + use<> { async { todo!() } }
    pub fn consume(&self, queue: &str, options: ConsumeOptions) -> impl Future<Output = Result<Consumer, Error>> + use<> { async { todo!() } }
    pub fn get(&self, queue: &str, no_ack: bool) -> impl Future<Output = Result<Option<Delivery>, Error>> + use<> { async { todo!() } }
    pub fn direct_reply_to(&self) -> impl Future<Output = Result<Consumer, Error>> + use<> { async { todo!() } }
    pub fn declare_queue(&self, name: &str, options: QueueOptions) -> impl Future<Output = Result<Queue, Error>> + use<> { async { todo!() } }
    pub fn delete_queue(&self, name: &str) -> impl Future<Output = Result<u32, Error>> + use<> { async { todo!() } }
    pub fn purge(&self, queue: &str) -> impl Future<Output = Result<u32, Error>> + use<> { async { todo!() } }
    pub fn bind(&self, queue: &str, exchange: &str, key: &str, arguments: Table) -> impl Future<Output = Result<(), Error>> + use<> { async { todo!() } }
    pub fn unbind(&self, queue: &str, exchange: &str, key: &str, arguments: Table) -> impl Future<Output = Result<(), Error>> + use<> { async { todo!() } }
    pub fn declare_exchange(&self, name: &str, options: ExchangeOptions) -> impl Future<Output = Result<(), Error>> + use<> { async { todo!() } }
    pub fn delete_exchange(&self, name: &str) -> impl Future<Output = Result<(), Error>> + use<> { async { todo!() } }
    pub fn bind_exchange(&self, to: &str, from: &str, key: &str, arguments: Table) -> impl Future<Output = Result<(), Error>> + use<> { async { todo!() } }
    pub fn unbind_exchange(&self, to: &str, from: &str, key: &str, arguments: Table) -> impl Future<Output = Result<(), Error>> + use<> { async { todo!() } }
    /// basic.qos; `global` limits the whole channel (refused for quorum queues).
    pub fn qos(&self, prefetch: u16, global: bool) -> impl Future<Output = Result<(), Error>> + use<> { async { todo!() } }
    /// basic.recover with requeue.
    pub fn recover(&self) -> impl Future<Output = Result<(), Error>> + use<> { async { todo!() } }
    pub fn close(&self) -> impl Future<Output = Result<(), Error>> + use<> { async { todo!() } }
    pub fn connection(&self) -> Connection { todo!() }
}
/// The future of a confirm.
pub struct Confirm(());
impl Future for Confirm { type Output = Result<(), PublishError>; fn poll(self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> { todo!() } }
pub struct Consumer(());
impl Consumer {
    pub fn next(&mut self) -> impl Future<Output = Result<Delivery, Error>> { async { todo!() } }
    /// One that is here already.
    pub fn try_next(&mut self) -> Option<Delivery> { todo!() }
    pub fn tag(&self) -> &str { todo!() }
    /// Cancels it at the broker, and waits for that; buffered deliveries go back. Dropping does the same without waiting.
    pub fn cancel(self) -> impl Future<Output = Result<(), Error>> { async { todo!() } }
}
pub struct Delivery { pub body: Vec<u8>, pub properties: Properties, pub exchange: String, pub routing_key: String, pub redelivered: bool, pub receipt: Receipt }
impl Delivery {
    pub fn tag(&self) -> u64 { todo!() }
    pub fn ack(&self) -> Result<(), Stale> { todo!() }
    pub fn nack(&self, requeue: bool) -> Result<(), Stale> { todo!() }
    pub fn reject(&self, requeue: bool) -> Result<(), Stale> { todo!() }
}
/// What a delivery is acknowledged with, apart from its content. Dropped without having been settled, it gives the message back to its queue (nack, requeue).
pub struct Receipt(());
impl Receipt {
    pub fn tag(&self) -> u64 { todo!() }
    pub fn ack(&self) -> Result<(), Stale> { todo!() }
    pub fn nack(&self, requeue: bool) -> Result<(), Stale> { todo!() }
    pub fn reject(&self, requeue: bool) -> Result<(), Stale> { todo!() }
}
