//! What a hostile, or broken, broker says, and what hostile publishers have it say.

use amq_protocol::protocol::{AMQPClass, basic, channel, connection};

use proptest::prelude::*;

use crate::event::{Ended, Event};
use crate::message::{Array, Flaw, Properties, Table, Value};
use crate::session_script::*;
use crate::wire;

/// A frame, whatever is in it.
fn frame(kind: u8, number: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(number.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes.push(0xce);
    bytes
}

/// Replaces a text by as many octets.
fn replaced(mut bytes: Vec<u8>, text: &[u8], by: &[u8]) -> Vec<u8> {
    let found: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text)).collect();
    assert!(!found.is_empty());
    for at in found {
        bytes[at..at + by.len()].copy_from_slice(by);
    }
    bytes
}

fn rich() -> Properties {
    let mut inner = Table::default();
    inner.insert("inner".into(), Value::LongString("text".into()));
    let mut headers = Table::default();
    headers.insert("table".into(), Value::FieldTable(inner));
    headers.insert("array".into(), Value::FieldArray(Array::from(vec![Value::LongInt(7)])));
    headers.insert("float".into(), Value::Double(1.5));
    Properties::default()
        .with_content_type("application/json".into())
        .with_content_encoding("utf-8".into())
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_priority(3)
        .with_correlation_id("correlation".into())
        .with_reply_to("reply".into())
        .with_expiration("1000".into())
        .with_message_id("id".into())
        .with_timestamp(1)
        .with_type("type".into())
        .with_user_id("user".into())
        .with_app_id("zapp".into())
}

fn delivered(tag: u64) -> Vec<u8> {
    let deliver = basic::Deliver {
        consumer_tag: "consumer".into(),
        delivery_tag: tag,
        redelivered: false,
        exchange: "exchange".into(),
        routing_key: "routing".into(),
    };
    content_with(1, basic::AMQPMethod::Deliver(deliver), rich(), b"the body")
}

/// The contents that came.
fn contents(session: &mut Test) -> Vec<crate::event::Content> {
    let events = std::iter::from_fn(|| session.next_event());
    let content = |event| match event {
        Event::Delivered { content, .. } => *content,
        other => panic!("{other:?}"),
    };
    events.map(content).collect()
}

#[test]
fn names_and_properties_that_are_no_text_are_delivered() {
    let texts: [&[u8]; 13] = [
        b"exchange",
        b"routing",
        b"application/json",
        b"utf-8",
        b"table",
        b"inner",
        b"correlation",
        b"reply",
        b"1000",
        b"id",
        b"type",
        b"user",
        b"zapp",
    ];
    for text in texts {
        let mut session = with_channels();
        session.input(&replaced(delivered(1), text, b"\xff\xfe"), secs(0));
        session.input(&delivered(2), secs(0));
        let came = contents(&mut session);
        let [first, second] = came.as_slice() else { panic!("{came:?}") };
        assert_eq!((&*first.body, second.flaw), (&b"the body"[..], None));
        assert_eq!(second.properties, rich());
        let is_name = matches!(text, b"exchange" | b"routing");
        assert_eq!(first.flaw, (!is_name).then_some(Flaw::NoText));
        let all = format!("{first:?}");
        let repaired = format!("??{}", String::from_utf8_lossy(&text[2..]));
        assert!(all.contains(&repaired), "{repaired} is not in {all}");
        // All else is there.
        let others = texts.iter().filter(|other| **other != text && other.len() > 2);
        for other in others.map(|other| String::from_utf8_lossy(other)) {
            assert!(all.contains(&*other), "{other} is not in {all}");
        }
    }
}

#[test]
fn what_is_got_or_returned_under_no_text_ends_nothing() {
    let mut session = with_channels();
    let get = basic::Get { queue: "q".into(), no_ack: false };
    session.request(1, AMQPClass::Basic(basic::AMQPMethod::Get(get)), "get").unwrap();
    let ok = basic::AMQPMethod::GetOk(basic::GetOk {
        delivery_tag: 1,
        redelivered: false,
        exchange: "exchange".into(),
        routing_key: "routing".into(),
        message_count: 0,
    });
    session.input(&replaced(content(1, ok, b"x"), b"routing", b"\xff"), secs(0));
    let back = basic::AMQPMethod::Return(basic::Return {
        reply_code: 312,
        reply_text: "NO_ROUTE".into(),
        exchange: "exchange".into(),
        routing_key: "routing".into(),
    });
    session.input(&replaced(content(1, back, b"x"), b"routing", b"\xff"), secs(0));
    assert_eq!(events(&mut session), ["get: got 1"]);
}

