//! The packets of calls, and their meaning.
//!
//! | kind | from | id | body |
//! | --- | --- | --- | --- |
//! | `REQUEST` | client | a new call, greater than all before | method (4 bytes, the lowest first) · with `DEADLINE` what is left in µs (number) · with `METADATA` the metadata · arguments |
//! | `NOTICE` | client | as `REQUEST` | as `REQUEST`; nothing answers a notice |
//! | `ANSWER` | server | the call | the value; with `ERROR` the service's error; with `FAILURE` a code (1 byte) and a text, and `BEGUN` if the service's own handler had begun |
//! | `CANCEL` | client | the call | |
//! | `ITEM` | both | the call | channel (number) · an item |
//! | `END` | both | the call | channel (number): no more items; with `INCOMPLETE` some are missing |
//! | `CREDIT` | both | the call | channel (number) · so many items more may be sent (number) |
//! | `STOP` | both | the call | channel (number): no more items are wanted |
//! | `LEAVE` | server | the last call that was taken | |
//!
//! Each request has one answer, also after a cancel, and nothing of the call follows the answer.
//! Requests above the id of `LEAVE` have none. Notices have no channels.
//!
//! The ends of channels among the arguments are numbers: 0 for the first that is written, and so
//! on, below 64. A channel has one direction: `ITEM` and `END` go with it, `CREDIT` and `STOP`
//! against it. Packets of a channel that the receiver does not know, or has closed, are ignored. A
//! client sends nothing for a channel after `CANCEL`.
//!
//! The greeting of the client: codec (1 byte) · the items that the server may send in each channel
//! before the first credit (number). Of the server: the calls that may be under way (number) · the
//! items, as the client's. Bytes that follow are of later versions, and ignored.

use crate::codec::Codec;
use crate::packet_error::PacketError;
use crate::wire::{Malformed, put_number, whole_number};

pub(crate) const REQUEST: u8 = 0;
pub(crate) const ANSWER: u8 = 1;
pub(crate) const CANCEL: u8 = 2;
pub(crate) const ITEM: u8 = 3;
pub(crate) const END: u8 = 4;
pub(crate) const CREDIT: u8 = 5;
pub(crate) const STOP: u8 = 6;
pub(crate) const LEAVE: u8 = 7;
pub(crate) const NOTICE: u8 = 8;

/// A request says how long the caller waits.
pub(crate) const DEADLINE: u8 = 1;
/// A request has metadata.
pub(crate) const METADATA: u8 = 2;

/// An answer is the service's error.
pub(crate) const ERROR: u8 = 1;
/// An answer is a failure.
pub(crate) const FAILURE: u8 = 2;
/// The handler of a failure had begun. Interceptors are none of it.
pub(crate) const BEGUN: u8 = 4;

/// Items are missing before the end of a channel.
pub(crate) const INCOMPLETE: u8 = 1;
/// The most channels of a call.
pub(crate) const MOST_CHANNELS: usize = 64;

/// The bytes of a method's number.
pub(crate) const METHOD_BYTES: usize = 4;
/// The most pairs of metadata of a request.
pub(crate) const METADATA_LIMIT: usize = 64;

/// Why the server has no answer of the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    UnknownMethod,
    Arguments,
    Overloaded,
    ShuttingDown,
    Refused,
    Panicked,
    Ended,
    Answer,
}

impl Failure {
    const ALL: [Self; 8] = [
        Self::UnknownMethod,
        Self::Arguments,
        Self::Overloaded,
        Self::ShuttingDown,
        Self::Refused,
        Self::Panicked,
        Self::Ended,
        Self::Answer,
    ];

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    pub(crate) fn number(self) -> u8 {
        self as u8
    }
}

/// The number of a method: the FNV-1a hash of `Service.method`, which stays when methods come, go
/// and move.
pub(crate) const fn method_number(service: &str, method: &str) -> u32 {
    const fn add(mut hash: u32, text: &str) -> u32 {
        let bytes = text.as_bytes();
        let mut index = 0;
        while index < bytes.len() {
            hash = (hash ^ bytes[index] as u32).wrapping_mul(0x0100_0193);
            index += 1;
        }
        hash
    }
    add(add(add(0x811c_9dc5, service), "."), method)
}

/// The greeting of a client, before its first call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientGreeting {
    pub(crate) codec: Codec,
    /// The items that the server may send in a channel before the first credit.
    pub(crate) items: u64,
}

impl ClientGreeting {
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![self.codec.number()];
        put_number(&mut bytes, self.items);
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, PacketError> {
        let Some((&codec, mut rest)) = bytes.split_first() else {
            return Err(PacketError::Malformed("the client's greeting is empty"));
        };
        let codec = Codec::from_number(codec)
            .ok_or(PacketError::Malformed("the client's codec is unknown"))?;
        Ok(Self { codec, items: whole_number(&mut rest)? })
    }
}

