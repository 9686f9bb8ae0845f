//! reqwest in the simulator: a client on one host, axum on another, and a network that fails.
//!
//! ```text
//! all orders are taken, each of them once
//! a request timed out: in some of them
//! an order was taken although its answer got lost: in some of them
//! ```
//!
//! The seed decides over delays, faults and the order of tasks. Timeouts of reqwest pass in virtual
//! time.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use pikake::http::axum::Local;
use pikake::http::axum::routing::post;
use pikake::http::serve;
use pikake::net::{TcpListener, lookup_host};
use pikake::sim::{FaultMix, Runs, Sim, sometimes};
use pikake::{Bound, random, sleep};
use reqwest::Client;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// The orders of the client.
const ORDERS: u32 = 10;

/// When the network is whole again.
const HEALED: Duration = Duration::from_secs(30);

/// How long the client waits for an answer, and before it asks again.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_secs(1);

/// The numbers of the orders that the server has taken.
type Taken = Rc<RefCell<BTreeSet<u32>>>;

async fn order(State(taken): State<Local<Taken>>, Path(number): Path<u32>) -> &'static str {
    drop(sleep(Duration::from_millis(random::range(1..500))).await);
    match taken.borrow_mut().insert(number) {
        true => "taken",
        false => "known",
    }
}

async fn server(taken: Taken) -> Result<(), Box<dyn Error>> {
    let router = Router::new().route("/orders/{number}", post(order));
    let listener = TcpListener::bind("0.0.0.0:8080").await?;
    serve(listener, router.with_state(Local::new(taken))).await?;
    Ok(())
}

/// Names of the simulated world, which the system does not know.
struct Names;

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(Bound::future(async move {
            let addresses: Vec<_> = lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        }))
    }
}

async fn client(taken: Taken) -> Result<(), Box<dyn Error>> {
    let client = Client::builder().no_proxy().dns_resolver(Names).timeout(PATIENCE).build()?;
    for number in 0..ORDERS {
        loop {
            let asking = client.post(format!("http://server:8080/orders/{number}")).send();
            match asking.await.and_then(reqwest::Response::error_for_status) {
                Ok(_) => break,
                Err(error) => {
                    sometimes!(error.is_timeout(), "a request timed out");
                    sometimes!(
                        taken.borrow().contains(&number),
                        "an order was taken although its answer got lost"
                    );
                    sleep(PAUSE).await?;
                }
            }
        }
    }
    assert_eq!(*taken.borrow(), (0..ORDERS).collect());
    Ok(())
}

fn world(sim: &mut Sim) {
    let taken = Taken::default();
    let server_taken = taken.clone();
    sim.host("server", move || server(server_taken.clone()));
    sim.client("client", move || client(taken.clone()));
    sim.fault_mix(FaultMix::network(HEALED));
}

pub(crate) fn demo(name: &str) -> Vec<String> {
    // reqwest is built without a provider of cryptography. `Err`: there is one.
    drop(rustls::crypto::ring::default_provider().install_default());
    let runs = Runs::new(name)
        .seeds(20)
        .expect(["a request timed out", "an order was taken although its answer got lost"]);
    runs.check_determinism().run(world);
    vec![
        "all orders are taken, each of them once".to_owned(),
        "a request timed out: in some of them".to_owned(),
        "an order was taken although its answer got lost: in some of them".to_owned(),
    ]
}

fn main() {
    for line in demo("client_orders_while_the_network_fails") {
        println!("{line}");
    }
}
