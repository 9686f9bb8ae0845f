//! The names that RabbitMQ gives to direct reply-to.
//!
//! A question has `amq.rabbitmq.reply-to` as its reply-to. In its place, RabbitMQ delivers the name
//! of the asking channel: `amq.rabbitmq.reply-to.<process>.<key>`. RabbitMQ 3.10 decodes such a
//! name without a check when a message is published to it, and a name of another form ends the
//! connection.

/// What such a name begins with.
const PREFIX: &str = "amq.rabbitmq.reply-to.";

/// Whether RabbitMQ ends the connection of a publisher with this routing key: the key begins like a
/// name of direct reply-to, and has another form. `Channel::publish` refuses such a key.
///
/// The form is `<process>.<key>` behind the prefix. `<process>` is the base64 of an Erlang process
/// identifier (`NEW_PID_EXT`), whose node is named `…@<number>`.
///
/// # Examples
///
/// ```
/// use pikake::amqp::is_malformed_reply_to;
///
/// assert!(is_malformed_reply_to("amq.rabbitmq.reply-to.x.y"));
/// assert!(!is_malformed_reply_to("amq.rabbitmq.reply-to.g1h3B3JlcGx5QDEAAAABAAAAAAAAAAE=.y"));
/// assert!(!is_malformed_reply_to("mail"));
/// ```
pub fn is_malformed_reply_to(routing_key: &str) -> bool {
    let Some(name) = routing_key.strip_prefix(PREFIX) else { return false };
    let is_well_formed = name.split_once('.').is_some_and(|(process, key)| {
        let process = decode_base64(process);
        !key.is_empty() && !key.contains('.') && process.is_some_and(|process| is_process(&process))
    });
    !is_well_formed
}

/// Whether the octets are a process identifier in Erlang's external term format.
fn is_process(octets: &[u8]) -> bool {
    const VERSION: u8 = 131;
    const NEW_PID: u8 = 88;
    const ATOM: u8 = 118;
    const SMALL_ATOM: u8 = 119;
    let (length, rest) = match *octets {
        [VERSION, NEW_PID, ATOM, a, b, ref rest @ ..] => (u16::from_be_bytes([a, b]).into(), rest),
        [VERSION, NEW_PID, SMALL_ATOM, length, ref rest @ ..] => (length.into(), rest),
        _ => return false,
    };
    let Some((node, numbers)) = rest.split_at_checked(length) else { return false };
    let node = str::from_utf8(node).ok().and_then(|node| node.split_once('@'));
    let is_numbered = node.is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|octet| octet.is_ascii_digit())
    });
    // Id, serial and creation, four octets each.
    is_numbered && numbers.len() == 12
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    if text.is_empty() || !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let (mut bits, mut octets) = (0_u32, Vec::new());
    for (at, digit) in digits.bytes().enumerate() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        // Each digit but the first of four completes an octet.
        if at % 4 > 0 {
            octets.push((bits >> (6 - 2 * (at % 4))) as u8);
        }
    }
    Some(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(process: &str) -> String {
        format!("{PREFIX}{process}.7+Y1wzYdKJQFZFVoZZ4TZw==")
    }

    #[test]
    fn names_of_rabbitmq_are_well_formed() {
        // Of RabbitMQ 3.10, whose Erlang writes the node as an atom of two octets' length, and of
        // one octet's.
        for process in
            ["g1h2AA5yZXBseUA0MDYyMzgyOAAAAssAAAAAawOJ7g==", "g1h3B3JlcGx5QDEAAAABAAAAAAAAAAE="]
        {
            assert!(!is_malformed_reply_to(&named(process)), "{process}");
        }
        for key in ["", "mail", "amq.rabbitmq.reply-to", "amq.rabbitmq.reply", "amq.gen-x.y"] {
            assert!(!is_malformed_reply_to(key), "{key}");
        }
    }

    #[test]
    fn other_names_are_malformed() {
        let good = "g1h3B3JlcGx5QDEAAAABAAAAAAAAAAE=";
        let cut = |by: usize| &good[..good.len() - by];
        let malformed = [
            "x",
            "",
            "x y",
            "größ",
            "====",
            // Cut, at a boundary of base64 and elsewhere.
            cut(4),
            cut(1),
            // A node without a number, as RabbitMQ up to 3.9 writes it.
            "g1hkABZwaWtha2UtMjAwMDRAbG9jYWxob3N0AAAC1wAAAABrA4nu",
            // An identifier of the older kind.
            "g2dkAA1yYWJiaXRAbXlob3N0AAAB4QAAAAAA",
        ];
        for process in malformed {
            assert!(is_malformed_reply_to(&named(process)), "{process}");
        }
        for name in ["", ".", "x", good, &format!("{good}."), &format!("{good}.a.b")] {
            assert!(is_malformed_reply_to(&format!("{PREFIX}{name}")), "{name}");
        }
    }

    #[test]
    fn base64_is_decoded() {
        let decoded = ["TQ==", "TWE=", "TWFu", "+/+/"].map(|text| decode_base64(text).unwrap());
        assert_eq!(decoded, [b"M".to_vec(), b"Ma".to_vec(), b"Man".to_vec(), vec![251, 255, 191]]);
    }
}
