// ANCHOR: all
//! Pulse, stage 5: real checks over TCP, and a server that sends the page.
//!
//! ```sh
//! server 127.0.0.1:7000 db=127.0.0.1:5432 web=127.0.0.1:8080
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, interruption, serve};
use pikake::{sleep, timeout_after, try_task_group};

/// How long a service may take to answer.
const LIMIT: Duration = Duration::from_millis(250);
/// The time between two checks of a service.
const PAUSE: Duration = Duration::from_secs(1);
/// How many clients may read the page at a time.
const MOST_CLIENTS: usize = 100;

// ANCHOR: main
/// A service: its name and its address.
type Service = (String, String);

#[pikake::main(signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: server ADDRESS NAME=ADDRESS…")?;
    let mut services: Vec<Service> = Vec::new();
    for argument in arguments {
        let (name, address) = argument.split_once('=').ok_or("a service is NAME=ADDRESS")?;
        services.push((name.to_owned(), address.to_owned()));
    }
    let listener = TcpListener::bind(&address).await?;
    println!("the page is at {}", listener.local_addr()?);

    let page = Page::default();
    let running: io::Result<()> = try_task_group(async |tasks| {
        tasks.spawn_named("checks", check_all(services, page.clone()));
        serve(listener, MOST_CLIENTS, move |stream, _| send(page.clone(), stream)).await.map(drop)
    })
    .await;
    if let Err(interrupted) = running {
        println!("{interrupted}");
    }
    Ok(())
}
// ANCHOR_END: main

// ANCHOR: page
/// The result of the last check of each service.
#[derive(Clone, Default)]
pub(crate) struct Page(pub(crate) Rc<RefCell<BTreeMap<String, &'static str>>>);

impl Page {
    fn set(&self, service: &str, state: &'static str) {
        self.0.borrow_mut().insert(service.to_owned(), state);
    }

    fn text(&self) -> String {
        self.0.borrow().iter().map(|(service, state)| format!("{service} {state}\n")).collect()
    }
}

/// Sends the page to a client.
async fn send(page: Page, stream: TcpStream) {
    if let Err(error) = stream.write_all(page.text().as_bytes()).await {
        println!("a client left early: {error}");
    }
}
// ANCHOR_END: page

// ANCHOR: checks
/// Checks all services, each in a task of its own, until it is interrupted.
pub(crate) async fn check_all(services: Vec<Service>, page: Page) -> io::Result<()> {
    try_task_group(async |tasks| {
        for service in services {
            tasks.spawn_named(format!("check {}", service.0), keep_checking(service, page.clone()));
        }
        Ok(())
    })
    .await
}

/// Checks one service, again and again, and puts each result on the page.
async fn keep_checking((name, address): Service, page: Page) -> io::Result<()> {
    loop {
        match check(&address).await {
            Ok(()) => page.set(&name, "is up"),
            // This task is cancelled: pass it on.
            Err(error) if interruption(&error).is_some() => return Err(error),
            Err(_) => page.set(&name, "is down"),
        }
        sleep(PAUSE).await?;
    }
}
// ANCHOR_END: checks

// ANCHOR: check
/// Sends `ping` to a service, which has to answer `pong`.
async fn check(address: &str) -> io::Result<()> {
    let stream = timeout_after(LIMIT, TcpStream::connect(address)).await??;
    stream.write_all(b"ping\n").await?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await?;
    if &answer == b"pong\n" { Ok(()) } else { Err(io::Error::other("a wrong answer")) }
}
// ANCHOR_END: check
// ANCHOR_END: all
