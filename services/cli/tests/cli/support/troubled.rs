//! A server in trouble, and the load on it, for the commands that look into a process.
//!
//! `cli_troubled TROUBLE` serves orders at a port of its own and prints `serving ADDRESS`.
//! `cli_troubled load ADDRESS` is twenty clients, each of which sends orders until the server hangs
//! up.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Mutex as StandardMutex;
use std::thread;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, serve};
use pikake::sync::{Mutex, oneshot};
use pikake::{Interrupted, TaskGroup, sleep, task};

/// The clients of a load.
const CLIENTS: usize = 20;

/// The time between two orders of a client.
const PERIOD: Duration = Duration::from_millis(20);

/// How often there is trouble that comes and goes.
const NOW_AND_THEN: Duration = Duration::from_secs(4);

/// The length of a step that blocks.
const BLOCK: Duration = Duration::from_millis(1_500);

/// The time for which a slow order has the lock.
const SLOW: Duration = Duration::from_millis(800);

/// The trouble of a server.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    /// Orders lock stock and accounts in both sequences.
    Deadlock,
    /// A task never awaits.
    Busy,
    /// Each order leaves a task that waits for ever.
    Leak,
    /// An order keeps a lock over a long wait now and then.
    SlowLock,
    /// A lock of the standard library is held over an await.
    StandardMutex,
    /// A step blocks in the system now and then.
    Block,
}

/// The state that the handlers share.
struct Shop {
    trouble: Trouble,
    stock: Mutex<u64>,
    accounts: Mutex<u64>,
    ledger: StandardMutex<u64>,
    unanswered: Mutex<Vec<oneshot::Sender<u64>>>,
}

#[pikake::main(console)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let trouble = match arguments.next().as_deref() {
        Some("load") => {
            let server = arguments.next().ok_or("no address")?.parse()?;
            return Ok(load(server).await?);
        }
        Some("deadlock") => Trouble::Deadlock,
        Some("busy") => Trouble::Busy,
        Some("leak") => Trouble::Leak,
        Some("slow-lock") => Trouble::SlowLock,
        Some("standard-mutex") => Trouble::StandardMutex,
        Some("block") => Trouble::Block,
        _ => return Err("usage: cli_troubled TROUBLE | load ADDRESS".into()),
    };
    let shop = Rc::new(Shop {
        trouble,
        stock: Mutex::new(0).named("stock"),
        accounts: Mutex::new(0),
        ledger: StandardMutex::new(0),
        unanswered: Mutex::new(Vec::new()),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    eprintln!("serving {}", listener.local_addr()?);
    if trouble != Trouble::Deadlock && trouble != Trouble::Leak {
        task::Builder::new().name("now and then").spawn(now_and_then(Rc::clone(&shop))).detach();
    }
    serve(listener, 100, move |stream, _: SocketAddr| attend(Rc::clone(&shop), stream)).await?;
    Ok(())
}

/// The trouble that does not come from an order.
async fn now_and_then(shop: Rc<Shop>) -> Result<(), Interrupted> {
    loop {
        sleep(NOW_AND_THEN).await?;
        match shop.trouble {
            Trouble::Busy => search(),
            Trouble::SlowLock => {
                let mut stock = shop.stock.lock().await?;
                *stock += 1;
                sleep(SLOW).await?;
            }
            Trouble::StandardMutex => audit(&shop).await?,
            Trouble::Block => read_settings(),
            Trouble::Deadlock | Trouble::Leak => return Ok(()),
        }
    }
}

/// Computes for ever.
#[inline(never)]
fn search() {
    let is_prime = |number: u64| (2..number).all(|divisor| number.rem_euclid(divisor) != 0);
    println!("{:?}", (1 << 61..).find(|number| is_prime(*number)));
}

/// Blocks its thread.
#[inline(never)]
fn read_settings() {
    thread::sleep(BLOCK);
}

#[inline(never)]
fn write_ledger(shop: &Shop) {
    *shop.ledger.lock().expect("no holder panics") += 1;
}

#[expect(clippy::await_holding_lock, reason = "this is the trouble")]
async fn audit(shop: &Shop) -> Result<(), Interrupted> {
    let mut ledger = shop.ledger.lock().expect("no holder panics");
    *ledger += 1;
    sleep(PERIOD).await
}

/// Serves the orders of a connection: a byte each.
async fn attend(shop: Rc<Shop>, stream: TcpStream) {
    // A client that goes ends its connection.
    let _ = orders(&shop, &stream).await;
}

async fn orders(shop: &Shop, stream: &TcpStream) -> io::Result<()> {
    let mut order = [0];
    loop {
        if stream.read(&mut order).await? == 0 {
            return Ok(());
        }
        take_order(shop, order[0]).await?;
        stream.write_all(&order).await?;
    }
}

async fn take_order(shop: &Shop, order: u8) -> Result<(), Interrupted> {
    match shop.trouble {
        Trouble::Deadlock if order.is_multiple_of(2) => {
            let mut stock = shop.stock.lock().await?;
            sleep(Duration::from_millis(1)).await?;
            *shop.accounts.lock().await? += 1;
            *stock -= 1;
        }
        Trouble::Deadlock => {
            let mut accounts = shop.accounts.lock().await?;
            sleep(Duration::from_millis(1)).await?;
            *shop.stock.lock().await? += 1;
            *accounts -= 1;
        }
        Trouble::Leak => {
            let (sender, answer) = oneshot::channel::<u64>();
            shop.unanswered.lock().await?.push(sender);
            task::Builder::new().name("notify").spawn(async { answer.await.is_ok() }).detach();
        }
        Trouble::StandardMutex => write_ledger(shop),
        Trouble::Busy | Trouble::SlowLock | Trouble::Block => *shop.stock.lock().await? += 1,
    }
    Ok(())
}

/// Twenty clients.
async fn load(server: SocketAddr) -> io::Result<()> {
    let mut clients = TaskGroup::new();
    for client in 0..CLIENTS {
        clients.spawn_named("client", async move {
            let stream = TcpStream::connect(server).await?;
            for order in (0..CLIENTS as u8).cycle().skip(client) {
                stream.write_all(&[order]).await?;
                if stream.read(&mut [0]).await? == 0 {
                    break;
                }
                sleep(PERIOD).await?;
            }
            io::Result::Ok(())
        });
    }
    clients.join_all().await?;
    Ok(())
}
