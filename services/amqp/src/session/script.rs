//! Test support: a broker's frames as bytes, and a session's events and sent methods as texts.

use std::time::Duration;

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, basic, channel, connection, queue};
use amq_protocol::types::FieldTable;

use crate::message::{Message, Properties};
use crate::session::Session;
use crate::session::event::{Ended, Event, Outcome, Reply};
use crate::session::handshake::{HandshakeConfig, Limits, Password};
use crate::session::wire::{self, Frame, append_method};

pub(crate) type TestSession = Session<&'static str, &'static str>;

pub(crate) const FRAME_MAX: usize = 4096;

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn handshake_config() -> HandshakeConfig {
    HandshakeConfig {
        is_external: false,
        user: "ann".to_owned(),
        password: Password("secret".to_owned()),
        vhost: "/".into(),
        name: "test".to_owned(),
        wanted: Limits { frame_max: FRAME_MAX, channel_max: 10, heartbeat: secs(10) },
    }
}

/// The frames of a broker's methods.
pub(crate) fn bytes(methods: &[(u16, AMQPClass)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (channel, method) in methods {
        append_method(&mut bytes, *channel, method.clone(), FRAME_MAX).unwrap();
    }
    bytes
}

pub(crate) fn on_connection(method: connection::AMQPMethod) -> (u16, AMQPClass) {
    (0, AMQPClass::Connection(method))
}

pub(crate) fn welcome() -> Vec<u8> {
    use connection::AMQPMethod as M;
    bytes(&[
        on_connection(M::Start(connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: FieldTable::default(),
            mechanisms: "AMQPLAIN PLAIN".into(),
            locales: "en_US".into(),
        })),
        on_connection(M::Tune(connection::Tune { channel_max: 0, frame_max: 0, heartbeat: 60 })),
        on_connection(M::OpenOk(connection::OpenOk {})),
    ])
}

pub(crate) fn content(channel: u16, method: basic::AMQPMethod, body: &[u8]) -> Vec<u8> {
    content_with(channel, method, Properties::default(), body)
}

pub(crate) fn content_with(
    channel: u16,
    method: basic::AMQPMethod,
    properties: Properties,
    body: &[u8],
) -> Vec<u8> {
    let mut to = bytes(&[(channel, AMQPClass::Basic(method))]);
    let header = amq_protocol::frame::AMQPContentHeader {
        class_id: 60,
        body_size: body.len() as u64,
        properties,
    };
    wire::append(&mut to, &AMQPFrame::Header(channel, header), usize::MAX).unwrap();
    wire::append_body(&mut to, channel, body, FRAME_MAX);
    to
}

pub(crate) fn deliver(channel: u16, tag: u64, body: &[u8]) -> Vec<u8> {
    let deliver = basic::Deliver {
        consumer_tag: "c".into(),
        delivery_tag: tag,
        redelivered: false,
        exchange: "".into(),
        routing_key: "q".into(),
    };
    content(channel, basic::AMQPMethod::Deliver(deliver), body)
}

pub(crate) fn events(session: &mut TestSession) -> Vec<String> {
    let text = |event| match event {
        Event::Opened => "opened".to_owned(),
        Event::Replied { token, result: Ok(Reply::Got(Some(content))) } => {
            format!("{token}: got {}", content.tag)
        }
        Event::Replied { token, result: Ok(reply) } => format!("{token}: {reply:?}"),
        Event::Replied { token, result: Err(error) } => format!("{token}: {error}"),
        Event::Confirmed { token, outcome: Outcome::Returned { code, .. } } => {
            format!("{token}: returned {code}")
        }
        Event::Confirmed { token, outcome: Outcome::Unknown(_) } => format!("{token}: unknown"),
        Event::Confirmed { token, outcome } => format!("{token}: {outcome:?}"),
        Event::Delivered { channel, content, .. } => {
            format!("delivered {} of {} octets on {channel}", content.tag, content.body.len())
        }
        Event::Recovered { channel } => format!("recovered on {channel}"),
        Event::ConsumerCancelled { channel, .. } => format!("consumer gone on {channel}"),
        Event::ChannelClosed { channel, reason } => format!("channel {channel} closed: {reason}"),
        Event::NumberFreed => "a number is free".to_owned(),
        Event::Flow => "flow".to_owned(),
        Event::Blocked(reason) => format!("blocked: {reason}"),
        Event::Unblocked => "unblocked".to_owned(),
        Event::Ended(Ended::Protocol(error)) => format!("ended: {error}"),
        Event::Ended(why) => format!("ended: {why:?}"),
    };
    std::iter::from_fn(|| session.next_event()).map(text).collect()
}

