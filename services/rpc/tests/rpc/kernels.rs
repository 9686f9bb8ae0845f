//! Calls between kernels of one process.

use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pikake::net::serve_on_all;
use pikake::rpc::local::{LocalConnector, LocalListener, listener};
use pikake::rpc::{CallFailure, Client, Executed, Receiver, Sender, Server, channel, current_call};
use pikake::sync::Event;
use pikake::time::now;
use pikake::traps::clock_rate;
use pikake::{Interrupted, TaskError, on_kernels, other_kernels, sleep, spawn, timeout_after};

/// Longer than any test takes, on any machine.
const LONG: Duration = Duration::from_secs(60);

#[pikake::service]
trait Echoes {
    async fn echo(&self, bytes: Vec<u8>) -> Vec<u8>;
    async fn wait(&self) -> String;
    async fn twice(&self, numbers: Receiver<u64>, doubled: Sender<u64>) -> u64;
    async fn who(&self) -> String;
    /// What is left of the caller's time.
    async fn left(&self) -> Option<Duration>;
}

/// Tells how its waits begin and end.
#[derive(Clone)]
struct Echo(mpsc::Sender<String>);

impl Echoes for Echo {
    async fn echo(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    async fn wait(&self) -> String {
        self.0.send("begun".to_owned()).unwrap();
        let end = match sleep(LONG).await {
            Ok(()) => "slept".to_owned(),
            Err(interrupted) => interrupted.to_string(),
        };
        let _ = self.0.send(end.clone());
        end
    }

    async fn twice(&self, numbers: Receiver<u64>, doubled: Sender<u64>) -> u64 {
        let mut count = 0;
        while let Ok(Some(number)) = numbers.recv().await {
            doubled.send(number * 2).await.unwrap();
            count += 1;
        }
        doubled.finish();
        count
    }

    async fn who(&self) -> String {
        current_call().unwrap().peer.to_string()
    }

    async fn left(&self) -> Option<Duration> {
        let deadline = current_call().unwrap().deadline;
        let left = clock_rate().duration_floor(deadline.ticks().since(now()));
        (!deadline.is_never()).then_some(left)
    }
}

/// A server on a kernel of its own, which ends when all connectors are gone or somebody sends to
/// the channel.
struct Hosted {
    connector: LocalConnector,
    events: mpsc::Receiver<String>,
    end: pikake::sync::shared::UnboundedSender<()>,
    thread: JoinHandle<()>,
}

fn serve(listener: LocalListener, connector: LocalConnector) -> Hosted {
    let (told, events) = mpsc::channel();
    let (end, mut ended) = pikake::sync::shared::unbounded_channel();
    let thread = thread::spawn(move || {
        pikake::run(async move {
            let server = Server::new().add(EchoesServer::new(Echo(told)));
            let server = spawn(server.serve(listener));
            let watch = spawn(async move {
                // The end of the main task ends the kernel.
                if ended.recv().await.is_ok_and(|end| end.is_none()) {
                    let _ = sleep(LONG).await;
                }
            });
            let _ = watch.await;
            server.abort();
        });
    });
    Hosted { connector, events, end, thread }
}

fn hosted() -> Hosted {
    let (connector, listener) = listener("echoes");
    serve(listener, connector)
}

impl Hosted {
    fn client(&self) -> Client {
        Client::builder().local(&self.connector).attempts(1).build()
    }

    fn event(&self) -> String {
        self.events.recv_timeout(LONG).expect("an event")
    }

