//! Channels of calls.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use pikake::kernel::inspect::kernel_figures;
use pikake::net::{MemoryStream, TcpListener, Write};
use pikake::rpc::packets::{PacketError, PacketOptions};
use pikake::rpc::{
    CallFailure, Client, Codec, Executed, NotSent, ReceiveError, Receiver, Sender, Server, channel,
};
use pikake::testing::interrupt_everywhere;
use pikake::{Task, sleep, spawn, timeout_after};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const LONG: Duration = Duration::from_secs(1_000);
const MOMENT: Duration = Duration::from_millis(10);

/// The items that are under way in a channel, by default.
const CREDIT: usize = 16;

#[derive(Serialize, Deserialize, Debug)]
struct Nested {
    name: String,
    input: Option<Receiver<u64>>,
    outputs: Vec<Sender<u64>>,
    none: Option<Sender<String>>,
}

/// A value that can be sent or read only if it is even.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Even(u64);

/// A value that anybody sends, and nobody reads unless it is even.
#[derive(Clone, Copy, PartialEq, Debug)]
struct ReadEven(u64);

impl Serialize for Even {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 % 2 {
            0 => serializer.serialize_u64(self.0),
            _ => Err(serde::ser::Error::custom("an odd number")),
        }
    }
}

impl<'de> Deserialize<'de> for Even {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self)
    }
}

impl Serialize for ReadEven {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ReadEven {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            even if even % 2 == 0 => Ok(Self(even)),
            _ => Err(serde::de::Error::custom("an odd number")),
        }
    }
}

/// Serializes an end twice.
struct Twice(Receiver<u64>);

impl Serialize for Twice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.0, &self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Twice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Receiver::deserialize(deserializer).map(Self)
    }
}

/// Both ends of a channel.
type Both = (Sender<u64>, Receiver<u64>);

#[pikake::service]
trait Flow {
    async fn sum(&self, numbers: Receiver<u64>) -> u64;
    async fn count(&self, to: u64, numbers: Sender<u64>) -> u64;
    /// Takes so many items, keeps the end until `release`, and then takes the rest.
    async fn hold(&self, first: usize, numbers: Receiver<u64>) -> u64;
    async fn take_some(&self, count: usize, numbers: Receiver<u64>) -> u64;
    async fn nested(&self, nested: Nested) -> String;
    async fn both(&self, ends: Both);
    async fn twice(&self, ends: Twice);
    async fn evens(&self, numbers: Receiver<Even>) -> Vec<u64>;
    async fn read_evens(&self, numbers: Receiver<ReadEven>) -> String;
    async fn send_odds(&self, numbers: Sender<ReadEven>);
    async fn texts(&self, texts: Receiver<String>) -> Vec<usize>;
    async fn large(&self, size: usize, texts: Sender<String>) -> String;
    async fn keep(&self, numbers: Sender<u64>);
    async fn panic(&self, numbers: Sender<u64>);
    async fn send_one(&self, numbers: Sender<u64>);
    async fn forward(&self, numbers: Receiver<u64>) -> String;
    async fn echo(&self, input: Receiver<u64>, output: Sender<u64>);
    async fn answers_with_an_end(&self) -> Option<Receiver<u64>>;
    async fn carries_ends(&self, ends: Sender<Receiver<u64>>) -> String;
}

#[derive(Default)]
struct Notes {
    may_go_on: Cell<bool>,
    kept: RefCell<Vec<Task<String>>>,
    ended: RefCell<Vec<String>>,
}

#[derive(Clone, Default)]
struct Tank(Rc<Notes>);

impl Tank {
    fn note(&self, what: impl Debug) {
        self.0.ended.borrow_mut().push(format!("{what:?}"));
    }
}

async fn sum(numbers: &Receiver<u64>) -> u64 {
    let mut sum = 0;
    while let Ok(Some(number)) = numbers.next().await {
        sum += number;
    }
    sum
}

impl Flow for Tank {
    async fn sum(&self, numbers: Receiver<u64>) -> u64 {
        let mut sum = 0;
        loop {
            match numbers.next().await {
                Ok(Some(number)) => sum += number,
                Ok(None) => return sum,
                Err(error) => {
                    self.note(error);
                    return sum;
                }
            }
        }
    }

