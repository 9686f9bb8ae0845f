//! tonic on pikake without its transport: a gRPC server on `pikake::http::serve`, a client on a
//! bare hyper connection.
//!
//! ```text
//! hello, world
//! nobody is called nobody
//! ```
//!
//! The service is written by hand as tonic's build step would generate it, so that no protobuf
//! compiler is needed.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::client::conn::http2;
use pikake::http::{Executor, Io, Timer};
use pikake::net::{TcpListener, TcpStream};
use pikake::{Bound, future_wait, sleep, spawn};
use std::time::Duration;
use tonic::body::Body;
use tonic::server::{NamedService, UnaryService};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HelloRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HelloReply {
    #[prost(string, tag = "1")]
    pub(crate) message: String,
}

/// What a user writes: the method.
async fn say_hello(request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
    // A wait of pikake, bound to its thread since tonic demands `Send`.
    let nap = Bound::future(async { sleep(Duration::from_millis(1)).await });
    nap.await.map_err(|told| Status::cancelled(told.to_string()))?;
    match request.into_inner().name {
        name if name == "nobody" => Err(Status::not_found("nobody is called nobody")),
        name => Ok(Response::new(HelloReply { message: format!("hello, {name}") })),
    }
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

struct SayHello;

impl UnaryService<HelloRequest> for SayHello {
    type Response = HelloReply;
    type Future = BoxFuture<Result<Response<HelloReply>, Status>>;

    fn call(&mut self, request: Request<HelloRequest>) -> Self::Future {
        Box::pin(say_hello(request))
    }
}

#[derive(Clone)]
struct Greeter;

impl NamedService for Greeter {
    const NAME: &'static str = "greeter.Greeter";
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match request.uri().path() {
            "/greeter.Greeter/SayHello" => Box::pin(async move {
                let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
                Ok(grpc.unary(SayHello, request).await)
            }),
            _ => Box::pin(ready(Ok(Status::unimplemented("no such method").into_http()))),
        }
    }
}

/// A hyper connection as tonic wants it.
struct Channel(http2::SendRequest<Body>);

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<http::Response<Incoming>>>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let routes = Routes::new(Greeter).prepare().into_axum_router();
    let server = spawn(pikake::http::serve(listener, routes).into_future()).cancel_on_drop();

    let mut builder = http2::Builder::new(Executor);
    let stream = Io::new(TcpStream::connect(address).await?);
    let (sender, connection) = builder.timer(Timer::new()).handshake(stream).await?;
    spawn(connection).detach();
    let origin = format!("http://{address}").parse()?;
    let mut client = tonic::client::Grpc::with_origin(Channel(sender), origin);
    let mut lines = Vec::new();
    for name in ["world", "nobody"] {
        client.ready().await?;
        let path = http::uri::PathAndQuery::from_static("/greeter.Greeter/SayHello");
        let request = Request::new(HelloRequest { name: name.to_owned() });
        let codec = ProstCodec::<HelloRequest, HelloReply>::default();
        lines.push(match future_wait(client.unary(request, path, codec)).await? {
            Ok(reply) => reply.into_inner().message,
            Err(status) => status.message().to_owned(),
        });
    }
    drop(client);
    server.cancel().await?;
    Ok(lines)
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for line in demo().await? {
        println!("{line}");
    }
    Ok(())
}
