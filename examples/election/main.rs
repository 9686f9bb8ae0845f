//! Three nodes elect a leader, over UDP, as in Raft.
//!
//! The protocol is in [`node.rs`](node.rs). `sim/tests/sim/programs/election.rs` runs the same
//! nodes in a simulated world, where packets are lost and nodes crash, and finds what goes wrong if
//! a node forgets its vote over a restart. Here they run on loopback, and it prints:
//!
//! ```text
//! a leader is elected
//! the leader is stopped
//! another one is elected, in a later term
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::UdpSocket;
use pikake::{Task, sleep, timeout_after};

mod node;

use node::{Disk, Id, Node, Term};

/// Elections take about half a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often it is looked whether there is a leader.
const LOOK_EVERY: Duration = Duration::from_millis(5);

type Leaders = Rc<RefCell<BTreeMap<Term, Id>>>;

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let leaders = Leaders::default();
    let mut nodes = start(3, &leaders).await?;
    let (term, leader) = timeout_after(PATIENCE, leader_after(0, &leaders)).await??;
    println!("a leader is elected");
    nodes.remove(usize::from(leader)).cancel().await?;
    println!("the leader is stopped");
    timeout_after(PATIENCE, leader_after(term, &leaders)).await??;
    println!("another one is elected, in a later term");
    Ok(())
}

async fn start(count: u8, leaders: &Leaders) -> io::Result<Vec<Task<io::Result<()>>>> {
    let mut sockets = Vec::new();
    for _ in 0..count {
        sockets.push(UdpSocket::bind("127.0.0.1:0").await?);
    }
    let cluster = sockets.iter().map(UdpSocket::local_addr).collect::<io::Result<Vec<_>>>()?;
    let start = |(id, socket)| {
        let leaders = leaders.clone();
        let elected = move |term| {
            leaders.borrow_mut().insert(term, id);
        };
        let node = Node::new(id, socket, cluster.clone(), Rc::<Disk>::default(), elected);
        pikake::spawn(node.run())
    };
    Ok((0..).zip(sockets).map(start).collect())
}

/// The first leader that is elected after a term.
async fn leader_after(term: Term, leaders: &Leaders) -> Result<(Term, Id), pikake::Interrupted> {
    loop {
        let found = leaders.borrow().range(term + 1..).next().map(|(term, id)| (*term, *id));
        match found {
            Some(found) => return Ok(found),
            None => sleep(LOOK_EVERY).await?,
        }
    }
}
