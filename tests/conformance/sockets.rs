//! The cases that need sockets, on the kernels that have some: the timeouts and cancels of Curio's
//! `test_io` and `test_socket`, Shrapnel's `test_poller` and `test_notify_of_close`.
//!
//! Time is virtual here, too: it jumps when no socket has an event, so a silent peer costs no real
//! time.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::rc::Rc;

use pikake::net::{TcpListener, TcpStream, UdpSocket, UnixStream, interruption};
use pikake::traps::{
    Attempt, Closed, OpenSocket, Opened, ResourceBusy, attempt, open_socket, read_wait,
};
use pikake::{TimedOut, sleep, spawn, timed, timeout_after, yield_now};

use crate::runner::{Runner, World, describe, ms, next_step, on_every_kernel};

const LOOPBACK: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// More bytes than the system keeps between two sockets.
const MUCH: usize = 8 << 20;

/// The outcome of an attempt on a socket, in a few words.
fn came_to<T>(outcome: io::Result<T>) -> String {
    match outcome {
        Ok(_) => "ok".to_owned(),
        Err(error) => match interruption(&error) {
            Some(interrupted) => interrupted.to_string(),
            None => error.to_string(),
        },
    }
}

fn is<E: std::error::Error + 'static>(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inside| inside.is::<E>())
}

fn an_accept_that_timed_out_can_be_retried<R: Runner>() {
    let events = R::run(async |world| {
        let listener = TcpListener::bind(LOOPBACK).await.unwrap();
        for _ in 0..2 {
            let outcome = timeout_after(ms(500), listener.accept()).await;
            world.note(format_args!("{:?}", outcome.map(came_to)));
        }
        let address = listener.local_addr().unwrap();
        let client = spawn(async move { TcpStream::connect(address).await.unwrap() });
        let (server, _) = listener.accept().await.unwrap();
        client.await.unwrap().write_all(b"hello").await.unwrap();
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 5);
    });
    assert_eq!(events, ["500 Err(TimedOut)", "1000 Err(TimedOut)"]);
}

fn an_accept_can_be_cancelled<R: Runner>() {
    let events = R::run(async |world| {
        let listener = TcpListener::bind(LOOPBACK).await.unwrap();
        let task = spawn(async move { came_to(listener.accept().await) });
        sleep(ms(500)).await.unwrap();
        task.cancel().await.unwrap();
        world.note(task.await.unwrap());
    });
    assert_eq!(events, ["500 cancelled"]);
}

fn a_read_can_time_out_or_be_cancelled<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, _theirs) = UnixStream::pair().unwrap();
        let outcome = timed(ms(500), mine.read(&mut [0; 8])).await;
        world.note(came_to(outcome.output.unwrap()));
        let task = spawn(async move { came_to(mine.read(&mut [0; 8]).await) });
        sleep(ms(500)).await.unwrap();
        task.cancel().await.unwrap();
        world.note(task.await.unwrap());
    });
    assert_eq!(events, ["500 a deadline passed", "1000 cancelled"]);
}

fn a_receive_can_time_out_or_be_cancelled<R: Runner>() {
    let events = R::run(async |world| {
        let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
        let outcome = timed(ms(500), socket.recv_from(&mut [0; 8])).await;
        world.note(came_to(outcome.output.unwrap()));
        let task = spawn(async move { came_to(socket.recv_from(&mut [0; 8]).await) });
        sleep(ms(500)).await.unwrap();
        task.cancel().await.unwrap();
        world.note(task.await.unwrap());
    });
    assert_eq!(events, ["500 a deadline passed", "1000 cancelled"]);
}

fn a_timed_out_read_exact_reports_its_progress<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"Msg1\nMsg2\n").await.unwrap();
        let mut buffer = [0; 64];
        let outcome = timed(ms(500), mine.read_exact(&mut buffer)).await;
        let error = outcome.output.unwrap().unwrap_err();
        world.note(format_args!("{} bytes: {:?}", error.read, error.source.kind()));
        drop(theirs);
        let error = mine.read_exact(&mut buffer).await.unwrap_err();
        world.note(format_args!("{} bytes: {:?}", error.read, error.source.kind()));
        assert_eq!(&buffer[..10], b"Msg1\nMsg2\n");
    });
    assert_eq!(events, ["500 10 bytes: TimedOut", "500 0 bytes: UnexpectedEof"]);
}

