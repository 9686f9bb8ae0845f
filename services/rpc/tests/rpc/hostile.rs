//! Both sides of calls against peers that keep to the packets, and not to the protocol of calls.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake::kernel::inspect::kernel_figures;
use pikake::net::MemoryStream;
use pikake::rpc::packets::{Packet, PacketError, PacketOptions, PacketReader, PacketWriter, open};
use pikake::rpc::{CallError, CallFailure, Client, Executed, Receiver, Sender, Server};
use pikake::{Interrupted, sleep, spawn, timeout_after};

use crate::raw::number;

const LONG: Duration = Duration::from_secs(1_000);

const REQUEST: u8 = 0;
const ANSWER: u8 = 1;
const CANCEL: u8 = 2;
const ITEM: u8 = 3;
const END: u8 = 4;
const CREDIT: u8 = 5;
const STOP: u8 = 6;
const LEAVE: u8 = 7;
const NOTICE: u8 = 8;

const FAILURE: u8 = 2;
const BEGUN: u8 = 4;

#[pikake::service]
trait Victim {
    async fn add(&self, left: u64) -> u64;
    async fn wait(&self);
    async fn stubborn(&self);
    async fn sum(&self, numbers: Receiver<u64>) -> u64;
    async fn count(&self, numbers: Sender<u64>) -> u64;
    async fn hold(&self, blocks: Sender<Vec<u8>>) -> bool;
    #[notice]
    async fn note(&self);
}

#[derive(Default)]
struct Seen {
    under_way: Cell<usize>,
    most: Cell<usize>,
    interruptions: RefCell<Vec<String>>,
}

#[derive(Clone, Default)]
struct Calls(Rc<Seen>);

struct Counted(Rc<Seen>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

impl Calls {
    fn begun(&self) -> Counted {
        self.0.under_way.set(self.0.under_way.get() + 1);
        self.0.most.set(self.0.most.get().max(self.0.under_way.get()));
        Counted(self.0.clone())
    }

    fn note(&self, slept: Result<(), Interrupted>) {
        if let Err(interrupted) = slept {
            self.0.interruptions.borrow_mut().push(interrupted.to_string());
        }
    }
}

impl Victim for Calls {
    async fn add(&self, left: u64) -> u64 {
        left + 1
    }

    async fn wait(&self) {
        let _begun = self.begun();
        self.note(sleep(LONG).await);
    }

    async fn stubborn(&self) {
        let _begun = self.begun();
        loop {
            self.note(sleep(LONG).await);
        }
    }

    async fn sum(&self, numbers: Receiver<u64>) -> u64 {
        let _begun = self.begun();
        let mut sum = 0;
        while let Ok(Some(number)) = numbers.next().await {
            sum += number;
        }
        sum
    }

    async fn count(&self, numbers: Sender<u64>) -> u64 {
        let _begun = self.begun();
        let mut sent = 0;
        while numbers.send(sent).await.is_ok() {
            sent += 1;
        }
        sent
    }

    /// Begins to send a second block, and lets the send be.
    async fn hold(&self, blocks: Sender<Vec<u8>>) -> bool {
        let _begun = self.begun();
        blocks.send(vec![0; 100_000]).await.unwrap();
        let mut second = pin!(blocks.send(vec![0; 100_000]));
        let is_waiting = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await;
        self.note(sleep(LONG).await);
        is_waiting
    }

    async fn note(&self) {
        let _begun = self.begun();
        self.note(sleep(LONG).await);
    }
}

/// The packets of an attacker.
struct Raw {
    packets: PacketReader<MemoryStream>,
    sender: PacketWriter,
}

impl Raw {
    async fn send(&self, kind: u8, id: u64, body: &[u8]) {
        // A connection that has ended is what some tests wait for.
        let _ = self.sender.send(Packet::new(kind, id, body)).await;
    }

    async fn request(&self, kind: u8, id: u64, method: &str, arguments: &[u8]) {
        let method = VictimClient::METHODS.iter().find(|known| known.name.ends_with(method));
        let body = [&method.unwrap().number.to_le_bytes(), arguments].concat();
        self.send(kind, id, &body).await;
    }

    /// The next packet: kind, flags, id and body.
    async fn next(&mut self) -> Option<(u8, u8, u64, Vec<u8>)> {
        let packet = timeout_after(LONG, self.packets.next()).await.expect("a packet");
        let packet = packet.ok()??;
        Some((packet.kind, packet.flags, packet.id, packet.body.to_vec()))
    }

    /// Waits for the end of the connection, and returns the packets before it.
    async fn rest(mut self) -> Vec<(u8, u8, u64, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(packet) = self.next().await {
            all.push(packet);
        }
        all
    }
}

/// Runs an attack on a server, and returns what ended the connection. Nothing is left, and a second
/// connection works.
fn against_server<F: Future<Output = ()> + 'static>(
    attack: impl FnOnce(Raw, Calls) -> F + 'static,
) -> Result<(), PacketError> {
    pikake::sim::example(async move {
        let calls = Calls::default();
        let (here, there) = MemoryStream::pair(4_096);
        let server = Server::new().add(VictimServer::new(calls.clone())).calls(3).items(2);
        let serving = spawn(server.serve_connection(there));
        let options = PacketOptions::new().greeting([0, 4]);
        let (packets, sender) = open(here, options).await.unwrap();
        assert_eq!(packets.greeting(), [3, 2]);
        attack(Raw { packets, sender }, calls.clone()).await;
        let served = timeout_after(LONG, serving).await.expect("the server goes on").unwrap();
        assert_eq!(calls.0.under_way.get(), 0, "handlers go on");
        sleep(Duration::from_secs(60)).await.unwrap();
        assert_eq!(kernel_figures().tasks, 1, "tasks are left");
        served
    })
}

