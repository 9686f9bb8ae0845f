//! A trap of a crate outside of traps and kernels, which waits at two places: a socket and a moment
//! (`examples/read_at_least`).
//!
//! The event beats the moment, and a wait that is over has left both places. The reference kernel
//! has no sockets: there the trap answers [`Closed`] at once, and waits for no moment.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use pikake::kernel::POLL_EVERY_STEPS;
use pikake::kernel::inspect::kernel_figures;
use pikake::net::{TcpListener, UnixStream, interruption};
use pikake::time::{Deadline, deadline_after};
use pikake::traps::door::current_kernel;
use pikake::traps::{Closed, ResourceBusy, SocketId, kernel_trap};
use pikake::{Task, shield, sleep, spawn, timed, yield_now};
use pikake_read_at_least::{ReadAtLeast, ReadAtLeastError, read_at_least};

use crate::runner::{Reference, Runner, World, ms, named, next_step, on_every_kernel, poll_once};
use crate::sockets::sends_late;

const LOOPBACK: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// More than the attempts on sockets that a task may make in one step.
const MANY: usize = 10_000;

/// The bytes, and the error that came with them, in a few words.
fn shown(read: Result<usize, ReadAtLeastError>, buffer: &[u8]) -> String {
    let text = |length: usize| String::from_utf8_lossy(&buffer[..length]).into_owned();
    match read {
        Ok(length) => format!("`{}`", text(length)),
        Err(error) => match interruption(&error.source) {
            Some(why) => format!("`{}`, {why}", text(error.read)),
            None => format!("`{}`, {}", text(error.read), error.source),
        },
    }
}

/// Reads at least `min` bytes in at most `limit` milliseconds, and notes them.
async fn note_read(world: &World, stream: &UnixStream, min: usize, limit: u64) {
    let mut buffer = [0; 16];
    let read = read_at_least(stream, &mut buffer, min, deadline_after(ms(limit))).await;
    world.note(shown(read, &buffer));
}

/// Lets the kernel ask its sockets before time goes on: the virtual clock of the real kernel jumps
/// first if no task is ready.
async fn settle() {
    for _ in 0..2 * POLL_EVERY_STEPS {
        next_step().await;
    }
}

async fn write(stream: &UnixStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
    settle().await;
}

/// Writes the parts, ten milliseconds after each other, and keeps the stream open.
fn writer(stream: UnixStream, parts: &'static [&'static str]) -> Task<UnixStream> {
    spawn(async move {
        for part in parts {
            sleep(ms(10)).await.unwrap();
            write(&stream, part).await;
        }
        stream
    })
}

/// The number of waits for a moment, and whether a task waits to read the stream.
fn waits(stream: &UnixStream) -> (usize, bool) {
    let mut byte = [0];
    let mut read = pin!(stream.read(&mut byte));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let is_busy = match read.as_mut().poll(&mut context) {
        Poll::Ready(Err(error)) => {
            assert!(error.get_ref().is_some_and(|inside| inside.is::<ResourceBusy>()), "{error}");
            true
        }
        Poll::Ready(Ok(length @ 1..)) => panic!("{length} bytes were there to read"),
        Poll::Ready(Ok(0)) | Poll::Pending => false,
    };
    (kernel_figures().timers, is_busy)
}

/// A read that owns its stream, and gives the stream back.
type Reading = Pin<Box<dyn Future<Output = (String, UnixStream)>>>;

fn reading(stream: UnixStream, min: usize, limit: u64) -> Reading {
    let deadline = deadline_after(ms(limit));
    Box::pin(async move {
        let mut buffer = [0; 16];
        let read = read_at_least(&stream, &mut buffer, min, deadline).await;
        (shown(read, &buffer), stream)
    })
}

fn enough_bytes_are_returned_at_once<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"hello").await.unwrap();
        sleep(ms(1)).await.unwrap();
        let other = named("other", yield_now());
        note_read(&world, &mine, 4, 500).await;
        assert!(!other.is_finished(), "the read has suspended");
        assert_eq!(waits(&mine), (0, false));
    });
    assert_eq!(events, ["1 `hello`"]);
}

fn pieces_are_read_until_they_are_enough<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let _writer = writer(theirs, &["he", "l", "lo, you", "!"]);
        note_read(&world, &mine, 5, 500).await;
        note_read(&world, &mine, 1, 500).await;
        assert_eq!(waits(&mine), (0, false));
    });
    assert_eq!(events, ["30 `hello, you`", "40 `!`"]);
}