fn a_timed_out_write_reports_its_progress<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let outcome = timed(ms(500), mine.write_all(&vec![7; MUCH])).await;
        let error = outcome.output.unwrap().unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::TimedOut);
        assert!(error.written > 0 && error.written < MUCH);
        drop(mine);
        let (mut sum, mut buffer) = (0, vec![0; 65_536]);
        loop {
            match theirs.read(&mut buffer).await.unwrap() {
                0 => break,
                length => sum += length,
            }
        }
        world.note(sum == error.written);
    });
    assert_eq!(events, ["500 true"]);
}

fn two_tasks_read_and_write_one_socket<R: Runner>() {
    R::run(async |_| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mine = Rc::new(mine);
        let reads = spawn({
            let mine = mine.clone();
            async move { mine.read(&mut [0; 8]).await.unwrap() }
        });
        yield_now().await.unwrap();
        let drains = spawn(async move {
            let (mut sum, mut buffer) = (0, vec![0; 65_536]);
            while sum < MUCH {
                sum += theirs.read(&mut buffer).await.unwrap();
            }
            theirs.write_all(b"thanks").await.unwrap();
        });
        mine.write_all(&vec![7; MUCH]).await.unwrap();
        drains.await.unwrap();
        assert_eq!(reads.await.unwrap(), 6);
    });
}

fn refusing_a_second_reader_leaves_the_first<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mine = Rc::new(mine);
        let first = spawn({
            let mine = mine.clone();
            async move { mine.read(&mut [0; 8]).await.unwrap() }
        });
        yield_now().await.unwrap();
        assert!(is::<ResourceBusy>(&mine.read(&mut [0; 8]).await.unwrap_err()));
        theirs.write_all(b"hello").await.unwrap();
        world.note(first.await.unwrap());
    });
    assert_eq!(events, ["0 5"]);
}

fn cancelling_a_writer_leaves_the_reader_working<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mine = Rc::new(mine);
        let reader = spawn({
            let mine = mine.clone();
            async move { came_to(mine.read(&mut [0; 8]).await) }
        });
        let writer = spawn({
            let mine = mine.clone();
            async move { came_to(mine.write_all(&vec![7; MUCH]).await.map_err(|error| error.source)) }
        });
        sleep(ms(10)).await.unwrap();
        assert!(is::<ResourceBusy>(&mine.writable().await.unwrap_err()));
        writer.cancel().await.unwrap();
        world.note(writer.await.unwrap());
        theirs.write_all(b"hello").await.unwrap();
        world.note(reader.await.unwrap());
    });
    assert_eq!(events, ["10 cancelled", "10 ok"]);
}

fn an_endless_yielder_does_not_starve_sockets<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let spins = spawn(async { while yield_now().await.is_ok() {} });
        let echoes = spawn(async move {
            let mut buffer = [0; 8];
            while let Ok(length @ 1..) = theirs.read(&mut buffer).await {
                theirs.write_all(&buffer[..length]).await.unwrap();
            }
        });
        for _ in 0..10 {
            mine.write_all(b"ping").await.unwrap();
            mine.read_exact(&mut [0; 4]).await.unwrap();
        }
        drop(mine);
        echoes.await.unwrap();
        spins.cancel().await.unwrap();
        world.note("done");
    });
    assert_eq!(events, ["0 done"]);
}

/// Lets a deadline of ten milliseconds pass, in a step in which data are sent as well.
pub(crate) fn sends_late(world: &World, stream: UnixStream) -> pikake::Task<UnixStream> {
    let world = world.clone();
    spawn(async move {
        next_step().await;
        world.stall(20);
        stream.write_all(b"hello").await.unwrap();
        stream
    })
}

