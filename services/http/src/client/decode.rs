//! Decoding of response bodies in gzip and deflate, as their bytes come.

use std::io::{self, Write};

use bytes::{Buf, Bytes};
use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};

/// The encodings that responses may have, for `accept-encoding`.
pub(crate) const ACCEPTED: &str = "gzip, deflate";

enum Kind {
    Gzip(MultiGzDecoder<Vec<u8>>),
    /// Zlib, as the standard demands, or raw, as some servers send it: the first byte tells.
    Deflate,
    Zlib(ZlibDecoder<Vec<u8>>),
    Raw(DeflateDecoder<Vec<u8>>),
}

/// A decoder of one body. It never holds more output than a buffer of flate2 (32 KiB), whatever the
/// input expands to.
pub(crate) struct Decoder {
    kind: Kind,
    input: Bytes,
    is_empty: bool,
}

impl Decoder {
    /// The decoder that a response needs, if it needs one. The headers that describe the encoded
    /// body go.
    pub(crate) fn for_response(headers: &mut HeaderMap) -> Option<Self> {
        let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
        let (encoding, None) = (encodings.next()?, encodings.next()) else { return None };
        let kind = match encoding.to_str().ok()?.trim() {
            name if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") => {
                Kind::Gzip(MultiGzDecoder::new(Vec::new()))
            }
            name if name.eq_ignore_ascii_case("deflate") => Kind::Deflate,
            _ => return None,
        };
        headers.remove(CONTENT_ENCODING);
        headers.remove(CONTENT_LENGTH);
        Some(Self { kind, input: Bytes::new(), is_empty: true })
    }

    /// Adds input. All output of the input before has been taken.
    pub(crate) fn push(&mut self, input: Bytes) {
        if let (Kind::Deflate, Some(first)) = (&self.kind, input.first()) {
            let is_zlib = first & 0x0f == 8 && first >> 4 <= 7;
            self.kind = match is_zlib {
                true => Kind::Zlib(ZlibDecoder::new(Vec::new())),
                false => Kind::Raw(DeflateDecoder::new(Vec::new())),
            };
        }
        self.is_empty &= input.is_empty();
        self.input = input;
    }

    /// The next output of the input; `None` if it needs more.
    pub(crate) fn next(&mut self) -> io::Result<Option<Bytes>> {
        while !self.input.is_empty() {
            let (taken, output) = match &mut self.kind {
                Kind::Gzip(decoder) => (decoder.write(&self.input)?, decoder.get_mut()),
                Kind::Zlib(decoder) => (decoder.write(&self.input)?, decoder.get_mut()),
                Kind::Raw(decoder) => (decoder.write(&self.input)?, decoder.get_mut()),
                Kind::Deflate => return Ok(None),
            };
            let output = std::mem::take(output);
            if taken == 0 && output.is_empty() {
                // Behind the end.
                self.input.clear();
            }
            self.input.advance(taken.min(self.input.len()));
            if !output.is_empty() {
                return Ok(Some(output.into()));
            }
        }
        Ok(None)
    }

    /// The last output, after the last input. Fails if the encoded data has no end.
    pub(crate) fn finish(&mut self) -> io::Result<Bytes> {
        if self.is_empty {
            return Ok(Bytes::new());
        }
        let output = match &mut self.kind {
            Kind::Gzip(decoder) => {
                decoder.try_finish()?;
                decoder.get_mut()
            }
            Kind::Zlib(decoder) => {
                decoder.try_finish()?;
                decoder.get_mut()
            }
            Kind::Raw(decoder) => {
                decoder.try_finish()?;
                decoder.get_mut()
            }
            Kind::Deflate => return Ok(Bytes::new()),
        };
        Ok(std::mem::take(output).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    /// What a body in this encoding decodes to, in parts of `part` bytes, and the longest output.
    fn decoded(encoding: &str, body: &[u8], part: usize) -> io::Result<(Vec<u8>, usize)> {
        let mut headers = HeaderMap::from_iter([(CONTENT_ENCODING, encoding.parse().unwrap())]);
        headers.insert(CONTENT_LENGTH, body.len().into());
        let mut decoder = Decoder::for_response(&mut headers).unwrap();
        assert!(headers.is_empty());
        let (mut all, mut longest) = (Vec::new(), 0);
        for part in body.chunks(part) {
            decoder.push(Bytes::copy_from_slice(part));
            while let Some(output) = decoder.next()? {
                longest = longest.max(output.len());
                all.extend_from_slice(&output);
            }
        }
        all.extend_from_slice(&decoder.finish()?);
        Ok((all, longest))
    }

    fn encoded(text: &[u8]) -> [(&'static str, Vec<u8>); 3] {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(text).unwrap();
        zlib.write_all(text).unwrap();
        raw.write_all(text).unwrap();
        [
            ("gzip", gzip.finish().unwrap()),
            ("deflate", zlib.finish().unwrap()),
            ("Deflate", raw.finish().unwrap()),
        ]
    }

    #[test]
    fn encodings_are_decoded_in_parts_of_any_size() {
        let text = b"some text, some text, and some more of some text".repeat(500);
        for (encoding, body) in encoded(&text) {
            for part in [1, 7, 1 << 20] {
                assert_eq!(decoded(encoding, &body, part).unwrap().0, text, "{encoding} {part}");
            }
            assert_eq!(decoded(encoding, &[], 1).unwrap().0, b"");
        }
        let [(_, gzip), ..] = encoded(b"twice");
        assert_eq!(decoded("gzip", &gzip.repeat(2), 3).unwrap().0, b"twicetwice");
    }

    #[test]
    fn bomb_comes_in_small_parts() {
        let zeros = vec![0; 10 << 20];
        for (encoding, body) in encoded(&zeros) {
            let (all, longest) = decoded(encoding, &body, 1 << 20).unwrap();
            assert_eq!(all.len(), zeros.len());
            assert!(longest <= 64 << 10, "{encoding} {longest}");
        }
    }

    #[test]
    fn truncated_and_invalid_data_fail() {
        for (encoding, body) in encoded(&b"some text".repeat(50)) {
            for cut in [1, body.len() / 2, body.len() - 1] {
                assert!(decoded(encoding, &body[..cut], 5).is_err(), "{encoding} {cut}");
            }
        }
        assert!(decoded("gzip", b"this is no gzip at all", 100).is_err());
        let other = &mut HeaderMap::from_iter([(CONTENT_ENCODING, "br".parse().unwrap())]);
        assert!(Decoder::for_response(other).is_none());
        assert_eq!(other.len(), 1);
    }
}
