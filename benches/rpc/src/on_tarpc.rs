//! tarpc with its serde transport, bincode in frames with a length, on tokio's current-thread
//! runtime.

use std::time::Instant;

use futures_util::StreamExt;
use tarpc::server::{BaseChannel, Channel};
use tarpc::{client, context, serde_transport};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_serde::formats::Bincode;
use tokio_util::codec::LengthDelimitedCodec;

use crate::stacks::{Caller, Latencies, MOST_CALLS, TEXT, is_path, note};

#[tarpc::service]
trait Echo {
    async fn echo(text: String) -> String;
}

#[derive(Clone)]
struct Echoing;

impl Echo for Echoing {
    async fn echo(self, _: context::Context, text: String) -> String {
        text
    }
}

/// Serves for ever. Without delay of small segments, like the others.
pub async fn serve(address: &str) {
    if is_path(address) {
        let listener = UnixListener::bind(address).expect("the path is free");
        println!("{address}");
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            serve_connection(stream);
        }
    } else {
        let listener = TcpListener::bind(address).await.expect("a port is free");
        println!("{}", listener.local_addr().expect("it is bound"));
        serve_tcp(listener).await;
    }
}

/// A server on a free port, which serves when it is polled.
pub async fn bind() -> (String, impl Future<Output = ()> + Send) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    (listener.local_addr().expect("it is bound").to_string(), serve_tcp(listener))
}

async fn serve_tcp(listener: TcpListener) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("an open stream");
        serve_connection(stream);
    }
}

fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let framed = LengthDelimitedCodec::builder().new_framed(stream);
    let channel = BaseChannel::with_defaults(serde_transport::new(framed, Bincode::default()));
    tokio::spawn(channel.execute(Echoing.serve()).for_each(async |call| {
        tokio::spawn(call);
    }));
}

#[derive(Clone)]
pub struct Tarpc(EchoClient);

impl Tarpc {
    fn new(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let framed = LengthDelimitedCodec::builder().new_framed(stream);
        let transport = serde_transport::new(framed, Bincode::default());
        let mut config = client::Config::default();
        config.max_in_flight_requests = MOST_CALLS;
        Self(EchoClient::new(config, transport).spawn())
    }

    async fn call(&self) {
        let answer = self.0.echo(context::current(), TEXT.to_owned()).await;
        assert_eq!(answer.expect("an answer"), TEXT);
    }
}

impl Caller for Tarpc {
    async fn connect(address: &str) -> Self {
        let caller = if is_path(address) {
            Self::new(UnixStream::connect(address).await.expect("the server listens"))
        } else {
            let stream = TcpStream::connect(address).await.expect("the server listens");
            stream.set_nodelay(true).expect("an open stream");
            Self::new(stream)
        };
        caller.call().await;
        caller
    }

    async fn call_from_tasks(&self, tasks: usize, calls: usize) {
        let each = || {
            let caller = self.clone();
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
        let (caller, latencies) = (self.clone(), latencies.clone());
        tokio::spawn(async move {
            caller.call().await;
            note(&latencies, due);
        });
    }
}
