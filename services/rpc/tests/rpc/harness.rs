//! Servers, clients and peers of tests.
//!
//! A [`Peer`] keeps to the packets, and otherwise does what a script says. Steps of a script stand
//! between semicolons:
//!
//! * `> request 1 add 1 2` sends a packet: its kind, flags, id and body. The name of a method
//!   stands for its number.
//! * `< answer failure 1 2` waits for the next packet, which must be this one. `...` stands for any
//!   text, and `|` between packets for either order.
//! * `5ms` lets time pass, `finish` ends the writer, `drop` the whole peer.
//! * `rest` waits for the end of the connection, `end` for one in order, and `silence` for no
//!   packet in a long time.
//! * `bare`, the first step, has a peer that only writes. `cut` ends its stream without a last
//!   packet, and ` + ` stands between packets of one write.
//!
//! [`Served`] and [`Called`] add steps for the side that is tested.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake::kernel::inspect::kernel_figures;
use pikake::net::{Closing, MemoryStream, TcpListener, Write};
use pikake::rpc::packets::{Packet, PacketError, PacketOptions, PacketReader, PacketWriter, open};
use pikake::rpc::{
    CallError, Client, ClientBuilder, NotSent, Receiver, SendError, Sender, Server, Transport,
    channel,
};
use pikake::sync::Queue;
use pikake::time::{Ticks, elapsed_since};
use pikake::{Task, sleep, spawn, timeout_after, yield_now};

use crate::raw::{frame, hello};
use crate::shop::{Keeper, ShopClient, ShopServer};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const MOMENT: Duration = Duration::from_millis(10);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const LONG: Duration = Duration::from_secs(1_000);
pub(crate) const ADDRESS: &str = "127.0.0.1:7000";
/// The grace of the servers here, unless a test sets another.
pub(crate) const GRACE: Duration = Duration::from_millis(100);
/// The items that are under way in a channel, by default.
pub(crate) const CREDIT: usize = 16;
/// The most bytes of a body that a [`Served`] server's client takes.
pub(crate) const FRAME_LIMIT: usize = 1_000;

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) async fn pause(length: Duration) {
    sleep(length).await.unwrap();
}

/// The time since a moment, in whole milliseconds: each step of a simulation takes a little.
pub(crate) fn millis_since(since: Ticks) -> u128 {
    elapsed_since(since).as_millis()
}

pub(crate) fn run<F: Future>(future: F) -> F::Output {
    pikake::sim::example(future)
}

/// Why a call failed, and whether it was executed: `Overloaded, No`.
#[track_caller]
pub(crate) fn why<T: Debug>(result: Result<T, CallError>) -> String {
    let error = result.unwrap_err();
    format!("{:?}, {:?}", error.failure, error.executed).replace('"', "")
}

/// Whether a text is this one, but for what `...` stands for.
pub(crate) fn is_like(text: &str, pattern: &str) -> bool {
    match pattern.split_once("...") {
        Some((begin, end)) => {
            text.len() >= begin.len() + end.len() && text.starts_with(begin) && text.ends_with(end)
        }
        None => text == pattern,
    }
}

#[track_caller]
pub(crate) fn assert_like(text: impl AsRef<str>, pattern: &str) {
    assert!(is_like(text.as_ref(), pattern), "{}, and not {pattern}", text.as_ref());
}

/// Sends until it fails, and returns the number of items that were sent, and why no more were.
pub(crate) async fn send_all<T: Clone>(sender: &Sender<T>, item: T) -> (usize, NotSent) {
    let mut sent = 0;
    loop {
        match sender.send(item.clone()).await {
            Ok(()) => sent += 1,
            Err(SendError { why, .. }) => return (sent, why),
        }
    }
}

pub(crate) async fn is_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

#[track_caller]
pub(crate) fn assert_no_tasks() {
    assert_eq!(kernel_figures().tasks, 1, "tasks are left");
}

