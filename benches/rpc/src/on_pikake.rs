//! pikake's rpc.

use std::io;
use std::time::Instant;

use pikake::net::{TcpListener, UnixListener};
use pikake::rpc::{Client, Server};

use crate::stacks::{Caller, Latencies, MOST_CALLS, MOST_CONNECTIONS, TEXT, is_path, note};

#[pikake::service]
trait Echo {
    async fn echo(&self, text: String) -> String;
}

struct Echoing;

impl Echo for Echoing {
    async fn echo(&self, text: String) -> String {
        text
    }
}

fn server() -> Server {
    Server::new().add(EchoServer::new(Echoing)).calls(MOST_CALLS).connections(MOST_CONNECTIONS)
}

/// Starts a server beside its clients, and returns its address.
pub async fn start() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    pikake::spawn(server().serve(listener)).detach();
    address
}

pub fn serve(address: &str) {
    pikake::run(async {
        let server = server();
        if is_path(address) {
            let listener = UnixListener::bind(address)?;
            println!("{address}");
            server.serve(listener).await.map(drop).map_err(io::Error::other)
        } else {
            let listener = TcpListener::bind(address).await?;
            println!("{}", listener.local_addr()?);
            server.serve(listener).await.map(drop).map_err(io::Error::other)
        }
    })
    .expect("the server goes on");
}

#[derive(Clone)]
pub struct Pikake(EchoClient);

impl Pikake {
    async fn call(&self) {
        assert_eq!(self.0.echo(TEXT.to_owned()).await.expect("an answer"), TEXT);
    }
}

impl Caller for Pikake {
    async fn connect(address: &str) -> Self {
        let builder = Client::builder();
        let builder = if is_path(address) { builder.unix(address) } else { builder.tcp(address) };
        let caller = Self(EchoClient::new(builder.build()));
        caller.call().await;
        caller
    }

    async fn call_from_tasks(&self, tasks: usize, calls: usize) {
        let each = || {
            let caller = self.clone();
            pikake::spawn(async move {
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
        let call = async move {
            caller.call().await;
            note(&latencies, due);
        };
        pikake::spawn(call).detach();
    }
}
