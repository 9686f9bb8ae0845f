//! A program that hangs, to practise on with the program `pikake`. Needs the feature `console`.
//!
//! The argument chooses the fault: `deadlock` (two tasks lock two mutexes in opposite orders),
//! `busy` (a task never awaits), or `leak` (requests wait for answers that never come). The page
//! "My program hangs" of the book finds each of them. It prints:
//!
//! ```text
//! process 4711
//! ```

use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use pikake::sync::{Mutex, oneshot};
use pikake::{Interrupted, TaskGroup, sleep, task};

/// The time between two requests.
const PERIOD: Duration = Duration::from_millis(50);

#[pikake::main(console)]
async fn main() -> Result<(), Box<dyn Error>> {
    let argument = std::env::args().nth(1);
    let pid = std::process::id();
    println!("process {pid}");
    match argument.as_deref() {
        Some("deadlock") => deadlock().await,
        Some("busy") => busy().await,
        Some("leak") => leak().await,
        _ => Err("usage: hung deadlock|busy|leak".into()),
    }
}

// ANCHOR: deadlock
/// Moves an amount from one account to another, both locked.
async fn transfer(from: Rc<Mutex<i64>>, to: Rc<Mutex<i64>>) -> Result<(), Interrupted> {
    let mut from = from.lock().await?;
    sleep(Duration::from_millis(10)).await?;
    let mut to = to.lock().await?;
    *from -= 1;
    *to += 1;
    Ok(())
}

async fn deadlock() -> Result<(), Box<dyn Error>> {
    let ann = Rc::new(Mutex::new(100).named("account of ann"));
    let bob = Rc::new(Mutex::new(100).named("account of bob"));
    let mut transfers = TaskGroup::new();
    transfers.spawn_named("ann to bob", transfer(Rc::clone(&ann), Rc::clone(&bob)));
    transfers.spawn_named("bob to ann", transfer(bob, ann));
    transfers.join_all().await?;
    Ok(())
}
// ANCHOR_END: deadlock

// ANCHOR: busy
/// Whether a number is prime, by trying every smaller one.
fn is_prime(number: u64) -> bool {
    (2..number).all(|divisor| number.rem_euclid(divisor) != 0)
}

async fn heartbeat() -> Result<(), Interrupted> {
    loop {
        sleep(PERIOD).await?;
    }
}

async fn busy() -> Result<(), Box<dyn Error>> {
    let mut tasks = TaskGroup::new();
    tasks.spawn_named("heartbeat", heartbeat());
    tasks.spawn_named("search", async {
        sleep(PERIOD).await?;
        let prime = (1 << 61..).find(|number| is_prime(*number));
        println!("a large prime: {prime:?}");
        Ok(())
    });
    tasks.join_all().await?;
    Ok(())
}
// ANCHOR_END: busy

// ANCHOR: leak
/// Prints the answer to a request.
async fn request(answer: oneshot::Receiver<String>) {
    match answer.await {
        Ok(Ok(answer)) => println!("{answer}"),
        Ok(Err(error)) => eprintln!("no answer: {error}"),
        Err(interrupted) => eprintln!("no answer: {interrupted}"),
    }
}

async fn leak() -> Result<(), Box<dyn Error>> {
    let mut unanswered = Vec::new();
    loop {
        sleep(PERIOD).await?;
        let (sender, answer) = oneshot::channel();
        // Nothing ever takes the sender from here.
        unanswered.push(sender);
        task::Builder::new().name("request").spawn(request(answer)).detach();
    }
}
// ANCHOR_END: leak
