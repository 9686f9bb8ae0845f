//! The requests of a client on a channel.

use amq_protocol::protocol::{AMQPClass, basic, confirm, exchange, queue};

use super::peer::{Refusal, incoming, refuse};
use super::queues::{append_content, as_delivered};
use super::{ConsumerState, Exchange, QueueState, State, Unacked};
use pikake_amqp::wire::REPLY_TO;

type Reply = Result<Option<AMQPClass>, Refusal>;

fn queue_reply(method: queue::AMQPMethod) -> Reply {
    Ok(Some(AMQPClass::Queue(method)))
}

fn exchange_reply(method: exchange::AMQPMethod) -> Reply {
    Ok(Some(AMQPClass::Exchange(method)))
}

fn basic_reply(method: basic::AMQPMethod) -> Reply {
    Ok(Some(AMQPClass::Basic(method)))
}

fn locked(name: &str) -> String {
    format!(
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'"
    )
}

/// Whether the client wants no reply.
fn is_without_reply(method: &AMQPClass) -> bool {
    use {basic::AMQPMethod as B, exchange::AMQPMethod as X, queue::AMQPMethod as Q};
    match method {
        AMQPClass::Queue(Q::Declare(method)) => method.nowait,
        AMQPClass::Queue(Q::Bind(method)) => method.nowait,
        AMQPClass::Queue(Q::Purge(method)) => method.nowait,
        AMQPClass::Queue(Q::Delete(method)) => method.nowait,
        AMQPClass::Exchange(X::Declare(method)) => method.nowait,
        AMQPClass::Exchange(X::Delete(method)) => method.nowait,
        AMQPClass::Exchange(X::Bind(method)) => method.nowait,
        AMQPClass::Exchange(X::Unbind(method)) => method.nowait,
        AMQPClass::Basic(B::Consume(method)) => method.nowait,
        AMQPClass::Basic(B::Cancel(method)) => method.nowait,
        AMQPClass::Confirm(confirm::AMQPMethod::Select(method)) => method.nowait,
        _ => false,
    }
}

