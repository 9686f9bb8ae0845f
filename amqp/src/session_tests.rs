//! The session as vectors of events: what goes in is written frame by frame, what comes out is compared
//! whole.

use amq_protocol::protocol::{basic, confirm, queue};
use amq_protocol::types::FieldTable;

use super::*;
use crate::event::{Outcome, Reply};
use crate::message::{Message, Properties};
use crate::session_handshake::Password;

type Test = Session<&'static str, &'static str>;

const FRAME_MAX: usize = 4096;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn greeter() -> Greeter {
    Greeter {
        is_external: false,
        user: "ann".to_owned(),
        password: Password("secret".to_owned()),
        vhost: "/".into(),
        name: "test".to_owned(),
        wanted: Limits { frame_max: FRAME_MAX, channel_max: 10, heartbeat: secs(10) },
    }
}

/// What the broker says.
fn bytes(says: &[(u16, AMQPClass)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (channel, method) in says {
        append_method(&mut bytes, *channel, method.clone(), FRAME_MAX).unwrap();
    }
    bytes
}

fn on_connection(method: connection::AMQPMethod) -> (u16, AMQPClass) {
    (0, AMQPClass::Connection(method))
}

fn welcome() -> Vec<u8> {
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

fn content(channel: u16, method: basic::AMQPMethod, body: &[u8]) -> Vec<u8> {
    let mut to = bytes(&[(channel, AMQPClass::Basic(method))]);
    let header = amq_protocol::frame::AMQPContentHeader {
        class_id: 60,
        body_size: body.len() as u64,
        properties: Properties::default(),
    };
    wire::append(&mut to, &AMQPFrame::Header(channel, header), FRAME_MAX).unwrap();
    wire::append_body(&mut to, channel, body, FRAME_MAX);
    to
}

fn deliver(channel: u16, tag: u64, body: &[u8]) -> Vec<u8> {
    let deliver = basic::Deliver {
        consumer_tag: "c".into(),
        delivery_tag: tag,
        redelivered: false,
        exchange: "".into(),
        routing_key: "q".into(),
    };
    content(channel, basic::AMQPMethod::Deliver(deliver), body)
}

fn events(session: &mut Test) -> Vec<String> {
    let told = |event| match event {
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
        Event::ConsumerCancelled { channel, .. } => format!("consumer gone on {channel}"),
        Event::ChannelClosed { channel, reason } => format!("channel {channel} closed: {reason}"),
        Event::Flow => "flow".to_owned(),
        Event::Blocked(reason) => format!("blocked: {reason}"),
        Event::Unblocked => "unblocked".to_owned(),
        Event::Ended(Ended::Protocol(error)) => format!("ended: {error}"),
        Event::Ended(why) => format!("ended: {why:?}"),
    };
    std::iter::from_fn(|| session.next_event()).map(told).collect()
}

/// The methods that would be sent, as class and method, with their channels.
fn said(session: &mut Test) -> Vec<(u16, String)> {
    let mut output = Vec::new();
    session.take_output(&mut output, secs(0));
    let mut rest = output.as_slice();
    let mut said = Vec::new();
    while let Some(raw) = wire::split(rest, FRAME_MAX).unwrap() {
        said.push((
            raw.channel,
            match raw.decode_any().unwrap() {
                Frame::Method(AMQPClass::Basic(basic::AMQPMethod::Ack(ack))) => {
                    format!(
                        "ack {}{}",
                        ack.delivery_tag,
                        if ack.multiple { " and below" } else { "" }
                    )
                }
                Frame::Method(method) => format!("{:?}", crate::session_channel::ids(&method)),
                Frame::Header(_) => "header".to_owned(),
                Frame::Body(part) => format!("{} octets", part.len()),
                Frame::Heartbeat => "heartbeat".to_owned(),
            },
        ));
        rest = &rest[raw.length..];
    }
    assert!(rest.is_empty());
    said
}

fn opened() -> Test {
    let mut session = Session::new(greeter(), secs(0));
    session.input(&welcome(), secs(0));
    assert_eq!(events(&mut session), ["opened"]);
    session.output.clear();
    session
}

/// A session with open channels 1 and 2, the first of which confirms.
fn with_channels() -> Test {
    let mut session = opened();
    assert_eq!(session.open_channel("one").unwrap(), 1);
    assert_eq!(session.open_channel("two").unwrap(), 2);
    session.expect_confirms(1);
    let ok = || AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {}));
    session.input(&bytes(&[(2, ok()), (1, ok())]), secs(0));
    assert_eq!(events(&mut session), ["two: Done", "one: Done"]);
    session.output.clear();
    session
}

fn purge() -> AMQPClass {
    AMQPClass::Queue(queue::AMQPMethod::Purge(queue::Purge { queue: "q".into(), nowait: false }))
}

fn purged(message_count: u32) -> AMQPClass {
    AMQPClass::Queue(queue::AMQPMethod::PurgeOk(queue::PurgeOk { message_count }))
}

