//! The servers in simulated worlds: the network fails, servers restart, and one of them may be lost
//! for ever.
//!
//! `PIKAKE_RUNS=10000 cargo test -p pikake-accounts --test accounts faults` runs ten thousand seeds
//! of each world.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use pikake::net::TcpListener;
use pikake::random::range;
use pikake::rpc::{ReceiveError, channel};
use pikake::sim::{Fault, FaultMix, FaultPlan, Runs, Sim, sometimes};
use pikake::{now, sleep, spawn, timeout_after};
use pikake_accounts::bank::Bank;
use pikake_accounts::node::{Disk, Node};
use pikake_accounts::service::{AccountsClient, Change, RequestId, Transfer};
use pikake_accounts::teller::{AskError, Teller, connect};

const SERVERS: [&str; 3] = ["server0", "server1", "server2"];
const CLIENTS: [&str; 2] = ["client0", "client1"];
const ACCOUNTS: [(&str, u64); 3] = [("ann", 100), ("bob", 100), ("cid", 100)];
const TOTAL: u64 = 300;
/// Faults happen, and transfers begin, before this moment.
const FAULTS_END: Duration = Duration::from_secs(12);
/// The time after the faults in which the servers agree.
const RECOVERY: Duration = Duration::from_secs(30);

#[derive(Default)]
struct World {
    /// The servers that run.
    nodes: RefCell<BTreeMap<usize, Rc<Node>>>,
    /// The changes that were acknowledged, by their numbers.
    acknowledged: RefCell<BTreeMap<u64, (RequestId, Transfer)>>,
    /// The requests whose callers gave up: each may be made or not.
    unsure: RefCell<BTreeMap<RequestId, Transfer>>,
    balances: RefCell<Vec<Balance>>,
    /// Each change that anybody was told.
    told: RefCell<BTreeMap<u64, Change>>,
    finished: RefCell<BTreeSet<&'static str>>,
}

/// A balance that a leader has told.
struct Balance {
    account: &'static str,
    balance: u64,
    /// The number of changes that were acknowledged before the balance was asked for, and of those
    /// before them.
    least: u64,
}

impl World {
    /// The sum of all balances is the same after each step.
    fn invariant(&self) -> Result<(), String> {
        let leaders = self.nodes.borrow().values().filter(|node| node.is_leader()).count();
        sometimes!(leaders > 1, "an old leader does not know the new one");
        for (id, node) in &*self.nodes.borrow() {
            let total = node.with_bank(Bank::total);
            if total != TOTAL {
                return Err(format!("server {id} has {total}"));
            }
        }
        Ok(())
    }

    /// The changes are those that were acknowledged, and some of which nobody knows.
    fn audit(&self) {
        let nodes = self.nodes.borrow();
        let mut changes: Vec<Vec<Change>> =
            nodes.values().map(|node| node.with_bank(|bank| bank.changes().to_vec())).collect();
        changes.sort_by_key(Vec::len);
        let all = changes.pop().expect("a server runs");
        for fewer in changes {
            assert_eq!(fewer, all[..fewer.len()], "servers have different changes");
        }
        for (number, (request, transfer)) in &*self.acknowledged.borrow() {
            let made = all.get(*number as usize).map(|change| (&change.request, &change.transfer));
            assert_eq!(made, Some((request, transfer)), "the acknowledged change {number}");
        }
        for (number, change) in &*self.told.borrow() {
            assert_eq!(all.get(*number as usize), Some(change), "a change that was told");
        }
        // Each other change is one of those whose callers gave up, once.
        let mut unsure = self.unsure.borrow_mut();
        for change in &all {
            if !self.acknowledged.borrow().contains_key(&change.number) {
                let asked = unsure.remove(&change.request);
                assert_eq!(asked.as_ref(), Some(&change.transfer), "{change:?} is made twice");
            }
        }
        for balance in &*self.balances.borrow() {
            balance.check(&all);
        }
    }
}

impl Balance {
    /// The balance shows the changes that were acknowledged before, and perhaps further ones.
    fn check(&self, changes: &[Change]) {
        let Self { account, balance, least } = self;
        let (_, mut money) = *ACCOUNTS.iter().find(|(name, _)| name == account).unwrap();
        let is_shown = (0..=changes.len()).any(|count| {
            if let Some(Change { transfer, .. }) = count.checked_sub(1).map(|last| &changes[last]) {
                money += if transfer.to == *account { transfer.amount } else { 0 };
                money -= if transfer.from == *account { transfer.amount } else { 0 };
            }
            count as u64 >= *least && money == *balance
        });
        assert!(is_shown, "{account} has {balance}, after {least} changes or more: {changes:?}");
    }
}

