//! The primitives of `docs/primitive.md`, which includes parts of these files.

mod latch;
mod pool;
