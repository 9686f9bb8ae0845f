//! A server: at any time follower, candidate or leader.
//!
//! ```text
//!              (1)                   (2)
//!   follower ───────▶ candidate ───────────▶ leader
//!      ▲                  │                    │
//!      └──────────────────┴────────────────────┘ (3)
//! ```
//!
//! (1) `Node::stand`: the server has heard of no leader for a while, which is drawn anew each time,
//! and most servers would vote for it (`Node::would_win`). The epoch is one more. (2) `Node::lead`:
//! most servers have voted for this one. (3) `Node::meet`: another server has a later epoch.
//!
//! The leader adds each transfer to its log and sends it to the others (`Node::copy_to`). An entry
//! that most servers have is *committed*. Each server applies committed entries to its [`Bank`], in
//! the order of the log, and the leader answers the caller.
//!
//! # Why nothing is lost
//!
//! A server has one vote in an epoch, so each epoch has at most one leader. A server votes only for
//! a candidate whose log is not behind its own. Most servers have a committed entry, and most have
//! voted for the leader. One server did both, so each later leader has the entry.
//!
//! A leader counts copies only of entries of its own epoch, which commit those before too: a log
//! with an entry of an older epoch might still be replaced by another one.
//!
//! # Why no balance is stale
//!
//! A leader adds an entry for each balance, and answers when that entry is committed. Another
//! server may lead by then, and have replaced the entry by one of its own. So the leader looks at
//! the epoch of the entry as well.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{Listener, Patience};
use pikake::rpc::{CallError, Client, Sender, Server, Transport};
use pikake::sync::{Notify, Queue};
use pikake::time::{Deadline, deadline_after};
use pikake::{
    Interrupted, TaskError, check_interrupt, ignore_after, now, random, select, sleep, sleep_until,
    spawn, timeout_after,
};

use crate::bank::Bank;
use crate::service::{
    Accounts, AccountsError, AccountsServer, Append, Change, Entry, Epoch, Id, NAME_LIMIT, Replica,
    ReplicaClient, ReplicaServer, RequestId, Transfer,
};

/// How often the leader says that it is there.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// For how long a server hears of no leader before it stands, in milliseconds.
const ELECTION_MILLIS: std::ops::Range<u64> = 250..500;

/// How long a call to another server may take. A lost call and the pause after it are shorter than
/// the time after which a server stands.
const CALL_LIMIT: Duration = Duration::from_millis(150);

/// The most entries of a call.
const BATCH: usize = 100;

/// The most bytes of an entry: three names, and numbers.
const ENTRY_BYTES: usize = 3 * NAME_LIMIT + 100;

// A call is far below the frame limit of 1 MiB, so a heartbeat waits for no large one.
const _: () = assert!(BATCH * ENTRY_BYTES < 100 * 1024);

