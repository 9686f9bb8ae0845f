//! tonic with its own transport: the service of tonic-health, and its client.
//!
//! ```text
//! serving: 1
//! ```

use std::error::Error;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic_health::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("", ServingStatus::Serving).await;
    let incoming = TcpListenerStream::new(listener);
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));

    let channel = Channel::from_shared(url)?.connect().await?;
    let request = HealthCheckRequest { service: String::new() };
    let response = HealthClient::new(channel).check(request).await?;
    println!("serving: {}", response.into_inner().status);
    Ok(())
}
