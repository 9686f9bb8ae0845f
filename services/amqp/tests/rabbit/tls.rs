//! TLS with a real RabbitMQ: who is trusted, who is let in, and what is said about the rest.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_amqp::{Connection, ConsumeOptions, Error, Options, QueueOptions, State, persistent};
use pikake_net::tls::{Identity, TlsAcceptor};
use pikake_net::{TcpListener, TcpStream, copy_bidirectional};
use pikake_traps::{Interrupted, spawn, timeout_after};
use rcgen::{CertificateParams, KeyPair};
use xtask::Server;

use crate::BROKER;
use crate::support::run;

/// Long before a connect gives up by itself, and long enough for a machine that does much else.
const SOON: Duration = Duration::from_secs(30);
/// How long a connect may take.
const CONNECT: Duration = Duration::from_secs(60);

/// The broker's URL with these parameters, where `DIR` is the folder of its certificates.
fn url(broker: &Server, query: &str) -> String {
    let (port, folder) = broker.tls();
    format!("amqps://127.0.0.1:{port}/?{}", query.replace("DIR", &folder))
}

async fn open(url: &str) -> Result<Connection, Error> {
    let options = Options { connect_timeout: CONNECT, ..Options::default() };
    Connection::open(&url.parse()?, options).await
}

/// The error of a connection that does not come about, soon.
async fn refused(url: &str) -> String {
    let opened = timeout_after(SOON, open(url)).await;
    opened.unwrap_or_else(|_| panic!("{url} hangs")).expect_err(url).to_string()
}

#[test]
fn messages_go_and_come() {
    let Some(broker) = BROKER.get() else { return };
    let trusted = url(&broker, "cacertfile=DIR/ca.pem&heartbeat=7&channel_max=5");
    run(async {
        let soon = Options { blocked_deadline: Duration::from_secs(1), ..Options::default() };
        let connection = Connection::open(&trusted.parse().unwrap(), soon).await.unwrap();
        let channel = connection.channel().await.unwrap();
        let queue = channel.declare_queue("", QueueOptions::private()).await.unwrap();
        // One record, many, and more than rustls takes at once.
        let bodies = [1, 100_000, 1_000_000].map(|length| vec![b'x'; length]);
        for body in &bodies {
            let sent = channel.publish("", &queue.name, persistent(), body.clone(), true);
            sent.await.unwrap();
        }
        let mut consumer = channel.consume(&queue.name, ConsumeOptions::default()).await.unwrap();
        for body in &bodies {
            let delivery = consumer.next().await.unwrap();
            assert!(delivery.body == *body);
            delivery.ack().unwrap();
        }
        let mut others = Vec::new();
        for _ in 1..5 {
            others.push(connection.channel().await.unwrap());
        }
        let error = connection.channel().await.unwrap_err().to_string();
        assert!(error.contains("all 5 channels"), "{error}");
        drop(others.pop());
        others.push(connection.channel().await.unwrap());
        let said = broker.command("ctl list_connections ssl timeout user --no-table-headers");
        // Besides those of other tests.
        assert!(said.iter().any(|line| line == "true\t7\tguest"), "{said:?}");
        connection.close().await.unwrap();
    });
}

#[test]
fn a_broker_is_to_be_vouched_for_and_to_have_its_name() {
    let Some(broker) = BROKER.get() else { return };
    let [other, platform, name, right, unverified] = [
        "cacertfile=DIR/other-ca.pem",
        "",
        "cacertfile=DIR/ca.pem&server_name_indication=broker.test",
        "cacertfile=DIR/ca.pem&server_name_indication=localhost",
        "verify=verify_none&server_name_indication=broker.test",
    ]
    .map(|query| url(&broker, query));
    run(async {
        for url in [other, platform] {
            let error = refused(&url).await;
            let untrusted = "no trusted authority signed the broker's certificate";
            assert!(error.contains(untrusted) && error.contains("UnknownIssuer"), "{error}");
            assert!(error.starts_with("no connection to the AMQP broker at 127.0.0.1:"), "{error}");
        }
        let error = refused(&name).await;
        assert!(error.contains("is for another name") && error.contains("broker.test"), "{error}");
        for url in [right, unverified] {
            open(&url).await.unwrap().close().await.unwrap();
        }
    });
}

#[test]
fn a_certificate_logs_in() {
    let Some(broker) = BROKER.get() else { return };
    let external = "cacertfile=DIR/ca.pem&certfile=DIR/client.pem&auth_mechanism=external";
    let [alone, with_key, wrong_key, stranger] = [
        external,
        &format!("{external}&keyfile=DIR/client.key"),
        &format!("{external}&keyfile=DIR/server.key"),
        "cacertfile=DIR/ca.pem&certfile=DIR/other-ca.pem&keyfile=DIR/other-ca.key",
    ]
    .map(|query| url(&broker, query));
    run(async {
        let error = refused(&with_key).await;
        assert!(error.contains("403"), "{error}");
        broker.command("ctl add_user client -");
        broker.command("ctl set_permissions client .* .* .*");
        let connection = open(&with_key).await.unwrap();
        let said = broker.command("ctl list_connections user auth_mechanism --no-table-headers");
        assert!(said.iter().any(|line| line == "client\tEXTERNAL"), "{said:?}");
        connection.close().await.unwrap();

        let error = refused(&alone).await;
        assert!(error.contains("`keyfile=") && error.contains("client.pem`"), "{error}");
        let error = refused(&wrong_key).await;
        assert!(error.contains("server.key`") && error.contains("KeyMismatch"), "{error}");
        let error = refused(&stranger).await;
        assert!(error.contains("the broker refuses the client's certificate"), "{error}");
    });
}

