//! TLS: on both sides, against openssl's programs, by the traits of other libraries, among hostile
//! peers, beside an accept loop, in simulated worlds, and interrupted everywhere.

mod both;
pub(crate) mod certificates;
mod hostile;
mod interrupted;
mod keys;
mod listener;
mod openssl;
mod polled;
mod worlds;
