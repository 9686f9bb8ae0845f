//! The declarations of a connection, which recovery repeats over the next one.

use amq_protocol::protocol::{AMQPClass, exchange, queue};
use amq_protocol::types::ShortString;

use crate::error::Error;
use crate::message::{Table, short};

/// A binding from an exchange to a queue or to another exchange.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Binding {
    pub(crate) to: ShortString,
    pub(crate) to_queue: bool,
    pub(crate) from: ShortString,
    pub(crate) key: ShortString,
    pub(crate) arguments: Table,
}

/// The declarations, in their order.
#[derive(Default, Debug)]
pub(crate) struct Topology {
    exchanges: Vec<(ShortString, AMQPClass)>,
    queues: Vec<(ShortString, AMQPClass)>,
    bindings: Vec<Binding>,
}

fn upsert(list: &mut Vec<(ShortString, AMQPClass)>, name: ShortString, declare: AMQPClass) {
    match list.iter_mut().find(|(known, _)| *known == name) {
        Some(entry) => entry.1 = declare,
        None => list.push((name, declare)),
    }
}

impl Topology {
    pub(crate) fn add_exchange(&mut self, name: ShortString, declare: AMQPClass) {
        upsert(&mut self.exchanges, name, declare);
    }

    pub(crate) fn add_queue(&mut self, name: ShortString, declare: AMQPClass) {
        upsert(&mut self.queues, name, declare);
    }

    pub(crate) fn add_binding(&mut self, binding: Binding) {
        if !self.bindings.contains(&binding) {
            self.bindings.push(binding);
        }
    }

    pub(crate) fn remove_exchange(&mut self, name: &str) {
        self.exchanges.retain(|(known, _)| known.as_str() != name);
        self.bindings.retain(|b| b.from.as_str() != name && (b.to_queue || b.to.as_str() != name));
    }

    pub(crate) fn remove_queue(&mut self, name: &str) {
        self.queues.retain(|(known, _)| known.as_str() != name);
        self.bindings.retain(|b| !b.to_queue || b.to.as_str() != name);
    }

    pub(crate) fn remove_binding(&mut self, binding: &Binding) {
        self.bindings.retain(|known| known != binding);
    }

    /// Removes the declaration that this request repeats.
    pub(crate) fn remove(&mut self, request: &AMQPClass) {
        self.exchanges.retain(|(_, declare)| declare != request);
        self.queues.retain(|(_, declare)| declare != request);
        self.bindings.retain(|binding| binding.bind() != *request);
    }

    /// All declarations as requests. Each list depends only on the lists before.
    pub(crate) fn stages(&self) -> [Vec<AMQPClass>; 3] {
        let declared = |list: &[(ShortString, AMQPClass)]| {
            list.iter().map(|(_, declare)| declare.clone()).collect()
        };
        let bound = self.bindings.iter().map(Binding::bind).collect();
        [declared(&self.exchanges), declared(&self.queues), bound]
    }
}

impl Binding {
    pub(crate) fn new(
        to: &str,
        to_queue: bool,
        from: &str,
        key: &str,
        arguments: Table,
    ) -> Result<Self, Error> {
        Ok(Self { to: short(to)?, to_queue, from: short(from)?, key: short(key)?, arguments })
    }

    pub(crate) fn bind(&self) -> AMQPClass {
        let (routing_key, arguments) = (self.key.clone(), self.arguments.clone());
        let nowait = false;
        match self.to_queue {
            true => AMQPClass::Queue(queue::AMQPMethod::Bind(queue::Bind {
                queue: self.to.clone(),
                exchange: self.from.clone(),
                routing_key,
                nowait,
                arguments,
            })),
            false => AMQPClass::Exchange(exchange::AMQPMethod::Bind(exchange::Bind {
                destination: self.to.clone(),
                source: self.from.clone(),
                routing_key,
                nowait,
                arguments,
            })),
        }
    }

    pub(crate) fn unbind(&self) -> AMQPClass {
        let (routing_key, arguments) = (self.key.clone(), self.arguments.clone());
        match self.to_queue {
            true => AMQPClass::Queue(queue::AMQPMethod::Unbind(queue::Unbind {
                queue: self.to.clone(),
                exchange: self.from.clone(),
                routing_key,
                arguments,
            })),
            false => AMQPClass::Exchange(exchange::AMQPMethod::Unbind(exchange::Unbind {
                destination: self.to.clone(),
                source: self.from.clone(),
                routing_key,
                nowait: false,
                arguments,
            })),
        }
    }
}
