//! The server: the lives of handlers, limits, interceptors, and the end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use pikake::kernel::inspect::kernel_figures;
use pikake::net::{self, Closing, MemoryStream, Patience, TcpListener, TcpStream};
use pikake::rpc::packets::{Packet, PacketError, PacketOptions, PacketReader, PacketWriter, open};
use pikake::rpc::{
    Answer, CallError, CallFailure, CallInfo, Client, Executed, Handler, Receiver, Server,
    current_call,
};
use pikake::sim::{Latency, Network, Sim};
use pikake::traps::{elapsed_since, now};
use pikake::{Interrupted, Task, shield, sleep, spawn, timeout_after, yield_now};
use serde::{Deserialize, Serialize, Serializer};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const ADDRESS: &str = "127.0.0.1:7000";
/// The grace of the servers of this file, unless a test sets another.
const GRACE: Duration = Duration::from_millis(100);

#[pikake::service]
trait Shop {
    async fn add(&self, left: u64, right: u64) -> u64;
    async fn wait(&self, millis: u64) -> Result<u64, String>;
    async fn stubborn(&self);
    async fn shielded(&self);
    async fn endless(&self);
    /// Waits, and cleans up when it is interrupted.
    async fn clean(&self) -> Result<(), String>;
    async fn big(&self, size: u64) -> Vec<u8>;
    async fn panic(&self);
    async fn panic_when_dropped(&self);
    async fn panic_when_written(&self) -> Unwritable;
    async fn panic_when_read(&self, argument: Unreadable);
    async fn sum(&self, numbers: Receiver<u64>) -> u64;
    #[notice]
    async fn note(&self, millis: u64);
    #[notice]
    async fn collect(&self, numbers: Receiver<u64>);
    async fn spawn_a_task(&self) -> bool;
}

#[derive(Deserialize)]
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("no bytes for this");
    }
}

#[derive(Serialize)]
struct Unreadable(u8);

impl<'de> Deserialize<'de> for Unreadable {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("no value for this");
    }
}

struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("a destructor fails");
    }
}

/// What the handlers of a server note.
#[derive(Clone, Default)]
struct Keeper(Rc<Notes>);

#[derive(Default)]
struct Notes {
    under_way: Cell<usize>,
    begun: Cell<usize>,
    ends: RefCell<Vec<String>>,
}

struct Counted(Rc<Notes>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

impl Keeper {
    fn count(&self) -> Counted {
        self.0.begun.set(self.0.begun.get() + 1);
        self.0.under_way.set(self.0.under_way.get() + 1);
        Counted(self.0.clone())
    }

    fn under_way(&self) -> usize {
        self.0.under_way.get()
    }

    fn end(&self, result: &Result<(), Interrupted>) {
        let end = result.as_ref().map_or_else(ToString::to_string, |()| "in time".to_owned());
        self.0.ends.borrow_mut().push(end);
    }
}

impl Shop for Keeper {
    async fn add(&self, left: u64, right: u64) -> u64 {
        left + right
    }

    async fn wait(&self, millis: u64) -> Result<u64, String> {
        let _counted = self.count();
        let slept = sleep(Duration::from_millis(millis)).await;
        self.end(&slept);
        slept.map(|()| millis).map_err(|interrupted| interrupted.to_string())
    }

    async fn stubborn(&self) {
        let _counted = self.count();
        loop {
            let _ = sleep(MS).await;
        }
    }

    async fn shielded(&self) {
        let _counted = self.count();
        let _ = shield(sleep(1_000 * SECOND)).await;
    }

    async fn endless(&self) {
        let _counted = self.count();
        pending().await
    }

    async fn clean(&self) -> Result<(), String> {
        let _counted = self.count();
        let Err(why) = sleep(1_000 * SECOND).await else { return Ok(()) };
        let cleaned = async {
            sleep(50 * MS).await?;
            timeout_after(SECOND, sleep(10 * MS)).await.map_err(|_| why)??;
            Ok(())
        };
        let cleaned = cleaned.await;
        self.end(&cleaned);
        cleaned.map_err(|again: Interrupted| again.to_string())
    }

    async fn big(&self, size: u64) -> Vec<u8> {
        self.0.begun.set(self.0.begun.get() + 1);
        vec![7; size as usize]
    }

    async fn panic(&self) {
        panic!("the shop is broken");
    }

    async fn panic_when_dropped(&self) {
        let _counted = self.count();
        let _bomb = PanicOnDrop;
        pending().await
    }

    async fn panic_when_written(&self) -> Unwritable {
        Unwritable
    }

    async fn panic_when_read(&self, argument: Unreadable) {
        assert_eq!(argument.0, 0);
    }

    async fn sum(&self, numbers: Receiver<u64>) -> u64 {
        let mut sum = 0;
        while let Ok(Some(number)) = numbers.next().await {
            sum += number;
        }
        sum
    }

    async fn note(&self, millis: u64) {
        let _counted = self.count();
        let _ = sleep(Duration::from_millis(millis)).await;
    }

    async fn collect(&self, numbers: Receiver<u64>) {
        let _counted = self.count();
        let end = numbers.next().await;
        self.0.ends.borrow_mut().push(format!("{end:?}"));
    }

    async fn spawn_a_task(&self) -> bool {
        spawn(async { current_call().is_none() }).await.unwrap() && current_call().is_some()
    }
}

fn server(keeper: &Keeper) -> Server {
    Server::new().add(ShopServer::new(keeper.clone())).grace(GRACE)
}

/// Runs `test` with a client of a server, and then ends the server, which must be idle.
fn with_shop<F: Future<Output = ()> + 'static>(
    change: impl FnOnce(Server) -> Server + 'static,
    test: impl FnOnce(ShopClient, Keeper) -> F + 'static,
) {
    pikake::sim::example(async move {
        let keeper = Keeper::default();
        let listener = TcpListener::bind(ADDRESS).await.unwrap();
        let server = spawn(change(server(&keeper)).serve(listener));
        test(ShopClient::new(Client::tcp(ADDRESS)), keeper.clone()).await;
        server.request_cancel("the test is over");
        let report = server.await.unwrap().unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!(keeper.under_way(), 0);
    });
}

