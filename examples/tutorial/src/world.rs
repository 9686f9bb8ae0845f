//! A simulated world for pulse: it checks one service, over a network that fails.

use std::error::Error;
use std::io;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, serve};
use pikake::sim::{FaultMix, Sim};
use pikake::{sleep, spawn};

use crate::{Page, check_all};

// ANCHOR: world
/// Two hosts: `db` is a service, and `pulse` checks it while the network fails.
pub fn world<C>(sim: &mut Sim, check: C)
where
    C: AsyncFn(&str) -> io::Result<()> + Copy + 'static,
{
    sim.host("db", service);
    sim.client("pulse", move || async move {
        let page = Page::default();
        let services = vec![("db".to_owned(), "db:5432".to_owned())];
        spawn(check_all(services, page.clone(), check)).detach();
        expect_results(page).await
    });
    sim.fault_mix(FaultMix::network(Duration::from_secs(50)));
}

/// Answers each `ping` with `pong`.
async fn service() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:5432").await?;
    let answer = async |stream: TcpStream, _| {
        if stream.read_exact(&mut [0; 5]).await.is_ok() {
            drop(stream.write_all(b"pong\n").await);
        }
    };
    serve(listener, 10, answer).await.map(drop)
}

/// Clears the page every three seconds, for a minute. Each time, a check must put a result there.
async fn expect_results(page: Page) -> Result<(), Box<dyn Error>> {
    for _ in 0..20 {
        page.0.borrow_mut().clear();
        sleep(Duration::from_secs(3)).await?;
        if page.0.borrow().is_empty() {
            return Err("no result for three seconds".into());
        }
    }
    Ok(())
}
// ANCHOR_END: world