/// The part of a server that outlives a restart. A real one writes each change to a file before
/// anybody hears of the change.
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
    /// Until then this server elects nobody, since it has heard of a leader.
    follows_until: Cell<Option<Deadline>>,
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
    /// A server among `clients`, each to one of the servers. `bank` is the state before the first
    /// entry.
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
            follows_until: Cell::new(None),
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
    /// The interruption; the failure of the listener. A server that nobody can reach must not lead.
    pub async fn run<L>(self: Rc<Self>, listener: L) -> io::Result<()>
    where
        L: Listener + 'static,
        L::Connection: Transport,
        L::Address: fmt::Debug + Clone + Send + Sync + 'static,
    {
        let server = Server::new()
            .add(AccountsServer::new(self.clone()))
            .add(ReplicaServer::new(self.clone()))
            .patience(Patience { soft: Duration::ZERO, hard: Duration::from_secs(1) });
        let serving = spawn(server.serve(listener)).cancel_on_drop();
        select! {
            biased;
            ended = self.take_part() => ended.map_err(io::Error::from),
            served = serving => match served {
                Ok(served) => served.map(drop).map_err(io::Error::from),
                Err(TaskError::Interrupted(interrupted)) => Err(interrupted.into()),
                Err(error) => Err(io::Error::other(error)),
            },
        }
    }

    async fn take_part(self: &Rc<Self>) -> Result<(), Interrupted> {
        loop {
            self.put_off();
            while !self.stands_at.get().is_due(now()) {
                // A leader that calls meanwhile has moved the moment.
                sleep_until(self.stands_at.get()).await?;
            }
            let would_win = self.would_win().await?;
            // A leader may have called meanwhile.
            if would_win && self.stands_at.get().is_due(now()) && self.stand().await? {
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
        self.changed.notify_waiters();
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

    /// Whether most servers would vote for this one. A server that alone has lost the leader does
    /// not unseat it.
    async fn would_win(&self) -> Result<bool, Interrupted> {
        let (epoch, log) = (self.disk.epoch.get() + 1, self.end_of_log());
        self.most_agree(|replica| replica.would_vote(epoch, log)).await
    }

    /// Asks for votes. Returns whether most servers gave theirs.
    async fn stand(&self) -> Result<bool, Interrupted> {
        let (epoch, id, log) = (self.disk.epoch.get() + 1, self.id, self.end_of_log());
        self.begin_epoch(epoch, Some(id));
        let is_elected = self.most_agree(|replica| replica.vote(epoch, id, log)).await?;
        Ok(is_elected && self.disk.epoch.get() == epoch)
    }

    /// Asks the others, and waits until most servers agree, with this one, or no further answer can
    /// come.
    async fn most_agree<F>(&self, ask: impl Fn(&ReplicaClient) -> F) -> Result<bool, Interrupted>
    where
        F: Future<Output = Result<(Epoch, bool), CallError>> + 'static,
    {
        let answers = Rc::new(Queue::unbounded());
        let asking: Vec<_> = self
            .others()
            .map(|other| {
                let (answers, asked) = (answers.clone(), ask(&self.replicas[other]));
                spawn(async move {
                    let answer = timeout_after(CALL_LIMIT, asked).await;
                    answers.put(answer.ok().and_then(Result::ok)).await
                })
                .cancel_on_drop()
            })
            .collect();
        let (mut agreed, most) = (1, majority(self.replicas.len()));
        for _ in &asking {
            if agreed >= most {
                break;
            }
            if let Some(Some((theirs, agrees))) = answers.get().await? {
                self.meet(theirs);
                agreed += usize::from(agrees);
            }
        }
        Ok(agreed >= most)
    }

    /// Leads, until another server has a later epoch.
    async fn lead(self: &Rc<Self>) -> Result<(), Interrupted> {
        let epoch = self.disk.epoch.get();
        let _leading = Leading(self);
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
        let epoch = self.disk.epoch.get();
        self.disk.log.borrow_mut().push(Entry { epoch, request });
        let length = self.end_of_log().1;
        self.copied.borrow_mut()[self.id] = length;
        // A server that is alone is the majority.
        self.commit(epoch);
        self.changed.notify_waiters();
        length
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
                _ => {
                    sleep(HEARTBEAT).await?;
                    continue;
                }
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
            self.changed.notify_waiters();
        }
    }

    /// The epoch that this server leads.
    fn expect_leader(&self) -> Result<Epoch, AccountsError> {
        match self.is_leader.get() {
            true => Ok(self.disk.epoch.get()),
            false => Err(AccountsError::NotLeader(self.leader.get())),
        }
    }

    /// Whether the entry that made the log so long in this epoch is committed. An entry of a later
    /// leader may have replaced it.
    fn is_committed(&self, length: usize, epoch: Epoch) -> bool {
        self.committed.get() >= length && self.disk.log.borrow()[length - 1].epoch == epoch
    }

    /// Waits until `look` finds something, for as long as this server leads the epoch.
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

/// Resigns when dropped, also by an interruption.
struct Leading<'a>(&'a Node);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let node = self.0;
        node.is_leader.set(false);
        if node.leader.get() == Some(node.id) {
            node.leader.set(None);
        }
        node.changed.notify_waiters();
    }
}

impl Accounts for Node {
    async fn transfer(&self, request: RequestId, transfer: Transfer) -> Result<u64, AccountsError> {
        let names = [&request.0, &transfer.from, &transfer.to];
        if names.into_iter().any(|name| name.len() > NAME_LIMIT) {
            return Err(AccountsError::LongName);
        }
        let epoch = self.expect_leader()?;
        let outcome = || self.with_bank(|bank| bank.outcome(&request, &transfer));
        if outcome().is_none() {
            // The request may be in the log already. Then this entry will change nothing.
            self.add(Some((request.clone(), transfer.clone())));
        }
        self.wait_for(epoch, outcome).await?
    }

