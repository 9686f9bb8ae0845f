//! Arbitrary and nearly correct bytes, against both sides of a connection, in virtual time.
//!
//! `PIKAKE_HOSTILE_SECONDS` has each test go on for so long.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake::kernel::inspect::kernel_figures;
use pikake::net::{MemoryStream, Read, Write};
use pikake::rpc::packets::PacketOptions;
use pikake::rpc::{Client, Codec, Receiver, Sender, Server, channel};
use pikake::{sleep, spawn, timeout_after};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

use crate::raw::{frame, hello, number};

#[pikake::service]
trait Target {
    async fn add(&self, left: u64, text: Option<String>) -> Result<u64, String>;
    async fn wait(&self);
    async fn sum(&self, numbers: Receiver<u64>) -> u64;
    async fn count(&self, to: u64, numbers: Sender<u64>) -> u64;
    async fn exchange(&self, ends: (Receiver<String>, Option<Sender<String>>)) -> u64;
    #[notice]
    async fn note(&self, text: String);
    async fn panic(&self, numbers: Sender<u64>);
}

#[derive(Clone, Default)]
struct Bench(Rc<Cell<usize>>);

struct Counted(Rc<Cell<usize>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Bench {
    fn counted(&self) -> Counted {
        self.0.set(self.0.get() + 1);
        Counted(self.0.clone())
    }
}

impl Target for Bench {
    async fn add(&self, left: u64, text: Option<String>) -> Result<u64, String> {
        left.checked_add(1).ok_or_else(|| text.unwrap_or_default())
    }

    async fn wait(&self) {
        let _counted = self.counted();
        let _ = sleep(Duration::from_secs(20)).await;
    }

    async fn sum(&self, numbers: Receiver<u64>) -> u64 {
        let _counted = self.counted();
        let mut sum = 0u64;
        while let Ok(Some(number)) = numbers.recv().await {
            sum = sum.wrapping_add(number);
        }
        sum
    }

    async fn count(&self, to: u64, numbers: Sender<u64>) -> u64 {
        let _counted = self.counted();
        for number in 0..to.min(100) {
            if numbers.send(number).await.is_err() {
                return number;
            }
        }
        to
    }

    async fn exchange(
        &self,
        (receiver, sender): (Receiver<String>, Option<Sender<String>>),
    ) -> u64 {
        let _counted = self.counted();
        let mut count = 0;
        while let Ok(Some(text)) = receiver.recv().await {
            count += 1;
            if let Some(sender) = &sender {
                if sender.send(text).await.is_err() {
                    break;
                }
            }
        }
        count
    }

    async fn note(&self, _: String) {
        let _counted = self.counted();
        let _ = sleep(Duration::from_secs(1)).await;
    }

    async fn panic(&self, _numbers: Sender<u64>) {
        let _counted = self.counted();
        std::panic::resume_unwind(Box::new("expected"));
    }
}

/// What the attacker does next.
#[derive(Clone, Debug)]
enum Move {
    Send(Vec<u8>),
    Pause(u64),
    /// Reads what there is.
    Read,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Drop,
    HalfClose,
    Silence,
}

/// Mostly small numbers, for which there is a call or a channel.
fn some_number() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..4u64, 2 => 0..70u64, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

fn some_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![3 => 0..4u8, 1 => any::<u8>()], 0..24)
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let method = (0..TargetClient::METHODS.len(), 0..40u8).prop_map(|(index, luck)| match luck {
        0 => 77,
        _ => TargetClient::METHODS[index].number,
    });
    let head = prop_oneof![
        4 => Just((0, Vec::new())),
        2 => some_number().prop_map(|left| (1, number(left))),
        1 => Just((2, [number(1), number(1), b"a".to_vec(), number(1), b"b".to_vec()].concat())),
        1 => some_bytes().prop_map(|bytes| (3, bytes)),
    ];
    let arguments = prop_oneof![
        3 => prop::collection::vec(0..3u8, 0..5),
        1 => Just(b"[0]".to_vec()),
        1 => Just(b"[3, 0]".to_vec()),
        1 => Just(b"[[0, 1]]".to_vec()),
        2 => some_bytes(),
    ];
    let kind = prop_oneof![4 => Just(0u8), 1 => Just(8u8)];
    (kind, 1..12u64, method, head, arguments).prop_map(
        |(kind, id, method, (flags, head), arguments)| {
            let body = [method.to_le_bytes().to_vec(), head, arguments].concat();
            frame(kind, flags, id, &body)
        },
    )
}

