//! TLS: on both sides, against openssl's programs, among hostile peers, in simulated worlds, and
//! interrupted everywhere.

mod both;
mod certificates;
mod hostile;
mod interrupted;
mod keys;
mod openssl;
mod worlds;