/// Makes a call in a task of its own, and waits until the handler runs.
async fn begin<T: 'static>(keeper: &Keeper, call: impl Future<Output = T> + 'static) -> Task<T> {
    let before = keeper.0.begun.get();
    let task = spawn(call);
    while keeper.0.begun.get() == before {
        sleep(MS / 10).await.unwrap();
    }
    task
}

/// A client that sends the packets that the test decides about.
struct Raw {
    reader: PacketReader<MemoryStream>,
    writer: PacketWriter,
    next: u64,
}

const REQUEST: u8 = 0;
const ANSWER: u8 = 1;
const CANCEL: u8 = 2;
const ITEM: u8 = 3;
const LEAVE: u8 = 7;
const NOTICE: u8 = 8;
const FAILURE: u8 = 2;
const BEGUN: u8 = 4;
const DEADLINE: u8 = 1;

fn number(method: &str) -> [u8; 4] {
    let mut methods = ShopClient::METHODS.iter();
    methods.find(|at| at.name == format!("Shop.{method}")).unwrap().number.to_le_bytes()
}

/// The most bytes of a body that a [`Raw`] client takes.
const FRAME_LIMIT: usize = 1_000;

impl Raw {
    /// Connects to a server of one connection.
    async fn connect(server: Server, capacity: usize) -> (Self, Task<Result<(), PacketError>>) {
        let (here, there) = MemoryStream::pair(capacity);
        let serving = spawn(server.serve_connection(there));
        let options = PacketOptions::new().frame_limit(FRAME_LIMIT).greeting([0, 16]);
        let (reader, writer) = open(here, options).await.unwrap();
        (Self { reader, writer, next: 1 }, serving)
    }

    async fn send(&mut self, kind: u8, method: &str, arguments: &[u8]) -> u64 {
        let id = self.next;
        self.next += 1;
        let body = [&number(method)[..], arguments].concat();
        self.writer.send(Packet::new(kind, id, &body)).await.unwrap();
        id
    }

    async fn request(&mut self, method: &str, arguments: &[u8]) -> u64 {
        self.send(REQUEST, method, arguments).await
    }

    /// The kind, flags, id and body of the next packet; `None` if none comes for long.
    async fn next(&mut self) -> Option<(u8, u8, u64, Vec<u8>)> {
        match timeout_after(20 * SECOND, self.reader.next()).await {
            Ok(packet) => packet.unwrap().map(|it| (it.kind, it.flags, it.id, it.body.to_vec())),
            Err(_) => None,
        }
    }
}

fn failure(result: Result<impl Sized, CallError>) -> CallFailure {
    result.err().unwrap().failure
}

/// The client takes larger answers, and the server keeps none of them in its queue.
#[test]
fn answers_keep_to_the_servers_frame_limit() {
    with_shop(
        |server| server.packets(PacketOptions::new().frame_limit(FRAME_LIMIT)),
        async |shop, _| {
            assert_eq!(shop.big(900).await.unwrap().len(), 900);
            let error = shop.big(1_100).await.unwrap_err();
            assert!(matches!(error.failure, CallFailure::Answer(_)), "{error}");
            assert_eq!(error.executed, Executed::Yes);
        },
    );
}

#[test]
fn handlers_end_with_the_deadline_and_the_grace() {
    with_shop(
        |server| server,
        async |shop, keeper| {
            let begun = now();
            let calls = [
                begin(&keeper, {
                    let shop = shop.clone();
                    async move { drop(timeout_after(50 * MS, shop.stubborn()).await) }
                })
                .await,
                begin(&keeper, {
                    let shop = shop.clone();
                    async move { drop(timeout_after(50 * MS, shop.shielded()).await) }
                })
                .await,
            ];
            // The cancel of the caller comes with the deadline, and changes nothing.
            sleep((50 + 99) * MS - elapsed_since(begun)).await.unwrap();
            assert_eq!(keeper.under_way(), 2);
            sleep(10 * MS).await.unwrap();
            assert_eq!(keeper.under_way(), 0);
            for call in calls {
                call.await.unwrap();
            }
        },
    );
}

