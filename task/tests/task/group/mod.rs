//! Task groups: who is waited for, who is asked to end, and what comes out.

mod blocks;
mod endings;
mod failures;
mod helpers;
mod interrupted;
mod policies;
mod sizes;
