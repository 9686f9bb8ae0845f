//! Task groups: joins, cancels, failures, results.

mod blocks;
mod endings;
mod failures;
mod helpers;
mod interrupted;
mod policies;
mod sizes;
