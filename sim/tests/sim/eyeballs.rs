//! Connecting to hosts of which some addresses lead nowhere, exactly by the virtual clock.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{
    AddressErrors, NameAnswer, NameSource, Resolver, TcpListener, TcpStream, interruption,
};
use pikake::sim::{Between, Fault, FaultPlan, Latency, Link, LinkChange, Network, Runs, Sim};
use pikake::time::{elapsed_since, now};
use pikake::{sleep, spawn, timeout_after};

/// From one host to another.
const WAY: Duration = Duration::from_millis(10);

/// There and back, which is what connecting takes, or being refused.
const BOTH_WAYS: Duration = Duration::from_millis(20);

/// From a host to itself.
const AT_HOME: Duration = Duration::from_micros(10);

/// From the client to the host that is far away.
const LONG_WAY: Duration = Duration::from_millis(200);

/// The addresses of the hosts. The server listens on its IPv4 address alone, the far one on both of
/// its own, the client on none; nothing gets through to the hole, and nobody is at the last one.
const SERVER: &str = "10.0.0.1";
const SERVER_V6: &str = "fd00::1";
const FAR: &str = "10.0.0.2";
const FAR_V6: &str = "fd00::2";
const HOLE: &str = "10.0.0.3";
const HOLE_V6: &str = "fd00::3";
const CLIENT: &str = "10.0.0.4";
const NOBODY: &str = "fd00::99";

/// Knows these addresses for any name.
#[derive(Clone)]
struct Fixed(Vec<IpAddr>);

impl Fixed {
    fn new(addresses: &[&str]) -> Self {
        Self(addresses.iter().map(|text| text.parse().unwrap()).collect())
    }
}

impl NameSource for Fixed {
    fn look_up(&self, _: &str) -> Pin<Box<dyn Future<Output = io::Result<NameAnswer>>>> {
        let answer = NameAnswer { addresses: self.0.clone(), ttl: None };
        Box::pin(async { Ok(answer) })
    }
}

/// Takes connections, and notes what each of them sent before its end.
async fn note_greetings(listens: &'static str, heard: Rc<RefCell<Vec<String>>>) -> io::Result<()> {
    let listener = TcpListener::bind(listens).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let heard = heard.clone();
        spawn(async move {
            let mut buffer = [0; 16];
            let length = stream.read(&mut buffer).await.unwrap_or(0);
            heard.borrow_mut().push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        })
        .detach();
    }
}

/// Runs a client in that world, for a few seeds; gives what the far host heard.
fn in_the_world<F>(client: impl Fn() -> F + Clone + 'static) -> Vec<String>
where
    F: Future<Output = ()> + 'static,
{
    let heard = Rc::new(RefCell::new(Vec::new()));
    let far_heard = heard.clone();
    Runs::new("eyeballs").seeds(5).run(move |sim: &mut Sim| {
        let mut network = Network::default();
        network.link = Link::new(Latency::Fixed(WAY));
        network.loopback = Latency::Fixed(AT_HOME);
        network.short = 0.0;
        // A step takes no time, so that what is measured is the network's.
        sim.network(network).step_cost(Duration::ZERO);
        let far_heard = far_heard.clone();
        sim.host("server", || note_greetings("0.0.0.0:80", Rc::default()));
        sim.host("far", move || {
            let far_heard = far_heard.clone();
            async move {
                let also = spawn(note_greetings("[::]:80", far_heard.clone()));
                note_greetings("0.0.0.0:80", far_heard).await?;
                also.await.unwrap()
            }
        });
        sim.host("hole", || note_greetings("0.0.0.0:80", Rc::default()));
        let client = client.clone();
        sim.client("client", move || {
            let client = client.clone();
            async move {
                // Until all listen, and all faults have come to be.
                sleep(Duration::from_secs(1)).await.unwrap();
                client().await;
            }
        });
        let long = LinkChange::Latency(Latency::Fixed(LONG_WAY));
        sim.faults(
            FaultPlan::new()
                .at(Duration::ZERO, Fault::Isolate("hole".into()))
                .at(Duration::ZERO, Fault::Link(Between::two_way(["client"], ["far"]), long)),
        );
    });
    heard.take()
}

/// Where a client gets to that knows these addresses, and when.
#[track_caller]
fn connects(addresses: &'static [&'static str], expected: &'static str, after: Duration) {
    in_the_world(move || async move {
        let resolver = Resolver::builder().source(Fixed::new(addresses)).build();
        let since = now();
        let stream = resolver.connect("example.org:80").await.unwrap();
        let peer = stream.peer_addr().unwrap().ip().to_string();
        assert_eq!((peer.as_str(), elapsed_since(since)), (expected, after));
    });
}

