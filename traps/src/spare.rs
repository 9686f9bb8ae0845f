//! Memory to read into that need not be initialized.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;

/// Memory that an attempt reads into, with the number of bytes that were read.
///
/// Whoever has this may write anything into the memory, also uninitialized bytes. What counts as
/// read are the bytes that [`put`](Self::put) has copied, or that [`fill_by`](Self::fill_by) was
/// shown as initialized: so no kernel or driver can make a reader take uninitialized memory for
/// bytes.
///
/// # Examples
///
/// ```
/// use pikake::traps::Spare;
/// use std::mem::MaybeUninit;
///
/// let (mut memory, mut filled) = ([MaybeUninit::uninit(); 8], 0);
/// let mut spare = Spare::new(&mut memory, &mut filled);
/// assert_eq!(spare.put(b"hello"), 5);
/// assert_eq!(spare.put(b"world"), 3);
/// assert_eq!(filled, 8);
/// ```
pub struct Spare<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    /// The first bytes of the memory, of this number, are initialized.
    filled: &'a mut usize,
}

impl<'a> Spare<'a> {
    /// Memory of which nothing is filled. Sets the number of filled bytes to zero.
    pub fn new(memory: &'a mut [MaybeUninit<u8>], filled: &'a mut usize) -> Self {
        *filled = 0;
        Self { memory, filled }
    }

    /// The same memory, for a shorter time.
    pub fn reborrow(&mut self) -> Spare<'_> {
        Spare { memory: self.memory, filled: self.filled }
    }

    /// The number of bytes for which there is room.
    pub fn room(&self) -> usize {
        self.memory.len() - *self.filled
    }

    /// The number of bytes that were read.
    pub fn filled(&self) -> usize {
        *self.filled
    }

    /// Copies as many bytes as there is room for, and returns their number.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let room = &mut self.memory[*self.filled..];
        for (to, byte) in room.iter_mut().zip(bytes) {
            to.write(*byte);
        }
        let length = room.len().min(bytes.len());
        *self.filled += length;
        length
    }

    /// Calls `read` with the room, of which it returns the beginning that it has filled, and
    /// returns the number of these bytes.
    ///
    /// # Errors
    ///
    /// The error of `read`; nothing counts as read.
    ///
    /// # Panics
    ///
    /// If `read` returns other memory.
    #[inline]
    pub fn fill_by<E>(
        &mut self,
        read: impl for<'m> FnOnce(&'m mut [MaybeUninit<u8>]) -> Result<&'m mut [u8], E>,
    ) -> Result<usize, E> {
        let room = &mut self.memory[*self.filled..];
        let (start, most) = (room.as_ptr(), room.len());
        let read = read(room)?;
        // Other memory may live as long, but not at this address.
        let is_the_beginning = ptr::eq(start.cast(), read.as_ptr()) && read.len() <= most;
        assert!(is_the_beginning || read.is_empty(), "a read returned other memory than its own");
        let length = read.len();
        *self.filled += length;
        Ok(length)
    }
}

impl fmt::Debug for Spare<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spare").field("filled", &self.filled).field("room", &self.room()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_count_by_what_they_show() {
        let (mut memory, mut filled) = ([MaybeUninit::uninit(); 4], 9);
        let mut spare = Spare::new(&mut memory, &mut filled);
        assert_eq!((spare.filled(), spare.room()), (0, 4));
        let one =
            spare.reborrow().fill_by(|room| Ok::<_, ()>(std::slice::from_mut(room[0].write(7))));
        assert_eq!((one, spare.filled(), spare.room()), (Ok(1), 1, 3));
        assert_eq!(spare.fill_by(|_| Err("refused")), Err("refused"));
        assert_eq!(spare.fill_by(|_| Ok::<_, ()>(&mut [])), Ok(0));
        assert_eq!((spare.put(b"abcd"), spare.filled(), spare.room()), (3, 4, 0));
    }

    #[test]
    #[should_panic(expected = "other memory")]
    fn other_memory_is_refused() {
        let (mut memory, mut filled) = ([MaybeUninit::uninit(); 4], 0);
        let other: &'static mut [u8] = Box::leak(Box::new([1; 4]));
        let _ = Spare::new(&mut memory, &mut filled).fill_by(|_| Ok::<_, ()>(other));
    }
}