/// Without a cancel of the caller.
#[test]
fn the_server_knows_the_deadline_by_itself() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let (mut raw, serving) = Raw::connect(server(&keeper), 10_000).await;
        let in_50_ms = [0xd0, 0x86, 3];
        for (id, method) in ["stubborn", "shielded", "endless"].into_iter().enumerate() {
            let body = [&number(method)[..], &in_50_ms].concat();
            raw.writer
                .send(Packet::new(REQUEST, id as u64 + 1, &body).with_flags(DEADLINE))
                .await
                .unwrap();
        }
        sleep(149 * MS).await.unwrap();
        // A foreign future is dropped at once.
        assert_eq!(keeper.under_way(), 2);
        sleep(2 * MS).await.unwrap();
        assert_eq!(keeper.under_way(), 0);
        let mut ids = Vec::new();
        while let Some((kind, flags, id, body)) = raw.next().await {
            assert_eq!((kind, flags), (ANSWER, FAILURE | BEGUN));
            assert_eq!(&body[1..], b"the caller's time is over");
            ids.push(id);
        }
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3]);
        // A call whose time is over before it arrives does not begin.
        let begun = keeper.0.begun.get();
        let body = [&number("stubborn")[..], &[0]].concat();
        raw.writer.send(Packet::new(REQUEST, 4, &body).with_flags(DEADLINE)).await.unwrap();
        let (_, flags, id, _) = raw.next().await.unwrap();
        assert_eq!((flags, id), (FAILURE, 4));
        assert_eq!(keeper.0.begun.get(), begun);
        drop(raw);
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn handlers_end_with_the_cancel_and_the_grace() {
    with_shop(
        |server| server,
        async |shop, keeper| {
            let calls = [
                begin(&keeper, {
                    let shop = shop.clone();
                    async move { shop.stubborn().await }
                })
                .await,
                begin(&keeper, {
                    let shop = shop.clone();
                    async move { shop.shielded().await }
                })
                .await,
            ];
            for call in calls {
                call.request_cancel("enough");
                assert!(matches!(failure(call.await.unwrap()), CallFailure::Interrupted(_)));
            }
            sleep(98 * MS).await.unwrap();
            assert_eq!(keeper.under_way(), 2);
            sleep(10 * MS).await.unwrap();
            assert_eq!(keeper.under_way(), 0);
            assert_eq!(shop.add(1, 2).await.unwrap(), 3);
        },
    );
}

/// The caller's cancel comes before, with or after the deadline, or the connection is lost about
/// then.
#[test]
fn a_cleanup_is_interrupted_by_one_cause() {
    const UNITS: u64 = 4;
    for at in 0..2 * 50 * UNITS {
        pikake::sim::example(async move {
            let keeper = Keeper::default();
            let (mut raw, serving) = Raw::connect(server(&keeper), 10_000).await;
            let in_50_ms = [0xd0, 0x86, 3];
            let body = [&number("clean")[..], &in_50_ms].concat();
            raw.writer.send(Packet::new(REQUEST, 1, &body).with_flags(DEADLINE)).await.unwrap();
            sleep(MS / UNITS as u32 * at as u32).await.unwrap();
            raw.writer.send(Packet::new(CANCEL, 1, &[])).await.unwrap();
            if at % 3 == 0 {
                drop(raw);
                serving.await.unwrap().unwrap();
            } else {
                assert_eq!(raw.next().await.unwrap().2, 1);
            }
            assert_eq!(*keeper.0.ends.borrow(), ["in time"], "cancel after {at} units");
        });
    }
}

/// The deadline of the server is some time after that of the caller, whose cancel comes about then.
#[test]
fn a_cleanup_is_interrupted_once_behind_a_network() {
    for delay in [0, 1, 5, 40] {
        for seed in 0..20 {
            let mut sim = Sim::new(seed);
            let mut network = Network::default();
            network.link.latency = Latency::Uniform(delay * MS, delay * MS * 11 / 10);
            let keeper = Rc::new(RefCell::new(Vec::new()));
            let ends = keeper.clone();
            sim.client("server", move || {
                let ends = ends.clone();
                async move {
                    let keeper = Keeper::default();
                    let listener = TcpListener::bind("0.0.0.0:7000").await.unwrap();
                    let serving = spawn(server(&keeper).serve(listener));
                    sleep(SECOND).await.unwrap();
                    serving.cancel().await.unwrap();
                    ends.borrow_mut().extend(keeper.0.ends.take());
                }
            });
            sim.client("client", || async {
                let shop = ShopClient::new(Client::tcp("server:7000"));
                // The client has a connection.
                assert_eq!(shop.add(1, 2).await.unwrap(), 3);
                for _ in 0..3 {
                    assert!(timeout_after(50 * MS, shop.clean()).await.is_err());
                }
            });
            sim.network(network);
            sim.run().unwrap();
            assert_eq!(*keeper.borrow(), ["in time"; 3], "delay {delay} ms, seed {seed}");
        }
    }
}

/// Further cancels do not begin the grace anew.
#[test]
fn repeated_cancels_prolong_nothing() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let (mut raw, serving) = Raw::connect(server(&keeper), 10_000).await;
        let id = raw.request("stubborn", &[]).await;
        for _ in 0..10 {
            sleep(10 * MS).await.unwrap();
            assert_eq!(keeper.under_way(), 1);
            raw.writer.send(Packet::new(CANCEL, id, &[])).await.unwrap();
        }
        sleep(10 * MS).await.unwrap();
        assert_eq!(keeper.under_way(), 0);
        assert_eq!(raw.next().await.unwrap().2, id);
        drop(raw);
        serving.await.unwrap().unwrap();
    });
}

/// The hello of a client, without a limit of silence.
fn hello() -> Vec<u8> {
    b"PKRP\x01\x01\x7f\x00\x02\x00\x10".to_vec()
}

fn frame(kind: u8, id: u8, body: &[u8]) -> Vec<u8> {
    [&[body.len() as u8, kind << 3, id], body].concat()
}

