//! The reason why a message is dead: a text that travels as a header, and may quote an argument of any size.

/// The longest reason, in bytes, so that it fits into a header.
const LONGEST_REASON: usize = 2_000;

/// The text, truncated to the longest reason.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > LONGEST_REASON {
        text.truncate(text.floor_char_boundary(LONGEST_REASON));
        text.push('…');
    }
    text
}
