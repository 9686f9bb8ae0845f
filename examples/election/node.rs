//! A node: at any time follower, candidate or leader.
//!
//! ```text
//!              (1)                   (2)
//!   follower ───────▶ candidate ───────────▶ leader
//!      ▲               │  ▲ │ (1)              │
//!      │       (3)     │  └─┘                  │ (3)
//!      └───────────────┴───────────────────────┘
//! ```
//!
//! (1) [`Node::stand`]: nothing was heard of a leader for a while, which is drawn anew each time,
//! lest two stand at once for ever; the term is one more. (2) [`Node::count`]: most nodes have
//! voted for it. (3) [`Node::hear`]: there is a later term, or a leader of this one.
//!
//! A node has one vote in a term. Term and vote are written to disk before anybody hears of them,
//! for a node that restarts must not vote again. So two nodes cannot both have most votes of one
//! term, and **there is at most one leader in a term**, whatever is lost, late, or sent twice.
//!
//! (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", USENIX ATC 2014.)

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::UdpSocket;
use pikake::time::{Deadline, deadline_after};
use pikake::{random, timeout_at};

pub(crate) type Term = u64;
pub(crate) type Id = u8;

/// How often a leader says that it is there, and a candidate asks again.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// For how long a follower hears of no leader before it stands, in milliseconds.
const ELECTION_MILLIS: std::ops::Range<u64> = 150..300;

/// What of a node outlives a restart.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) term: Cell<Term>,
    pub(crate) vote: Cell<Option<Id>>,
}

enum Role {
    Follower,
    /// With the votes it has.
    Candidate(BTreeSet<Id>),
    Leader,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    VoteForMe,
    YouHaveMyVote,
    ILead,
}

/// A word, the term of who says it, and who that is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Message(Word, Term, Id);

const MESSAGE: usize = 1 + size_of::<Term>() + 1;

impl Message {
    fn to_bytes(self) -> [u8; MESSAGE] {
        let Self(word, term, from) = self;
        let mut bytes = [0; MESSAGE];
        bytes[0] = word as u8;
        bytes[1..MESSAGE - 1].copy_from_slice(&term.to_le_bytes());
        bytes[MESSAGE - 1] = from;
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [word, term @ .., from] = bytes else { return None };
        let words = [Word::VoteForMe, Word::YouHaveMyVote, Word::ILead];
        let word = words.into_iter().find(|known| *known as u8 == *word)?;
        Some(Self(word, Term::from_le_bytes(term.try_into().ok()?), *from))
    }
}

pub(crate) struct Node<E> {
    id: Id,
    socket: UdpSocket,
    /// The addresses of all nodes, its own among them; an id is a place in the list.
    cluster: Vec<SocketAddr>,
    disk: Rc<Disk>,
    role: Role,
    /// When it stands, unless it hears of a leader.
    stands_at: Deadline,
    /// When it next says what it has to say to all.
    speaks_at: Deadline,
    /// Is told when the node is elected.
    elected: E,
}

impl<E: Fn(Term)> Node<E> {
    pub(crate) fn new(
        id: Id,
        socket: UdpSocket,
        cluster: Vec<SocketAddr>,
        disk: Rc<Disk>,
        elected: E,
    ) -> Self {
        let (stands_at, speaks_at) = (election_timeout(), deadline_after(HEARTBEAT));
        Self { id, socket, cluster, disk, role: Role::Follower, stands_at, speaks_at, elected }
    }

    /// Takes part until it is interrupted, or its socket fails.
    pub(crate) async fn run(mut self) -> io::Result<()> {
        let mut buffer = [0; MESSAGE];
        loop {
            let next = match self.role {
                Role::Follower => self.stands_at,
                Role::Candidate(_) => self.stands_at.min(self.speaks_at),
                Role::Leader => self.speaks_at,
            };
            match timeout_at(next, self.socket.recv_from(&mut buffer)).await {
                Ok(received) => {
                    let (length, _) = received?;
                    if let Some(message) = Message::from_bytes(&buffer[..length]) {
                        self.hear(message).await?;
                    }
                }
                Err(_) if matches!(self.role, Role::Leader) || next < self.stands_at => {
                    self.speak().await?;
                }
                Err(_) => self.stand().await?,
            }
        }
    }

    /// Stands for election in a new term, and votes for itself.
    async fn stand(&mut self) -> io::Result<()> {
        self.disk.term.set(self.disk.term.get() + 1);
        self.disk.vote.set(Some(self.id));
        self.role = Role::Candidate(BTreeSet::new());
        self.stands_at = election_timeout();
        self.count(self.id).await?;
        self.speak().await
    }

    /// Says to all what its role has to say.
    async fn speak(&mut self) -> io::Result<()> {
        self.speaks_at = deadline_after(HEARTBEAT);
        let word = match self.role {
            Role::Follower => return Ok(()),
            Role::Candidate(_) => Word::VoteForMe,
            Role::Leader => Word::ILead,
        };
        for other in (0..self.cluster.len()).filter(|other| *other != usize::from(self.id)) {
            self.tell(other, word).await?;
        }
        Ok(())
    }

    async fn tell(&self, other: usize, word: Word) -> io::Result<()> {
        let message = Message(word, self.disk.term.get(), self.id);
        self.socket.send_to(&message.to_bytes(), self.cluster[other]).await.map(drop)
    }

    async fn hear(&mut self, Message(word, term, from): Message) -> io::Result<()> {
        if term > self.disk.term.get() {
            self.disk.term.set(term);
            self.disk.vote.set(None);
            self.role = Role::Follower;
        }
        if term < self.disk.term.get() {
            // Of the past: who is there now answers to nobody of then.
            return Ok(());
        }
        match word {
            Word::VoteForMe => self.vote(from).await,
            Word::YouHaveMyVote => self.count(from).await,
            Word::ILead => {
                self.role = Role::Follower;
                self.stands_at = election_timeout();
                Ok(())
            }
        }
    }

    /// Votes, unless another has its vote of this term.
    async fn vote(&mut self, candidate: Id) -> io::Result<()> {
        if self.disk.vote.get().is_some_and(|vote| vote != candidate) {
            return Ok(());
        }
        self.disk.vote.set(Some(candidate));
        self.stands_at = election_timeout();
        self.tell(usize::from(candidate), Word::YouHaveMyVote).await
    }

    /// Counts a vote for itself, and leads if these are most.
    async fn count(&mut self, voter: Id) -> io::Result<()> {
        let Role::Candidate(votes) = &mut self.role else { return Ok(()) };
        votes.insert(voter);
        if votes.len() > self.cluster.len() / 2 {
            self.role = Role::Leader;
            (self.elected)(self.disk.term.get());
            self.speak().await?;
        }
        Ok(())
    }
}

fn election_timeout() -> Deadline {
    deadline_after(Duration::from_millis(random::range(ELECTION_MILLIS)))
}
