//! Codecs, which split a stream of bytes into messages.
//!
//! A codec takes the first message from the bytes that have arrived, or none while it is
//! incomplete. A codec reserves no memory: the reader buffers only bytes that have *arrived*. A
//! message whose announced length exceeds the codec's limit is refused at once.

use std::io;

use bytes::Bytes;

use crate::buffered::{DEFAULT_READ_LIMIT, LimitExceeded, ReadBuffer};

/// Decodes messages from bytes.
///
/// # Examples
///
/// Messages of three bytes:
///
/// ```
/// use pikake::net::{Decode, ReadBuffer};
///
/// struct Threes;
///
/// impl Decode for Threes {
///     type Item = [u8; 3];
///
///     fn decode(&mut self, bytes: &mut ReadBuffer) -> std::io::Result<Option<[u8; 3]>> {
///         let Some(&three) = bytes.first_chunk() else { return Ok(None) };
///         bytes.advance(3);
///         Ok(Some(three))
///     }
/// }
/// ```
pub trait Decode {
    /// The type of a message.
    type Item;

    /// Takes a message, at least one byte, from the beginning of the buffered bytes; `None` while
    /// it is not complete.
    ///
    /// The reader then calls again, when more bytes have arrived.
    ///
    /// # Errors
    ///
    /// The bytes are not a valid message. A frame that is too long is [`LimitExceeded`].
    fn decode(&mut self, bytes: &mut ReadBuffer) -> io::Result<Option<Self::Item>>;

    /// Takes the bytes at the end of the stream, which are an incomplete message. There is at least
    /// one.
    ///
    /// # Errors
    ///
    /// By default, the stream ended within a message.
    fn decode_rest(&mut self, bytes: &mut ReadBuffer) -> io::Result<Option<Self::Item>> {
        let text = format!("the stream ended within a message, after {} bytes of it", bytes.len());
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, text))
    }

    /// The largest number of bytes to buffer for one message, for a codec that refuses none itself.
    fn limit(&self) -> usize {
        DEFAULT_READ_LIMIT
    }
}

/// Encodes messages to bytes.
///
/// # Examples
///
/// ```
/// use pikake::net::Encode;
///
/// struct Decimal;
///
/// impl Encode for Decimal {
///     type Item = u32;
///
///     fn encode(&mut self, number: &u32, to: &mut Vec<u8>) -> std::io::Result<()> {
///         to.extend(format!("{number};").bytes());
///         Ok(())
///     }
/// }
/// ```
pub trait Encode {
    /// The type of a message.
    type Item: ?Sized;

    /// Appends a message's bytes.
    ///
    /// # Errors
    ///
    /// The message cannot be sent. The caller discards the bytes appended for it.
    fn encode(&mut self, message: &Self::Item, to: &mut Vec<u8>) -> io::Result<()>;
}

/// Frames with a big-endian length in front. A long frame is not copied: it comes with the memory
/// into which it was read.
///
/// # Examples
///
/// ```
/// use pikake::net::{Decode, Encode, LengthDelimited, ReadBuffer};
///
/// let mut codec = LengthDelimited::new(2).limit(1000);
/// let mut bytes = Vec::new();
/// codec.encode(b"hello", &mut bytes)?;
/// assert_eq!(bytes, b"\0\x05hello");
///
/// let mut arrived = ReadBuffer::from([&bytes[..], b"\xff\xff"].concat());
/// assert_eq!(codec.decode(&mut arrived)?.as_deref(), Some(&b"hello"[..]));
/// assert!(codec.decode(&mut arrived).is_err(), "refused before it arrives");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LengthDelimited {
    width: usize,
    limit: usize,
}

impl LengthDelimited {
    /// Creates a codec with lengths of `width` bytes and frames of up to [`DEFAULT_READ_LIMIT`].
    ///
    /// # Panics
    ///
    /// Unless `width` is from 1 to 8.
    #[track_caller]
    pub fn new(width: usize) -> Self {
        assert!((1..=size_of::<u64>()).contains(&width), "a length has from one to eight bytes");
        Self { width, limit: DEFAULT_READ_LIMIT }
    }