/// All queued frames, each with its channel.
pub(crate) fn sent(session: &mut TestSession) -> Vec<(u16, String)> {
    let mut output = Vec::new();
    session.take_output(&mut output, secs(0));
    let mut rest = output.as_slice();
    let mut frames = Vec::new();
    while let Some(raw) = wire::split(rest, FRAME_MAX).unwrap() {
        frames.push((
            raw.channel,
            match raw.decode_any().unwrap() {
                Frame::Method(AMQPClass::Basic(basic::AMQPMethod::Ack(ack))) => {
                    format!(
                        "ack {}{}",
                        ack.delivery_tag,
                        if ack.multiple { " and below" } else { "" }
                    )
                }
                Frame::Method(AMQPClass::Basic(basic::AMQPMethod::Reject(reject))) => {
                    let requeue = if reject.requeue { " to its queue" } else { "" };
                    format!("reject {}{requeue}", reject.delivery_tag)
                }
                Frame::Method(method) => format!("{:?}", crate::session::channel::ids(&method)),
                Frame::Header(_) => "header".to_owned(),
                Frame::Body(part) => format!("{} octets", part.len()),
                Frame::Heartbeat => "heartbeat".to_owned(),
                other => other.name(),
            },
        ));
        rest = &rest[raw.length..];
    }
    assert!(rest.is_empty());
    frames
}

pub(crate) fn opened() -> TestSession {
    let mut session = Session::new(handshake_config(), secs(0));
    session.input(&welcome(), secs(0));
    assert_eq!(events(&mut session), ["opened"]);
    session.output.clear();
    session
}

/// A session with open channels 1 and 2. Channel 1 is in confirm mode.
pub(crate) fn with_channels() -> TestSession {
    let mut session = opened();
    assert_eq!(session.open_channel("one").unwrap(), 1);
    assert_eq!(session.open_channel("two").unwrap(), 2);
    session.enable_confirms(1);
    let ok = || AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {}));
    session.input(&bytes(&[(2, ok()), (1, ok())]), secs(0));
    assert_eq!(events(&mut session), ["two: Done", "one: Done"]);
    session.output.clear();
    session
}

pub(crate) fn purge() -> AMQPClass {
    AMQPClass::Queue(queue::AMQPMethod::Purge(queue::Purge { queue: "q".into(), nowait: false }))
}

pub(crate) fn purged(message_count: u32) -> AMQPClass {
    AMQPClass::Queue(queue::AMQPMethod::PurgeOk(queue::PurgeOk { message_count }))
}

pub(crate) fn message(body: &[u8], mandatory: bool) -> Box<Message> {
    Box::new(Message {
        exchange: "".into(),
        routing_key: "q".into(),
        properties: Properties::default(),
        body: body.to_vec(),
        mandatory,
    })
}

pub(crate) fn ack(delivery_tag: u64, multiple: bool) -> (u16, AMQPClass) {
    (1, AMQPClass::Basic(basic::AMQPMethod::Ack(basic::Ack { delivery_tag, multiple })))
}

/// A frame with any payload.
pub(crate) fn frame(kind: u8, number: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(number.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes.push(0xce);
    bytes
}
