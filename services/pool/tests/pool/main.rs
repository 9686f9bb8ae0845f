//! Tests of pools, through the facade.

mod basics;
mod objects;
