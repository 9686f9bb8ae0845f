//! Texts that say why a message is dead. A text travels as a header and may quote an argument of any size.

/// The longest such text, in bytes, lest it exceed what fits into a header.
const LONGEST_REASON: usize = 2_000;

/// A text, or its beginning.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > LONGEST_REASON {
        text.truncate(text.floor_char_boundary(LONGEST_REASON));
        text.push('…');
    }
    text
}
