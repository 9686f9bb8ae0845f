//! A server: at any time follower, candidate or leader.
//!
//! ```text
//!              (1)                   (2)
//!   follower ───────▶ candidate ───────────▶ leader
//!      ▲                  │                    │
//!      └──────────────────┴────────────────────┘ (3)
//! ```
//!
//! (1) `Node::stand`: the server has heard of no leader for a while, which is drawn anew each time. The epoch is one
//! more. (2) `Node::lead`: most servers have voted for this one. (3) `Node::meet`: another server has a later epoch.
//!
//! The leader adds each transfer to its log and sends it to the others (`Node::copy_to`). An entry that most servers
//! have is *committed*: each server applies it to its [`Bank`], in the order of the log, and the leader answers the caller.
//!
//! # Why nothing is lost
//!
//! A server has one vote in an epoch, so each epoch has at most one leader. A server votes only for a candidate whose
//! log is not behind its own. Most servers have a committed entry, and most have voted for the leader: one server did both,
//! so each later leader has the entry. A leader counts copies only of entries of its own epoch, which commit those before
//! too: a log with an entry of an older epoch might still be replaced by another one.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{Patience, TcpListener};
use pikake::rpc::{Client, Sender, Server};
use pikake::sync::Notify;
use pikake::time::{Deadline, deadline_after};
use pikake::{
    Interrupted, TaskError, check_interrupt, ignore_after, now, random, sleep, sleep_until, spawn,
    timeout_after,
};

use crate::bank::Bank;
use crate::service::{
    Accounts, AccountsError, AccountsServer, Append, Change, Entry, Epoch, Id, Replica,
    ReplicaClient, ReplicaServer, RequestId, Transfer,
};

/// How often the leader says that it is there.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// For how long a server hears of no leader before it stands, in milliseconds.
const ELECTION_MILLIS: std::ops::Range<u64> = 250..500;

/// How long a call to another server may take.
const CALL_LIMIT: Duration = Duration::from_millis(200);

/// The most entries of a call.
const BATCH: usize = 100;

/// What of a server outlives a restart. A real one writes each change to a file before anybody hears of the change.
#[derive(Default, Debug)]
pub struct Disk {
    epoch: Cell<Epoch>,
    /// The candidate that has the vote in the epoch.
    vote: Cell<Option<Id>>,
    log: RefCell<Vec<Entry>>,
}

/// A server.
pub struct Node {
    id: Id,
    disk: Rc<Disk>,
    /// The others, by their ids. Nobody calls the server's own place.
    replicas: Vec<ReplicaClient>,
    is_leader: Cell<bool>,
    /// The leader of the epoch, if known.
    leader: Cell<Option<Id>>,
    /// When this server stands, unless it hears of a leader before.
    stands_at: Cell<Deadline>,
    committed: Cell<usize>,
    /// The entries of each server that are those of the leader for sure. Only the leader uses them.
    copied: RefCell<Vec<usize>>,
    bank: RefCell<Bank>,
    /// Something of the above has changed.
    changed: Notify,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (epoch, committed) = (self.disk.epoch.get(), self.committed.get());
        let mut shown = f.debug_struct("Node");
        shown.field("id", &self.id).field("epoch", &epoch).field("committed", &committed);
        shown.finish_non_exhaustive()
    }
}

/// A majority: two of three.
const fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

impl Node {
    /// A server among `clients`, each to one of the servers. `bank` is the state before the first entry.
    pub fn new(id: Id, disk: Rc<Disk>, clients: Vec<Client>, bank: Bank) -> Rc<Self> {
        let replicas: Vec<_> = clients.into_iter().map(ReplicaClient::new).collect();
        Rc::new(Self {
            id,
            disk,
            copied: RefCell::new(vec![0; replicas.len()]),
            replicas,
            is_leader: Cell::new(false),
            leader: Cell::new(None),
            stands_at: Cell::new(Deadline::NEVER),
            committed: Cell::new(0),
            bank: RefCell::new(bank),
            changed: Notify::new(),
        })
    }

    /// Whether this server leads.
    pub fn is_leader(&self) -> bool {
        self.is_leader.get()
    }

    /// Calls `look` with the accounts, as far as this server knows.
    pub fn with_bank<R>(&self, look: impl FnOnce(&Bank) -> R) -> R {
        look(&self.bank.borrow())
    }

    /// Serves clients and other servers, and takes part in elections, until an interruption.
    ///
    /// # Errors
    ///
    /// The interruption.
    pub async fn run(self: Rc<Self>, listener: TcpListener) -> Result<(), Interrupted> {
        let server = Server::new()
            .add(AccountsServer::new(self.clone()))
            .add(ReplicaServer::new(self.clone()))
            .patience(Patience { soft: Duration::ZERO, hard: Duration::from_secs(1) });
        let _serving = spawn(server.serve(listener)).cancel_on_drop();
        self.take_part().await
    }