fn message(body: &[u8], mandatory: bool) -> Box<Message> {
    Box::new(Message {
        exchange: "".into(),
        routing_key: "q".into(),
        properties: Properties::default(),
        body: body.to_vec(),
        mandatory,
    })
}

fn ack(delivery_tag: u64, multiple: bool) -> (u16, AMQPClass) {
    (1, AMQPClass::Basic(basic::AMQPMethod::Ack(basic::Ack { delivery_tag, multiple })))
}

#[test]
fn limits_are_the_smaller_of_both_and_zero_is_none() {
    let session = opened();
    let expected = Limits { frame_max: FRAME_MAX, channel_max: 10, heartbeat: secs(10) };
    assert_eq!(session.limits, expected);
}

#[test]
fn any_cut_of_the_stream_gives_the_same_events() {
    let mut stream = welcome();
    stream.extend(bytes(&[on_connection(connection::AMQPMethod::Blocked(connection::Blocked {
        reason: "low on memory".into(),
    }))]));
    stream.push(0xff);
    let expected = [
        "opened",
        "blocked: low on memory",
        "ended: the peer does not speak AMQP 0-9-1: what it sends is no frame: \"\\\\xff\"",
    ];
    for size in [1, 2, 7, 11, stream.len()] {
        let mut session = Session::new(greeter(), secs(0));
        stream.chunks(size).for_each(|part| session.input(part, secs(0)));
        assert_eq!(events(&mut session), expected, "cut every {size}");
    }
}

#[test]
fn requests_of_a_channel_wait_for_each_other_and_those_of_another_do_not() {
    let mut session = with_channels();
    session.request(1, purge(), "a").unwrap();
    session.request(1, purge(), "b").unwrap();
    session.request(2, purge(), "c").unwrap();
    assert_eq!(said(&mut session), [(1, "(50, 30)".to_owned()), (2, "(50, 30)".to_owned())]);
    // All answers in one read; the last of them to a request that has not even left.
    session.input(&bytes(&[(2, purged(3)), (1, purged(1)), (1, purged(2))]), secs(0));
    assert_eq!(events(&mut session), ["c: Count(3)", "a: Count(1)", "b: Count(2)"]);
}

#[test]
fn an_answer_to_nothing_or_to_something_else_ends_the_session() {
    let mut session = with_channels();
    session.input(&bytes(&[(1, purged(1))]), secs(0));
    assert!(events(&mut session)[0].contains("50.31 on channel 1, where None was asked"));
    let mut session = with_channels();
    session.request(1, purge(), "a").unwrap();
    let ok = AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {}));
    session.input(&bytes(&[(1, ok)]), secs(0));
    assert!(events(&mut session)[0].contains("85.11"));
    assert_eq!(session.dismantle().requests, ["a"]);
}

#[test]
fn what_cannot_be_encoded_leaves_nothing_behind() {
    let mut session = with_channels();
    let mut arguments = FieldTable::default();
    let large = vec![b'x'; FRAME_MAX];
    arguments.insert("x".into(), crate::message::Value::LongString(large.into()));
    let declare =
        crate::message::QueueOptions { arguments: arguments.clone(), ..Default::default() };
    let declare = crate::topology::declare_queue("q".into(), declare);
    let (error, token) = session.request(1, declare, "a").unwrap_err();
    assert!(matches!(error, Error::Invalid(_)) && token == "a");
    let mut large = message(b"body", false);
    large.properties = Properties::default().with_headers(arguments);
    let (_, back, _) = session.publish(1, large.clone(), "m").unwrap_err();
    assert_eq!(back, large);
    assert_eq!((said(&mut session), session.window(1)), (vec![], Some((true, 0))));
    session.request(1, purge(), "b").unwrap();
    assert_eq!(said(&mut session), [(1, "(50, 30)".to_owned())]);
}

#[test]
fn bodies_are_cut_to_frames_and_put_together_again_between_other_channels() {
    let mut session = with_channels();
    let body = vec![7; 2 * (FRAME_MAX - 8) + 1];
    session.publish(1, message(&body, false), "m").unwrap();
    let sizes: Vec<String> = said(&mut session).into_iter().map(|(_, what)| what).collect();
    assert_eq!(sizes, ["(60, 40)", "header", "4088 octets", "4088 octets", "1 octets"]);
    let (one, two) = (deliver(1, 1, &body), deliver(2, 1, &[]));
    let cut = one.len() - 9; // before the last frame of the body
    session.input(&[&one[..cut], &two[..], &one[cut..]].concat(), secs(0));
    assert_eq!(
        events(&mut session),
        ["delivered 1 of 0 octets on 2", "delivered 1 of 8177 octets on 1"]
    );
}

#[test]
fn confirms_come_in_any_order_one_by_one_or_together() {
    let mut session = with_channels();
    for token in ["a", "b", "c", "d", "e"] {
        assert!(session.publish(1, message(b"x", false), token).unwrap().is_none());
    }
    let nack = basic::Nack { delivery_tag: 2, multiple: false, requeue: false };
    let nack = (1, AMQPClass::Basic(basic::AMQPMethod::Nack(nack)));
    session.input(&bytes(&[ack(3, false), nack, ack(4, true), ack(5, false)]), secs(0));
    assert_eq!(events(&mut session), ["c: Acked", "b: Nacked", "a: Acked", "d: Acked", "e: Acked"]);
    session.input(&bytes(&[ack(9, false)]), secs(0));
    assert!(events(&mut session)[0].contains("a confirm of message 9"));
}

