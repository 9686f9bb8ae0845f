//! The calls between clients and servers, and between servers.

use std::fmt;

use pikake::rpc::Sender;
use serde::{Deserialize, Serialize};

/// The number of a server: its place in the list of all servers.
pub type Id = usize;

/// The number of an election. Each epoch has at most one leader.
pub type Epoch = u64;

/// Names a request, so that the same one again is known: the client, and the client's number for
/// it.
pub type RequestId = (String, u64);

/// The most bytes of the name of an account or a client, so that a call between servers has room
/// for many entries.
pub const NAME_LIMIT: usize = 100;

/// Money that goes from one account to another.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Transfer {
    /// The account that pays.
    pub from: String,
    /// The account that gets the money.
    pub to: String,
    /// The amount.
    pub amount: u64,
}

/// A transfer that was made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Change {
    /// The place of the change among all changes.
    pub number: u64,
    /// The request that asked for the transfer.
    pub request: RequestId,
    /// The transfer.
    pub transfer: Transfer,
}

/// Why a server has not done what was asked.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum AccountsError {
    /// The server does not lead. It names the leader, if it knows one. The request has no effect.
    NotLeader(Option<Id>),
    /// The server was the leader, and is not any more. The request may have an effect.
    Unknown,
    /// The account that pays has less.
    NotEnough,
    /// There is no account of this name.
    NoAccount(String),
    /// The request was made before, for another transfer.
    Reused,
    /// A name has more than [`NAME_LIMIT`] bytes.
    LongName,
}

impl fmt::Display for AccountsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeader(_) => f.write_str("another server is the leader"),
            Self::Unknown => f.write_str("the leader has changed: ask again"),
            Self::NotEnough => f.write_str("not enough money"),
            Self::NoAccount(name) => write!(f, "there is no account {name}"),
            Self::Reused => f.write_str("the request was made before, for another transfer"),
            Self::LongName => write!(f, "a name has more than {NAME_LIMIT} bytes"),
        }
    }
}

impl std::error::Error for AccountsError {}

/// The requests of clients.
#[pikake::service]
pub trait Accounts {
    /// Makes a transfer, once for each request. Returns its number among all changes.
    #[idempotent]
    async fn transfer(&self, request: RequestId, transfer: Transfer) -> Result<u64, AccountsError>;

    /// The balance of an account.
    #[idempotent]
    async fn balance(&self, account: String) -> Result<u64, AccountsError>;

    /// Sends the changes from a number on, in order, as they happen. Any server does this, not the
    /// leader alone.
    async fn changes(&self, from: u64, changes: Sender<Change>);
}

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Entry {
    /// The epoch of the leader that added the entry.
    pub epoch: Epoch,
    /// The transfer that the entry makes. With `None` it makes none: the leader wants to know
    /// whether it still leads.
    pub request: Option<(RequestId, Transfer)>,
}

/// Entries of the leader's log, for another server.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Append {
    /// The leader's epoch.
    pub epoch: Epoch,
    /// The leader.
    pub leader: Id,
    /// The number of entries before these.
    pub length: usize,
    /// The epoch of the last entry before these.
    pub before: Epoch,
    /// The entries.
    pub entries: Vec<Entry>,
    /// The number of entries that most servers have.
    pub committed: usize,
}

/// The requests of servers to each other.
#[pikake::service]
pub trait Replica {
    /// Asks whether the server would vote for a candidate in an epoch, as [`vote`](Self::vote)
    /// does, and binds nobody. A server that has a leader would not.
    #[idempotent]
    async fn would_vote(&self, epoch: Epoch, log: (Epoch, usize)) -> (Epoch, bool);

    /// Asks for the vote in an epoch, with the epoch of the candidate's last entry and the length
    /// of its log. Returns the epoch of the server that was asked, and whether it gives its vote.
    #[idempotent]
    async fn vote(&self, epoch: Epoch, candidate: Id, log: (Epoch, usize)) -> (Epoch, bool);

    /// Adds entries to the log. Returns the epoch of this server, and how many entries are the
    /// leader's for sure; `None` if the logs differ before these entries.
    #[idempotent]
    async fn append(&self, append: Append) -> (Epoch, Option<usize>);
}
