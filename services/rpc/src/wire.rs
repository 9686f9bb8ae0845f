//! The bytes of frames and numbers.
//!
//! ```text
//! frame   length of the body (number) · kind and flags (1 byte) · id (number) · body
//! number  LEB128: seven bits a byte, the lowest first; the highest bit says that another byte follows
//! ```

/// The number of flags of a frame.
const FLAG_BITS: u32 = 3;
/// The greatest kind of a frame.
pub(crate) const MOST_KIND: u8 = (1 << (8 - FLAG_BITS)) - 1;
/// The flags that exist.
pub(crate) const ALL_FLAGS: u8 = (1 << FLAG_BITS) - 1;
/// The most bytes of a number.
const NUMBER_BYTES: usize = 10;

/// The bytes before the body of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) id: u64,
    /// The bytes of the body.
    pub(crate) length: usize,
}

impl Header {
    pub(crate) fn put(self, into: &mut Vec<u8>) {
        debug_assert!(self.kind <= MOST_KIND && self.flags <= ALL_FLAGS, "{self:?}");
        put_number(into, self.length as u64);
        into.push(self.kind << FLAG_BITS | self.flags);
        put_number(into, self.id);
    }

    /// Sets the length in the header at `start`, which was put with another one. Bytes that follow
    /// move if the length has more or fewer bytes.
    pub(crate) fn set_length(self, length: usize, bytes: &mut Vec<u8>, start: usize) {
        if self.length == length {
            return;
        }
        let (before, after) = (number_size(self.length as u64), number_size(length as u64));
        if before != after {
            bytes.splice(start..start + before, (0..after).map(|_| 0));
        }
        let mut rest = length;
        for byte in &mut bytes[start..start + after] {
            *byte = rest as u8 | 0x80;
            rest >>= 7;
        }
        bytes[start + after - 1] &= 0x7f;
    }

    /// The header at the start of `bytes`, and its own length. `None`: more bytes are needed.
    pub(crate) fn take(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let mut rest = bytes;
        let Some(length) = take_number(&mut rest)? else { return Ok(None) };
        let Some((&head, after)) = rest.split_first() else { return Ok(None) };
        rest = after;
        let Some(id) = take_number(&mut rest)? else { return Ok(None) };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let header = Self { kind: head >> FLAG_BITS, flags: head & ALL_FLAGS, id, length };
        Ok(Some((header, bytes.len() - rest.len())))
    }
}

/// Bytes that no peer of this protocol sends, in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed(pub(crate) &'static str);

pub(crate) fn put_number(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// The bytes of a number.
fn number_size(number: u64) -> usize {
    (u64::BITS - (number | 1).leading_zeros()).div_ceil(7) as usize
}

/// Takes a number off the start of `bytes`. `None`: the number goes on after the bytes.
pub(crate) fn take_number(bytes: &mut &[u8]) -> Result<Option<u64>, Malformed> {
    if let [number @ ..0x80, rest @ ..] = *bytes {
        *bytes = rest;
        return Ok(Some(u64::from(*number)));
    }
    let mut number = 0;
    for (index, &byte) in bytes.iter().enumerate().take(NUMBER_BYTES) {
        let part = u64::from(byte & 0x7f);
        if index == NUMBER_BYTES - 1 && byte > 1 {
            return Err(Malformed("a number has more than 64 bits"));
        }
        number |= part << (7 * index);
        if byte < 0x80 {
            if byte == 0 && index > 0 {
                return Err(Malformed("a number has more bytes than it needs"));
            }
            *bytes = &bytes[index + 1..];
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Takes a number that must be there.
pub(crate) fn whole_number(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    take_number(bytes)?.ok_or(Malformed("a frame ends within a number"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_come_back(kind in 0..=MOST_KIND, flags in 0..=ALL_FLAGS, id: u64, length: u32) {
            let header = Header { kind, flags, id, length: length as usize };
            let mut bytes = Vec::new();
            header.put(&mut bytes);
            for end in 0..bytes.len() {
                prop_assert_eq!(Header::take(&bytes[..end]), Ok(None));
            }
            let size = bytes.len();
            bytes.push(7);
            prop_assert_eq!(Header::take(&bytes), Ok(Some((header, size))));
        }

        #[test]
        fn lengths_are_set_behind_the_body(length: u32, before: u32, shift in 0..32, id: u64) {
            let header = Header { kind: 1, flags: 2, id, length: length as usize >> shift };
            let guess = Header { length: before as usize >> (31 - shift), ..header };
            let (mut bytes, mut expected) = (vec![7; 3], vec![7; 3]);
            header.put(&mut expected);
            guess.put(&mut bytes);
            bytes.extend(b"body");
            expected.extend(b"body");
            guess.set_length(header.length, &mut bytes, 3);
            prop_assert_eq!(bytes, expected);
        }

        #[test]
        fn any_bytes_are_a_header_or_refused(bytes: Vec<u8>) {
            if let Ok(Some((header, size))) = Header::take(&bytes) {
                let mut again = Vec::new();
                header.put(&mut again);
                prop_assert_eq!(&again, &bytes[..size]);
            }
        }
    }

    #[test]
    fn long_numbers_are_refused() {
        assert!(take_number(&mut &[0xff; 10][..]).is_err());
        assert!(take_number(&mut &[0x80, 0][..]).is_err());
        let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(take_number(&mut &most[..]), Ok(Some(u64::MAX)));
    }
}