    async fn count(&self, to: u64, numbers: Sender<u64>) -> u64 {
        for number in 0..to {
            if let Err(error) = numbers.send(number).await {
                self.note(error.why);
                return number;
            }
        }
        numbers.finish();
        to
    }

    async fn hold(&self, first: usize, numbers: Receiver<u64>) -> u64 {
        let mut taken = 0;
        for _ in 0..first {
            taken += numbers.next().await.unwrap().unwrap();
        }
        while !self.0.may_go_on.get() {
            sleep(MOMENT).await.unwrap();
        }
        taken + sum(&numbers).await
    }

    async fn take_some(&self, count: usize, numbers: Receiver<u64>) -> u64 {
        let mut taken = 0;
        for _ in 0..count {
            taken += numbers.next().await.unwrap().unwrap();
        }
        drop(numbers);
        sleep(10 * MOMENT).await.unwrap();
        taken
    }

    async fn nested(&self, nested: Nested) -> String {
        assert!(nested.none.is_none());
        let input = nested.input.unwrap();
        while let Ok(Some(number)) = input.next().await {
            for (factor, output) in (1..).zip(&nested.outputs) {
                output.send(number * factor).await.unwrap();
            }
        }
        nested.outputs.into_iter().for_each(Sender::finish);
        nested.name
    }

    async fn both(&self, _: Both) {}

    async fn twice(&self, _: Twice) {}

    async fn evens(&self, numbers: Receiver<Even>) -> Vec<u64> {
        let mut all = Vec::new();
        loop {
            match numbers.next().await {
                Ok(Some(number)) => all.push(number.0),
                Ok(None) => return all,
                Err(error) => {
                    self.note(error);
                    return all;
                }
            }
        }
    }

    async fn read_evens(&self, numbers: Receiver<ReadEven>) -> String {
        loop {
            if let Err(error) = numbers.next().await {
                let again = numbers.next().await.unwrap_err();
                assert_eq!(again.to_string(), error.to_string());
                // The receiver stays, and the sender is told all the same.
                sleep(10 * MOMENT).await.unwrap();
                return error.to_string();
            }
        }
    }

    async fn send_odds(&self, numbers: Sender<ReadEven>) {
        for number in [2, 4, 5, 6, 7] {
            if let Err(error) = numbers.send(ReadEven(number)).await {
                self.note(error.why);
            }
        }
        sleep(10 * MOMENT).await.unwrap();
        self.note(numbers.send(ReadEven(8)).await.unwrap_err().why);
    }

    async fn texts(&self, texts: Receiver<String>) -> Vec<usize> {
        let mut all = Vec::new();
        while let Some(text) = texts.next().await.unwrap() {
            all.push(text.len());
        }
        all
    }

    async fn large(&self, size: usize, texts: Sender<String>) -> String {
        texts.send("before".to_owned()).await.unwrap();
        let error = texts.send("x".repeat(size)).await.unwrap_err();
        texts.send("after".to_owned()).await.unwrap();
        texts.finish();
        error.to_string()
    }

    async fn keep(&self, numbers: Sender<u64>) {
        numbers.send(1).await.unwrap();
        let kept = spawn(async move {
            sleep(10 * MOMENT).await.unwrap();
            format!("{:?}", numbers.send(2).await.map_err(|error| error.why))
        });
        self.0.kept.borrow_mut().push(kept);
    }

    async fn panic(&self, numbers: Sender<u64>) {
        numbers.send(1).await.unwrap();
        std::panic::resume_unwind(Box::new("expected"));
    }

    async fn send_one(&self, numbers: Sender<u64>) {
        numbers.send(1).await.unwrap();
    }

    async fn forward(&self, numbers: Receiver<u64>) -> String {
        let onward = FlowClient::new(Client::tcp("127.0.0.1:7000"));
        onward.sum(numbers).await.unwrap_err().to_string()
    }

    async fn echo(&self, input: Receiver<u64>, output: Sender<u64>) {
        while let Ok(Some(number)) = input.next().await {
            if output.send(number).await.is_err() {
                return;
            }
        }
        output.finish();
    }

    async fn answers_with_an_end(&self) -> Option<Receiver<u64>> {
        Some(channel(1).1)
    }

    async fn carries_ends(&self, ends: Sender<Receiver<u64>>) -> String {
        ends.send(channel(1).1).await.unwrap_err().to_string()
    }
}

