//! `examples/election`: at most one leader in a term, and a leader after the faults have ended.
//!
//! The planted bug: a node forgets its vote over a restart.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use pikake::net::UdpSocket;
use pikake::sim::{Cause, Fault, FaultMix, FaultPlan, Network, Runs, Sim};

use super::node::{Disk, Id, Node, Term};

const NODES: u8 = 3;
const PORT: u16 = 7000;
const HEAL_AT: Duration = Duration::from_secs(20);
const SETTLES_WITHIN: Duration = Duration::from_secs(5);
const CRASHES: u32 = 10;

/// The elected node of each term.
type Leaders = Rc<RefCell<BTreeMap<Term, Vec<Id>>>>;

fn world(sim: &mut Sim, forgets_votes: bool) {
    let cluster: Vec<SocketAddr> =
        (1..=NODES).map(|host| (Ipv4Addr::new(10, 0, 0, host), PORT).into()).collect();
    let (leaders, disks) = (Leaders::default(), <[Rc<Disk>; NODES as usize]>::default());
    for id in 0..NODES {
        let (disk, cluster, leaders) =
            (disks[usize::from(id)].clone(), cluster.clone(), leaders.clone());
        // Called anew when the host restarts; the disk is the same, if the vote was written to it.
        sim.host(&name(id), move || {
            let (disk, cluster, leaders) = (disk.clone(), cluster.clone(), leaders.clone());
            if forgets_votes {
                disk.vote.set(None);
            }
            async move {
                let socket = UdpSocket::bind(cluster[usize::from(id)]).await?;
                let elected = move |term| leaders.borrow_mut().entry(term).or_default().push(id);
                Node::new(id, socket, cluster, disk, elected).run().await
            }
        });
    }
    let seen = leaders.clone();
    sim.invariant("at most one leader in a term", move || {
        let leaders = seen.borrow();
        let term = leaders.iter().find(|(_, leaders)| leaders.iter().any(|id| *id != leaders[0]));
        term.map_or(Ok(()), |(term, leaders)| Err(format!("term {term} has {leaders:?}")))
    });
    sim.heal_and_expect(
        HEAL_AT,
        SETTLES_WITHIN,
        "all are in one term, which has a leader",
        move || {
            let term = disks[0].term.get();
            disks.iter().all(|disk| disk.term.get() == term) && leaders.borrow().contains_key(&term)
        },
    );
    sim.stop_after(HEAL_AT + SETTLES_WITHIN);
    go_wrong(sim);
}

fn name(id: Id) -> String {
    format!("node{id}")
}

/// Packets are lost, late and doubled, ways are cut, and nodes are killed and soon start again.
fn go_wrong(sim: &mut Sim) {
    let mut network = Network::default();
    (network.link.loss, network.link.duplicate, network.link.reorder) = (0.1, 0.1, 0.1);
    sim.network(network);
    let mut chance = sim.rng("crashes");
    let mut plan = FaultPlan::new();
    for _ in 0..CRASHES {
        let node = name(chance.range(0..NODES.into()) as Id);
        let at = Duration::from_millis(chance.range(0..HEAL_AT.as_millis() as u64));
        let down = Duration::from_millis(chance.range(1..100));
        plan = plan.at(at, Fault::Kill(node.clone())).at(at + down, Fault::Restart(node));
    }
    sim.faults(plan).fault_mix(FaultMix::network(HEAL_AT));
}

#[test]
fn terms_have_at_most_one_leader() {
    let runs = Runs::new("election::terms_have_at_most_one_leader").seeds(100);
    runs.run(|sim| world(sim, false));
}

#[test]
fn forgotten_vote_is_found_and_minimised() {
    let runs = Runs::new("election").seeds(1_000);
    let failure = runs.try_run(|sim| world(sim, true)).unwrap_err();
    assert!(matches!(failure.cause, Cause::Invariant { .. }), "{failure}");
    assert!(failure.left_out > 0 && failure.plan.to_string().contains("restart"), "{failure}");
    let mut again = Sim::new(failure.seed);
    world(&mut again, true);
    let again = again.only_faults(failure.plan.clone()).run().unwrap_err();
    assert_eq!((again.cause, again.time), (failure.cause, failure.time));
    // The same world, but for the bug.
    let mut sound = Sim::new(failure.seed);
    world(&mut sound, false);
    sound.only_faults(failure.plan.clone()).run().unwrap();
}
