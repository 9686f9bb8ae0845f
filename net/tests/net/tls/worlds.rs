//! TLS between the hosts of simulated worlds.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use pikake::net::tls::TlsStream;
use pikake::net::{TcpListener, TcpStream, interruption};
use pikake::sim::{Between, Fault, FaultPlan, Runs, Sim};
use pikake::{random, sleep, spawn, timeout_after};

use super::certificates::{Authority, SERVER};

const SECOND: Duration = Duration::from_secs(1);

async fn serve_echo(authority: Rc<Authority>) -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:443").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let acceptor = authority.acceptor();
        spawn(async move {
            let stream = acceptor.accept(stream).await?;
            let mut buffer = [0; 1024];
            loop {
                match stream.read(&mut buffer).await? {
                    0 => return stream.finish().await,
                    length => stream.write_all(&buffer[..length]).await?,
                }
            }
        })
        .detach();
    }
}

async fn connect(authority: &Authority) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect("server:443").await?;
    authority.connector().connect(SERVER, stream).await
}

async fn exchange(stream: &TlsStream<TcpStream>) -> io::Result<()> {
    let sent = random::u64().to_le_bytes();
    stream.write_all(&sent).await?;
    let mut received = [0; 8];
    stream.read_exact(&mut received).await?;
    assert_eq!(sent, received);
    Ok(())
}

/// A world of a server and a client that does this, for some seeds, with faults.
fn world<F>(seeds: u64, plan: FaultPlan, client: impl Fn(Rc<Authority>) -> F + Clone + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let ran = Rc::new(Cell::new(0));
    let counted = ran.clone();
    let authority = Rc::new(Authority::new());
    Runs::new("tls").seeds(seeds).run(move |sim: &mut Sim| {
        let there = authority.clone();
        sim.host("server", move || serve_echo(there.clone()));
        let (client, here, counted) = (client.clone(), authority.clone(), counted.clone());
        sim.client("client", move || {
            let (client, here, counted) = (client.clone(), here.clone(), counted.clone());
            async move {
                sleep(SECOND).await.unwrap();
                client(here).await;
                counted.set(counted.get() + 1);
            }
        });
        sim.faults(plan.clone());
    });
    assert_eq!(ran.get(), seeds);
}

#[test]
fn an_echo_by_the_world_s_clock() {
    // The world's clocks begin in 2030, by which the certificates are judged.
    world(20, FaultPlan::new(), |authority| async move {
        let stream = connect(&authority).await.unwrap();
        for _ in 0..10 {
            exchange(&stream).await.unwrap();
        }
        stream.finish().await.unwrap();
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
    });
}

#[test]
fn a_partition_is_waited_out_or_timed_out() {
    let cut = || Between::two_way(["client"], ["server"]);
    let plan = FaultPlan::new()
        .at(5 * SECOND, Fault::Partition(cut()))
        .at(20 * SECOND, Fault::Heal(cut()));
    world(10, plan, |authority| async move {
        let stream = connect(&authority).await.unwrap();
        exchange(&stream).await.unwrap();
        sleep(5 * SECOND).await.unwrap();
        // In the middle of the partition: interrupted, and nothing is lost.
        stream.write_all(b"question").await.unwrap();
        let mut answer = [0; 8];
        let timed = pikake::timed(SECOND, stream.read_exact(&mut answer)).await;
        let error = timed.output.unwrap().unwrap_err();
        assert!(interruption(&error.source).is_some());
        assert_eq!(error.read, 0);
        // A handshake has its own deadline there.
        let error = timeout_after(3 * SECOND, connect(&authority)).await;
        assert!(error.is_err());
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"question");
        exchange(&stream).await.unwrap();
    });
}

#[test]
fn reset_is_an_error_and_serving_continues() {
    let plan =
        FaultPlan::new().at(5 * SECOND, Fault::Reset(Between::two_way(["client"], ["server"])));
    world(10, plan, |authority| async move {
        let stream = connect(&authority).await.unwrap();
        exchange(&stream).await.unwrap();
        let error = stream.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        exchange(&connect(&authority).await.unwrap()).await.unwrap();
    });
}

#[test]
fn a_server_that_loses_power_in_a_handshake() {
    let plan = FaultPlan::new().at(SECOND, Fault::PowerOff("server".into()));
    world(10, plan, |authority| async move {
        let since = pikake::time::now();
        let error = timeout_after(30 * SECOND, connect(&authority)).await;
        assert!(error.is_err(), "nobody is there to refuse");
        assert_eq!(pikake::time::elapsed_since(since).as_secs(), 30);
    });
}
