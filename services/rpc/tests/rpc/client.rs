//! The client: what it leaves behind, what it repeats, and where it sends calls.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake::kernel::inspect::{kernel_figures, tasks_from};
use pikake::net::{Closing, MemoryStream, TcpListener};
use pikake::rpc::packets::{Packet, PacketOptions, PacketReader, PacketWriter, open};
use pikake::rpc::{
    Balance, CallError, CallFailure, Client, ClientBuilder, Codec, Executed, ReceiveError,
    Receiver, Sender, Server, channel, current_call,
};
use pikake::sim::{Between, Fault, FaultPlan, Sim};
use pikake::sync::Queue;
use pikake::testing::interrupt_everywhere;
use pikake::time::{Ticks, elapsed_since, now};
use pikake::traps::clock_rate;
use pikake::traps::figures::{self, Value};
use pikake::{Interrupted, sleep, spawn, timeout_after};
use serde::{Deserialize, Serialize};

#[pikake::service]
trait Shop {
    async fn name(&self) -> String;
    async fn sell(&self, millis: u64) -> u64;
    #[idempotent]
    async fn look(&self, millis: u64) -> String;
    async fn sum(&self, numbers: Receiver<u64>) -> u64;
    #[idempotent]
    async fn sum_again(&self, numbers: Receiver<u64>) -> u64;
    async fn count(&self, to: u64, numbers: Sender<u64>);
    async fn keep(&self, bytes: Vec<u8>) -> usize;
    #[notice]
    async fn note(&self, text: String);
    #[notice]
    async fn note_all(&self, texts: Receiver<String>);
    /// The values of `tenant`: the first one, and all.
    async fn tenants(&self) -> (Option<String>, Vec<String>);
    async fn double(&self, pipe: Pipe);
    /// What is left of the caller's time.
    async fn left(&self) -> Option<Duration>;
}

/// Not in the order of the alphabet.
#[derive(Serialize, Deserialize, Debug)]
struct Pipe {
    output: Sender<u64>,
    input: Receiver<u64>,
    even: Even,
}

/// A number that cannot be sent if it is odd.
#[derive(Deserialize, Debug)]
struct Even(u64);

impl Serialize for Even {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 % 2 {
            0 => serializer.serialize_newtype_struct("Even", &self.0),
            _ => Err(serde::ser::Error::custom("an odd number")),
        }
    }
}

#[derive(Clone, Default)]
struct Seller(Rc<Sales>);

#[derive(Default)]
struct Sales {
    name: String,
    begun: Cell<usize>,
    under_way: Cell<usize>,
    ends: RefCell<Vec<String>>,
    notes: RefCell<Vec<String>>,
    /// How long `look` takes longer.
    delay: Cell<Duration>,
}

impl Seller {
    fn named(name: &str) -> Self {
        Self(Rc::new(Sales { name: name.to_owned(), ..Sales::default() }))
    }

    async fn sleep(&self, length: Duration) -> Result<(), Interrupted> {
        struct End(Rc<Sales>);
        impl Drop for End {
            fn drop(&mut self) {
                self.0.under_way.set(self.0.under_way.get() - 1);
            }
        }
        self.0.begun.set(self.0.begun.get() + 1);
        self.0.under_way.set(self.0.under_way.get() + 1);
        let _end = End(self.0.clone());
        let slept = sleep(length).await;
        if let Err(interrupted) = &slept {
            self.0.ends.borrow_mut().push(interrupted.to_string());
        }
        slept
    }
}

impl Shop for Seller {
    async fn name(&self) -> String {
        self.0.name.clone()
    }

    async fn sell(&self, millis: u64) -> u64 {
        let _ = self.sleep(ms(millis)).await;
        millis
    }

    async fn look(&self, millis: u64) -> String {
        let _ = self.sleep(ms(millis) + self.0.delay.get()).await;
        self.0.name.clone()
    }

    async fn sum(&self, numbers: Receiver<u64>) -> u64 {
        let mut sum = 0;
        while let Ok(Some(number)) = numbers.next().await {
            sum += number;
        }
        sum
    }

    async fn sum_again(&self, numbers: Receiver<u64>) -> u64 {
        self.sum(numbers).await
    }

    async fn count(&self, to: u64, numbers: Sender<u64>) {
        for number in 0..to {
            if numbers.send(number).await.is_err() {
                return;
            }
        }
        numbers.finish();
    }

    async fn keep(&self, bytes: Vec<u8>) -> usize {
        bytes.len()
    }

    async fn note(&self, text: String) {
        self.0.notes.borrow_mut().push(text);
    }

    async fn note_all(&self, _: Receiver<String>) {}

    async fn tenants(&self) -> (Option<String>, Vec<String>) {
        let call = current_call().unwrap();
        let all = call.metadata.iter().map(|(_, value)| value.clone()).collect();
        (call.metadata("tenant").map(str::to_owned), all)
    }

    async fn left(&self) -> Option<Duration> {
        let deadline = current_call().unwrap().deadline;
        let left = clock_rate().duration_floor(deadline.ticks().since(now()));
        (!deadline.is_never()).then_some(left)
    }