#[test]
fn a_lost_connection_leaves_nothing() {
    pikake::sim::example(async {
        let tasks = kernel_figures().tasks;
        let keeper = Keeper::default();
        let (here, there) = MemoryStream::pair(10_000);
        let serving = spawn(server(&keeper).serve_connection(there));
        let mut bytes = hello();
        for (id, method) in (1..).zip(["stubborn", "shielded", "endless", "stubborn"]) {
            bytes.extend(frame(REQUEST, id, &number(method)));
        }
        bytes.extend(frame(NOTICE, 5, &[&number("note")[..], &[0xff, 0xff, 0x7f]].concat()));
        bytes.extend(frame(NOTICE, 6, &[&number("collect")[..], &[0]].concat()));
        net::Write::write_all(&here, &bytes).await.unwrap();
        sleep(MS).await.unwrap();
        net::Write::write_all(&here, &frame(CANCEL, 4, &[])).await.unwrap();
        sleep(MS).await.unwrap();
        assert_eq!((keeper.0.begun.get(), keeper.under_way()), (6, 5));
        let lost = now();
        drop(here);
        serving.await.unwrap().unwrap_err();
        assert!(elapsed_since(lost) <= GRACE + MS);
        assert_eq!(keeper.under_way(), 0);
        sleep(SECOND).await.unwrap();
        assert_eq!(kernel_figures().tasks, tasks);
        assert_eq!(Rc::strong_count(&keeper.0), 1, "the server and its handlers are gone");
    });
}

#[test]
fn without_a_grace_handlers_see_their_interruption() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let (here, there) = MemoryStream::pair(10_000);
        let serving = spawn(server(&keeper).grace(Duration::ZERO).serve_connection(there));
        let request = frame(REQUEST, 1, &[&number("wait")[..], &[0xff, 0x7f]].concat());
        net::Write::write_all(&here, &[hello(), request].concat()).await.unwrap();
        sleep(MS).await.unwrap();
        assert_eq!(keeper.under_way(), 1);
        drop(here);
        serving.await.unwrap().unwrap_err();
        assert_eq!(*keeper.0.ends.borrow(), ["cancelled: the connection of the caller is lost"]);
    });
}

/// The items of a notice's channel are lost, since nothing of the call follows.
#[test]
fn channels_of_notices_are_closed() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let (mut raw, serving) = Raw::connect(server(&keeper), 10_000).await;
        raw.send(NOTICE, "collect", &[0]).await;
        sleep(MS).await.unwrap();
        assert_eq!(*keeper.0.ends.borrow(), ["Err(Lost)"]);
        drop(raw);
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn a_dropped_server_drops_its_handlers() {
    pikake::sim::example(async {
        let tasks = kernel_figures().tasks;
        let keeper = Keeper::default();
        let (mut raw, serving) = Raw::connect(server(&keeper), 10_000).await;
        for method in ["stubborn", "shielded", "endless"] {
            raw.request(method, &[]).await;
        }
        sleep(MS).await.unwrap();
        assert_eq!(keeper.under_way(), 3);
        serving.abort();
        yield_now().await.unwrap();
        yield_now().await.unwrap();
        assert_eq!(keeper.under_way(), 0);
        drop((raw, serving));
        sleep(SECOND).await.unwrap();
        assert_eq!(kernel_figures().tasks, tasks);
        assert_eq!(Rc::strong_count(&keeper.0), 1);
    });
}

/// Whatever the handler does, and whenever the call is cancelled.
#[test]
fn each_request_has_one_answer() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let server = server(&keeper).intercept(async |info, next| match info.id % 50 {
            7 => Answer::refused("x".repeat(2 * FRAME_LIMIT) + "é"),
            8 => panic!("the interceptor is broken"),
            _ => next.await,
        });
        let (mut raw, serving) = Raw::connect(server, 10_000).await;
        let mut answers = BTreeMap::new();
        for delay in 0..4 {
            let mut ids = Vec::new();
            for method in [
                "add",
                "wait",
                "stubborn",
                "shielded",
                "endless",
                "big",
                "panic",
                "panic",
                "panic_when_dropped",
                "panic_when_written",
                "panic_when_read",
            ] {
                let arguments: &[u8] = match method {
                    "add" => &[1, 2],
                    "wait" => &[1],
                    "big" => &[0xff, 0x7f],
                    "panic_when_read" => &[1],
                    _ => &[],
                };
                ids.push(raw.request(method, arguments).await);
            }
            // Without its arguments, and without a method.
            ids.push(raw.request("add", &[1]).await);
            raw.writer.send(Packet::new(REQUEST, raw.next, &[1, 2, 3, 4])).await.unwrap();
            ids.push(raw.next);
            raw.next += 1;
            for _ in 0..delay {
                sleep(MS / 2).await.unwrap();
            }
            for id in &ids {
                raw.writer.send(Packet::new(CANCEL, *id, &[])).await.unwrap();
            }
            answers.extend(ids.into_iter().map(|id| (id, 0)));
        }
        while let Some((kind, _, id, body)) = raw.next().await {
            assert_eq!(kind, ANSWER);
            assert!(body.len() <= FRAME_LIMIT);
            *answers.get_mut(&id).unwrap() += 1;
        }
        assert!(answers.values().all(|count| *count == 1), "{answers:?}");
        assert_eq!(keeper.under_way(), 0);
        drop(raw);
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn panics_of_user_code_are_errors() {
    with_shop(
        |server| server,
        async |shop, _| {
            assert!(matches!(failure(shop.panic().await), CallFailure::Panicked));
            assert!(matches!(failure(shop.panic_when_written().await), CallFailure::Panicked));
            let error = shop.panic_when_read(Unreadable(0)).await.unwrap_err();
            assert!(
                matches!(&error.failure, CallFailure::Arguments(text) if text.contains("panicked"))
            );
            assert_eq!(error.executed, Executed::No);
            let ended = timeout_after(MS, shop.panic_when_dropped()).await;
            assert!(ended.is_err());
            assert_eq!(shop.add(1, 2).await.unwrap(), 3);
        },
    );
}