/// Checks that an attack on a server ends its connection with these words.
#[track_caller]
fn refused(expected: &str, attack: impl AsyncFnOnce(&Raw) + 'static) {
    let served = against_server(async move |raw: Raw, _| {
        attack(&raw).await;
        raw.rest().await;
    });
    let text = served.unwrap_err().to_string();
    assert!(text.contains(expected), "{text}");
}

#[test]
fn packets_that_no_client_sends_end_the_connection() {
    let add = [&VictimClient::METHODS[0].number.to_le_bytes()[..], &[1]].concat();
    refused("used before", async |raw| {
        raw.request(REQUEST, 5, ".add", &[1]).await;
        raw.request(REQUEST, 5, ".add", &[1]).await;
    });
    refused("used before", async |raw| {
        raw.request(REQUEST, 5, ".wait", &[]).await;
        raw.request(REQUEST, 4, ".add", &[1]).await;
    });
    refused("used before", async |raw| raw.request(REQUEST, 0, ".add", &[1]).await);
    refused("used before", async |raw| {
        raw.request(NOTICE, u64::MAX, ".note", &[]).await;
        raw.request(NOTICE, u64::MAX, ".note", &[]).await;
    });
    refused("never made", async |raw| raw.send(ANSWER, 7, &[]).await);
    for kind in [CANCEL, ITEM, END, CREDIT, STOP, LEAVE, 9, 29] {
        refused("never made", async move |raw| raw.send(kind, 7, &[0, 0]).await);
    }
    for length in 0..4 {
        let cut = add[..length].to_vec();
        refused("before its arguments", async move |raw| raw.send(REQUEST, 1, &cut).await);
    }
    let head = add[..4].to_vec();
    for flags in [1, 2, 3] {
        let head = head.clone();
        refused("ends within", async move |raw| {
            let _ = raw.sender.send(Packet::new(REQUEST, 1, &head).with_flags(flags)).await;
        });
    }
    refused("too much metadata", async move |raw| {
        let body = [head, number(65)].concat();
        let _ = raw.sender.send(Packet::new(REQUEST, 1, &body).with_flags(2)).await;
    });
    refused("more calls than", async |raw| {
        for id in 1..=4 {
            raw.request(REQUEST, id, ".wait", &[]).await;
        }
    });
    for kind in [ANSWER, LEAVE, 9, 29] {
        refused("unknown kind", async move |raw| {
            raw.request(REQUEST, 1, ".sum", &[0]).await;
            raw.send(kind, 1, &[0]).await;
        });
    }
}

