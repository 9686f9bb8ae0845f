//! How arguments, answers and items become bytes.

use std::io;
use std::vec;

use postcard::ser_flavors::Flavor;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};
use serde_json::value::RawValue;

use crate::stream::Channels;

/// How arguments, answers and items become bytes. The client chooses, and the server follows.
///
/// Values are at most as large as a [frame](crate::packets::PacketOptions::frame_limit).
///
/// JSON has a limit of 128 for their depth. Postcard has none: a peer can exhaust the stack with a
/// value of a recursive type, and the process ends. A `Vec` of values without bytes, such as
/// `Vec<()>`, can take time without end. Keep both out of services that unknown clients may call.
///
/// Postcard writes no names of fields and types. A type with serde's `untagged`, `tag` or `flatten`
/// makes the call fail, and so does a `serde_json::Value`. With `skip_serializing_if`, later values
/// are read as others.
///
/// JSON cannot write maps whose keys are neither texts nor numbers. It writes `NaN` and infinities
/// as `null`.
///
/// # Examples
///
/// ```
/// use pikake::rpc::{Client, Codec};
///
/// let client = Client::builder().codec(Codec::Json).tcp("127.0.0.1:7000").build();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Codec {
    /// [postcard](https://docs.rs/postcard): small and fast, without names of fields.
    #[default]
    Postcard,
    /// JSON, for people who look at the bytes.
    Json,
}

impl Codec {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Postcard => 0,
            Self::Json => 1,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Self::Postcard, Self::Json].into_iter().find(|codec| codec.number() == number)
    }

    /// Appends a value. An error leaves part of the value.
    pub(crate) fn write<T: Serialize + ?Sized>(
        self,
        value: &T,
        into: &mut Vec<u8>,
    ) -> Result<(), String> {
        match self {
            Self::Postcard => {
                let written = postcard::serialize_with_flavor(value, Append(into));
                written.map_err(|error| match error {
                    // Postcard loses the text of a `Serialize`.
                    postcard::Error::SerdeSerCustom => {
                        let again = Channels::repeat(|| serde_json::to_writer(io::sink(), value));
                        again.map_or_else(|known| known.to_string(), |()| error.to_string())
                    }
                    _ => error.to_string(),
                })
            }
            Self::Json => serde_json::to_writer(into, value).map_err(|error| error.to_string()),
        }
    }

    /// Reads a value that all bytes are.
    pub(crate) fn read<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, String> {
        match self {
            Self::Postcard => match postcard::take_from_bytes(bytes) {
                Ok((value, [])) => Ok(value),
                Ok((_, rest)) => Err(format!("{} bytes follow the value", rest.len())),
                Err(error) => Err(error.to_string()),
            },
            Self::Json => serde_json::from_slice(bytes).map_err(|error| error.to_string()),
        }
    }
}

/// Serializes to the end of a `Vec`.
struct Append<'a>(&'a mut Vec<u8>);

impl Flavor for Append<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Writes the arguments of a call, one after the other. For the code that `#[pikake::service]`
/// writes.
#[derive(Debug)]
pub struct ArgumentWriter<'a> {
    codec: Codec,
    bytes: &'a mut Vec<u8>,
    count: usize,
}

impl<'a> ArgumentWriter<'a> {
    pub(crate) fn new(codec: Codec, bytes: &'a mut Vec<u8>) -> Self {
        Self { codec, bytes, count: 0 }
    }

    /// Writes the next argument.
    ///
    /// # Errors
    ///
    /// The error of the argument's `Serialize`.
    pub fn put<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), String> {
        if self.codec == Codec::Json {
            self.bytes.push(if self.count == 0 { b'[' } else { b',' });
        }
        self.count += 1;
        let written = self.codec.write(value, self.bytes);
        written.map_err(|text| Channels::refusal().map_or(text, str::to_owned))
    }

    pub(crate) fn finish(self) {
        if self.codec == Codec::Json {
            self.bytes.extend_from_slice(if self.count == 0 { b"[]" } else { b"]" });
        }
    }
}

/// Reads the arguments of a call, one after the other. For the code that `#[pikake::service]`
/// writes.
///
/// A client that is newer may send arguments that this side does not know: they are ignored. One
/// that is older may send fewer: an argument that is an `Option` is then `None`.
#[derive(Debug)]
pub struct ArgumentReader<'a>(Rest<'a>);

