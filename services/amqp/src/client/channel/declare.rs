//! Requests that declare, bind and delete queues and exchanges.

use std::future::Future;

use amq_protocol::protocol::{AMQPClass, exchange, queue};
use pikake_traps::random;

use super::Channel;
use crate::client::hub::{Answer, unexpected_answer};
use crate::client::topology::Binding;
use crate::error::Error;
use crate::message::{ExchangeOptions, Queue, QueueOptions, Table, short};

impl Channel {
    /// Declares a queue: creates the queue, or checks that an equal one exists. The client
    /// generates a name if the name is empty. The queue is declared again when the connection
    /// recovers.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 406 if the queue exists with other options, 405 if another
    /// connection owns it, 404 if `passive` and it does not exist; others as for any request.
    pub fn declare_queue(
        &self,
        name: &str,
        options: QueueOptions,
    ) -> impl Future<Output = Result<Queue, Error>> + use<> {
        let is_kept = !options.passive;
        self.declare_queue_as(name, options, is_kept)
    }

    /// Declares a queue as [`declare_queue`](Self::declare_queue) does, but not again when the
    /// connection recovers: for queues that others may delete meanwhile.
    ///
    /// # Errors
    ///
    /// As for [`declare_queue`](Self::declare_queue).
    pub fn declare_queue_once(
        &self,
        name: &str,
        options: QueueOptions,
    ) -> impl Future<Output = Result<Queue, Error>> + use<> {
        self.declare_queue_as(name, options, false)
    }

    fn declare_queue_as(
        &self,
        name: &str,
        options: QueueOptions,
        is_kept: bool,
    ) -> impl Future<Output = Result<Queue, Error>> + use<> {
        let generated;
        let name = match name {
            "" => {
                generated = format!("pikake.{:016x}", random::u64());
                short(&generated)
            }
            name => short(name),
        };
        let channel = self.clone();
        async move {
            let name = name?;
            let declare = options.declare(name.clone());
            let Answer::Queue(queue) = channel.0.ask(declare.clone()).await? else {
                return Err(unexpected_answer());
            };
            if is_kept {
                channel.0.hub().topology.borrow_mut().add_queue(name, declare);
            }
            Ok(queue)
        }
    }

    /// Deletes a queue, and returns the number of its messages. A missing queue is no error.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub fn delete_queue(&self, name: &str) -> impl Future<Output = Result<u32, Error>> + use<> {
        let (channel, name) = (self.clone(), short(name));
        async move {
            let queue = name?;
            // An interruption before the request leaves the queue in the topology.
            channel.0.hub().until_ready().await?;
            channel.0.hub().topology.borrow_mut().remove_queue(queue.as_str());
            let delete = queue::Delete { queue, if_unused: false, if_empty: false, nowait: false };
            let method = AMQPClass::Queue(queue::AMQPMethod::Delete(delete));
            count(channel.0.ask(method).await?)
        }
    }

    /// Removes all ready messages from a queue, and returns their number.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 404 if the queue does not exist; others as for any request.
    pub fn purge(&self, queue: &str) -> impl Future<Output = Result<u32, Error>> + use<> {
        let purge = short(queue).map(|queue| {
            AMQPClass::Queue(queue::AMQPMethod::Purge(queue::Purge { queue, nowait: false }))
        });
        let asked = self.clone().ask(purge);
        async move { count(asked.await?) }
    }

    /// Binds a queue to an exchange under a routing key, also when the connection recovers.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 404 if queue or exchange is missing; others as for any
    /// request.
    pub fn bind(
        &self,
        queue: &str,
        exchange: &str,
        key: &str,
        arguments: Table,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        self.add(Binding::new(queue, true, exchange, key, arguments))
    }

    /// Removes a binding.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub fn unbind(
        &self,
        queue: &str,
        exchange: &str,
        key: &str,
        arguments: Table,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        self.remove(Binding::new(queue, true, exchange, key, arguments))
    }

    /// Binds the exchange `to` to the exchange `from` under a routing key, also when the connection
    /// recovers.
    ///
    /// # Errors
    ///
    /// As for [`bind`](Self::bind).
    pub fn bind_exchange(
        &self,
        to: &str,
        from: &str,
        key: &str,
        arguments: Table,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        self.add(Binding::new(to, false, from, key, arguments))
    }

    /// Removes a binding between exchanges.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub fn unbind_exchange(
        &self,
        to: &str,
        from: &str,
        key: &str,
        arguments: Table,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        self.remove(Binding::new(to, false, from, key, arguments))
    }

    fn add(
        &self,
        binding: Result<Binding, Error>,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let channel = self.clone();
        async move {
            let binding = binding?;
            channel.0.ask(binding.bind()).await?;
            channel.0.hub().topology.borrow_mut().add_binding(binding);
            Ok(())
        }
    }

    fn remove(
        &self,
        binding: Result<Binding, Error>,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let channel = self.clone();
        async move {
            let binding = binding?;
            channel.0.hub().until_ready().await?;
            channel.0.hub().topology.borrow_mut().remove_binding(&binding);
            channel.0.ask(binding.unbind()).await.map(drop)
        }
    }

    /// Declares an exchange: creates the exchange, or checks that an equal one exists. The exchange
    /// is declared again when the connection recovers.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 406 if the exchange exists with other options;
    /// [`Error::ConnectionClosed`] for a kind unknown to the broker; others as for any request.
    pub fn declare_exchange(
        &self,
        name: &str,
        options: ExchangeOptions,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let (channel, name, kind) = (self.clone(), short(name), short(&options.kind));
        async move {
            let (name, is_kept) = (name?, !options.passive);
            let declare = options.declare(name.clone(), kind?);
            channel.0.ask(declare.clone()).await?;
            if is_kept {
                channel.0.hub().topology.borrow_mut().add_exchange(name, declare);
            }
            Ok(())
        }
    }

    /// Deletes an exchange. A missing exchange is no error.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub fn delete_exchange(&self, name: &str) -> impl Future<Output = Result<(), Error>> + use<> {
        let (channel, name) = (self.clone(), short(name));
        async move {
            let exchange = name?;
            channel.0.hub().until_ready().await?;
            channel.0.hub().topology.borrow_mut().remove_exchange(exchange.as_str());
            let delete = exchange::Delete { exchange, if_unused: false, nowait: false };
            let method = AMQPClass::Exchange(exchange::AMQPMethod::Delete(delete));
            channel.0.ask(method).await.map(drop)
        }
    }
}

fn count(answer: Answer) -> Result<u32, Error> {
    match answer {
        Answer::Count(count) => Ok(count),
        _ => Err(unexpected_answer()),
    }
}
