//! The codec against arbitrary bytes, arbitrary cuts, and tables that would exhaust the stack.

use amq_protocol::protocol::{basic, connection};
use amq_protocol::types::{AMQPValue, FieldArray, FieldTable};
use proptest::prelude::*;

use super::*;
use crate::message::Properties;

const MAX: usize = 4096;

fn decode_all(mut bytes: &[u8]) -> Result<Vec<String>, Error> {
    let mut frames = Vec::new();
    while let Some(raw) = split(bytes, MAX)? {
        frames.push(format!("{} {:?}", raw.channel, raw.decode()?));
        bytes = &bytes[raw.length..];
    }
    Ok(frames)
}

fn valid_stream(body: &[u8], header: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let deliver = AMQPClass::Basic(basic::AMQPMethod::Deliver(basic::Deliver {
        consumer_tag: "c".into(),
        delivery_tag: 7,
        redelivered: true,
        exchange: "".into(),
        routing_key: "q".into(),
    }));
    append_method(&mut bytes, 3, deliver, MAX).unwrap();
    let mut table = FieldTable::default();
    table.insert("h".into(), AMQPValue::LongString(header.into()));
    table.insert("a".into(), AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void])));
    let properties = Properties::default().with_headers(table).with_content_type("x".into());
    let header = AMQPContentHeader { class_id: 60, body_size: body.len() as u64, properties };
    append(&mut bytes, &AMQPFrame::Header(3, header), MAX).unwrap();
    append_body(&mut bytes, 3, body, 64);
    append(&mut bytes, &AMQPFrame::Heartbeat, MAX).unwrap();
    bytes
}

#[test]
fn generated_bytes_match_the_library() {
    let start = AMQPFrame::Method(
        0,
        AMQPClass::Connection(connection::AMQPMethod::Blocked(connection::Blocked {
            reason: "low on memory".into(),
        })),
    );
    let (theirs, _) = gen_frame(&start)(WriteContext::from(Vec::new())).unwrap().into_inner();
    let mut ours = b"before".to_vec();
    append(&mut ours, &start, MAX).unwrap();
    assert_eq!(&ours[6..], theirs);
}

#[test]
fn oversized_frame_appends_nothing() {
    let mut table = FieldTable::default();
    table.insert("h".into(), AMQPValue::LongString(vec![b'x'; MAX].into()));
    let properties = Properties::default().with_headers(table);
    let frame = AMQPFrame::Header(1, AMQPContentHeader { class_id: 60, body_size: 0, properties });
    let mut bytes = b"before".to_vec();
    assert!(matches!(append(&mut bytes, &frame, MAX), Err(Error::Invalid(_))));
    assert_eq!(bytes, b"before");
}

#[test]
fn malformed_input_has_specific_errors() {
    let words = |bytes: &[u8]| decode_all(bytes).unwrap_err().to_string();
    assert!(words(b"HTTP/1.1 400").contains("no frame: \"HTTP/1.1 400\""));
    assert!(words(b"AMQP\0\x01\0\0").contains("version 1.0.0"));
    assert!(words(b"AMPQ").contains("no frame"));
    assert!(words(&[21, 3, 3, 0, 2, 2, 70]).contains("it speaks TLS"));
    assert!(words(&[1, 0, 0, 0x7f, 0xff, 0xff, 0xff]).contains("2147483647 bytes"));
    assert!(words(&[8, 0, 0, 0, 0, 0, 0, 0]).contains("0x00 instead of 0xce"));
    assert!(words(&[8, 0, 1, 0, 0, 0, 0, 0xce]).contains("malformed heartbeat"));
    assert!(words(&[1, 0, 0, 0, 0, 0, 2, 0, 1, 0xce]).contains("an empty method"));
    assert!(words(&[1, 0, 0, 0, 0, 0, 4, 0, 60, 0, 99, 0xce]).contains("60.99"));
    assert!(words(&[1, 0, 0, 0, 0, 0, 4, 0, 60, 0, 60, 0xce]).contains("malformed method"));
    assert_eq!(decode_all(b"AM").unwrap(), Vec::<String>::new());
}