#[test]
fn current_call_is_of_the_task() {
    with_shop(
        |server| server,
        async |shop, _| {
            assert!(shop.spawn_a_task().await.unwrap());
            assert!(current_call().is_none());
        },
    );
}

/// The number of handlers that begin is bounded, and so is what waits. Cancels are taken all the
/// same.
#[test]
fn a_client_that_takes_no_answers_gets_no_more_handlers() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let packets = PacketOptions::new().queue_limit(5_000).stall(10 * SECOND);
        let (mut raw, serving) = Raw::connect(server(&keeper).packets(packets), 1_000).await;
        let stubborn = raw.request("stubborn", &[]).await;
        for _ in 0..10 {
            raw.request("big", &[0x84, 7]).await;
            sleep(MS).await.unwrap();
        }
        let begun = keeper.0.begun.get();
        assert!(begun <= 1 + 7, "{begun} handlers have begun");
        // Nothing is read behind the request that waits for room, so the handler ends with the
        // connection.
        assert_eq!(keeper.under_way(), 1);
        raw.writer.send(Packet::new(CANCEL, stubborn, &[])).await.unwrap();
        let error = serving.await.unwrap().unwrap_err();
        assert!(matches!(error, PacketError::Stalled(_)), "{error}");
        assert_eq!(keeper.under_way(), 0);
        assert_eq!(keeper.0.begun.get(), begun);
    });
}

#[test]
fn cancels_are_taken_while_answers_wait() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let packets = PacketOptions::new().queue_limit(2_000).stall(10 * SECOND);
        let (mut raw, serving) = Raw::connect(server(&keeper).packets(packets), 100).await;
        let stubborn = raw.request("stubborn", &[]).await;
        for _ in 0..3 {
            raw.request("big", &[0x84, 7]).await;
        }
        sleep(MS).await.unwrap();
        assert_eq!((keeper.0.begun.get(), keeper.under_way()), (1 + 3, 1));
        raw.writer.send(Packet::new(CANCEL, stubborn, &[])).await.unwrap();
        sleep(GRACE + MS).await.unwrap();
        assert_eq!(keeper.under_way(), 0);
        serving.abort();
    });
}

#[test]
fn connections_do_not_delay_each_other() {
    with_shop(
        |server| server.packets(PacketOptions::new().queue_limit(5_000).stall(10 * SECOND)),
        async |shop, keeper| {
            shop.add(1, 2).await.unwrap();
            let stream = TcpStream::connect(ADDRESS).await.unwrap();
            let (reader, writer) =
                open(stream, PacketOptions::new().greeting([0, 16])).await.unwrap();
            let flood = spawn(async move {
                let body = [&number("big")[..], &[0xff, 0xff, 3]].concat();
                for id in 1.. {
                    if writer.send(Packet::new(REQUEST, id, &body)).await.is_err() {
                        break;
                    }
                }
            });
            for _ in 0..100 {
                let begun = now();
                shop.add(1, 2).await.unwrap();
                assert!(elapsed_since(begun) < 10 * MS, "{:?}", elapsed_since(begun));
                sleep(MS).await.unwrap();
            }
            assert!(keeper.0.begun.get() < 500, "{}", keeper.0.begun.get());
            drop(reader);
            flood.cancel().await.unwrap();
        },
    );
}

/// Notices over the limit are not taken, and hold up nothing that comes behind them.
#[test]
fn notices_over_the_limit_are_not_taken() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let (mut raw, serving) = Raw::connect(server(&keeper).calls(2), 10_000).await;
        let wait = raw.request("wait", &[0xe8, 7]).await;
        for _ in 0..5 {
            raw.send(NOTICE, "note", &[100]).await;
        }
        let add = raw.request("add", &[1, 2]).await;
        assert_eq!(raw.next().await.unwrap().2, add);
        assert_eq!(keeper.0.begun.get(), 1 + 2);
        raw.writer.send(Packet::new(CANCEL, wait, &[])).await.unwrap();
        assert_eq!(raw.next().await.unwrap().2, wait);
        sleep(100 * MS).await.unwrap();
        raw.send(NOTICE, "note", &[100]).await;
        sleep(MS).await.unwrap();
        assert_eq!(keeper.0.begun.get(), 1 + 3);
        drop(raw);
        serving.await.unwrap().unwrap();
        assert_eq!((keeper.0.begun.get(), keeper.under_way()), (1 + 3, 0));
    });
}

/// A client that takes no credit gets none without end.
#[test]
fn credit_that_nobody_takes_is_bounded() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let packets = PacketOptions::new().queue_limit(1_000).stall(100 * SECOND);
        let (here, there) = MemoryStream::pair(100);
        let serving =
            spawn(server(&keeper).items(1).packets(packets.clone()).serve_connection(there));
        let (_reader, writer) = open(here, packets.greeting([0, 16])).await.unwrap();
        let sum = [&number("sum")[..], &[0]].concat();
        writer.send(Packet::new(REQUEST, 1, &sum)).await.unwrap();
        let mut sent = 0;
        while let Ok(sending) =
            timeout_after(SECOND, writer.send(Packet::new(ITEM, 1, &[0, 7]))).await
        {
            sending.unwrap();
            sent += 1;
            assert!(sent < 10_000, "{sent} items, each for a credit");
            sleep(MS).await.unwrap();
        }
        assert!(sent > 100, "{sent} items");
        serving.abort();
    });
}

