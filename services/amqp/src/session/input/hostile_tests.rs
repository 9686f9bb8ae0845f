//! Bounds on the resources that a hostile or broken broker can use.

use amq_protocol::protocol::{AMQPClass, basic, channel};

use crate::session::event::{Ended, Event};
use crate::session::script::*;
use crate::session::wire;

/// The one event of a session that these bytes end.
fn refused(says: &[u8]) -> String {
    let mut session = with_channels();
    session.input(says, secs(0));
    // The session ignores later input.
    session.input(&deliver(1, 7, b""), secs(0));
    let told = events(&mut session);
    assert_eq!(told.len(), 1, "{told:?}");
    told[0].clone()
}

#[test]
fn protocol_violations_end_the_session() {
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
        ("more than announced", body(b"12345"), "a body longer than announced on channel 1"),
        ("a frame too large", too_long, "a frame of 4089 bytes, where 4096 are agreed"),
        ("an unknown channel", deliver(9, 1, b""), "channel 9, which is not open"),
        ("content on channel 0", frame(2, 0, &[0; 14]), "content on channel 0"),
        ("a body of nothing", frame(3, 1, b"x"), "out of order on channel 1: 1 bytes of a body"),
        ("a header of nothing", frame(2, 1, &[0; 14]), "out of order on channel 1: a content"),
        ("delivery tag 0", deliver(1, 0, b""), "a delivery with tag 0"),
        ("a method inside a content", [&begun[..method], &begun[..]].concat(), "method 60.60"),
        ("an answer to nothing", bytes(&[(1, purged(1))]), "where None is pending"),
        ("a confirm of nothing", bytes(&[ack(1, false)]), "a confirm of message 1"),
    ];
    for (what, says, words) in says {
        let told = refused(&says);
        assert!(told.contains(words) && told.len() < 200, "{what}: {told}");
    }
}

#[test]
fn announced_body_size_allocates_little() {
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

/// The broker sends requests, and reads no reply.
#[test]
fn unread_replies_end_the_session() {
    let flow = channel::AMQPMethod::Flow(channel::Flow { active: true });
    let flow = bytes(&[(1, AMQPClass::Channel(flow))]);
    let cancel = basic::Cancel { consumer_tag: "x".into(), nowait: false };
    let cancel = bytes(&[(1, AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel)))]);
    for question in [flow, cancel] {
        let thousand = question.repeat(1000);
        let mut session = with_channels();
        for _ in 0..100 {
            session.input(&thousand, secs(0));
        }
        let told = std::iter::from_fn(|| session.next_event()).last();
        let Some(Event::Ended(Ended::Protocol(error))) = told else { panic!("{told:?}") };
        assert!(error.to_string().contains("octets of replies unread"), "{error}");
        assert!(session.queued() < 2 << 20, "{}", session.queued());
        // A broker that reads the replies has no limit.
        let (mut session, mut output) = (with_channels(), Vec::new());
        for _ in 0..100 {
            session.input(&thousand, secs(0));
            session.take_output(&mut output, secs(0));
        }
        let told = std::iter::from_fn(|| session.next_event()).last();
        assert!(!matches!(told, Some(Event::Ended(_))), "{told:?}");
    }
}

#[test]
fn deliveries_without_consumer_are_requeued_within_bounds() {
    let mut session = with_channels();
    session.input(&deliver(1, 1, b""), secs(0));
    events(&mut session);
    session.requeue(1, 1);
    session.requeue(1, 1);
    assert_eq!(sent(&mut session), [(1, "reject 1 to its queue".to_owned())]);
    let mut tags = 2..;
    while session.next_event().is_none_or(|event| !matches!(event, Event::Ended(_))) {
        let tag = tags.next().unwrap();
        session.input(&deliver(1, tag, b""), secs(0));
        session.requeue(1, tag);
        session.next_event();
    }
    assert!(session.queued() < 2 << 20, "{}", session.queued());
}
