//! Other threads: wakes from them, closures, objects and programs in them, and kernels on several.

#[path = "../support/mod.rs"]
mod support;

mod cores;
mod helpers;
mod proxy;
mod tasks;
mod wakes;
