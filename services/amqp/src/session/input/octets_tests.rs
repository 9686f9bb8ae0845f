//! Messages of hostile publishers, and arbitrary octets and frames.

use amq_protocol::protocol::{AMQPClass, basic, channel, connection};

use proptest::prelude::*;

use crate::message::{Array, Properties, Table, Value};
use crate::session::event::{Ended, Event};
use crate::session::script::*;
use crate::session::wire;

/// Overwrites each occurrence of a text with other octets.
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

/// The contents of all events, which must be deliveries.
fn contents(session: &mut TestSession) -> Vec<crate::session::event::Content> {
    let events = std::iter::from_fn(|| session.next_event());
    let content = |event| match event {
        Event::Delivered { content, .. } => *content,
        other => panic!("{other:?}"),
    };
    events.map(content).collect()
}

#[test]
fn non_utf8_names_reject_the_delivery() {
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
        let [second] = came.as_slice() else { panic!("{came:?}") };
        assert_eq!((second.tag, &*second.body), (2, &b"the body"[..]));
        assert_eq!(second.properties, rich());
        assert!(session.ack(1, 2) && !session.ack(1, 1), "only the second is to be settled");
        assert_eq!(sent(&mut session), [(1, "reject 1".into()), (1, "ack 2".into())]);
    }
}

#[test]
fn an_unreadable_body_is_skipped_frame_by_frame() {
    let deliver = basic::Deliver {
        consumer_tag: "consumer".into(),
        delivery_tag: 1,
        redelivered: true,
        exchange: "exchange".into(),
        routing_key: "routing".into(),
    };
    let body = vec![7; 3 * FRAME_MAX];
    let deliver = content_with(1, basic::AMQPMethod::Deliver(deliver), rich(), &body);
    let mut session = with_channels();
    session.input(&replaced(deliver, b"routing", b"\xff"), secs(0));
    session.input(&delivered(2), secs(0));
    assert_eq!(contents(&mut session).len(), 1);
    assert_eq!(sent(&mut session), [(1, "reject 1".into())]);
}

#[test]
fn unreadable_deliveries_without_acknowledgement_are_dropped() {
    let consume = basic::Consume {
        queue: "q".into(),
        consumer_tag: "consumer".into(),
        no_ack: true,
        ..basic::Consume::default()
    };
    let mut session = with_channels();
    let consume = AMQPClass::Basic(basic::AMQPMethod::Consume(consume));
    session.request(1, consume, "consume").unwrap();
    let ok = basic::ConsumeOk { consumer_tag: "consumer".into() };
    session.input(&bytes(&[(1, AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(ok)))]), secs(0));
    assert_eq!(events(&mut session), ["consume: Done"]);
    sent(&mut session);
    session.input(&replaced(delivered(1), b"reply", b"\xff"), secs(0));
    session.input(&delivered(2), secs(0));
    assert_eq!(events(&mut session), ["delivered 2 of 8 octets on 1"]);
    assert_eq!(sent(&mut session), []);
}

fn got_ok(tag: u64) -> Vec<u8> {
    let ok = basic::AMQPMethod::GetOk(basic::GetOk {
        delivery_tag: tag,
        redelivered: false,
        exchange: "exchange".into(),
        routing_key: "routing".into(),
        message_count: 0,
    });
    content(1, ok, b"x")
}

#[test]
fn an_unreadable_answer_to_get_is_rejected() {
    for (no_ack, rejects) in [(false, 1), (true, 0)] {
        let mut session = with_channels();
        let get =
            AMQPClass::Basic(basic::AMQPMethod::Get(basic::Get { queue: "q".into(), no_ack }));
        session.request(1, get.clone(), "first").unwrap();
        session.request(1, get, "second").unwrap();
        session.input(&replaced(got_ok(1), b"routing", b"\xff"), secs(0));
        session.input(&got_ok(2), secs(0));
        assert_eq!(events(&mut session), ["first: Rejected", "second: got 2"]);
        let said = sent(&mut session);
        assert_eq!(said.iter().filter(|(_, what)| what == "reject 1").count(), rejects, "{said:?}");
    }
}

