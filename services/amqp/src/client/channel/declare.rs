//! Queues, exchanges and routes: what a channel declares and deletes.

use std::future::Future;

use amq_protocol::protocol::{AMQPClass, exchange, queue};
use pikake_traps::random;

use super::Channel;
use crate::client::hub::{Answer, wrong_answer};
use crate::client::topology::Binding;
use crate::error::Error;
use crate::message::{ExchangeOptions, Queue, QueueOptions, Table, short};

impl Channel {
    /// Declares a queue: makes it, or sees that it is there and the same. An empty name stands for one
    /// that is made up here. It is declared again when the connection recovers.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 406 if it is there and different, 405 if it is another
    /// connection's, 404 if it is not there and was to be; others as for any request.
    pub fn declare_queue(
        &self,
        name: &str,
        options: QueueOptions,
    ) -> impl Future<Output = Result<Queue, Error>> + use<> {
        let made_up;
        let name = match name {
            "" => {
                made_up = format!("pikake.{:016x}", random::u64());
                short(&made_up)
            }
            name => short(name),
        };
        let channel = self.clone();
        async move {
            let (name, is_kept) = (name?, !options.passive);
            let declare = options.declare(name.clone());
            let Answer::Queue(queue) = channel.0.ask(declare.clone()).await? else {
                return Err(wrong_answer());
            };
            if is_kept {
                channel.0.hub().topology.borrow_mut().add_queue(name, declare);
            }
            Ok(queue)
        }
    }

    /// Deletes a queue, and tells how many messages were in it. That it is not there is no error.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub fn delete_queue(&self, name: &str) -> impl Future<Output = Result<u32, Error>> + use<> {
        let (channel, name) = (self.clone(), short(name));
        async move {
            let queue = name?;
            // What was interrupted before it was asked for is not forgotten.
            channel.0.hub().ready().await?;
            channel.0.hub().topology.borrow_mut().remove_queue(queue.as_str());
            let delete = queue::Delete { queue, if_unused: false, if_empty: false, nowait: false };
            let method = AMQPClass::Queue(queue::AMQPMethod::Delete(delete));
            count(channel.0.ask(method).await?)
        }
    }

    /// Empties a queue of what is ready, and tells how much that was.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 404 if it is not there; others as for any request.
    pub fn purge(&self, queue: &str) -> impl Future<Output = Result<u32, Error>> + use<> {
        let purge = short(queue).map(|queue| {
            AMQPClass::Queue(queue::AMQPMethod::Purge(queue::Purge { queue, nowait: false }))
        });
        let asked = self.clone().ask(purge);
        async move { count(asked.await?) }
    }

    /// Routes what an exchange gets under a key to a queue. Done again when the connection recovers.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 404 if one of them is not there; others as for any request.
    pub fn bind(
        &self,
        queue: &str,
        exchange: &str,
        key: &str,
        arguments: Table,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        self.add(Binding::new(queue, true, exchange, key, arguments))
    }

    /// Takes a route back.
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

    /// Routes what an exchange gets under a key to another exchange. Done again when the connection
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

    /// Takes a route between exchanges back.
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
            channel.0.hub().ready().await?;
            channel.0.hub().topology.borrow_mut().remove_binding(&binding);
            channel.0.ask(binding.unbind()).await.map(drop)
        }
    }

    /// Declares an exchange: makes it, or sees that it is there and the same. Done again when the
    /// connection recovers.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 406 if it is there and different; [`Error::ConnectionClosed`] for
    /// a kind that the broker does not know; others as for any request.
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

    /// Deletes an exchange. That it is not there is no error.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub fn delete_exchange(&self, name: &str) -> impl Future<Output = Result<(), Error>> + use<> {
        let (channel, name) = (self.clone(), short(name));
        async move {
            let exchange = name?;
            channel.0.hub().ready().await?;
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
        _ => Err(wrong_answer()),
    }
}
