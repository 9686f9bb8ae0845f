//! The scenario on turmoil, with its millisecond of a tick.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_local;
use tokio::time::sleep;
use turmoil::Builder;
use turmoil::net::{TcpListener, TcpStream};

use crate::{Counts, EVERY, HOSTS, LATENCY, PORT, REQUEST, SEED, first_request, name, others};

type Requests = Rc<Cell<u64>>;

pub(crate) fn run(length: Duration) -> Counts {
    let requests = Requests::default();
    let mut sim = Builder::new()
        .rng_seed(SEED)
        .min_message_latency(LATENCY.0)
        .max_message_latency(LATENCY.1)
        // It fails when it gets there, so it does not.
        .simulation_duration(length * 2)
        .build();
    for number in 0..HOSTS {
        let requests = requests.clone();
        sim.host(name(number), move || {
            let requests = requests.clone();
            async move { Ok(host(number, requests).await?) }
        });
    }
    while sim.elapsed() < length {
        sim.step().expect("nothing fails");
    }
    Counts { requests: requests.get(), ..Counts::default() }
}

async fn host(number: usize, requests: Requests) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    for other in others(number) {
        spawn_local(client(number, other, requests.clone()));
    }
    loop {
        let (stream, _) = listener.accept().await?;
        spawn_local(echo(stream));
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; REQUEST];
    loop {
        stream.read_exact(&mut buffer).await?;
        stream.write_all(&buffer).await?;
    }
}

async fn client(host: usize, other: usize, requests: Requests) -> io::Result<()> {
    sleep(first_request(host, other)).await;
    let mut stream = TcpStream::connect((name(other), PORT)).await?;
    let mut buffer = [0; REQUEST];
    loop {
        stream.write_all(&buffer).await?;
        stream.read_exact(&mut buffer).await?;
        requests.set(requests.get() + 1);
        sleep(EVERY).await;
    }
}