impl State {
    /// A name of the broker's own.
    fn new_name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}-{}", self.names)
    }

    /// Handles a request, whose reply is the method that this returns.
    pub(crate) fn request(&mut self, id: u64, number: u16, method: AMQPClass) -> Reply {
        let is_without_reply = is_without_reply(&method);
        let reply = match method {
            AMQPClass::Queue(method) => self.queue_request(id, number, method)?,
            AMQPClass::Exchange(method) => self.exchange_request(method)?,
            AMQPClass::Basic(method) => self.basic_request(id, number, method)?,
            AMQPClass::Confirm(_) => {
                if let Some(channel) = self.channel(id, number) {
                    channel.published.get_or_insert(0);
                }
                let ok = confirm::AMQPMethod::SelectOk(confirm::SelectOk {});
                Some(AMQPClass::Confirm(ok))
            }
            other => {
                let text = format!("NOT_IMPLEMENTED - {other:?}");
                return Err(Refusal { code: 540, text, is_hard: true });
            }
        };
        Ok(reply.filter(|_| !is_without_reply))
    }

    /// A queue that exists, and that the connection may use.
    fn queue(&mut self, id: u64, name: &str) -> Result<&mut QueueState, Refusal> {
        match self.queues.get_mut(name) {
            None => refuse(404, format!("NOT_FOUND - no queue '{name}' in vhost '/'")),
            Some(queue) if queue.owner.is_some_and(|owner| owner != id) => {
                refuse(405, locked(name))
            }
            Some(queue) => Ok(queue),
        }
    }

    fn exchange(&mut self, name: &str) -> Result<&mut Exchange, Refusal> {
        match self.exchanges.get_mut(name) {
            None => refuse(404, format!("NOT_FOUND - no exchange '{name}' in vhost '/'")),
            Some(exchange) => Ok(exchange),
        }
    }

    fn queue_request(&mut self, id: u64, number: u16, method: queue::AMQPMethod) -> Reply {
        use queue::AMQPMethod as Q;
        match method {
            Q::Declare(declare) => {
                let name = match declare.queue.as_str() {
                    "" if !declare.passive => self.new_name("amq.gen"),
                    name => name.to_owned(),
                };
                if !declare.passive && !self.queues.contains_key(&name) {
                    if declare.queue.as_str().starts_with("amq.") {
                        let why = format!("queue name '{name}' contains reserved prefix 'amq.*'");
                        return refuse(403, format!("ACCESS_REFUSED - {why}"));
                    }
                    let state = QueueState {
                        durable: declare.durable,
                        owner: declare.exclusive.then_some(id),
                        auto_delete: declare.auto_delete,
                        arguments: declare.arguments.clone(),
                        ready: Default::default(),
                        taken: 0,
                        unacked: 0,
                        consumers: Default::default(),
                        has_exclusive_consumer: false,
                    };
                    self.queues.insert(name.clone(), state);
                }
                let state = self.queue(id, &name)?;
                if !declare.passive && state.owner.is_some() != declare.exclusive {
                    return refuse(405, locked(&name));
                }
                if let Some((argument, how)) = state.difference(&declare)
                    && !declare.passive
                {
                    let why =
                        format!("inequivalent arg '{argument}' for queue '{name}' in vhost '/'");
                    return refuse(406, format!("PRECONDITION_FAILED - {why}: {how}"));
                }
                queue_reply(Q::DeclareOk(queue::DeclareOk {
                    queue: name.as_str().into(),
                    message_count: state.ready.len() as u32,
                    consumer_count: state.consumers.len() as u32,
                }))
            }
            Q::Bind(bind) => {
                self.queue(id, bind.queue.as_str())?;
                let exchange = self.exchange(bind.exchange.as_str())?;
                let route = (bind.queue.into(), true, bind.routing_key.into());
                if !exchange.routes.contains(&route) {
                    exchange.routes.push(route);
                }
                queue_reply(Q::BindOk(queue::BindOk {}))
            }
            Q::Unbind(unbind) => {
                let route = (unbind.queue.into(), true, unbind.routing_key.into());
                if let Some(exchange) = self.exchanges.get_mut(unbind.exchange.as_str()) {
                    exchange.routes.retain(|known| *known != route);
                }
                queue_reply(Q::UnbindOk(queue::UnbindOk {}))
            }
            Q::Purge(purge) => {
                let ready = std::mem::take(&mut self.queue(id, purge.queue.as_str())?.ready);
                queue_reply(Q::PurgeOk(queue::PurgeOk { message_count: ready.len() as u32 }))
            }
            Q::Delete(delete) => {
                let name = delete.queue.as_str();
                if self.queues.contains_key(name) {
                    let state = self.queue(id, name)?;
                    let why = match (state.consumers.is_empty(), state.ready.is_empty()) {
                        (false, _) if delete.if_unused => Some("in use"),
                        (_, false) if delete.if_empty => Some("not empty"),
                        _ => None,
                    };
                    if let Some(why) = why {
                        let text =
                            format!("PRECONDITION_FAILED - queue '{name}' in vhost '/' {why}");
                        return refuse(406, text);
                    }
                }
                let removed = self.remove_queue(name);
                let message_count = removed.as_ref().map_or(0, |queue| queue.ready.len()) as u32;
                // The cancels of consumers follow the reply.
                if !delete.nowait {
                    let ok = Q::DeleteOk(queue::DeleteOk { message_count });
                    self.send_method(id, number, AMQPClass::Queue(ok));
                }
                for (peer, channel, tag) in removed.iter().flat_map(|queue| &queue.consumers) {
                    if let Some(channel) = self.channel(*peer, *channel) {
                        channel.consumers.remove(tag);
                    }
                    if self.peers.get(peer).is_some_and(|peer| peer.accepts_cancel) {
                        let consumer_tag = tag.as_str().into();
                        let cancel = basic::Cancel { consumer_tag, nowait: true };
                        let cancel = AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel));
                        self.send_method(*peer, *channel, cancel);
                    }
                }
                Ok(None)
            }
            other => refuse(540, format!("NOT_IMPLEMENTED - {other:?}")),
        }
    }

    fn exchange_request(&mut self, method: exchange::AMQPMethod) -> Reply {
        use exchange::AMQPMethod as X;
        match method {
            X::Declare(declare) => {
                let name = declare.exchange.to_string();
                if self.forgotten_kinds.contains(declare.kind.as_str()) {
                    let text =
                        format!("COMMAND_INVALID - unknown exchange type '{}'", declare.kind);
                    return Err(Refusal { code: 503, text, is_hard: true });
                }
                if !declare.passive {
                    let kind = declare.kind.to_string();
                    let new_exchange = || Exchange { kind, routes: Vec::new() };
                    self.exchanges.entry(name.clone()).or_insert_with(new_exchange);
                }
                let known = self.exchange(&name)?;
                if !declare.passive && known.kind != declare.kind.as_str() {
                    let (wanted, is) = (&declare.kind, &known.kind);
                    let why = format!("inequivalent arg 'type' for exchange '{name}' in vhost '/'");
                    let why = format!("{why}: received '{wanted}' but current is '{is}'");
                    return refuse(406, format!("PRECONDITION_FAILED - {why}"));
                }
                exchange_reply(X::DeclareOk(exchange::DeclareOk {}))
            }
            X::Delete(delete) => {
                self.exchanges.remove(delete.exchange.as_str());
                exchange_reply(X::DeleteOk(exchange::DeleteOk {}))
            }
            X::Bind(bind) => {
                self.exchange(bind.destination.as_str())?;
                let route = (bind.destination.into(), false, bind.routing_key.into());
                let source = self.exchange(bind.source.as_str())?;
                if !source.routes.contains(&route) {
                    source.routes.push(route);
                }
                exchange_reply(X::BindOk(exchange::BindOk {}))
            }
            X::Unbind(unbind) => {
                let route = (unbind.destination.into(), false, unbind.routing_key.into());
                self.exchange(unbind.source.as_str())?.routes.retain(|known| *known != route);
                exchange_reply(X::UnbindOk(exchange::UnbindOk {}))
            }
            other => refuse(540, format!("NOT_IMPLEMENTED - {other:?}")),
        }
    }

    fn basic_request(&mut self, id: u64, number: u16, method: basic::AMQPMethod) -> Reply {
        use basic::AMQPMethod as B;
        match method {
            B::Publish(publish) if publish.immediate => Err(Refusal {
                code: 540,
                text: "NOT_IMPLEMENTED - immediate=true".to_owned(),
                is_hard: true,
            }),
            B::Publish(publish) => {
                if let Some(channel) = self.channel(id, number) {
                    channel.incoming = Some(incoming(publish));
                }
                Ok(None)
            }
            B::Ack(ack) => {
                let taken = self.take_unacked(id, number, ack.delivery_tag, ack.multiple)?;
                for unacked in &taken {
                    if let Some(queue) = self.queues.get_mut(&unacked.queue) {
                        queue.unacked -= 1;
                    }
                }
                taken.iter().for_each(|unacked| self.deliver(&unacked.queue));
                Ok(None)
            }
            B::Nack(nack) => self.nack(id, number, nack.delivery_tag, nack.multiple, nack.requeue),
            B::Reject(reject) => self.nack(id, number, reject.delivery_tag, false, reject.requeue),
            B::Qos(qos) => {
                if let Some(channel) = self.channel(id, number) {
                    channel.has_global_limit = qos.global && qos.prefetch_count > 0;
                    channel.prefetch = usize::from(qos.prefetch_count);
                }
                basic_reply(B::QosOk(basic::QosOk {}))
            }
            B::Consume(consume) => self.consume(id, number, consume),
            B::Cancel(cancel) => {
                let tag = cancel.consumer_tag.to_string();
                let channel = self.channel(id, number);
                let known = channel.and_then(|channel| {
                    channel.direct_reply_consumer.take_if(|known| *known == tag);
                    channel.consumers.remove(&tag)
                });
                if let Some(consumer) = known {
                    self.forget_consumer(id, number, &tag, &consumer.queue);
                }
                basic_reply(B::CancelOk(basic::CancelOk { consumer_tag: cancel.consumer_tag }))
            }
            B::Get(get) => self.get(id, number, get),
            B::Recover(_) => {
                // Deliveries follow the reply.
                self.send_method(id, number, AMQPClass::Basic(B::RecoverOk(basic::RecoverOk {})));
                self.nack(id, number, 0, true, true)
            }
            other => refuse(540, format!("NOT_IMPLEMENTED - {other:?}")),
        }
    }

    fn take_unacked(
        &mut self,
        id: u64,
        number: u16,
        tag: u64,
        multiple: bool,
    ) -> Result<Vec<Unacked>, Refusal> {
        let Some(channel) = self.channel(id, number) else { return Ok(Vec::new()) };
        let is_all = multiple && tag == 0;
        if multiple && (is_all || channel.unacked.contains_key(&tag)) {
            let last = if is_all { u64::MAX } else { tag };
            let tags: Vec<u64> = channel.unacked.range(..=last).map(|(&tag, _)| tag).collect();
            return Ok(tags.iter().filter_map(|tag| channel.unacked.remove(tag)).collect());
        }
        match channel.unacked.remove(&tag) {
            Some(unacked) => Ok(vec![unacked]),
            None => refuse(406, format!("PRECONDITION_FAILED - unknown delivery tag {tag}")),
        }
    }

    fn nack(&mut self, id: u64, number: u16, tag: u64, multiple: bool, requeue: bool) -> Reply {
        let taken = self.take_unacked(id, number, tag, multiple)?;
        let queues: Vec<String> = taken.iter().map(|unacked| unacked.queue.clone()).collect();
        for unacked in taken {
            self.reject(unacked, requeue);
        }
        queues.iter().for_each(|queue| self.deliver(queue));
        Ok(None)
    }

    fn consume(&mut self, id: u64, number: u16, consume: basic::Consume) -> Reply {
        let name = consume.queue.to_string();
        let tag = match consume.consumer_tag.as_str() {
            "" => self.new_name("amq.ctag"),
            tag => tag.to_owned(),
        };
        if self.channel(id, number).is_some_and(|channel| {
            channel.consumers.contains_key(&tag)
                || channel.direct_reply_consumer.as_ref() == Some(&tag)
        }) {
            let text = format!("NOT_ALLOWED - attempt to reuse consumer tag '{tag}'");
            return Err(Refusal { code: 530, text, is_hard: true });
        }
        let ok = basic::ConsumeOk { consumer_tag: tag.as_str().into() };
        let ok = AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(ok));
        if name == REPLY_TO {
            if self.refuses_direct_reply {
                return refuse(403, "ACCESS_REFUSED - direct reply-to".to_owned());
            }
            if let Some(channel) = self.channel(id, number) {
                channel.direct_reply_consumer = Some(tag);
            }
            return Ok(Some(ok));
        }
        let has_global_limit =
            self.channel(id, number).is_some_and(|channel| channel.has_global_limit);
        let state = self.queue(id, &name)?;
        if has_global_limit && state.is_quorum() {
            let text = format!("NOT_IMPLEMENTED - queue '{name}' does not support global qos");
            return Err(Refusal { code: 540, text, is_hard: true });
        }
        if state.has_exclusive_consumer || consume.exclusive && !state.consumers.is_empty() {
            return refuse(403, format!("ACCESS_REFUSED - queue '{name}' in exclusive use"));
        }
        state.has_exclusive_consumer = consume.exclusive;
        state.consumers.push_back((id, number, tag.clone()));
        if let Some(channel) = self.channel(id, number) {
            let prefetch = channel.prefetch;
            let known = ConsumerState { queue: name.clone(), no_ack: consume.no_ack, prefetch };
            channel.consumers.insert(tag, known);
        }
        // Deliveries follow the reply.
        if !consume.nowait {
            self.send_method(id, number, ok);
        }
        self.deliver(&name);
        Ok(None)
    }

    fn get(&mut self, id: u64, number: u16, get: basic::Get) -> Reply {
        let name = get.queue.to_string();
        self.expire(&name);
        let state = self.queue(id, &name)?;
        let is_quorum = state.is_quorum();
        let Some(stored) = state.ready.pop_front() else {
            return basic_reply(basic::AMQPMethod::GetEmpty(basic::GetEmpty {}));
        };
        let message_count = state.ready.len() as u32;
        state.unacked += usize::from(!get.no_ack);
        let Some(peer) = self.peers.get_mut(&id) else { return Ok(None) };
        let Some(channel) = peer.channels.get_mut(&number) else { return Ok(None) };
        let delivery_tag = channel.take_tag();
        let got = basic::GetOk {
            delivery_tag,
            redelivered: stored.deliveries > 0,
            exchange: stored.message.exchange.clone(),
            routing_key: stored.message.routing_key.clone(),
            message_count,
        };
        let method = AMQPClass::Basic(basic::AMQPMethod::GetOk(got));
        append_content(&mut peer.output, number, method, &as_delivered(&stored, is_quorum));
        if !get.no_ack {
            let unacked = Unacked { queue: name, consumer: String::new(), stored };
            channel.unacked.insert(delivery_tag, unacked);
        }
        Ok(None)
    }
}
