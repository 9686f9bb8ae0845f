//! HTTPS on pikake: an axum router over TLS, by HTTP/2 or HTTP/1, until SIGINT or SIGTERM.
//!
//! ```sh
//! cargo run -p pikake-libraries --example https -- 127.0.0.1:8443 /tmp/localhost.pem
//! curl --cacert /tmp/localhost.pem https://localhost:8443/
//! ```
//!
//! It makes a certificate for `localhost`, and writes it to that file. With a certificate of your
//! own, give its file and that of its key: `-- 0.0.0.0:443 server.crt server.key`.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::http::Version;
use axum::routing::get;
use pikake::http::axum::Peer;
use pikake::http::serve;
use pikake::net::TcpListener;
use pikake::net::tls::Identity;

async fn hello(version: Version, Peer(peer): Peer<SocketAddr>) -> String {
    format!("hello {} over {version:?}\n", peer.ip())
}

fn self_signed(file: Option<&String>) -> Result<Identity, Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificate = made.cert.pem();
    if let Some(file) = file {
        std::fs::write(file, &certificate)?;
    }
    Ok(Identity::from_pem(certificate.as_bytes(), made.signing_key.serialize_pem().as_bytes())?)
}

#[pikake::main(signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = arguments.first().map_or("127.0.0.1:8443", String::as_str);
    let identity = match &arguments[..] {
        [_, certificate, key] => Identity::from_pem_files(certificate, key)?,
        _ => self_signed(arguments.get(1))?,
    };
    let listener = TcpListener::bind(address).await?;
    println!("listening on https://{}", listener.local_addr()?);
    let router = Router::new().route("/", get(hello));
    println!("{}", serve(listener, router).tls(identity).await?);
    Ok(())
}
