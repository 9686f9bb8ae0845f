//! tokio-rustls on pikake's streams. `pikake::net::tls` needs no adapter.
//!
//! ```text
//! got: 7
//! ```

use std::error::Error;
use std::sync::Arc;

use futures::future::try_join;
use pikake::future_wait;
use pikake::net::{TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let (certificate, key) = (identity.cert.der().clone(), identity.signing_key.into());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let server = ServerConfig::builder().with_no_client_auth();
    let server = Arc::new(server.with_single_cert(vec![certificate], key)?);
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let stream = TcpStream::connect(listener.local_addr()?).await?;
    let accepted = TlsAcceptor::from(server).accept(listener.accept().await?.0);
    let connector = TlsConnector::from(Arc::new(client));
    let connected = connector.connect("localhost".try_into()?, stream);
    let (mut server, mut client) = future_wait(try_join(accepted, connected)).await??;
    server.write_u8(7).await?;
    server.flush().await?;
    Ok(vec![format!("got: {}", future_wait(client.read_u8()).await??)])
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    demo().await.map(|lines| println!("{}", lines.join("\n")))
}
