//! The broker's replies to single requests, as RabbitMQ has them.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame};
use amq_protocol::protocol::{AMQPClass, basic, channel, connection, queue};
use amq_protocol::types::ShortString;
use pikake_amqp::wire::{self, Frame};
use pikake_amqp::{Properties, Table, Value};
use pikake_amqp_testing::Broker;

const FRAME_MAX: usize = 128 * 1024;

/// A client on channel 1 of a connection of its own.
struct Client {
    broker: Broker,
    id: u64,
}

/// A frame of the broker.
#[derive(Debug, PartialEq)]
enum Got {
    Method(AMQPClass),
    Body(Vec<u8>),
}

fn declare_queue(name: &str) -> queue::Declare {
    queue::Declare {
        queue: name.into(),
        passive: false,
        durable: false,
        exclusive: false,
        auto_delete: false,
        nowait: false,
        arguments: Table::default(),
    }
}

fn consume(queue: &str, tag: &str) -> basic::Consume {
    basic::Consume {
        queue: queue.into(),
        consumer_tag: tag.into(),
        no_local: false,
        no_ack: false,
        exclusive: false,
        nowait: false,
        arguments: Table::default(),
    }
}

fn publish(exchange: &str, key: &str) -> basic::Publish {
    basic::Publish {
        exchange: exchange.into(),
        routing_key: key.into(),
        mandatory: false,
        immediate: false,
    }
}

impl Client {
    /// A client with capabilities.
    fn of(broker: &Broker, capabilities: &[&str]) -> Self {
        let client = Self { broker: broker.clone(), id: broker.connect() };
        broker.input(client.id, &wire::PROTOCOL_HEADER);
        let mut table = Table::default();
        for name in capabilities {
            table.insert((*name).into(), Value::Boolean(true));
        }
        let mut client_properties = Table::default();
        client_properties.insert("capabilities".into(), Value::FieldTable(table));
        let start = connection::StartOk {
            client_properties,
            mechanism: "PLAIN".into(),
            response: "\0guest\0guest".into(),
            locale: "en_US".into(),
        };
        let open = connection::Open { virtual_host: "/".into() };
        client.send(0, AMQPClass::Connection(connection::AMQPMethod::StartOk(start)));
        client.send(0, AMQPClass::Connection(connection::AMQPMethod::Open(open)));
        client.send(1, AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {})));
        assert_eq!(client.got().len(), 4);
        client
    }

    fn new(broker: &Broker) -> Self {
        Self::of(broker, &["consumer_cancel_notify"])
    }

    fn send(&self, number: u16, method: AMQPClass) {
        let mut bytes = Vec::new();
        wire::append_method(&mut bytes, number, method, FRAME_MAX).unwrap();
        self.broker.input(self.id, &bytes);
    }

    fn queue(&self, method: queue::AMQPMethod) {
        self.send(1, AMQPClass::Queue(method));
    }

    fn basic(&self, method: basic::AMQPMethod) {
        self.send(1, AMQPClass::Basic(method));
    }

    fn publish(&self, publish: basic::Publish, priority: u8, body: &[u8]) {
        self.basic(basic::AMQPMethod::Publish(publish));
        let properties = Properties::default().with_priority(priority);
        let header = AMQPContentHeader { class_id: 60, body_size: body.len() as u64, properties };
        let header = AMQPFrame::Header(1, header);
        let mut bytes = Vec::new();
        wire::append(&mut bytes, &header, FRAME_MAX).unwrap();
        wire::append_body(&mut bytes, 1, body, FRAME_MAX);
        self.broker.input(self.id, &bytes);
    }

    /// The frames since the last call, but for content headers.
    fn got(&self) -> Vec<Got> {
        let (bytes, _) = self.broker.output(self.id);
        let (mut rest, mut got) = (&*bytes, Vec::new());
        while let Some(raw) = wire::split(rest, FRAME_MAX).unwrap() {
            match raw.decode_any().unwrap() {
                Frame::Method(method) => got.push(Got::Method(method)),
                Frame::Body(body) => got.push(Got::Body(body.to_vec())),
                _ => {}
            }
            rest = &rest[raw.length..];
        }
        got
    }

    /// The bodies of the messages since the last call.
    fn bodies(&self) -> Vec<u8> {
        let bodies = self.got().into_iter().filter_map(|got| match got {
            Got::Body(body) => Some(body),
            Got::Method(_) => None,
        });
        bodies.flatten().collect()
    }
}