fn since_start() -> Duration {
    Duration::from_nanos(now().get())
}

async fn server(world: Rc<World>, id: usize, disk: Rc<Disk>) {
    let listener = TcpListener::bind("0.0.0.0:7000").await.expect("a free port");
    let clients = SERVERS.iter().map(|server| connect(&format!("{server}:7000"))).collect();
    let node = Node::new(id, disk, clients, Bank::new(&ACCOUNTS));
    world.nodes.borrow_mut().insert(id, node.clone());
    node.run(listener).await.expect("nobody interrupts a server");
}

fn clients() -> Vec<pikake::rpc::Client> {
    SERVERS.iter().map(|server| connect(&format!("{server}:7000"))).collect()
}

async fn client(world: Rc<World>, name: &'static str) {
    let teller = Rc::new(Teller::new(name, clients()));
    let watching = spawn(watch(world.clone(), range(0..3) as usize)).cancel_on_drop();
    while since_start() < FAULTS_END {
        let (from, to) = (range(0..3) as usize, range(0..3) as usize);
        let [from, to] = [from, to].map(|index| ACCOUNTS[index].0.to_owned());
        let transfer = Transfer { from, to, amount: range(1..100) };
        pay(&world, &teller, teller.new_request(), transfer).await;
        if range(0..2) == 0 {
            ask_balance(&world, &teller, ACCOUNTS[range(0..3) as usize].0).await;
        }
        sleep(Duration::from_millis(range(0..150))).await.expect("nobody interrupts");
    }
    drop(watching);
    sleep((FAULTS_END + RECOVERY).saturating_sub(since_start())).await.expect("nobody interrupts");
    // Any two servers answer, and know the same.
    let nothing = Transfer { from: "ann".to_owned(), to: "bob".to_owned(), amount: 0 };
    let request = teller.new_request();
    let paid = timeout_after(RECOVERY, teller.transfer(&request, &nothing)).await;
    let number = paid.expect("two servers have recovered").expect("nothing is always there");
    world.acknowledged.borrow_mut().insert(number, (request, nothing));
    let mut total = 0;
    for (account, _) in ACCOUNTS {
        let balance = timeout_after(RECOVERY, teller.balance(account)).await;
        total += balance.expect("two servers have recovered").expect("the account is there");
    }
    world.finished.borrow_mut().insert(name);
    if world.finished.borrow().len() == CLIENTS.len() {
        assert_eq!(total, TOTAL);
        // The followers hear of the last commits.
        sleep(Duration::from_secs(1)).await.expect("nobody interrupts");
        world.audit();
    }
}

/// Makes a transfer, which may be given up, repeated after its end, or asked for by two tasks at
/// once.
async fn pay(world: &Rc<World>, teller: &Rc<Teller>, request: RequestId, transfer: Transfer) {
    let twin = (range(0..4) == 0).then(|| {
        let (world, teller) = (world.clone(), teller.clone());
        let (request, transfer) = (request.clone(), transfer.clone());
        spawn(async move { ask(&world, &teller, &request, &transfer).await })
    });
    let first = ask(world, teller, &request, &transfer).await;
    let second = match twin {
        Some(twin) => twin.await.expect("a request returns"),
        None if range(0..4) == 0 => ask(world, teller, &request, &transfer).await,
        None => None,
    };
    match (first, second) {
        (Some(first), Some(second)) => assert_eq!(first, second, "one request, two outcomes"),
        (Some(_), None) | (None, Some(_)) => {}
        (None, None) => drop(world.unsure.borrow_mut().insert(request, transfer)),
    }
}

