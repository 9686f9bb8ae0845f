//! Clients over TLS.

use pikake::net::TcpListener;
use pikake::net::tls::{Identity, TlsAcceptor, TlsConnector};
use pikake::rpc::Client;
use pikake::spawn;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ED25519};

use crate::harness::{ADDRESS, assert_like, server, why};
use crate::shop::{Keeper, ShopClient};

/// The certificate of an authority, and what issues identities that it vouches for, with the bytes
/// of their certificates.
pub(crate) fn authority() -> (String, impl Fn(&str) -> (Identity, Vec<u8>)) {
    let key = || KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_key = key();
    let root = authority.self_signed(&root_key).unwrap().pem();
    let issuer = Issuer::new(authority, root_key);
    let issue = move |name: &str| {
        let key = key();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let (pem, key) = (certificate.pem(), key.serialize_pem());
        let identity = Identity::from_pem(pem.as_bytes(), key.as_bytes()).unwrap();
        (identity, certificate.der().to_vec())
    };
    (root, issue)
}

#[pikake::sim(seeds = 1)]
async fn clients_check_the_servers_certificate() {
    let (root, issue) = authority();
    let acceptor = TlsAcceptor::builder(issue("shop.test").0).build().unwrap();
    let listener = acceptor.listen(TcpListener::bind(ADDRESS).await.unwrap());
    spawn(server(&Keeper::default()).serve(listener)).detach();
    let tls = TlsConnector::builder().roots_pem(root.as_bytes()).unwrap().build().unwrap();
    let shop = |name| {
        let client = Client::builder().attempts(2).tls(ADDRESS, name, tls.clone());
        ShopClient::new(client.build())
    };
    let trusted = shop("shop.test");
    for left in 0..10 {
        assert_eq!(trusted.add(left, 1).await.unwrap(), left + 1);
    }
    let why = why(shop("bank.test").add(1, 1).await);
    assert!(why.contains("bank.test"), "{why}");
    assert_like(why, "Connection(...), No");
}