/// The time in which a request waits for room is part of its caller's time.
#[test]
fn waits_for_room_count_for_the_deadline() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let packets = PacketOptions::new().queue_limit(2_000).stall(10 * SECOND);
        let (mut raw, serving) = Raw::connect(server(&keeper).packets(packets), 100).await;
        for _ in 0..3 {
            raw.request("big", &[0x84, 7]).await;
        }
        // The answers are queued.
        sleep(MS).await.unwrap();
        let in_50_ms = [0xd0, 0x86, 3];
        let body = [&number("stubborn")[..], &in_50_ms].concat();
        raw.writer.send(Packet::new(REQUEST, 4, &body).with_flags(DEADLINE)).await.unwrap();
        sleep(60 * MS).await.unwrap();
        let begun = keeper.0.begun.get();
        while let Some((_, flags, id, _)) = raw.next().await {
            if id == 4 {
                assert_eq!(flags, FAILURE);
                break;
            }
        }
        assert_eq!(keeper.0.begun.get(), begun, "a call that is over has begun");
        serving.abort();
    });
}

/// A connection that has said nothing is not waited for, and one whose answers are on their way is.
#[test]
fn a_server_that_ends_waits_for_answers_only() {
    pikake::sim::example(async {
        let (keeper, closing) = (Keeper::default(), Closing::new());
        let (_silent, there) = MemoryStream::pair(1_000);
        let serving = spawn(server(&keeper).closing(&closing).serve_connection(there));
        let (mut raw, other) = Raw::connect(server(&keeper).closing(&closing), 10_000).await;
        raw.request("add", &[1, 2]).await;
        closing.begin();
        timeout_after(2 * SECOND, serving).await.expect("nobody said hello").unwrap().unwrap();
        sleep(5 * SECOND).await.unwrap();
        assert!(!other.is_finished());
        while raw.next().await.is_some() {}
        drop(raw);
        timeout_after(SECOND, other).await.unwrap().unwrap().unwrap();
    });
}

#[test]
#[should_panic(expected = "room for at least one connection")]
fn a_server_needs_room_for_a_connection() {
    let _ = Server::new().connections(0);
}

#[test]
fn a_half_closed_connection_gets_its_answers() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let (mut raw, serving) = Raw::connect(server(&keeper), 10_000).await;
        let id = raw.request("wait", &[100]).await;
        raw.writer.finish().await.unwrap();
        let (kind, flags, answered, body) = {
            let packet = raw.reader.next().await.unwrap().unwrap();
            (packet.kind, packet.flags, packet.id, packet.body.to_vec())
        };
        assert_eq!((kind, flags, answered, body), (ANSWER, 0, id, vec![100]));
        assert!(raw.reader.next().await.unwrap().is_none());
        serving.await.unwrap().unwrap();
    });
}

/// A client that has half-closed and then goes away is found by a write.
#[test]
fn a_half_closed_connection_that_is_lost_ends_its_handlers() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let (mut raw, serving) = Raw::connect(server(&keeper), 10_000).await;
        raw.request("stubborn", &[]).await;
        raw.writer.finish().await.unwrap();
        drop(raw.reader);
        serving.await.unwrap().unwrap_err();
        assert_eq!(keeper.under_way(), 0);
    });
}

#[test]
fn a_server_that_ends_finishes_calls() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let closing = Closing::new();
        let (mut raw, serving) = Raw::connect(server(&keeper).closing(&closing), 10_000).await;
        let first = raw.request("wait", &[100]).await;
        sleep(10 * MS).await.unwrap();
        closing.begin();
        let packet = raw.next().await.unwrap();
        assert_eq!((packet.0, packet.2), (LEAVE, first));
        // `LEAVE` says that this one is not taken: it has no other answer.
        raw.request("wait", &[1]).await;
        let packet = raw.next().await.unwrap();
        assert_eq!(packet, (ANSWER, 0, first, vec![100]));
        assert_eq!(raw.next().await, None);
        assert_eq!(keeper.0.begun.get(), 1);
        // The client has not closed.
        serving.await.unwrap().unwrap();
    });
}

/// Also if the last packet before was none of a call.
#[test]
fn an_idle_connection_ends_with_the_server() {
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let closing = Closing::new();
        let (here, there) = MemoryStream::pair(1_000);
        let serving = spawn(server(&keeper).closing(&closing).serve_connection(there));
        // A request and a heartbeat in one write.
        let add = frame(REQUEST, 1, &[&number("add")[..], &[1, 2]].concat());
        let bytes = [hello(), add, frame(31, 0, &[])].concat();
        net::Write::write_all(&here, &bytes).await.unwrap();
        sleep(10 * MS).await.unwrap();
        let begun = now();
        closing.begin();
        sleep(MS).await.unwrap();
        drop(here);
        serving.await.unwrap().unwrap();
        assert!(elapsed_since(begun) <= SECOND);
    });
}

