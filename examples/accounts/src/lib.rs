//! Accounts on three servers, of which any one may be lost.
//!
//! | file | holds |
//! | --- | --- |
//! | [`service`] | what clients and servers ask of servers: two traits with `#[pikake::service]` |
//! | [`bank`] | the accounts: what each entry of the log does |
//! | [`node`] | a server: elections, the log, and its copies |
//! | [`teller`] | a client: finds the leader, and repeats requests |
//!
//! # What is guaranteed
//!
//! * A transfer that was acknowledged survives the loss of any one server with its disk.
//! * A transfer happens once, however often its request is repeated.
//! * All servers make the same transfers in the same order. A balance shows each transfer that was
//!   acknowledged before the balance was asked for.
//! * While two servers run and reach each other, requests are answered, after a short election.
//!
//! # What is not
//!
//! * A caller that gives up does not know whether its transfer happens. The same request again
//!   tells.
//! * [`Disk`](node::Disk) keeps the log in memory, where a real server writes a file before it
//!   answers. A server whose disk is lost must not come back under its name with an empty one: it
//!   has forgotten its votes, and the entries that were counted as copied.
//! * The log only grows, requests are remembered for ever, and the three servers are always the
//!   same.
//!
//! The protocol is Raft, without snapshots and changes of the members. (Ongaro and Ousterhout, "In
//! Search of an Understandable Consensus Algorithm", USENIX ATC 2014.)

pub mod bank;
pub mod node;
pub mod service;
pub mod teller;