#[test]
fn a_message_comes_back_before_its_confirm() {
    let mut session = with_channels();
    session.publish(1, message(b"x", false), "not mandatory").unwrap();
    session.publish(1, message(b"x", true), "first").unwrap();
    session.publish(1, message(b"x", true), "second").unwrap();
    let back = basic::Return {
        reply_code: 312,
        reply_text: "NO_ROUTE".into(),
        exchange: "".into(),
        routing_key: "q".into(),
    };
    session.input(&content(1, basic::AMQPMethod::Return(back), b"x"), secs(0));
    assert_eq!(events(&mut session), Vec::<String>::new());
    session.input(&bytes(&[ack(0, true)]), secs(0));
    let expected = ["not mandatory: Acked", "first: returned 312", "second: Acked"];
    assert_eq!(events(&mut session), expected);
}

#[test]
fn acks_leave_as_one_up_to_the_lowest_that_is_owed() {
    let mut session = with_channels();
    (1..=8).for_each(|tag| session.input(&deliver(1, tag, b""), secs(0)));
    events(&mut session);
    for tag in [2, 1, 3, 6, 8] {
        assert!(session.ack(1, tag));
    }
    assert!(!session.ack(1, 2), "twice");
    assert!(!session.ack(1, 9), "never delivered");
    let acks = |session: &mut Test| -> Vec<String> {
        said(session).into_iter().map(|(_, what)| what).collect()
    };
    assert_eq!(acks(&mut session), ["ack 3 and below", "ack 6", "ack 8"]);
    assert!(session.nack(1, 4, true) && session.ack(1, 5));
    assert_eq!(acks(&mut session), ["(60, 90)", "ack 5"]);
    assert!(session.ack(1, 7));
    assert_eq!(acks(&mut session), ["ack 7"]);
    session.input(&deliver(1, 8, b""), secs(0));
    session.input(&deliver(1, 8, b""), secs(0));
    assert!(events(&mut session)[1].contains("delivery 8 came twice"));
}

#[test]
fn a_channel_closed_in_the_middle_of_a_content_takes_only_its_own_with_it() {
    let mut session = with_channels();
    session.publish(1, message(b"x", false), "m").unwrap();
    session.request(1, purge(), "a").unwrap();
    session.request(1, purge(), "b").unwrap();
    session.request(2, purge(), "c").unwrap();
    session.output.clear();
    let close = channel::Close {
        reply_code: 404,
        reply_text: "NOT_FOUND".into(),
        class_id: 50,
        method_id: 30,
    };
    let close = AMQPClass::Channel(channel::AMQPMethod::Close(close));
    let begun = deliver(1, 1, b"body");
    let half = &begun[..begun.len() - 12];
    session.input(&[half, &bytes(&[(1, close), (2, purged(0))])].concat(), secs(0));
    assert_eq!(
        events(&mut session),
        [
            "a: the broker closed the channel: 404 NOT_FOUND",
            "b: the broker closed the channel: 404 NOT_FOUND",
            "m: unknown",
            "channel 1 closed: 404 NOT_FOUND",
            "c: Count(0)",
        ]
    );
    assert_eq!(said(&mut session), [(1, "(20, 41)".to_owned())]);
    assert_eq!(session.open_channel("again").unwrap(), 1, "its number is free");
}

#[test]
fn heartbeats_are_sent_and_missed_by_the_time_that_is_told() {
    let mut session = opened();
    said(&mut session);
    assert_eq!(session.next_tick(), Some(secs(5)));
    session.tick(secs(4));
    assert!(said(&mut session).is_empty());
    session.tick(secs(5));
    assert_eq!(said(&mut session), [(0, "heartbeat".to_owned())]);
    session.input(&[8, 0, 0, 0, 0, 0, 0, 0xce], secs(12));
    session.tick(secs(31));
    assert!(events(&mut session).is_empty());
    session.tick(secs(32));
    assert_eq!(events(&mut session), ["ended: Silent"]);
    assert_eq!(session.next_tick(), None);
}

#[test]
fn nothing_can_be_asked_after_a_farewell_and_what_was_queued_leaves_before() {
    let mut session = with_channels();
    session.input(&deliver(1, 1, b""), secs(0));
    events(&mut session);
    session.ack(1, 1);
    session.close();
    assert_eq!(said(&mut session), [(1, "ack 1".to_owned()), (0, "(10, 50)".to_owned())]);
    assert!(matches!(session.request(1, purge(), "late"), Err((Error::Closed, "late"))));
    let ok = on_connection(connection::AMQPMethod::CloseOk(connection::CloseOk {}));
    session.input(&bytes(&[ok]), secs(0));
    assert_eq!(events(&mut session), ["ended: ByUs"]);
}
