//! hyper-rustls, against a server by tokio-rustls.
//!
//! ```text
//! 200 OK
//! ```

use std::error::Error;
use std::sync::Arc;

use http_body_util::Empty;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let (certificate, key) = (identity.cert.der().clone(), identity.signing_key.into());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let server = ServerConfig::builder().with_no_client_auth();
    let server = TlsAcceptor::from(Arc::new(server.with_single_cert(vec![certificate], key)?));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://localhost:{}/", listener.local_addr()?.port()).parse()?;
    tokio::spawn(async move {
        let mut stream = server.accept(listener.accept().await?.0).await?;
        stream.read_buf(&mut Vec::new()).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await
    });
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_only();
    let client = Client::builder(TokioExecutor::new());
    let client: Client<_, Empty<&[u8]>> = client.build(connector.enable_http1().build());
    println!("{}", client.get(url).await?.status());
    Ok(())
}