    async fn double(&self, pipe: Pipe) {
        while let Some(number) = pipe.input.next().await.unwrap() {
            pipe.output.send(number * 2).await.unwrap();
        }
        pipe.output.finish();
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The time since a moment, in whole milliseconds: each step of a simulation takes a little.
fn millis_since(since: Ticks) -> u128 {
    elapsed_since(since).as_millis()
}

fn run<F: Future>(future: F) -> F::Output {
    pikake::sim::example(future)
}

/// Where the streams of a client arrive.
#[derive(Clone)]
struct Door(Rc<Queue<MemoryStream>>);

impl Door {
    fn new() -> Self {
        Self(Rc::new(Queue::unbounded()))
    }

    fn add(&self, builder: ClientBuilder, name: &str) -> ClientBuilder {
        let door = self.clone();
        builder.server(name, move || {
            let (here, there) = MemoryStream::pair(4096);
            let put = door.0.try_put(there).map_err(|_| io::ErrorKind::ConnectionRefused.into());
            std::future::ready(put.map(|()| here))
        })
    }

    /// A server that the test plays: it says hello, and the test reads and sends packets.
    async fn play(&self, calls: u8) -> (PacketReader<MemoryStream>, PacketWriter) {
        let stream = self.0.get().await.unwrap();
        open(stream, PacketOptions::new().greeting([calls, 16])).await.unwrap()
    }

    /// Answers calls on all streams that arrive.
    fn serve(&self, seller: &Seller, server: impl Fn() -> Server + 'static) {
        let (door, seller) = (self.clone(), seller.clone());
        spawn(async move {
            while let Ok(stream) = door.0.get().await {
                let server = server().add(ShopServer::new(seller.clone()));
                spawn(server.serve_connection(stream)).detach();
            }
        })
        .detach();
    }
}

fn shop(client: &Client) -> ShopClient {
    ShopClient::new(client.clone())
}

const ANSWER: u8 = 1;
const CANCEL: u8 = 2;
const ITEM: u8 = 3;
const LEAVE: u8 = 7;
const FAILURE: u8 = 2;
const SHUTTING_DOWN: u8 = 3;

/// The kind and the id of the next packet.
async fn next(packets: &mut PacketReader<MemoryStream>) -> (u8, u64) {
    let packet = packets.next().await.unwrap().unwrap();
    (packet.kind, packet.id)
}

/// A server may refuse what came after it had said that it leaves.
#[test]
fn refusals_after_a_leave_do_no_harm() {
    run(async {
        let door = Door::new();
        let client = door.add(Client::builder(), "shop").build();
        let calls = [1, 2].map(|millis| {
            let shop = shop(&client);
            spawn(async move { shop.sell(millis).await })
        });
        let (mut packets, sender) = door.play(10).await;
        assert_eq!(next(&mut packets).await, (0, 1));
        assert_eq!(next(&mut packets).await, (0, 2));
        sender.send(Packet::new(LEAVE, 1, &[])).await.unwrap();
        sender.send(Packet::new(ANSWER, 2, &[SHUTTING_DOWN]).with_flags(FAILURE)).await.unwrap();
        sender.send(Packet::new(ANSWER, 1, &[7])).await.unwrap();
        // The second call was not taken: it goes to the next connection.
        let (mut again, another) = door.play(10).await;
        assert_eq!(next(&mut again).await, (0, 1));
        another.send(Packet::new(ANSWER, 1, &[9])).await.unwrap();
        let [first, second] = calls;
        assert_eq!(first.await.unwrap().unwrap(), 7);
        assert_eq!(second.await.unwrap().unwrap(), 9);
    });
}

/// Items may be on their way to a caller that has given up and keeps its receiver.
#[test]
fn items_after_a_cancel_do_no_harm() {
    run(async {
        let door = Door::new();
        let client = door.add(Client::builder(), "shop").build();
        let (numbers, kept) = channel(4);
        let count = spawn({
            let shop = shop(&client);
            async move { shop.count(9, numbers).await }
        });
        let (mut packets, sender) = door.play(10).await;
        assert_eq!(next(&mut packets).await, (0, 1));
        count.request_cancel("enough");
        assert_eq!(next(&mut packets).await, (CANCEL, 1));
        sender.send(Packet::new(ITEM, 1, &[0, 5])).await.unwrap();
        let other = spawn({
            let shop = shop(&client);
            async move { shop.sell(1).await }
        });
        assert_eq!(next(&mut packets).await, (0, 2));
        sender.send(Packet::new(ANSWER, 1, &[])).await.unwrap();
        sender.send(Packet::new(ANSWER, 2, &[3])).await.unwrap();
        assert_eq!(other.await.unwrap().unwrap(), 3);
        assert!(matches!(kept.next().await, Err(ReceiveError::Lost)));
        assert_eq!(count.await.unwrap().unwrap_err().executed, Executed::Maybe);
    });
}

/// A caller is dropped so many steps after its answer was sent. Before the answer has arrived, a
/// cancel follows it.
#[test]
fn an_answer_that_races_with_the_cancel_is_dropped() {
    let ends = (0..20).map(|steps| {
        run(async move {
            let door = Door::new();
            let shop = ShopClient::new(door.add(Client::builder(), "shop").build());
            let raced = spawn(shop.sell(1));
            let (mut packets, sender) = door.play(1).await;
            assert_eq!(next(&mut packets).await, (0, 1));
            sender.send(Packet::new(ANSWER, 1, &[7])).await.unwrap();
            for _ in 0..steps {
                pikake::yield_now().await.unwrap();
            }
            raced.abort();
            let is_answered = raced.await.is_ok();
            // The only place is free again, if the answer came or not.
            let next_call = spawn(shop.sell(1));
            let (mut kind, mut id) = next(&mut packets).await;
            let is_cancelled = kind == CANCEL;
            if is_cancelled {
                (kind, id) = next(&mut packets).await;
            }
            assert_eq!((kind, id), (0, 2));
            sender.send(Packet::new(ANSWER, 2, &[8])).await.unwrap();
            assert_eq!(next_call.await.unwrap().unwrap(), 8);
            (is_cancelled, is_answered)
        })
    });
    let ends: Vec<_> = ends.collect();
    assert_eq!((ends[0], ends[19]), ((true, false), (false, true)));
    assert!(!ends.contains(&(true, true)), "an answered call was cancelled: {ends:?}");
    assert!(ends.is_sorted_by_key(|(is_cancelled, _)| !is_cancelled), "{ends:?}");
}

#[test]
fn a_call_given_up_keeps_its_place_until_the_answer() {
    run(async {
        let door = Door::new();
        let client = door.add(Client::builder(), "shop").build();
        let given_up = spawn({
            let shop = shop(&client);
            async move { timeout_after(ms(5), shop.sell(1)).await.is_err() }
        });
        let (mut packets, sender) = door.play(1).await;
        assert_eq!(next(&mut packets).await, (0, 1));
        assert_eq!(next(&mut packets).await, (CANCEL, 1));
        assert!(given_up.await.unwrap());
        let waiting = timeout_after(ms(5), shop(&client).sell(1)).await;
        assert!(waiting.is_err());
        sender.send(Packet::new(ANSWER, 1, &[6]).with_flags(FAILURE)).await.unwrap();
        let other = spawn({
            let shop = shop(&client);
            async move { shop.sell(1).await }
        });
        assert_eq!(next(&mut packets).await, (0, 2), "the call that waited was not sent");
        sender.send(Packet::new(ANSWER, 2, &[8])).await.unwrap();
        assert_eq!(other.await.unwrap().unwrap(), 8);
    });
}

#[test]
fn a_server_that_takes_no_calls_is_an_error() {
    run(async {
        let door = Door::new();
        let client = door.add(Client::builder(), "shop").attempts(1).build();
        let call = spawn({
            let shop = shop(&client);
            async move { shop.sell(1).await }
        });
        let _played = door.play(0).await;
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error.failure, CallFailure::Connection(_)), "{error}");
        assert_eq!(error.executed, Executed::No);
    });
}