fn channel_packet() -> impl Strategy<Value = Vec<u8>> {
    let rest = prop_oneof![some_number().prop_map(number), some_bytes()];
    (3..=6u8, some_number(), some_number(), rest)
        .prop_map(|(kind, id, index, rest)| frame(kind, 0, id, &[number(index), rest].concat()))
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    (0..32u8, 0..8u8, some_number(), some_bytes())
        .prop_map(|(kind, flags, id, body)| frame(kind, flags, id, &body))
}

fn answer() -> impl Strategy<Value = Vec<u8>> {
    (prop_oneof![3 => Just(0u8), 1 => 0..8u8], some_number(), some_bytes())
        .prop_map(|(flags, id, body)| frame(1, flags, id, &body))
}

/// A frame that says another length than it has, or ends early.
fn broken() -> impl Strategy<Value = Vec<u8>> {
    let lying = (some_number(), any_frame()).prop_map(|(length, frame)| {
        let mut bytes = number(length);
        bytes.extend(&frame[1.min(frame.len())..]);
        bytes
    });
    let cut = (any_frame(), any::<Index>())
        .prop_map(|(frame, at)| frame[..at.index(frame.len())].to_vec());
    prop_oneof![lying, cut, prop::collection::vec(any::<u8>(), 0..2_000)]
}

fn moves(
    frames: impl Strategy<Value = Vec<u8>> + 'static,
    greeting: impl Strategy<Value = Vec<u8>> + 'static,
) -> impl Strategy<Value = (Vec<Move>, End)> {
    let frames = prop_oneof![
        12 => frames,
        5 => channel_packet(),
        2 => any_frame(),
        1 => Just(frame(31, 0, 0, b"")),
        1 => broken(),
    ];
    let one = prop_oneof![
        8 => frames.prop_map(Move::Send),
        1 => prop_oneof![Just(0), Just(1), Just(50), Just(8_000), Just(40_000)].prop_map(Move::Pause),
        1 => Just(Move::Read),
    ];
    let hello = prop_oneof![
        20 => (prop_oneof![Just(1 << 20), some_number()], prop_oneof![Just(30_000), some_number()], greeting)
            .prop_map(|(limit, silence, greeting)| hello(limit, silence, &greeting)),
        1 => prop::collection::vec(any::<u8>(), 0..50),
        1 => Just(b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        1 => Just(b"PKRP\x02\x09".to_vec()),
        1 => Just(b"PKR".to_vec()),
    ];
    let end = prop_oneof![Just(End::Drop), Just(End::HalfClose), Just(End::Silence)];
    (hello, prop::collection::vec(one, 0..24), end).prop_map(|(hello, mut moves, end)| {
        moves.insert(0, Move::Send(hello));
        (moves, end)
    })
}

/// Does what the attacker does, until the end or an error of the stream.
async fn attack(stream: MemoryStream, moves: Vec<Move>, end: End, piece: usize) {
    let mut buffer = vec![0; 4_096];
    for one in moves {
        match one {
            Move::Send(bytes) => {
                for part in bytes.chunks(piece) {
                    // A peer that takes nothing: the attacker reads, or goes on.
                    let written = timeout_after(Duration::from_secs(1), stream.write_all(part));
                    if !matches!(written.await, Ok(Ok(()))) {
                        break;
                    }
                }
            }
            Move::Pause(millis) => drop(sleep(Duration::from_millis(millis)).await),
            Move::Read => {
                let _ = timeout_after(Duration::from_millis(1), stream.read(&mut buffer)).await;
            }
        }
    }
    match end {
        End::Drop => {}
        End::HalfClose => {
            let _ = stream.finish().await;
            let _ = sleep(Duration::from_secs(3_000)).await;
        }
        End::Silence => drop(sleep(Duration::from_secs(3_000)).await),
    }
}

/// Longer than anything takes that has limits of 30 s.
const LONG: Duration = Duration::from_secs(1_000);

fn attack_server(moves: Vec<Move>, end: End, piece: usize, room: usize) {
    pikake::sim::example(async move {
        let bench = Bench::default();
        let (here, there) = MemoryStream::pair(room);
        let server = Server::new()
            .add(TargetServer::new(bench.clone()))
            .calls(4)
            .all_calls(6)
            .items(3)
            .packets(PacketOptions::new().frame_limit(1_000).queue_limit(2_000));
        let server = spawn(server.serve_connection(there));
        let attacker = spawn(attack(here, moves, end, piece));
        let served = timeout_after(LONG, server).await;
        assert!(served.is_ok(), "the server goes on");
        assert_eq!(bench.0.get(), 0, "handlers go on");
        attacker.abort();
        // Heartbeats, writes and stalls have ended as well.
        sleep(LONG).await.unwrap();
        assert_eq!(kernel_figures().tasks, 1, "tasks are left");
    });
}

async fn use_client(target: TargetClient) {
    let mut tasks = Vec::new();
    let other = target.clone();
    tasks.push(spawn(async move { drop(other.add(7, None).await) }));
    let other = target.clone();
    tasks.push(spawn(async move {
        let _ = timeout_after(Duration::from_secs(5), other.wait()).await;
    }));
    let other = target.clone();
    tasks.push(spawn(async move {
        let (sender, receiver) = channel(2);
        let sending = spawn(async move {
            for number in 0..50 {
                if sender.send(number).await.is_err() {
                    break;
                }
            }
        });
        let _ = other.sum(receiver).await;
        timeout_after(LONG, sending).await.expect("the sender goes on").unwrap();
    }));
    let other = target.clone();
    tasks.push(spawn(async move {
        let (sender, receiver) = channel(2);
        let receiving = spawn(async move { while let Ok(Some(_)) = receiver.recv().await {} });
        let _ = timeout_after(Duration::from_secs(10), other.count(50, sender)).await;
        timeout_after(LONG, receiving).await.expect("the receiver goes on").unwrap();
    }));
    let other = target.clone();
    tasks.push(spawn(async move {
        let _ = other.note("hello".to_owned()).await;
        let (sender, receiver) = channel(2);
        sender.finish();
        let _ = other.exchange((receiver, None)).await;
    }));
    drop(target);
    for task in tasks {
        timeout_after(LONG, task).await.expect("a call goes on").unwrap();
    }
}

fn attack_client(moves: Vec<Move>, end: End, piece: usize, room: usize, codec: Codec) {
    pikake::sim::example(async move {
        let (here, there) = MemoryStream::pair(room);
        let stream = Rc::new(Cell::new(Some(there)));
        let client = Client::builder()
            .codec(codec)
            .attempts(1)
            .packets(PacketOptions::new().frame_limit(1_000).queue_limit(2_000))
            .server("attacker", move || {
                let stream = stream.take();
                async move { stream.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) }
            })
            .build();
        let attacker = spawn(attack(here, moves, end, piece));
        use_client(TargetClient::new(client)).await;
        attacker.abort();
        sleep(LONG).await.unwrap();
        assert_eq!(kernel_figures().tasks, 1, "tasks are left");
    });
}

