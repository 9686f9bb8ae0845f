//! Contents, confirms, returns and acknowledgements of a channel.

use amq_protocol::protocol::{AMQPClass, basic, channel};
use amq_protocol::types::FieldTable;

use crate::error::Error;
use crate::message::{Properties, QueueOptions, Value};
use crate::session::script::*;

#[test]
fn bodies_are_split_and_reassembled_across_channels() {
    let mut session = with_channels();
    let body = vec![7; 2 * (FRAME_MAX - 8) + 1];
    session.publish(1, message(&body, false), "m").unwrap();
    let sizes: Vec<String> = sent(&mut session).into_iter().map(|(_, what)| what).collect();
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
fn confirms_in_any_order_single_or_multiple() {
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
fn ack_of_all_before_any_message_is_ignored() {
    let mut session = with_channels();
    session.input(&bytes(&[ack(0, true)]), secs(0));
    assert_eq!(events(&mut session), Vec::<String>::new());
    session.publish(1, message(b"x", false), "a").unwrap();
    session.input(&bytes(&[ack(0, true)]), secs(0));
    assert_eq!(events(&mut session), ["a: Acked"]);
}

/// RabbitMQ adds `x-delivery-count` to headers that fill a frame.
#[test]
fn header_larger_than_a_frame_is_delivered() {
    let delivery = |size: usize| {
        let deliver = basic::Deliver { delivery_tag: 1, ..basic::Deliver::default() };
        let properties = with_header(Value::LongString(vec![b'x'; size].into()));
        content_with(1, basic::AMQPMethod::Deliver(deliver), properties, b"x")
    };
    let mut session = with_channels();
    session.request(1, purge(), "a").unwrap();
    session.input(&[delivery(2 * FRAME_MAX), bytes(&[(1, purged(0))])].concat(), secs(0));
    assert_eq!(events(&mut session), ["delivered 1 of 1 octets on 1", "a: Count(0)"]);
    let mut session = with_channels();
    session.input(&delivery(1024 * 1024), secs(0));
    let ended = events(&mut session);
    assert!(ended[0].contains("where 1048576 are agreed"), "{ended:?}");
}

#[test]
fn return_precedes_the_confirm() {
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
fn acks_merge_below_the_lowest_unsettled_tag() {
    let mut session = with_channels();
    (1..=8).for_each(|tag| session.input(&deliver(1, tag, b""), secs(0)));
    events(&mut session);
    for tag in [2, 1, 3, 6, 8] {
        assert!(session.ack(1, tag));
    }
    assert!(!session.ack(1, 2), "twice");
    assert!(!session.ack(1, 9), "never delivered");
    let acks = |session: &mut TestSession| -> Vec<String> {
        sent(session).into_iter().map(|(_, what)| what).collect()
    };
    assert_eq!(acks(&mut session), ["ack 3 and below", "ack 6", "ack 8"]);
    assert!(session.nack(1, 4, true) && session.ack(1, 5));
    assert_eq!(acks(&mut session), ["reject 4 to its queue", "ack 5"]);
    assert!(session.ack(1, 7));
    assert_eq!(acks(&mut session), ["ack 7"]);
    session.input(&deliver(1, 8, b""), secs(0));
    session.input(&deliver(1, 8, b""), secs(0));
    assert!(events(&mut session)[1].contains("delivery 8 arrived twice"));
}

fn returned(properties: Properties, body: &[u8]) -> Vec<u8> {
    let back = basic::Return {
        reply_code: 312,
        reply_text: "NO_ROUTE".into(),
        exchange: "".into(),
        routing_key: "q".into(),
    };
    content_with(1, basic::AMQPMethod::Return(back), properties, body)
}

fn with_header(value: Value) -> Properties {
    let mut headers = FieldTable::default();
    headers.insert("h".into(), value);
    Properties::default().with_headers(headers)
}

/// Returned properties differ from the sent ones, or cannot be read.
#[test]
fn returns_match_despite_changed_properties() {
    let number = with_header(Value::Double(1.0));
    let nan = with_header(Value::Double(f64::NAN));
    let asks = Properties::default().with_reply_to("amq.rabbitmq.reply-to".into());
    let named = Properties::default().with_reply_to("amq.rabbitmq.reply-to.g1".into());
    let deep = (0..100).fold(Value::Void, |inner, _| Value::FieldArray(vec![inner].into()));
    let deep = with_header(deep);
    for (sent, back) in [(number.clone(), nan), (asks, named), (number, deep)] {
        let mut session = with_channels();
        session.publish(1, message(b"x", false), "not mandatory").unwrap();
        session.publish(1, message(b"y", true), "other").unwrap();
        let mut first = message(b"x", true);
        first.properties = sent;
        session.publish(1, first, "first").unwrap();
        session.input(&returned(back.clone(), b"x"), secs(0));
        session.input(&bytes(&[ack(0, true)]), secs(0));
        let expected = ["not mandatory: Acked", "other: Acked", "first: returned 312"];
        assert_eq!(events(&mut session), expected, "{back:?}");
    }
}

/// Clients of this library would reject the message unread.
#[test]
fn headers_nested_too_deep_are_refused() {
    let nested = |depth: usize| {
        let array = |inner, _| Value::FieldArray(vec![inner].into());
        with_value((0..depth).fold(Value::Void, array))
    };
    let mut session = with_channels();
    // The headers are a table themselves.
    session.publish(1, nested(63), "sent").unwrap();
    let frames: Vec<String> = sent(&mut session).into_iter().map(|(_, what)| what).collect();
    assert_eq!(frames, ["(60, 40)", "header", "1 octets"], "it can be read");
    for depth in [64, 100] {
        let (error, ..) = session.publish(1, nested(depth), "never").unwrap_err();
        assert!(error.to_string().contains("nested more than 64 deep"), "{error}");
    }
    assert!(sent(&mut session).is_empty());
}

#[test]
fn messages_that_no_broker_takes_are_not_sent() {
    let mut too_large = message(b"", false);
    // Zeroed by the system, so that nothing is touched.
    too_large.body = vec![0; (512 << 20) + 1];
    let mut reply = message(b"x", false);
    reply.routing_key = "amq.rabbitmq.reply-to.x.y".into();
    let cases = [
        (too_large, "a body of 536870913 bytes"),
        (reply, "`amq.rabbitmq.reply-to.x.y` is a malformed direct reply-to name"),
        (
            with_value(Value::LongString(vec![b'x'; FRAME_MAX].into())),
            "exceed the frame limit of 4096",
        ),
        (with_value(Value::Float(f32::NAN)), "brokers accept finite numbers only"),
    ];
    for (unsendable, words) in cases {
        let mut session = with_channels();
        session.publish(1, message(b"before", false), "before").unwrap();
        let before = session.queued();
        let size = unsendable.body.len();
        let (error, back, _) = session.publish(1, unsendable, "never").unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(back.body.len(), size, "{words}: it is given back");
        assert_eq!(session.queued(), before, "{words}: octets of it are to leave");
        session.publish(1, message(b"behind", false), "behind").unwrap();
        session.input(&bytes(&[ack(2, true)]), secs(0));
        assert_eq!(events(&mut session), ["before: Acked", "behind: Acked"]);
    }
    // In another exchange it is any key.
    let mut other = message(b"x", false);
    (other.exchange, other.routing_key) = ("topic".into(), "amq.rabbitmq.reply-to.x.y".into());
    with_channels().publish(1, other, "sent").unwrap();
}

fn with_value(value: Value) -> Box<crate::message::Message> {
    let mut message = message(b"x", false);
    message.properties = with_header(value);
    message
}

#[test]
fn the_message_that_is_the_same_comes_back_before_one_that_is_like_it() {
    let mut session = with_channels();
    for (id, token) in [("1", "first"), ("2", "second")] {
        let mut one = message(b"x", true);
        one.properties = Properties::default().with_message_id(id.into());
        session.publish(1, one, token).unwrap();
    }
    session.input(&returned(Properties::default().with_message_id("2".into()), b"x"), secs(0));
    session.input(&bytes(&[ack(0, true)]), secs(0));
    assert_eq!(events(&mut session), ["first: Acked", "second: returned 312"]);
}

/// The broker replaces the direct reply-to by a name of its own; the other properties decide.
#[test]
fn returns_ignore_a_changed_reply_to() {
    let asks = |id: &str, to: &str| {
        Properties::default().with_correlation_id(id.into()).with_reply_to(to.into())
    };
    let mut session = with_channels();
    for (id, token) in [("1", "first"), ("2", "second")] {
        let mut one = message(b"x", true);
        one.properties = asks(id, "amq.rabbitmq.reply-to");
        session.publish(1, one, token).unwrap();
    }
    session.input(&returned(asks("2", "amq.rabbitmq.reply-to.g1"), b"x"), secs(0));
    session.input(&bytes(&[ack(0, true)]), secs(0));
    assert_eq!(events(&mut session), ["first: Acked", "second: returned 312"]);
}

/// The broker requeues all deliveries when it reads basic.recover, also those in flight until its
/// reply. To settle any of them afterwards would close the channel.
#[test]
fn recover_makes_earlier_deliveries_stale() {
    let mut session = with_channels();
    session.input(&deliver(1, 1, b""), secs(0));
    session.input(&deliver(1, 2, b""), secs(0));
    events(&mut session);
    assert!(session.ack(1, 1));
    let recover = basic::AMQPMethod::Recover(basic::Recover { requeue: true });
    session.request(1, AMQPClass::Basic(recover.clone()), "back").unwrap();
    assert!(!session.ack(1, 2), "the broker requeues the delivery");
    let expected = [(1, "ack 1".to_owned()), (1, "(60, 110)".to_owned())];
    assert_eq!(sent(&mut session), expected);
    session.input(&deliver(1, 3, b"in flight"), secs(0));
    assert!(events(&mut session).is_empty());
    // Deliveries without acknowledgement are not requeued.
    session.channels.get_mut(&1).unwrap().consumers.push(("c".into(), true));
    session.input(&deliver(1, 4, b"auto"), secs(0));
    assert_eq!(events(&mut session), ["delivered 4 of 4 octets on 1"]);
    session.channels.get_mut(&1).unwrap().consumers.clear();
    let ok = AMQPClass::Basic(basic::AMQPMethod::RecoverOk(basic::RecoverOk {}));
    session.input(&bytes(&[(1, ok.clone())]), secs(0));
    session.input(&deliver(1, 5, b""), secs(0));
    let expected = ["recovered on 1", "back: Done", "delivered 5 of 0 octets on 1"];
    assert_eq!(events(&mut session), expected);
    assert!(!session.nack(1, 3, true));
    // A queued basic.recover has no effect before it is sent.
    session.request(1, purge(), "a").unwrap();
    session.request(1, AMQPClass::Basic(recover), "b").unwrap();
    assert!(session.ack(1, 5));
    session.input(&deliver(1, 6, b""), secs(0));
    session.input(&bytes(&[(1, purged(0))]), secs(0));
    assert!(!session.ack(1, 6));
    let expected = ["(50, 30)", "ack 5", "(60, 110)"].map(|what| (1, what.to_owned()));
    assert_eq!(sent(&mut session), expected);
}

#[test]
fn missing_confirm_retains_one_message() {
    let mut session = with_channels();
    session.publish(1, message(b"stuck", false), "stuck").unwrap();
    for tag in 2..10_000 {
        session.publish(1, message(b"x", false), "x").unwrap();
        session.input(&bytes(&[ack(tag, false)]), secs(0));
        session.output.clear();
    }
    assert_eq!(session.channels[&1].unconfirmed.len(), 1);
    assert_eq!(session.window(1), Some((true, 1)));
    session.input(&bytes(&[ack(2, false)]), secs(0));
    assert!(events(&mut session).pop().unwrap().contains("a confirm of message 2"));
}

/// No publisher waits for the message, but others may wait for its place in the window.
#[test]
fn abandoned_message_frees_window_when_confirmed() {
    let mut session = with_channels();
    session.publish(1, message(b"x", false), "x").unwrap();
    session.publish(1, message(b"y", false), "y").unwrap();
    assert_eq!(session.abandon_unconfirmed(), ["x", "y"]);
    assert_eq!(session.window(1), Some((true, 2)));
    session.input(&bytes(&[ack(0, true)]), secs(0));
    assert_eq!(events(&mut session), ["flow"]);
    assert_eq!(session.window(1), Some((true, 0)));
}

#[test]
fn channel_flow_pauses_publishing() {
    let mut session = with_channels();
    for active in [false, true] {
        let flow = channel::AMQPMethod::Flow(channel::Flow { active });
        session.input(&bytes(&[(1, AMQPClass::Channel(flow))]), secs(0));
        assert_eq!(events(&mut session), ["flow"]);
        assert_eq!(sent(&mut session), [(1, "(20, 21)".to_owned())]);
        assert_eq!((session.window(1), session.window(2)), (Some((active, 0)), Some((true, 0))));
    }
}

/// Brokers close the connection at such values, and would again after a resend.
#[test]
fn unsendable_values_are_refused() {
    let array = |value: Value| Value::FieldArray(vec![value].into());
    let table = |value: Value| {
        let mut table = FieldTable::default();
        table.insert("inner".into(), value);
        Value::FieldTable(table)
    };
    let mut session = with_channels();
    for value in [
        Value::Double(f64::NAN),
        array(Value::Float(f32::INFINITY)),
        table(array(Value::Double(f64::NEG_INFINITY))),
        table(Value::ShortString("short".into())),
    ] {
        let mut refused = message(b"x", true);
        refused.properties = with_header(value.clone());
        let (error, back, _) = session.publish(1, refused.clone(), "m").unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        assert_eq!(back.body, refused.body);
        let options = QueueOptions::default().argument("x-a", value);
        let declare = options.declare("q".into());
        let (error, _) = session.request(1, declare, "a").unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    assert!(sent(&mut session).is_empty());
    assert_eq!(session.window(1), Some((true, 0)));
}
