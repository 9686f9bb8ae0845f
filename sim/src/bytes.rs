//! Copies bytes between a program's buffers and a stream's.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

use pikake_traps::Spare;

/// The memory of a read.
pub(crate) enum Room<'a, 'm> {
    Bytes(&'a mut [u8]),
    Buffers(&'a mut [IoSliceMut<'m>]),
    Vector(&'a mut Vec<u8>),
    Spare(Spare<'a>),
}

impl Room<'_, '_> {
    /// The number of bytes for which there is room.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Buffers(buffers) => buffers.iter().map(|buffer| buffer.len()).sum(),
            Self::Vector(vector) => vector.capacity() - vector.len(),
            Self::Spare(spare) => spare.room(),
        }
    }

    /// Copies the first `length` bytes of two parts, for which there is room.
    pub(crate) fn copy(self, (front, back): (&[u8], &[u8]), length: usize) {
        let front = &front[..length.min(front.len())];
        let back = &back[..length - front.len()];
        match self {
            Self::Bytes(bytes) => scatter(front, back, &mut [IoSliceMut::new(bytes)]),
            Self::Buffers(buffers) => scatter(front, back, buffers),
            Self::Vector(vector) => vector.extend(front.iter().chain(back)),
            Self::Spare(mut spare) => {
                spare.put(front);
                spare.put(back);
            }
        }
    }
}

/// Appends the first `length` bytes of some buffers.
pub(crate) fn put(into: &mut VecDeque<u8>, from: &[IoSlice<'_>], length: usize) {
    let mut left = length;
    for buffer in from {
        let part = left.min(buffer.len());
        into.extend(&buffer[..part]);
        left -= part;
    }
}

/// Copies two parts into some buffers, which have room for them.
fn scatter(front: &[u8], back: &[u8], to: &mut [IoSliceMut<'_>]) {
    let mut parts = [front, back].into_iter();
    let mut part = parts.next().unwrap_or_default();
    for buffer in to {
        let mut room: &mut [u8] = buffer;
        while !room.is_empty() {
            if part.is_empty() {
                match parts.next() {
                    Some(next) => part = next,
                    None => return,
                }
            }
            let moved = room.len().min(part.len());
            room[..moved].copy_from_slice(&part[..moved]);
            part = &part[moved..];
            room = &mut room[moved..];
        }
    }
}

/// Removes the first `length` bytes.
pub(crate) fn take(from: &mut VecDeque<u8>, length: usize) -> Vec<u8> {
    from.drain(..length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_order_across_ring_wraparound() {
        let mut ring = VecDeque::with_capacity(8);
        put(&mut ring, &[IoSlice::new(b"abc"), IoSlice::new(b"def")], 5);
        assert_eq!(take(&mut ring, 4), b"abcd");
        put(&mut ring, &[IoSlice::new(b"fghijk")], 6);
        let (mut one, mut other) = ([0; 3], [0; 3]);
        let mut buffers = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)];
        Room::Buffers(&mut buffers).copy(ring.as_slices(), 5);
        assert_eq!((&one, &other), (b"efg", b"hi\0"));
        assert_eq!(take(&mut ring, 7), b"efghijk");
        assert!(ring.is_empty());
    }
}