    async fn take_part(self: &Rc<Self>) -> Result<(), Interrupted> {
        loop {
            self.put_off();
            while !self.stands_at.get().is_due(now()) {
                // A leader that calls meanwhile has moved the moment.
                sleep_until(self.stands_at.get()).await?;
            }
            if self.stand().await? {
                self.lead().await?;
            }
        }
    }

    /// Gives a leader time to call, or other candidates to be elected.
    fn put_off(&self) {
        self.stands_at.set(deadline_after(Duration::from_millis(random::range(ELECTION_MILLIS))));
    }

    /// Follows a server of a later epoch.
    fn meet(&self, epoch: Epoch) {
        if epoch > self.disk.epoch.get() {
            self.begin_epoch(epoch, None);
        }
    }

    fn begin_epoch(&self, epoch: Epoch, vote: Option<Id>) {
        self.disk.epoch.set(epoch);
        self.disk.vote.set(vote);
        self.is_leader.set(false);
        self.leader.set(None);
        self.changed.notify_all();
    }

    fn leads(&self, epoch: Epoch) -> bool {
        self.is_leader.get() && self.disk.epoch.get() == epoch
    }

    /// The epoch of the last entry, and the length of the log: greater for a log that is ahead.
    fn end_of_log(&self) -> (Epoch, usize) {
        let log = self.disk.log.borrow();
        (log.last().map_or(0, |entry| entry.epoch), log.len())
    }

    fn others(&self) -> impl Iterator<Item = Id> + '_ {
        (0..self.replicas.len()).filter(|other| *other != self.id)
    }

    /// Asks for votes. Returns whether most servers gave theirs.
    async fn stand(self: &Rc<Self>) -> Result<bool, Interrupted> {
        let (epoch, id, log) = (self.disk.epoch.get() + 1, self.id, self.end_of_log());
        self.begin_epoch(epoch, Some(id));
        let ask = |other: Id| {
            let replica = self.replicas[other].clone();
            let vote = async move { timeout_after(CALL_LIMIT, replica.vote(epoch, id, log)).await };
            spawn(vote).cancel_on_drop()
        };
        let mut votes = 1;
        for ballot in self.others().map(ask).collect::<Vec<_>>() {
            match ballot.await {
                Ok(Ok(Ok((theirs, is_given)))) => {
                    self.meet(theirs);
                    votes += usize::from(is_given);
                }
                Err(TaskError::Interrupted(interrupted)) => return Err(interrupted),
                _ => {}
            }
        }
        Ok(self.disk.epoch.get() == epoch && votes >= majority(self.replicas.len()))
    }

    /// Leads, until another server has a later epoch.
    async fn lead(self: &Rc<Self>) -> Result<(), Interrupted> {
        let epoch = self.disk.epoch.get();
        self.is_leader.set(true);
        self.leader.set(Some(self.id));
        self.copied.borrow_mut().fill(0);
        // Commits the entries of the leaders before.
        self.add(None);
        let copy = |other| spawn(self.clone().copy_to(other, epoch)).cancel_on_drop();
        let _copies: Vec<_> = self.others().map(copy).collect();
        while self.leads(epoch) {
            self.changed.notified().await?;
        }
        Ok(())
    }

    /// Adds an entry to the leader's log, and returns the length of the log.
    fn add(&self, request: Option<(RequestId, Transfer)>) -> usize {
        let mut log = self.disk.log.borrow_mut();
        log.push(Entry { epoch: self.disk.epoch.get(), request });
        self.copied.borrow_mut()[self.id] = log.len();
        self.changed.notify_all();
        log.len()
    }

    /// Sends the log to another server, and at least a heartbeat, for as long as this server leads.
    async fn copy_to(self: Rc<Self>, other: Id, epoch: Epoch) -> Result<(), Interrupted> {
        let mut next = self.end_of_log().1;
        while self.leads(epoch) {
            let append = self.entries_from(next);
            let call = timeout_after(CALL_LIMIT, self.replicas[other].append(append)).await;
            check_interrupt()?;
            match call {
                Ok(Ok((theirs, same))) => {
                    self.meet(theirs);
                    if !self.leads(epoch) {
                        break;
                    }
                    match same {
                        Some(same) => {
                            next = same;
                            self.copied.borrow_mut()[other] = same;
                            self.commit(epoch);
                        }
                        None => {
                            next /= 2;
                            continue;
                        }
                    }
                }
                _ => sleep(HEARTBEAT).await?,
            }
            if next == self.end_of_log().1 {
                ignore_after(HEARTBEAT, self.changed.notified()).await.transpose()?;
            }
        }
        Ok(())
    }

    fn entries_from(&self, length: usize) -> Append {
        let log = self.disk.log.borrow();
        Append {
            epoch: self.disk.epoch.get(),
            leader: self.id,
            length,
            before: length.checked_sub(1).map_or(0, |last| log[last].epoch),
            entries: log[length..].iter().take(BATCH).cloned().collect(),
            committed: self.committed.get(),
        }
    }

    /// Applies the entries that most servers have, if the last of them is of this epoch.
    fn commit(&self, epoch: Epoch) {
        let mut copied = self.copied.borrow().clone();
        copied.sort_unstable();
        let length = copied[copied.len() - majority(copied.len())];
        if length > 0 && self.disk.log.borrow()[length - 1].epoch == epoch {
            self.apply_to(length);
        }
    }

    fn apply_to(&self, length: usize) {
        let committed = self.committed.get();
        if length > committed {
            let log = self.disk.log.borrow();
            let mut bank = self.bank.borrow_mut();
            log[committed..length].iter().for_each(|entry| bank.apply(entry));
            self.committed.set(length);
            self.changed.notify_all();
        }
    }

    /// The epoch that this server leads.
    fn expect_leader(&self) -> Result<Epoch, AccountsError> {
        match self.is_leader.get() {
            true => Ok(self.disk.epoch.get()),
            false => Err(AccountsError::NotLeader(self.leader.get())),
        }
    }

    /// Waits for what `look` finds, for as long as this server leads the epoch.
    async fn wait_for<R>(
        &self,
        epoch: Epoch,
        look: impl Fn() -> Option<R>,
    ) -> Result<R, AccountsError> {
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if !self.leads(epoch) || self.changed.notified().await.is_err() {
                return Err(AccountsError::Unknown);
            }
        }
    }
}

