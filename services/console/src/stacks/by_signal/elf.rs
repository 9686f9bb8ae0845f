//! Programs and libraries as ELF describes them: as much as names and build ids need.
//!
//! They are read a piece at a time, from a file or from the memory of this process, and nothing is
//! kept. All numbers have the size and order of x86-64 and of 64-bit ARM (elf(5)).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The bytes that are read at a time.
const PIECE: usize = 1 << 16;

/// The most bytes of a name.
const NAME: usize = 4_096;

/// The most headers of segments and of sections, which may come from a file that is no program.
const HEADERS: usize = 4_096;

/// The size of a symbol in a table.
const SYMBOL: usize = 24;

const SEGMENT_LOADED: u32 = 1;
const SEGMENT_NOTES: u32 = 4;
const SECTION_SYMBOLS: u32 = 2;
const SECTION_DYNAMIC_SYMBOLS: u32 = 11;
const NOTE_BUILD_ID: u32 = 3;
const KIND_FUNCTION: u8 = 2;

/// A program or library, which begins at an offset of a file.
pub(super) struct Image<'a> {
    pub(super) file: &'a File,
    pub(super) at: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map(u32::from_le_bytes).unwrap_or_default()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default()
}

impl Image<'_> {
    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, self.at.wrapping_add(offset))?;
        Ok(bytes)
    }

    /// A table of headers, whose offset, size and count are at these places of the first header.
    fn headers(&self, places: [usize; 3], least: usize) -> io::Result<Vec<Vec<u8>>> {
        let first = self.read(0, 64)?;
        if !first.starts_with(b"\x7fELF\x02\x01") {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let [at, size, count] = places;
        let (at, size, count) = (u64_at(&first, at), u16_at(&first, size), u16_at(&first, count));
        if size < least || count > HEADERS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let all = self.read(at, size * count)?;
        Ok(all.chunks_exact(size).map(<[u8]>::to_vec).collect())
    }

    /// The headers of the segments.
    fn segments(&self) -> io::Result<Vec<Vec<u8>>> {
        self.headers([32, 54, 56], 56)
    }

    /// The difference between the addresses of the image, which begins at `begin` in memory, and
    /// those in its file; and its build id, in hexadecimal digits.
    pub(super) fn in_memory(&self, begin: u64) -> io::Result<(u64, Option<String>)> {
        let segments = self.segments()?;
        let first = segments.iter().find(|it| u32_at(it, 0) == SEGMENT_LOADED);
        let first = first.ok_or(io::ErrorKind::InvalidData)?;
        let bias = begin.wrapping_add(u64_at(first, 8)).wrapping_sub(u64_at(first, 16));
        let notes = segments.iter().filter(|it| u32_at(it, 0) == SEGMENT_NOTES);
        let build_id = notes.filter_map(|notes| {
            let at = u64_at(notes, 16).wrapping_add(bias).wrapping_sub(begin);
            let bytes = self.read(at, (u64_at(notes, 40) as usize).min(PIECE)).ok()?;
            build_id(&bytes)
        });
        Ok((bias, build_id.into_iter().next()))
    }

    /// The names of the functions that these addresses of the file are in, as the table of symbols
    /// has them.
    pub(super) fn functions(&self, addresses: &[u64]) -> io::Result<BTreeMap<u64, String>> {
        let sections = self.headers([40, 58, 60], 64)?;
        let of_kind = |kind| sections.iter().find(|it| u32_at(it, 4) == kind);
        let symbols = of_kind(SECTION_SYMBOLS).or_else(|| of_kind(SECTION_DYNAMIC_SYMBOLS));
        let Some(symbols) = symbols else { return Ok(BTreeMap::new()) };
        let texts = sections.get(u32_at(symbols, 40) as usize).ok_or(io::ErrorKind::InvalidData)?;
        let (mut at, end) = (u64_at(symbols, 24), u64_at(symbols, 24) + u64_at(symbols, 32));
        let mut found: BTreeMap<u64, u64> = BTreeMap::new();
        while at < end {
            let length = ((end - at) as usize).min(PIECE / SYMBOL * SYMBOL);
            for symbol in self.read(at, length)?.chunks_exact(SYMBOL) {
                if symbol[4] & 0xf != KIND_FUNCTION {
                    continue;
                }
                let begin = u64_at(symbol, 8);
                let range = begin..begin.saturating_add(u64_at(symbol, 16));
                for address in addresses.iter().filter(|address| range.contains(address)) {
                    found.entry(*address).or_insert(u64::from(u32_at(symbol, 0)));
                }
            }
            at += length as u64;
        }
        let name = |(address, name): (u64, u64)| {
            let left = u64_at(texts, 32).checked_sub(name)? as usize;
            let bytes = self.read(u64_at(texts, 24) + name, left.min(NAME)).ok()?;
            let name = bytes.split(|byte| *byte == 0).next()?;
            let name = String::from_utf8_lossy(name);
            Some((address, format!("{:#}", rustc_demangle::demangle(&name))))
        };
        Ok(found.into_iter().filter_map(name).collect())
    }
}

/// The build id among notes.
fn build_id(mut notes: &[u8]) -> Option<String> {
    while notes.len() >= 12 {
        let (name, length) = (u32_at(notes, 0) as usize, u32_at(notes, 4) as usize);
        let at = 12 + name.checked_next_multiple_of(4)?;
        let bytes = notes.get(at..at.checked_add(length)?)?;
        if u32_at(notes, 8) == NOTE_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            return Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = notes.get(at + length.checked_next_multiple_of(4)?..)?;
    }
    None
}