/// Says which row of a table panics.
pub(crate) struct Row<'a>(pub(crate) &'a str);

impl Drop for Row<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the row that fails: {}", self.0);
        }
    }
}

/// A client builder with a server that has one connection, which ends at `stream`.
pub(crate) fn once<S>(builder: ClientBuilder, name: &str, stream: S) -> ClientBuilder
where
    S: Transport + 'static,
{
    let stream = Cell::new(Some(stream));
    builder.server(name, move || {
        let stream = stream.take().ok_or(io::ErrorKind::ConnectionRefused);
        async move { stream.map_err(Into::into) }
    })
}

/// The other end of a stream that a server of its own serves.
pub(crate) fn serve_stream(keeper: &Keeper) -> MemoryStream {
    let (here, there) = MemoryStream::pair(4096);
    spawn(Server::new().add(ShopServer::new(keeper.clone())).serve_connection(there)).detach();
    here
}

/// A client builder with a server that is never reached.
pub(crate) fn unreachable(builder: ClientBuilder, name: &str) -> ClientBuilder {
    builder.server(name, || async {
        sleep(Duration::MAX).await?;
        Ok(MemoryStream::pair(1).0)
    })
}

/// A client builder with a server that refuses connections, and their number.
pub(crate) fn away(builder: ClientBuilder, name: &str) -> (ClientBuilder, Rc<Cell<usize>>) {
    let connects = Rc::new(Cell::new(0));
    let counted = connects.clone();
    let builder = builder.server(name, move || {
        counted.set(counted.get() + 1);
        async { Err::<MemoryStream, _>(io::ErrorKind::ConnectionRefused.into()) }
    });
    (builder, connects)
}

/// Where the streams of a client arrive.
#[derive(Clone)]
pub(crate) struct Door(pub(crate) Rc<Queue<MemoryStream>>);

impl Door {
    pub(crate) fn new() -> Self {
        Self(Rc::new(Queue::unbounded()))
    }

    pub(crate) fn add(&self, builder: ClientBuilder, name: &str) -> ClientBuilder {
        let door = self.clone();
        builder.server(name, move || {
            let (here, there) = MemoryStream::pair(4096);
            let put = door.0.try_put(there).map_err(|_| io::ErrorKind::ConnectionRefused.into());
            std::future::ready(put.map(|()| here))
        })
    }

    pub(crate) async fn play(&self, greeting: impl Into<Vec<u8>>) -> Peer {
        let stream = self.0.get().await.unwrap().unwrap();
        Peer::open(stream, PacketOptions::new().greeting(greeting)).await
    }

    /// Answers calls on all streams that arrive.
    pub(crate) fn serve(&self, keeper: &Keeper, server: impl Fn() -> Server + 'static) {
        let (door, keeper) = (self.clone(), keeper.clone());
        spawn(async move {
            while let Ok(Some(stream)) = door.0.get().await {
                let server = server().add(ShopServer::new(keeper.clone()));
                spawn(server.serve_connection(stream)).detach();
            }
        })
        .detach();
    }
}

/// A client of a server in memory.
pub(crate) fn shop_by(
    builder: ClientBuilder,
    server: impl Fn() -> Server + 'static,
) -> (Client, ShopClient, Keeper) {
    let (door, keeper) = (Door::new(), Keeper::default());
    door.serve(&keeper, server);
    let client = door.add(builder, "shop").build();
    (client.clone(), ShopClient::new(client), keeper)
}

pub(crate) fn shop() -> (Client, ShopClient, Keeper) {
    shop_by(Client::builder(), Server::new)
}

/// Several servers in memory.
pub(crate) fn shops(count: usize) -> (Vec<Door>, Vec<Keeper>) {
    let keepers: Vec<_> = (0..count).map(|number| Keeper::named(&number.to_string())).collect();
    let doors = keepers.iter().map(|keeper| {
        let door = Door::new();
        door.serve(keeper, Server::new);
        door
    });
    (doors.collect(), keepers)
}