    /// Sets the largest frame, without its length, in both directions.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }
}

impl Decode for LengthDelimited {
    type Item = Bytes;

    fn decode(&mut self, bytes: &mut ReadBuffer) -> io::Result<Option<Bytes>> {
        let Some((header, rest)) = bytes.split_at_checked(self.width) else { return Ok(None) };
        let announced = header.iter().fold(0_u64, |length, byte| length << 8 | u64::from(*byte));
        let length = usize::try_from(announced).ok().filter(|length| *length <= self.limit);
        let Some(length) = length else {
            return Err(LimitExceeded { limit: self.limit }.into());
        };
        if rest.len() < length {
            return Ok(None);
        }
        bytes.advance(self.width);
        Ok(Some(bytes.split_to(length)))
    }

    fn limit(&self) -> usize {
        self.limit.saturating_add(self.width)
    }
}

impl Encode for LengthDelimited {
    type Item = [u8];

    fn encode(&mut self, message: &[u8], to: &mut Vec<u8>) -> io::Result<()> {
        let length = message.len() as u64;
        let bytes = length.to_be_bytes();
        let (zeros, header) = bytes.split_at(bytes.len() - self.width);
        if message.len() > self.limit || zeros.iter().any(|byte| *byte != 0) {
            let text = format!(
                "a message of {length} bytes is longer than a frame may be: {} bytes, with a \
                 length of {}",
                self.limit, self.width
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        to.extend(header);
        to.extend(message);
        Ok(())
    }
}

/// Lines of text, each ended by `\n` or `\r\n`, and written with `\n`. The last line may lack its
/// end.
///
/// # Examples
///
/// ```
/// use pikake::net::{Decode, LineCodec, ReadBuffer};
///
/// let (mut codec, mut arrived) = (LineCodec::new(), ReadBuffer::from(b"one\r\ntwo".to_vec()));
/// assert_eq!(codec.decode(&mut arrived)?.as_deref(), Some("one"));
/// assert_eq!(codec.decode(&mut arrived)?, None);
/// assert_eq!(codec.decode_rest(&mut arrived)?.as_deref(), Some("two"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineCodec {
    limit: usize,
}

impl Default for LineCodec {
    fn default() -> Self {
        Self { limit: DEFAULT_READ_LIMIT }
    }
}

impl LineCodec {
    /// Creates a codec with lines of up to [`DEFAULT_READ_LIMIT`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the longest line, with its end.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }
}

impl Decode for LineCodec {
    type Item = String;

    fn decode(&mut self, bytes: &mut ReadBuffer) -> io::Result<Option<String>> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        if end.map_or(bytes.len(), |end| end + 1) > self.limit {
            return Err(LimitExceeded { limit: self.limit }.into());
        }
        let Some(end) = end else { return Ok(None) };
        let text = text_of(&bytes[..end])?;
        bytes.advance(end + 1);
        Ok(Some(text))
    }

    fn decode_rest(&mut self, bytes: &mut ReadBuffer) -> io::Result<Option<String>> {
        let text = text_of(bytes)?;
        bytes.advance(bytes.len());
        Ok(Some(text))
    }

    fn limit(&self) -> usize {
        self.limit
    }
}

impl Encode for LineCodec {
    type Item = str;

    fn encode(&mut self, line: &str, to: &mut Vec<u8>) -> io::Result<()> {
        if line.contains('\n') {
            let text = "a line must not contain `\\n`: send the lines one by one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        to.extend(line.bytes());
        to.push(b'\n');
        Ok(())
    }
}

/// A line's text, without a `\r` at its end.
pub(crate) fn text_of(line: &[u8]) -> io::Result<String> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line);
    text.map(str::to_owned).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
