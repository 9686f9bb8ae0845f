//! Faults that the worlds have found, alone.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use pikake::net::{Closing, MemoryStream, TcpListener};
use pikake::rpc::packets::{Packet, PacketOptions, open};
use pikake::rpc::{CallFailure, Client, Executed, Sender, Server, channel};
use pikake::sim::Sim;
use pikake::{sleep, spawn};

#[pikake::service]
trait Slow {
    async fn wait(&self, millis: u64) -> u64;
    #[idempotent]
    async fn note(&self);
    async fn count(&self, numbers: Sender<u64>);
}

struct Counting;

impl Slow for Counting {
    async fn wait(&self, millis: u64) -> u64 {
        let _ = sleep(Duration::from_millis(millis)).await;
        millis
    }

    async fn note(&self) {
        let _ = sleep(Duration::from_secs(60)).await;
    }

    async fn count(&self, numbers: Sender<u64>) {
        for number in 0.. {
            if numbers.send(number).await.is_err() {
                break;
            }
        }
    }
}

const ADDRESS: &str = "127.0.0.1:7000";

async fn server(closing: &Closing) -> pikake::Task<()> {
    let listener = TcpListener::bind(ADDRESS).await.unwrap();
    let server = Server::new().add(SlowServer::new(Counting)).closing(closing);
    spawn(async move { drop(server.serve(listener).await.unwrap()) })
}

async fn millis(count: u64) {
    sleep(Duration::from_millis(count)).await.unwrap();
}

#[test]
fn dropped_wait_for_a_packet_takes_nothing() {
    pikake::sim::example(async {
        let (here, there) = MemoryStream::pair(4096);
        let opened = spawn(open(there, PacketOptions::new()));
        let (mut packets, _sender) = open(here, PacketOptions::new()).await.unwrap();
        let (_reader, peer) = opened.await.unwrap().unwrap();
        for id in 1..4 {
            peer.send(Packet::new(1, id, b"body")).await.unwrap();
            assert_eq!(packets.next().await.unwrap().unwrap().id, id);
            let mut next = pin!(packets.next());
            let polled = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_pending()));
            assert!(polled.await);
        }
        drop(peer);
        assert!(packets.next().await.unwrap().is_none());
    });
}

#[test]
fn items_for_a_caller_that_gave_up_harm_no_other_call() {
    pikake::sim::example(async {
        let closing = Closing::new();
        let server = server(&closing).await;
        let slow = SlowClient::new(Client::tcp(ADDRESS));
        let (sender, receiver) = channel(16);
        let count = spawn({
            let slow = slow.clone();
            async move { slow.count(sender).await }
        });
        let wait = spawn(async move { slow.wait(200).await });
        // The channel is full, and the credit for half of it lets items leave.
        millis(100).await;
        for number in 0..8 {
            assert_eq!(receiver.next().await.unwrap(), Some(number));
        }
        count.request_cancel("enough");
        assert!(count.await.unwrap().is_err());
        assert_eq!(wait.await.unwrap().unwrap(), 200);
        closing.begin();
        server.await.unwrap();
    });
}

#[test]
fn receiver_that_is_gone_before_the_call_stops_the_sender() {
    pikake::sim::example(async {
        let closing = Closing::new();
        let server = server(&closing).await;
        let slow = SlowClient::new(Client::tcp(ADDRESS));
        let (sender, receiver) = channel(4);
        drop(receiver);
        slow.count(sender).await.unwrap();
        closing.begin();
        server.await.unwrap();
    });
}

#[test]
fn refused_late_request_harms_no_other_call() {
    pikake::sim::example(async {
        let closing = Closing::new();
        let server = server(&closing).await;
        let client = Client::builder().tcp(ADDRESS).attempts(1).build();
        let slow = SlowClient::new(client);
        let first = spawn({
            let slow = slow.clone();
            async move { slow.wait(200).await }
        });
        millis(100).await;
        // The request is on its way when the server begins to leave.
        let late = spawn(async move { slow.wait(1).await });
        pikake::yield_now().await.unwrap();
        closing.begin();
        let error = late.await.unwrap().unwrap_err();
        assert!(matches!(error.failure, CallFailure::ShuttingDown), "{error}");
        assert_eq!(error.executed, Executed::No);
        assert_eq!(first.await.unwrap().unwrap(), 200);
        server.await.unwrap();
    });
}

#[test]
fn last_attempt_does_not_speak_for_those_before() {
    let mut sim = Sim::new(1);
    sim.host("server", || async {
        let listener = TcpListener::bind("0.0.0.0:7000").await?;
        let server = Server::new().add(SlowServer::new(Counting));
        server.serve(listener).await.map(drop).map_err(std::io::Error::from)
    });
    sim.client("client", || async {
        let slow = SlowClient::new(Client::tcp("server:7000"));
        // The further attempts find no server.
        let error = slow.note().await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Connection(_)), "{error}");
        assert_eq!(error.executed, Executed::Maybe);
    });
    sim.faults("1s kill server".parse().unwrap());
    sim.run().unwrap();
}