fn delete_ok(message_count: u32) -> Got {
    Got::Method(AMQPClass::Queue(queue::AMQPMethod::DeleteOk(queue::DeleteOk { message_count })))
}

fn delete_queue(name: &str) -> queue::AMQPMethod {
    queue::AMQPMethod::Delete(queue::Delete {
        queue: name.into(),
        if_unused: false,
        if_empty: false,
        nowait: false,
    })
}

#[test]
fn immediate_publish_closes_the_connection() {
    let client = Client::new(&Broker::new());
    client.publish(basic::Publish { immediate: true, ..publish("", "a") }, 0, b"1");
    let close = connection::Close {
        reply_code: 540,
        reply_text: "NOT_IMPLEMENTED - immediate=true".into(),
        class_id: 60,
        method_id: 40,
    };
    let close = AMQPClass::Connection(connection::AMQPMethod::Close(close));
    assert_eq!(client.got(), [Got::Method(close)]);
}

#[test]
fn higher_priority_is_delivered_first() {
    let broker = Broker::new();
    let client = Client::new(&broker);
    let mut arguments = Table::default();
    arguments.insert("x-max-priority".into(), Value::LongInt(9));
    client.queue(queue::AMQPMethod::Declare(queue::Declare { arguments, ..declare_queue("a") }));
    client.queue(queue::AMQPMethod::Declare(declare_queue("plain")));
    for queue in ["a", "plain"] {
        // 20 is 9 in this queue.
        for (priority, body) in [(3, b"1"), (6, b"2"), (9, b"3"), (3, b"4"), (20, b"5")] {
            client.publish(publish("", queue), priority, body);
        }
    }
    client.basic(basic::AMQPMethod::Consume(consume("a", "tag")));
    assert_eq!(client.bodies(), b"35214");
    let cancel = basic::Cancel { consumer_tag: "tag".into(), nowait: false };
    client.basic(basic::AMQPMethod::Cancel(cancel));
    client.basic(basic::AMQPMethod::Nack(basic::Nack {
        delivery_tag: 0,
        multiple: true,
        requeue: true,
    }));
    client.publish(publish("", "a"), 6, b"6");
    client.basic(basic::AMQPMethod::Consume(consume("a", "tag")));
    assert_eq!(client.bodies(), b"352614");
    client.basic(basic::AMQPMethod::Consume(consume("plain", "another")));
    assert_eq!(client.bodies(), b"12345");
}

#[test]
fn requeued_message_returns_to_its_place() {
    let broker = Broker::new();
    let client = Client::new(&broker);
    client.queue(queue::AMQPMethod::Declare(declare_queue("a")));
    for body in [b"1", b"2", b"3", b"4"] {
        client.publish(publish("", "a"), 0, body);
    }
    let get = basic::Get { queue: "a".into(), no_ack: false };
    for _ in 0..3 {
        client.basic(basic::AMQPMethod::Get(get.clone()));
    }
    assert_eq!(client.bodies(), b"123");
    for delivery_tag in [2, 1, 3] {
        let reject = basic::Reject { delivery_tag, requeue: true };
        client.basic(basic::AMQPMethod::Reject(reject));
    }
    assert_eq!(broker.bodies("a").concat(), b"1234");
}

#[test]
fn deletion_is_confirmed_before_consumers_are_cancelled() {
    let broker = Broker::new();
    let (client, other) = (Client::new(&broker), Client::of(&broker, &[]));
    client.queue(queue::AMQPMethod::Declare(declare_queue("a")));
    client.basic(basic::AMQPMethod::Consume(consume("a", "tag")));
    other.basic(basic::AMQPMethod::Consume(consume("a", "tag")));
    drop((client.got(), other.got()));
    client.queue(delete_queue("a"));
    let cancel = basic::Cancel { consumer_tag: "tag".into(), nowait: true };
    let cancel = Got::Method(AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel)));
    assert_eq!(client.got(), [delete_ok(0), cancel]);
    // A client without the capability would not understand it.
    assert_eq!(other.got(), []);
}