const fn ms(length: u64) -> Duration {
    Duration::from_millis(length)
}

#[test]
fn an_address_that_answers_is_not_raced() {
    connects(&[SERVER], SERVER, BOTH_WAYS);
    connects(&[SERVER, HOLE_V6, HOLE], SERVER, BOTH_WAYS);
}

#[test]
fn broken_ipv6_costs_a_quarter_of_a_second() {
    connects(&[HOLE_V6, SERVER], SERVER, ms(250) + BOTH_WAYS);
    // However many addresses of it there are: families take turns.
    connects(&[HOLE_V6, FAR_V6, NOBODY, SERVER], SERVER, ms(250) + BOTH_WAYS);
}

#[test]
fn every_dead_address_costs_one_delay() {
    connects(&[HOLE_V6, HOLE, SERVER], SERVER, ms(500) + BOTH_WAYS);
}

#[test]
fn refused_attempt_starts_the_next_at_once() {
    connects(&[SERVER_V6, SERVER], SERVER, BOTH_WAYS + BOTH_WAYS);
    connects(&[NOBODY, SERVER], SERVER, BOTH_WAYS);
    // While a hole is waited for, a refusal begins the next attempt, before its time.
    connects(&[HOLE_V6, CLIENT, SERVER], SERVER, ms(250) + 2 * AT_HOME + BOTH_WAYS);
}

#[test]
fn first_attempt_may_win_and_losers_close() {
    connects(&[FAR, HOLE_V6], FAR, ms(400));
    // The first has its connection at 400, the second would have had its own at 650.
    let heard = in_the_world(|| async {
        let resolver = Resolver::builder().source(Fixed::new(&[FAR_V6, FAR])).build();
        let since = now();
        let stream = resolver.connect("example.org:80").await.unwrap();
        assert_eq!(stream.peer_addr().unwrap().ip().to_string(), FAR_V6);
        assert_eq!(elapsed_since(since), ms(400));
        stream.write_all(b"hi").await.unwrap();
        sleep(Duration::from_secs(2)).await.unwrap();
    });
    // In each of the runs the loser's socket, if it was accepted at all, said nothing and ended.
    assert_eq!(heard.iter().filter(|text| *text == "hi").count(), 5);
    assert!(heard.iter().all(|text| text == "hi" || text.is_empty()), "{heard:?}");
}

#[test]
fn error_lists_failed_addresses_in_order() {
    in_the_world(|| async {
        let addresses = [SERVER_V6, CLIENT, NOBODY];
        let resolver = Resolver::builder().source(Fixed::new(&addresses)).build();
        let since = now();
        let error = resolver.connect("example.org:80").await.unwrap_err();
        // The client itself, on its loopback, refuses sooner than the server; and there is no way
        // to the last one.
        assert!(elapsed_since(since) < BOTH_WAYS + ms(1));
        let errors = error.get_ref().unwrap().downcast_ref::<AddressErrors>().unwrap();
        let tried: Vec<String> =
            errors.tried().iter().map(|(address, _)| address.ip().to_string()).collect();
        assert_eq!(tried, addresses);
        let text = error.to_string();
        assert!(text.contains("[fd00::1]:80: Connection refused"), "{text}");
        assert!(text.contains("[fd00::99]:80: Network is unreachable"), "{text}");
    });
}

#[test]
fn a_deadline_ends_all_attempts() {
    in_the_world(|| async {
        let resolver = Resolver::builder().source(Fixed::new(&[HOLE_V6, HOLE])).build();
        let since = now();
        let connecting = pikake::timed(ms(700), resolver.connect("example.org:80"));
        let error = connecting.await.output.unwrap().unwrap_err();
        assert!(interruption(&error).is_some_and(pikake::Interrupted::is_timeout));
        assert_eq!(elapsed_since(since), ms(700));
        // A way out that was cut can be gone again.
        let outcome = timeout_after(ms(700), TcpStream::connect((HOLE, 80))).await;
        assert!(outcome.is_err());
    });
}

#[test]
fn names_of_the_world_are_raced() {
    in_the_world(|| async {
        let since = now();
        // 300 µs for the lookup; its addresses are an IPv4 one that listens and an IPv6 one.
        let stream = TcpStream::connect("server:80").await.unwrap();
        assert_eq!(stream.peer_addr().unwrap().ip().to_string(), SERVER);
        assert_eq!(elapsed_since(since), BOTH_WAYS + Duration::from_micros(300));
    });
}
