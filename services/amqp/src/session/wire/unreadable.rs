//! Methods that the parser refuses because a text in them is not UTF-8.
//!
//! Publishers may write any octets into names and properties, and brokers pass them on. Such a message
//! must not end the connection, as the broker would deliver it again over the next one. This walk finds
//! how a message is settled; its names are skipped.

use amq_protocol::protocol::{AMQPClass, channel, connection};
use amq_protocol::types::ShortString;

/// A message whose names or properties cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// A delivery to a consumer.
    Delivery {
        /// The consumer's tag.
        consumer: ShortString,
        /// The delivery's tag.
        tag: u64,
    },
    /// The answer to a get.
    Got {
        /// The delivery's tag.
        tag: u64,
    },
    /// A message that the broker returns, and that this side has not sent: its own names are UTF-8.
    Returned,
}

/// The fields of a method that are still to be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn octets(&mut self, count: usize) -> Option<&'a [u8]> {
        let (octets, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(octets)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(*self.octets(2)?.first_chunk()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(*self.octets(8)?.first_chunk()?))
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = *self.octets(1)?.first()?;
        self.octets(length.into())
    }
}

/// The method, if a message follows it. `None`: it is another one, or malformed.
pub(crate) fn message(payload: &[u8]) -> Option<Unreadable> {
    let mut fields = Fields(payload);
    let (unreadable, behind) = match (fields.u16()?, fields.u16()?) {
        (60, 50) => {
            fields.u16()?;
            fields.text()?;
            (Unreadable::Returned, 0)
        }
        (60, 60) => {
            // The consumer's tag is this side's own.
            let consumer = ShortString::from(str::from_utf8(fields.text()?).ok()?);
            let tag = fields.u64()?;
            let _redelivered = fields.octets(1)?;
            (Unreadable::Delivery { consumer, tag }, 0)
        }
        (60, 71) => {
            let tag = fields.u64()?;
            let _redelivered = fields.octets(1)?;
            // The count of the messages that are left.
            (Unreadable::Got { tag }, 4)
        }
        _ => return None,
    };
    let (_exchange, _routing_key) = (fields.text()?, fields.text()?);
    (fields.0.len() == behind).then_some(unreadable)
}

/// The method, if it closes a channel or the connection: RabbitMQ cuts its reasons at 255 octets, also
/// within a character. Each sequence that is not UTF-8 becomes a `?`.
pub(crate) fn close(payload: &[u8]) -> Option<AMQPClass> {
    let mut fields = Fields(payload);
    let ids = (fields.u16()?, fields.u16()?);
    let reply_code = fields.u16()?;
    let text = String::from_utf8_lossy(fields.text()?).replace(char::REPLACEMENT_CHARACTER, "?");
    let reply_text = ShortString::from(text);
    let (class_id, method_id) = (fields.u16()?, fields.u16()?);
    let method = match ids {
        (10, 50) => {
            let close = connection::Close { reply_code, reply_text, class_id, method_id };
            AMQPClass::Connection(connection::AMQPMethod::Close(close))
        }
        (20, 40) => {
            let close = channel::Close { reply_code, reply_text, class_id, method_id };
            AMQPClass::Channel(channel::AMQPMethod::Close(close))
        }
        _ => return None,
    };
    fields.0.is_empty().then_some(method)
}
