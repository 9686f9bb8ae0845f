//! The client's side of TLS, with the platform's root certificates unless others are set.

use std::cell::RefCell;
use std::io;

use pikake_net::tls::TlsConnector;
use pikake_traps::blocking;

use super::connector::Versions;

#[derive(Clone, Debug)]
pub(crate) struct Connectors {
    /// Offers HTTP's versions by ALPN.
    pub(crate) to_server: TlsConnector,
    pub(crate) to_proxy: TlsConnector,
}

impl Connectors {
    fn new(base: &TlsConnector, versions: Versions) -> Self {
        let offered: &[&str] = match versions {
            Versions::Both => &crate::ALPN,
            Versions::Http1 => &["http/1.1"],
            Versions::Http2 => &["h2"],
        };
        Self {
            to_server: base.with_alpn(offered.iter().copied()),
            to_proxy: base.with_alpn(["http/1.1"]),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Tls {
    versions: Versions,
    made: RefCell<Option<Connectors>>,
}

impl Tls {
    pub(crate) fn new(base: Option<&TlsConnector>, versions: Versions) -> Self {
        let made = base.map(|base| Connectors::new(base, versions));
        Self { versions, made: RefCell::new(made) }
    }

    /// The connectors. The first call reads the platform's certificates, on a helper thread.
    pub(crate) async fn connectors(&self) -> io::Result<Connectors> {
        if let Some(made) = &*self.made.borrow() {
            return Ok(made.clone());
        }
        let base = blocking(|| TlsConnector::builder().platform_roots()?.build()).await??;
        let made = Connectors::new(&base, self.versions);
        self.made.replace(Some(made.clone()));
        Ok(made)
    }
}
