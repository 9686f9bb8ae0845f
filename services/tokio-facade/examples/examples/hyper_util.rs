//! hyper-util: its server for both versions of HTTP, and its client with a pool.
//!
//! ```text
//! HTTP/1.1: hello
//! ```

use std::convert::Infallible;
use std::error::Error;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpListener;

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?).parse()?;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a listener");
        let server = Builder::new(TokioExecutor::new());
        drop(server.serve_connection(TokioIo::new(stream), service_fn(hello)).await);
    });
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let response = client.get(url).await?;
    let version = response.version();
    let body = response.into_body().collect().await?.to_bytes();
    println!("{version:?}: {}", str::from_utf8(&body)?);
    Ok(())
}