#[test]
fn a_notice_with_a_channel_is_refused() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let client = door.add(Client::builder(), "shop").build();
        let (_texts, receiver) = channel(4);
        let error = shop(&client).note_all(receiver).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Encode(_)), "{error}");
        assert_eq!(shop(&client).sell(1).await.unwrap(), 1);
    });
}

/// The error of a call that cannot be repeated is the first one, and not that its channel has
/// travelled.
#[test]
fn calls_with_channels_are_sent_once() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, || Server::new().all_calls(0));
        let client = door.add(Client::builder(), "shop").build();
        let (_numbers, receiver) = channel(4);
        let error = shop(&client).sum(receiver).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Overloaded), "{error}");
        let (_numbers, receiver) = channel(4);
        let error = shop(&client).sum_again(receiver).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Overloaded), "{error}");
    });
}

#[test]
fn overloads_are_repeated_after_pauses() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, || Server::new().all_calls(0));
        let client = door.add(Client::builder(), "shop").attempts(3).build();
        let since = now();
        let error = shop(&client).sell(1).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Overloaded), "{error}");
        assert_eq!(error.executed, Executed::No);
        let took = elapsed_since(since);
        assert!(took >= ms(75) && took <= ms(160), "{took:?}");
        // A pause that outlasts the caller is not begun.
        let since = now();
        let error = timeout_after(ms(10), shop(&client).sell(1)).await.unwrap().unwrap_err();
        assert!(matches!(error.failure, CallFailure::Overloaded), "{error}");
        assert!(elapsed_since(since) < ms(10));
    });
}

#[test]
fn a_close_lets_streams_end() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let client = door.add(Client::builder(), "shop").build();
        let (numbers, receiver) = channel(4);
        let count = spawn({
            let shop = shop(&client);
            async move { shop.count(1_000, numbers).await }
        });
        assert_eq!(receiver.next().await.unwrap(), Some(0));
        let closed = spawn({
            let client = client.clone();
            async move { client.close().await }
        });
        let mut items = 1;
        while receiver.next().await.unwrap().is_some() {
            items += 1;
        }
        assert_eq!(items, 1_000);
        count.await.unwrap().unwrap();
        closed.await.unwrap().unwrap();
        // A later call connects again.
        assert_eq!(shop(&client).sell(1).await.unwrap(), 1);
    });
}

#[test]
fn notices_arrive_though_the_client_is_dropped() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let client = door.add(Client::builder(), "shop").build();
        for number in 0..100 {
            shop(&client).note(number.to_string()).await.unwrap();
        }
        drop(client);
        sleep(ms(2_000)).await.unwrap();
        assert_eq!(seller.0.notes.borrow().len(), 100);
    });
}

#[test]
fn a_client_that_is_dropped_leaves_no_task() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        sleep(ms(1)).await.unwrap();
        let tasks = || kernel_figures().tasks;
        let before = tasks();
        let client = door.add(Client::builder(), "shop").build();
        let shop = shop(&client);
        assert_eq!(shop.sell(1).await.unwrap(), 1);
        let call = spawn({
            let shop = shop.clone();
            async move { shop.sell(60_000).await }
        });
        sleep(ms(1)).await.unwrap();
        drop((client, shop));
        call.abort();
        sleep(ms(5_000)).await.unwrap();
        assert_eq!((tasks(), seller.0.under_way.get()), (before, 0));
    });
}

/// At each await of callers, with a connection to be made and with one that is full.
#[test]
fn interruptions_leave_nothing_behind() {
    let report = interrupt_everywhere(
        || async {
            let (door, seller) = (Door::new(), Seller::named("one"));
            door.serve(&seller, || Server::new().calls(1).grace(ms(50)));
            let client = door.add(Client::builder(), "shop").build();
            let shop = shop(&client);
            let other = spawn({
                let shop = shop.clone();
                async move { shop.sell(20).await }
            });
            let mut results = Vec::new();
            results.push(shop.sell(10).await.map(|_| ()));
            let (numbers, receiver) = channel(1);
            let sum = async {
                let sum = shop.sum(receiver).await;
                sum.map(|sum| assert_eq!(sum, 6))
            };
            let send = spawn(async move {
                for number in [1, 2, 3] {
                    if numbers.send(number).await.is_err() {
                        break;
                    }
                }
            });
            results.push(sum.await);
            results.push(shop.note("noted".to_owned()).await);
            pikake::shield(async {
                let _ = send.await;
                assert_eq!(other.await.unwrap().unwrap(), 20);
                // The only place is free.
                assert_eq!(shop.name().await.unwrap(), "one");
                client.close().await.unwrap();
            })
            .await;
            drop((shop, client, door));
            pikake::shield(sleep(ms(3_000))).await.unwrap();
            (results, seller.0.under_way.get())
        },
        |run| {
            let (results, under_way) = run.output.as_ref().expect("the program waits on traps");
            assert_eq!(*under_way, 0);
            let failed: Vec<_> =
                results.iter().filter_map(|result| result.as_ref().err()).collect();
            assert!(failed.len() <= 1, "{failed:?}");
            if let [error] = failed[..] {
                let interrupted = error.interrupted().expect("an interruption");
                let by = run.interruption.as_ref().expect("it was interrupted");
                assert_eq!(interrupted.is_cancel(), by.kind.is_cancel(), "{error}");
            }
        },
    );
    assert!(report.suspensions >= 3 && report.cancels > 5, "{report:?}");
}