#[test]
fn unrequested_unreadable_reply_ends_the_session() {
    let mut session = with_channels();
    session.input(&replaced(got_ok(1), b"routing", b"\xff"), secs(0));
    let told = events(&mut session);
    assert!(told[0].contains("an unrequested message on channel 1"), "{told:?}");
}

#[test]
fn an_unreadable_return_is_dropped() {
    let mut session = with_channels();
    session.publish(1, message(b"x", true), "ours").unwrap();
    sent(&mut session);
    let back = basic::AMQPMethod::Return(basic::Return {
        reply_code: 312,
        reply_text: "NO_ROUTE".into(),
        exchange: "".into(),
        routing_key: "routing".into(),
    });
    session.input(&replaced(content(1, back, b"x"), b"routing", b"\xff"), secs(0));
    session.input(&bytes(&[ack(1, false)]), secs(0));
    assert_eq!(events(&mut session), ["ours: Acked"]);
    assert_eq!(sent(&mut session), []);
}

/// The broker requeues all deliveries by itself, and a reject would close the channel.
#[test]
fn an_unreadable_delivery_is_not_rejected_during_recover() {
    let mut session = with_channels();
    let recover = AMQPClass::Basic(basic::AMQPMethod::Recover(basic::Recover { requeue: true }));
    session.request(1, recover, "recover").unwrap();
    sent(&mut session);
    session.input(&replaced(delivered(1), b"routing", b"\xff"), secs(0));
    let ok = AMQPClass::Basic(basic::AMQPMethod::RecoverOk(basic::RecoverOk {}));
    session.input(&bytes(&[(1, ok)]), secs(0));
    // The broker redelivers the message.
    session.input(&replaced(delivered(1), b"routing", b"\xff"), secs(0));
    assert_eq!(events(&mut session), ["recovered on 1", "recover: Done"]);
    assert_eq!(sent(&mut session), [(1, "reject 1".into())]);
}

/// The rejects count as replies that the broker does not read.
#[test]
fn unread_rejects_end_the_session() {
    let mut session = with_channels();
    let mut tags = 1..100_000;
    while session.next_event().is_none() {
        let tag = tags.next().expect("an end");
        session.input(&replaced(delivered(tag), b"routing", b"\xff"), secs(0));
    }
    assert!(session.queued() < 2 << 20, "{}", session.queued());
}

/// RabbitMQ cuts its texts at 255 octets, even inside a character.
#[test]
fn cut_close_reason_is_reported() {
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
    assert!(events(&mut session)[0].contains("320, text: \"?\""));
}

