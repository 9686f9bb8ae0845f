//! Sockets that are closed, refused by the system or fought over, and those who wait at them.

mod support;

use std::io::{self, IoSlice, IoSliceMut};

use pikake::traps::{Closed, Direction, SocketId, read_wait, sockets, sockets_of, when_ready};
use pikake::{Task, sleep, spawn, timeout_after, yield_now};
use support::{Faults, Faulty, OnDrop, builder, kernel, ms, run, within};

fn pair() -> (SocketId, SocketId) {
    sockets(|net| net.pair(false)).unwrap()
}

async fn read(socket: SocketId) -> io::Result<usize> {
    let attempt =
        |net: &dyn pikake::traps::Sockets| net.read(socket, &mut [IoSliceMut::new(&mut [0; 4])]);
    when_ready(socket, Direction::Read, attempt).await
}

/// Finds out that there is nothing to read, after which a wait for it suspends.
fn drain(socket: SocketId) {
    let error = sockets(|net| net.read(socket, &mut [IoSliceMut::new(&mut [0; 8])])).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

/// Closes a socket when it is dropped, as the owner of one does.
fn closer(socket: SocketId) -> impl Drop {
    OnDrop(move || sockets_of(socket, |net| net.close(socket)).unwrap())
}

fn assert_closed<T: std::fmt::Debug>(outcome: io::Result<T>) {
    let error = outcome.expect_err("the socket is closed");
    assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    assert!(error.get_ref().is_some_and(|inside| inside.is::<Closed>()), "{error:?}");
}

#[test]
fn closing_in_the_destructor_of_an_aborted_task_answers_the_reader() {
    within(|| {
        run(async {
            let (here, _there) = pair();
            let reader = spawn(read(here));
            let closer = closer(here);
            let holder: Task<()> = spawn(async move {
                let _closer = closer;
                std::future::pending().await
            });
            sleep(ms(5)).await.unwrap();
            holder.abort();
            assert_closed(reader.await.unwrap());
        });
    });
}

#[test]
fn closing_in_the_destructor_of_an_output_that_nobody_takes_answers_the_reader() {
    within(|| {
        run(async {
            let (here, _there) = pair();
            let reader = spawn(read(here));
            let closer = closer(here);
            let held = spawn(async move {
                sleep(ms(5)).await.unwrap();
                closer
            });
            held.detach();
            assert_closed(reader.await.unwrap());
        });
    });
}

#[test]
fn closing_between_two_runs_answers_the_reader_in_the_next() {
    within(|| {
        let kernel = kernel();
        let (here, [reader]) = kernel.run(async {
            let (here, _there) = pair();
            let reader = spawn(read(here));
            sleep(ms(5)).await.unwrap();
            (here, [reader])
        });
        sockets_of(here, |net| net.close(here)).unwrap();
        assert_closed(kernel.run(reader).unwrap());
    });
}

#[test]
fn a_wait_at_a_socket_that_is_closed_meanwhile_says_so() {
    within(|| {
        run(async {
            let (here, _there) = pair();
            drain(here);
            let waiter = spawn(async move { read_wait(here).await });
            sleep(ms(5)).await.unwrap();
            sockets(|net| net.close(here)).unwrap();
            assert_closed(waiter.await.unwrap());
            assert_closed(read_wait(here).await);
        });
    });
}

#[test]
fn a_socket_that_could_not_be_registered_at_first_is_waited_for_later() {
    within(|| {
        let faults = Faults::default();
        let kernel = builder().build_on(Faulty::new(&faults));
        kernel.run(async {
            let (here, there) = pair();
            faults.register.set(true);
            let error = timeout_after(ms(100), read(here)).await.expect("refused at once");
            assert!(error.unwrap_err().to_string().contains("asked for"));
            sockets(|net| net.write(there, &[IoSlice::new(b"x")])).unwrap();
            let outcome = timeout_after(ms(100), read(here)).await;
            assert_eq!(outcome.expect("a byte is there").unwrap(), 1);
        });
    });
}

#[test]
fn who_insists_on_a_busy_socket_lets_the_others_run() {
    within(|| {
        run(async {
            let (here, _there) = pair();
            drain(here);
            let first = spawn(async move { timeout_after(ms(10), read_wait(here)).await });
            yield_now().await.unwrap();
            let passer_by = spawn(async {
                for _ in 0..3 {
                    yield_now().await.unwrap();
                }
            });
            let mut answers = 0;
            while !passer_by.is_finished() {
                // Once it has had its share it waits for its next step, and is told to look again.
                let refused = read_wait(here).await.err();
                assert!(refused.is_none_or(|error| error.kind() == io::ErrorKind::ResourceBusy));
                answers += 1;
                assert!(answers < 100_000, "so many waits were answered and nobody else ran");
            }
            first.abort();
        });
    });
}
