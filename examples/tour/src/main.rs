//! A first look at pikake: a bank with two accounts, and a bug in it.
//!
//! The program runs a transfer under a deadline, and the transfer undoes itself. Then it runs two
//! transfers on this machine, where the bug hardly ever shows. Finally, it runs the same transfers
//! in the simulator, with one seed after another, until they hang. The report names the locks and
//! their holders.

use std::rc::Rc;
use std::time::Duration;

use pikake::sim::Runs;
use pikake::sync::Mutex;
use pikake::{Interrupted, TaskGroup, random, sleep, timeout_after};

type Account = Rc<Mutex<i64>>;

/// The time that the other bank takes to answer.
const ANSWER: Duration = Duration::from_millis(10);

fn account(owner: &'static str) -> Account {
    Rc::new(Mutex::new(100).named(owner))
}

/// Moves ten coins, or none.
async fn transfer(from: Account, to: Account, answer: Duration) -> Result<(), Interrupted> {
    let mut from = from.lock().await?;
    *from -= 10;
    // A deadline or a cancel is an error of this wait, and all variables are still there.
    if let Err(interrupted) = sleep(answer).await {
        println!("   the transfer is interrupted: {interrupted}");
        sleep(ANSWER).await?; // what undoes the transfer may wait, too
        *from += 10;
        return Err(interrupted);
    }
    *to.lock().await? += 10;
    Ok(())
}

/// Two transfers, each begun at some moment of the same second.
async fn two_transfers() -> Result<(), Interrupted> {
    let (ann, bob) = (account("account of ann"), account("account of bob"));
    let mut transfers = TaskGroup::new();
    for (name, from, to) in [("ann to bob", &ann, &bob), ("bob to ann", &bob, &ann)] {
        let (from, to) = (Rc::clone(from), Rc::clone(to));
        transfers.spawn_named(name, async move {
            sleep(Duration::from_millis(random::range(0..1_000))).await?;
            transfer(from, to, ANSWER).await
        });
    }
    drop(transfers.join_all().await);
    Ok(())
}

#[pikake::main]
async fn deadline() -> Result<(), Interrupted> {
    let (ann, bob) = (account("account of ann"), account("account of bob"));
    let hour = Duration::from_secs(3_600);
    let outcome = timeout_after(2 * ANSWER, transfer(Rc::clone(&ann), bob, hour)).await;
    println!("   outcome: {outcome:?}; ann has {} coins", *ann.lock().await?);
    Ok(())
}

#[pikake::main]
async fn on_this_machine() {
    let outcome = timeout_after(Duration::from_secs(5), two_transfers()).await;
    println!("   outcome: {outcome:?}");
}

fn main() -> Result<(), Interrupted> {
    println!("1. A transfer that takes an hour, with a deadline:");
    deadline()?;

    println!("2. Two transfers at once, on this machine:");
    on_this_machine();

    println!("3. The same two in the simulator, in virtual time, until a seed finds a fault:");
    let runs = Runs::new("tour").seeds(1_000);
    match runs.try_run(|sim| {
        sim.client("bank", two_transfers);
    }) {
        Ok(_) => println!("   no seed found one"),
        Err(failure) => println!("{failure}\nPIKAKE_SEED={} repeats this run.", failure.seed),
    }
    Ok(())
}
