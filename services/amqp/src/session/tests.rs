//! The session as vectors of events: what goes in is written frame by frame, what comes out is compared
//! whole.

use amq_protocol::protocol::{AMQPClass, channel, confirm, connection};
use amq_protocol::types::FieldTable;

use super::*;
use crate::message::Properties;
use crate::session::script::*;

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
    let declare = declare.declare("q".into());
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
            "a number is free",
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
