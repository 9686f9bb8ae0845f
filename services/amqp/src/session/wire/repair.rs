//! Texts that are none, and tables in tables.
//!
//! Apart from `wire`: this walks through what publishers wrote before, or after, the parser has seen it.
//! A broker passes on names, keys and properties unread, and cuts its own texts at 255 octets, wherever
//! that is in a character. The parser takes UTF-8 only. To end the connection for that would bring the
//! same message again over the next one, so what is no text is made one of the same length.

use std::ops::Range;

/// In the place of an octet that is no text.
const NO_TEXT: u8 = b'?';
/// Tables and arrays in each other; Celery's deepest header is 4 deep.
pub(crate) const DEEPEST_TABLE: usize = 64;
/// Where the flags of the properties are in a content header: behind class, weight and size.
const FLAGS: usize = 12;

/// The method with texts only. `None`: it is none whose texts are anybody's.
pub(crate) fn method(payload: &[u8]) -> Option<Vec<u8>> {
    let [c0, c1, m0, m1] = *payload.first_chunk()?;
    // How many octets are before each text.
    let before: &[usize] = match (u16::from_be_bytes([c0, c1]), u16::from_be_bytes([m0, m1])) {
        (10, 50) | (20, 40) => &[2],
        (10, 60) => &[0],
        (60, 50) => &[2, 0, 0],
        (60, 60) => &[0, 9, 0],
        (60, 71) => &[9, 0],
        _ => return None,
    };
    let mut payload = payload.to_vec();
    let mut at = 4;
    for octets in before {
        at = text(&mut payload, at + octets)?;
    }
    Some(payload)
}

/// The content header with texts only. `None`: it is malformed.
pub(crate) fn content_header(payload: &[u8]) -> Option<Vec<u8>> {
    let flags = u16::from_be_bytes(*payload.get(FLAGS..)?.first_chunk()?);
    let mut payload = payload.to_vec();
    let mut at = FLAGS + 2;
    for bit in (2..16).rev().filter(|bit| flags & (1 << bit) != 0) {
        at = match bit {
            13 => {
                let mut names = Vec::new();
                is_shallow(&payload, at, |name| names.push(name));
                for name in names {
                    text(&mut payload, name)?;
                }
                inside(&payload, at)?.end
            }
            // Delivery mode and priority.
            11 | 12 => at + 1,
            // Timestamp.
            6 => at + 8,
            _ => text(&mut payload, at)?,
        };
    }
    Some(payload)
}

/// Makes the short string at the place a text, and tells where it ends.
fn text(payload: &mut [u8], at: usize) -> Option<usize> {
    let end = at + 1 + usize::from(*payload.get(at)?);
    let octets = payload.get_mut(at + 1..end)?;
    let mut text = Vec::with_capacity(octets.len());
    for chunk in octets.utf8_chunks() {
        text.extend_from_slice(chunk.valid().as_bytes());
        text.resize(text.len() + chunk.invalid().len(), NO_TEXT);
    }
    octets.copy_from_slice(&text);
    Some(end)
}

/// Where the headers are in the payload of a content header, if there are any.
pub(crate) fn headers_at(payload: &[u8]) -> Option<usize> {
    let flags = u16::from_be_bytes(*payload.get(FLAGS..)?.first_chunk()?);
    let mut at = FLAGS + 2;
    // Content type and content encoding, short strings.
    for bit in [15, 14] {
        if flags & (1 << bit) != 0 {
            at += 1 + usize::from(*payload.get(at)?);
        }
    }
    (flags & (1 << 13) != 0).then_some(at)
}

/// What is inside of the table, array or long string at the place.
fn inside(payload: &[u8], at: usize) -> Option<Range<usize>> {
    let begin = at.checked_add(4)?;
    let length = u32::from_be_bytes(*payload.get(at..)?.first_chunk()?) as usize;
    let end = begin.checked_add(length).filter(|end| *end <= payload.len())?;
    Some(begin..end)
}

/// Whether the table at the place may be given to a parser that recurses: it is not too deep, or so
/// malformed that the parser finds out. Tells where its names are, and those of the tables inside.
pub(crate) fn is_shallow(payload: &[u8], at: usize, mut name: impl FnMut(usize)) -> bool {
    let Some(table) = inside(payload, at) else { return true };
    // What is left of each table or array, and whether it has names.
    let mut levels = vec![(table, true)];
    while let Some((rest, has_names)) = levels.last_mut() {
        if rest.start >= rest.end {
            levels.pop();
            continue;
        }
        if *has_names {
            name(rest.start);
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
            b'S' | b'x' | b'A' | b'F' => match inside(payload, value) {
                Some(inside) => inside.end,
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
