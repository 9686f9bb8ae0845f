// ANCHOR: all
//! Pulse, from stage 5 on: the services, the page, and the checks that its stages share.

pub mod https;
pub mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpStream, interruption};
use pikake::{sleep, timeout_after, try_task_group};

/// How long a service may take to answer.
const LIMIT: Duration = Duration::from_millis(250);
/// The time between two checks of a service.
const PAUSE: Duration = Duration::from_secs(1);

/// A service: its name and its address.
pub type Service = (String, String);

/// The services of a command line, each as `NAME=ADDRESS`.
///
/// # Errors
///
/// If an argument has no `=`.
pub fn services(arguments: impl Iterator<Item = String>) -> Result<Vec<Service>, &'static str> {
    let service = |argument: String| {
        let (name, address) = argument.split_once('=').ok_or("a service is NAME=ADDRESS")?;
        Ok((name.to_owned(), address.to_owned()))
    };
    arguments.map(service).collect()
}

// ANCHOR: page
/// The result of the last check of each service.
#[derive(Clone, Debug, Default)]
pub struct Page(Rc<RefCell<BTreeMap<String, &'static str>>>);

impl Page {
    fn set(&self, service: &str, state: &'static str) {
        self.0.borrow_mut().insert(service.to_owned(), state);
    }

    /// A line for each service.
    pub fn text(&self) -> String {
        self.0.borrow().iter().map(|(service, state)| format!("{service} {state}\n")).collect()
    }
}
// ANCHOR_END: page

// ANCHOR: checks
/// Checks all services, each in a task of its own, until it is interrupted.
///
/// # Errors
///
/// If it is interrupted.
pub async fn check_all<C>(services: Vec<Service>, page: Page, check: C) -> io::Result<()>
where
    C: AsyncFn(&str) -> io::Result<()> + Copy + 'static,
{
    try_task_group(async |tasks| {
        for service in services {
            let name = format!("check {}", service.0);
            tasks.spawn_named(name, keep_checking(service, page.clone(), check));
        }
        Ok(())
    })
    .await
}

/// Checks one service, again and again, and puts each result on the page.
async fn keep_checking<C>((name, address): Service, page: Page, check: C) -> io::Result<()>
where
    C: AsyncFn(&str) -> io::Result<()>,
{
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
/// Connects to a service and asks it.
///
/// # Errors
///
/// If the service is down.
pub async fn check(address: &str) -> io::Result<()> {
    let stream = timeout_after(LIMIT, TcpStream::connect(address)).await??;
    ping(stream).await
}

/// Sends `ping` to a service, which has to answer `pong`.
async fn ping(stream: TcpStream) -> io::Result<()> {
    stream.write_all(b"ping\n").await?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await?;
    if &answer == b"pong\n" { Ok(()) } else { Err(io::Error::other("a wrong answer")) }
}
// ANCHOR_END: check

// ANCHOR: fix
/// Connects to a service and asks it, within the limit.
///
/// # Errors
///
/// If the service is down.
pub async fn check_in_time(address: &str) -> io::Result<()> {
    timeout_after(LIMIT, async { ping(TcpStream::connect(address).await?).await }).await?
}
// ANCHOR_END: fix
// ANCHOR_END: all