fn server(tank: &Tank) -> Server {
    Server::new()
        .add(FlowServer::new(tank.clone()))
        .packets(PacketOptions::new().frame_limit(10_000))
}

/// Runs `test` with a client of a server, and counts the tasks that are left.
fn with_flow<F: Future<Output = ()> + 'static>(
    codec: Codec,
    test: impl FnOnce(FlowClient, Tank) -> F + 'static,
) {
    pikake::sim::example(async move {
        let tank = Tank::default();
        let listener = TcpListener::bind("127.0.0.1:7000").await.unwrap();
        let serving = spawn(server(&tank).serve(listener));
        let packets = PacketOptions::new().frame_limit(10_000);
        let client = Client::builder().codec(codec).packets(packets).tcp("127.0.0.1:7000").build();
        let flow = FlowClient::new(client);
        test(flow.clone(), tank).await;
        // The connection has outlived it all.
        let (sender, receiver) = channel(1);
        sender.finish();
        assert_eq!(flow.sum(receiver).await.unwrap(), 0);
        drop(flow);
        sleep(Duration::from_secs(1)).await.unwrap();
        serving.request_cancel("the test is over");
        serving.await.unwrap().unwrap();
        sleep(LONG).await.unwrap();
        assert_eq!(kernel_figures().tasks, 1, "tasks are left");
    });
}

fn with_postcard<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(FlowClient, Tank) -> F + 'static,
) {
    with_flow(Codec::Postcard, test);
}

/// Sends until the channel takes no more for a while, and returns the number.
async fn send_until_full(sender: &Sender<u64>) -> usize {
    let mut sent = 0;
    while let Ok(Ok(())) = timeout_after(Duration::from_secs(1), sender.send(1)).await {
        sent += 1;
    }
    sent
}

#[test]
fn uploads_have_exactly_the_credit() {
    with_postcard(async |flow, tank| {
        let (sender, receiver) = channel(100);
        let call = spawn(async move { flow.hold(0, receiver).await });
        sleep(MOMENT).await.unwrap();
        assert_eq!(send_until_full(&sender).await, CREDIT);
        tank.0.may_go_on.set(true);
        for _ in 0..100 {
            sender.send(1).await.unwrap();
        }
        sender.finish();
        assert_eq!(call.await.unwrap().unwrap(), 116);
    });
    with_postcard(async |flow, tank| {
        let (sender, receiver) = channel(100);
        let call = spawn(async move { flow.hold(8, receiver).await });
        sleep(MOMENT).await.unwrap();
        // Half of the credit comes back at once.
        assert_eq!(send_until_full(&sender).await, CREDIT + 8);
        tank.0.may_go_on.set(true);
        sender.finish();
        assert_eq!(call.await.unwrap().unwrap(), 24);
    });
}

#[test]
fn downloads_have_exactly_the_credit() {
    with_postcard(async |flow, tank| {
        let (sender, receiver) = channel(100);
        let call = spawn(async move { flow.count(1_000, sender).await });
        sleep(MOMENT).await.unwrap();
        drop(receiver);
        assert_eq!(call.await.unwrap().unwrap(), CREDIT as u64);
        assert_eq!(*tank.0.ended.borrow(), ["Closed"]);
    });
}

/// Items that were sent before the end travelled cost no credit.
#[test]
fn items_of_before_the_call_come_first() {
    with_postcard(async |flow, _| {
        let (sender, receiver) = channel(100);
        for number in 1_000..1_050 {
            sender.send(number).await.unwrap();
        }
        let call = spawn(async move { flow.count(100, sender).await });
        sleep(MOMENT).await.unwrap();
        for number in (1_000..1_050).chain(0..100) {
            assert_eq!(receiver.next().await.unwrap(), Some(number));
        }
        assert_eq!(receiver.next().await.unwrap(), None);
        assert_eq!(call.await.unwrap().unwrap(), 100);
    });
    with_postcard(async |flow, _| {
        let (sender, receiver) = channel(100);
        for number in 0..50 {
            sender.send(number).await.unwrap();
        }
        let call = spawn(async move { flow.sum(receiver).await });
        for number in 50..100 {
            sender.send(number).await.unwrap();
        }
        sender.finish();
        assert_eq!(call.await.unwrap().unwrap(), 4_950);
    });
}

