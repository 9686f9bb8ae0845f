//! TLS with pikake on both sides.

use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use futures::future::join;
use pikake::net::tls::rustls::crypto::ring::default_provider;
use pikake::net::tls::rustls::crypto::ring::sign::any_supported_type;
use pikake::net::tls::rustls::pki_types::pem::PemObject;
use pikake::net::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use pikake::net::tls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use pikake::net::tls::{Identity, TlsAcceptor, TlsConnector, TlsStream, rustls};
use pikake::net::{
    BufReader, FramedReader, FramedWriter, LineCodec, MemoryStream, copy_bidirectional,
};
use pikake::spawn;

use super::certificates::{Authority, SERVER};
use crate::support::run;
use crate::support::warnings::OnWarning;

/// Smaller than a record, so that each takes many waits.
const ROOM: usize = 1000;

async fn hands(
    connector: &TlsConnector,
    acceptor: &TlsAcceptor,
    name: &str,
) -> (std::io::Result<TlsStream<MemoryStream>>, std::io::Result<TlsStream<MemoryStream>>) {
    let (one, other) = MemoryStream::pair(ROOM);
    join(connector.connect(name, one), acceptor.accept(other)).await
}

async fn pair(authority: &Authority) -> (TlsStream<MemoryStream>, TlsStream<MemoryStream>) {
    let (client, server) = hands(&authority.connector(), &authority.acceptor(), SERVER).await;
    (client.unwrap(), server.unwrap())
}

#[test]
fn data_and_the_end_of_stream_arrive() {
    run(async {
        let (client, server) = pair(&Authority::new()).await;
        assert_eq!(server.server_name().as_deref(), Some(SERVER));
        assert!(client.description().starts_with("TLSv1_3"), "{client:?}");
        let data: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
        let sent = data.clone();
        let echo = spawn(async move {
            let mut received = Vec::new();
            BufReader::new(&server).limit(1 << 20).read_to_end(&mut received).await.unwrap();
            server.write_all(&received).await.unwrap();
            server.finish().await.unwrap();
        });
        client.write_all(&sent).await.unwrap();
        client.finish().await.unwrap();
        let mut received = Vec::new();
        BufReader::new(&client).limit(1 << 20).read_to_end(&mut received).await.unwrap();
        assert_eq!(received, data);
        echo.await.unwrap();
        // The end stays the end.
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        assert!(client.write(b"after the end").await.is_err());
    });
}

#[test]
fn both_directions_at_once() {
    run(async {
        let (client, server) = pair(&Authority::new()).await;
        let data = vec![7; 200_000];
        let work = |stream: TlsStream<MemoryStream>| {
            let (stream, data) = (Rc::new(stream), data.clone());
            let writing = stream.clone();
            let writer = spawn(async move {
                writing.write_all(&data).await.unwrap();
                writing.finish().await.unwrap();
            });
            spawn(async move {
                let mut all = Vec::new();
                BufReader::new(stream).limit(1 << 20).read_to_end(&mut all).await.unwrap();
                writer.await.unwrap();
                all.len()
            })
        };
        let (one, other) = join(work(client), work(server)).await;
        assert_eq!((one.unwrap(), other.unwrap()), (200_000, 200_000));
    });
}

#[test]
fn truncated_stream_is_an_error() {
    run(async {
        let (client, server) = pair(&Authority::new()).await;
        server.write_all(b"half of the truth").await.unwrap();
        drop(server);
        let mut buffer = [0; 64];
        assert_eq!(client.read(&mut buffer).await.unwrap(), 17);
        for _ in 0..2 {
            let error = client.read(&mut buffer).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("close_notify"), "{error}");
        }
    });
}

#[test]
fn alpn_selects_a_common_protocol() {
    run(async {
        let authority = Authority::new();
        let roots = authority.root.as_bytes();
        let offering = |protocols: &[&str]| {
            let builder = TlsConnector::builder().roots_pem(roots).unwrap();
            builder.alpn(protocols.iter().copied()).build().unwrap()
        };
        let acceptor = TlsAcceptor::builder(authority.server.identity());
        let acceptor = acceptor.alpn(["h2", "http/1.1"]).build().unwrap();
        let (client, server) = hands(&offering(&["http/1.1", "h2"]), &acceptor, SERVER).await;
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(client.alpn_protocol().as_deref(), Some(&b"h2"[..]));
        assert_eq!(server.alpn_protocol(), client.alpn_protocol());
        let (client, server) = hands(&offering(&["smtp"]), &acceptor, SERVER).await;
        assert!(client.unwrap_err().to_string().contains("NoApplicationProtocol"));
        assert_eq!(server.unwrap_err().kind(), ErrorKind::InvalidData);
        let (client, _) = hands(&offering(&[]), &acceptor, SERVER).await;
        assert_eq!(client.unwrap().alpn_protocol(), None);
    });
}

