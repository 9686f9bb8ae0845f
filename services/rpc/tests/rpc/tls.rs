//! Clients over TLS.

use pikake::net::TcpListener;
use pikake::net::tls::{Identity, TlsAcceptor, TlsConnector};
use pikake::rpc::{CallFailure, Client, Executed, Server};
use pikake::spawn;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ED25519};

#[pikake::service]
trait Vault {
    async fn open(&self, key: u64) -> u64;
}

struct Steel;

impl Vault for Steel {
    async fn open(&self, key: u64) -> u64 {
        key + 1
    }
}

/// The certificate of an authority, and a server's identity that it vouches for.
fn certificates() -> (String, Identity) {
    let key = || KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (root_key, server_key) = (key(), key());
    let root = authority.self_signed(&root_key).unwrap().pem();
    let issuer = Issuer::new(authority, root_key);
    let server = CertificateParams::new(["vault.test".to_owned()]).unwrap();
    let server = server.signed_by(&server_key, &issuer).unwrap().pem();
    let key = server_key.serialize_pem();
    (root, Identity::from_pem(server.as_bytes(), key.as_bytes()).unwrap())
}

#[test]
fn clients_check_the_servers_certificate() {
    let (root, identity) = certificates();
    pikake::sim::example(async move {
        let acceptor = TlsAcceptor::builder(identity).build().unwrap();
        let listener = acceptor.listen(TcpListener::bind("127.0.0.1:7000").await.unwrap());
        spawn(Server::new().add(VaultServer::new(Steel)).serve(listener)).detach();
        let tls = TlsConnector::builder().roots_pem(root.as_bytes()).unwrap().build().unwrap();
        let vault = |name| {
            let client = Client::builder().attempts(2).tls("127.0.0.1:7000", name, tls.clone());
            VaultClient::new(client.build())
        };
        let trusted = vault("vault.test");
        for key in 0..10 {
            assert_eq!(trusted.open(key).await.unwrap(), key + 1);
        }
        let error = vault("bank.test").open(1).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Connection(_)), "{error}");
        assert_eq!(error.executed, Executed::No);
        assert!(error.to_string().contains("bank.test"), "{error}");
    });
}
