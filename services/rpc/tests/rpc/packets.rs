//! The packet stream, between two ends of it and against raw bytes.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use pikake::kernel::inspect::kernel_figures;
use pikake::net::tls::{TlsAcceptor, TlsConnector};
use pikake::net::{MemoryStream, Read, TcpListener, TcpStream, UnixStream, Write};
use pikake::rpc::packets::{Packet, PacketError, PacketOptions, PacketReader, PacketWriter, open};
use pikake::testing::Injector;
use pikake::{sleep, spawn, timeout_after, yield_now};

use crate::harness::{assert_like, is_pending};
use crate::raw::{FINISH, HEARTBEAT, beat, frame, hello, number, plain_hello, read_all};
use crate::tls::authority;

const LONG: Duration = Duration::from_secs(1_000);

type End = (PacketReader<MemoryStream>, PacketWriter);

/// Two ends that have said hello.
async fn pair(options: PacketOptions) -> (End, End) {
    let (here, there) = MemoryStream::pair(4_096);
    let there = spawn(open(there, options.clone()));
    let here = open(here, options).await.unwrap();
    (here, there.await.unwrap().unwrap())
}

/// An end, and the raw stream of its peer, which has said hello.
async fn against_raw(options: PacketOptions) -> (End, MemoryStream) {
    let (here, there) = MemoryStream::pair(1_000_000);
    there.write_all(&plain_hello()).await.unwrap();
    (open(here, options).await.unwrap(), there)
}

/// What ends a connection without packets. A caller that gives up after each `patience` notices.
async fn failure(packets: &mut PacketReader<MemoryStream>, patience: Duration) -> PacketError {
    loop {
        match timeout_after(patience, packets.next()).await {
            Ok(Ok(packet)) => panic!("{packet:?}"),
            Ok(Err(PacketError::Interrupted(_))) | Err(_) => {}
            Ok(Err(error)) => return error,
        }
    }
}

/// What `open` says to these bytes, and to the silence or the end after them.
fn open_against(bytes: Vec<u8>, is_ended: bool) -> String {
    pikake::sim::example(async move {
        let (here, there) = MemoryStream::pair(1_000_000);
        there.write_all(&bytes).await.unwrap();
        if is_ended {
            there.finish().await.unwrap();
        }
        let error = open(here, PacketOptions::new()).await.expect_err("hostile bytes");
        sleep(Duration::from_secs(1)).await.unwrap();
        assert_eq!(kernel_figures().tasks, 1, "the writer goes on");
        format!("{error:?}")
    })
}

/// The hello and the broken frame are there at once, so the task that writes is cancelled before
/// its first step.
#[pikake::sim(seeds = 1)]
async fn finish_ends_after_a_failure_at_once() {
    let (here, there) = MemoryStream::pair(1_000);
    there.write_all(&[plain_hello(), vec![0xff; 10]].concat()).await.unwrap();
    let (mut packets, sender) = open(here, PacketOptions::new()).await.unwrap();
    let error = packets.next().await.unwrap_err();
    assert!(matches!(error, PacketError::Malformed(_)), "{error}");
    let finished = timeout_after(LONG, sender.finish()).await;
    assert!(matches!(finished, Ok(Err(PacketError::Malformed(_)))), "{finished:?}");
}

/// What `next` says to these bytes after the hello, and to the silence or the end after them.
fn next_against(bytes: Vec<u8>, is_ended: bool, options: PacketOptions) -> String {
    pikake::sim::example(async move {
        let ((mut packets, _sender), there) = against_raw(options).await;
        there.write_all(&bytes).await.unwrap();
        if is_ended {
            there.finish().await.unwrap();
        }
        loop {
            match packets.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("an end in order"),
                Err(error) => return format!("{error:?}"),
            }
        }
    })
}

