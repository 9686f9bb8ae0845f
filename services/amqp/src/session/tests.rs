//! The session as a whole: each test writes frames, and compares all events and sent methods.

use amq_protocol::protocol::{AMQPClass, channel, confirm, connection};
use amq_protocol::types::FieldTable;

use super::*;
use crate::message::Properties;
use crate::session::script::*;

#[test]
fn smaller_limit_wins_and_zero_is_unlimited() {
    let session = opened();
    let expected = Limits { frame_max: FRAME_MAX, channel_max: 10, heartbeat: secs(10) };
    assert_eq!(session.limits, expected);
}

#[test]
fn stream_cuts_do_not_change_events() {
    let mut stream = welcome();
    stream.extend(bytes(&[on_connection(connection::AMQPMethod::Blocked(connection::Blocked {
        reason: "low on memory".into(),
    }))]));
    stream.push(0xff);
    let expected = [
        "opened",
        "blocked: low on memory",
        "ended: the peer does not speak AMQP 0-9-1: the peer's bytes are no frame: \"\\\\xff\"",
    ];
    for size in [1, 2, 7, 11, stream.len()] {
        let mut session = Session::new(handshake_config(), secs(0));
        stream.chunks(size).for_each(|part| session.input(part, secs(0)));
        assert_eq!(events(&mut session), expected, "cut every {size}");
    }
}

#[test]
fn requests_are_sequential_per_channel() {
    let mut session = with_channels();
    session.request(1, purge(), "a").unwrap();
    session.request(1, purge(), "b").unwrap();
    session.request(2, purge(), "c").unwrap();
    assert_eq!(sent(&mut session), [(1, "(50, 30)".to_owned()), (2, "(50, 30)".to_owned())]);
    // One read has all replies, the last of them to a request that is still queued.
    session.input(&bytes(&[(2, purged(3)), (1, purged(1)), (1, purged(2))]), secs(0));
    assert_eq!(events(&mut session), ["c: Count(3)", "a: Count(1)", "b: Count(2)"]);
}

#[test]
fn unexpected_replies_end_the_session() {
    let mut session = with_channels();
    session.input(&bytes(&[(1, purged(1))]), secs(0));
    assert!(events(&mut session)[0].contains("50.31 on channel 1, where None is pending"));
    let mut session = with_channels();
    session.request(1, purge(), "a").unwrap();
    let ok = AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {}));
    session.input(&bytes(&[(1, ok)]), secs(0));
    assert!(events(&mut session)[0].contains("85.11"));
    assert_eq!(session.take_unanswered().requests, ["a"]);
}

#[test]
fn encoding_errors_leave_no_output() {
    let mut session = with_channels();
    let mut arguments = FieldTable::default();
    let large = vec![b'x'; FRAME_MAX];
    arguments.insert("x".into(), crate::message::Value::LongString(large.into()));
    let declare =
        crate::message::QueueOptions { arguments: arguments.clone(), ..Default::default() };
    let declare = declare.declare("q".into());
    let (error, token) = session.request(1, declare, "a").unwrap_err();
    assert!(matches!(error, Error::Invalid(_)) && token == "a");
    let mut large = message(b"body", false);
    large.properties = Properties::default().with_headers(arguments);
    let (_, back, _) = session.publish(1, large.clone(), "m").unwrap_err();
    assert_eq!(back, large);
    assert_eq!((sent(&mut session), session.window(1)), (vec![], Some((true, 0))));
    session.request(1, purge(), "b").unwrap();
    assert_eq!(sent(&mut session), [(1, "(50, 30)".to_owned())]);
}

#[test]
fn channel_close_inside_a_content_spares_other_channels() {
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
            "a number is free",
            "channel 1 closed: 404 NOT_FOUND",
            "c: Count(0)",
        ]
    );
    assert_eq!(sent(&mut session), [(1, "(20, 41)".to_owned())]);
    assert_eq!(session.open_channel("again").unwrap(), 1, "its number is free");
}

#[test]
fn heartbeats_follow_the_passed_time() {
    let mut session = opened();
    sent(&mut session);
    assert_eq!(session.next_tick(), Some(secs(5)));
    session.tick(secs(4));
    assert!(sent(&mut session).is_empty());
    session.tick(secs(5));
    assert_eq!(sent(&mut session), [(0, "heartbeat".to_owned())]);
    session.input(&[8, 0, 0, 0, 0, 0, 0, 0xce], secs(12));
    session.tick(secs(31));
    assert!(events(&mut session).is_empty());
    session.tick(secs(32));
    assert_eq!(events(&mut session), ["ended: Silent"]);
    assert_eq!(session.next_tick(), None);
}

#[test]
fn close_flushes_output_and_refuses_requests() {
    let mut session = with_channels();
    session.input(&deliver(1, 1, b""), secs(0));
    events(&mut session);
    session.ack(1, 1);
    session.close();
    assert_eq!(sent(&mut session), [(1, "ack 1".to_owned()), (0, "(10, 50)".to_owned())]);
    assert!(matches!(session.request(1, purge(), "late"), Err((Error::Closed, "late"))));
    let ok = on_connection(connection::AMQPMethod::CloseOk(connection::CloseOk {}));
    session.input(&bytes(&[ok]), secs(0));
    assert_eq!(events(&mut session), ["ended: ByUs"]);
}