fn a_moment_returns_what_was_read<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let _writer = writer(theirs, &["he", "l"]);
        note_read(&world, &mine, 5, 50).await;
        assert_eq!(waits(&mine), (0, false));
        note_read(&world, &mine, 5, 50).await;
        assert_eq!(waits(&mine), (0, false));
    });
    assert_eq!(events, ["50 `hel`", "100 ``"]);
}

/// A read whose bytes and whose moment come before its next poll, in this order or the other.
async fn both(min: usize, bytes_first: bool) -> String {
    let (mine, theirs) = UnixStream::pair().unwrap();
    let mut read = reading(mine, min, 10);
    assert!(poll_once(&mut read).await.is_pending());
    if bytes_first {
        write(&theirs, "hello").await;
        sleep(ms(20)).await.unwrap();
    } else {
        sleep(ms(20)).await.unwrap();
        write(&theirs, "hello").await;
    }
    assert_eq!(kernel_figures().timers, 0, "the moment has come");
    let Poll::Ready((text, mine)) = poll_once(&mut read).await else { panic!("it goes on") };
    assert_eq!(waits(&mine), (0, false));
    text
}

fn bytes_beat_a_moment_of_their_turn<R: Runner>() {
    let events = R::run(async |world| {
        for bytes_first in [true, false] {
            for min in [5, 9] {
                world.note(both(min, bytes_first).await);
            }
        }
    });
    assert_eq!(events, ["20 `hello`", "40 `hello`", "60 `hello`", "80 `hello`"]);
}

fn a_stream_that_ends_returns_its_rest<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let writer = writer(theirs, &["he", "l"]);
        let closer = spawn(async move {
            drop(writer.await.unwrap());
            settle().await;
        });
        note_read(&world, &mine, 5, 500).await;
        note_read(&world, &mine, 5, 500).await;
        closer.await.unwrap();
        assert_eq!(kernel_figures().timers, 0);
    });
    assert_eq!(events, ["20 `hel`", "20 ``"]);
}

fn a_moment_that_has_come_reads_what_is_there<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        note_read(&world, &mine, 5, 0).await;
        theirs.write_all(b"hello").await.unwrap();
        sleep(ms(1)).await.unwrap();
        let other = named("other", yield_now());
        for min in [9, 1] {
            note_read(&world, &mine, min, 0).await;
            assert_eq!(waits(&mine), (0, false));
        }
        assert!(!other.is_finished(), "a read has suspended");
    });
    assert_eq!(events, ["0 ``", "1 `hello`", "1 ``"]);
}

fn reads_at_a_moment_that_has_come_starve_no_task<R: Runner>() {
    R::run(async |_| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let other = spawn(async move { theirs.write_all(b"hello").await.unwrap() });
        let mut buffer = [0; 16];
        let (mut rounds, mut length) = (0, 0);
        while length == 0 && rounds < MANY {
            let now = deadline_after(Duration::ZERO);
            length = read_at_least(&mine, &mut buffer, 5, now).await.unwrap();
            rounds += 1;
        }
        assert_eq!(length, 5, "the writer has not run");
        let mut rounds = 0;
        let other_done = spawn(async {});
        while !other_done.is_finished() && rounds < MANY {
            assert_eq!(read_at_least(&mine, &mut buffer, 0, Deadline::NEVER).await.unwrap(), 0);
            rounds += 1;
        }
        assert!(other_done.is_finished(), "reads of no bytes starve a task");
        other.await.unwrap();
    });
}

fn a_deadline_of_never_waits_for_no_moment<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mut buffer = [0; 16];
        {
            let mut read = pin!(read_at_least(&mine, &mut buffer, 5, Deadline::NEVER));
            assert!(poll_once(&mut read).await.is_pending());
            assert_eq!(waits(&mine), (0, true));
            let writer = spawn(async move {
                sleep(ms(10)).await.unwrap();
                write(&theirs, "hello").await;
                theirs
            });
            world.note(read.await.unwrap());
            writer.await.unwrap();
        }
        assert_eq!(waits(&mine), (0, false));
    });
    assert_eq!(events, ["10 5"]);
}

fn a_dropped_read_leaves_both_places<R: Runner>() {
    R::run(async |_| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mut buffer = [0; 16];
        {
            let mut read = pin!(read_at_least(&mine, &mut buffer, 5, deadline_after(ms(50))));
            assert!(poll_once(&mut read).await.is_pending());
            assert_eq!(waits(&mine), (1, true));
        }
        assert_eq!(waits(&mine), (0, false));
        theirs.write_all(b"hello").await.unwrap();
        assert_eq!(mine.read(&mut buffer).await.unwrap(), 5);
    });
}

