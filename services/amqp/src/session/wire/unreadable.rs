//! Methods that the parser refuses because a text in them is not UTF-8.
//!
//! Publishers may write any octets into names, and brokers pass them on. Such a message must not
//! end the connection, as the broker would deliver it again over the next one. This walk finds what
//! settles the message, and skips its names.

use amq_protocol::protocol::{AMQPClass, basic, channel, connection};
use amq_protocol::types::ShortString;

use super::Frame;

/// The unread fields of a method.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn octets(&mut self, count: usize) -> Option<&'a [u8]> {
        let (octets, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(octets)
    }

    fn bit(&mut self) -> Option<bool> {
        Some(self.octets(1)?.first()? & 1 == 1)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(*self.octets(2)?.first_chunk()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(*self.octets(4)?.first_chunk()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(*self.octets(8)?.first_chunk()?))
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = *self.octets(1)?.first()?;
        self.octets(length.into())
    }

    /// A text of the broker's own. RabbitMQ cuts its reasons at 255 octets, also within a
    /// character; what is not UTF-8 becomes a `?`.
    fn reason(&mut self) -> Option<ShortString> {
        let reason = String::from_utf8_lossy(self.text()?);
        Some(ShortString::from(reason.replace(char::REPLACEMENT_CHARACTER, "?")))
    }

    /// Exchange and routing key of a message, which are skipped.
    fn names(&mut self) -> Option<(ShortString, ShortString)> {
        let _names = (self.text()?, self.text()?);
        Some(Default::default())
    }
}

/// What the method says, without its names. `None`: no publisher writes into it, or it is
/// malformed.
pub(crate) fn method(payload: &[u8]) -> Option<Frame<'static>> {
    let mut fields = Fields(payload);
    let frame = match (fields.u16()?, fields.u16()?) {
        (10, 50) => {
            let (reply_code, reply_text) = (fields.u16()?, fields.reason()?);
            let (class_id, method_id) = (fields.u16()?, fields.u16()?);
            let close = connection::Close { reply_code, reply_text, class_id, method_id };
            Frame::Method(AMQPClass::Connection(connection::AMQPMethod::Close(close)))
        }
        (20, 40) => {
            let (reply_code, reply_text) = (fields.u16()?, fields.reason()?);
            let (class_id, method_id) = (fields.u16()?, fields.u16()?);
            let close = channel::Close { reply_code, reply_text, class_id, method_id };
            Frame::Method(AMQPClass::Channel(channel::AMQPMethod::Close(close)))
        }
        (60, 50) => {
            let (reply_code, reply_text) = (fields.u16()?, fields.reason()?);
            let (exchange, routing_key) = fields.names()?;
            let back = basic::Return { reply_code, reply_text, exchange, routing_key };
            Frame::UnreadableMethod(AMQPClass::Basic(basic::AMQPMethod::Return(back)))
        }
        (60, 60) => {
            // The consumer's tag is this side's own.
            let consumer_tag = ShortString::from(str::from_utf8(fields.text()?).ok()?);
            let (delivery_tag, redelivered) = (fields.u64()?, fields.bit()?);
            let (exchange, routing_key) = fields.names()?;
            let deliver = basic::AMQPMethod::Deliver(basic::Deliver {
                consumer_tag,
                delivery_tag,
                redelivered,
                exchange,
                routing_key,
            });
            Frame::UnreadableMethod(AMQPClass::Basic(deliver))
        }
        (60, 71) => {
            let (delivery_tag, redelivered) = (fields.u64()?, fields.bit()?);
            let (exchange, routing_key) = fields.names()?;
            let message_count = fields.u32()?;
            let ok = basic::AMQPMethod::GetOk(basic::GetOk {
                delivery_tag,
                redelivered,
                exchange,
                routing_key,
                message_count,
            });
            Frame::UnreadableMethod(AMQPClass::Basic(ok))
        }
        _ => return None,
    };
    fields.0.is_empty().then_some(frame)
}