/// Runs 64 cases, or as many as the variable gives time for.
fn fuzz<S: Strategy>(strategy: &S, case: impl Fn(S::Value)) {
    let seconds = std::env::var("PIKAKE_HOSTILE_SECONDS").ok().map(|text| text.parse().unwrap());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut rounds = 0;
    while rounds == 0 || until.is_some_and(|until| Instant::now() < until) {
        let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
        let thrown = TestRunner::new(config).run(strategy, |value| {
            case(value);
            Ok(())
        });
        thrown.unwrap();
        rounds += 1;
    }
    println!("{rounds} rounds of 64 cases");
}

#[test]
fn garbage_ends_one_connection_of_a_server() {
    let greeting = prop_oneof![
        10 => some_number().prop_map(|items| [vec![0], number(items)].concat()),
        3 => some_number().prop_map(|items| [vec![1], number(items)].concat()),
        1 => some_bytes(),
    ];
    let frames =
        prop_oneof![3 => request(), 1 => some_number().prop_map(|id| frame(2, 0, id, b""))];
    let strategy =
        (moves(frames, greeting), 1..3_000usize, prop_oneof![1..20usize, 20..5_000usize]);
    fuzz(&strategy, |((moves, end), piece, room)| attack_server(moves, end, piece, room));
}

#[test]
fn garbage_ends_one_connection_of_a_client() {
    let greeting = prop_oneof![
        10 => (some_number(), some_number())
            .prop_map(|(calls, items)| [number(calls), number(items)].concat()),
        1 => some_bytes(),
    ];
    let frames = prop_oneof![3 => answer(), 1 => some_number().prop_map(|id| frame(7, 0, id, b""))];
    let codec = prop_oneof![3 => Just(Codec::Postcard), 1 => Just(Codec::Json)];
    let strategy =
        (moves(frames, greeting), 1..3_000usize, prop_oneof![1..20usize, 20..5_000usize], codec);
    fuzz(&strategy, |((moves, end), piece, room, codec)| {
        attack_client(moves, end, piece, room, codec);
    });
}
