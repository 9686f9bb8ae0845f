//! A server moves money between accounts, each behind a lock.
//!
//! The bug: the server locks the payer's account first. Two opposite payments at once deadlock.

use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, serve};
use pikake::sim::{Cause, Sim};
use pikake::sync::Mutex;
use pikake::{random, sleep};

const ACCOUNTS: usize = 4;
const TRANSFERS: usize = 5;
/// Between two transfers of a client, at most.
const PAUSE_MILLIS: u64 = 100;
const JOURNAL: Duration = Duration::from_micros(100);

type Accounts = [Mutex<i64>; ACCOUNTS];

async fn transfer(accounts: &Accounts, from: usize, to: usize, bug: bool) -> std::io::Result<()> {
    let (first, second) = if bug { (from, to) } else { (from.min(to), from.max(to)) };
    let mut first_account = accounts[first].lock().await?;
    // The intent is written down.
    sleep(JOURNAL).await?;
    let mut second_account = accounts[second].lock().await?;
    let sign = if first == from { 1 } else { -1 };
    *first_account -= sign;
    *second_account += sign;
    Ok(())
}

async fn bank(bug: bool) -> std::io::Result<()> {
    let accounts = Rc::new(Accounts::default());
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    let attend = move |stream: TcpStream, _| {
        let accounts = accounts.clone();
        async move {
            let mut order = [0; 2];
            while stream.read_exact(&mut order).await.is_ok() {
                let [from, to] = order.map(usize::from);
                if transfer(&accounts, from, to, bug).await.is_err()
                    || stream.write_all(b"!").await.is_err()
                {
                    break;
                }
            }
        }
    };
    serve(listener, 10, attend).await.map(drop)
}

async fn pay() -> std::io::Result<()> {
    let bank = TcpStream::connect("bank:80").await?;
    for _ in 0..TRANSFERS {
        sleep(Duration::from_millis(random::range(0..PAUSE_MILLIS))).await?;
        let from = random::range(0..ACCOUNTS as u64) as u8;
        let to = (from + 1) % ACCOUNTS as u8;
        let order = if random::range(0..2) == 0 { [from, to] } else { [to, from] };
        bank.write_all(&order).await?;
        bank.read_exact(&mut [0]).await?;
    }
    Ok(())
}

fn world(sim: &mut Sim, bug: bool) {
    sim.host("bank", move || bank(bug));
    for client in ["anna", "bert", "carl"] {
        sim.client(client, pay);
    }
}

#[test]
fn lock_order_is_found_within_500_seeds() {
    let failure = super::found_within(500, world);
    assert_eq!(failure.cause, Cause::Deadlock);
    assert!(failure.tasks.matches("lock_order.rs:").count() >= 2, "{failure}");
    for part in [
        " tasks wait for each other, and none of them can go on",
        " of host `bank` `connection` waits at sim/tests/sim/bugs/lock_order.rs:",
        " for mutex made at ",
        ", held by task ",
    ] {
        assert!(failure.waits.contains(part), "{part} in {failure}");
    }
}

#[test]
fn sound_program_fails_no_seed() {
    super::sound(world);
}