    fn stop(self) {
        self.end.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

#[test]
fn kernels_call_each_other() {
    let hosted = hosted();
    // Several kernels call one.
    let threads: Vec<_> = (0..3_u8)
        .map(|number| {
            let connector = hosted.connector.clone();
            thread::spawn(move || {
                pikake::run(async move {
                    let echoes = EchoesClient::new(Client::builder().local(&connector).build());
                    for size in [0, 1, 100_000, 900_000] {
                        let bytes = vec![number; size];
                        assert_eq!(echoes.echo(bytes.clone()).await.unwrap(), bytes);
                    }
                    assert_eq!(echoes.who().await.unwrap(), "another kernel of the process");
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    hosted.stop();
}

#[test]
fn streams_pass_between_kernels() {
    let hosted = hosted();
    pikake::run(async {
        let echoes = EchoesClient::new(hosted.client());
        let (numbers, sent) = channel(4);
        let (doubled, results) = channel(4);
        let call = spawn(async move { echoes.twice(sent, doubled).await });
        let sender = spawn(async move {
            for number in 0..1_000 {
                numbers.send(number).await.unwrap();
            }
        });
        for number in 0..1_000 {
            assert_eq!(results.recv().await.unwrap(), Some(2 * number));
        }
        assert_eq!(results.recv().await.unwrap(), None);
        sender.await.unwrap();
        assert_eq!(call.await.unwrap().unwrap(), 1_000);
    });
    hosted.stop();
}

#[test]
fn deadlines_and_cancels_pass_between_kernels() {
    let hosted = hosted();
    pikake::run(async {
        let echoes = EchoesClient::new(hosted.client());
        assert_eq!(echoes.left().await.unwrap(), None);
        let left = timeout_after(LONG, echoes.left()).await.unwrap().unwrap().unwrap();
        assert!(left > Duration::ZERO && left <= LONG, "{left:?}");
        let call = spawn(async move { echoes.wait().await });
        while hosted.events.try_recv().is_err() {
            sleep(Duration::from_millis(1)).await.unwrap();
        }
        call.request_cancel("enough");
        assert!(call.await.unwrap().unwrap_err().interrupted().is_some());
        assert_eq!(hosted.event(), "cancelled: the caller has given up");
    });
    hosted.stop();
}

#[test]
fn the_end_of_the_servers_kernel_is_an_error() {
    let hosted = hosted();
    pikake::run(async {
        let echoes = EchoesClient::new(hosted.client());
        let call = spawn({
            let echoes = echoes.clone();
            async move { echoes.wait().await }
        });
        while hosted.events.try_recv().is_err() {
            sleep(Duration::from_millis(1)).await.unwrap();
        }
        hosted.end.send(()).unwrap();
        // The handler is interrupted, and may still answer.
        match timeout_after(LONG, call).await.unwrap().unwrap() {
            Ok(answer) => assert!(answer.contains("shut down"), "{answer}"),
            Err(error) => assert!(error.executed >= Executed::Maybe, "{error}"),
        }
    });
    hosted.thread.join().unwrap();
    pikake::run(async {
        let echoes =
            EchoesClient::new(Client::builder().local(&hosted.connector).attempts(1).build());
        let error = timeout_after(LONG, echoes.who()).await.unwrap().unwrap_err();
        assert!(matches!(error.failure, CallFailure::Connection(_)), "{error}");
        assert_eq!(error.executed, Executed::No);
    });
}

#[test]
fn the_end_of_a_clients_kernel_ends_its_handlers() {
    let hosted = hosted();
    let connector = hosted.connector.clone();
    let (begun, client) = (mpsc::channel::<()>(), thread::spawn);
    let client = client(move || {
        pikake::run(async move {
            let echoes = EchoesClient::new(Client::builder().local(&connector).build());
            spawn(async move { echoes.wait().await }).detach();
            while begun.1.try_recv().is_err() {
                sleep(Duration::from_millis(1)).await.unwrap();
            }
        });
    });
    assert_eq!(hosted.event(), "begun");
    begun.0.send(()).unwrap();
    client.join().unwrap();
    assert!(hosted.event().starts_with("cancelled"));
    // The server goes on.
    pikake::run(async {
        let echoes = EchoesClient::new(hosted.client());
        assert_eq!(echoes.echo(vec![1]).await.unwrap(), [1]);
    });
    hosted.stop();
}

#[test]
fn connections_that_nobody_accepts_end() {
    let (connector, listener) = listener("nobody");
    pikake::run(async move {
        let connected = Rc::new(Event::new());
        let notify = connected.clone();
        let client = Client::builder().attempts(1).server("nobody", move || {
            let (connector, notify) = (connector.clone(), notify.clone());
            async move {
                let stream = connector.connect().await?;
                notify.set();
                Ok(stream)
            }
        });
        let call = spawn(EchoesClient::new(client.build()).who());
        connected.wait().await.unwrap();
        drop(listener);
        let error = timeout_after(LONG, call).await.unwrap().unwrap().unwrap_err();
        assert_eq!(error.executed, Executed::No, "{error}");
    });
}

/// By the listener that uses no socket, and by a port that all kernels serve.
#[pikake::sim(seeds = 20, threads = 3)]
async fn simulated_kernels_call_each_other() {
    let others = other_kernels();
    let (connector, listener) = listener("echoes");
    let (told, _events) = mpsc::channel();
    let echo = Echo(told);
    let served = echo.clone();
    let serving = others[0].spawn(move || async move {
        drop(Server::new().add(EchoesServer::new(served)).serve(listener).await);
    });
    serving.unwrap();
    let on_all = spawn(serve_on_all("127.0.0.1:7000", &others, move |listener| {
        Server::new().add(EchoesServer::new(echo)).serve(listener)
    }));

    // A client on each kernel, of both servers.
    let ended = on_kernels(&others, move || async move {
        sleep(Duration::from_millis(10)).await?;
        let local = Client::builder().local(&connector).build();
        let tcp = Client::tcp("127.0.0.1:7000");
        for client in [local, tcp] {
            let echoes = EchoesClient::new(client.clone());
            for number in 0..10 {
                assert_eq!(echoes.echo(vec![number; 100]).await.unwrap(), vec![number; 100]);
            }
            drop(echoes);
            client.close().await.unwrap();
        }
        Ok::<_, EndedEarly>(())
    });
    assert!(ended.await.iter().all(Result::is_ok));
    on_all.request_cancel("enough");
    assert_eq!(on_all.await.unwrap().unwrap().len(), 3);
}

#[derive(Debug)]
struct EndedEarly;

impl From<Interrupted> for EndedEarly {
    fn from(_: Interrupted) -> Self {
        Self
    }
}

impl From<TaskError> for EndedEarly {
    fn from(_: TaskError) -> Self {
        Self
    }
}