#[test]
fn channels_have_rules() {
    let upload = |kind: u8, body: Vec<u8>| {
        async move |raw: &Raw| {
            raw.request(REQUEST, 1, ".sum", &[0]).await;
            raw.send(kind, 1, &body).await;
        }
    };
    let download = |kind: u8, body: Vec<u8>| {
        async move |raw: &Raw| {
            raw.request(REQUEST, 1, ".count", &[0]).await;
            raw.send(kind, 1, &body).await;
        }
    };
    refused("ends within a number", upload(ITEM, vec![]));
    refused("cannot be", upload(ITEM, vec![64, 1]));
    refused("cannot be", upload(END, number(u64::MAX)));
    refused("against the channel's direction", upload(CREDIT, vec![0, 1]));
    refused("against the channel's direction", upload(STOP, vec![0]));
    refused("against the channel's direction", download(ITEM, vec![0, 1]));
    refused("against the channel's direction", download(END, vec![0]));
    refused("ends within a number", download(CREDIT, vec![0]));
    let giant = [vec![0], number(u64::MAX)].concat();
    refused("more credit than", download(CREDIT, giant));
    refused("without credit", async |raw| {
        // The handler does not run in between.
        raw.request(REQUEST, 1, ".sum", &[0]).await;
        for _ in 0..3 {
            raw.send(ITEM, 1, &[0, 1]).await;
        }
    });
    refused("after the last one", async |raw| {
        raw.request(REQUEST, 1, ".sum", &[0]).await;
        raw.send(END, 1, &[0]).await;
        raw.send(ITEM, 1, &[0, 1]).await;
    });
    refused("a second end", async |raw| {
        raw.request(REQUEST, 1, ".sum", &[0]).await;
        raw.send(END, 1, &[0]).await;
        raw.send(END, 1, &[0]).await;
    });
}

#[test]
fn greetings_that_no_client_sends_end_the_connection() {
    for greeting in [&[][..], &[2, 1], &[0], &[0, 0x80], &[0, 0x80, 0]] {
        pikake::sim::example(async move {
            let (here, there) = MemoryStream::pair(4_096);
            let server = Server::new().add(VictimServer::new(Calls::default()));
            let serving = spawn(server.serve_connection(there));
            let opened = open(here, PacketOptions::new().greeting(greeting)).await;
            let served = timeout_after(LONG, serving).await.unwrap().unwrap();
            assert!(matches!(served, Err(PacketError::Malformed(_))), "{served:?}");
            drop(opened);
            sleep(LONG).await.unwrap();
            assert_eq!(kernel_figures().tasks, 1, "tasks are left");
        });
    }
}

/// What a client may do, though it makes no sense, harms nothing.
#[test]
fn late_and_useless_packets_are_ignored() {
    let served = against_server(async |mut raw, calls| {
        raw.request(REQUEST, 1, ".add", &[6]).await;
        assert_eq!(raw.next().await.unwrap(), (ANSWER, 0, 1, vec![7]));
        for kind in [CANCEL, ITEM, END, CREDIT, STOP] {
            raw.send(kind, 1, &[0, 1]).await;
        }
        // Unknown methods, arguments that are none, and a channel that the method has not.
        raw.send(REQUEST, 2, &[1, 2, 3, 4]).await;
        raw.request(REQUEST, 3, ".add", &[]).await;
        raw.request(REQUEST, 4, ".sum", &[64]).await;
        let failures: Vec<_> = [raw.next().await, raw.next().await, raw.next().await].into();
        for (failure, id) in failures.into_iter().zip(2..) {
            let (kind, flags, answered, _) = failure.unwrap();
            assert_eq!((kind, flags, answered), (ANSWER, FAILURE, id));
        }
        raw.request(REQUEST, 5, ".sum", &[0]).await;
        for _ in 0..10 {
            raw.send(ITEM, 5, &[7, 1]).await;
        }
        raw.send(ITEM, 5, &[0, 9]).await;
        assert_eq!(raw.next().await.unwrap(), (CREDIT, 0, 5, vec![0, 1]));
        raw.send(END, 5, &[0]).await;
        assert_eq!(raw.next().await.unwrap(), (ANSWER, 0, 5, vec![9]));
        // Zero credit, and an end of the channel twice.
        raw.request(REQUEST, 6, ".count", &[0]).await;
        raw.send(CREDIT, 6, &[0, 0]).await;
        for _ in 0..4 {
            assert_eq!(raw.next().await.unwrap().0, ITEM);
        }
        raw.send(STOP, 6, &[0]).await;
        raw.send(STOP, 6, &[0]).await;
        raw.send(CREDIT, 6, &[0, 5]).await;
        assert_eq!(raw.next().await.unwrap(), (ANSWER, 0, 6, vec![4]));
        assert_eq!(calls.0.under_way.get(), 0);
    });
    assert!(served.is_ok(), "{served:?}");
}