#[derive(Debug)]
enum Rest<'a> {
    Postcard(&'a [u8]),
    /// Not `Value`, which sorts fields and takes numbers of 128 bits for floats.
    Json(vec::IntoIter<&'a RawValue>),
}

impl<'a> ArgumentReader<'a> {
    pub(crate) fn new(codec: Codec, bytes: &'a [u8]) -> Result<Self, String> {
        Ok(Self(match codec {
            Codec::Postcard => Rest::Postcard(bytes),
            Codec::Json => {
                let values: Vec<_> =
                    serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
                Rest::Json(values.into_iter())
            }
        }))
    }

    /// Reads the next argument.
    ///
    /// # Errors
    ///
    /// The error of the argument's `Deserialize`; a missing argument.
    // Not `DeserializeOwned`: so the compiler says what to derive.
    pub fn take<T: for<'de> Deserialize<'de>>(&mut self, name: &str) -> Result<T, String> {
        let taken = match &mut self.0 {
            Rest::Postcard([]) => return Self::missing(name),
            Rest::Postcard(bytes) => match postcard::take_from_bytes(bytes) {
                Ok((value, rest)) => {
                    *bytes = rest;
                    Ok(value)
                }
                Err(error) => Err(error.to_string()),
            },
            Rest::Json(values) => match values.next() {
                Some(value) => Codec::Json.read(value.get().as_bytes()),
                None => return Self::missing(name),
            },
        };
        taken.map_err(|text| {
            let text = Channels::refusal().map_or(text, str::to_owned);
            format!("the argument `{name}`: {text}")
        })
    }

    fn missing<T: DeserializeOwned>(name: &str) -> Result<T, String> {
        T::deserialize(Missing)
            // A value without bytes, such as `()`, is never missing.
            .or_else(|_| postcard::from_bytes(&[]))
            .map_err(|_| format!("the argument `{name}` is missing"))
    }
}

/// The deserializer of a missing argument: `None`, or an error.
struct Missing;

impl<'de> Deserializer<'de> for Missing {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("missing"))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_none()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    const ALL: [Codec; 2] = [Codec::Postcard, Codec::Json];

    #[derive(Serialize, Deserialize, PartialEq, Clone, Debug)]
    enum Sample {
        None,
        Number(i64),
        Many { texts: Vec<String>, bytes: Option<Vec<u8>>, pair: (u8, bool) },
    }

    fn sample() -> impl Strategy<Value = Sample> {
        prop_oneof![
            Just(Sample::None),
            any::<i64>().prop_map(Sample::Number),
            any::<(Vec<String>, Option<Vec<u8>>, (u8, bool))>()
                .prop_map(|(texts, bytes, pair)| Sample::Many { texts, bytes, pair }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn values_come_back(value in sample(), before: Vec<u8>) {
            for codec in ALL {
                let mut bytes = before.clone();
                codec.write(&value, &mut bytes).unwrap();
                prop_assert_eq!(&bytes[..before.len()], &before);
                let bytes = &bytes[before.len()..];
                prop_assert_eq!(codec.read::<Sample>(bytes), Ok(value.clone()));
                for end in 0..bytes.len() {
                    prop_assert!(codec.read::<Sample>(&bytes[..end]).is_err());
                }
                let longer = [bytes, b"1"].concat();
                prop_assert!(codec.read::<Sample>(&longer).is_err());
            }
        }

        #[test]
        fn arguments_come_back(first in sample(), second: u64, third: Option<String>) {
            for codec in ALL {
                let mut bytes = Vec::new();
                let mut writer = ArgumentWriter::new(codec, &mut bytes);
                writer.put(&first).unwrap();
                writer.put(&second).unwrap();
                writer.put(&third).unwrap();
                writer.finish();
                let mut reader = ArgumentReader::new(codec, &bytes).unwrap();
                prop_assert_eq!(reader.take::<Sample>("first"), Ok(first.clone()));
                prop_assert_eq!(reader.take::<u64>("second"), Ok(second));
                prop_assert_eq!(reader.take::<Option<String>>("third"), Ok(third.clone()));
                prop_assert_eq!(reader.take::<Option<u8>>("later"), Ok(None));
                prop_assert_eq!(reader.take::<()>("empty"), Ok(()));
                let missing = reader.take::<u8>("amount").unwrap_err();
                prop_assert_eq!(missing, "the argument `amount` is missing");
            }
        }

        #[test]
        fn any_bytes_are_values_or_refused(bytes: Vec<u8>) {
            for codec in ALL {
                let _ = codec.read::<Sample>(&bytes);
                if let Ok(mut reader) = ArgumentReader::new(codec, &bytes) {
                    let _ = reader.take::<Sample>("first");
                    let _ = reader.take::<Vec<Sample>>("second");
                }
            }
        }
    }

    #[test]
    fn errors_keep_the_text_of_the_type() {
        struct Odd;

        impl Serialize for Odd {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("an odd number"))
            }
        }

        for codec in ALL {
            let error = codec.write(&Odd, &mut Vec::new()).unwrap_err();
            assert!(error.contains("an odd number"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back(float: f64, large: i128, huge: u128) {
            prop_assume!(float.is_finite());
            for codec in ALL {
                let mut bytes = Vec::new();
                let mut writer = ArgumentWriter::new(codec, &mut bytes);
                writer.put(&float).unwrap();
                writer.put(&large).unwrap();
                writer.put(&huge).unwrap();
                writer.finish();
                let mut reader = ArgumentReader::new(codec, &bytes).unwrap();
                let read = reader.take::<f64>("float").unwrap();
                prop_assert_eq!(read.to_bits(), float.to_bits());
                prop_assert_eq!(reader.take::<i128>("large"), Ok(large));
                prop_assert_eq!(reader.take::<u128>("huge"), Ok(huge));
            }
        }
    }

    #[test]
    fn deep_json_is_refused() {
        let error = Codec::Json.read::<serde_json::Value>("[".repeat(100_000).as_bytes());
        assert!(error.unwrap_err().contains("recursion limit"));
    }
}