pub(crate) fn client_of(doors: &[Door], builder: ClientBuilder) -> Client {
    let add = |builder, (number, door): (usize, &Door)| door.add(builder, &number.to_string());
    doors.iter().enumerate().fold(builder, add).build()
}

pub(crate) fn server(keeper: &Keeper) -> Server {
    Server::new().add(ShopServer::new(keeper.clone())).grace(GRACE)
}

/// A server with a listener.
pub(crate) struct Listening {
    pub(crate) shop: ShopClient,
    pub(crate) keeper: Keeper,
    pub(crate) closing: Closing,
    server: Task<()>,
}

impl Listening {
    pub(crate) async fn new(change: impl FnOnce(Server) -> Server) -> Self {
        Self::of(Client::builder(), change).await
    }

    pub(crate) async fn of(builder: ClientBuilder, change: impl FnOnce(Server) -> Server) -> Self {
        let keeper = Keeper::default();
        let listener = TcpListener::bind(ADDRESS).await.unwrap();
        let closing = Closing::new();
        let server = change(server(&keeper)).closing(&closing);
        let server = spawn(async move {
            let report = server.serve(listener).await.unwrap();
            assert!(report.is_clean(), "{report}");
        });
        Self { shop: ShopClient::new(builder.tcp(ADDRESS).build()), keeper, closing, server }
    }

    /// Ends the server, which must be idle. No task is left.
    pub(crate) async fn end(self) {
        let Self { shop, keeper, closing, server } = self;
        assert_eq!(keeper.under_way(), 0);
        if !closing.has_begun() {
            server.request_cancel("the test is over");
        }
        server.await.unwrap();
        drop(shop);
        pause(LONG).await;
        assert_no_tasks();
    }
}

/// Makes a call in a task of its own, and waits until the handler runs.
pub(crate) async fn begin<T: 'static>(
    keeper: &Keeper,
    call: impl Future<Output = T> + 'static,
) -> Task<T> {
    let before = keeper.begun();
    let task = spawn(call);
    while keeper.begun() == before {
        pause(MS / 10).await;
    }
    task
}

const KINDS: [&str; 9] =
    ["request", "answer", "cancel", "item", "end", "credit", "stop", "leave", "notice"];

/// The names of flags in the kinds of packets that have them.
const FLAGS: [(u8, &str, u8); 6] = [
    (0, "deadline", 1),
    (0, "metadata", 2),
    (1, "error", 1),
    (1, "failure", 2),
    (1, "begun", 4),
    (4, "incomplete", 1),
];

pub(crate) fn method(name: &str) -> Option<[u8; 4]> {
    let mut methods = ShopClient::METHODS.iter();
    let found = methods.find(|at| at.name.strip_prefix("Shop.") == Some(name));
    found.map(|at| at.number.to_le_bytes())
}

fn show(packet: &Packet<'_>) -> String {
    let kind = KINDS.get(usize::from(packet.kind));
    let mut text = kind.map_or_else(|| format!("kind {}", packet.kind), ToString::to_string);
    for (_, name, flag) in FLAGS.iter().filter(|(kind, ..)| *kind == packet.kind) {
        if packet.flags & flag != 0 {
            text += &format!(" {name}");
        }
    }
    text += &format!(" {}", packet.id);
    let (head, rest) = packet.body.split_at(packet.body.len().min(4));
    let mut methods = ShopClient::METHODS.iter();
    let method = methods.find(|at| head == at.number.to_le_bytes());
    match (packet.kind, method) {
        (0 | 8, Some(method)) => {
            text += &method.name.replace("Shop.", " ");
            rest.iter().for_each(|byte| text += &format!(" {byte}"));
        }
        (1, _) if packet.flags & 2 != 0 => {
            let (failure, words) = packet.body.split_first().unwrap();
            text += &format!(" {failure} {}", String::from_utf8_lossy(words));
        }
        _ => packet.body.iter().for_each(|byte| text += &format!(" {byte}")),
    }
    text.trim_end().to_owned()
}