fn data_beat_a_deadline_of_their_turn<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let sender = sends_late(&world, theirs);
        let outcome = timeout_after(ms(10), mine.read(&mut [0; 8])).await;
        world.note(format_args!("{outcome:?}"));
        world.note(describe(sleep(ms(1)).await));
        sender.await.unwrap();
    });
    assert_eq!(events, ["20 Ok(Ok(5))", "21 ok"]);
}

fn a_deadline_beaten_by_data_is_delivered_next<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let sender = sends_late(&world, theirs);
        let outcome = timeout_after(ms(10), async {
            world.note(came_to(mine.read(&mut [0; 8]).await));
            world.note(came_to(mine.read(&mut [0; 8]).await));
        });
        world.note(format_args!("{:?}", outcome.await));
        sender.await.unwrap();
    });
    assert_eq!(events, ["20 ok", "20 a deadline passed", "20 Err(TimedOut)"]);
}

fn readers_that_abort_each_other_leave_one<R: Runner>() {
    let events = R::run(async |world| {
        let (one, one_peer) = UnixStream::pair().unwrap();
        let (other, other_peer) = UnixStream::pair().unwrap();
        let handles: Rc<std::cell::RefCell<Vec<pikake::Task<()>>>> = Rc::default();
        for (number, stream) in [one, other].into_iter().enumerate() {
            let (world, others) = (world.clone(), handles.clone());
            let task = spawn(async move {
                stream.read(&mut [0; 8]).await.unwrap();
                others.borrow()[1 - number].abort();
                world.note("goes on");
            });
            handles.borrow_mut().push(task);
        }
        yield_now().await.unwrap();
        one_peer.try_write(b"x").unwrap();
        other_peer.try_write(b"x").unwrap();
        sleep(ms(1)).await.unwrap();
        assert!(handles.borrow().iter().all(pikake::Task::is_finished));
        handles.borrow_mut().clear();
    });
    // The real kernel's virtual clock jumps before the kernel asks the sockets.
    assert!(events == ["0 goes on"] || events == ["1 goes on"], "{events:?}");
}

fn closing_a_socket_wakes_its_waiters<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, _theirs) = UnixStream::pair().unwrap();
        let mine = Rc::new(mine);
        let reader = spawn({
            let mine = mine.clone();
            async move { is::<Closed>(&mine.read(&mut [0; 8]).await.unwrap_err()) }
        });
        let writer = spawn({
            let mine = mine.clone();
            async move { is::<Closed>(&mine.write_all(&vec![7; MUCH]).await.unwrap_err().source) }
        });
        sleep(ms(10)).await.unwrap();
        mine.close();
        world.note(reader.await.unwrap());
        world.note(writer.await.unwrap());
        world.note(is::<Closed>(&mine.read(&mut [0; 8]).await.unwrap_err()));
    });
    assert_eq!(events, ["10 true", "10 true", "10 true"]);
}

/// A task that reads and then sleeps, and notes both answers.
fn reader(world: &World, socket: &Rc<UnixStream>) -> pikake::Task<()> {
    let (world, socket) = (world.clone(), socket.clone());
    spawn(async move {
        world.note(came_to(socket.read(&mut [0; 8]).await));
        world.note(describe(sleep(ms(1)).await));
    })
}

fn a_reader_returns_close_or_cancel_whichever_first<R: Runner>() {
    let events = R::run(async |world| {
        for close_first in [true, false] {
            let (mine, _theirs) = UnixStream::pair().unwrap();
            let mine = Rc::new(mine);
            let reader = reader(&world, &mine);
            yield_now().await.unwrap();
            if close_first {
                mine.close();
                yield_now().await.unwrap();
                reader.request_cancel("");
            } else {
                reader.request_cancel("");
                yield_now().await.unwrap();
                mine.close();
            }
            reader.await.unwrap();
        }
    });
    let closed = Closed.to_string();
    assert_eq!(events, [&format!("0 {closed}"), "0 cancelled", "0 cancelled", "1 ok"]);
}