fn an_interrupted_read_leaves_both_places<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let _writer = writer(theirs, &["he", "llo"]);
        assert!(timed(ms(15), note_read(&world, &mine, 5, 500)).await.expired);
        // The writer sleeps.
        assert_eq!(waits(&mine), (1, false));
        note_read(&world, &mine, 3, 500).await;

        let mine = Rc::new(mine);
        let reader = spawn({
            let (world, mine) = (world.clone(), mine.clone());
            async move { note_read(&world, &mine, 5, 500).await }
        });
        sleep(ms(1)).await.unwrap();
        assert_eq!(waits(&mine), (1, true));
        reader.cancel().await.unwrap();
        assert_eq!(waits(&mine), (0, false));
    });
    assert_eq!(events, ["15 `he`, a deadline passed", "20 `llo`", "21 ``, cancelled"]);
}

fn enough_bytes_beat_an_interruption<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let writer = sends_late(&world, theirs);
        let read = timed(ms(10), note_read(&world, &mine, 5, 500)).await;
        assert!(!read.expired);
        let theirs = writer.await.unwrap();

        let writer = sends_late(&world, theirs);
        let read = timed(ms(10), note_read(&world, &mine, 9, 500)).await;
        assert!(read.expired);
        writer.await.unwrap();
        assert_eq!(waits(&mine), (0, false));
    });
    assert_eq!(events, ["20 `hello`", "40 `hello`, a deadline passed"]);
}

/// Spends the attempts of the current step.
fn spend_attempts(stream: &UnixStream) {
    let spent = (0..MANY).find(|_| match stream.try_read(&mut [0]) {
        Ok(1) => false,
        Ok(length) => panic!("{length} bytes"),
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    });
    assert!(spent.is_some_and(|count| count > 0), "attempts have no quota");
}

fn a_deferred_read_leaves_both_places<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let (plenty, source) = UnixStream::pair().unwrap();
        source.write_all(&[b'x'; MANY]).await.unwrap();
        let mut buffer = [0; 16];
        {
            let mut read = pin!(read_at_least(&mine, &mut buffer, 5, deadline_after(ms(50))));
            assert!(poll_once(&mut read).await.is_pending());
            assert_eq!(kernel_figures().timers, 1);
            theirs.write_all(b"hello").await.unwrap();
            // The task is notified, and makes a step for that.
            next_step().await;
            sleep(ms(1)).await.unwrap();
            spend_attempts(&plenty);
            assert!(poll_once(&mut read).await.is_pending());
            assert_eq!(kernel_figures().timers, 0, "a deferred read waits for its moment");
            world.note(read.await.unwrap());
        }
        assert_eq!(waits(&mine), (0, false));
        // From the first poll on.
        theirs.write_all(b"again").await.unwrap();
        sleep(ms(1)).await.unwrap();
        spend_attempts(&plenty);
        note_read(&world, &mine, 5, 50).await;
        assert_eq!(waits(&mine), (0, false));
    });
    assert_eq!(events, ["1 5", "2 `again`"]);
}

fn an_error_has_the_number_of_bytes_read<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mine = Rc::new(mine);
        let _writer = writer(theirs, &["he"]);
        let closer = spawn({
            let mine = mine.clone();
            async move {
                sleep(ms(20)).await.unwrap();
                mine.close();
            }
        });
        note_read(&world, &mine, 5, 500).await;
        closer.await.unwrap();
        assert_eq!(kernel_figures().timers, 0);
        note_read(&world, &mine, 5, 500).await;
        assert_eq!(kernel_figures().timers, 0);
    });
    assert_eq!(events, [format!("20 `he`, {Closed}"), format!("20 ``, {Closed}")]);
}

fn a_second_reader_is_refused<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mine = Rc::new(mine);
        let first = spawn({
            let (world, mine) = (world.clone(), mine.clone());
            async move { note_read(&world, &mine, 5, 500).await }
        });
        sleep(ms(1)).await.unwrap();
        let mut buffer = [0; 8];
        let read = read_at_least(&*mine, &mut buffer, 5, deadline_after(ms(50))).await;
        let error = read.unwrap_err().source;
        assert!(error.get_ref().is_some_and(|inside| inside.is::<ResourceBusy>()), "{error}");
        assert_eq!(kernel_figures().timers, 1, "that of the first reader");
        write(&theirs, "hello").await;
        first.await.unwrap();
    });
    assert_eq!(events, ["1 `hello`"]);
}

