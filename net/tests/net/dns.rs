//! Names by hickory-resolver on this kernel. The DNS server is the test's, and also sends wrong
//! answers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use pikake::net::dns::hickory_resolver::config::{
    NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use pikake::net::dns::{DnsRuntime, DnsServers};
use pikake::net::{Resolver, TcpListener, TcpStream, UdpSocket, interruption};
use pikake::sim::{Between, Fault, FaultPlan, Runs};
use pikake::{sleep, spawn, timeout_after};

use crate::support::ms;

const SECOND: Duration = Duration::from_secs(1);

/// More than fits into a datagram without the client's leave, and more than it leaves.
const MANY: u8 = 100;

/// The questions, with their transports.
type Asked = Rc<RefCell<BTreeMap<String, usize>>>;

fn is_named(query: &Query, name: &str) -> bool {
    *query.name() == Name::from_str(name).unwrap()
}

/// The alias of a name: `circle.test` is its own, and `17.far.test` has `18.far.test`.
fn alias(name: &Name) -> Option<Name> {
    let text = name.to_string();
    let next = match text.strip_suffix(".far.test.") {
        Some(number) => format!("{}.far.test.", number.parse::<u32>().ok()? + 1),
        None if text == "circle.test." => text,
        None => return None,
    };
    Name::from_str(&next).ok()
}

/// The honest answer.
fn answer(message: &Message, over_udp: bool) -> Message {
    let query = message.queries[0].clone();
    let mut response = Message::response(message.id, message.op_code);
    response.metadata.recursion_available = true;
    response.add_query(query.clone());
    let name = query.name().clone();
    let mut add = |data| {
        response.add_answer(Record::from_rdata(name.clone(), 60, data));
    };
    // Names that are other names, without an end.
    if let Some(next) = alias(&name) {
        add(RData::CNAME(CNAME(next)));
        return response;
    }
    match query.query_type() {
        RecordType::AAAA if is_named(&query, "both.test.") => {
            add(RData::AAAA(AAAA(Ipv6Addr::LOCALHOST)));
        }
        RecordType::A if is_named(&query, "big.test.") && !over_udp => {
            for last in 0..MANY {
                add(RData::A(A(Ipv4Addr::new(127, 0, 1, last))));
            }
        }
        RecordType::A if is_named(&query, "big.test.") => response.metadata.truncation = true,
        RecordType::A if !is_named(&query, "none.test.") => {
            add(RData::A(A(Ipv4Addr::LOCALHOST)));
        }
        _ => {
            if is_named(&query, "none.test.") {
                response.metadata.response_code = ResponseCode::NXDomain;
            }
            let zone = Name::from_str("test.").unwrap();
            let soa = SOA::new(zone.clone(), zone.clone(), 1, 1, 1, 1, 7);
            response.add_authority(Record::from_rdata(zone, 7, RData::SOA(soa)));
        }
    }
    response
}

/// Answers that are not to be believed.
fn lies(message: &Message) -> Vec<Message> {
    let forged = |id, query: Query| {
        let mut lie = Message::response(id, message.op_code);
        let data = RData::A(A(Ipv4Addr::new(6, 6, 6, 6)));
        lie.add_answer(Record::from_rdata(query.name().clone(), 60, data));
        lie.add_query(query);
        lie
    };
    let query = message.queries[0].clone();
    let other = Query::query(Name::from_str("bank.test.").unwrap(), query.query_type());
    vec![forged(message.id.wrapping_add(1), query), forged(message.id, other)]
}

async fn answer_datagrams(socket: Rc<UdpSocket>, asked: Asked) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).await?;
        let Ok(message) = Message::from_vec(&buffer[..length]) else { continue };
        let query = &message.queries[0];
        *asked.borrow_mut().entry(format!("udp {}", query.name())).or_default() += 1;
        let tells_lies = is_named(query, "half-true.test.") || is_named(query, "liar.test.");
        if tells_lies {
            socket.send_to(b"no DNS message at all", from).await?;
            for lie in lies(&message) {
                socket.send_to(&lie.to_vec().unwrap(), from).await?;
            }
        }
        if !is_named(query, "liar.test.") && !is_named(query, "silent.test.") {
            socket.send_to(&answer(&message, true).to_vec().unwrap(), from).await?;
        }
    }
}

async fn answer_connection(stream: TcpStream, asked: Asked) -> io::Result<()> {
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length).await?;
        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut question).await?;
        let message = Message::from_vec(&question).map_err(io::Error::other)?;
        let name = format!("tcp {}", message.queries[0].name());
        *asked.borrow_mut().entry(name).or_default() += 1;
        let answer = answer(&message, false).to_vec().unwrap();
        let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
        stream.write_all(&[&length[..], &answer].concat()).await?;
    }
}