/// A caller is dropped after each number of steps: the only place is free again, and no handler
/// goes on.
#[test]
fn callers_may_be_dropped_at_each_step() {
    let mut given_up = 0;
    for steps in 0..60 {
        given_up += run(async move {
            let (door, seller) = (Door::new(), Seller::default());
            door.serve(&seller, || Server::new().calls(1));
            let client = door.add(Client::builder(), "shop").build();
            let calls = [(); 2].map(|()| {
                let shop = shop(&client);
                spawn(async move { shop.sell(1_000).await })
            });
            for _ in 0..steps {
                pikake::yield_now().await.unwrap();
            }
            for call in calls {
                call.abort();
            }
            let since = now();
            assert_eq!(shop(&client).sell(0).await.unwrap(), 0, "after {steps} steps");
            assert!(millis_since(since) < 1, "after {steps} steps");
            assert_eq!(seller.0.under_way.get(), 0, "after {steps} steps");
            client.close().await.unwrap();
            seller.0.ends.borrow().len()
        });
    }
    assert!(given_up > 5, "{given_up} handlers were interrupted");
}

#[test]
fn an_attempt_to_connect_survives_its_caller() {
    run(async {
        let (connects, seller) = (Rc::new(Cell::new(0)), Seller::default());
        let counted = connects.clone();
        let client = Client::builder().server("slow", move || {
            counted.set(counted.get() + 1);
            let seller = seller.clone();
            async move {
                sleep(ms(100)).await?;
                let (here, there) = MemoryStream::pair(4096);
                let server = Server::new().add(ShopServer::new(seller));
                spawn(server.serve_connection(there)).detach();
                Ok(here)
            }
        });
        let client = client.build();
        assert!(timeout_after(ms(10), shop(&client).sell(1)).await.is_err());
        let since = now();
        assert_eq!(shop(&client).sell(0).await.unwrap(), 0);
        assert_eq!((connects.get(), millis_since(since)), (1, 90));
    });
}

#[test]
fn an_attempt_to_connect_has_a_deadline() {
    run(async {
        let client = Client::builder().attempts(1).server("nowhere", || async {
            sleep(Duration::MAX).await?;
            Ok(MemoryStream::pair(1).0)
        });
        let client = client.build();
        let since = now();
        let error = shop(&client).sell(1).await.unwrap_err();
        assert_eq!(millis_since(since), 10_000);
        assert!(error.to_string().contains("no connection within 10s; not executed"), "{error}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
    });
}

/// On a real kernel: a panic of a task ends a simulation.
#[test]
fn a_panic_while_connecting_is_an_error() {
    pikake::run(async {
        let client = Client::builder().attempts(2).server("broken", || {
            assert!(now() < now(), "no connection today");
            async { Ok(MemoryStream::pair(1).0) }
        });
        let client = client.build();
        let error = shop(&client).sell(1).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Connection(_)), "{error}");
        assert_eq!(error.executed, Executed::No);
    });
}

/// The moments of the attempts to connect, in ms.
#[test]
fn pauses_between_attempts_grow() {
    run(async {
        let (moments, begin) = (Rc::new(RefCell::new(Vec::new())), now());
        let noted = moments.clone();
        let client = Client::builder().attempts(10).server("away", move || {
            noted.borrow_mut().push(elapsed_since(begin));
            async { Err::<MemoryStream, _>(io::ErrorKind::ConnectionRefused.into()) }
        });
        let client = client.build();
        let calls = [(); 3].map(|()| {
            let shop = shop(&client);
            spawn(async move { shop.sell(1).await })
        });
        for call in calls {
            let error = call.await.unwrap().unwrap_err();
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::ConnectionRefused);
        }
        let moments = moments.take();
        assert!(moments.len() <= 12, "callers do not share attempts: {moments:?}");
        assert!(moments[0] < ms(1));
        for (number, pair) in moments.windows(2).enumerate() {
            let most = ms(50 << number).min(ms(1_000));
            let pause = pair[1] - pair[0];
            assert!(pause >= most / 2 && pause <= most + ms(1), "{number}: {pause:?}");
        }
        // Callers whose time ends before the next attempt get the last error at once.
        let since = now();
        let error = timeout_after(ms(100), shop(&client).sell(1)).await.unwrap().unwrap_err();
        assert!(matches!(error.failure, CallFailure::Connection(_)), "{error}");
        assert_eq!(millis_since(since), 0);
    });
}

/// A server that says hello and closes is not asked in a loop.
#[test]
fn connections_of_no_use_are_replaced_after_pauses() {
    run(async {
        let (connects, begin) = (Rc::new(Cell::new(0)), now());
        let counted = connects.clone();
        let client = Client::builder().attempts(4).server("fickle", move || {
            counted.set(counted.get() + 1);
            let (here, there) = MemoryStream::pair(4096);
            spawn(async move {
                let (mut packets, sender) =
                    open(there, PacketOptions::new().greeting([10, 16])).await.unwrap();
                let _ = packets.next().await;
                let _ = sender.send(Packet::new(LEAVE, 0, &[])).await;
            })
            .detach();
            std::future::ready(Ok(here))
        });
        let client = client.build();
        let error = shop(&client).sell(1).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::ShuttingDown), "{error}");
        assert_eq!((connects.get(), error.executed), (4, Executed::No));
        assert!(elapsed_since(begin) >= ms(25 + 50 + 100), "{:?}", elapsed_since(begin));
    });
}

/// Several servers in memory.
fn shops(count: usize) -> (Vec<Door>, Vec<Seller>) {
    let sellers: Vec<_> = (0..count).map(|number| Seller::named(&number.to_string())).collect();
    let doors: Vec<_> = sellers
        .iter()
        .map(|seller| {
            let door = Door::new();
            door.serve(seller, Server::new);
            door
        })
        .collect();
    (doors, sellers)
}

fn client_of(doors: &[Door], builder: ClientBuilder) -> Client {
    let add = |builder, (number, door): (usize, &Door)| door.add(builder, &number.to_string());
    doors.iter().enumerate().fold(builder, add).build()
}

#[test]
fn calls_go_round() {
    run(async {
        let (doors, _sellers) = shops(3);
        let client = client_of(&doors, Client::builder());
        let mut names = String::new();
        for _ in 0..6 {
            names += &shop(&client).name().await.unwrap();
        }
        assert_eq!(names, "012012");
    });
}

#[test]
fn calls_go_where_the_fewest_are() {
    run(async {
        let (doors, sellers) = shops(3);
        let client = client_of(&doors, Client::builder().balance(Balance::LeastOutstanding));
        let mut slow = Vec::new();
        for _ in 0..9 {
            let shop = shop(&client);
            slow.push(spawn(async move { shop.sell(1_000).await }));
            sleep(ms(1)).await.unwrap();
        }
        let under_way: Vec<_> = sellers.iter().map(|seller| seller.0.under_way.get()).collect();
        assert_eq!(under_way, [3, 3, 3]);
        slow[1].request_cancel("enough");
        sleep(ms(1)).await.unwrap();
        assert_eq!(shop(&client).name().await.unwrap(), "1");
        assert_eq!(shop(&client).name().await.unwrap(), "1");
    });
}

