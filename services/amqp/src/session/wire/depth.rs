//! Counts how deep tables are nested, before the parser sees them.
//!
//! The parser recurses, so deeply nested tables would exhaust its stack. Publishers choose the
//! headers of a message, and brokers pass the headers on unread.

use std::ops::Range;

/// The depth up to which tables and arrays are parsed; Celery's deepest header is 4 deep.
pub(crate) const DEEPEST_TABLE: usize = 64;
/// Offset of the property flags in a content header: after class, weight and body size.
const FLAGS: usize = 12;

/// The offset of the headers in the payload of a content header, if there are any.
pub(crate) fn headers_at(payload: &[u8]) -> Option<usize> {
    let flags = u16::from_be_bytes(*payload.get(FLAGS..)?.first_chunk()?);
    let mut at = FLAGS + 2;
    // Skips content type and content encoding, which are short strings.
    for bit in [15, 14] {
        if flags & (1 << bit) != 0 {
            at += 1 + usize::from(*payload.get(at)?);
        }
    }
    (flags & (1 << 13) != 0).then_some(at)
}

/// The range of the content of the table, array or long string at the offset.
fn content_range(payload: &[u8], at: usize) -> Option<Range<usize>> {
    let begin = at.checked_add(4)?;
    let length = u32::from_be_bytes(*payload.get(at..)?.first_chunk()?) as usize;
    let end = begin.checked_add(length).filter(|end| *end <= payload.len())?;
    Some(begin..end)
}

/// Whether the table at the offset may be parsed: its depth is within the limit, or the parser
/// refuses the table as malformed.
pub(crate) fn is_shallow(payload: &[u8], at: usize) -> bool {
    let Some(table) = content_range(payload, at) else { return true };
    // The unread rest of each open table or array, and whether its values have names.
    let mut levels = vec![(table, true)];
    while let Some((rest, has_names)) = levels.last_mut() {
        if rest.start >= rest.end {
            levels.pop();
            continue;
        }
        if *has_names {
            rest.start += 1 + usize::from(payload[rest.start]);
        }
        let Some(kind) = payload.get(rest.clone()).and_then(<[u8]>::first) else { return true };
        let value = rest.start + 1;
        let end = match kind {
            b'V' => value,
            b't' | b'b' | b'B' => value + 1,
            b's' | b'U' | b'u' => value + 2,
            b'I' | b'i' | b'f' => value + 4,
            b'D' => value + 5,
            b'L' | b'l' | b'd' | b'T' => value + 8,
            b'S' | b'x' | b'A' | b'F' => match content_range(payload, value) {
                Some(content) => content.end,
                None => return true,
            },
            _ => return true,
        };
        if end > rest.end {
            return true;
        }
        rest.start = end;
        if matches!(kind, b'A' | b'F') {
            if levels.len() == DEEPEST_TABLE {
                return false;
            }
            levels.push((value + 4..end, *kind == b'F'));
        }
    }
    true
}
