//! Peers that are no brokers, or not for long.

use std::time::Duration;

use pikake_amqp::{Connection, Error, Options, QueueOptions, State};
use pikake_amqp_testing::{Broker, serve};
use pikake_net::TcpListener;
use pikake_sim::Sim;
use pikake_traps::{TimedOut, elapsed_since, now, sleep, spawn, timeout_after};

use crate::{SECOND, message};

/// What comes of connecting to one that says this.
async fn opened_to(say: Vec<u8>, hold: bool) -> (Result<Connection, Error>, Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("amqp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let _peer = spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        stream.write_all(&say).await.unwrap();
        if hold {
            let _ended = sleep(1000 * SECOND).await;
        }
    })
    .cancel_on_drop();
    let begun = now();
    let opened = Connection::open(&address, Options::default()).await;
    (opened, elapsed_since(begun))
}

#[test]
fn peers_that_are_no_brokers_are_named_for_what_they_are() {
    pikake_sim::example(async {
        let error = |said: (Result<Connection, Error>, Duration)| said.0.unwrap_err().to_string();
        let said = error(opened_to(b"HTTP/1.1 400 Bad Request\r\n".to_vec(), true).await);
        assert!(said.contains("HTTP/1.1 400"), "{said}");
        let said = error(opened_to(b"AMQP\0\x01\0\0".to_vec(), true).await);
        assert!(said.contains("version 1.0.0"), "{said}");
        let said = error(opened_to(vec![1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0], true).await);
        assert!(said.contains("4294967295 bytes"), "{said}");
        let said = error(opened_to(vec![], false).await);
        assert!(said.contains("in the handshake: the broker hung up"), "{said}");
        // Silence, and half a frame of it.
        for begin in [vec![], vec![1, 0, 0]] {
            let (opened, took) = opened_to(begin, true).await;
            let said = opened.unwrap_err().to_string();
            assert!(said.contains("within 10s"), "{said}");
            assert!(took >= 10 * SECOND && took < 11 * SECOND, "{took:?}");
        }
    });
}

#[test]
fn a_peer_that_goes_mad_later_is_left_and_tried_again() {
    pikake_sim::example(async {
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let broker = Broker::new();
        // One that speaks AMQP to the first connection for a while, and then says what is no frame.
        let mad = spawn({
            let broker = broker.clone();
            async move {
                let (stream, _) = listener.accept().await.unwrap();
                let id = broker.connect();
                let mut buffer = [0; 4096];
                while broker.queues().is_empty() {
                    let length = stream.read(&mut buffer).await.unwrap();
                    broker.input(id, &buffer[..length]);
                    stream.write_all(&broker.output(id).0).await.unwrap();
                }
                stream.write_all(&[0xff; 20]).await.unwrap();
                broker.disconnect(id);
                serve(broker, listener).await
            }
        });
        let address = "amqp://127.0.0.1".parse().unwrap();
        let connection = Connection::open(&address, Options::default()).await.unwrap();
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("q", QueueOptions::default()).await.unwrap();
        while !matches!(connection.state(), State::Recovering { .. }) {
            connection.changed().await.unwrap();
        }
        channel.post(message("q", 1)).await.unwrap().await.unwrap();
        assert_eq!(broker.ready("q"), 1);
        mad.abort();
    });
}

/// How a peer says something, piece by piece and for ever.
#[derive(Clone, Copy, Debug)]
enum Pieces {
    /// Heartbeats, as fast as they are taken.
    Flood,
    /// Heartbeats, ten in a second.
    Heartbeats,
    /// The octets of a frame that is long, ten in a second.
    Octets,
    /// The same, one in a second.
    SlowOctets,
    /// Nothing.
    Silence,
}

/// Answers as a broker does, until the client has been answered so often. Without a limit of its
/// own, a broker says connection.start, tune and open-ok.
async fn answer(stream: &pikake_net::TcpStream, answers: usize) -> std::io::Result<()> {
    let broker = Broker::new();
    let id = broker.connect();
    let mut buffer = [0; 4096];
    let mut answered = 0;
    while answered < answers {
        let length = stream.read(&mut buffer).await?;
        broker.input(id, &buffer[..length]);
        let output = broker.output(id).0;
        answered += usize::from(!output.is_empty());
        stream.write_all(&output).await?;
    }
    Ok(())
}

async fn say(answers: usize, pieces: Pieces, stream: pikake_net::TcpStream) -> std::io::Result<()> {
    const HEARTBEAT: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 0xce];
    answer(&stream, answers).await?;
    if let Pieces::Octets | Pieces::SlowOctets = pieces {
        stream.write_all(&[1, 0, 0, 0, 0, 0xff, 0xff]).await?;
    }
    loop {
        match pieces {
            Pieces::Flood => stream.write_all(&HEARTBEAT.repeat(1_000)).await?,
            Pieces::Heartbeats => stream.write_all(&HEARTBEAT).await?,
            Pieces::Octets | Pieces::SlowOctets => stream.write_all(&[0]).await?,
            Pieces::Silence => {}
        }
        match pieces {
            Pieces::Flood => {}
            Pieces::SlowOctets | Pieces::Silence => sleep(SECOND).await?,
            _ => sleep(SECOND / 10).await?,
        }
    }
}

const ALL_PIECES: [Pieces; 5] =
    [Pieces::Flood, Pieces::Heartbeats, Pieces::Octets, Pieces::SlowOctets, Pieces::Silence];

/// How long a client runs that opens a connection and a channel, until its kernel has ended.
fn ran_for(answers: usize, pieces: Pieces) -> Duration {
    let mut sim = Sim::new(0);
    sim.host("broker", move || async move {
        let listener = TcpListener::bind("0.0.0.0:5672").await.unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            spawn(async move { drop(say(answers, pieces, stream).await) }).detach();
        }
    });
    let ran = sim.run_here("client", async {
        let address = crate::address();
        let opened = async {
            let connection = Connection::open(&address, Options::default()).await?;
            connection.channel().await.map(drop)
        };
        timeout_after(8 * SECOND, opened).await
    });
    let ran = ran.unwrap_or_else(|failure| panic!("{answers} {pieces:?}: {failure}"));
    let opened = ran.outcome.unwrap();
    assert!(matches!(opened, Err(TimedOut)), "{answers} {pieces:?}: {opened:?}");
    ran.report.time
}

/// Nothing of the client waits for such a peer, and the kernel ends at once.
#[test]
fn endless_handshake_ends_with_its_timeout() {
    for answers in 0..3 {
        for pieces in ALL_PIECES {
            let took = ran_for(answers, pieces);
            assert!(took >= 8 * SECOND && took < 9 * SECOND, "{answers} {pieces:?}: {took:?}");
        }
    }
}

/// A connection that was opened is closed, for which the client waits three seconds.
#[test]
fn endless_channel_ends_with_its_timeout_and_the_close() {
    for pieces in ALL_PIECES {
        let took = ran_for(3, pieces);
        assert!(took >= 8 * SECOND && took < 12 * SECOND, "{pieces:?}: {took:?}");
    }
}