/// The kind, flags, id and body that a text describes.
pub(crate) fn packet(text: &str) -> (u8, u8, u64, Vec<u8>) {
    let (mut kind, mut flags, mut id, mut body) = (None, 0, None, Vec::new());
    for word in text.split_whitespace() {
        if let Some(at) = KINDS.iter().position(|name| *name == word && kind.is_none()) {
            kind = Some(at as u8);
        } else if let (Some(bytes), Some(_)) = (method(word), id) {
            body.extend(bytes);
        } else if let Some((.., flag)) = FLAGS.iter().find(|(_, name, _)| *name == word) {
            flags |= flag;
        } else {
            let value: u64 = word.parse().unwrap_or_else(|_| panic!("`{word}` in `{text}`"));
            match (kind, id) {
                (None, _) => kind = Some(value as u8),
                (_, None) => id = Some(value),
                _ => body.push(value as u8),
            }
        }
    }
    (kind.unwrap(), flags, id.unwrap(), body)
}

fn steps(script: &str) -> impl Iterator<Item = &str> {
    script.split(';').map(str::trim).filter(|step| !step.is_empty())
}

/// A side of a connection that the test plays.
#[derive(Default)]
pub(crate) struct Peer {
    pub(crate) reader: Option<PacketReader<MemoryStream>>,
    pub(crate) writer: Option<PacketWriter>,
    bare: Option<MemoryStream>,
}

impl Peer {
    pub(crate) async fn open(stream: MemoryStream, options: PacketOptions) -> Self {
        let (reader, writer) = open(stream, options).await.unwrap();
        Self { reader: Some(reader), writer: Some(writer), bare: None }
    }

    pub(crate) async fn send(&self, text: &str) -> Result<(), PacketError> {
        if let Some(stream) = &self.bare {
            let frames = text.split(" + ").flat_map(|text| {
                let (kind, flags, id, body) = packet(text);
                frame(kind, flags, id, &body)
            });
            stream.write_all(&frames.collect::<Vec<_>>()).await.unwrap();
            return Ok(());
        }
        let (kind, flags, id, body) = packet(text);
        let writer = self.writer.as_ref().unwrap();
        writer.send(Packet::new(kind, id, &body).with_flags(flags)).await
    }

    /// The next packet; `None` if the connection ends, or none comes for long.
    pub(crate) async fn next(&mut self) -> Option<String> {
        let reader = self.reader.as_mut().unwrap();
        let packet = timeout_after(20 * SECOND, reader.next()).await.ok()?.ok()??;
        Some(show(&packet))
    }

    /// All packets before the end of the connection.
    pub(crate) async fn rest(&mut self) -> Vec<String> {
        let (mut all, reader) = (Vec::new(), self.reader.as_mut().unwrap());
        while let Ok(Some(packet)) =
            timeout_after(LONG, reader.next()).await.expect("the connection goes on")
        {
            all.push(show(&packet));
        }
        all
    }

    pub(crate) async fn play(&mut self, script: &str) {
        for step in steps(script) {
            assert!(self.step(step).await, "no step: {step}");
        }
    }

    /// Whether there is such a step.
    async fn step(&mut self, step: &str) -> bool {
        match step.split_once(' ').unwrap_or((step, "")) {
            // A connection that has ended is what some tests wait for.
            (">", text) => drop(self.send(text).await),
            ("<", text) => {
                let mut expected: Vec<_> = text.split('|').map(str::trim).collect();
                while !expected.is_empty() {
                    let next = self.next().await.unwrap_or_default();
                    let at = expected.iter().position(|text| is_like(&next, text));
                    expected.remove(at.unwrap_or_else(|| panic!("{next}, and not {expected:?}")));
                }
            }
            ("finish", "") => self.writer.take().unwrap().finish().await.unwrap(),
            ("drop" | "cut", "") => *self = Self::default(),
            ("rest", "") => drop(self.rest().await),
            ("end", "") => assert!(self.reader.as_mut().unwrap().next().await.unwrap().is_none()),
            ("silence", "") => assert_eq!(self.next().await, None),
            (time, "") => match time.strip_suffix("ms").map(str::parse::<f64>) {
                Some(Ok(millis)) => pause(MS.mul_f64(millis)).await,
                _ => return false,
            },
            _ => return false,
        }
        true
    }
}