/// A server on a port of its own, with UDP and TCP.
async fn serve_names(at: SocketAddr) -> (SocketAddr, Asked) {
    let asked = Asked::default();
    let (listener, socket) = loop {
        let listener = TcpListener::bind(at).await.unwrap();
        // The other protocol's port of that number may be somebody else's.
        if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()).await {
            break (listener, Rc::new(socket));
        }
    };
    let address = listener.local_addr().unwrap();
    spawn(answer_datagrams(socket, asked.clone())).detach();
    let asked_here = asked.clone();
    spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn(answer_connection(stream, asked_here.clone())).detach();
        }
    })
    .detach();
    (address, asked)
}

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// hickory, with so much patience for a server.
fn servers(address: SocketAddr, patience: Duration) -> DnsServers {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    server.connections.iter_mut().for_each(|connection| connection.port = address.port());
    let mut options = ResolverOpts::default();
    options.timeout = patience;
    options.attempts = 1;
    options.use_hosts_file = ResolveHosts::Never;
    DnsServers::with(ResolverConfig::from_name_servers(vec![server]), options).unwrap()
}

fn here() -> Vec<IpAddr> {
    vec![Ipv4Addr::LOCALHOST.into()]
}

/// On the system's loopback, in real time; nothing is left of it afterwards.
fn real<F: Future>(future: F) -> F::Output {
    let kernel = pikake::Kernel::new().unwrap();
    let output = kernel.run(future);
    kernel.shutdown();
    assert_eq!((kernel.task_count(), kernel.socket_count()), (0, 0), "tasks and sockets left");
    output
}

#[test]
fn answers_come_with_their_ttl() {
    real(async {
        let (server, asked) = serve_names(LOOPBACK).await;
        let resolver = Resolver::builder().source(DnsServers::at([server]).unwrap()).build();
        assert_eq!(resolver.lookup("good.test").await.unwrap(), here());
        assert_eq!(resolver.lookup("good.test").await.unwrap(), here());
        let both = resolver.lookup("both.test").await.unwrap();
        assert_eq!(both, [IpAddr::from(Ipv6Addr::LOCALHOST), Ipv4Addr::LOCALHOST.into()]);
        // One question for each family, and none for what is known.
        assert_eq!(asked.borrow()["udp good.test."], 2);
        let error = resolver.lookup("none.test").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.to_string(), "look up none.test: the name has no address");
    });
}

#[test]
fn truncated_answer_is_asked_for_over_tcp() {
    real(async {
        let (server, asked) = serve_names(LOOPBACK).await;
        let resolver = Resolver::builder().source(servers(server, SECOND)).build();
        let found = resolver.lookup("big.test").await.unwrap();
        assert_eq!(found.len(), usize::from(MANY));
        let asked = asked.borrow();
        assert!(asked["udp big.test."] >= 1 && asked["tcp big.test."] >= 1, "{asked:?}");
    });
}

#[test]
fn forged_records_are_not_used() {
    real(async {
        let (server, _) = serve_names(LOOPBACK).await;
        let resolver = Resolver::builder().source(servers(server, SECOND)).build();
        assert_eq!(resolver.lookup("half-true.test").await.unwrap(), here());
        let error = resolver.lookup("liar.test").await.unwrap_err();
        assert!(error.to_string().starts_with("look up liar.test: "), "{error}");
    });
}

#[test]
fn endless_cname_chain_is_an_error() {
    real(async {
        let (server, asked) = serve_names(LOOPBACK).await;
        let resolver = Resolver::builder().source(servers(server, SECOND)).build();
        for name in ["circle.test", "1.far.test"] {
            let looking = timeout_after(10 * SECOND, resolver.lookup(name));
            let found = looking.await.expect("it does not follow them for ever");
            assert!(found.is_err(), "{found:?}");
        }
        let questions: usize = asked.borrow().values().sum();
        assert!(questions < 100, "{asked:?}");
        assert_eq!(resolver.lookup("good.test").await.unwrap(), here());
    });
}

#[test]
fn connecting_by_a_name_of_the_dns() {
    real(async {
        let (server, _) = serve_names(LOOPBACK).await;
        let resolver = Resolver::builder().source(servers(server, SECOND)).build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = ("both.test", listener.local_addr().unwrap().port());
        // No socket listens at its IPv6 address.
        let stream = resolver.connect(to).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
    });
}

#[test]
fn hickory_itself_runs_here() {
    real(async {
        let (server, _) = serve_names(LOOPBACK).await;
        let mut config = NameServerConfig::udp_and_tcp(server.ip());
        config.connections.iter_mut().for_each(|connection| connection.port = server.port());
        let config = ResolverConfig::from_name_servers(vec![config]);
        let builder =
            pikake::net::dns::hickory_resolver::Resolver::builder_with_config(config, DnsRuntime);
        let found = builder.build().unwrap().ipv4_lookup("good.test.").await.unwrap();
        assert_eq!(found.answers().len(), 1);
    });
}