/// The credit of items that were there before does not let the peer send more.
#[test]
fn items_of_before_the_call_grant_nothing() {
    with_postcard(async |flow, _| {
        let (sender, receiver) = channel(100);
        for number in 1_000..1_050 {
            sender.send(number).await.unwrap();
        }
        let call = spawn(async move { flow.count(1_000, sender).await });
        sleep(MOMENT).await.unwrap();
        for _ in 0..50 {
            receiver.next().await.unwrap();
        }
        sleep(MOMENT).await.unwrap();
        drop(receiver);
        assert_eq!(call.await.unwrap().unwrap(), CREDIT as u64);
    });
}

#[test]
fn ends_that_go_before_the_call_are_known() {
    with_postcard(async |flow, tank| {
        let (sender, receiver) = channel(1);
        drop(receiver);
        let sent = timeout_after(LONG, flow.count(1_000, sender)).await.unwrap().unwrap();
        assert!(sent <= CREDIT as u64, "{sent} items");
        assert_eq!(*tank.0.ended.borrow(), ["Closed"]);
        let (sender, receiver) = channel(1);
        sender.send(7).await.unwrap();
        sender.finish();
        assert_eq!(flow.sum(receiver).await.unwrap(), 7);
    });
}

#[test]
fn ends_that_go_during_the_call_are_known() {
    with_postcard(async |flow, _| {
        let (sender, receiver) = channel(1);
        let call = spawn(async move { flow.take_some(3, receiver).await });
        let mut sent = 0;
        let closed = loop {
            match sender.send(1).await {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(closed.why, NotSent::Closed));
        assert!(sender.is_closed());
        assert!((3..=3 + CREDIT).contains(&sent), "{sent} items");
        assert!(!call.is_finished());
        assert_eq!(call.await.unwrap().unwrap(), 3);
    });
}

/// A call that has ended takes its channels with it, and the receiver learns that items may be
/// missing.
#[test]
fn ends_that_outlive_the_call_are_closed() {
    with_postcard(async |flow, tank| {
        let (sender, receiver) = channel(1);
        flow.keep(sender).await.unwrap();
        assert_eq!(receiver.next().await.unwrap(), Some(1));
        assert!(matches!(receiver.next().await, Err(ReceiveError::Lost)));
        let kept = tank.0.kept.borrow_mut().pop().unwrap();
        assert_eq!(kept.await.unwrap(), "Err(Closed)");
    });
}

#[test]
fn ends_travel_within_other_values() {
    for codec in [Codec::Postcard, Codec::Json] {
        with_flow(codec, async |flow, _| {
            let (input, to_flow) = channel(1);
            let (outputs, results): (Vec<_>, Vec<_>) = (0..5).map(|_| channel(1)).unzip();
            let nested =
                Nested { name: "pipe".to_owned(), input: Some(to_flow), outputs, none: None };
            let call = spawn(async move { flow.nested(nested).await });
            for number in 0..50 {
                input.send(number).await.unwrap();
                for (factor, result) in (1..).zip(&results) {
                    assert_eq!(result.next().await.unwrap(), Some(number * factor));
                }
            }
            input.finish();
            assert_eq!(call.await.unwrap().unwrap(), "pipe");
            for result in results {
                assert_eq!(result.next().await.unwrap(), None);
            }
        });
    }
}

#[test]
fn more_channels_than_the_limit_are_refused() {
    with_postcard(async |flow, _| {
        let (outputs, results): (Vec<_>, Vec<_>) = (0..65).map(|_| channel::<u64>(1)).unzip();
        let nested = Nested { name: String::new(), input: None, outputs, none: None };
        let error = flow.nested(nested).await.unwrap_err();
        assert_eq!(error.executed, Executed::No);
        assert!(error.to_string().contains("at most 64 channels"), "{error}");
        for result in results {
            assert!(matches!(result.next().await, Err(ReceiveError::Lost)));
        }
    });
}

#[test]
fn ends_travel_once_and_in_calls_only() {
    with_postcard(async |flow, _| {
        let (sender, receiver) = channel(1);
        let error = flow.twice(Twice(receiver)).await.unwrap_err();
        assert!(error.to_string().contains("has travelled before"), "{error}");
        assert!(matches!(sender.send(1).await.unwrap_err().why, NotSent::Closed));

        let ends = channel(1);
        let error = flow.both(ends).await.unwrap_err();
        assert!(error.to_string().contains("belongs to a call already"), "{error}");

        let (sender, receiver) = channel::<u64>(1);
        for text in [
            serde_json::to_string(&sender).unwrap_err().to_string(),
            serde_json::to_string(&receiver).unwrap_err().to_string(),
            serde_json::from_str::<Receiver<u64>>("0").unwrap_err().to_string(),
            serde_json::from_str::<Sender<u64>>("0").unwrap_err().to_string(),
        ] {
            assert!(text.contains("travels only as an argument of a call"), "{text}");
        }
        // Neither has left.
        sender.send(7).await.unwrap();
        sender.finish();
        assert_eq!(flow.sum(receiver).await.unwrap(), 7);

        let error = flow.answers_with_an_end().await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Answer(_)), "{error}");
        let (ends, _received) = channel(1);
        let error = flow.carries_ends(ends).await.unwrap();
        assert!(error.contains("only as an argument"), "{error}");
        let (sender, receiver) = channel(1);
        let error = flow.forward(receiver).await.unwrap();
        assert!(error.contains("belongs to a call already"), "{error}");
        assert!(matches!(sender.send(1).await.unwrap_err().why, NotSent::Closed));
    });
}