fn a_close_beats_a_cancel_of_its_step<R: Runner>() {
    for close_first in [true, false] {
        let events = R::run(async move |world| {
            let (mine, _theirs) = UnixStream::pair().unwrap();
            let mine = Rc::new(mine);
            let reader = reader(&world, &mine);
            sleep(ms(1)).await.unwrap();
            if close_first {
                mine.close();
                reader.request_cancel("");
            } else {
                reader.request_cancel("");
                mine.close();
            }
            reader.await.unwrap();
        });
        assert_eq!(events, [&format!("1 {Closed}"), "1 cancelled"]);
    }
}

fn a_close_beats_data_of_its_turn<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mine = Rc::new(mine);
        let reader = spawn({
            let mine = mine.clone();
            async move { is::<Closed>(&mine.read(&mut [0; 8]).await.unwrap_err()) }
        });
        yield_now().await.unwrap();
        theirs.try_write(b"late").unwrap();
        mine.close();
        world.note(reader.await.unwrap());
    });
    assert_eq!(events, ["0 true"]);
}

fn a_read_may_outlast_its_scope<R: Runner>() {
    let events = R::run(async |world| {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mut buffer = [0; 8];
        let mut read = pin!(mine.read(&mut buffer));
        let first = timeout_after(ms(10), async {
            assert!(futures::poll!(&mut read).is_pending());
        });
        assert_eq!(first.await, Ok::<_, TimedOut>(()));
        theirs.write_all(b"hello").await.unwrap();
        sleep(ms(20)).await.unwrap();
        world.note(read.await.unwrap());
    });
    assert_eq!(events, ["20 5"]);
}

fn a_descriptor_is_stored_or_refused<R: Runner>() {
    R::run(async |_| {
        let Ok(Opened::Pair(mine, theirs)) = open_socket(OpenSocket::UnixStreamPair) else {
            panic!("a pair is two sockets");
        };
        let descriptor_of = |socket| {
            let mut descriptor = None;
            let outcome = attempt(socket, Attempt::Descriptor(&mut descriptor));
            outcome.map(|moved| (moved, descriptor))
        };
        match (descriptor_of(mine), descriptor_of(theirs)) {
            (Ok((0, Some(one))), Ok((0, Some(other)))) => assert_ne!(one, other),
            (Err(one), Err(other)) => {
                assert_eq!([one.kind(), other.kind()], [ErrorKind::Unsupported; 2]);
            }
            outcomes => panic!("both sockets are of one kind: {outcomes:?}"),
        }
        // The socket stays the kernel's.
        attempt(theirs, Attempt::Write(b"hi")).unwrap();
        read_wait(mine).await.unwrap();
        assert_eq!(attempt(mine, Attempt::Read(&mut [0; 4])).unwrap(), 2);
        attempt(mine, Attempt::Close).unwrap();
        assert!(is::<Closed>(&descriptor_of(mine).unwrap_err()));
    });
}

on_every_kernel! { with_sockets
    in_order {
        refusing_a_second_reader_leaves_the_first
        a_reader_returns_close_or_cancel_whichever_first
        readers_that_abort_each_other_leave_one
    }
    in_any_order {
        an_accept_that_timed_out_can_be_retried
        an_accept_can_be_cancelled
        a_read_can_time_out_or_be_cancelled
        a_receive_can_time_out_or_be_cancelled
        a_timed_out_read_exact_reports_its_progress
        a_timed_out_write_reports_its_progress
        two_tasks_read_and_write_one_socket
        cancelling_a_writer_leaves_the_reader_working
        an_endless_yielder_does_not_starve_sockets
        data_beat_a_deadline_of_their_turn
        a_deadline_beaten_by_data_is_delivered_next
        closing_a_socket_wakes_its_waiters
        a_close_beats_a_cancel_of_its_step
        a_close_beats_data_of_its_turn
        a_read_may_outlast_its_scope
        a_descriptor_is_stored_or_refused
    }
}