/// A cancel that is repeated all the time does not prolong the grace.
#[test]
fn repeated_cancels_do_not_prolong_the_grace() {
    let served = against_server(async |mut raw, calls| {
        raw.request(REQUEST, 1, ".stubborn", &[]).await;
        // The handler begins.
        sleep(Duration::from_millis(1)).await.unwrap();
        for _ in 0..6 {
            raw.send(CANCEL, 1, &[]).await;
            sleep(Duration::from_secs(1)).await.unwrap();
        }
        assert_eq!(calls.0.under_way.get(), 0, "the handler goes on");
        let (kind, flags, id, _) = raw.next().await.unwrap();
        assert_eq!((kind, flags, id), (ANSWER, FAILURE | BEGUN, 1));
    });
    assert!(served.is_ok(), "{served:?}");
}

/// A handler does not wait for items or credit of a client that has said that it sends nothing
/// more.
#[test]
fn a_finished_client_sends_no_items() {
    let served = against_server(async |raw: Raw, _| {
        raw.request(REQUEST, 1, ".sum", &[0]).await;
        raw.request(REQUEST, 2, ".count", &[0]).await;
        raw.send(ITEM, 1, &[0, 5]).await;
        sleep(Duration::from_millis(1)).await.unwrap();
        let Raw { mut packets, sender } = raw;
        drop(sender);
        let mut answers = Vec::new();
        while let Ok(Ok(Some(packet))) = timeout_after(LONG, packets.next()).await {
            if packet.kind == ANSWER {
                answers.push((packet.id, packet.body.to_vec()));
            }
        }
        answers.sort();
        assert_eq!(answers, [(1, vec![5]), (2, vec![4])]);
    });
    assert!(served.is_ok(), "{served:?}");
}

/// Notices have no limit of the protocol, so the server stops to read.
#[test]
fn notices_have_the_limit_of_calls() {
    let served = against_server(async |raw, calls| {
        for id in 1..=100 {
            raw.request(NOTICE, id, ".note", &[]).await;
        }
        sleep(Duration::from_secs(1)).await.unwrap();
        assert_eq!(calls.0.most.get(), 3);
    });
    assert!(served.is_ok() || matches!(served, Err(PacketError::Io(_))), "{served:?}");
}

/// A client that makes calls and takes no answers holds a bounded queue, and is let go.
#[test]
fn a_client_that_takes_no_answers_is_let_go() {
    pikake::sim::example(async {
        let calls = Calls::default();
        let (here, there) = MemoryStream::pair(4_096);
        let packets = PacketOptions::new().queue_limit(1_000);
        let server = Server::new().add(VictimServer::new(calls.clone())).packets(packets);
        let serving = spawn(server.serve_connection(there));
        let (packets, sender) =
            open(here, PacketOptions::new().greeting([0, 4]).stall(LONG)).await.unwrap();
        let raw = Raw { packets, sender };
        for id in 1..=3_000 {
            let sent =
                timeout_after(Duration::from_secs(60), raw.request(REQUEST, id, ".add", &[1]));
            if sent.await.is_err() {
                break;
            }
        }
        let served = timeout_after(LONG, serving).await.expect("the server goes on").unwrap();
        assert!(matches!(served, Err(PacketError::Stalled(_))), "{served:?}");
        drop(raw);
        sleep(2 * LONG).await.unwrap();
        assert_eq!(kernel_figures().tasks, 1, "tasks are left");
    });
}