#[test]
fn items_that_cannot_be_sent_are_errors() {
    with_postcard(async |flow, tank| {
        let (sender, receiver) = channel(4);
        let (other, call) = (flow.clone(), spawn(async move { flow.evens(receiver).await }));
        sleep(MOMENT).await.unwrap();
        for number in 0..100 {
            match sender.send(Even(number)).await {
                Ok(()) => assert_eq!(number % 2, 0),
                Err(error) => {
                    assert!(matches!(error.why, NotSent::Encode(_)), "{error}");
                    assert_eq!(error.into_item(), Even(number));
                    assert_eq!(number % 2, 1);
                }
            }
        }
        sender.finish();
        assert_eq!(call.await.unwrap().unwrap(), (0..100).step_by(2).collect::<Vec<_>>());
        // The sender of these has gone on, so the receiver is told.
        let (sender, receiver) = channel(4);
        for number in 0..4 {
            sender.send(Even(number)).await.unwrap();
        }
        sender.finish();
        assert_eq!(other.evens(receiver).await.unwrap(), [0, 2]);
        assert_eq!(*tank.0.ended.borrow(), ["Lost"]);
    });
}

#[test]
fn items_that_cannot_be_read_end_their_channel() {
    with_postcard(async |flow, tank| {
        let (sender, receiver) = channel(4);
        let other = flow.clone();
        let call = spawn(async move { flow.read_evens(receiver).await });
        let closed = loop {
            if let Err(error) = sender.send(ReadEven(2)).await {
                break error;
            }
            match sender.send(ReadEven(3)).await {
                Ok(()) => sleep(MOMENT).await.unwrap(),
                Err(error) => break error,
            }
        };
        assert!(matches!(closed.why, NotSent::Closed), "{closed}");
        assert!(!call.is_finished());
        let text = call.await.unwrap().unwrap();
        assert!(text.starts_with("the item cannot be read: "), "{text}");

        let (sender, receiver) = channel(4);
        let call = spawn(async move { other.send_odds(sender).await });
        assert_eq!(receiver.next().await.unwrap(), Some(ReadEven(2)));
        assert_eq!(receiver.next().await.unwrap(), Some(ReadEven(4)));
        assert!(matches!(receiver.next().await, Err(ReceiveError::Decode(_))));
        call.await.unwrap().unwrap();
        assert!(matches!(receiver.next().await, Err(ReceiveError::Decode(_))));
        assert_eq!(tank.0.ended.borrow().last().unwrap(), "Closed");
    });
}

#[test]
fn items_have_the_limit_of_frames() {
    with_postcard(async |flow, _| {
        let (sender, receiver) = channel(4);
        let other = flow.clone();
        let call = spawn(async move { flow.texts(receiver).await });
        sleep(MOMENT).await.unwrap();
        // The number of the channel, and the length of the text, are in the frame as well.
        for size in [1, 9_997, 9_998, 20_000, 2] {
            match sender.send("x".repeat(size)).await {
                Ok(()) => assert!(size <= 9_997),
                Err(error) => {
                    assert!(matches!(&error.why, NotSent::Encode(text) if text.contains("10000")));
                    assert!(size > 9_997 && error.into_item().len() == size);
                }
            }
        }
        sender.finish();
        assert_eq!(call.await.unwrap().unwrap(), [1, 9_997, 2]);
        let (sender, receiver) = channel(4);
        let call = spawn(async move { other.large(20_000, sender).await });
        assert_eq!(receiver.next().await.unwrap().unwrap(), "before");
        assert_eq!(receiver.next().await.unwrap().unwrap(), "after");
        assert_eq!(receiver.next().await.unwrap(), None);
        assert!(call.await.unwrap().unwrap().contains("10000"));
    });
}

