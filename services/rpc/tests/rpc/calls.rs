//! Calls and their ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, UnixListener};
use pikake::rpc::{
    CallFailure, Client, Executed, Receiver, Sender, Server, Transport, channel, current_call,
};
use pikake::{Interrupted, now, sleep, spawn, timeout_after};

#[pikake::service]
trait Sample {
    async fn add(&self, left: u64, right: u64) -> u64;
    async fn wait(&self, millis: u64) -> Result<u64, String>;
    #[notice]
    async fn note(&self, text: String);
    async fn sum(&self, numbers: Receiver<u64>) -> Result<u64, String>;
    async fn count(&self, to: u64, numbers: Sender<u64>);
    async fn panic(&self);
    async fn who(&self) -> (String, Option<String>);
    /// The ms until the caller's deadline.
    async fn left(&self) -> Option<u128>;
}

#[derive(Clone, Default)]
struct Office(Rc<Notes>);

#[derive(Default)]
struct Notes {
    texts: RefCell<Vec<String>>,
    under_way: Cell<usize>,
}

struct Counted(Rc<Notes>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

impl Office {
    fn count(&self) -> Counted {
        self.0.under_way.set(self.0.under_way.get() + 1);
        Counted(self.0.clone())
    }
}

impl Sample for Office {
    async fn add(&self, left: u64, right: u64) -> u64 {
        left + right
    }

    async fn wait(&self, millis: u64) -> Result<u64, String> {
        let _counted = self.count();
        match sleep(Duration::from_millis(millis)).await {
            Ok(()) => Ok(millis),
            Err(interrupted) => {
                self.0.texts.borrow_mut().push(format!("{interrupted}"));
                Err(interrupted.to_string())
            }
        }
    }

    async fn note(&self, text: String) {
        self.0.texts.borrow_mut().push(text);
    }

    async fn sum(&self, numbers: Receiver<u64>) -> Result<u64, String> {
        let mut sum = 0;
        while let Some(number) = numbers.next().await.map_err(|error| error.to_string())? {
            sum += number;
        }
        Ok(sum)
    }

    async fn count(&self, to: u64, numbers: Sender<u64>) {
        for number in 0..to {
            if numbers.send(number).await.is_err() {
                return;
            }
        }
        numbers.finish();
    }

    async fn panic(&self) {
        panic!("the handler is broken");
    }

    async fn who(&self) -> (String, Option<String>) {
        let call = current_call().unwrap();
        (call.method.to_owned(), call.metadata("tenant").map(str::to_owned))
    }

    async fn left(&self) -> Option<u128> {
        let deadline = current_call().unwrap().deadline;
        (!deadline.is_never())
            .then(|| Duration::from_nanos(deadline.ticks().since(now())).as_millis())
    }
}

/// Runs `test` with a client of a server.
fn with_sample<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(SampleClient, Office, Client) -> F + 'static,
) {
    pikake::sim::example(async move {
        let office = Office::default();
        let listener = TcpListener::bind("127.0.0.1:7000").await.unwrap();
        let server = Server::new().add(SampleServer::new(office.clone()));
        let server = spawn(server.serve(listener));
        let client = Client::tcp("127.0.0.1:7000");
        test(SampleClient::new(client.clone()), office, client).await;
        server.request_cancel("the test is over");
        let report = server.await.unwrap().unwrap();
        assert!(report.is_clean(), "{report}");
    });
}

#[test]
fn calls_are_answered_in_any_order() {
    with_sample(async |sample, _, _| {
        let slow = spawn({
            let sample = sample.clone();
            async move { sample.wait(100).await }
        });
        assert_eq!(sample.add(2, 3).await.unwrap(), 5);
        assert_eq!(slow.await.unwrap().unwrap(), 100);
    });
}

#[test]
fn deadlines_travel() {
    with_sample(async |sample, office, _| {
        assert_eq!(sample.left().await.unwrap(), None);
        let left = timeout_after(Duration::from_millis(50), sample.left()).await;
        assert!(matches!(left, Ok(Ok(Some(1..=50)))), "{left:?}");
        let ended = timeout_after(Duration::from_millis(50), sample.wait(60_000)).await;
        assert!(ended.is_err());
        assert_eq!(sample.add(1, 1).await.unwrap(), 2);
        assert_eq!(office.0.texts.borrow().len(), 1);
        assert_eq!(office.0.under_way.get(), 0);
    });
}

#[test]
fn callers_that_give_up_interrupt_the_handler() {
    with_sample(async |sample, office, _| {
        let call = spawn({
            let sample = sample.clone();
            async move { sample.wait(60_000).await }
        });
        sleep(Duration::from_millis(10)).await.unwrap();
        assert_eq!(office.0.under_way.get(), 1);
        call.request_cancel("changed my mind");
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(error.interrupted().and_then(Interrupted::reason), Some("changed my mind"));
        assert_eq!(error.executed(), Executed::Maybe);
        sleep(Duration::from_millis(10)).await.unwrap();
        assert_eq!(office.0.under_way.get(), 0);
        assert_eq!(*office.0.texts.borrow(), ["cancelled: the caller has given up"]);
    });
}

#[test]
fn items_travel_in_both_directions() {
    with_sample(async |sample, _, _| {
        let (sender, receiver) = channel(4);
        let sum = spawn({
            let sample = sample.clone();
            async move { sample.sum(receiver).await }
        });
        for number in 1..=1_000 {
            sender.send(number).await.unwrap();
        }
        sender.finish();
        assert_eq!(sum.await.unwrap().unwrap(), 500_500);
        let (sender, receiver) = channel(4);
        let count = spawn(async move { sample.count(1_000, sender).await });
        for number in 0..1_000 {
            assert_eq!(receiver.next().await.unwrap(), Some(number));
        }
        assert_eq!(receiver.next().await.unwrap(), None);
        count.await.unwrap().unwrap();
    });
}

#[test]
fn panics_are_errors() {
    with_sample(async |sample, _, _| {
        let error = sample.panic().await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Panicked), "{error}");
        assert_eq!(sample.add(1, 1).await.unwrap(), 2);
    });
}

#[test]
fn metadata_and_notices_arrive() {
    with_sample(async |sample, office, client| {
        sample.note("hello".to_owned()).await.unwrap();
        let tenant = SampleClient::new(client.with_metadata("tenant", "7"));
        let who = tenant.who().await.unwrap();
        assert_eq!(who, ("Sample.who".to_owned(), Some("7".to_owned())));
        assert_eq!(*office.0.texts.borrow(), ["hello"]);
    });
}

#[test]
fn calls_travel_over_unix_sockets() {
    pikake::sim::example(async {
        let listener = UnixListener::bind("/run/sample.sock").unwrap();
        let server = Server::new().add(SampleServer::new(Office::default()));
        let server = spawn(server.serve(listener));
        let sample = SampleClient::new(Client::builder().unix("/run/sample.sock").build());
        assert_eq!(sample.add(2, 3).await.unwrap(), 5);
        server.cancel().await.unwrap();
    });
}

#[test]
fn tcp_streams_send_small_packets_at_once() {
    pikake::sim::example(async {
        let listener = TcpListener::bind("127.0.0.1:7000").await.unwrap();
        let stream = TcpStream::connect("127.0.0.1:7000").await.unwrap();
        assert!(!stream.nodelay().unwrap());
        stream.send_at_once().unwrap();
        assert!(stream.nodelay().unwrap());
        drop(listener);
    });
}