/// RabbitMQ cuts its texts at 255 octets, which may be in the middle of a character.
#[test]
fn a_reason_that_is_cut_is_told() {
    let mut session = with_channels();
    session.request(1, purge(), "a").unwrap();
    let close = channel::AMQPMethod::Close(channel::Close {
        reply_code: 404,
        reply_text: "no queue 'xx".into(),
        class_id: 50,
        method_id: 30,
    });
    let close = bytes(&[(1, AMQPClass::Channel(close))]);
    session.input(&replaced(close, b"xx", "é'".as_bytes().split_at(1).1), secs(0));
    let told = events(&mut session);
    assert_eq!(told[0], "a: the broker closed the channel: 404 no queue '?'");
    let close = connection::AMQPMethod::Close(connection::Close {
        reply_code: 320,
        reply_text: "xx".into(),
        class_id: 0,
        method_id: 0,
    });
    session.input(&replaced(bytes(&[on_connection(close)]), b"xx", &[0xe2, 0x82]), secs(0));
    assert!(events(&mut session)[0].contains("320, text: \"??\""));
}

/// Every octet of a delivery, as every other: a delivery (and those that come after it are untouched), or
/// a clear end.
#[test]
fn an_octet_that_is_another_is_a_delivery_or_the_end() {
    let one = delivered(1);
    let mut after = Vec::new();
    let mut expected = Vec::new();
    // More than a frame of the largest size could swallow.
    for tag in 2..=(FRAME_MAX / one.len() + 4) as u64 {
        after.extend(delivered(tag));
        expected.push(tag);
    }
    let (mut fine, mut ended) = (0, 0);
    for (at, octet) in one.iter().enumerate() {
        let others = (0..8).map(|bit| octet ^ (1 << bit)).chain([0, 0xff]);
        for other in others.filter(|other| other != octet) {
            let mut bytes = one.clone();
            bytes[at] = other;
            match goes_on(&bytes, &after, &expected) {
                true => fine += 1,
                false => ended += 1,
            }
        }
    }
    assert!(fine > one.len() && ended > 50, "{fine} fine, {ended} ended");
}

/// Whether a delivery of that content comes, and then all others as they are. Otherwise it is the end.
fn goes_on(bytes: &[u8], after: &[u8], expected: &[u64]) -> bool {
    let mut session = with_channels();
    session.input(bytes, secs(0));
    session.input(after, secs(0));
    let told: Vec<_> = std::iter::from_fn(|| session.next_event()).collect();
    if let Some(Event::Ended(end)) = told.last() {
        assert!(matches!(end, Ended::Protocol(_)), "{end:?}");
        return false;
    }
    let content = |event| match event {
        Event::Delivered { content, .. } => *content,
        other => panic!("{other:?}"),
    };
    let told: Vec<_> = told.into_iter().map(content).collect();
    let tags: Vec<u64> = told[1..].iter().map(|content| content.tag).collect();
    assert_eq!(tags, expected);
    assert!(told[1..].iter().all(|content| content.properties == rich()));
    assert_eq!(told[0].body.len(), b"the body".len());
    true
}

proptest! {
    /// Many octets that are others, in what publishers choose: exchange, key and properties.
    #[test]
    fn properties_of_any_octets_are_delivered(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
    ) {
        let mut bytes = delivered(1);
        let method = wire::split(&bytes, FRAME_MAX).unwrap().unwrap().length;
        let header = wire::split(&bytes[method..], FRAME_MAX).unwrap().unwrap().length;
        // Behind type, channel, size, class, weight and body size, up to the end of the frame.
        let properties = method + 7 + 12..method + header - 1;
        for (at, octet) in changes {
            let at = properties.start + at.index(properties.len());
            bytes[at] = octet;
        }
        let after = [delivered(2), delivered(3)].concat();
        prop_assert!(goes_on(&bytes, &after, &[2, 3]));
    }
}

/// What ends a session at once, and how that is told.
fn refused(says: &[u8]) -> String {
    let mut session = with_channels();
    session.input(says, secs(0));
    // Whatever comes then is not looked at.
    session.input(&deliver(1, 7, b""), secs(0));
    let told = events(&mut session);
    assert_eq!(told.len(), 1, "{told:?}");
    told[0].clone()
}