/// A caller that gives up in the middle of a stream, and keeps the receiver, harms no other call.
#[test]
fn callers_give_up_in_the_middle() {
    with_postcard(async |flow, tank| {
        for _ in 0..20 {
            let (sender, receiver) = channel(4);
            let other = flow.clone();
            let call = spawn(async move { other.count(1_000, sender).await });
            for number in 0..20 {
                assert_eq!(receiver.next().await.unwrap(), Some(number));
            }
            call.request_cancel("changed my mind");
            let error = call.await.unwrap().unwrap_err();
            assert!(error.interrupted().is_some(), "{error}");
            let lost = loop {
                match receiver.next().await {
                    Ok(item) => assert!(item.is_some(), "an end in order"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(lost, ReceiveError::Lost), "{lost}");
        }
        for _ in 0..20 {
            let (sender, receiver) = channel(4);
            let other = flow.clone();
            let call = spawn(async move { other.sum(receiver).await });
            for _ in 0..20 {
                sender.send(1).await.unwrap();
            }
            call.abort();
            let closed = loop {
                if let Err(error) = sender.send(1).await {
                    break error;
                }
            };
            assert!(matches!(closed.why, NotSent::Closed), "{closed}");
        }
        sleep(MOMENT).await.unwrap();
        let ended = tank.0.ended.borrow();
        assert!(!ended.is_empty() && ended.iter().all(|what| what != "None"), "{ended:?}");
    });
}

#[test]
fn panics_end_the_channels() {
    with_postcard(async |flow, _| {
        let (sender, receiver) = channel(4);
        let error = timeout_after(LONG, flow.panic(sender)).await.unwrap().unwrap_err();
        assert!(matches!(error.failure, CallFailure::Panicked), "{error}");
        assert_eq!(receiver.next().await.unwrap(), Some(1));
        assert!(matches!(receiver.next().await, Err(ReceiveError::Lost)));
    });
}

/// A receiver takes no half of the items for the whole, whatever ends the sender before `finish`.
#[test]
fn senders_that_do_not_finish_lose_the_rest() {
    with_postcard(async |flow, tank| {
        let other = flow.clone();
        for is_cancelled in [true, false] {
            let (sender, receiver) = channel(4);
            let sending = spawn(async move {
                for number in 0.. {
                    sender.send(number).await?;
                    if number == 50 {
                        sleep(LONG).await?;
                    }
                }
                sender.finish();
                Ok::<_, std::io::Error>(())
            });
            let other = other.clone();
            let call = spawn(async move { other.sum(receiver).await });
            sleep(MOMENT).await.unwrap();
            match is_cancelled {
                true => assert!(sending.cancel().await.is_ok()),
                false => sending.abort(),
            }
            assert_eq!(call.await.unwrap().unwrap(), 50 * 51 / 2);
            assert_eq!(tank.0.ended.borrow_mut().pop().unwrap(), "Lost");
        }
        // A handler that returns has not finished.
        let (sender, receiver) = channel(4);
        flow.send_one(sender).await.unwrap();
        assert_eq!(receiver.next().await.unwrap(), Some(1));
        assert!(matches!(receiver.next().await, Err(ReceiveError::Lost)));
    });
}

/// A sender that waits for room on the connection learns that the call is over.
#[test]
fn the_end_of_a_call_ends_waits_for_room() {
    pikake::sim::example(async {
        let (here, there) = MemoryStream::pair(100);
        let stream = Cell::new(Some(here));
        let packets = PacketOptions::new().queue_limit(1_000);
        let client = Client::builder().attempts(1).packets(packets).server("memory", move || {
            let stream = stream.take();
            async move { stream.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) }
        });
        let flow = FlowClient::new(client.build());
        let server = spawn(async move {
            there.write_all(&crate::raw::hello(1 << 20, 30_000, &[3, 100])).await.unwrap();
            crate::raw::beat(&there).await;
        });
        let (sender, receiver) = channel(4);
        let call = spawn(async move { flow.texts(receiver).await });
        let sending = spawn(async move {
            loop {
                if let Err(error) = sender.send("x".repeat(300)).await {
                    return error;
                }
            }
        });
        sleep(MOMENT).await.unwrap();
        call.cancel().await.unwrap();
        let error = timeout_after(MOMENT, sending).await.expect("it is told").unwrap();
        assert!(matches!(error.why, NotSent::Closed), "{error}");
        server.cancel().await.unwrap();
    });
}

/// A connection that is lost closes all channels on both sides.
#[test]
fn a_lost_connection_loses_its_channels() {
    pikake::sim::example(async {
        for is_server_lost in [true, false] {
            let tank = Tank::default();
            let (here, there) = MemoryStream::pair(200);
            let serving = spawn(server(&tank).serve_connection(there));
            let stream = Cell::new(Some(here));
            let client = Client::builder().attempts(1).server("memory", move || {
                let stream = stream.take();
                async move { stream.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) }
            });
            let flow = FlowClient::new(client.build());
            let (input, to_flow) = channel(4);
            let (from_flow, output) = channel(4);
            let (numbers, counted) = channel(4);
            let other = flow.clone();
            let calls = [
                spawn(async move { other.echo(to_flow, from_flow).await.map(drop) }),
                spawn(async move { flow.count(1_000, numbers).await.map(drop) }),
            ];
            input.send(1).await.unwrap();
            assert_eq!(output.next().await.unwrap(), Some(1));
            if is_server_lost {
                serving.abort();
                for call in calls {
                    let error = call.await.unwrap().unwrap_err();
                    assert!(
                        matches!(error.failure, CallFailure::Connection(_) | CallFailure::Ended(_)),
                        "{error}"
                    );
                    assert!(error.executed > Executed::No);
                }
            } else {
                calls.into_iter().for_each(|call| call.abort());
                sleep(MOMENT).await.unwrap();
                let _ = serving.await.unwrap();
            }
            assert!(!matches!(output.next().await, Ok(Some(_))));
            // The call says whether the end is in order.
            while let Ok(Some(_)) = counted.next().await {}
            let closed = loop {
                if let Err(error) = input.send(1).await {
                    break error;
                }
            };
            assert!(matches!(closed.why, NotSent::Closed), "{closed}");
            sleep(LONG).await.unwrap();
            assert_eq!(kernel_figures().tasks, 1, "tasks are left");
        }
    });
}