/// A message that only they route has no queue.
#[test]
fn bindings_end_with_their_queue() {
    let broker = Broker::new();
    let client = Client::new(&broker);
    let exclusive = Client::new(&broker);
    exclusive.queue(queue::AMQPMethod::Declare(queue::Declare {
        exclusive: true,
        ..declare_queue("exclusive")
    }));
    client.queue(queue::AMQPMethod::Declare(queue::Declare {
        auto_delete: true,
        ..declare_queue("auto")
    }));
    client.queue(queue::AMQPMethod::Declare(declare_queue("transient")));
    for (client, name) in [(&exclusive, "exclusive"), (&client, "auto"), (&client, "transient")] {
        client.queue(queue::AMQPMethod::Bind(queue::Bind {
            queue: name.into(),
            exchange: "amq.direct".into(),
            routing_key: name.into(),
            nowait: false,
            arguments: Table::default(),
        }));
    }
    broker.disconnect(exclusive.id);
    client.basic(basic::AMQPMethod::Consume(consume("auto", "tag")));
    let cancel = basic::Cancel { consumer_tag: "tag".into(), nowait: false };
    client.basic(basic::AMQPMethod::Cancel(cancel));
    broker.restart();
    let client = Client::new(&broker);
    for name in ["exclusive", "auto", "transient"] {
        client.publish(basic::Publish { mandatory: true, ..publish("amq.direct", name) }, 0, b"1");
        let returned = basic::Return {
            reply_code: 312,
            reply_text: "NO_ROUTE".into(),
            exchange: "amq.direct".into(),
            routing_key: ShortString::from(name),
        };
        let returned = AMQPClass::Basic(basic::AMQPMethod::Return(returned));
        assert_eq!(client.got(), [Got::Method(returned), Got::Body(b"1".to_vec())]);
    }
}

fn channel_close(code: u16, text: &str, ids: (u16, u16)) -> Got {
    let (class_id, method_id) = ids;
    let close = channel::Close { reply_code: code, reply_text: text.into(), class_id, method_id };
    Got::Method(AMQPClass::Channel(channel::AMQPMethod::Close(close)))
}

/// Programs read the texts: AMQP has no other way to learn how a queue was declared.
#[test]
fn differing_declaration_names_the_argument() {
    let broker = Broker::new();
    let client = Client::new(&broker);
    let argument = |name: &str, value| {
        let mut arguments = Table::default();
        arguments.insert(name.into(), value);
        arguments
    };
    let priorities = |most| argument("x-max-priority", Value::LongInt(most));
    let declare = queue::Declare { arguments: priorities(5), ..declare_queue("a") };
    client.queue(queue::AMQPMethod::Declare(declare.clone()));
    let of = "for queue 'a' in vhost '/'";
    let cases = [
        (
            queue::Declare { durable: true, ..declare.clone() },
            format!("'durable' {of}: received 'true' but current is 'false'"),
        ),
        (
            queue::Declare { arguments: priorities(6), ..declare.clone() },
            format!("'x-max-priority' {of}: received '6' but current is '5'"),
        ),
        (
            declare_queue("a"),
            format!(
                "'x-max-priority' {of}: received none but current is the value '5' of type \
                 'signedint'"
            ),
        ),
    ];
    for (declare, difference) in cases {
        let client = Client::new(&broker);
        client.queue(queue::AMQPMethod::Declare(declare));
        let text = format!("PRECONDITION_FAILED - inequivalent arg {difference}");
        assert_eq!(client.got(), [channel_close(406, &text, (50, 10))]);
    }
}