#[test]
fn what_a_broker_must_not_say_ends_the_session_before_it_costs_anything() {
    let begun = deliver(1, 1, b"x");
    let method = wire::split(&begun, FRAME_MAX).unwrap().unwrap().length;
    let header = |size: u64| {
        let mut payload = vec![0, 60, 0, 0];
        payload.extend(size.to_be_bytes());
        payload.extend([0, 0]);
        [&begun[..method], &frame(2, 1, &payload)].concat()
    };
    let body = |part: &[u8]| [header(4), frame(3, 1, part)].concat();
    let too_long = [&[1, 0, 1][..], &(FRAME_MAX as u32 - 7).to_be_bytes()].concat();
    let says: [(&str, Vec<u8>, &str); 12] = [
        ("a body of 2^63", header(1 << 63), "a body of 9223372036854775808 bytes"),
        ("a body of 2^64 - 1", header(u64::MAX), "a body of 18446744073709551615 bytes"),
        ("more than announced", body(b"12345"), "a body longer than it said on channel 1"),
        ("a frame too large", too_long, "a frame of 4089 bytes, where 4096 are agreed"),
        ("an unknown channel", deliver(9, 1, b""), "channel 9, which is not open"),
        ("content on channel 0", frame(2, 0, &[0; 14]), "content on channel 0"),
        ("a body of nothing", frame(3, 1, b"x"), "out of order on channel 1: 1 bytes of a body"),
        ("a header of nothing", frame(2, 1, &[0; 14]), "out of order on channel 1: a content"),
        ("no number", deliver(1, 0, b""), "a delivery without a number"),
        ("two in each other", [&begun[..method], &begun[..]].concat(), "method 60.60"),
        ("an answer to nothing", bytes(&[(1, purged(1))]), "where None was asked"),
        ("a confirm of nothing", bytes(&[ack(1, false)]), "a confirm of message 1"),
    ];
    for (what, says, words) in says {
        let told = refused(&says);
        assert!(told.contains(words) && told.len() < 200, "{what}: {told}");
    }
}

#[test]
fn a_large_body_takes_no_memory_before_it_is_there() {
    let mut session = with_channels();
    let all = deliver(1, 1, b"x");
    let method = wire::split(&all, FRAME_MAX).unwrap().unwrap().length;
    let size = (512_u64 << 20).to_be_bytes();
    let header = [&[0, 60, 0, 0][..], &size, &[0, 0]].concat();
    session.input(&[&all[..method], &frame(2, 1, &header)].concat(), secs(0));
    let super::Assembly::Body { body, missing, .. } = &session.channels[&1].assembly else {
        panic!("a body is expected")
    };
    assert!(body.capacity() <= 2 << 20 && *missing == 512 << 20, "{}", body.capacity());
}

/// It asks and asks, and reads no answer.
#[test]
fn questions_without_end_end_the_session() {
    let flow = channel::AMQPMethod::Flow(channel::Flow { active: true });
    let flow = bytes(&[(1, AMQPClass::Channel(flow))]);
    let cancel = basic::Cancel { consumer_tag: "x".into(), nowait: false };
    let cancel = bytes(&[(1, AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel)))]);
    for question in [flow, cancel] {
        let mut session = with_channels();
        for _ in 0..200_000 {
            session.input(&question, secs(0));
        }
        let told = events(&mut session);
        assert!(told.last().unwrap().contains("octets of answers to read"), "{:?}", told.last());
        assert!(session.queued() < 2 << 20, "{}", session.queued());
        // Who reads them may ask for ever.
        let mut session = with_channels();
        for _ in 0..200_000 {
            session.input(&question, secs(0));
            said(&mut session);
        }
        assert!(!events(&mut session).last().unwrap().contains("ended"));
    }
}

#[test]
fn deliveries_to_nobody_go_back_and_not_without_end() {
    let mut session = with_channels();
    session.input(&deliver(1, 1, b""), secs(0));
    events(&mut session);
    session.give_back(1, 1);
    session.give_back(1, 1);
    assert_eq!(said(&mut session), [(1, "(60, 90)".to_owned())]);
    for tag in 2..100_000 {
        session.input(&deliver(1, tag, b""), secs(0));
        session.give_back(1, tag);
    }
    let last = events(&mut session).pop().unwrap();
    assert!(last.contains("octets of answers to read"), "{last}");
    assert!(session.queued() < 2 << 20, "{}", session.queued());
}