/// Tables as deep as a frame of the usual size allows must not reach the parser.
#[test]
fn tables_nested_too_deep_are_not_parsed() {
    let nested = |depth: usize, kind: u8| {
        let mut inner = Vec::new();
        for _ in 0..depth {
            let mut outer = if kind == b'F' { vec![0] } else { Vec::new() };
            outer.push(kind);
            outer.extend((inner.len() as u32).to_be_bytes());
            outer.extend(&inner);
            inner = outer;
        }
        if kind == b'A' {
            inner.insert(0, 0);
        }
        let mut payload = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        payload.extend((1_u16 << 13).to_be_bytes());
        payload.extend((inner.len() as u32).to_be_bytes());
        payload.extend(&inner);
        payload
    };
    for kind in [b'A', b'F'] {
        for (depth, is_fine) in [(10, true), (63, true), (64, false), (5_000, false)] {
            let payload = nested(depth, kind);
            let raw = Raw { kind: 2, channel: 1, payload: &payload, length: 0 };
            let frame = raw.decode().unwrap();
            let is_read = matches!(&frame, Frame::Header(h) if h.properties.headers().is_some());
            assert_eq!(is_read, is_fine, "{depth} deep: {frame:?}");
            let is_skipped = matches!(frame, Frame::UnreadableHeader { body_size: 0 });
            assert_eq!(is_skipped, !is_fine, "{depth} deep");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _frames_or_error = decode_all(&bytes);
    }

    #[test]
    fn arbitrary_payloads_are_frames_or_an_error(
        kind in prop::sample::select(vec![1_u8, 2, 3, 8]),
        ids in prop::sample::select(vec![(10_u16, 10_u16), (60, 60), (60, 50), (60, 71), (10, 50), (50, 11), (20, 40)]),
        tail in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut payload = Vec::new();
        if kind == 1 {
            payload.extend(ids.0.to_be_bytes());
            payload.extend(ids.1.to_be_bytes());
        }
        payload.extend(&tail);
        let raw = Raw { kind, channel: 1, payload: &payload, length: 0 };
        let _frame_or_error = raw.decode();
    }

    #[test]
    fn a_changed_octet_is_a_frame_or_an_error(at in any::<prop::sample::Index>(), octet in any::<u8>()) {
        let mut bytes = valid_stream(&[5; 200], "value");
        let at = at.index(bytes.len());
        bytes[at] = octet;
        let _frames_or_error = decode_all(&bytes);
    }

    #[test]
    fn stream_cuts_do_not_change_frames(
        body in prop::collection::vec(any::<u8>(), 0..300),
        header in "[a-z]{0,40}",
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = valid_stream(&body, &header);
        let whole = decode_all(&bytes).unwrap();
        let cut = cut.index(bytes.len());
        let begin = decode_all(&bytes[..cut]).unwrap();
        prop_assert_eq!(&whole[..begin.len()], &begin[..]);
    }
}

/// Brokers do not validate properties.
#[test]
fn non_utf8_properties_leave_the_body_size() {
    let header = AMQPFrame::Header(
        1,
        AMQPContentHeader {
            class_id: 60,
            body_size: 7,
            properties: crate::message::Properties::default().with_correlation_id("abc".into()),
        },
    );
    let mut bytes = Vec::new();
    append(&mut bytes, &header, 4096).unwrap();
    let at = bytes.windows(3).position(|w| w == b"abc").unwrap();
    bytes[at] = 0xff;
    let raw = split(&bytes, 4096).unwrap().unwrap();
    let frame = raw.decode().unwrap();
    assert!(matches!(frame, Frame::UnreadableHeader { body_size: 7 }), "{frame:?}");
    // A payload without a body size is malformed.
    for length in 0..12 {
        let raw = Raw { payload: &raw.payload[..length], ..raw };
        assert!(raw.decode().unwrap_err().to_string().contains("a malformed content header"));
    }
}

fn unreadable(method: basic::AMQPMethod) -> Vec<u8> {
    let mut bytes = Vec::new();
    append_method(&mut bytes, 1, AMQPClass::Basic(method), 4096).unwrap();
    let at = bytes.windows(3).position(|part| part == b"key").unwrap();
    bytes[at] = 0xff;
    bytes
}

#[test]
fn tags_are_read_beside_unreadable_names() {
    let deliver = unreadable(basic::AMQPMethod::Deliver(basic::Deliver {
        consumer_tag: "c".into(),
        delivery_tag: 1 << 40,
        redelivered: true,
        exchange: "x".into(),
        routing_key: "key".into(),
    }));
    let got = unreadable(basic::AMQPMethod::GetOk(basic::GetOk {
        delivery_tag: 3,
        redelivered: false,
        exchange: "key".into(),
        routing_key: "x".into(),
        message_count: 4,
    }));
    let returned = unreadable(basic::AMQPMethod::Return(basic::Return {
        reply_code: 312,
        reply_text: "NO_ROUTE".into(),
        exchange: "key".into(),
        routing_key: "x".into(),
    }));
    let delivery = basic::AMQPMethod::Deliver(basic::Deliver {
        consumer_tag: "c".into(),
        delivery_tag: 1 << 40,
        redelivered: true,
        ..basic::Deliver::default()
    });
    let answer = basic::AMQPMethod::GetOk(basic::GetOk {
        delivery_tag: 3,
        redelivered: false,
        message_count: 4,
        ..basic::GetOk::default()
    });
    let back = basic::AMQPMethod::Return(basic::Return {
        reply_code: 312,
        reply_text: "NO_ROUTE".into(),
        ..basic::Return::default()
    });
    for (bytes, expected) in [(deliver, delivery), (got, answer), (returned, back)] {
        let raw = split(&bytes, 4096).unwrap().unwrap();
        match raw.decode() {
            Ok(Frame::UnreadableMethod(found)) => assert_eq!(found, AMQPClass::Basic(expected)),
            other => panic!("{other:?}"),
        }
        // A cut or longer payload is malformed.
        let longer = [raw.payload, &[0]].concat();
        let cuts = (4..raw.payload.len()).map(|length| &raw.payload[..length]);
        for payload in cuts.chain([&longer[..]]) {
            let error = Raw { payload, ..raw }.decode().unwrap_err();
            assert!(error.to_string().contains("malformed method"), "{error}");
        }
    }
}
