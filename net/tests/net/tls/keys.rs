//! Key updates within a TLS connection.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use pikake::net::tls::rustls::pki_types::pem::PemObject;
use pikake::net::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use pikake::net::tls::rustls::{ServerConfig, ServerConnection};
use pikake::net::{self, MemoryStream};
use pikake::{spawn, timeout_after};

use super::certificates::{Authority, SERVER};
use crate::support::run;

const SECOND: Duration = Duration::from_secs(1);
/// The capacity of the carrier, and far more than that.
const ROOM: usize = 1000;
const MUCH: usize = 10_000;

/// A server whose every record the test decides about.
struct Peer {
    tls: ServerConnection,
    carrier: MemoryStream,
}

impl Peer {
    fn new(authority: &Authority, carrier: MemoryStream) -> Self {
        let server = &authority.server;
        let certificate = CertificateDer::from_pem_slice(server.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![certificate], key).unwrap();
        Self { tls: ServerConnection::new(Arc::new(config)).unwrap(), carrier }
    }

    async fn send(&mut self) {
        let mut records = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut records).unwrap();
        }
        net::Write::write_all(&self.carrier, &records).await.unwrap();
    }

    /// Reads what has come, and gives it as the text that it is.
    async fn receive(&mut self) -> Vec<u8> {
        let mut records = [0; ROOM];
        let length = net::Read::read(&self.carrier, &mut records).await.unwrap();
        let mut rest = &records[..length];
        let mut text = Vec::new();
        while !rest.is_empty() {
            self.tls.read_tls(&mut rest).unwrap();
            self.tls.process_new_packets().unwrap();
            let mut part = [0; ROOM];
            while let Ok(length @ 1..) = self.tls.reader().read(&mut part) {
                text.extend_from_slice(&part[..length]);
            }
        }
        text
    }

    async fn shake_hands(mut self) -> Self {
        while self.tls.is_handshaking() {
            self.receive().await;
            self.send().await;
        }
        self
    }
}

/// The answer to them is for the next write: whoever reads does not wait for a carrier that is
/// full, and is in no writer's way.
#[test]
fn new_keys_do_not_keep_a_reader_waiting() {
    run(async {
        let (authority, (one, other)) = (Authority::new(), MemoryStream::pair(ROOM));
        let peer = Peer::new(&authority, other).shake_hands();
        let connector = authority.connector();
        let (client, mut peer) = join(connector.connect(SERVER, one), peer).await;
        let client = client.unwrap();

        let cut_short = timeout_after(SECOND / 100, client.write_all(&[7; MUCH])).await;
        assert!(cut_short.is_err(), "the carrier is full");
        peer.tls.refresh_traffic_keys().unwrap();
        peer.tls.writer().write_all(b"x").unwrap();
        peer.send().await;
        let mut buffer = [0; 8];
        let read = timeout_after(10 * SECOND, client.read(&mut buffer)).await;
        assert_eq!(read.expect("it waits for the carrier").unwrap(), 1);

        let writing = spawn(async move { client.write_all(b"the end").await });
        let mut received = Vec::new();
        while !received.ends_with(b"the end") {
            received.append(&mut peer.receive().await);
        }
        writing.await.unwrap().unwrap();
        assert!(received[..received.len() - 7].iter().all(|octet| *octet == 7));
    });
}
