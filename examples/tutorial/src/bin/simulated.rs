// ANCHOR: all
//! Pulse, stage 7: tested in the simulator.
//!
//! ```sh
//! simulated 127.0.0.1:8443 cert.pem key.pem db=127.0.0.1:5432 web=127.0.0.1:8080
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use pikake::http::axum::{Local, local};
use pikake::http::serve;
use pikake::net::tls::Identity;
use pikake::net::{TcpListener, TcpStream, interruption};
use pikake::{sleep, timeout_after, try_task_group};

/// How long a service may take to answer.
const LIMIT: Duration = Duration::from_millis(250);
/// The time between two checks of a service.
const PAUSE: Duration = Duration::from_secs(1);

/// A service: its name and its address.
type Service = (String, String);

#[pikake::main(signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next =
        || arguments.next().ok_or("usage: simulated ADDRESS CERTIFICATE KEY SERVICE=ADDRESS…");
    let listener = TcpListener::bind(next()?).await?;
    let identity = Identity::from_pem_files(next()?, next()?)?;
    let mut services: Vec<Service> = Vec::new();
    for argument in arguments {
        let (name, address) = argument.split_once('=').ok_or("a service is NAME=ADDRESS")?;
        services.push((name.to_owned(), address.to_owned()));
    }
    println!("the page is at https://{}", listener.local_addr()?);

    let page = Page::default();
    let report = try_task_group(async |tasks| {
        tasks.spawn_daemon(check_all(services, page.clone()));
        let app = Router::new().route("/", get(local(show))).with_state(Local::new(page));
        Ok::<_, Box<dyn Error>>(serve(listener, app).tls(identity).await?)
    })
    .await?;
    println!("{report}");
    Ok(())
}

/// Answers a request with the page.
async fn show(State(page): State<Local<Page>>) -> String {
    page.text()
}

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

// ANCHOR: check
/// Checks a service within the limit.
async fn check(address: &str) -> io::Result<()> {
    timeout_after(LIMIT, ping(address)).await?
}

/// Sends `ping` to a service, which has to answer `pong`.
async fn ping(address: &str) -> io::Result<()> {
    let stream = TcpStream::connect(address).await?;
    stream.write_all(b"ping\n").await?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await?;
    if &answer == b"pong\n" { Ok(()) } else { Err(io::Error::other("a wrong answer")) }
}
// ANCHOR_END: check

// ANCHOR: test
#[cfg(test)]
#[path = "../world.rs"]
mod world;

#[cfg(test)]
#[test]
fn results_are_new() {
    pikake::sim::Runs::new("results_are_new").seeds(200).run(world::world);
}
// ANCHOR_END: test
// ANCHOR_END: all
