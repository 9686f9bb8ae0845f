//! hyper-util on pikake: its server that takes both versions of HTTP, for a service of tower.
//!
//! ```text
//! HTTP/1.1: hello
//! ```

use std::convert::Infallible;
use std::error::Error;

use hyper::{Request, Response, body::Incoming};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use pikake::http::{Client, Executor, Io};
use pikake::net::TcpListener;
use pikake::spawn;

async fn hello(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".to_owned()))
}

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let server = spawn(async move {
        let service = TowerToHyperService::new(tower::service_fn(hello));
        let stream = Io::new(listener.accept().await?.0);
        Builder::new(Executor).serve_connection(stream, service).await
    });
    let response = Client::new().get(url).send().await?;
    let version = response.version();
    let line = format!("{version:?}: {}", response.text().await?);
    drop(server.cancel().await);
    Ok(vec![line])
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    demo().await.map(|lines| println!("{}", lines.join("\n")))
}