#[test]
fn a_server_that_is_away_is_left_out() {
    run(async {
        let (doors, sellers) = shops(3);
        let is_away = Rc::new(Cell::new(true));
        let away = is_away.clone();
        let (seller, connects) = (sellers[0].clone(), Rc::new(Cell::new(0)));
        let counted = connects.clone();
        let builder = Client::builder().attempts(2).server("0", move || {
            counted.set(counted.get() + 1);
            let result = match away.get() {
                true => Err(io::ErrorKind::ConnectionRefused.into()),
                false => {
                    let (here, there) = MemoryStream::pair(4096);
                    let server = Server::new().add(ShopServer::new(seller.clone()));
                    spawn(server.serve_connection(there)).detach();
                    Ok(here)
                }
            };
            std::future::ready(result)
        });
        let client = doors[1].add(builder, "1");
        let client = doors[2].add(client, "2").build();
        let shop = shop(&client);
        let mut names = String::new();
        for _ in 0..5 {
            names += &shop.name().await.unwrap();
        }
        // The first call was refused at one server, and went on to the next.
        assert_eq!((&*names, connects.get()), ("12121", 1));
        // Later calls let the client look for the server, and wait for others.
        sleep(ms(100)).await.unwrap();
        let since = now();
        names.clear();
        for _ in 0..4 {
            names += &shop.name().await.unwrap();
        }
        assert_eq!((&*names, millis_since(since)), ("2121", 0));
        assert_eq!(connects.get(), 2);
        is_away.set(false);
        sleep(ms(200)).await.unwrap();
        let _ = shop.name().await.unwrap();
        sleep(ms(1)).await.unwrap();
        names.clear();
        for _ in 0..6 {
            names += &shop.name().await.unwrap();
        }
        assert_eq!((names.matches('0').count(), connects.get()), (2, 3), "{names}");
    });
}

/// A server that does not answer delays the call that connects to it, and no other.
#[test]
fn calls_go_where_a_connection_is() {
    run(async {
        let (doors, _sellers) = shops(2);
        let builder = Client::builder().server("0", || async {
            sleep(Duration::MAX).await?;
            Ok(MemoryStream::pair(1).0)
        });
        let client = doors[1].add(builder, "1").build();
        let slow = spawn({
            let shop = shop(&client);
            async move { shop.name().await }
        });
        sleep(ms(1)).await.unwrap();
        let since = now();
        for _ in 0..5 {
            assert_eq!(shop(&client).name().await.unwrap(), "1");
        }
        assert_eq!(millis_since(since), 0);
        // The first call goes on to the other server when the attempt has failed.
        assert_eq!(slow.await.unwrap().unwrap(), "1");
        assert!(millis_since(since) >= 9_990);
    });
}

#[test]
fn several_connections_go_to_a_server() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        let client = door.add(Client::builder().connections(2), "shop").build();
        let calls = [(); 4].map(|()| {
            let shop = shop(&client);
            spawn(async move { shop.sell(10).await })
        });
        sleep(ms(1)).await.unwrap();
        assert_eq!(door.0.len(), 2);
        door.serve(&seller, Server::new);
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap(), 10);
        }
    });
}

#[test]
fn breakers_open_and_try_again() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let builder = Client::builder().attempts(1).break_after(2, ms(1_000));
        let client = door.add(builder, "shop").build();
        let shop = shop(&client);
        for _ in 0..2 {
            assert!(timeout_after(ms(10), shop.sell(60_000)).await.is_err());
        }
        let error = shop.sell(1).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::BreakerOpen), "{error}");
        assert_eq!((error.executed, seller.0.begun.get()), (Executed::No, 2));
        sleep(ms(1_000)).await.unwrap();
        // One call tries, and the others are not sent.
        let trial = spawn({
            let shop = shop.clone();
            async move { timeout_after(ms(10), shop.sell(60_000)).await.is_err() }
        });
        sleep(ms(1)).await.unwrap();
        let error = shop.sell(1).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::BreakerOpen), "{error}");
        assert!(trial.await.unwrap());
        assert!(matches!(shop.sell(1).await.unwrap_err().failure, CallFailure::BreakerOpen));
        sleep(ms(1_000)).await.unwrap();
        // A trial that is given up says nothing.
        let given_up = spawn({
            let shop = shop.clone();
            async move { shop.sell(60_000).await }
        });
        sleep(ms(1)).await.unwrap();
        given_up.abort();
        sleep(ms(1)).await.unwrap();
        assert_eq!(shop.sell(1).await.unwrap(), 1);
        assert_eq!(shop.sell(1).await.unwrap(), 1);
    });
}

/// A trial that lasts, such as a call with a channel, keeps other calls away for one pause.
#[test]
fn a_long_trial_is_followed_by_another() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let builder = Client::builder().attempts(1).break_after(1, ms(1_000)).connections(2);
        let client = door.add(builder, "shop").build();
        let shop = shop(&client);
        assert!(timeout_after(ms(10), shop.sell(60_000)).await.is_err());
        // The server has the breaker, and not each connection.
        assert!(matches!(shop.sell(1).await.unwrap_err().failure, CallFailure::BreakerOpen));
        sleep(ms(1_000)).await.unwrap();
        let trial = spawn({
            let shop = shop.clone();
            async move { shop.sell(60_000).await }
        });
        sleep(ms(900)).await.unwrap();
        assert!(matches!(shop.sell(1).await.unwrap_err().failure, CallFailure::BreakerOpen));
        sleep(ms(100)).await.unwrap();
        assert_eq!(shop.sell(1).await.unwrap(), 1);
        trial.abort();
        assert_eq!(shop.sell(1).await.unwrap(), 1);
    });
}