#[test]
fn hellos_that_no_peer_sends_are_refused() {
    let huge = [b"PKRP\x01\x01".to_vec(), number(1), number(1), number(64 * 1024 + 1)].concat();
    let rows: [(&[u8], &str); 8] = [
        (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", "Foreign"),
        (b"POST / HTTP/1.1\r\n\r\n", "Foreign"),
        (b"\x16\x03\x01", "Foreign"),
        (b"PKRp\x01\x01", "Foreign"),
        (b"PKRP\x02\x09", "Version { lowest: 2, highest: 9 }"),
        (b"PKRP\x02\x01", "Version { lowest: 2, highest: 1 }"),
        (&huge, "TooLarge { size: 65537, limit: 65536 }"),
        (b"PKRP\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "Malformed(..."),
    ];
    for (bytes, expected) in rows {
        assert_like(open_against(bytes.into(), false), expected);
    }
    let whole = plain_hello();
    for length in 0..whole.len() {
        let silent = open_against(whole[..length].into(), false);
        assert!(silent.starts_with("Silent(") || silent.starts_with("Stalled("), "{silent}");
        assert_eq!(open_against(whole[..length].into(), true), "Disconnected");
    }
}

#[pikake::sim(seeds = 1)]
async fn greetings_arrive_up_to_their_limit() {
    let greeting = vec![7; 64 * 1024];
    let ((packets, _sender), _peer) = pair(PacketOptions::new().greeting(greeting.clone())).await;
    assert_eq!(packets.greeting(), greeting);
    let (here, _there) = MemoryStream::pair(1);
    let large = open(here, PacketOptions::new().greeting([0; 64 * 1024 + 1])).await;
    assert!(matches!(large, Err(PacketError::TooLarge { size: 65_537, .. })));
}

#[test]
fn frames_that_no_peer_sends_end_the_connection() {
    let next = |bytes: Vec<u8>, is_ended| next_against(bytes, is_ended, PacketOptions::new());
    assert_like(next(vec![0xff; 11], false), "Malformed(...");
    assert_like(next(vec![0x80, 0], false), "Malformed(...");
    let after = [frame(FINISH, 0, 0, b""), frame(1, 0, 1, b"")].concat();
    assert_eq!(next(after, false), "Malformed(\"a packet after the last one\")");
    let giant = [number(u64::MAX), vec![8], number(1)].concat();
    assert_like(next(giant, false), "TooLarge {...");
    // The whole frame is there at last, and no end of the peer in order.
    let whole = frame(1, 0, 1, b"hello");
    for length in 0..=whole.len() {
        assert_eq!(next(whole[..length].into(), true), "Disconnected");
    }
    // A limit beyond all memory costs no memory, and a declared length none either.
    for length in [u64::MAX, u64::MAX - 20, u64::MAX / 2, 1 << 40] {
        let bytes = [number(length), vec![8], number(1), vec![0; 100]].concat();
        let error = next_against(bytes, false, PacketOptions::new().frame_limit(usize::MAX));
        assert!(error.starts_with("Silent(") || error.starts_with("Stalled("), "{error}");
    }
    assert_like(next(Vec::new(), false), "Silent(...");
}

#[pikake::sim(seeds = 1)]
async fn all_kinds_flags_and_ids_arrive() {
    let ((_, sender), (mut packets, _)) = pair(PacketOptions::new()).await;
    let heads: Vec<_> = (0..=PacketOptions::MOST_KIND)
        .zip((0..=PacketOptions::ALL_FLAGS).cycle())
        .zip([0, 1, 127, 128, u64::MAX].into_iter().cycle())
        .map(|((kind, flags), id)| (kind, flags, id))
        .collect();
    for &(kind, flags, id) in &heads {
        sender.send(Packet::new(kind, id, &[kind]).with_flags(flags)).await.unwrap();
        let packet = packets.next().await.unwrap().unwrap();
        assert_eq!((packet.kind, packet.flags, packet.id), (kind, flags, id));
        assert_eq!(packet.body, [kind]);
    }
}

#[test]
fn frames_have_a_limit() {
    pikake::sim::example(async {
        let ((_, sender), (mut packets, _)) = pair(PacketOptions::new().frame_limit(100)).await;
        sender.send(Packet::new(1, 1, &[5; 100])).await.unwrap();
        let large = sender.send(Packet::new(1, 2, &[5; 101])).await.unwrap_err();
        assert!(matches!(large, PacketError::TooLarge { size: 101, limit: 100 }), "{large:?}");
        sender.send(Packet::new(1, 3, b"")).await.unwrap();
        assert_eq!(packets.next().await.unwrap().unwrap().body, [5; 100]);
        assert_eq!(packets.next().await.unwrap().unwrap().id, 3);
    });
    let error =
        next_against(frame(1, 0, 1, &[0; 101]), false, PacketOptions::new().frame_limit(100));
    assert_eq!(error, "TooLarge { size: 101, limit: 100 }");
}

/// A wait that is dropped, as by a combinator, loses no byte and invents none.
#[pikake::sim(seeds = 1)]
async fn drops_of_next_lose_nothing() {
    let ((mut packets, _sender), there) = against_raw(PacketOptions::new()).await;
    let bytes = [frame(1, 0, 1, b"hello"), frame(2, 0, 2, &[7; 300])].concat();
    let mut seen = Vec::new();
    for byte in bytes {
        assert!(is_pending(pin!(packets.next())).await);
        there.write_all(&[byte]).await.unwrap();
        let next = timeout_after(Duration::from_millis(1), packets.next()).await;
        match next {
            Ok(Ok(Some(packet))) => seen.push((packet.id, packet.body.len())),
            Ok(Err(PacketError::Interrupted(_))) | Err(_) => {}
            Ok(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, [(1, 5), (2, 300)]);
}

#[pikake::sim(seeds = 1)]
async fn a_dropped_wait_takes_no_further_packet() {
    let ((mut packets, _sender), (_reader, peer)) = pair(PacketOptions::new()).await;
    for id in 1..4 {
        peer.send(Packet::new(1, id, b"body")).await.unwrap();
        assert_eq!(packets.next().await.unwrap().unwrap().id, id);
        assert!(is_pending(pin!(packets.next())).await);
    }
    drop(peer);
    assert!(packets.next().await.unwrap().is_none());
}

#[pikake::sim(seeds = 1)]
async fn a_frame_that_dribbles_stalls() {
    let ((mut packets, _sender), there) = against_raw(PacketOptions::new()).await;
    let begun = pikake::now();
    spawn(async move {
        sleep(Duration::from_secs(10)).await.unwrap();
        for byte in frame(1, 0, 1, &[0; 100]) {
            if there.write_all(&[byte]).await.is_err()
                || sleep(Duration::from_secs(1)).await.is_err()
            {
                break;
            }
        }
    })
    .detach();
    let error = failure(&mut packets, Duration::from_millis(700)).await;
    assert!(matches!(error, PacketError::Stalled(_)), "{error:?}");
    let after = pikake::traps::elapsed_since(begun).as_secs();
    assert!((39..=42).contains(&after), "{after} s");
}

/// Packets may come slowly, if each of them comes at once.
#[pikake::sim(seeds = 1)]
async fn slow_packets_do_not_stall() {
    let ((mut packets, _sender), there) = against_raw(PacketOptions::new()).await;
    spawn(async move {
        for id in 0..10 {
            let bytes = frame(1, 0, id, &[0; 100]);
            // The end of a frame, and the begin of the next.
            for part in [&bytes[..60], &bytes[60..]] {
                there.write_all(part).await.unwrap();
                sleep(Duration::from_secs(20)).await.unwrap();
            }
        }
        sleep(Duration::from_secs(10)).await.unwrap();
    })
    .detach();
    for id in 0..10 {
        assert_eq!(packets.next().await.unwrap().unwrap().id, id);
    }
}

/// The peer is not to blame for a caller that does something else.
#[pikake::sim(seeds = 1)]
async fn pauses_of_the_caller_do_not_count() {
    let ((mut packets, _sender), there) = against_raw(PacketOptions::new()).await;
    let bytes = frame(1, 0, 1, &[0; 100]);
    there.write_all(&bytes[..50]).await.unwrap();
    let _ = timeout_after(Duration::from_secs(1), packets.next()).await;
    sleep(Duration::from_secs(100)).await.unwrap();
    spawn(async move {
        sleep(Duration::from_secs(1)).await.unwrap();
        there.write_all(&bytes[50..]).await.unwrap();
        sleep(LONG).await.unwrap();
    })
    .detach();
    assert_eq!(packets.next().await.unwrap().unwrap().id, 1);
}

#[pikake::sim(seeds = 1)]
async fn silence_ends_the_connection() {
    let ((mut packets, sender), _there) = against_raw(PacketOptions::new()).await;
    let begun = pikake::now();
    let error = failure(&mut packets, Duration::from_secs(1)).await;
    assert!(matches!(error, PacketError::Silent(_)), "{error:?}");
    assert_eq!(pikake::traps::elapsed_since(begun).as_secs(), 30);
    let sent = sender.send(Packet::new(1, 1, b"")).await.unwrap_err();
    assert!(matches!(sent, PacketError::Silent(_)), "{sent:?}");
}

/// Both the senders and the receiver learn of a peer that takes nothing, though it goes on sending.
#[pikake::sim(seeds = 1)]
async fn a_peer_that_takes_nothing_ends_the_connection() {
    let (here, there) = MemoryStream::pair(1_000);
    there.write_all(&plain_hello()).await.unwrap();
    let options = PacketOptions::new().queue_limit(5_000);
    let (mut packets, sender) = open(here, options).await.unwrap();
    let peer = spawn(async move { beat(&there).await });
    let receiving = spawn(async move { packets.next().await.map(|packet| packet.is_some()) });
    let mut sent = 0;
    let error = loop {
        match sender.send(Packet::new(1, 1, &[0; 1_000])).await {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PacketError::Stalled(_)), "{error:?}");
    assert!((5..12).contains(&sent), "{sent} packets");
    let received = timeout_after(LONG, receiving).await.expect("the receiver goes on").unwrap();
    assert!(matches!(received, Err(PacketError::Stalled(_))), "{received:?}");
    let finished = sender.finish().await.unwrap_err();
    assert!(matches!(finished, PacketError::Stalled(_)), "{finished:?}");
    peer.await.unwrap();
    assert_eq!(kernel_figures().tasks, 1);
}

/// Each sender gets its turn, also beside others that send without a pause.
#[pikake::sim(seeds = 20)]
async fn senders_take_turns() {
    let ((_reader, sender), (mut packets, _)) = pair(PacketOptions::new().queue_limit(250)).await;
    for id in 0..4 {
        let sender = sender.clone();
        spawn(async move { while sender.send(Packet::new(1, id, &[0; 100])).await.is_ok() {} })
            .detach();
    }
    // All senders wait before the first packet is received. Fewer than 100 are sent by then.
    sleep(Duration::from_millis(1)).await.unwrap();
    let mut counts = [0; 4];
    for number in 0..500 {
        let id = packets.next().await.unwrap().unwrap().id as usize;
        counts[id] += usize::from(number >= 100);
    }
    assert_eq!(counts, [100; 4]);
}

/// A sender that leaves while it waits for its turn, or has it, holds up nobody.
#[pikake::sim(seeds = 1)]
async fn senders_that_leave_pass_the_turn_on() {
    let ((_reader, sender), there) = against_raw(PacketOptions::new().queue_limit(1)).await;
    drop(sender.send(Packet::new(1, 0, &[0; 2_000_000])).await);
    let _ = sender.send(Packet::new(1, 0, &[0; 900_000])).await;
    let _ = sender.send(Packet::new(1, 0, &[0; 900_000])).await;
    let mut waiting = Vec::new();
    for id in 1..=3 {
        let sender = sender.clone();
        waiting.push(spawn(async move { sender.send(Packet::new(1, id, b"")).await }));
        // The first sender has the turn, and the others wait for it.
        sleep(Duration::from_millis(1)).await.unwrap();
    }
    let [first, second, third] = <[_; 3]>::try_from(waiting).unwrap();
    first.request_cancel("changed my mind");
    second.abort();
    assert!(matches!(first.await.unwrap(), Err(PacketError::Interrupted(_))));
    let reading = spawn(async move { read_all(&there).await });
    third.await.unwrap().unwrap();
    sender.finish().await.unwrap();
    let all = reading.await.unwrap();
    let ends = [frame(1, 0, 3, b""), frame(FINISH, 0, 0, b"")].concat();
    assert!(all.ends_with(&ends), "{:?}", &all[all.len() - 20..]);
    assert!(!all[all.len() - 20..].ends_with(&[frame(1, 0, 1, b""), ends].concat()));
}

#[pikake::sim(seeds = 1)]
async fn idle_connections_stay() {
    let options = PacketOptions::new().silence(Duration::from_secs(3));
    let ((mut one, one_sender), (mut other, other_sender)) = pair(options).await;
    let receiving = [
        spawn(async move { one.next().await.map(|packet| packet.is_none()) }),
        spawn(async move { other.next().await.map(|packet| packet.is_none()) }),
    ];
    sleep(LONG).await.unwrap();
    drop((one_sender, other_sender));
    for task in receiving {
        assert!(task.await.unwrap().unwrap());
    }
}

/// The least limits do not keep two sides from talking.
#[pikake::sim(seeds = 1)]
async fn the_least_limits_work() {
    let options = PacketOptions::new().queue_limit(0).silence(Duration::ZERO).frame_limit(0);
    let ((mut one, one_sender), (_other, other_sender)) = pair(options).await;
    sleep(Duration::from_secs(10)).await.unwrap();
    let sent = timeout_after(LONG, other_sender.send(Packet::new(1, 7, b""))).await;
    sent.expect("room").unwrap();
    assert_eq!(one.next().await.unwrap().unwrap().id, 7);
    assert!(timeout_after(Duration::from_secs(10), one.next()).await.is_err());
    let large = one_sender.send(Packet::new(1, 7, b"x")).await.unwrap_err();
    assert!(matches!(large, PacketError::TooLarge { size: 1, limit: 0 }), "{large:?}");
}

#[pikake::sim(seeds = 1)]
async fn heartbeats_fill_pauses_only() {
    let ((_reader, sender), there) = against_raw(PacketOptions::new()).await;
    // The silence of the peer is 30 s, so a heartbeat is due after 10 s.
    for id in 1..=3 {
        sleep(Duration::from_secs(9)).await.unwrap();
        sender.send(Packet::new(1, id, b"")).await.unwrap();
    }
    sleep(Duration::from_secs(21)).await.unwrap();
    drop(sender);
    let all = read_all(&there).await;
    let beat = || frame(HEARTBEAT, 0, 0, b"");
    let mut expected: Vec<_> = (1..=3).flat_map(|id| frame(1, 0, id, b"")).collect();
    expected.extend([beat(), beat(), frame(FINISH, 0, 0, b"")].concat());
    assert!(all.ends_with(&expected), "{all:?}");
    assert_eq!(all.len() - expected.len(), hello(1 << 20, 30_000, b"").len());
}

#[pikake::sim(seeds = 1)]
async fn a_finished_side_goes_on_receiving() {
    let ((mut here, sender), (mut there, answers)) = pair(PacketOptions::new()).await;
    sender.send(Packet::new(1, 1, b"the last")).await.unwrap();
    sender.finish().await.unwrap();
    assert_eq!(there.next().await.unwrap().unwrap().id, 1);
    assert!(there.next().await.unwrap().is_none());
    assert!(there.next().await.unwrap().is_none());
    for id in 0..10 {
        sleep(Duration::from_secs(25)).await.unwrap();
        answers.send(Packet::new(2, id, b"")).await.unwrap();
        assert_eq!(here.next().await.unwrap().unwrap().id, id);
    }
    answers.finish().await.unwrap();
    assert!(here.next().await.unwrap().is_none());
}

/// `finish` waits for what was queued before, and not for what others send all the time.
#[pikake::sim(seeds = 1)]
async fn finish_ends_beside_others_that_send() {
    let ((_reader, sender), (mut packets, _)) = pair(PacketOptions::new().queue_limit(100)).await;
    let others: Vec<_> = (0..3)
        .map(|_| {
            let sender = sender.clone();
            spawn(async move { while sender.send(Packet::new(1, 0, &[0; 90])).await.is_ok() {} })
        })
        .collect();
    let receiving = spawn(async move {
        let mut count = 0;
        while let Ok(Some(packet)) = packets.next().await {
            if packet.id == 7 {
                // The connection stays until `finish` has ended.
                return (count, packets);
            }
            count += 1;
            yield_now().await.unwrap();
        }
        panic!("the packet is lost");
    });
    sender.send(Packet::new(1, 7, b"")).await.unwrap();
    timeout_after(LONG, sender.finish()).await.expect("it ends").unwrap();
    assert!(receiving.await.unwrap().0 < 50);
    others.into_iter().for_each(|other| other.abort());
}

/// A connection that fails before its writer has taken a step ends all the same.
#[pikake::sim(seeds = 1)]
async fn finish_ends_if_the_writer_never_ran() {
    let (here, there) = MemoryStream::pair(1_000);
    there.write_all(&plain_hello()).await.unwrap();
    there.finish().await.unwrap();
    let (mut packets, sender) = open(here, PacketOptions::new()).await.unwrap();
    assert!(matches!(packets.next().await, Err(PacketError::Disconnected)));
    let finished = timeout_after(LONG, sender.finish()).await.expect("it ends");
    assert!(matches!(finished, Err(PacketError::Disconnected)), "{finished:?}");
}

/// A stream with an end that does not come.
struct Endless(MemoryStream);

impl Read for Endless {
    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).await
    }
}

impl Write for Endless {
    async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.0.write(data).await
    }

    async fn finish(&self) -> io::Result<()> {
        loop {
            sleep(Duration::MAX).await?;
        }
    }
}

#[pikake::sim(seeds = 1)]
async fn the_end_of_a_stream_may_stall() {
    let (here, there) = MemoryStream::pair(1_000);
    there.write_all(&plain_hello()).await.unwrap();
    let (_reader, sender) = open(Endless(here), PacketOptions::new()).await.unwrap();
    let finished = timeout_after(LONG, sender.finish()).await.expect("it ends").unwrap_err();
    assert!(matches!(finished, PacketError::Stalled(_)), "{finished:?}");
    assert_eq!(kernel_figures().tasks, 1);
}

#[pikake::sim(seeds = 1)]
async fn a_dropped_open_closes_the_stream() {
    for drop_after in [0, 1, 5] {
        let (here, there) = MemoryStream::pair(4);
        let opening = spawn(async move { open(here, PacketOptions::new()).await.map(drop) });
        for _ in 0..drop_after {
            yield_now().await.unwrap();
        }
        opening.abort();
        let mut count = 0;
        let mut buffer = [0; 100];
        let begun = pikake::now();
        while let Ok(read @ 1..) = there.read(&mut buffer).await {
            count += read;
        }
        assert!(count < 30);
        assert!(pikake::traps::elapsed_since(begun) < Duration::from_millis(1));
        sleep(Duration::from_secs(1)).await.unwrap();
        assert_eq!(kernel_figures().tasks, 1);
    }
}

#[pikake::sim(seeds = 1)]
async fn an_interrupted_open_closes_the_stream() {
    let (here, there) = MemoryStream::pair(100);
    let opened = timeout_after(Duration::from_secs(1), open(here, PacketOptions::new())).await;
    let _ = opened.map(|opened| opened.map(drop));
    read_all(&there).await;
    assert!(there.write_all(b"x").await.is_err());
    assert_eq!(kernel_figures().tasks, 1);
}

/// Readers and writers leave in each order, with packets under way, and leave no task behind.
#[pikake::sim(seeds = 1)]
async fn drops_in_each_order_leave_nothing() {
    for order in 0..24 {
        let ((one, one_sender), (other, other_sender)) = pair(PacketOptions::new()).await;
        let _ = one_sender.send(Packet::new(1, 1, &[0; 3_000])).await;
        let _ = other_sender.send(Packet::new(1, 1, &[0; 3_000])).await;
        let mut parts: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(one), Box::new(one_sender), Box::new(other), Box::new(other_sender)];
        let mut rest = order;
        for count in (1..=4).rev() {
            drop(parts.remove(rest % count));
            rest /= count;
            sleep(Duration::from_millis(1)).await.unwrap();
        }
        sleep(LONG).await.unwrap();
        assert_eq!(kernel_figures().tasks, 1, "order {order}");
    }
}

#[pikake::sim(seeds = 1)]
async fn senders_fail_after_the_connection_has() {
    let ((one, one_sender), (mut other, other_sender)) = pair(PacketOptions::new()).await;
    let clone = one_sender.clone();
    drop((one, one_sender));
    clone.send(Packet::new(1, 1, b"")).await.unwrap();
    drop(clone);
    assert_eq!(other.next().await.unwrap().unwrap().id, 1);
    assert!(other.next().await.unwrap().is_none());
    // Nobody reads there, which the stream tells.
    let error = loop {
        match other_sender.send(Packet::new(1, 1, b"")).await {
            Ok(()) => sleep(Duration::from_millis(1)).await.unwrap(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PacketError::Io(_)), "{error:?}");
}

/// Wherever the program is interrupted, each packet arrives once, and the connection ends in order.
#[test]
fn interruptions_lose_nothing() {
    let told = Rc::new(Cell::new(0));
    let (count, checked) = (told.clone(), Rc::new(RefCell::new(0)));
    let seen = checked.clone();
    let report = Injector::new().cleanup_limit(None).run(
        move || {
            count.set(0);
            let told = count.clone();
            async move {
                let again = |error: PacketError| {
                    assert!(error.interrupted().is_some(), "{error:?}");
                    told.set(told.get() + 1);
                };
                let (here, there) = MemoryStream::pair(50);
                let peer = spawn(async move {
                    let options = PacketOptions::new().queue_limit(60);
                    let (mut packets, sender) = open(there, options).await?;
                    while let Some(packet) = packets.next().await? {
                        sender.send(Packet::new(packet.kind, packet.id, packet.body)).await?;
                    }
                    sender.finish().await
                });
                let options = PacketOptions::new().queue_limit(60);
                let (mut packets, sender) = match open(here, options).await {
                    Ok(opened) => opened,
                    Err(error) => {
                        again(error);
                        let peer = pikake::shield(peer).await.unwrap();
                        assert!(peer.is_err(), "the stream is closed");
                        return None;
                    }
                };
                let mut received = Vec::new();
                for id in 0..6 {
                    while let Err(error) = sender.send(Packet::new(1, id, &[id as u8; 40])).await {
                        again(error);
                    }
                    if id % 2 == 1 {
                        loop {
                            match packets.next().await {
                                Ok(packet) => break received.push(packet.unwrap().id),
                                Err(error) => again(error),
                            }
                        }
                    }
                }
                let finished = sender.finish().await;
                if let Err(error) = finished {
                    again(error);
                }
                loop {
                    match packets.next().await {
                        Ok(Some(packet)) => received.push(packet.id),
                        Ok(None) => break,
                        Err(error) => again(error),
                    }
                }
                pikake::shield(peer).await.unwrap().unwrap();
                Some(received)
            }
        },
        |run| {
            *seen.borrow_mut() += 1;
            match run.output.as_ref().expect("it waits on traps") {
                Some(received) => assert_eq!(*received, [0, 1, 2, 3, 4, 5]),
                None => assert!(run.interruption.is_some()),
            }
            assert!(told.get() <= 1);
        },
    );
    assert!(report.suspensions > 5 && report.cancels > 10, "{report:?}");
    assert!(*checked.borrow() > 10);
}

async fn echo<S: Read + Write + 'static>(stream: S) -> Result<(), PacketError> {
    let (mut packets, sender) = open(stream, PacketOptions::new()).await?;
    while let Some(packet) = packets.next().await? {
        sender
            .send(Packet::new(packet.kind, packet.id, packet.body).with_flags(packet.flags))
            .await?;
    }
    sender.finish().await
}

/// Sends packets of many sizes, and receives them again.
async fn against_echo<S: Read + Write + 'static>(stream: S) {
    let (mut packets, sender) = open(stream, PacketOptions::new()).await.unwrap();
    let sizes = [0, 1, 127, 128, 10_000, 100_000, 1 << 20];
    let sending = spawn(async move {
        for (id, size) in sizes.into_iter().enumerate() {
            sender
                .send(Packet::new(3, id as u64, &vec![id as u8; size]).with_flags(5))
                .await
                .unwrap();
        }
        sender.finish().await
    });
    for (id, size) in sizes.into_iter().enumerate() {
        let packet = packets.next().await.unwrap().unwrap();
        assert_eq!((packet.kind, packet.flags, packet.id), (3, 5, id as u64));
        assert_eq!(packet.body, vec![id as u8; size]);
    }
    sending.await.unwrap().unwrap();
    assert!(packets.next().await.unwrap().is_none());
}

