//! The build id of this program: a note that linkers write into executables in the format ELF, and
//! that finds the debugging symbols of a build.

use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The number of the program header that has notes (`PT_NOTE`).
const NOTES: u32 = 4;
/// The type of the note that is the build id (`NT_GNU_BUILD_ID`).
const BUILD_ID: u32 = 3;
/// The owner of that note.
const OWNER: &[u8] = b"GNU\0";
/// More bytes than the notes of an executable have.
const MOST: usize = 1 << 16;

/// The build id in hexadecimal digits; `None` if the program has none, or is not in the format of
/// ELF with 64 bits.
pub(crate) fn build_id() -> Option<String> {
    read(&File::open("/proc/self/exe").ok()?)
}

fn read(file: &File) -> Option<String> {
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    if !head.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let table = number::<8>(&head, 32)?;
    let (size, count) = (number::<2>(&head, 54)?, number::<2>(&head, 56)?);
    for index in 0..count {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, table.checked_add(index * size)?).ok()?;
        if number::<4>(&entry, 0)? != u64::from(NOTES) {
            continue;
        }
        let length = usize::try_from(number::<8>(&entry, 32)?).ok()?.min(MOST);
        let mut notes = vec![0; length];
        file.read_exact_at(&mut notes, number::<8>(&entry, 8)?).ok()?;
        if let Some(id) = find(&notes) {
            return Some(id.iter().fold(String::new(), |mut text, byte| {
                // Writing to a string does not fail.
                let _ = write!(text, "{byte:02x}");
                text
            }));
        }
    }
    None
}

/// The build id among some notes.
fn find(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let owner = usize::try_from(number::<4>(notes, 0)?).ok()?;
        let length = usize::try_from(number::<4>(notes, 4)?).ok()?;
        let kind = number::<4>(notes, 8)?;
        let content = 12 + owner.next_multiple_of(4);
        if kind == u64::from(BUILD_ID) && notes.get(12..12 + owner)? == OWNER {
            return notes.get(content..content + length);
        }
        notes = notes.get(content + length.next_multiple_of(4)..)?;
    }
}

/// A number of `N` bytes in the order of this machine.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes: [u8; N] = bytes.get(at..at + N)?.try_into().ok()?;
    let mut all = [0; 8];
    match cfg!(target_endian = "big") {
        true => all[8 - N..].copy_from_slice(&bytes),
        false => all[..N].copy_from_slice(&bytes),
    }
    Some(u64::from_ne_bytes(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_id_is_found_behind_other_notes() {
        let mut notes = Vec::new();
        for (kind, owner, content) in
            [(1_u32, &b"Linux\0"[..], &b"12345"[..]), (3, OWNER, b"\x0a\xff")]
        {
            notes.extend((owner.len() as u32).to_ne_bytes());
            notes.extend((content.len() as u32).to_ne_bytes());
            notes.extend(kind.to_ne_bytes());
            for part in [owner, content] {
                notes.extend(part);
                notes.resize(notes.len().next_multiple_of(4), 0);
            }
        }
        assert_eq!(find(&notes), Some(&b"\x0a\xff"[..]));
        assert_eq!((0..notes.len() - 4).find_map(|cut| find(&notes[..cut])), None);
    }
}
