//! Copies bytes between a program's buffers and a stream's.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

/// Appends the first `length` bytes of some buffers.
pub(crate) fn put(into: &mut VecDeque<u8>, from: &[IoSlice<'_>], length: usize) {
    let mut left = length;
    for buffer in from {
        let part = left.min(buffer.len());
        into.extend(&buffer[..part]);
        left -= part;
    }
}

/// Copies the first `length` bytes into some buffers, which have room for them.
pub(crate) fn copy(from: &VecDeque<u8>, to: &mut [IoSliceMut<'_>], length: usize) {
    let (front, back) = from.as_slices();
    let front = &front[..length.min(front.len())];
    let mut parts = [front, &back[..length - front.len()]].into_iter();
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
    let mut taken = vec![0; length];
    copy(from, &mut [IoSliceMut::new(&mut taken)], length);
    from.drain(..length);
    taken
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
        copy(&ring, &mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)], 5);
        assert_eq!((&one, &other), (b"efg", b"hi\0"));
        assert_eq!(take(&mut ring, 7), b"efghijk");
        assert!(ring.is_empty());
    }
}