/// Asks for a transfer: its number, or its refusal; `None` if the caller gave up.
async fn ask(
    world: &World,
    teller: &Teller,
    request: &RequestId,
    transfer: &Transfer,
) -> Option<Result<u64, String>> {
    let limit = Duration::from_millis(range(10..8_000));
    match timeout_after(limit, teller.transfer(request, transfer)).await {
        Ok(Ok(number)) => {
            sometimes!(since_start() > FAULTS_END, "a transfer outlives the faults");
            sometimes!(since_start() < FAULTS_END, "a transfer is acknowledged during the faults");
            let change = (request.clone(), transfer.clone());
            let before = world.acknowledged.borrow_mut().insert(number, change.clone());
            assert!(before.is_none_or(|before| before == change), "change {number} twice");
            Some(Ok(number))
        }
        Ok(Err(AskError::Refused(error))) => Some(Err(error.to_string())),
        Ok(Err(AskError::GaveUp(_))) | Err(_) => None,
        Ok(Err(error)) => panic!("{error}"),
    }
}

/// Asks for a balance, for the audit.
async fn ask_balance(world: &World, teller: &Teller, account: &'static str) {
    let last = world.acknowledged.borrow().last_key_value().map(|(number, _)| *number);
    let least = last.map_or(0, |last| last + 1);
    let limit = Duration::from_millis(range(10..2_000));
    if let Ok(Ok(balance)) = timeout_after(limit, teller.balance(account)).await {
        sometimes!(since_start() < FAULTS_END, "a balance is told during the faults");
        world.balances.borrow_mut().push(Balance { account, balance, least });
    }
}

/// Listens to the changes of a server, again and again.
async fn watch(world: Rc<World>, id: usize) {
    let server = AccountsClient::new(clients().swap_remove(id));
    let mut next = 0;
    loop {
        let (sender, changes) = channel(4);
        let telling = spawn(server.changes(next, sender)).cancel_on_drop();
        loop {
            let change = match changes.recv().await {
                Ok(Some(change)) => change,
                Err(ReceiveError::Interrupted(_)) => return,
                // The server has ended the call, or is lost.
                Ok(None) | Err(_) => break,
            };
            assert_eq!(change.number, next, "changes come in order");
            let before = world.told.borrow_mut().insert(next, change.clone());
            assert!(before.is_none_or(|before| before == change), "change {next} differs");
            next += 1;
        }
        drop(telling);
        if sleep(Duration::from_millis(100)).await.is_err() {
            return;
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Loss {
    /// Servers are down for a while, and have their disks.
    Restarts,
    /// A server is lost with its disk, at whatever moment.
    OneServer,
}

fn world(sim: &mut Sim, loss: Loss) {
    let world = Rc::<World>::default();
    for (id, name) in SERVERS.into_iter().enumerate() {
        let (world, disk) = (world.clone(), Rc::<Disk>::default());
        // Called anew when the host restarts; the disk is the same.
        sim.host(name, move || {
            let (world, disk) = (world.clone(), disk.clone());
            async move { server(world, id, disk).await }
        });
    }
    for name in CLIENTS {
        let world = world.clone();
        sim.client(name, move || client(world.clone(), name));
    }
    let within = FAULTS_END - Duration::from_millis(1);
    let (servers, all) = (SERVERS.map(String::from), SERVERS.into_iter().chain(CLIENTS));
    let all: Vec<String> = all.map(String::from).collect();
    let mut plan = FaultMix::network(within).draw(sim.seed(), &all);
    let mut rng = sim.rng("losses");
    match loss {
        Loss::Restarts => {
            let mut mix = FaultMix::new(within);
            (mix.partitions, mix.one_way, mix.resets, mix.crashes) = (0, 0, 0, 3);
            plan.extend(&mix.draw(sim.seed(), &servers));
        }
        Loss::OneServer => {
            let (at, lost) = (rng.range(0..within.as_millis() as u64), rng.index(3));
            let name = SERVERS[lost].to_owned();
            let fault = if rng.chance(0.5) { Fault::Kill(name) } else { Fault::PowerOff(name) };
            plan.extend(&FaultPlan::new().at(Duration::from_millis(at), fault));
        }
    }
    sim.faults(plan).time_limit(Duration::from_secs(300));
    sim.invariant("money is conserved", move || world.invariant());
}

const SEEDS: u64 = 5;

#[test]
fn transfers_survive_restarts_and_partitions() {
    let runs = Runs::new("transfers_survive_restarts_and_partitions").seeds(SEEDS);
    runs.run(|sim| world(sim, Loss::Restarts));
}

#[test]
fn transfers_survive_the_loss_of_any_server() {
    let runs = Runs::new("transfers_survive_the_loss_of_any_server").seeds(SEEDS);
    runs.run(|sim| world(sim, Loss::OneServer));
}