/// A server of one connection, whose client the test plays. Its own steps:
///
/// * `has 2` checks how many handlers are under way, and `begun 3` how many have begun;
/// * `noted …` checks what handlers noted, between commas;
/// * `closing` begins the end of the server, `abort` drops it;
/// * `done` checks that the connection has ended, and `served …` waits for that, and checks how.
pub(crate) struct Served {
    pub(crate) peer: Peer,
    pub(crate) keeper: Keeper,
    pub(crate) serving: Option<Task<Result<(), PacketError>>>,
    closing: Closing,
}

impl Served {
    pub(crate) async fn new(capacity: usize, change: impl FnOnce(Server) -> Server) -> Self {
        let options = PacketOptions::new().frame_limit(FRAME_LIMIT).greeting([0, 16]);
        Self::with(capacity, options, change).await
    }

    pub(crate) async fn with(
        capacity: usize,
        options: PacketOptions,
        change: impl FnOnce(Server) -> Server,
    ) -> Self {
        let (keeper, closing) = (Keeper::default(), Closing::new());
        let (here, there) = MemoryStream::pair(capacity);
        let server = change(server(&keeper)).closing(&closing);
        let serving = Some(spawn(server.serve_connection(there)));
        let peer = Peer::open(here, options).await;
        Self { peer, keeper, serving, closing }
    }

    /// A server whose client says hello, declares no silence, and reads nothing.
    async fn bare(change: impl FnOnce(Server) -> Server) -> Self {
        let (keeper, closing) = (Keeper::default(), Closing::new());
        let (here, there) = MemoryStream::pair(10_000);
        let server = change(server(&keeper)).closing(&closing);
        let serving = Some(spawn(server.serve_connection(there)));
        here.write_all(&hello(127, 0, &[0, 16])).await.unwrap();
        Self { peer: Peer { bare: Some(here), ..Peer::default() }, keeper, serving, closing }
    }

    pub(crate) async fn play(&mut self, script: &str) {
        for step in steps(script) {
            match step.split_once(' ').unwrap_or((step, "")) {
                ("has", count) => assert_eq!(self.keeper.under_way().to_string(), count),
                ("begun", count) => assert_eq!(self.keeper.begun().to_string(), count),
                ("noted", notes) => assert_eq!(self.keeper.ends().join(", "), notes),
                ("closing", "") => self.closing.begin(),
                ("abort", "") => {
                    self.serving.take().unwrap().abort();
                    yield_now().await.unwrap();
                    yield_now().await.unwrap();
                }
                ("done", "") => assert!(self.serving.as_ref().unwrap().is_finished()),
                ("served", expected) => {
                    let serving = timeout_after(LONG, self.serving.take().unwrap()).await;
                    let served = serving.expect("the server goes on").unwrap();
                    assert_like(format!("{served:?}").replace('"', ""), expected);
                }
                _ => assert!(self.peer.step(step).await, "no step: {step}"),
            }
        }
    }

    /// Drops the peer, and checks that nothing is left.
    pub(crate) async fn end(mut self) {
        drop(self.peer);
        if let Some(serving) = self.serving.take() {
            let served = timeout_after(LONG, serving).await.expect("the server goes on").unwrap();
            assert!(served.is_ok(), "{served:?}");
        }
        assert_eq!(self.keeper.under_way(), 0, "handlers go on");
        pause(LONG).await;
        assert_no_tasks();
        assert_eq!(Rc::strong_count(&self.keeper.0), 1, "the server and its handlers are gone");
    }
}