#[test]
fn a_server_that_is_not_trusted_is_refused() {
    run(async {
        let (authority, stranger) = (Authority::new(), Authority::new());
        let inside = |error: &std::io::Error| {
            let source = std::error::Error::source(error.get_ref().unwrap()).unwrap();
            let source = source.downcast_ref::<std::io::Error>().unwrap();
            source.get_ref().unwrap().downcast_ref::<rustls::Error>().cloned()
        };
        let (client, server) = hands(&stranger.connector(), &authority.acceptor(), SERVER).await;
        let error = client.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(matches!(inside(&error), Some(rustls::Error::InvalidCertificate(_))), "{error:?}");
        assert!(error.to_string().starts_with("TLS handshake with server.test: "), "{error}");
        // The server is told why.
        let error = server.unwrap_err();
        assert!(matches!(inside(&error), Some(rustls::Error::AlertReceived(_))), "{error:?}");

        let connector = authority.connector();
        let (client, _) = hands(&connector, &authority.acceptor(), "another.test").await;
        assert!(client.unwrap_err().to_string().contains("another.test"));
        let (client, _) = hands(&connector, &authority.acceptor(), "127.0.0.1").await;
        client.unwrap();
        let (one, _other) = MemoryStream::pair(ROOM);
        let error = connector.connect("no name at all", one).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

/// The name and the issuer are not checked. The server must own the key of its certificate.
#[test]
fn unverified_server_must_still_prove_its_key() {
    run(async {
        let (authority, stranger) = (Authority::new(), Authority::new());
        let connector = TlsConnector::builder().dangerous_unverified().build().unwrap();
        for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
            let served_with = |key: &str| {
                let chain = pem::<CertificateDer<'_>>(&authority.server.certificate);
                let key = any_supported_type(&pem::<PrivateKeyDer<'_>>(key)).unwrap();
                let served = CertifiedKey::new(vec![chain], key);
                let config = rustls::ServerConfig::builder_with_provider(default_provider().into())
                    .with_protocol_versions(&[version])
                    .unwrap()
                    .with_no_client_auth()
                    .with_cert_resolver(Arc::new(SingleCertAndKey::from(served)));
                TlsAcceptor::with_config(config)
            };
            let own = served_with(&authority.server.key);
            let (client, _) = hands(&connector, &own, "another.test").await;
            client.unwrap();
            let stolen = served_with(&stranger.server.key);
            let (client, _) = hands(&connector, &stolen, "another.test").await;
            assert!(client.unwrap_err().to_string().contains("BadSignature"));
        }
    });
}

fn pem<T: PemObject>(text: &str) -> T {
    T::from_pem_slice(text.as_bytes()).unwrap()
}

#[test]
fn client_certificates_are_checked() {
    run(async {
        let authority = Authority::new();
        let roots = authority.root.as_bytes();
        let builder = || TlsAcceptor::builder(authority.server.identity());
        let required = builder().require_clients_of_pem(roots).unwrap().build().unwrap();
        let asked = builder().ask_clients_of_pem(roots).unwrap().build().unwrap();
        let known = TlsConnector::builder().roots_pem(roots).unwrap();
        let known = known.identity(authority.client.identity()).build().unwrap();
        for acceptor in [&required, &asked] {
            let (client, server) = hands(&known, acceptor, SERVER).await;
            assert_eq!(client.unwrap().peer_certificates().len(), 1);
            assert_eq!(server.unwrap().peer_certificates().len(), 1);
        }
        let unknown = authority.connector();
        let (_, server) = hands(&unknown, &asked, SERVER).await;
        assert!(server.unwrap().peer_certificates().is_empty());
        // A client of TLS 1.3 has shaken hands by then, and is told at its first read.
        let (client, server) = hands(&unknown, &required, SERVER).await;
        assert!(server.unwrap_err().to_string().contains("no certificates"), "it says why");
        let error = client.unwrap().read(&mut [0; 8]).await.unwrap_err();
        assert!(error.to_string().contains("CertificateRequired"), "{error}");
        // One of whom somebody else speaks well.
        let stranger = TlsConnector::builder().roots_pem(roots).unwrap();
        let stranger = stranger.identity(Authority::new().client.identity()).build().unwrap();
        let (_, server) = hands(&stranger, &required, SERVER).await;
        assert_eq!(server.unwrap_err().kind(), ErrorKind::InvalidData);
    });
}

#[test]
fn proxies_and_codecs_run_over_tls() {
    run(async {
        let authority = Authority::new();
        let (client, near) = pair(&authority).await;
        let (far, server) = pair(&authority).await;
        let proxy = spawn(async move { copy_bidirectional(&near, &far).await.unwrap() });
        let echo = spawn(async move {
            let mut lines = FramedReader::new(&server, LineCodec::new());
            let mut answers = FramedWriter::new(&server, LineCodec::new());
            while let Some(line) = lines.next().await.unwrap() {
                answers.send(&line.to_uppercase()).await.unwrap();
            }
            answers.finish().await.unwrap();
        });
        let mut questions = FramedWriter::new(&client, LineCodec::new());
        let reader = BufReader::new(&client);
        for question in ["who", "what", "when"] {
            questions.send(question).await.unwrap();
            let answer = reader.next_line().await.unwrap().unwrap();
            assert_eq!(answer, question.to_uppercase());
        }
        questions.finish().await.unwrap();
        assert_eq!(reader.next_line().await.unwrap(), None);
        echo.await.unwrap();
        let copied = proxy.await.unwrap();
        assert_eq!((copied.to_second, copied.to_first), (14, 14));
    });
}

#[test]
fn invalid_certificate_is_an_error() {
    let pem = Authority::new().server;
    for (certificate, key, what) in [
        ("", &*pem.key, "the certificate: there is no certificate"),
        (&pem.certificate, "", "the private key: "),
    ] {
        let error = Identity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().starts_with(what), "{error}");
    }
    let error = Identity::from_pem_files("/nowhere/a.pem", "/nowhere/b.pem").unwrap_err();
    assert!(error.to_string().starts_with("read /nowhere/a.pem: "), "{error}");
    let error = TlsConnector::builder().build().unwrap_err();
    assert!(error.to_string().contains("there are no root certificates"), "{error}");
    let other = Authority::new().server;
    let mixed = Identity::from_pem(pem.certificate.as_bytes(), other.key.as_bytes()).unwrap();
    assert_eq!(TlsAcceptor::builder(mixed).build().unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// An own certificate that is out of date is logged when it is read; the peer's error has the date.
#[test]
fn certificates_out_of_date_are_named() {
    for (from, to, fault) in [
        (1999, 2001, "expired on 2001-01-01T00:00:00Z"),
        (3999, 4001, "is not valid before 3999-01-01T00:00:00Z"),
    ] {
        let (sender, warnings) = mpsc::channel();
        let noted = OnWarning(move |event: &tracing::Event<'_>| {
            let mut text = String::new();
            event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                text.push_str(&format!("{field}: {value:?}; "));
            });
            sender.send(text).unwrap();
        });
        run(async {
            let authority = Authority::in_years(from, to);
            let acceptor = tracing::subscriber::with_default(noted, || authority.acceptor());
            let text = warnings.try_recv().unwrap();
            assert!(text.contains(&format!("this program's certificate {fault}, so")), "{text}");
            assert!(text.contains(&format!("names: {SERVER}")), "{text}");
            let (client, server) = hands(&authority.connector(), &acceptor, SERVER).await;
            let error = client.unwrap_err();
            let begin = format!("TLS handshake with {SERVER}: the peer's certificate {fault}");
            assert!(error.to_string().starts_with(&begin), "{error}");
            assert!(server.unwrap_err().to_string().contains("CertificateExpired"));
        });
    }
    let noted = OnWarning(|_: &tracing::Event<'_>| panic!("a valid certificate is no warning"));
    tracing::subscriber::with_default(noted, || drop(Authority::new().acceptor()));
}
