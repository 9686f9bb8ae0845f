//! hyper on pikake: a server and a client, HTTP/1 and HTTP/2, with hyper's own interfaces.
//!
//! ```text
//! HTTP/1.1: hello, world
//! HTTP/2.0: hello, world
//! ```
//!
//! Nothing here is pikake's but the three things that hyper asks of a runtime: streams ([`Io`]),
//! somewhere to spawn ([`Executor`]), and a clock ([`Timer`]).

use std::convert::Infallible;
use std::error::Error;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, client, server};
use pikake::http::{Executor, Io, Timer};
use pikake::net::{TcpListener, TcpStream};
use pikake::{TaskGroup, future_wait, spawn};

async fn hello(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let name = request.uri().path().trim_start_matches('/').to_owned();
    Ok(Response::new(Full::from(format!("hello, {name}"))))
}

async fn serve_http1(stream: TcpStream) -> hyper::Result<()> {
    let mut builder = server::conn::http1::Builder::new();
    builder.timer(Timer::new()).serve_connection(Io::new(stream), service_fn(hello)).await
}

async fn serve_http2(stream: TcpStream) -> hyper::Result<()> {
    let mut builder = server::conn::http2::Builder::new(Executor);
    builder.timer(Timer::new()).serve_connection(Io::new(stream), service_fn(hello)).await
}

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/world", listener.local_addr()?);
    let mut servers = TaskGroup::new();
    let mut lines = Vec::new();

    let stream = TcpStream::connect(listener.local_addr()?).await?;
    servers.spawn(serve_http1(listener.accept().await?.0));
    let (mut http1, connection) = client::conn::http1::handshake(Io::new(stream)).await?;
    spawn(connection).detach();
    // hyper's futures know nothing of interruptions: `future_wait` makes the wait one that does.
    let request = Request::get("/world").header("host", "localhost").body(Empty::<Bytes>::new())?;
    lines.push(line(future_wait(http1.send_request(request)).await??).await?);
    drop(http1);

    let stream = TcpStream::connect(listener.local_addr()?).await?;
    servers.spawn(serve_http2(listener.accept().await?.0));
    let mut builder = client::conn::http2::Builder::new(Executor);
    let (mut http2, connection) = builder.timer(Timer::new()).handshake(Io::new(stream)).await?;
    spawn(connection).detach();
    let request = Request::get(url).body(Empty::<Bytes>::new())?;
    lines.push(line(future_wait(http2.send_request(request)).await??).await?);
    drop(http2);

    for served in servers.join_all().await? {
        served?;
    }
    Ok(lines)
}

async fn line(response: Response<Incoming>) -> Result<String, Box<dyn Error>> {
    let version = response.version();
    let body = future_wait(response.into_body().collect()).await??.to_bytes();
    Ok(format!("{version:?}: {}", str::from_utf8(&body)?))
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for line in demo().await? {
        println!("{line}");
    }
    Ok(())
}