#[test]
fn queue_is_deleted_only_by_its_owner_and_its_conditions() {
    let broker = Broker::new();
    let owner = Client::new(&broker);
    let exclusive = queue::Declare { exclusive: true, ..declare_queue("exclusive") };
    owner.queue(queue::AMQPMethod::Declare(exclusive));
    owner.queue(queue::AMQPMethod::Declare(declare_queue("full")));
    owner.publish(publish("", "full"), 0, b"1");
    owner.queue(queue::AMQPMethod::Declare(declare_queue("used")));
    owner.basic(basic::AMQPMethod::Consume(consume("used", "tag")));
    let delete = |name: &str| queue::Delete {
        queue: name.into(),
        if_unused: true,
        if_empty: true,
        nowait: false,
    };
    let locked = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'exclusive' in \
                  vhost '/'";
    for (name, code, text) in [
        ("exclusive", 405, locked),
        ("full", 406, "PRECONDITION_FAILED - queue 'full' in vhost '/' not empty"),
        ("used", 406, "PRECONDITION_FAILED - queue 'used' in vhost '/' in use"),
    ] {
        let client = Client::new(&broker);
        client.queue(queue::AMQPMethod::Delete(delete(name)));
        assert_eq!(client.got(), [channel_close(code, text, (50, 40))]);
    }
    assert_eq!(broker.queues().len(), 3);
}

#[test]
fn broker_names_queues_and_consumers() {
    let broker = Broker::new();
    let client = Client::new(&broker);
    client.queue(queue::AMQPMethod::Declare(declare_queue("")));
    let [name] = &broker.queues()[..] else { panic!("one queue") };
    assert!(name.starts_with("amq.gen-"), "{name}");
    for _ in 0..2 {
        client.basic(basic::AMQPMethod::Consume(consume(name, "")));
    }
    assert_eq!(broker.consumers(name), 2);
    client.got();
    client.basic(basic::AMQPMethod::Consume(consume(name, "tag")));
    client.basic(basic::AMQPMethod::Consume(consume(name, "tag")));
    let close = connection::Close {
        reply_code: 530,
        reply_text: "NOT_ALLOWED - attempt to reuse consumer tag 'tag'".into(),
        class_id: 60,
        method_id: 20,
    };
    let close = Got::Method(AMQPClass::Connection(connection::AMQPMethod::Close(close)));
    assert_eq!(client.got().pop(), Some(close));
}

#[test]
fn request_without_wait_has_no_reply() {
    let broker = Broker::new();
    let client = Client::new(&broker);
    let declare = queue::Declare { nowait: true, ..declare_queue("a") };
    client.queue(queue::AMQPMethod::Declare(declare));
    let consume = basic::Consume { nowait: true, ..consume("a", "tag") };
    client.basic(basic::AMQPMethod::Consume(consume));
    assert_eq!(broker.consumers("a"), 1);
    let cancel = basic::Cancel { consumer_tag: "tag".into(), nowait: true };
    client.basic(basic::AMQPMethod::Cancel(cancel));
    let delete = queue::Delete { queue: "a".into(), if_unused: true, if_empty: true, nowait: true };
    client.queue(queue::AMQPMethod::Delete(delete));
    assert_eq!((broker.queues().len(), client.got()), (0, vec![]));
}

#[test]
fn ack_up_to_an_unknown_delivery_closes_the_channel() {
    let client = Client::new(&Broker::new());
    for delivery_tag in [0, 3] {
        client.basic(basic::AMQPMethod::Ack(basic::Ack { delivery_tag, multiple: true }));
    }
    let text = "PRECONDITION_FAILED - unknown delivery tag 3";
    assert_eq!(client.got(), [channel_close(406, text, (60, 80))]);
}

#[test]
fn flow_can_only_be_active() {
    let client = Client::new(&Broker::new());
    for active in [true, false] {
        client.send(1, AMQPClass::Channel(channel::AMQPMethod::Flow(channel::Flow { active })));
    }
    let ok = AMQPClass::Channel(channel::AMQPMethod::FlowOk(channel::FlowOk { active: true }));
    let close = connection::Close {
        reply_code: 540,
        reply_text: "NOT_IMPLEMENTED - active=false".into(),
        class_id: 20,
        method_id: 20,
    };
    let close = AMQPClass::Connection(connection::AMQPMethod::Close(close));
    assert_eq!(client.got(), [Got::Method(ok), Got::Method(close)]);
}
