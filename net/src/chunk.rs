//! Memory for reads. A thread keeps one spare chunk, so a stream that waits needs none.

use std::cell::Cell;

/// The size of a read into memory that is full. Larger reads save few system calls.
pub(crate) const CHUNK: usize = 8 * 1024;

/// A thread keeps memory of at most this size.
const KEPT: usize = 4 * CHUNK;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Empty memory with room for a chunk.
pub(crate) fn take_memory() -> Vec<u8> {
    let mut memory = SPARE.try_with(Cell::take).unwrap_or_default();
    memory.reserve(CHUNK);
    memory
}

/// Keeps memory for the next read, unless it is large.
pub(crate) fn give_memory(mut memory: Vec<u8>) {
    if (CHUNK..=KEPT).contains(&memory.capacity()) {
        memory.clear();
        // A thread that ends keeps none.
        let _ = SPARE.try_with(|spare| spare.set(memory));
    }
}

/// Makes room for a read into a vector that has none.
#[inline]
pub(crate) fn make_room(buffer: &mut Vec<u8>) {
    if buffer.len() == buffer.capacity() {
        buffer.reserve(CHUNK);
    }
}
