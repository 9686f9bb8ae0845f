//! tonic with its own transport, on tokio's current-thread runtime.

use std::time::Instant;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::stacks::{Caller, Latencies, TEXT, is_path, note};

mod generated {
    #![expect(clippy::all, reason = "tonic-build wrote it")]
    include!(concat!(env!("OUT_DIR"), "/bench.Echo.rs"));
}

use generated::echo_client::EchoClient;
use generated::echo_server::{Echo, EchoServer};

#[derive(Clone, PartialEq, prost::Message)]
pub struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

struct Echoing;

#[tonic::async_trait]
impl Echo for Echoing {
    async fn echo(&self, request: Request<Text>) -> Result<Response<Text>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

/// Serves for ever. Without delay of small segments, as tonic's own `serve` does.
pub async fn serve(address: &str) {
    if is_path(address) {
        let listener = tokio::net::UnixListener::bind(address).expect("the path is free");
        println!("{address}");
        let server = Server::builder().add_service(EchoServer::new(Echoing));
        let served = server.serve_with_incoming(UnixListenerStream::new(listener)).await;
        served.expect("the server goes on");
    } else {
        let (address, serving) = bind_to(address);
        println!("{address}");
        serving.await;
    }
}

/// A server on a free port, which serves when it is polled.
pub fn bind() -> (String, impl Future<Output = ()> + Send) {
    bind_to("127.0.0.1:0")
}

fn bind_to(address: &str) -> (String, impl Future<Output = ()> + Send + use<>) {
    let listener = TcpIncoming::bind(address.parse().expect("an address")).expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let server = Server::builder().add_service(EchoServer::new(Echoing));
    let served = server.serve_with_incoming(listener.with_nodelay(Some(true)));
    (address, async { served.await.expect("the server goes on") })
}

#[derive(Clone)]
pub struct Tonic(EchoClient<Channel>);

impl Tonic {
    async fn call(&mut self) {
        let answer = self.0.echo(Text { text: TEXT.to_owned() }).await.expect("an answer");
        assert_eq!(answer.into_inner().text, TEXT);
    }
}

impl Caller for Tonic {
    async fn connect(address: &str) -> Self {
        let channel = if is_path(address) {
            let path = address.to_owned();
            let connect = tower::service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            Endpoint::from_static("http://localhost").connect_with_connector(connect).await
        } else {
            let uri = format!("http://{address}");
            Endpoint::from_shared(uri).expect("a URI").connect().await
        };
        let mut caller = Self(EchoClient::new(channel.expect("the server listens")));
        caller.call().await;
        caller
    }

    async fn call_from_tasks(&self, tasks: usize, calls: usize) {
        let each = || {
            let mut caller = self.clone();
            tokio::spawn(async move {
                for _ in 0..calls {
                    caller.call().await;
                }
            })
        };
        let tasks: Vec<_> = (0..tasks).map(|_| each()).collect();
        for task in tasks {
            task.await.expect("no panics");
        }
    }

    fn call_in_background(&self, due: Instant, latencies: &Latencies) {
        let (mut caller, latencies) = (self.clone(), latencies.clone());
        tokio::spawn(async move {
            caller.call().await;
            note(&latencies, due);
        });
    }
}
