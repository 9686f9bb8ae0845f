//! quinn: a server of QUIC that sends a stream, and a client.
//!
//! ```text
//! got: hello
//! ```

use std::error::Error;
use std::sync::Arc;

use quinn::{ClientConfig, Endpoint, ServerConfig};

async fn greet(endpoint: Endpoint) -> Result<(), Box<dyn Error + Send + Sync>> {
    let connection = endpoint.accept().await.ok_or("it is closed")?.await?;
    let mut stream = connection.open_uni().await?;
    stream.write_all(b"hello").await?;
    stream.finish()?;
    connection.closed().await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let (certificate, key) = (identity.cert.der().clone(), identity.signing_key.into());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone())?;
    let any = "127.0.0.1:0".parse()?;
    let server = Endpoint::server(ServerConfig::with_single_cert(vec![certificate], key)?, any)?;
    let mut client = Endpoint::client(any)?;
    client.set_default_client_config(ClientConfig::with_root_certificates(Arc::new(roots))?);
    let address = server.local_addr()?;
    let server = tokio::spawn(greet(server));
    let connection = client.connect(address, "localhost")?.await?;
    let text = connection.accept_uni().await?.read_to_end(100).await?;
    println!("got: {}", String::from_utf8(text)?);
    connection.close(0u8.into(), b"");
    server.await?
}