#[test]
fn a_server_with_several_connections_is_one() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let builder = Client::builder().connections(2).hedge_after(ms(50));
        let client = door.add(builder, "shop").build();
        let shop = shop(&client);
        // No hedge goes to the same server.
        assert_eq!(shop.look(200).await.unwrap(), "");
        assert_eq!(seller.0.begun.get(), 1);
        // Nor do attempts follow each other without a pause.
        let full = Door::new();
        full.serve(&seller, || Server::new().all_calls(0));
        let client = full.add(Client::builder().connections(2), "shop").build();
        let since = now();
        let error = ShopClient::new(client).sell(1).await.unwrap_err();
        assert!(matches!(error.failure, CallFailure::Overloaded), "{error}");
        assert!(elapsed_since(since) >= ms(75), "{:?}", elapsed_since(since));
    });
}

/// The connections of a server share what is known of it.
#[test]
fn a_server_that_is_away_is_asked_once() {
    run(async {
        let connects = Rc::new(Cell::new(0));
        let counted = connects.clone();
        let builder = Client::builder().attempts(1).connections(4).server("away", move || {
            counted.set(counted.get() + 1);
            async { Err::<MemoryStream, _>(io::ErrorKind::ConnectionRefused.into()) }
        });
        let shop = ShopClient::new(builder.build());
        assert_eq!(shop.sell(1).await.unwrap_err().executed, Executed::No);
        for attempts in 2..5 {
            let since = now();
            let calls = [(); 6].map(|()| {
                let shop = shop.clone();
                spawn(async move { shop.sell(1).await })
            });
            for call in calls {
                assert_eq!(call.await.unwrap().unwrap_err().executed, Executed::No);
            }
            assert!(elapsed_since(since) >= ms(25), "{:?}", elapsed_since(since));
            assert_eq!(connects.get(), attempts);
        }
    });
}

#[test]
fn hedges_are_attempts() {
    run(async {
        let (doors, sellers) = shops(2);
        let client = client_of(&doors, Client::builder().attempts(1).hedge_after(ms(50)));
        assert_eq!(shop(&client).look(200).await.unwrap(), "0");
        assert_eq!(sellers[1].0.begun.get(), 0);
    });
}

#[test]
fn metadata_of_a_name_is_replaced_or_added() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let one = door.add(Client::builder(), "shop").build().with_metadata("tenant", "1");
        let tenants = async |client| {
            let (first, all) = ShopClient::new(client).tenants().await.unwrap();
            (first.unwrap(), all.join(" "))
        };
        let expected = |first: &str, all: &str| (first.to_owned(), all.to_owned());
        assert_eq!(tenants(one.with_metadata("Tenant", "2")).await, expected("2", "2"));
        assert_eq!(tenants(one.add_metadata("tenant", "2")).await, expected("1", "1 2"));
        let three = one.add_metadata("tenant", "2").with_metadata("tenant", "3");
        assert_eq!(tenants(three).await, expected("3", "3"));
        assert_eq!(tenants(one).await, expected("1", "1"));
    });
}

#[test]
fn deadlines_travel_with_calls() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let shop = ShopClient::new(door.add(Client::builder(), "shop").build());
        assert_eq!(shop.left().await.unwrap(), None);
        // The nearest one counts, whatever the order.
        for (outer, inner) in [(50, 1_000), (1_000, 50)] {
            let left = timeout_after(ms(inner), shop.left());
            let left = timeout_after(ms(outer), left).await.unwrap().unwrap().unwrap().unwrap();
            assert!(left > ms(49) && left <= ms(50), "{left:?}");
        }
    });
}

/// A task may await a call whose client is gone.
#[test]
fn calls_borrow_nothing() {
    run(async {
        let (door, seller) = (Door::new(), Seller::named("one"));
        door.serve(&seller, Server::new);
        let call = {
            let shop = ShopClient::new(door.add(Client::builder(), "shop").build());
            spawn(shop.name())
        };
        assert_eq!(call.await.unwrap().unwrap(), "one");
    });
}

/// The deadline has passed before the call is made, and no wait has said so.
#[test]
fn calls_after_a_deadline_are_not_sent() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let client = door.add(Client::builder(), "shop").build();
        let shop = shop(&client);
        assert_eq!(shop.sell(1).await.unwrap(), 1);
        let executed = Cell::new(None);
        let late = timeout_after(Duration::ZERO, async {
            executed.set(Some(shop.sell(1).await.unwrap_err().executed));
        });
        assert!(late.await.is_err());
        assert_eq!(executed.get(), Some(Executed::No));
        sleep(ms(10)).await.unwrap();
        assert_eq!(seller.0.begun.get(), 1);
    });
}

/// A kernel that shuts down starts no tasks, also none that connects.
#[test]
fn calls_of_a_shutdown_have_errors() {
    let executed = Rc::new(Cell::new(None));
    let noted = executed.clone();
    run(async {
        let client = Client::builder().server("shop", || async {
            sleep(Duration::MAX).await?;
            Ok(MemoryStream::pair(1).0)
        });
        let shop = ShopClient::new(client.build());
        spawn(async move {
            let _ = sleep(Duration::MAX).await;
            noted.set(Some(shop.sell(1).await.unwrap_err().executed));
        })
        .detach();
        sleep(ms(1)).await.unwrap();
    });
    assert_eq!(executed.get(), Some(Executed::No));
}

#[test]
fn structs_carry_channels_in_any_order() {
    for codec in [Codec::Postcard, Codec::Json] {
        run(async move {
            let (door, seller) = (Door::new(), Seller::default());
            door.serve(&seller, Server::new);
            let client = door.add(Client::builder().codec(codec), "shop").build();
            let (numbers, input) = channel(4);
            let (output, doubled) = channel(4);
            let call = spawn({
                let shop = shop(&client);
                async move { shop.double(Pipe { output, input, even: Even(2) }).await }
            });
            numbers.send(4).await.unwrap();
            assert_eq!(doubled.next().await.unwrap(), Some(8));
            numbers.finish();
            call.await.unwrap().unwrap();
            // The error is that of the number, and not that the channels have travelled.
            let ((_numbers, input), (output, _doubled)) = (channel(4), channel(4));
            let odd = Pipe { output, input, even: Even(3) };
            let error = shop(&client).double(odd).await.unwrap_err();
            assert!(error.to_string().contains("an odd number"), "{error}");
        });
    }
}