/// The greeting of a server, before its first answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerGreeting {
    /// The calls that may be under way.
    pub(crate) calls: u64,
    /// The items that the client may send in a channel before the first credit.
    pub(crate) items: u64,
}

impl ServerGreeting {
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_number(&mut bytes, self.calls);
        put_number(&mut bytes, self.items);
        bytes
    }

    pub(crate) fn read(mut bytes: &[u8]) -> Result<Self, PacketError> {
        let calls = whole_number(&mut bytes)?;
        Ok(Self { calls, items: whole_number(&mut bytes)? })
    }
}

/// Pairs of names and values that travel with a call.
pub(crate) type Metadata = Vec<(String, String)>;

pub(crate) fn put_metadata(
    into: &mut Vec<u8>,
    metadata: &[(String, String)],
) -> Result<(), String> {
    if metadata.len() > METADATA_LIMIT {
        return Err(format!("a call has at most {METADATA_LIMIT} pairs of metadata"));
    }
    put_number(into, metadata.len() as u64);
    for text in metadata.iter().flat_map(|(name, value)| [name, value]) {
        put_number(into, text.len() as u64);
        into.extend_from_slice(text.as_bytes());
    }
    Ok(())
}

pub(crate) fn take_metadata(bytes: &mut &[u8]) -> Result<Metadata, Malformed> {
    let count = whole_number(bytes)?;
    if count > METADATA_LIMIT as u64 {
        return Err(Malformed("a request has too much metadata"));
    }
    let mut text = || {
        let length = usize::try_from(whole_number(bytes)?).unwrap_or(usize::MAX);
        let Some((text, rest)) = bytes.split_at_checked(length) else {
            return Err(Malformed("a request ends within its metadata"));
        };
        *bytes = rest;
        let text = std::str::from_utf8(text);
        Ok(text.map_err(|_| Malformed("metadata is not UTF-8"))?.to_owned())
    };
    (0..count).map(|_| Ok((text()?, text()?))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn greetings_come_back(calls: u64, items: u64, later: Vec<u8>) {
            for codec in [Codec::Postcard, Codec::Json] {
                let bytes = [ClientGreeting { codec, items }.bytes(), later.clone()].concat();
                let read = ClientGreeting::read(&bytes).unwrap();
                prop_assert_eq!((read.codec, read.items), (codec, items));
            }
            let bytes = [ServerGreeting { calls, items }.bytes(), later].concat();
            let read = ServerGreeting::read(&bytes).unwrap();
            prop_assert_eq!((read.calls, read.items), (calls, items));
        }

        #[test]
        fn metadata_comes_back(
            metadata in prop::collection::vec(any::<(String, String)>(), 0..4),
            rest: Vec<u8>,
        ) {
            let mut bytes = Vec::new();
            put_metadata(&mut bytes, &metadata).unwrap();
            for end in 0..bytes.len() {
                prop_assert!(take_metadata(&mut &bytes[..end]).is_err());
            }
            bytes.extend(&rest);
            let mut left = bytes.as_slice();
            prop_assert_eq!(take_metadata(&mut left), Ok(metadata));
            prop_assert_eq!(left, rest);
        }

        #[test]
        fn any_bytes_are_metadata_or_refused(bytes: Vec<u8>) {
            let _ = take_metadata(&mut bytes.as_slice());
            let _ = ClientGreeting::read(&bytes);
            let _ = ServerGreeting::read(&bytes);
        }
    }

    #[test]
    fn metadata_has_a_limit() {
        let most = vec![(String::new(), String::new()); METADATA_LIMIT];
        let mut bytes = Vec::new();
        put_metadata(&mut bytes, &most).unwrap();
        assert_eq!(take_metadata(&mut bytes.as_slice()), Ok(most.clone()));
        let more = [&most[..], &most[..1]].concat();
        assert!(put_metadata(&mut bytes, &more).is_err());
    }

    #[test]
    fn failures_have_numbers() {
        for number in 0..=u8::MAX {
            let failure = Failure::from_number(number);
            assert!(failure.is_none_or(|failure| failure.number() == number));
        }
        assert_eq!(Failure::from_number(Failure::Answer.number()), Some(Failure::Answer));
    }

    /// The numbers are part of the protocol: the FNV-1a hash of 32 bits.
    #[test]
    fn methods_have_lasting_numbers() {
        assert_eq!(method_number("Accounts", "transfer"), 0x6eaf_d48a);
    }
}