/// If any octet of a delivery changes, the later deliveries arrive unchanged, or the session ends
/// with a protocol error.
#[test]
fn a_changed_octet_ends_one_delivery_or_the_session() {
    let one = delivered(1);
    let mut after = Vec::new();
    let mut expected = Vec::new();
    // More octets than the largest frame can hold, if the frame is no header.
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

/// Whether the first delivery is handed out or rejected, and all others arrive unchanged. If not,
/// the session must have ended with a protocol error.
fn goes_on(bytes: &[u8], after: &[u8], expected: &[u64]) -> bool {
    let mut session = with_channels();
    session.input(bytes, secs(0));
    session.input(after, secs(0));
    if session.partial_frame.len() > FRAME_MAX {
        // The octet was in the size of a header, which may have a megabyte.
        session.input(&vec![0; 1 << 20], secs(0));
    }
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
    let is_rejected = sent(&mut session).iter().any(|(_, what)| what.starts_with("reject"));
    let (first, others) = told.split_at(if is_rejected { 0 } else { 1 });
    let tags: Vec<u64> = others.iter().map(|content| content.tag).collect();
    assert_eq!(tags, expected);
    assert!(others.iter().all(|content| content.properties == rich()));
    assert!(first.iter().all(|content| content.body.len() == b"the body".len()));
    true
}

proptest! {
    /// Arbitrary octets in properties cost one delivery at most.
    #[test]
    fn arbitrary_property_octets_keep_the_session(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
    ) {
        let mut bytes = delivered(1);
        let method = wire::split(&bytes, FRAME_MAX).unwrap().unwrap().length;
        let header = wire::split(&bytes[method..], FRAME_MAX).unwrap().unwrap().length;
        // After type, channel, size, class, weight and body size, up to the frame-end octet.
        let properties = method + 7 + 12..method + header - 1;
        for (at, octet) in changes {
            let at = properties.start + at.index(properties.len());
            bytes[at] = octet;
        }
        let after = [delivered(2), delivered(3)].concat();
        prop_assert!(goes_on(&bytes, &after, &[2, 3]));
    }
}

/// Frames of a broker, each valid in some state.
fn any_frame() -> Vec<Vec<u8>> {
    use basic::AMQPMethod as B;
    use channel::AMQPMethod as C;
    let methods = [
        AMQPClass::Channel(C::OpenOk(channel::OpenOk {})),
        AMQPClass::Channel(C::CloseOk(channel::CloseOk {})),
        AMQPClass::Channel(C::Flow(channel::Flow { active: false })),
        AMQPClass::Basic(B::RecoverOk(basic::RecoverOk {})),
        AMQPClass::Basic(B::GetEmpty(basic::GetEmpty {})),
        AMQPClass::Basic(B::CancelOk(basic::CancelOk { consumer_tag: "c".into() })),
        AMQPClass::Basic(B::Cancel(basic::Cancel { consumer_tag: "c".into(), nowait: false })),
        ack(1, false).1,
        ack(0, true).1,
        purged(1),
    ];
    let close = C::Close(channel::Close {
        reply_code: 404,
        reply_text: "no".into(),
        class_id: 50,
        method_id: 30,
    });
    let back = B::Return(basic::Return {
        reply_code: 312,
        reply_text: "NO_ROUTE".into(),
        exchange: "".into(),
        routing_key: "q".into(),
    });
    let mut frames = vec![
        deliver(1, 1, b"x"),
        deliver(1, 2, b"x"),
        deliver(2, 1, b""),
        content(1, back, b"x"),
        bytes(&[(1, AMQPClass::Channel(close))]),
        frame(8, 0, &[]),
    ];
    for method in methods {
        frames.extend([1, 2].map(|number| bytes(&[(number, method.clone())])));
    }
    frames
}

proptest! {
    /// Frames in any order, complete or cut, mixed with requests of this side.
    #[test]
    fn frames_in_any_order_lose_no_reply(
        steps in prop::collection::vec((0..40_usize, any::<prop::sample::Index>(), 1..5_usize), 1..40),
    ) {
        let frames = any_frame();
        let mut session = with_channels();
        let mut asked = 0;
        for (what, at, part) in steps {
            let number = 1 + (what % 2) as u16;
            match what {
                0..=25 => {
                    let frame = at.get(&frames);
                    session.input(&frame[..frame.len() * part.min(4) / 4], secs(0));
                }
                26..=28 => asked += usize::from(session.request(number, purge(), "asked").is_ok()),
                29..=30 => {
                    let get = basic::Get { queue: "q".into(), no_ack: false };
                    let get = AMQPClass::Basic(basic::AMQPMethod::Get(get));
                    asked += usize::from(session.request(number, get, "asked").is_ok());
                }
                31 => {
                    let recover = basic::AMQPMethod::Recover(basic::Recover { requeue: true });
                    let recover = AMQPClass::Basic(recover);
                    asked += usize::from(session.request(number, recover, "asked").is_ok());
                }
                32 => asked += usize::from(session.close_channel(number, "asked").is_ok()),
                33..=35 => drop(session.publish(number, message(b"x", true), "publish")),
                36 => drop(session.ack(number, part as u64)),
                37 => drop(session.nack(number, part as u64, true)),
                38 => session.requeue(number, part as u64),
                _ => asked += usize::from(session.open_channel("asked").is_ok()),
            }
        }
        sent(&mut session);
        let told = events(&mut session);
        let ends = told.iter().filter(|event| event.starts_with("ended")).count();
        prop_assert!(ends <= 1, "{told:?}");
        // Each request has exactly one reply, or is left unanswered.
        let told = told.iter().filter(|event| event.starts_with("asked")).count();
        prop_assert_eq!(told + session.take_unanswered().requests.len(), asked);
    }
}