/// A sender that waits for room on the connection learns that the server takes nothing.
#[test]
fn a_server_that_takes_nothing_closes_uploads() {
    pikake::sim::example(async {
        let (here, there) = MemoryStream::pair(100);
        let stream = Cell::new(Some(here));
        let packets = PacketOptions::new().queue_limit(1_000);
        let client = Client::builder().attempts(1).packets(packets).server("memory", move || {
            let stream = stream.take();
            async move { stream.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) }
        });
        let flow = FlowClient::new(client.build());
        let server = spawn(async move {
            there.write_all(&crate::raw::hello(1 << 20, 30_000, &[3, 100])).await.unwrap();
            crate::raw::beat(&there).await;
        });
        let (sender, receiver) = channel(4);
        let call = spawn(async move { flow.texts(receiver).await });
        let closed = loop {
            if let Err(error) = sender.send("x".repeat(300)).await {
                break error;
            }
        };
        assert!(matches!(closed.why, NotSent::Closed), "{closed}");
        let error = call.await.unwrap().unwrap_err();
        assert!(
            matches!(error.failure, CallFailure::Connection(PacketError::Stalled(_))),
            "{error}"
        );
        server.await.unwrap();
        sleep(LONG).await.unwrap();
        assert_eq!(kernel_figures().tasks, 1, "tasks are left");
    });
}

