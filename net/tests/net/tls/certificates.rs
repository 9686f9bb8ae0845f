//! Certificates, made for the tests.

use pikake::net::tls::{Identity, TlsAcceptor, TlsConnector};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ED25519, SignatureAlgorithm, date_time_ymd,
};

/// The name of the server in the certificate; it is also good for 127.0.0.1.
pub(crate) const SERVER: &str = "server.test";

/// A certificate and its key, as PEM.
pub(crate) struct Pem {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Pem {
    pub(crate) fn identity(&self) -> Identity {
        Identity::from_pem(self.certificate.as_bytes(), self.key.as_bytes()).unwrap()
    }
}

/// One who vouches for a server and for a client.
pub(crate) struct Authority {
    pub(crate) root: String,
    pub(crate) server: Pem,
    pub(crate) client: Pem,
}

impl Authority {
    /// With keys whose signatures all have one length, so that simulations repeat to the byte.
    pub(crate) fn new() -> Self {
        Self::with(&PKCS_ED25519)
    }

    /// With keys that openssl can read: of the others it knows only an older format.
    pub(crate) fn for_openssl() -> Self {
        Self::with(&PKCS_ECDSA_P256_SHA256)
    }

    /// With certificates of the server and the client that are valid in these years alone.
    pub(crate) fn in_years(from: i32, to: i32) -> Self {
        Self::dated(&PKCS_ED25519, |params| {
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(to, 1, 1);
        })
    }

    fn with(algorithm: &'static SignatureAlgorithm) -> Self {
        Self::dated(algorithm, |_| {})
    }

    fn dated(
        algorithm: &'static SignatureAlgorithm,
        date: impl Fn(&mut CertificateParams),
    ) -> Self {
        let key = || KeyPair::generate_for(algorithm).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority of the tests");
        let root_key = key();
        let root = params.self_signed(&root_key).unwrap().pem();
        let issuer = Issuer::new(params, root_key);
        let issue = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.distinguished_name.push(DnType::CommonName, "somebody of the tests");
            date(&mut params);
            let key = key();
            let certificate = params.signed_by(&key, &issuer).unwrap().pem();
            Pem { certificate, key: key.serialize_pem() }
        };
        let (server, client) = (issue(&[SERVER, "127.0.0.1"]), issue(&["client.test"]));
        Self { root, server, client }
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::builder(self.server.identity()).build().unwrap()
    }

    pub(crate) fn connector(&self) -> TlsConnector {
        let builder = TlsConnector::builder().roots_pem(self.root.as_bytes());
        builder.unwrap().build().unwrap()
    }
}
