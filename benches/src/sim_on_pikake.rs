//! The scenario on pikake.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream};
use pikake::sim::{Latency, Link, Network, Schedule, Sim};
use pikake::{sleep, spawn};

use crate::{Counts, EVERY, HOSTS, LATENCY, PORT, REQUEST, SEED, first_request, name, others};

type Requests = Rc<Cell<u64>>;

pub(crate) fn run(length: Duration) -> Counts {
    let requests = Requests::default();
    let mut sim = Sim::new(SEED);
    for number in 0..HOSTS {
        let requests = requests.clone();
        sim.host(&name(number), move || host(number, requests.clone()));
    }
    let mut network = Network::default();
    network.link = Link::new(Latency::Uniform(LATENCY.0, LATENCY.1));
    network.short = 0.0;
    sim.network(network).schedule(Schedule::Fifo).stop_after(length);
    let report = sim.run().expect("nothing fails");
    Counts { requests: requests.get(), events: Some(report.events), steps: Some(report.steps) }
}

async fn host(number: usize, requests: Requests) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    for other in others(number) {
        spawn(client(number, other, requests.clone())).detach();
    }
    loop {
        let (stream, _) = listener.accept().await?;
        spawn(echo(stream)).detach();
    }
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; REQUEST];
    loop {
        stream.read_exact(&mut buffer).await?;
        stream.write_all(&buffer).await?;
    }
}

async fn client(host: usize, other: usize, requests: Requests) -> io::Result<()> {
    sleep(first_request(host, other)).await?;
    let stream = TcpStream::connect((name(other), PORT)).await?;
    let mut buffer = [0; REQUEST];
    loop {
        stream.write_all(&buffer).await?;
        stream.read_exact(&mut buffer).await?;
        requests.set(requests.get() + 1);
        sleep(EVERY).await?;
    }
}