#[test]
fn hedges_go_to_another_server() {
    run(async {
        let (doors, sellers) = shops(2);
        let client = client_of(&doors, Client::builder().hedge_after(ms(50)));
        let shop = shop(&client);
        sellers[0].0.delay.set(ms(60_000));
        let since = now();
        assert_eq!(shop.look(10).await.unwrap(), "1");
        assert_eq!(millis_since(since), 60);
        // The slow attempt was given up.
        sleep(ms(1)).await.unwrap();
        assert_eq!(*sellers[0].0.ends.borrow(), ["cancelled: the caller has given up"]);
        assert_eq!(sellers[0].0.under_way.get(), 0);
        // A quick answer needs no second attempt, nor does a method that is not idempotent.
        sellers[0].0.delay.set(Duration::ZERO);
        let begun = || sellers.iter().map(|seller| seller.0.begun.get()).sum::<usize>();
        assert_eq!(begun(), 2);
        assert_eq!(shop.look(10).await.unwrap(), "0");
        assert_eq!(shop.sell(100).await.unwrap(), 100);
        assert_eq!(begun(), 4);
    });
}

#[test]
fn hedged_calls_are_interrupted_whole() {
    let report = interrupt_everywhere(
        || async {
            let (doors, sellers) = shops(2);
            let client = client_of(&doors, Client::builder().hedge_after(ms(50)));
            sellers[0].0.delay.set(ms(60_000));
            let looked = shop(&client).look(10).await;
            drop((doors, client));
            pikake::shield(sleep(ms(3_000))).await.unwrap();
            let under_way = sellers.iter().map(|seller| seller.0.under_way.get()).sum::<usize>();
            (looked, under_way)
        },
        |run| {
            let (looked, under_way) = run.output.as_ref().expect("the program waits on traps");
            assert_eq!(*under_way, 0);
            match looked {
                Ok(name) => assert_eq!(name, "1"),
                Err(error) => assert!(error.interrupted().is_some(), "{error}"),
            }
        },
    );
    assert!(report.suspensions >= 3, "{report:?}");
}

async fn serve_shop(closing: Closing) {
    let listener = TcpListener::bind("0.0.0.0:7000").await.unwrap();
    let server = Server::new().add(ShopServer::new(Seller::named("tcp"))).closing(&closing);
    server.serve(listener).await.unwrap();
}

/// Runs a client's program in a world with a server `shop`, which has a fault at one second.
fn with_fault<F: Future>(faults: &[(u64, Fault)], program: F) -> F::Output {
    let mut sim = Sim::new(3);
    sim.host("shop", || serve_shop(Closing::new()));
    let add = |plan: FaultPlan, (at, fault): &(u64, Fault)| plan.at(ms(*at), fault.clone());
    let faults = faults.iter().fold(FaultPlan::new(), add);
    sim.faults(faults);
    sim.run_here("client", program).unwrap().outcome.unwrap()
}

fn executed<T>(result: Result<T, CallError>) -> Executed {
    match result {
        Ok(_) => Executed::Yes,
        Err(error) => error.executed,
    }
}

#[test]
fn a_call_lost_with_its_connection_is_perhaps_executed() {
    let kill = [(1_000, Fault::Kill("shop".into())), (1_100, Fault::Restart("shop".into()))];
    with_fault(&kill, async {
        let shop = ShopClient::new(Client::tcp("shop:7000"));
        let (sale, look) = (shop.clone(), shop.clone());
        let sale = spawn(async move { sale.sell(5_000).await });
        let look = spawn(async move { look.look(5_000).await });
        assert_eq!(executed(sale.await.unwrap()), Executed::Maybe);
        // The method is idempotent: the call is repeated when the server is back.
        assert_eq!(look.await.unwrap().unwrap(), "tcp");
    });
}

#[test]
fn a_call_that_reached_nobody_is_not_executed() {
    let kill = [(1_000, Fault::Kill("shop".into()))];
    with_fault(&kill, async {
        let shop = ShopClient::new(Client::tcp("shop:7000"));
        assert_eq!(shop.name().await.unwrap(), "tcp");
        sleep(ms(1_500)).await.unwrap();
        let since = now();
        let error = shop.name().await.unwrap_err();
        assert_eq!(error.executed, Executed::No, "{error}");
        assert!(elapsed_since(since) < ms(500), "{:?}", elapsed_since(since));
    });
}

/// Of the calls that a lost connection had queued, those that were not begun to be written were not
/// executed.
#[test]
fn a_call_that_was_not_written_is_not_executed() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        let options = PacketOptions::new().queue_limit(1 << 20).stall(ms(1_000));
        let client = door.add(Client::builder().packets(options), "shop").build();
        let calls = [(); 2].map(|()| {
            let shop = shop(&client);
            spawn(async move { shop.keep(vec![7; 10_000]).await })
        });
        let (_packets, _sender) = door.play(10).await;
        // The peer takes no more than the stream buffers.
        sleep(ms(500)).await.unwrap();
        door.serve(&seller, Server::new);
        let [first, second] = calls;
        let error = first.await.unwrap().unwrap_err();
        assert_eq!(error.executed, Executed::Maybe, "{error}");
        assert_eq!(second.await.unwrap().unwrap(), 10_000);
    });
}

/// A peer that is silent is found by its silence, and connected to again.
#[test]
fn a_partition_ends_calls_and_heals() {
    let between = || Between::two_way(["client"], ["shop"]);
    let faults = [(1_000, Fault::Partition(between())), (60_000, Fault::Heal(between()))];
    with_fault(&faults, async {
        let shop = ShopClient::new(Client::tcp("shop:7000"));
        assert_eq!(shop.name().await.unwrap(), "tcp");
        sleep(ms(1_500)).await.unwrap();
        let error = shop.name().await.unwrap_err();
        assert_eq!(error.executed, Executed::Maybe, "{error}");
        sleep(ms(60_000)).await.unwrap();
        assert_eq!(shop.name().await.unwrap(), "tcp");
    });
}

#[test]
fn a_name_with_several_addresses_is_tried_through() {
    let mut sim = Sim::new(3);
    sim.host("shop", || serve_shop(Closing::new()));
    // Nobody is at the first address.
    sim.addresses("shop", ["10.9.9.9".parse().unwrap(), "10.0.0.77".parse().unwrap()]);
    sim.faults(FaultPlan::new());
    let named = sim.run_here("client", async {
        ShopClient::new(Client::tcp("shop:7000")).name().await.unwrap()
    });
    assert_eq!(named.unwrap().outcome.unwrap(), "tcp");
}