/// A handler has begun to send, and nobody polls the send.
#[test]
fn an_unpolled_send_does_not_stop_the_server() {
    pikake::sim::example(async {
        let calls = Calls::default();
        let (here, there) = MemoryStream::pair(4_096);
        let packets = PacketOptions::new().queue_limit(1_000).stall(2 * LONG);
        let server = Server::new().add(VictimServer::new(calls.clone())).packets(packets);
        let serving = spawn(server.serve_connection(there));
        let (packets, sender) = open(here, PacketOptions::new().greeting([0, 4])).await.unwrap();
        let mut raw = Raw { packets, sender };
        raw.request(REQUEST, 1, ".hold", &[0]).await;
        sleep(Duration::from_secs(1)).await.unwrap();
        raw.request(REQUEST, 2, ".add", &[1]).await;
        assert_eq!(raw.next().await.unwrap().0, ITEM);
        let answer = timeout_after(Duration::from_secs(60), raw.next()).await.expect("an answer");
        assert_eq!(answer.map(|(kind, _, id, _)| (kind, id)), Some((ANSWER, 2)));
        raw.send(CANCEL, 1, &[]).await;
        while let Some((kind, _, id, body)) = raw.next().await {
            if kind == ANSWER {
                assert_eq!((id, &body[..]), (1, &[1][..]));
                break;
            }
        }
        drop(raw);
        let _ = timeout_after(LONG, serving).await.expect("the server goes on");
    });
}

/// Calls wait for a place, and nobody polls some of them.
#[test]
fn a_lost_connection_ends_calls_behind_unpolled_ones() {
    pikake::sim::example(async {
        let (here, there) = MemoryStream::pair(4_096);
        let stream = Cell::new(Some(there));
        let client = Client::builder().attempts(1).server("attacker", move || {
            let stream = stream.take();
            async move { stream.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) }
        });
        let victim = VictimClient::new(client.build());
        let opened = spawn(open(here, PacketOptions::new().greeting([1, 2])));
        let under_way = spawn(victim.add(1));
        let mut raw = opened.await.unwrap().unwrap();
        assert_eq!(raw.0.next().await.unwrap().unwrap().kind, REQUEST);
        let mut unpolled =
            [Box::pin(victim.add(2)), Box::pin(victim.add(3)), Box::pin(victim.add(4))];
        for call in &mut unpolled {
            assert!(poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await);
        }
        let last = spawn(victim.add(5));
        sleep(Duration::from_secs(1)).await.unwrap();
        drop(raw);
        assert!(under_way.await.unwrap().is_err());
        let error = timeout_after(LONG, last).await.expect("the failure").unwrap().unwrap_err();
        assert!(matches!(error.failure, CallFailure::Connection(_)), "{error}");
        assert_eq!(error.executed, Executed::No);
    });
}

/// Runs an attack on a client that waits for `add`, and returns the call's error.
fn against_client<F: Future<Output = ()> + 'static>(
    greeting: &'static [u8],
    attack: impl FnOnce(Raw) -> F + 'static,
) -> Result<u64, CallError> {
    pikake::sim::example(async move {
        let (here, there) = MemoryStream::pair(4_096);
        let stream = Cell::new(Some(there));
        let client = Client::builder().attempts(1).server("attacker", move || {
            let stream = stream.take();
            async move { stream.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) }
        });
        let victim = VictimClient::new(client.build());
        let other = victim.clone();
        let called = spawn(async move { other.add(1).await });
        let attacking = spawn(async move {
            let options = PacketOptions::new().greeting(greeting);
            if let Ok((packets, sender)) = open(here, options).await {
                attack(Raw { packets, sender }).await;
            }
        });
        let answer = timeout_after(LONG, called).await.expect("the call goes on").unwrap();
        drop(victim);
        timeout_after(LONG, attacking).await.expect("the connection goes on").unwrap();
        sleep(LONG).await.unwrap();
        assert_eq!(kernel_figures().tasks, 1, "tasks are left");
        answer
    })
}