impl Accounts for Rc<Node> {
    async fn transfer(&self, request: RequestId, transfer: Transfer) -> Result<u64, AccountsError> {
        let epoch = self.expect_leader()?;
        let outcome = || self.with_bank(|bank| bank.outcome(&request));
        if outcome().is_none() {
            // The request may be in the log already. Then this entry will change nothing.
            self.add(Some((request.clone(), transfer)));
        }
        self.wait_for(epoch, outcome).await?
    }

    async fn balance(&self, account: String) -> Result<u64, AccountsError> {
        let epoch = self.expect_leader()?;
        // Another server may lead by now. Then this entry is never committed.
        let length = self.add(None);
        self.wait_for(epoch, || (self.committed.get() >= length).then_some(())).await?;
        self.with_bank(|bank| bank.balance(&account))
    }

    async fn changes(&self, from: u64, changes: Sender<Change>) {
        let mut next = from;
        loop {
            let change = self.with_bank(|bank| bank.changes().get(next as usize).cloned());
            let is_over = match change {
                Some(change) => {
                    next += 1;
                    changes.send(change).await.is_err()
                }
                None => self.changed.notified().await.is_err(),
            };
            // The caller wants no more, or this server ends.
            if is_over {
                return;
            }
        }
    }
}

impl Replica for Rc<Node> {
    async fn vote(&self, epoch: Epoch, candidate: Id, log: (Epoch, usize)) -> (Epoch, bool) {
        self.meet(epoch);
        let own = self.disk.epoch.get();
        let is_free = self.disk.vote.get().is_none_or(|voted| voted == candidate);
        let is_given = epoch == own && is_free && log >= self.end_of_log();
        if is_given {
            self.disk.vote.set(Some(candidate));
            self.put_off();
        }
        (own, is_given)
    }

    async fn append(&self, append: Append) -> (Epoch, Option<usize>) {
        self.meet(append.epoch);
        let own = self.disk.epoch.get();
        if append.epoch < own {
            return (own, None);
        }
        self.leader.set(Some(append.leader));
        self.put_off();
        let mut log = self.disk.log.borrow_mut();
        let last = append.length.checked_sub(1);
        // This log is shorter, or has entries of another leader.
        if last.is_some_and(|at| log.get(at).is_none_or(|entry| entry.epoch != append.before)) {
            return (own, None);
        }
        let same = append.length + append.entries.len();
        for (at, entry) in (append.length..).zip(append.entries) {
            // An entry of a leader that is gone, which was not committed, and those after it.
            if log.get(at).is_some_and(|known| known.epoch != entry.epoch) {
                log.truncate(at);
            }
            if at == log.len() {
                log.push(entry);
            }
        }
        drop(log);
        self.apply_to(append.committed.min(same));
        (own, Some(same))
    }
}
