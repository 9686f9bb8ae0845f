//! Tests of pools, through the facade.

mod ahead;
mod basics;
mod closing;
mod failures;
mod hazards;
mod interrupted;
mod kernels;
mod keyed;
mod model;
mod objects;
mod options;
mod shares;
mod shown;
mod stress;
