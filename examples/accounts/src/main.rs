//! Three servers and a client in one process, on TCP. It prints:
//!
//! ```text
//! three servers have elected a leader
//! ann pays bob 30: change 0
//! the leader is stopped
//! the same request again: change 0
//! ann pays bob 50: change 1
//! ann pays bob 50: refused: not enough money
//! ann has 20, bob has 180
//! bob got 30, then 50, as a server tells that is left
//! ```

use std::error::Error;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::TcpListener;
use pikake::rpc::channel;
use pikake::{Task, sleep, spawn, timeout_after};
use pikake_accounts::bank::Bank;
use pikake_accounts::node::{Disk, Node};
use pikake_accounts::service::{AccountsClient, Transfer};
use pikake_accounts::teller::{Teller, connect};

/// An election takes about half a second.
const PATIENCE: Duration = Duration::from_secs(30);

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    timeout_after(PATIENCE, show()).await?
}

struct Running {
    address: String,
    node: Rc<Node>,
    task: Task<io::Result<()>>,
}

async fn start() -> Result<Vec<Running>, Box<dyn Error>> {
    let mut listeners = Vec::new();
    for _ in 0..3 {
        listeners.push(TcpListener::bind("127.0.0.1:0").await?);
    }
    let mut addresses = Vec::new();
    for listener in &listeners {
        addresses.push(listener.local_addr()?.to_string());
    }
    let start = |(id, listener)| {
        let clients = addresses.iter().map(|address| connect(address)).collect();
        let bank = Bank::new(&[("ann", 100), ("bob", 100)]);
        let node = Node::new(id, Rc::<Disk>::default(), clients, bank);
        let task = spawn(node.clone().run(listener));
        Running { address: addresses[id].clone(), node, task }
    };
    Ok(listeners.into_iter().enumerate().map(start).collect())
}

async fn show() -> Result<(), Box<dyn Error>> {
    let mut servers = start().await?;
    let leader = loop {
        match servers.iter().position(|server| server.node.is_leader()) {
            Some(leader) => break leader,
            None => sleep(Duration::from_millis(5)).await?,
        }
    };
    println!("three servers have elected a leader");
    let clients = servers.iter().map(|server| connect(&server.address)).collect();
    let teller = Teller::new("counter", clients);
    let pay = |amount| Transfer { from: "ann".to_owned(), to: "bob".to_owned(), amount };
    let first = teller.new_request();
    println!("ann pays bob 30: change {}", teller.transfer(&first, &pay(30)).await?);

    servers.remove(leader).task.cancel().await?;
    println!("the leader is stopped");
    println!("the same request again: change {}", teller.transfer(&first, &pay(30)).await?);
    for _ in 0..2 {
        match teller.transfer(&teller.new_request(), &pay(50)).await {
            Ok(change) => println!("ann pays bob 50: change {change}"),
            Err(error) => println!("ann pays bob 50: {error}"),
        }
    }
    let (ann, bob) = (teller.balance("ann").await?, teller.balance("bob").await?);
    println!("ann has {ann}, bob has {bob}");

    // Any server tells the changes, as far as it knows them, and goes on with those that happen.
    let left = AccountsClient::new(connect(&servers[0].address));
    let (sender, changes) = channel(16);
    let telling = spawn(left.changes(0, sender));
    let mut amounts = Vec::new();
    while amounts.len() < 2 {
        let change = changes.recv().await?.ok_or("the changes ended early")?;
        amounts.push(change.transfer.amount);
    }
    telling.cancel().await?;
    println!("bob got {}, then {}, as a server tells that is left", amounts[0], amounts[1]);
    Ok(())
}