/// A world in which the server's host is called by its address, and this runs on another host.
fn in_a_world<F: Future<Output = ()> + 'static>(
    plan: FaultPlan,
    client: impl Fn(SocketAddr) -> F + Clone + 'static,
) {
    let ran = Rc::new(Cell::new(0));
    let counted = ran.clone();
    Runs::new("dns").seeds(5).run(move |sim| {
        sim.host("dns", || async {
            let (_, _asked) = serve_names("0.0.0.0:53".parse().unwrap()).await;
            sleep(Duration::MAX).await
        });
        let (client, counted) = (client.clone(), counted.clone());
        sim.client("client", move || {
            let (client, counted) = (client.clone(), counted.clone());
            async move {
                sleep(SECOND).await.unwrap();
                client("10.0.0.1:53".parse().unwrap()).await;
                counted.set(counted.get() + 1);
            }
        });
        sim.faults(plan.clone());
    });
    assert_eq!(ran.get(), 5);
}

#[test]
fn silent_server_costs_no_more_than_the_timeout() {
    in_a_world(FaultPlan::new(), |server| async move {
        let resolver = Resolver::builder()
            .source(servers(server, Duration::from_secs(60)))
            .attempts(2, 2 * SECOND)
            .build();
        let since = pikake::time::now();
        let error = resolver.lookup("silent.test").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let took = pikake::time::elapsed_since(since);
        assert!(took >= 4 * SECOND && took < 4 * SECOND + ms(1), "{took:?}");
        // hickory's own patience.
        let resolver = Resolver::builder().source(servers(server, SECOND)).build();
        let error = resolver.lookup("silent.test").await.unwrap_err();
        assert!(pikake::time::elapsed_since(since) < took + 5 * SECOND, "{error}");
        // Others are served meanwhile and afterwards.
        assert_eq!(resolver.lookup("good.test").await.unwrap(), here());
    });
}

/// Whether a name had to be asked for.
async fn is_asked(resolver: &Resolver, name: &str) -> bool {
    let since = pikake::time::now();
    drop(resolver.lookup(name).await);
    pikake::time::elapsed_since(since) > Duration::ZERO
}

#[test]
fn answers_are_cached_for_their_ttl() {
    in_a_world(FaultPlan::new(), |server| async move {
        let resolver = Resolver::builder().source(servers(server, SECOND)).build();
        for (name, holds) in [("good.test", 60), ("none.test", 7)] {
            assert!(is_asked(&resolver, name).await);
            sleep((holds - 1) * SECOND).await.unwrap();
            assert!(!is_asked(&resolver, name).await, "{name} holds for {holds} s");
            sleep(SECOND).await.unwrap();
            assert!(is_asked(&resolver, name).await, "{name} holds for {holds} s");
        }
    });
}

#[test]
fn a_lookup_in_a_world_with_a_partition() {
    let cut = Between::two_way(["client"], ["dns"]);
    let plan = FaultPlan::new()
        .at(Duration::ZERO, Fault::Partition(cut.clone()))
        .at(4 * SECOND, Fault::Heal(cut));
    in_a_world(plan, |server| async move {
        let resolver = Resolver::builder()
            .source(servers(server, SECOND))
            .negative_ttl(Duration::ZERO)
            .attempts(10, 2 * SECOND)
            .timeout(60 * SECOND)
            .build();
        let interrupted = timeout_after(SECOND, resolver.lookup("good.test")).await;
        assert!(interrupted.is_err());
        let found = loop {
            match resolver.lookup("good.test").await {
                Ok(found) => break found,
                Err(error) => assert!(interruption(&error).is_none(), "{error}"),
            }
        };
        assert_eq!(found, here());
    });
}

#[test]
fn an_interruption_at_every_wait() {
    let patience = ms(20);
    let report = pikake::testing::Injector::new().patience(patience).run(
        || async {
            let (server, _) = serve_names(LOOPBACK).await;
            let resolver = Resolver::builder().source(servers(server, SECOND)).build();
            match resolver.lookup("good.test").await {
                Ok(found) => assert_eq!(found, here()),
                Err(error) => assert!(interruption(&error).is_some(), "{error}"),
            }
            // An interrupted lookup can be repeated.
            loop {
                match resolver.lookup("good.test").await {
                    Ok(found) => break found,
                    Err(error) => assert!(interruption(&error).is_some(), "{error}"),
                }
            }
        },
        |run| assert_eq!(run.output, Some(here())),
    );
    assert!(report.suspensions >= 1 && report.cancels > 0, "{report:?}");
}