#[test]
fn packets_that_no_server_sends_end_the_connection() {
    let check = |expected: &'static str, kind: u8, id: u64, body: &'static [u8]| {
        let answer = against_client(&[3, 2], async move |mut raw| {
            assert_eq!(raw.next().await.unwrap().0, REQUEST);
            raw.send(kind, id, body).await;
            raw.rest().await;
        });
        let error = answer.unwrap_err();
        assert!(
            matches!(error.failure, CallFailure::Connection(PacketError::Malformed(_))),
            "{error}"
        );
        assert_eq!(error.executed, Executed::Maybe);
        assert!(error.to_string().contains(expected), "{error}");
    };
    for id in [0, 2, u64::MAX] {
        check("not under way", ANSWER, id, &[1]);
        check("not under way", ITEM, id, &[0, 1]);
    }
    for kind in [REQUEST, CANCEL, NOTICE, 9, 29] {
        check("unknown kind", kind, 1, &[0, 0]);
    }
    check("cannot be", ITEM, 1, &[64]);
    check("ends within a number", END, 1, &[]);
}

#[test]
fn a_second_answer_ends_the_connection() {
    let answer = against_client(&[3, 2], async |raw| {
        raw.send(ANSWER, 1, &[5]).await;
        raw.send(ANSWER, 1, &[5]).await;
        raw.rest().await;
    });
    assert_eq!(answer.unwrap(), 5);
}

#[test]
fn answers_that_are_none_are_errors() {
    let answered = |flags: u8, body: &'static [u8]| {
        against_client(&[3, 2], async move |raw| {
            let _ = raw.sender.send(Packet::new(ANSWER, 1, body).with_flags(flags)).await;
            raw.rest().await;
        })
    };
    for (flags, body) in [(0, &[][..]), (0, &[0x80]), (0, &[1, 1]), (1, &[1]), (4, &[0x80])] {
        let error = answered(flags, body).unwrap_err();
        assert!(matches!(error.failure, CallFailure::Answer(_)), "{error}");
        assert_eq!(error.executed, Executed::Yes);
    }
    for body in [&[][..], &[200], &[6, 0xff, 0xfe]] {
        for (flags, executed) in [(FAILURE, Executed::No), (FAILURE | BEGUN, Executed::Yes)] {
            let error = answered(flags, body).unwrap_err();
            assert!(matches!(error.failure, CallFailure::Ended(_)), "{error}");
            assert_eq!(error.executed, executed);
        }
    }
}

#[test]
fn greetings_that_no_server_sends_are_errors() {
    for greeting in [&[][..], &[0x80], &[3], &[3, 0x80], &[0, 2]] {
        let error = against_client(greeting, async |raw| drop(raw.rest().await)).unwrap_err();
        assert!(
            matches!(error.failure, CallFailure::Connection(PacketError::Malformed(_))),
            "{error}"
        );
        assert_eq!(error.executed, Executed::No);
    }
    // Giant limits, and bytes of a later version.
    let giant = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let giants: &'static [u8] = Box::leak([&giant[..], giant, b"later"].concat().into());
    let answer = against_client(giants, async |mut raw| {
        assert_eq!(raw.next().await.unwrap().0, REQUEST);
        raw.send(ANSWER, 1, &[5]).await;
        raw.rest().await;
    });
    assert_eq!(answer.unwrap(), 5);
}

#[test]
fn a_server_that_leaves_again_and_again_harms_nothing() {
    let answer = against_client(&[3, 2], async |mut raw| {
        assert_eq!(raw.next().await.unwrap().0, REQUEST);
        for id in [u64::MAX, 5, 1, 1] {
            raw.send(LEAVE, id, &[]).await;
        }
        raw.send(ANSWER, 1, &[5]).await;
        raw.rest().await;
    });
    assert_eq!(answer.unwrap(), 5);
    let error = against_client(&[3, 2], async |mut raw| {
        assert_eq!(raw.next().await.unwrap().0, REQUEST);
        raw.send(LEAVE, 0, &[]).await;
        raw.rest().await;
    });
    let error = error.unwrap_err();
    assert!(matches!(error.failure, CallFailure::ShuttingDown), "{error}");
    assert_eq!(error.executed, Executed::No);
}

/// A server that says that it takes calls, and answers none.
#[test]
fn a_server_that_is_silent_is_given_up() {
    let error = against_client(&[3, 2], async |raw| {
        sleep(Duration::from_secs(200)).await.unwrap();
        drop(raw);
    });
    // The attacker's packets send heartbeats, so only the end of the stream ends the call.
    assert!(matches!(error.unwrap_err().failure, CallFailure::Connection(_)));
}
