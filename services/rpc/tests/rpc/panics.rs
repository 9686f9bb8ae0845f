//! Panics of user code and of streams, in the tasks of connections.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{MemoryStream, Read, TcpListener, Write};
use pikake::rpc::{CallFailure, Client, Executed, ReceiveError, Receiver, Sender, Server, channel};
use pikake::{sleep, spawn, timeout_after};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const LONG: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(10);
/// The items that are under way in a channel, by default.
const CREDIT: usize = 16;

/// The code of an item that panics.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
enum Fault {
    None,
    Serialize,
    Deserialize,
    Drop,
}

#[derive(Debug)]
struct Item(Fault);

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 == Fault::Serialize {
            resume_unwind(Box::new("expected"));
        }
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Fault::deserialize(deserializer)? {
            Fault::Deserialize => resume_unwind(Box::new("expected")),
            fault => Ok(Self(fault)),
        }
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        if self.0 == Fault::Drop {
            resume_unwind(Box::new("expected"));
        }
    }
}

#[pikake::service]
trait Faults {
    async fn wait(&self, millis: u64) -> u64;
    /// Takes all items, and answers the number and the error.
    async fn count(&self, items: Receiver<Item>) -> (usize, Option<String>);
    /// Drops the end after a moment.
    async fn ignore(&self, items: Receiver<Item>);
    async fn send(&self, faults: Vec<Fault>, items: Sender<Item>) -> Option<String>;
}

struct Handlers;

async fn count(items: Receiver<Item>) -> (usize, Option<String>) {
    let mut count = 0;
    loop {
        match items.recv().await {
            Ok(Some(item)) => {
                std::mem::forget(item);
                count += 1;
            }
            Ok(None) => return (count, None),
            Err(error) => return (count, Some(error.to_string())),
        }
    }
}

impl Faults for Handlers {
    async fn wait(&self, millis: u64) -> u64 {
        sleep(Duration::from_millis(millis)).await.unwrap();
        millis
    }

    async fn count(&self, items: Receiver<Item>) -> (usize, Option<String>) {
        count(items).await
    }

    async fn ignore(&self, _items: Receiver<Item>) {
        sleep(MOMENT).await.unwrap();
    }

    async fn send(&self, faults: Vec<Fault>, items: Sender<Item>) -> Option<String> {
        for fault in faults {
            if let Err(error) = items.send(Item(fault)).await {
                return Some(error.to_string());
            }
        }
        None
    }
}

/// Runs `test` while another call of the connection is under way, which must be answered.
fn beside_a_call<F: Future<Output = ()> + 'static>(test: impl FnOnce(FaultsClient) -> F + 'static) {
    pikake::sim::example(async move {
        let listener = TcpListener::bind("127.0.0.1:7000").await.unwrap();
        let serving = spawn(Server::new().add(FaultsServer::new(Handlers)).serve(listener));
        let faults = FaultsClient::new(Client::tcp("127.0.0.1:7000"));
        let other = faults.clone();
        let call = spawn(async move { other.wait(10_000).await });
        timeout_after(Duration::from_secs(5), test(faults)).await.unwrap();
        assert_eq!(timeout_after(LONG, call).await.unwrap().unwrap().unwrap(), 10_000);
        serving.cancel().await.unwrap();
    });
}

/// Fills a channel, and then makes the call that `call` describes.
async fn filled(count: usize, fault: Fault) -> (Sender<Item>, Receiver<Item>) {
    let (sender, receiver) = channel(count + 1);
    for _ in 0..count {
        sender.send(Item(Fault::None)).await.unwrap();
    }
    sender.send(Item(fault)).await.unwrap();
    (sender, receiver)
}

#[test]
fn panics_of_serialize_lose_the_item() {
    beside_a_call(async |faults| {
        // The first item leaves with the request, and the other one when the server grants credit.
        for count in [0, CREDIT + 4] {
            let (sender, receiver) = filled(count, Fault::Serialize).await;
            sender.finish();
            let counted = faults.count(receiver).await.unwrap();
            let lost = ReceiveError::Lost.to_string();
            assert_eq!(counted, (count, Some(lost)));
        }
        let (sender, receiver) = channel(4);
        let sent =
            spawn(async move { faults.send(vec![Fault::None, Fault::Serialize], sender).await });
        assert_eq!(count(receiver).await.0, 1);
        let error = sent.await.unwrap().unwrap().unwrap();
        assert!(error.contains("`Serialize` panicked: expected"), "{error}");
    });
}

#[test]
fn panics_of_deserialize_end_the_channel() {
    beside_a_call(async |faults| {
        let (sender, receiver) = filled(3, Fault::Deserialize).await;
        sender.finish();
        let (taken, error) = faults.count(receiver).await.unwrap();
        assert!(error.unwrap().contains("`Deserialize` panicked: expected"));
        assert_eq!(taken, 3);
        let (sender, receiver) = channel(4);
        let sent =
            spawn(async move { faults.send(vec![Fault::None, Fault::Deserialize], sender).await });
        let (taken, error) = count(receiver).await;
        assert!(error.unwrap().contains("`Deserialize` panicked: expected"));
        assert_eq!(taken, 1);
        sent.await.unwrap().unwrap();
    });
}

#[test]
fn panics_of_destructors_harm_no_call() {
    beside_a_call(async |faults| {
        // Items that have no credit when the server wants no more.
        let (_sender, receiver) = filled(CREDIT, Fault::Drop).await;
        faults.ignore(receiver).await.unwrap();
        // Items that nobody takes.
        let (_sender, receiver) = filled(2, Fault::Drop).await;
        faults.ignore(receiver).await.unwrap();
        // Items that are lost with their caller.
        let (_sender, receiver) = filled(CREDIT, Fault::Drop).await;
        let call = spawn(async move { faults.ignore(receiver).await });
        sleep(MOMENT / 2).await.unwrap();
        call.cancel().await.unwrap();
    });
}

/// A stream whose `read` panics when it is told to.
struct Fragile {
    stream: MemoryStream,
    is_broken: Rc<Cell<bool>>,
}

impl Read for Fragile {
    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer).await;
        if self.is_broken.get() {
            resume_unwind(Box::new("expected"));
        }
        read
    }
}

impl Write for Fragile {
    async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.stream.write(data).await
    }

    async fn finish(&self) -> io::Result<()> {
        self.stream.finish().await
    }
}

/// However the task that receives answers ends, no caller waits for ever.
#[test]
fn panics_of_the_stream_fail_the_calls() {
    // A simulation fails when a task panics.
    pikake::run(async {
        let is_broken = Rc::new(Cell::new(false));
        let broken = is_broken.clone();
        let connect = move || {
            let (stream, there) = MemoryStream::pair(4096);
            let server = Server::new().add(FaultsServer::new(Handlers));
            spawn(server.serve_connection(there)).detach();
            let is_broken = broken.clone();
            async move { Ok(Fragile { stream, is_broken }) }
        };
        let client = Client::builder().attempts(1).server("fragile", connect).build();
        let faults = FaultsClient::new(client);
        assert_eq!(faults.wait(0).await.unwrap(), 0);
        is_broken.set(true);
        let error = timeout_after(LONG, faults.wait(1)).await.unwrap().unwrap_err();
        assert!(matches!(error.failure, CallFailure::Connection(_)), "{error}");
        assert_eq!(error.executed, Executed::Maybe);
        is_broken.set(false);
        assert_eq!(timeout_after(LONG, faults.wait(1)).await.unwrap().unwrap(), 1);
    });
}