fn reads_of_a_combinator_end_by_either_place<R: Runner>() {
    let events = R::run(async |world| {
        let (by_bytes, writes) = UnixStream::pair().unwrap();
        let (by_moment, _silent) = UnixStream::pair().unwrap();
        let (by_both, writes_too) = UnixStream::pair().unwrap();
        let writer = writer(writes, &["he", "llo"]);
        let mut reads: FuturesUnordered<Reading> =
            [reading(by_moment, 5, 30), reading(by_bytes, 5, 500), reading(by_both, 5, 40)]
                .into_iter()
                .collect();
        for _ in 0..2 {
            let (text, stream) = reads.next().await.unwrap();
            world.note(text);
            assert!(!waits(&stream).1);
        }
        write(&writes_too, "hello").await;
        sleep(ms(20)).await.unwrap();
        let (text, stream) = reads.next().await.unwrap();
        world.note(text);
        writer.await.unwrap();
        assert_eq!(waits(&stream), (0, false));
    });
    assert_eq!(events, ["20 `hello`", "30 ``", "50 `hello`"]);
}

fn an_interrupted_combinator_leaves_both_places<R: Runner>() {
    let events = R::run(async |world| {
        let (one, writes) = UnixStream::pair().unwrap();
        let (two, _silent) = UnixStream::pair().unwrap();
        let _writer = writer(writes, &["he"]);
        let mut reads: FuturesUnordered<Reading> =
            [reading(one, 5, 500), reading(two, 5, 500)].into_iter().collect();
        let mut streams = Vec::new();
        let read = timed(ms(15), async {
            while let Some((text, stream)) = reads.next().await {
                streams.push((text, stream));
            }
        });
        assert!(read.await.expired);
        streams.sort_by(|one, other| one.0.cmp(&other.0));
        for (text, stream) in &streams {
            world.note(text);
            assert_eq!(waits(stream), (0, false));
        }
    });
    assert_eq!(events, ["15 ``, a deadline passed", "15 `he`, a deadline passed"]);
}

fn a_read_that_moves_to_another_task_ends_by_either_place<R: Runner>() {
    let events = R::run(async |world| {
        for (parts, limit) in [(&["he", "llo"][..], 500), (&["he"], 30)] {
            let (mine, theirs) = UnixStream::pair().unwrap();
            let mut read = reading(mine, 5, limit);
            assert!(poll_once(&mut read).await.is_pending());
            let _writer = writer(theirs, parts);
            let reader = spawn(read);
            // Only the task of the last poll is notified.
            let (text, mine) = shield(reader).await.unwrap();
            world.note(text);
            assert_eq!(waits(&mine), (0, false));
        }
    });
    assert_eq!(events, ["20 `hello`", "50 `he`"]);
}

on_every_kernel! { with_sockets
    in_order {
        a_deferred_read_leaves_both_places
    }
    in_any_order {
        enough_bytes_are_returned_at_once
        pieces_are_read_until_they_are_enough
        a_moment_returns_what_was_read
        bytes_beat_a_moment_of_their_turn
        a_stream_that_ends_returns_its_rest
        a_moment_that_has_come_reads_what_is_there
        reads_at_a_moment_that_has_come_starve_no_task
        a_deadline_of_never_waits_for_no_moment
        a_dropped_read_leaves_both_places
        an_interrupted_read_leaves_both_places
        enough_bytes_beat_an_interruption
        an_error_has_the_number_of_bytes_read
        a_second_reader_is_refused
        reads_of_a_combinator_end_by_either_place
        an_interrupted_combinator_leaves_both_places
        a_read_that_moves_to_another_task_ends_by_either_place
    }
}

#[test]
fn a_kernel_without_sockets_answers_closed() {
    let events = Reference::run(async |world| {
        let error = TcpListener::bind(LOOPBACK).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let kernel = current_kernel().unwrap();
        let socket = SocketId { kernel, index: 0, generation: 0 };
        let mut buffer = [0; 8];
        let trap = ReadAtLeast::new(socket, &mut buffer, 5, deadline_after(ms(50)));
        let error = kernel_trap(trap).await.unwrap_err();
        assert!(error.get_ref().is_some_and(|inside| inside.is::<Closed>()), "{error}");
        world.note("closed");
        sleep(ms(100)).await.unwrap();
        world.note("no other wait");
    });
    assert_eq!(events, ["0 closed", "100 no other wait"]);
}