#[test]
fn files_that_are_missing_or_something_else_are_named() {
    let Some(broker) = BROKER.get() else { return };
    for (query, error) in [
        ("cacertfile=/no/such.pem", "`cacertfile=/no/such.pem`: No such file"),
        ("cacertfile=DIR/ca.key", "/ca.key`: the root certificates: there is no certificate"),
        ("certfile=/no/such.pem", "`certfile=/no/such.pem`: No such file"),
        ("certfile=DIR/client.pem&keyfile=/no.key", "`keyfile=/no.key`: No such file"),
        ("certfile=DIR/client.pem&keyfile=DIR/ca.pem", "/ca.pem`: the private key"),
        (
            "certfile=/dev/null&keyfile=DIR/client.key",
            "client.key`: the certificate: there is no certificate in it",
        ),
    ] {
        let url = url(&broker, query);
        let found = run(refused(&url));
        assert!(found.contains(error), "{query}: {found}");
    }
}

#[test]
fn a_port_for_the_other_one_is_told_soon() {
    let Some(broker) = BROKER.get() else { return };
    let plain = broker.port();
    let (port, folder) = broker.tls();
    run(async {
        let error =
            refused(&format!("amqps://127.0.0.1:{plain}/?cacertfile={folder}/ca.pem")).await;
        assert!(error.contains("does not speak TLS"), "{error}");
        let error = refused(&format!("amqp://127.0.0.1:{port}")).await;
        assert!(error.contains("it speaks TLS, as the port for amqps:// does"), "{error}");
    });
}

#[test]
fn a_lost_connection_is_made_again_with_tls_and_with_the_files_of_then() {
    let Some(broker) = BROKER.get() else { return };
    let (port, folder) = broker.tls();
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap().port();
        let cut = Rc::new(pikake_sync::Event::default());
        let connections = Rc::new(Cell::new(0));
        let _proxy = spawn({
            let (cut, connections) = (cut.clone(), connections.clone());
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let broker = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    connections.set(connections.get() + 1);
                    let relay = spawn(async move { copy_bidirectional(&client, &broker).await });
                    if connections.get() == 1 {
                        cut.wait().await.unwrap();
                        relay.abort();
                    } else {
                        relay.detach();
                    }
                }
            }
        })
        .cancel_on_drop();

        let files = tempfile::tempdir().unwrap();
        let ca = files.path().join("ca.pem");
        std::fs::copy(format!("{folder}/ca.pem"), &ca).unwrap();
        let url = format!("amqps://127.0.0.1:{proxy}/?cacertfile={}", ca.display());
        let connection = open(&url).await.unwrap();
        let channel = connection.channel().await.unwrap();
        let queue = channel.declare_queue("tls-recovered", QueueOptions::quorum()).await.unwrap();
        let mut consumer = channel.consume(&queue.name, ConsumeOptions::default()).await.unwrap();
        let send = async |body: &[u8]| {
            channel.publish("", &queue.name, persistent(), body.to_vec(), true).await.unwrap();
        };
        send(b"one").await;
        consumer.next().await.unwrap().ack().unwrap();

        // Nobody vouches for it now, and then somebody does again.
        std::fs::copy(format!("{folder}/other-ca.pem"), &ca).unwrap();
        cut.set();
        let lost = Instant::now();
        while !matches!(connection.state(), State::Recovering { attempt: 2.. }) {
            connection.changed().await.unwrap();
        }
        std::fs::copy(format!("{folder}/ca.pem"), &ca).unwrap();
        while !matches!(connection.state(), State::Open) {
            connection.changed().await.unwrap();
        }
        assert!(lost.elapsed() < SOON, "{:?}", lost.elapsed());
        assert!(connections.get() >= 3);
        send(b"two").await;
        while consumer.next().await.unwrap().body != b"two" {}
        channel.delete_queue("tls-recovered").await.unwrap();
        connection.close().await.unwrap();
    });
}

/// A server with a certificate that was good for a day long ago.
#[test]
fn an_expired_certificate_is_refused() {
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2020, 1, 2);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let identity =
        Identity::from_pem(certificate.as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    let acceptor = TlsAcceptor::builder(identity).build().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &certificate).unwrap();
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let _server = spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(acceptor.accept(stream).await);
            }
        })
        .cancel_on_drop();
        let ca = file.path().display();
        let error = refused(&format!("amqps://127.0.0.1:{port}/?cacertfile={ca}")).await;
        assert!(error.contains("certificate expired"), "{error}");
    });
}

/// Nothing ever comes from there: a handshake ends by its deadline, or with its caller.
#[test]
fn a_handshake_with_nobody_ends() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = format!("amqps://127.0.0.1:{port}/?verify=verify_none&connection_timeout=");
        let error = refused(&format!("{url}200")).await;
        assert!(error.contains("within 200ms"), "{error}");
        let (late, _) = listener.accept().await.unwrap();
        while late.read(&mut [0; 4096]).await.is_ok_and(|length| length > 0) {}

        let opening = spawn(async move { open(&format!("{url}60000")).await.map(drop) });
        let (stream, _) = listener.accept().await.unwrap();
        while stream.read(&mut [0; 4096]).await.unwrap() == 0 {}
        opening.request_cancel("enough");
        let ended = opening.await.unwrap().unwrap_err();
        assert_eq!(ended.interrupted().and_then(Interrupted::reason), Some("enough"));
        // And its socket is closed at once, long before the deadline.
        let closed = async { while stream.read(&mut [0; 4096]).await.is_ok_and(|n| n > 0) {} };
        timeout_after(SOON, closed).await.unwrap();
    });
}
