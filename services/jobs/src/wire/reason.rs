//! The reason why a message is dead: a text that travels as a header, and may quote an argument of
//! any size.

/// The longest reason, in bytes, so that it fits into a header.
const LONGEST_REASON: usize = 2_000;

/// The text, truncated to the longest reason.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > LONGEST_REASON {
        text.truncate(cut(&text, LONGEST_REASON).len());
        text.push('…');
    }
    text
}

/// The whole characters at the beginning of a text that have a number of bytes at most.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
