//! The service of most tests, and its handlers, which note what happens to them.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::future::{Future, pending, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake::rpc::{Client, Receiver, Sender, channel, current_call};
use pikake::time::now;
use pikake::traps::clock_rate;
use pikake::{Interrupted, Task, shield, sleep, spawn, timeout_after};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::harness::{ADDRESS, MOMENT, MS, SECOND, ms};

#[pikake::service]
pub(crate) trait Shop {
    async fn add(&self, left: u64, right: u64) -> u64;
    async fn name(&self) -> String;
    /// Takes a while, and returns early if it is interrupted.
    async fn sell(&self, millis: u64) -> u64;
    #[idempotent]
    async fn look(&self, millis: u64) -> String;
    async fn stubborn(&self);
    async fn shielded(&self);
    async fn endless(&self);
    /// Waits, and cleans up when it is interrupted.
    async fn clean(&self) -> Result<(), String>;
    async fn big(&self, size: u64) -> Vec<u8>;
    async fn length(&self, bytes: Vec<u8>) -> usize;
    async fn panic(&self);
    async fn panic_when_dropped(&self);
    async fn panic_when_written(&self) -> Unwritable;
    async fn panic_when_read(&self, argument: Unreadable);
    #[notice]
    async fn note(&self, text: String);
    #[notice]
    async fn pause(&self, millis: u64);
    #[notice]
    async fn collect(&self, numbers: Receiver<u64>);
    /// The method, the first value of `tenant`, and the values of all metadata.
    async fn who(&self) -> (String, Option<String>, Vec<String>);
    /// What is left of the caller's time.
    async fn left(&self) -> Option<Duration>;
    async fn spawn_a_task(&self) -> bool;

    async fn sum(&self, numbers: Receiver<u64>) -> u64;
    #[idempotent]
    async fn sum_again(&self, numbers: Receiver<u64>) -> u64;
    async fn count(&self, to: u64, numbers: Sender<u64>) -> u64;
    /// Takes so many items, keeps the end until `may_go_on`, and then takes the rest.
    async fn hold(&self, first: usize, numbers: Receiver<u64>) -> u64;
    async fn take_some(&self, count: usize, numbers: Receiver<u64>) -> u64;
    async fn nested(&self, nested: Nested) -> String;
    async fn both(&self, ends: Both);
    async fn twice(&self, ends: Twice);
    async fn double(&self, pipe: Pipe);
    async fn evens(&self, numbers: Receiver<Even>) -> Vec<u64>;
    async fn read_evens(&self, numbers: Receiver<ReadEven>) -> String;
    async fn send_odds(&self, numbers: Sender<ReadEven>);
    async fn texts(&self, texts: Receiver<String>) -> Vec<usize>;
    async fn large(&self, size: usize, texts: Sender<String>) -> String;
    async fn keep(&self, numbers: Sender<u64>);
    async fn send_and_panic(&self, numbers: Sender<u64>);
    async fn send_one(&self, numbers: Sender<u64>);
    /// Begins to send a second block, and lets the send be.
    async fn send_half(&self, blocks: Sender<Vec<u8>>) -> bool;
    async fn forward(&self, numbers: Receiver<u64>) -> String;
    async fn echo(&self, input: Receiver<u64>, output: Sender<u64>);
    async fn answers_with_an_end(&self) -> Option<Receiver<u64>>;
    async fn carries_ends(&self, ends: Sender<Receiver<u64>>) -> String;
}

/// What the handlers of a server note.
#[derive(Clone, Default)]
pub(crate) struct Keeper(pub(crate) Rc<Notes>);

#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) name: String,
    pub(crate) begun: Cell<usize>,
    pub(crate) under_way: Cell<usize>,
    pub(crate) most: Cell<usize>,
    /// Interruptions, and the errors of channels.
    pub(crate) ends: RefCell<Vec<String>>,
    pub(crate) notes: RefCell<Vec<String>>,
    /// How long `look` takes longer.
    pub(crate) delay: Cell<Duration>,
    pub(crate) may_go_on: Cell<bool>,
    pub(crate) kept: RefCell<Vec<Task<String>>>,
}