#[pikake::sim(seeds = 1)]
async fn packets_cross_the_simulated_network() {
    let listener = TcpListener::bind("127.0.0.1:7000").await.unwrap();
    let peer = spawn(async move { echo(listener.accept().await.unwrap().0).await });
    against_echo(TcpStream::connect("127.0.0.1:7000").await.unwrap()).await;
    peer.await.unwrap().unwrap();
}

#[pikake::test]
async fn packets_cross_real_sockets() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let peer = spawn(async move { echo(listener.accept().await.unwrap().0).await });
    against_echo(TcpStream::connect(address).await.unwrap()).await;
    peer.await.unwrap().unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    let peer = spawn(echo(there));
    against_echo(here).await;
    peer.await.unwrap().unwrap();
}

/// TLS has an end of its own, which is not lost behind the last packet.
#[pikake::sim(seeds = 1)]
async fn packets_cross_tls() {
    let (root, issue) = authority();
    let acceptor = TlsAcceptor::builder(issue("server.test").0).build().unwrap();
    let connector = TlsConnector::builder().roots_pem(root.as_bytes()).unwrap();
    let (here, there) = MemoryStream::pair(4_096);
    let peer = spawn(async move { echo(acceptor.accept(there).await.unwrap()).await });
    let stream = connector.build().unwrap().connect("server.test", here).await.unwrap();
    against_echo(stream).await;
    peer.await.unwrap().unwrap();
    assert_eq!(kernel_figures().tasks, 1, "tasks are left");
}

