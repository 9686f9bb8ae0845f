//! Memory for reads. A thread keeps one spare chunk, so a stream that waits needs none.

use std::cell::Cell;

/// The size of a read into memory that is full. Larger reads were not faster on a loopback.
pub(crate) const CHUNK: usize = 16 * 1024;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Empty memory with room for a chunk.
pub(crate) fn take_memory() -> Vec<u8> {
    let mut memory = SPARE.try_with(Cell::take).unwrap_or_default();
    memory.reserve_exact(CHUNK);
    memory
}

/// Keeps memory for the next read, if it has the size of a chunk.
pub(crate) fn give_memory(mut memory: Vec<u8>) {
    if memory.capacity() == CHUNK {
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