/// Wherever `send` and `next` are interrupted, each item arrives once.
#[test]
fn interruptions_lose_no_item() {
    let report = interrupt_everywhere(
        || async {
            let tank = Tank::default();
            let (here, there) = MemoryStream::pair(100);
            let serving = spawn(server(&tank).items(2).serve_connection(there));
            let stream = Cell::new(Some(here));
            let client = Client::builder().server("memory", move || {
                let stream = stream.take();
                async move { stream.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) }
            });
            let flow = FlowClient::new(client.build());
            let (input, to_flow) = channel(1);
            let (from_flow, output) = channel(1);
            let call = spawn(async move { flow.echo(to_flow, from_flow).await });
            let (mut received, mut told) = (Vec::new(), 0);
            for number in 0..8 {
                while let Err(error) = input.send(number).await {
                    assert!(error.interrupted().is_some() && error.into_item() == number);
                    told += 1;
                }
                if number % 2 == 1 {
                    loop {
                        match output.next().await {
                            Ok(item) => break received.push(item.unwrap()),
                            Err(ReceiveError::Interrupted(_)) => told += 1,
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            }
            input.finish();
            loop {
                match output.next().await {
                    Ok(Some(item)) => received.push(item),
                    Ok(None) => break,
                    Err(ReceiveError::Interrupted(_)) => told += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            pikake::shield(call).await.unwrap().unwrap();
            let _ = pikake::shield(serving).await.unwrap();
            (received, told)
        },
        |run| {
            let (received, told) = run.output.as_ref().expect("it waits on traps");
            assert_eq!(*received, [0, 1, 2, 3, 4, 5, 6, 7]);
            assert!(*told <= 1);
        },
    );
    assert!(report.suspensions > 5 && report.cancels > 10, "{report:?}");
}

/// A later version of the service, with another channel.
mod later {
    use pikake::rpc::Receiver;

    #[pikake::service]
    pub(super) trait Flow {
        async fn sum(&self, numbers: Receiver<u64>, others: Option<Receiver<u64>>) -> u64;
    }

    /// Nobody offers the later version here.
    impl Flow for () {
        async fn sum(&self, _: Receiver<u64>, _: Option<Receiver<u64>>) -> u64 {
            unreachable!()
        }
    }

    const _: fn() -> FlowServer<()> = || FlowServer::new(());
}

/// A server that is older ignores a channel that it does not know, and no other call is harmed.
#[test]
fn channels_that_the_server_does_not_know_are_ignored() {
    for codec in [Codec::Postcard, Codec::Json] {
        pikake::sim::example(async move {
            let listener = TcpListener::bind("127.0.0.1:7000").await.unwrap();
            let serving = spawn(server(&Tank::default()).serve(listener));
            let client = Client::builder().codec(codec).tcp("127.0.0.1:7000").build();
            let flow = later::FlowClient::new(client);
            let (sender, receiver) = channel(4);
            let (other, others) = channel(4);
            let call = spawn(async move { flow.sum(receiver, Some(others)).await });
            sender.send(1).await.unwrap();
            assert_eq!(send_until_full(&other).await, CREDIT);
            sender.send(2).await.unwrap();
            sender.finish();
            assert_eq!(call.await.unwrap().unwrap(), 3);
            assert!(matches!(other.send(1).await.unwrap_err().why, NotSent::Closed));
            serving.cancel().await.unwrap();
        });
    }
}

#[test]
fn channels_work_without_a_call() {
    pikake::sim::example(async {
        let (sender, receiver) = channel(2);
        let sending = spawn(async move {
            for number in 0..100 {
                sender.send(number).await.unwrap();
            }
            sender.finish();
        });
        for number in 0..100 {
            assert_eq!(receiver.next().await.unwrap(), Some(number));
        }
        assert_eq!(receiver.next().await.unwrap(), None);
        sending.await.unwrap();
        let (sender, receiver) = channel(2);
        sender.send(1).await.unwrap();
        drop(receiver);
        assert!(matches!(sender.send(2).await.unwrap_err().why, NotSent::Closed));
    });
}

#[test]
fn too_much_metadata_is_refused() {
    pikake::sim::example(async {
        let listener = TcpListener::bind("127.0.0.1:7000").await.unwrap();
        let serving = spawn(server(&Tank::default()).serve(listener));
        let mut client = Client::tcp("127.0.0.1:7000");
        for number in 0..65 {
            let sum = async |client: Client| {
                let (sender, receiver) = channel(1);
                sender.finish();
                FlowClient::new(client).sum(receiver).await
            };
            assert!(sum(client.clone()).await.is_ok());
            client = client.with_metadata(format!("name {number}"), "value");
            if number == 64 {
                let error = sum(client.clone()).await.unwrap_err();
                assert!(matches!(error.failure, CallFailure::Encode(_)), "{error}");
            }
        }
        serving.cancel().await.unwrap();
    });
}
