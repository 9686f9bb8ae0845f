//! Memory for task cells, taken from chunks that hold many cells of one size.
//!
//! A thread has chunks of its own: for each class of sizes a ring. The header of a chunk comes
//! first and the cells follow without a gap. A chunk is aligned to a power of two that no cell
//! crosses, so the address of a cell, rounded down, is the address of the header. Free cells are
//! linked through their first word. One chunk of each ring is *current*: [`take`] unlinks the first
//! free cell of that chunk.
//!
//! The thread that takes a cell is the *home thread* of its chunk. There [`give_back`] links the
//! cell into the chunk again. Neither function needs an atomic operation for that, and one counter
//! tells [`give_back`] when a chunk needs attention.
//!
//! On another thread, [`give_back`] pushes the cell to the *returns* of the home thread. The home
//! thread empties the returns when its current chunk has no free cell, when one of its chunks needs
//! attention, and as it ends. A home thread that does none of these reuses and frees no such cell.
//!
//! # The contract
//!
//! * [`class_of`] tells the class of a type; none for a type that is too large or needs more
//!   alignment than 16 bytes.
//! * [`take`] returns memory of a class, uninitialised and aligned to 16, on any thread, also while
//!   the thread's locals are being dropped.
//! * [`give_back`] takes it back, on any thread, once.
//! * No memory is lost when a thread ends: `chunks.rs` says how.

mod chunks;

pub(crate) use chunks::{class_of, give_back, take};