/// The name, the change of the server, and the script, which has `stream 100` as its first step for
/// a stream that buffers so many bytes.
pub(crate) type ServerRow<'a> = (&'a str, fn(Server) -> Server, &'a str);

pub(crate) fn serve_rows(rows: &[ServerRow<'_>]) {
    for (name, change, script) in rows {
        let _row = Row(name);
        run(async {
            let (first, rest) = script.split_once(';').unwrap();
            let (mut served, script) = match first.strip_prefix("stream ") {
                Some(bytes) => (Served::new(bytes.parse().unwrap(), change).await, rest),
                None if first == "bare" => (Served::bare(change).await, rest),
                None => (Served::new(10_000, change).await, *script),
            };
            served.play(script).await;
            served.end().await;
        });
    }
}

/// A client whose servers the test plays. Its own steps:
///
/// * `call` and `count` make a call of `sell`, or of `count` with a channel, in a task of its own;
///   `call 5` has a deadline after so many milliseconds;
/// * `accept 3 16` says hello on the next connection, with this greeting;
/// * `cancel` and `abort` end the task of the oldest call;
/// * `got …` waits for the oldest call and checks its outcome, `item …` the next item.
pub(crate) struct Called {
    pub(crate) shop: ShopClient,
    pub(crate) peers: Vec<Peer>,
    door: Door,
    calls: VecDeque<Task<String>>,
    items: Option<Receiver<u64>>,
}

fn outcome(result: Result<u64, CallError>) -> String {
    result.as_ref().map_or_else(|_| why(result.clone()), ToString::to_string)
}

impl Called {
    pub(crate) fn new(builder: ClientBuilder) -> Self {
        let door = Door::new();
        let shop = ShopClient::new(door.add(builder, "shop").build());
        Self { shop, peers: Vec::new(), door, calls: VecDeque::new(), items: None }
    }

    pub(crate) async fn play(&mut self, script: &str) {
        for step in steps(script) {
            let (sale, (sender, receiver)) = (self.shop.sell(1), channel(4));
            match step.split_once(' ').unwrap_or((step, "")) {
                ("call", "") => self.calls.push_back(spawn(async { outcome(sale.await) })),
                ("call", millis) => {
                    let sale = timeout_after(ms(millis.parse().unwrap()), sale);
                    let outcome = async { sale.await.map_or("timed out".to_owned(), outcome) };
                    self.calls.push_back(spawn(outcome));
                }
                ("count", "") => {
                    self.items = Some(receiver);
                    let count = self.shop.count(9, sender);
                    self.calls.push_back(spawn(async { outcome(count.await) }));
                }
                ("accept", greeting) => {
                    let bytes = greeting.split_whitespace().map(|byte| byte.parse().unwrap());
                    self.peers.push(self.door.play(bytes.collect::<Vec<u8>>()).await);
                }
                ("cancel", "") => self.calls[0].request_cancel("enough"),
                ("abort", "") => self.calls.pop_front().unwrap().abort(),
                ("got", expected) => {
                    let call = timeout_after(LONG, self.calls.pop_front().unwrap()).await;
                    assert_like(call.expect("the call goes on").unwrap(), expected);
                }
                ("item", expected) => {
                    let item = self.items.as_ref().unwrap().recv().await;
                    assert_like(format!("{item:?}"), expected);
                }
                _ => assert!(self.peers.last_mut().unwrap().step(step).await, "no step: {step}"),
            }
        }
    }

    /// Drops the client and its peers, and checks that nothing is left.
    pub(crate) async fn end(self) {
        drop(self);
        pause(LONG).await;
        assert_no_tasks();
    }
}

/// Plays rows against clients: the name, and the script.
pub(crate) fn call_rows(builder: fn() -> ClientBuilder, rows: &[(&str, &str)]) {
    for (name, script) in rows {
        let _row = Row(name);
        run(async {
            let mut called = Called::new(builder());
            called.play(script).await;
            called.end().await;
        });
    }
}
