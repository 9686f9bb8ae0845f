//! Frames: where one message ends and the next begins.
//!
//! A codec looks at bytes that have arrived and says how far the first frame reaches, or that there
//! is no whole one yet. It never asks for memory: the reader keeps what has *arrived*, so a peer
//! that announces four gigabytes has to send them to have them kept, and is refused at its
//! announcement if that is beyond the codec's limit.

use std::io;

use crate::buffered::{DEFAULT_READ_LIMIT, LimitExceeded};

/// Finds messages in bytes.
///
/// # Examples
///
/// Messages of three bytes:
///
/// ```
/// use pikake_net::{Decode, Decoded};
///
/// struct Threes;
///
/// impl Decode for Threes {
///     type Item = [u8; 3];
///
///     fn decode(&mut self, bytes: &[u8]) -> std::io::Result<Decoded<[u8; 3]>> {
///         Ok(match bytes.first_chunk() {
///             Some(three) => Decoded::Item(*three, 3),
///             None => Decoded::Incomplete,
///         })
///     }
/// }
/// ```
pub trait Decode {
    /// A message.
    type Item;

    /// Looks for a message at the beginning of what has arrived.
    ///
    /// It is called again with more when more has come, from the same beginning.
    ///
    /// # Errors
    ///
    /// What was sent can be no message. A frame that is too long is [`LimitExceeded`].
    fn decode(&mut self, bytes: &[u8]) -> io::Result<Decoded<Self::Item>>;

    /// The stream has ended with these bytes, in which no message was found: there are some.
    ///
    /// # Errors
    ///
    /// Unless told otherwise, that the stream ended within a message.
    fn decode_rest(&mut self, bytes: &[u8]) -> io::Result<Option<Self::Item>> {
        let text =
            format!("the stream ended within a message, of which there are {} bytes", bytes.len());
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, text))
    }

    /// How many bytes may be kept in which there is no message. It is the last resort, should the
    /// codec itself not refuse.
    fn limit(&self) -> usize {
        DEFAULT_READ_LIMIT
    }
}

/// What a codec found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded<T> {
    /// A message, and how many bytes it took: at least one.
    Item(T, usize),
    /// No whole message yet.
    Incomplete,
}

/// Makes bytes of messages.
///
/// # Examples
///
/// ```
/// use pikake_net::Encode;
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
    /// A message.
    type Item: ?Sized;

    /// Puts a message's bytes behind what is there.
    ///
    /// # Errors
    ///
    /// The message cannot be sent. What was put there by then is taken away.
    fn encode(&mut self, message: &Self::Item, to: &mut Vec<u8>) -> io::Result<()>;
}

/// Frames with their length in front, big-endian.
///
/// # Examples
///
/// ```
/// use pikake_net::{Decode, Decoded, Encode, LengthDelimited};
///
/// let mut codec = LengthDelimited::new(2).limit(1000);
/// let mut bytes = Vec::new();
/// codec.encode(b"hello", &mut bytes).unwrap();
/// assert_eq!(bytes, b"\0\x05hello");
/// assert_eq!(codec.decode(&bytes).unwrap(), Decoded::Item(b"hello".to_vec(), 7));
/// assert!(codec.decode(b"\xff\xff").is_err(), "refused before it comes");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LengthDelimited {
    width: usize,
    limit: usize,
}

impl LengthDelimited {
    /// With a length of so many bytes, and the [`DEFAULT_READ_LIMIT`] for a frame.
    ///
    /// # Panics
    ///
    /// Unless `width` is from 1 to 8.
    #[track_caller]
    pub fn new(width: usize) -> Self {
        assert!((1..=size_of::<u64>()).contains(&width), "a length has from one to eight bytes");
        Self { width, limit: DEFAULT_READ_LIMIT }
    }

    /// How long a frame may be, without its length; to be received, and to be sent.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }
}

impl Decode for LengthDelimited {
    type Item = Vec<u8>;

    fn decode(&mut self, bytes: &[u8]) -> io::Result<Decoded<Vec<u8>>> {
        let Some((header, rest)) = bytes.split_at_checked(self.width) else {
            return Ok(Decoded::Incomplete);
        };
        let announced = header.iter().fold(0_u64, |length, byte| length << 8 | u64::from(*byte));
        let length = usize::try_from(announced).ok().filter(|length| *length <= self.limit);
        let Some(length) = length else {
            return Err(LimitExceeded { limit: self.limit }.into());
        };
        Ok(match rest.get(..length) {
            Some(frame) => Decoded::Item(frame.to_vec(), self.width + length),
            None => Decoded::Incomplete,
        })
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

/// Lines of text, each ended by `\n` or `\r\n`; written with `\n`. The last one may lack its end.
///
/// # Examples
///
/// ```
/// use pikake_net::{Decode, Decoded, LineCodec};
///
/// let mut codec = LineCodec::new();
/// assert_eq!(codec.decode(b"one\r\ntwo").unwrap(), Decoded::Item("one".to_owned(), 5));
/// assert_eq!(codec.decode(b"two").unwrap(), Decoded::Incomplete);
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
    /// With the [`DEFAULT_READ_LIMIT`] for a line.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long a line may be, with its end.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }
}

impl Decode for LineCodec {
    type Item = String;

    fn decode(&mut self, bytes: &[u8]) -> io::Result<Decoded<String>> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        if end.map_or(bytes.len(), |end| end + 1) > self.limit {
            return Err(LimitExceeded { limit: self.limit }.into());
        }
        let Some(end) = end else { return Ok(Decoded::Incomplete) };
        Ok(Decoded::Item(text_of(&bytes[..end])?, end + 1))
    }

    fn decode_rest(&mut self, bytes: &[u8]) -> io::Result<Option<String>> {
        text_of(bytes).map(Some)
    }

    fn limit(&self) -> usize {
        self.limit
    }
}

impl Encode for LineCodec {
    type Item = str;

    fn encode(&mut self, line: &str, to: &mut Vec<u8>) -> io::Result<()> {
        if line.contains('\n') {
            let text = "a line with a line's end in it would be two: send them one by one";
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