struct Counted(Rc<Notes>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

impl Keeper {
    pub(crate) fn named(name: &str) -> Self {
        Self(Rc::new(Notes { name: name.to_owned(), ..Notes::default() }))
    }

    fn counted(&self) -> Counted {
        self.0.begun.set(self.begun() + 1);
        self.0.under_way.set(self.under_way() + 1);
        self.0.most.set(self.0.most.get().max(self.under_way()));
        Counted(self.0.clone())
    }

    pub(crate) fn begun(&self) -> usize {
        self.0.begun.get()
    }

    pub(crate) fn under_way(&self) -> usize {
        self.0.under_way.get()
    }

    /// Takes what was noted about ends.
    pub(crate) fn ends(&self) -> Vec<String> {
        self.0.ends.take()
    }

    fn end(&self, what: impl Debug) {
        self.0.ends.borrow_mut().push(format!("{what:?}"));
    }

    async fn sleep(&self, length: Duration) {
        let _counted = self.counted();
        if let Err(interrupted) = sleep(length).await {
            self.0.ends.borrow_mut().push(interrupted.to_string());
        }
    }

    /// Takes items until the end, whose error it notes.
    async fn all<T>(&self, items: &Receiver<T>) -> Vec<T> {
        let mut all = Vec::new();
        loop {
            match items.recv().await {
                Ok(Some(item)) => all.push(item),
                Ok(None) => return all,
                Err(error) => {
                    self.end(error);
                    return all;
                }
            }
        }
    }
}

async fn take(count: usize, numbers: &Receiver<u64>) -> u64 {
    let mut taken = 0;
    for _ in 0..count {
        taken += numbers.recv().await.unwrap().unwrap();
    }
    taken
}

impl Shop for Keeper {
    async fn add(&self, left: u64, right: u64) -> u64 {
        left + right
    }

    async fn name(&self) -> String {
        self.0.name.clone()
    }

    async fn sell(&self, millis: u64) -> u64 {
        self.sleep(ms(millis)).await;
        millis
    }

    async fn look(&self, millis: u64) -> String {
        self.sleep(ms(millis) + self.0.delay.get()).await;
        self.0.name.clone()
    }

    async fn stubborn(&self) {
        let _counted = self.counted();
        // It holds what interrupts it, as cleanup does.
        let mut held = Vec::new();
        loop {
            held.extend(sleep(MS).await.err());
        }
    }

    async fn shielded(&self) {
        let _counted = self.counted();
        let _ = shield(sleep(1_000 * SECOND)).await;
    }

    async fn endless(&self) {
        let _counted = self.counted();
        pending().await
    }

    async fn clean(&self) -> Result<(), String> {
        let _counted = self.counted();
        let Err(why) = sleep(1_000 * SECOND).await else { return Ok(()) };
        let cleaned = async {
            sleep(50 * MS).await?;
            timeout_after(SECOND, sleep(10 * MS)).await.map_err(|_| why)??;
            Ok(())
        };
        let cleaned = cleaned.await.map_err(|again: Interrupted| again.to_string());
        self.end(&cleaned);
        cleaned
    }

    async fn big(&self, size: u64) -> Vec<u8> {
        drop(self.counted());
        vec![7; size as usize]
    }

    async fn length(&self, bytes: Vec<u8>) -> usize {
        bytes.len()
    }

    async fn panic(&self) {
        panic!("the shop is broken");
    }

    async fn panic_when_dropped(&self) {
        let _counted = self.counted();
        let _bomb = PanicOnDrop;
        pending().await
    }

    async fn panic_when_written(&self) -> Unwritable {
        Unwritable
    }

    async fn panic_when_read(&self, argument: Unreadable) {
        assert_eq!(argument.0, 0);
    }

    async fn note(&self, text: String) {
        self.0.notes.borrow_mut().push(text);
    }

    async fn pause(&self, millis: u64) {
        self.sleep(ms(millis)).await;
    }

    async fn collect(&self, numbers: Receiver<u64>) {
        let _counted = self.counted();
        self.end(numbers.recv().await);
    }

    async fn who(&self) -> (String, Option<String>, Vec<String>) {
        let call = current_call().unwrap();
        let all = call.metadata.iter().map(|(_, value)| value.clone()).collect();
        (call.method.to_owned(), call.metadata("tenant").map(str::to_owned), all)
    }

    async fn left(&self) -> Option<Duration> {
        let deadline = current_call().unwrap().deadline;
        let left = clock_rate().duration_floor(deadline.ticks().since(now()));
        (!deadline.is_never()).then_some(left)
    }

    async fn spawn_a_task(&self) -> bool {
        spawn(async { current_call().is_none() }).await.unwrap() && current_call().is_some()
    }

    async fn sum(&self, numbers: Receiver<u64>) -> u64 {
        let _counted = self.counted();
        self.all(&numbers).await.iter().sum()
    }

    async fn sum_again(&self, numbers: Receiver<u64>) -> u64 {
        self.sum(numbers).await
    }

    async fn count(&self, to: u64, numbers: Sender<u64>) -> u64 {
        let _counted = self.counted();
        for number in 0..to {
            if let Err(error) = numbers.send(number).await {
                self.end(error.why);
                return number;
            }
        }
        numbers.finish();
        to
    }

    async fn hold(&self, first: usize, numbers: Receiver<u64>) -> u64 {
        let taken = take(first, &numbers).await;
        while !self.0.may_go_on.get() {
            sleep(MOMENT).await.unwrap();
        }
        taken + self.all(&numbers).await.iter().sum::<u64>()
    }

    async fn take_some(&self, count: usize, numbers: Receiver<u64>) -> u64 {
        let taken = take(count, &numbers).await;
        drop(numbers);
        sleep(10 * MOMENT).await.unwrap();
        taken
    }

    async fn nested(&self, nested: Nested) -> String {
        assert!(nested.none.is_none());
        let input = nested.input.unwrap();
        while let Ok(Some(number)) = input.recv().await {
            for (factor, output) in (1..).zip(&nested.outputs) {
                output.send(number * factor).await.unwrap();
            }
        }
        nested.outputs.into_iter().for_each(Sender::finish);
        nested.name
    }

    async fn both(&self, _: Both) {}

    async fn twice(&self, _: Twice) {}

    async fn double(&self, pipe: Pipe) {
        while let Some(number) = pipe.input.recv().await.unwrap() {
            pipe.output.send(number * 2).await.unwrap();
        }
        pipe.output.finish();
    }

    async fn evens(&self, numbers: Receiver<Even>) -> Vec<u64> {
        self.all(&numbers).await.iter().map(|number| number.0).collect()
    }

    async fn read_evens(&self, numbers: Receiver<ReadEven>) -> String {
        loop {
            if let Err(error) = numbers.recv().await {
                let again = numbers.recv().await.unwrap_err();
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
                self.end(error.why);
            }
        }
        sleep(10 * MOMENT).await.unwrap();
        self.end(numbers.send(ReadEven(8)).await.unwrap_err().why);
    }

    async fn texts(&self, texts: Receiver<String>) -> Vec<usize> {
        let mut all = Vec::new();
        while let Some(text) = texts.recv().await.unwrap() {
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

    async fn send_and_panic(&self, numbers: Sender<u64>) {
        numbers.send(1).await.unwrap();
        resume_unwind(Box::new("expected"));
    }

    async fn send_one(&self, numbers: Sender<u64>) {
        numbers.send(1).await.unwrap();
    }

    async fn send_half(&self, blocks: Sender<Vec<u8>>) -> bool {
        let _counted = self.counted();
        blocks.send(vec![0; 100_000]).await.unwrap();
        let mut second = pin!(blocks.send(vec![0; 100_000]));
        let is_waiting = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await;
        let _ = sleep(1_000 * SECOND).await;
        is_waiting
    }

    async fn forward(&self, numbers: Receiver<u64>) -> String {
        let onward = ShopClient::new(Client::tcp(ADDRESS));
        onward.sum(numbers).await.unwrap_err().to_string()
    }

    async fn echo(&self, input: Receiver<u64>, output: Sender<u64>) {
        while let Ok(Some(number)) = input.recv().await {
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

#[derive(Deserialize)]
pub(crate) struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("no bytes for this");
    }
}

#[derive(Serialize)]
pub(crate) struct Unreadable(pub(crate) u8);

impl<'de> Deserialize<'de> for Unreadable {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("no value for this");
    }
}

struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("a destructor fails");
    }
}

#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Nested {
    pub(crate) name: String,
    pub(crate) input: Option<Receiver<u64>>,
    pub(crate) outputs: Vec<Sender<u64>>,
    pub(crate) none: Option<Sender<String>>,
}

/// Not in the order of the alphabet.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Pipe {
    pub(crate) output: Sender<u64>,
    pub(crate) input: Receiver<u64>,
    pub(crate) even: Even,
}

/// A value that can be sent only if it is even.
#[derive(Clone, Copy, PartialEq, Deserialize, Debug)]
pub(crate) struct Even(pub(crate) u64);

/// A value that anybody sends, and nobody reads unless it is even.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
pub(crate) struct ReadEven(pub(crate) u64);

impl Serialize for Even {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 % 2 {
            0 => serializer.serialize_newtype_struct("Even", &self.0),
            _ => Err(serde::ser::Error::custom("an odd number")),
        }
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
pub(crate) struct Twice(pub(crate) Receiver<u64>);

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
pub(crate) type Both = (Sender<u64>, Receiver<u64>);
