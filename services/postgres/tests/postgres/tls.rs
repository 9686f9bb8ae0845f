//! TLS, and logins that are bound to the server's certificate.

use pikake::net::TcpListener;
use pikake::net::tls::{Identity, TlsAcceptor, TlsConnector};
use pikake::postgres::{Config, Connection, Error};
use pikake::spawn;
use rcgen::{CertificateParams, DnType, KeyPair};
use xtask::{Kind, Server};

use crate::{run, until};

/// Writes a file into the server's folder of data, as the server's user.
async fn write(admin: &Connection, name: &str, text: &str) {
    let text = format!(
        "COPY (SELECT unnest(string_to_array($file${text}$file$, E'\\n'))) \
         TO PROGRAM 'cat > {name} && chmod 600 {name}'"
    );
    admin.batch_execute(&text).await.unwrap();
}

fn on(server: &Server, more: &str) -> Config {
    let port = server.port();
    format!("host=localhost hostaddr=127.0.0.1 port={port} user=guest password=secret dbname=postgres {more}")
        .parse()
        .unwrap()
}

#[test]
fn tls_is_used_verified_and_bound() {
    for need in Kind::Postgres.needs() {
        let Some(_) = need.find_or_skip() else { return };
    }
    // A server of its own, since the test changes how it is logged in.
    let server = Server::start(Kind::Postgres).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "localhost");
    let certificate = params.self_signed(&key).unwrap();
    run(async {
        let admin = crate::config(&server, "admin").connect().await.unwrap();
        admin.batch_execute("CREATE ROLE guest LOGIN PASSWORD 'secret'").await.unwrap();
        // Without TLS on the server.
        let trusting = TlsConnector::builder().roots_pem(certificate.pem().as_bytes()).unwrap();
        let trusting = trusting.build().unwrap();
        on(&server, "").tls(trusting.clone()).connect().await.unwrap();
        let error = on(&server, "sslmode=require").tls(trusting.clone()).connect().await;
        let error = error.unwrap_err();
        assert!(error.to_string().contains("offers no TLS"), "{error}");

        write(&admin, "server.crt", &certificate.pem()).await;
        write(&admin, "server.key", &key.serialize_pem()).await;
        let access =
            "host all pikake 127.0.0.1/32 trust\nhostssl all guest 127.0.0.1/32 scram-sha-256";
        write(&admin, "pg_hba.conf", access).await;
        admin.batch_execute("ALTER SYSTEM SET ssl = on").await.unwrap();
        admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        let reloaded = async || {
            let row = crate::config(&server, "admin").connect().await.unwrap();
            let row = row.query_one("SELECT current_setting('ssl')", &[]).await.unwrap();
            (row.get::<_, &str>(0) == "on").then_some(())
        };
        until("TLS", reloaded).await;

        for mode in ["sslmode=prefer", "sslmode=require channel_binding=require"] {
            let connection = on(&server, mode).tls(trusting.clone()).connect().await.unwrap();
            let text = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
            assert!(connection.query_one(text, &[]).await.unwrap().get::<_, bool>(0), "{mode}");
            // The request to cancel is encrypted as well.
            let limit = std::time::Duration::from_millis(50);
            let slow = connection.execute("SELECT pg_sleep(3600)", &[]);
            assert!(pikake::timeout_after(limit, slow).await.is_err());
            assert!(connection.query_one(text, &[]).await.is_ok());
        }
        // A plain connection is refused, also one of `prefer` without a connector.
        for mode in ["sslmode=disable", "sslmode=prefer"] {
            let error = on(&server, mode).connect().await.unwrap_err();
            assert!(error.to_string().contains("no encryption"), "{mode}: {error}");
        }
        let error = on(&server, "password=wrong").tls(trusting).connect().await.unwrap_err();
        assert!(error.to_string().contains("password authentication failed"), "{error}");

        // A certificate that nobody trusts, also with `prefer`.
        let other = KeyPair::generate().unwrap();
        let other = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&other);
        let other = TlsConnector::builder().roots_pem(other.unwrap().pem().as_bytes()).unwrap();
        let error = on(&server, "").tls(other.build().unwrap()).connect().await.unwrap_err();
        assert!(matches!(error, Error::Connect(_)), "{error:?}");
        assert!(error.to_string().contains("certificate"), "{error}");
    });
}

/// By a server that ends the connection after the handshake.
#[test]
fn direct_tls_names_its_protocol() {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&key).unwrap();
    let identity = (certificate.pem(), key.serialize_pem());
    run(async {
        let identity = Identity::from_pem(identity.0.as_bytes(), identity.1.as_bytes()).unwrap();
        let acceptor = TlsAcceptor::builder(identity).alpn(["postgresql"]).build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let trusting = TlsConnector::builder().roots_pem(certificate.pem().as_bytes()).unwrap();
        let config: Config = format!(
            "host=localhost hostaddr=127.0.0.1 port={port} user=guest sslmode=require sslnegotiation=direct"
        )
        .parse()
        .unwrap();
        let config = config.tls(trusting.build().unwrap());
        let client = spawn(async move { config.connect().await.is_err() });
        let (stream, _) = listener.accept().await.unwrap();
        let stream = acceptor.accept(stream).await.unwrap();
        assert_eq!(stream.alpn_protocol().as_deref(), Some(&b"postgresql"[..]));
        drop(stream);
        assert!(client.await.unwrap());
    });
}