/// A server, a call, and the deadlines of the end.
async fn end_with(patience: Patience, grace: Duration) -> (Keeper, Vec<String>, Vec<CallFailure>) {
    let keeper = Keeper::default();
    let closing = Closing::new();
    let listener = TcpListener::bind(ADDRESS).await.unwrap();
    let server = server(&keeper).grace(grace).patience(patience).closing(&closing);
    let server = spawn(server.serve(listener));
    let client = Client::builder().tcp(ADDRESS).attempts(1).build();
    let shop = ShopClient::new(client);
    let mut calls = vec![
        begin(&keeper, {
            let shop = shop.clone();
            async move { failure(shop.stubborn().await) }
        })
        .await,
        begin(&keeper, {
            let shop = shop.clone();
            async move { failure(shop.shielded().await) }
        })
        .await,
    ];
    closing.begin();
    sleep(10 * MS).await.unwrap();
    calls.push(spawn(async move { failure(shop.add(1, 2).await) }));
    let report = server.await.unwrap().unwrap();
    assert!(!report.is_clean(), "{report}");
    let mut text = Vec::new();
    let mut add = |what: &str, all: Vec<pikake::rpc::UnfinishedCall>| {
        for left in all {
            let peer: std::net::SocketAddr = left.peer.parse().unwrap();
            assert!(format!("{left}").ends_with(&format!("call {} of {peer}", left.id)));
            text.push(format!("{what} {} {}", left.method, left.id));
        }
    };
    add("interrupted", report.interrupted);
    add("dropped", report.dropped);
    let mut causes = Vec::new();
    for call in calls {
        causes.push(call.await.unwrap());
    }
    (keeper, text, causes)
}

#[test]
fn the_report_names_the_calls_that_were_left() {
    pikake::sim::example(async {
        let begun = now();
        let patience = Patience { soft: 300 * MS, hard: 5 * SECOND };
        let (keeper, left, causes) = end_with(patience, GRACE).await;
        let after = elapsed_since(begun);
        assert!(after >= 400 * MS && after < 500 * MS, "{after:?}");
        assert_eq!(keeper.under_way(), 0);
        let both = ["Shop.stubborn 1", "Shop.shielded 2"];
        let expected: Vec<_> = ["interrupted", "dropped"]
            .iter()
            .flat_map(|what| both.map(|call| format!("{what} {call}")))
            .collect();
        assert_eq!(left, expected);
        // The handlers were dropped by the grace, so the calls have answers.
        assert!(matches!(causes[0], CallFailure::Ended(_)), "{causes:?}");
        assert!(matches!(causes[1], CallFailure::Ended(_)), "{causes:?}");
        assert!(
            matches!(causes[2], CallFailure::ShuttingDown | CallFailure::Connection(_)),
            "{causes:?}"
        );
    });
}

#[test]
fn the_hard_deadline_drops_handlers() {
    pikake::sim::example(async {
        let begun = now();
        let patience = Patience { soft: 300 * MS, hard: 200 * MS };
        let (keeper, left, causes) = end_with(patience, 60 * SECOND).await;
        let after = elapsed_since(begun);
        assert!(after >= 500 * MS && after < 600 * MS, "{after:?}");
        assert_eq!(keeper.under_way(), 0);
        assert_eq!(left.len(), 4, "{left:?}");
        assert!(!matches!(causes[0], CallFailure::Interrupted(_)), "{causes:?}");
    });
}

#[test]
fn too_many_calls_in_all_are_overloaded() {
    with_shop(
        |server| server.all_calls(2),
        async |shop, keeper| {
            let other = Client::builder().tcp(ADDRESS).attempts(1).build();
            let other = ShopClient::new(other);
            let waits = [100, 200].map(|millis| {
                let shop = shop.clone();
                spawn(async move { shop.wait(millis).await })
            });
            sleep(10 * MS).await.unwrap();
            let error = other.add(1, 2).await.unwrap_err();
            assert!(matches!(error.failure, CallFailure::Overloaded), "{error}");
            assert_eq!(error.executed, Executed::No);
            sleep(100 * MS).await.unwrap();
            assert_eq!(other.add(1, 2).await.unwrap(), 3);
            for wait in waits {
                wait.await.unwrap().unwrap();
            }
            assert_eq!(keeper.0.begun.get(), 2);
        },
    );
}

#[test]
fn a_connection_has_a_limit_of_calls() {
    with_shop(
        |server| server.calls(2),
        async |shop, keeper| {
            let waits = [100, 100, 100].map(|millis| {
                let shop = shop.clone();
                spawn(async move { shop.wait(millis).await })
            });
            sleep(50 * MS).await.unwrap();
            assert_eq!(keeper.under_way(), 2);
            // Another connection has places of its own.
            let other = ShopClient::new(Client::tcp(ADDRESS));
            assert_eq!(other.add(1, 2).await.unwrap(), 3);
            for wait in waits {
                wait.await.unwrap().unwrap();
            }
        },
    );
    // A client that does not wait breaks the protocol.
    pikake::sim::example(async {
        let keeper = Keeper::default();
        let (mut raw, serving) = Raw::connect(server(&keeper).calls(1), 10_000).await;
        raw.request("stubborn", &[]).await;
        sleep(MS).await.unwrap();
        raw.request("stubborn", &[]).await;
        let error = serving.await.unwrap().unwrap_err();
        assert!(matches!(error, PacketError::Malformed(_)), "{error}");
        assert_eq!((keeper.0.begun.get(), keeper.under_way()), (1, 0));
    });
}

#[test]
fn further_connections_wait() {
    with_shop(
        |server| server.connections(1),
        async |shop, _| {
            let first = Client::tcp(ADDRESS);
            ShopClient::new(first.clone()).add(1, 2).await.unwrap();
            let waiting = timeout_after(SECOND, shop.add(1, 2)).await;
            assert!(waiting.is_err());
            first.close().await.unwrap();
            drop(first);
            assert_eq!(shop.add(1, 2).await.unwrap(), 3);
        },
    );
}