/// Packets that cannot be sent are no sign of life, and hold up no heartbeat.
#[pikake::sim(seeds = 1)]
async fn packets_that_are_not_sent_delay_no_heartbeat() {
    let (here, there) = MemoryStream::pair(1_000);
    let options = PacketOptions::new().frame_limit(10).silence(Duration::from_millis(600));
    let peer = spawn(async move {
        let (mut packets, _sender) = open(there, options).await.unwrap();
        packets.next().await.map(|packet| packet.is_none())
    });
    let (_packets, sender) = open(here, PacketOptions::new()).await.unwrap();
    for _ in 0..60 {
        let sent = sender.clone().send(Packet::new(1, 0, &[0; 100])).await;
        assert!(matches!(sent, Err(PacketError::TooLarge { .. })), "{sent:?}");
        sleep(Duration::from_millis(50)).await.unwrap();
    }
    drop(sender);
    assert!(peer.await.unwrap().unwrap());
}

/// The sender that has the turn is not polled.
#[pikake::sim(seeds = 1)]
async fn a_failure_reaches_senders_behind_one_that_sleeps() {
    let ((_reader, sender), there) = against_raw(PacketOptions::new().queue_limit(1)).await;
    let _ = sender.send(Packet::new(1, 0, &[0; 900_000])).await;
    let _ = sender.send(Packet::new(1, 0, &[0; 900_000])).await;
    let mut first = pin!(sender.send(Packet::new(1, 1, b"")));
    assert!(is_pending(first.as_mut()).await);
    let other = sender.clone();
    let second = spawn(async move { other.send(Packet::new(1, 2, b"")).await });
    sleep(Duration::from_millis(1)).await.unwrap();
    drop(there);
    let sent = timeout_after(Duration::from_secs(3_600), second).await.expect("the failure");
    assert!(sent.unwrap().is_err());
}

/// The limit that the peer's packet broke is none of what is sent next.
#[pikake::sim(seeds = 1)]
async fn a_too_large_packet_of_the_peer_ends_later_sends() {
    let ((mut reader, sender), there) = against_raw(PacketOptions::new().frame_limit(10)).await;
    there.write_all(&frame(1, 0, 1, &[0; 11])).await.unwrap();
    assert!(matches!(reader.next().await, Err(PacketError::TooLarge { .. })));
    let sent = sender.send(Packet::new(1, 1, b"")).await;
    assert!(matches!(sent, Err(PacketError::Disconnected)), "{sent:?}");
}