    async fn balance(&self, account: String) -> Result<u64, AccountsError> {
        let epoch = self.expect_leader()?;
        // Another server may lead by now. Then this entry is never committed.
        let length = self.add(None);
        self.wait_for(epoch, || self.is_committed(length, epoch).then_some(())).await?;
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

impl Replica for Node {
    async fn would_vote(&self, epoch: Epoch, log: (Epoch, usize)) -> (Epoch, bool) {
        let own = self.disk.epoch.get();
        let follows = self.follows_until.get().is_some_and(|until| !until.is_due(now()));
        let is_free = !self.is_leader.get() && !follows;
        (own, is_free && epoch > own && log >= self.end_of_log())
    }

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
        let least = Duration::from_millis(ELECTION_MILLIS.start);
        self.follows_until.set(Some(deadline_after(least)));
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

#[cfg(test)]
mod tests {
    use pikake::net::{TcpListener, TcpStream};

    use super::*;
    use crate::teller::{Teller, connect};

    /// A server that votes for everybody, and takes no entries.
    struct Voter;

    impl Replica for Voter {
        async fn would_vote(&self, _: Epoch, _: (Epoch, usize)) -> (Epoch, bool) {
            (0, true)
        }

        async fn vote(&self, epoch: Epoch, _: Id, _: (Epoch, usize)) -> (Epoch, bool) {
            (epoch, true)
        }

        async fn append(&self, _: Append) -> (Epoch, Option<usize>) {
            let _ = sleep(Duration::from_secs(3_600)).await;
            (0, None)
        }
    }

    const ADDRESSES: [&str; 3] = ["127.0.0.1:7000", "127.0.0.1:7001", "127.0.0.1:7002"];

    fn node(servers: usize) -> Rc<Node> {
        let clients = ADDRESSES[..servers].iter().map(|address| connect(address)).collect();
        Node::new(0, Rc::default(), clients, Bank::new(&[("ann", 100), ("bob", 100)]))
    }

    async fn listener() -> TcpListener {
        TcpListener::bind(ADDRESSES[0]).await.unwrap()
    }

    async fn wait_until_leader(node: &Node) {
        while !node.is_leader() {
            sleep(Duration::from_millis(10)).await.unwrap();
        }
    }

    /// A leader among voters.
    async fn leader() -> (Rc<Node>, pikake::Task<io::Result<()>>) {
        for address in &ADDRESSES[1..] {
            let listener = TcpListener::bind(*address).await.unwrap();
            let server = Server::new().add(ReplicaServer::new(Voter));
            spawn(server.serve(listener)).detach();
        }
        let node = node(3);
        let running = spawn(node.clone().run(listener().await));
        wait_until_leader(&node).await;
        (node, running)
    }

    fn transfer(amount: u64) -> Transfer {
        Transfer { from: "ann".to_owned(), to: "bob".to_owned(), amount }
    }

    /// The new leader's entries are committed in the place of the one that the balance waits for.
    #[test]
    fn a_balance_whose_entry_was_replaced_is_unknown() {
        pikake::sim::example(async {
            let (node, running) = leader().await;
            let asked = node.clone();
            let balance = spawn(async move { asked.balance("ann".to_owned()).await });
            sleep(Duration::from_millis(10)).await.unwrap();
            let (epoch, length) = node.end_of_log();
            let entry = Entry { epoch: epoch + 1, request: None };
            let entries = vec![entry; length];
            let append = Append {
                epoch: epoch + 1,
                leader: 1,
                length: 0,
                before: 0,
                entries,
                committed: length,
            };
            assert_eq!(node.append(append).await, (epoch + 1, Some(length)));
            assert_eq!(balance.await.unwrap(), Err(AccountsError::Unknown));
            running.cancel().await.unwrap();
        });
    }

    #[test]
    fn an_interrupted_leader_resigns() {
        pikake::sim::example(async {
            let (node, running) = leader().await;
            running.cancel().await.unwrap();
            assert!(!node.is_leader());
            let refused = node.balance("ann".to_owned()).await;
            assert_eq!(refused, Err(AccountsError::NotLeader(None)));
        });
    }

    #[test]
    fn a_server_whose_listener_failed_ends() {
        struct Broken;

        impl Listener for Broken {
            type Connection = TcpStream;
            type Address = String;

            async fn accept(&self) -> io::Result<(TcpStream, String)> {
                sleep(Duration::from_secs(2)).await?;
                Err(io::Error::other("the network card is gone"))
            }
        }

        pikake::sim::example(async {
            let node = node(1);
            let running = spawn(node.clone().run(Broken));
            wait_until_leader(&node).await;
            let error = running.await.unwrap().unwrap_err();
            assert!(error.to_string().contains("listener failed"), "{error}");
            assert!(!node.is_leader());
        });
    }

    #[test]
    fn a_server_alone_commits() {
        pikake::sim::example(async {
            let node = node(1);
            let running = spawn(node.clone().run(listener().await));
            let teller = Teller::new("client", vec![connect(ADDRESSES[0])]);
            let request = teller.new_request();
            let paid = timeout_after(Duration::from_secs(60), async {
                teller.transfer(&request, &transfer(30)).await.unwrap();
                teller.balance("bob").await.unwrap()
            });
            assert_eq!(paid.await.unwrap(), 130);
            running.cancel().await.unwrap();
        });
    }

    #[test]
    fn long_names_are_refused() {
        pikake::sim::example(async {
            let request = ("x".repeat(NAME_LIMIT + 1), 1);
            let refused = Accounts::transfer(&node(1), request, transfer(30)).await;
            assert_eq!(refused, Err(AccountsError::LongName));
        });
    }

    /// The third server alone has lost the leader.
    #[test]
    fn a_server_with_a_leader_elects_nobody() {
        pikake::sim::example(async {
            let node = node(3);
            assert_eq!(node.would_vote(1, (0, 0)).await, (0, true));
            let entries = Vec::new();
            let append =
                Append { epoch: 1, leader: 1, length: 0, before: 0, entries, committed: 0 };
            node.append(append).await;
            assert_eq!(node.would_vote(2, (0, 0)).await, (1, false));
            sleep(Duration::from_millis(ELECTION_MILLIS.start)).await.unwrap();
            assert_eq!(node.would_vote(2, (0, 0)).await, (1, true));
        });
    }

    /// A client that restarts under its name asks for new transfers.
    #[test]
    fn clients_of_one_name_make_different_requests() {
        pikake::sim::example(async {
            let teller = || Teller::new("client", vec![connect(ADDRESSES[0])]);
            assert_ne!(teller().new_request(), teller().new_request());
        });
    }
}