/// An interceptor keeps the handler of a call that it refuses.
#[test]
fn a_kept_handler_does_not_begin_after_its_call() {
    let kept = Rc::new(RefCell::new(None));
    let keeping = kept.clone();
    with_shop(
        move |server| {
            server.intercept(async move |_: Rc<CallInfo>, next: Handler| {
                keeping.replace(Some(next));
                Answer::refused("later")
            })
        },
        async move |shop, keeper| {
            let error = shop.wait(10).await.unwrap_err();
            assert_eq!(error.executed(), Executed::No);
            let handler = kept.take().unwrap();
            assert!(handler.await.is_error());
            assert_eq!(keeper.0.begun.get(), 0);
        },
    );
}

/// Interceptors end calls before and after the handler, and the caller learns whether the handler
/// has begun.
#[test]
fn failures_tell_whether_the_handler_began() {
    with_shop(
        |server| {
            server.intercept(async |info: Rc<CallInfo>, next: Handler| match info.metadata("act") {
                Some("refuse") => Answer::refused("before"),
                Some("panic") => resume_unwind(Box::new("expected")),
                Some("wait") => {
                    let _ = sleep(1_000 * SECOND).await;
                    Answer::refused("interrupted")
                }
                Some("refuse late") => {
                    drop(next.await);
                    Answer::refused("after")
                }
                Some("panic late") => {
                    drop(next.await);
                    resume_unwind(Box::new("expected"))
                }
                Some("give up") => {
                    let _ = timeout_after(MS, next).await;
                    Answer::refused("too slow")
                }
                _ => Answer::value(Unwritable),
            })
        },
        async |_, keeper| {
            let cases = [
                ("refuse", Executed::No),
                ("panic", Executed::No),
                ("wait", Executed::No),
                ("refuse late", Executed::Yes),
                ("panic late", Executed::Yes),
                ("give up", Executed::Yes),
                ("misanswer", Executed::No),
            ];
            for (act, executed) in cases {
                let before = keeper.0.begun.get();
                let shop = ShopClient::new(Client::tcp(ADDRESS).with_metadata("act", act));
                let call = spawn(timeout_after(SECOND, async move { shop.wait(10).await }));
                let call = call.await.unwrap();
                let Ok(result) = call else {
                    assert_eq!((act, keeper.0.begun.get()), ("wait", before));
                    continue;
                };
                let error = result.unwrap_err();
                assert_eq!(error.executed(), executed, "{act}: {error}");
                let has_begun = keeper.0.begun.get() > before;
                assert_eq!(has_begun, executed == Executed::Yes, "{act}");
            }
        },
    );
}

/// A call that the server's end cancels before its first step may be tried elsewhere.
#[test]
fn calls_that_a_server_never_began_were_not_executed() {
    const SHUTTING_DOWN: u8 = 3;
    let unbegun = Rc::new(Cell::new(0));
    for steps in 0..20 {
        let unbegun = unbegun.clone();
        pikake::sim::example(async move {
            let keeper = Keeper::default();
            let (mut raw, serving) = Raw::connect(server(&keeper), 10_000).await;
            let id = raw.request("stubborn", &[]).await;
            for _ in 0..steps {
                yield_now().await.unwrap();
            }
            serving.request_cancel("the server ends");
            while let Some((kind, flags, at, body)) = raw.next().await {
                if kind == LEAVE {
                    continue;
                }
                assert_eq!((kind, at), (ANSWER, id));
                match keeper.0.begun.get() {
                    0 => {
                        assert_eq!((flags, body[0]), (FAILURE, SHUTTING_DOWN));
                        unbegun.set(unbegun.get() + 1);
                    }
                    _ => assert_eq!(flags, FAILURE | BEGUN),
                }
            }
            drop(raw);
            let _ = serving.await.unwrap();
        });
    }
    assert!(unbegun.get() > 0);
}

#[test]
fn interceptors_run_in_order() {
    let notes = Rc::new(RefCell::new(Vec::new()));
    let around = |name: &'static str, notes: &Rc<RefCell<Vec<String>>>| {
        let notes = notes.clone();
        move |info: Rc<CallInfo>, next: Handler| {
            let notes = notes.clone();
            async move {
                notes.borrow_mut().push(format!("{name}: {} begins", info.method));
                let answer = next.await;
                notes.borrow_mut().push(format!("{name} ends"));
                answer
            }
        }
    };
    let (outer, inner) = (around("outer", &notes), around("inner", &notes));
    with_shop(
        |server| {
            let check = async |info: Rc<CallInfo>, next: Handler| match info.metadata("key") {
                Some("secret") => next.await,
                _ => Answer::refused("the key is missing"),
            };
            server.intercept(outer).intercept(check).intercept(inner)
        },
        async |shop, keeper| {
            let error = timeout_after(SECOND, shop.wait(10)).await.unwrap().unwrap_err();
            assert_eq!(error.executed(), Executed::No, "{error}");
            assert!(error.to_string().contains("refused: the key is missing"), "{error}");
            assert_eq!(keeper.0.begun.get(), 0);
            let shop = ShopClient::new(Client::tcp(ADDRESS).with_metadata("key", "secret"));
            shop.wait(10).await.unwrap();
        },
    );
    let expected = [
        "outer: Shop.wait begins",
        "outer ends",
        "outer: Shop.wait begins",
        "inner: Shop.wait begins",
        "inner ends",
        "outer ends",
    ];
    assert_eq!(*notes.borrow(), expected);
}