#[test]
fn figures_count_calls_by_their_outcome() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let client = door.add(Client::builder(), "shop").build();
        let shop = shop(&client);
        shop.sell(1).await.unwrap();
        assert!(timeout_after(ms(10), shop.sell(60_000)).await.is_err());
        shop.note("noted".to_owned()).await.unwrap();
        let away = Client::builder().attempts(2).server("away", || async {
            Err::<MemoryStream, _>(io::ErrorKind::ConnectionRefused.into())
        });
        ShopClient::new(away.build()).sell(1).await.unwrap_err();
        let call = spawn(async move { shop.sell(60_000).await });
        sleep(ms(1)).await.unwrap();
        let shown = || {
            let figures = figures::collect().into_iter();
            let of_clients = figures.filter(|figure| figure.name.starts_with("pikake_rpc_client_"));
            let shown = of_clients.filter_map(|figure| {
                let labels: Vec<_> =
                    figure.labels.iter().map(|(_, value)| value.as_str()).collect();
                let name = figure.name.trim_start_matches("pikake_rpc_client_");
                match figure.value {
                    Value::Gauge(count) | Value::Counter(count) if count > 0 => {
                        Some(format!("{name} {} {count}", labels.join(" ")))
                    }
                    _ => None,
                }
            });
            let mut shown: Vec<_> = shown.collect();
            shown.sort();
            shown
        };
        let expected = [
            "calls Shop.note answered 1",
            "calls Shop.sell answered 1",
            "calls Shop.sell connection 1",
            "calls Shop.sell given_up 1",
            "connections failed 2",
            "connections opened 1",
            "repeats  1",
            "running_calls Shop.sell 1",
        ];
        assert_eq!(shown(), expected);
        call.abort();
        sleep(ms(1)).await.unwrap();
        assert!(shown().contains(&"calls Shop.sell given_up 2".to_owned()));
        assert!(!shown().iter().any(|figure| figure.starts_with("running")));
    });
}

/// A client may be kept beyond its kernel, with calls and attempts under way, and works on the next
/// one.
#[test]
fn a_client_outlives_its_kernel() {
    let seller = Seller::default();
    let is_slow = Rc::new(Cell::new(false));
    let (serving, slow) = (seller.clone(), is_slow.clone());
    let builder = Client::builder().attempts(1).connections(2).server("shop", move || {
        let (seller, is_slow) = (serving.clone(), slow.get());
        async move {
            if is_slow {
                sleep(Duration::MAX).await?;
            }
            let (here, there) = MemoryStream::pair(4096);
            let server = Server::new().add(ShopServer::new(seller));
            spawn(server.serve_connection(there)).detach();
            Ok(here)
        }
    });
    let client = builder.build();
    for _ in 0..2 {
        is_slow.set(false);
        pikake::run(async {
            assert_eq!(shop(&client).sell(1).await.unwrap(), 1);
            is_slow.set(true);
            for _ in 0..4 {
                let shop = shop(&client);
                spawn(async move { shop.sell(60_000).await }).detach();
            }
            sleep(ms(1)).await.unwrap();
        });
    }
    let kernel = pikake::Kernel::new().unwrap();
    is_slow.set(false);
    kernel.run(async {
        for _ in 0..2 {
            assert_eq!(shop(&client).sell(1).await.unwrap(), 1);
        }
    });
    drop(kernel);
    drop(client);
    // An attempt to connect ends with its kernel.
    let kernel = pikake::Kernel::new().unwrap();
    let away = Client::builder().server("away", || async {
        sleep(Duration::MAX).await?;
        Ok(MemoryStream::pair(1).0)
    });
    let away = away.build();
    kernel.run(async {
        let shop = shop(&away);
        spawn(async move { shop.sell(1).await }).detach();
        sleep(ms(1)).await.unwrap();
    });
    drop(kernel);
    drop(away);
    assert_eq!(seller.0.under_way.get(), 0);
}

/// What a caller awaits after its deadline is its cleanup, which the deadline does not end.
#[test]
fn calls_of_a_cleanup_have_time() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let client = door.add(Client::builder(), "shop").build();
        let cleaned = Cell::new(0);
        let timed_out = timeout_after(ms(10), async {
            let error = shop(&client).sell(60_000).await.unwrap_err();
            assert!(error.interrupted().is_some());
            cleaned.set(shop(&client).sell(50).await.unwrap());
        });
        assert!(timed_out.await.is_err());
        assert_eq!(cleaned.get(), 50);
    });
}

/// Calls go on over a server's orderly end and its successor: none is lost, none is executed twice.
#[test]
fn an_orderly_end_of_the_server_loses_no_call() {
    pikake::sim::Runs::new("orderly end of the server").seeds(15).run(|sim| {
        sim.host("shop", || async {
            for _ in 0..20 {
                let closing = Closing::new();
                let server = spawn(serve_shop(closing.clone()));
                sleep(ms(pikake::random::range(20..300))).await?;
                closing.begin();
                server.await.unwrap();
            }
            serve_shop(Closing::new()).await;
            Ok::<_, Interrupted>(())
        });
        sim.client("client", || async {
            let shop = ShopClient::new(Client::builder().tcp("shop:7000").attempts(10).build());
            let tasks: Vec<_> = (0..5)
                .map(|_| {
                    let shop = shop.clone();
                    spawn(async move {
                        for _ in 0..100 {
                            let millis = pikake::random::range(0..40);
                            assert_eq!(shop.sell(millis).await?, millis);
                        }
                        Ok::<_, CallError>(())
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap()?;
            }
            Ok::<_, CallError>(())
        });
    });
}

/// Listings name the method, the server and the call.
#[test]
fn waits_of_callers_are_described() {
    run(async {
        let (door, seller) = (Door::new(), Seller::default());
        door.serve(&seller, Server::new);
        let client = door.add(Client::builder(), "shop").build();
        let call = spawn({
            let shop = shop(&client);
            async move { shop.sell(10).await }
        });
        sleep(ms(1)).await.unwrap();
        tasks_from(0, 100).tasks.iter().for_each(|task| task.inspect());
        sleep(ms(1)).await.unwrap();
        let waits = call.task_ref().waits();
        let about = waits[0].about.as_ref().unwrap();
        assert_eq!(about.text(), "Shop.sell at shop, call 1");
        call.await.unwrap().unwrap();
    });
}
