//! Whole programs in a world.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream};
use pikake::sim::{Runs, Sim};
use pikake::{random, sleep, spawn};

async fn echo_once() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = spawn(async move {
        let (stream, _) = listener.accept().await?;
        let mut buffer = [0; 64];
        let length = stream.read(&mut buffer).await?;
        stream.write_all(&buffer[..length]).await?;
        io::Result::Ok(())
    });
    let stream = TcpStream::connect(address).await?;
    stream.write_all(b"hello").await?;
    let mut buffer = [0; 1];
    stream.read_exact(&mut buffer).await?;
    assert_eq!(&buffer, b"h");
    server.await.unwrap()
}

#[pikake::test]
async fn echo_is_a_test() {
    echo_once().await.unwrap();
}

#[pikake::sim(seeds = 50)]
async fn echo_is_a_simulation() {
    echo_once().await.unwrap();
}

#[pikake::sim(name = "another name", seeds = 2)]
async fn simulation_has_a_name_and_returns_result() -> io::Result<()> {
    assert_eq!(pikake::current().name(), "another name");
    TcpListener::bind("another name:80").await?;
    Ok(())
}

#[pikake::sim(seeds = 5)]
async fn server_panic_during_shutdown_is_no_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn(async move {
        loop {
            listener.accept().await.expect("this panic is part of the test");
        }
    })
    .detach();
    TcpStream::connect(address).await.unwrap();
}

async fn serve_echo() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        spawn(async move {
            let mut buffer = [0; 1024];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        })
        .detach();
    }
}

async fn talk() -> io::Result<()> {
    let stream = TcpStream::connect("server:7").await?;
    for _ in 0..10 {
        let sent = random::u64().to_le_bytes();
        stream.write_all(&sent).await?;
        let mut received = [0; 8];
        stream.read_exact(&mut received).await?;
        assert_eq!(sent, received);
        sleep(Duration::from_secs(random::range(0..10))).await.unwrap();
    }
    Ok(())
}

fn echo_world(sim: &mut Sim) {
    sim.host("server", serve_echo);
    sim.client("client", talk).client("other", talk);
}

#[test]
fn runs_of_two_hosts_repeat_exactly() {
    let ran = Rc::new(Cell::new(0));
    let counted = ran.clone();
    let summary = Runs::new("two_hosts").seeds(20).check_determinism().run(move |sim| {
        counted.set(counted.get() + 1);
        echo_world(sim);
    });
    assert!(ran.get() == 2 * summary.runs);
}
