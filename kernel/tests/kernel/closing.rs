//! Waits on sockets that a task closes, that the system refuses, or that several tasks use at once.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use pikake::traps::{Attempt, Closed, SocketId, attempt, read_wait, write_wait};
use pikake::{Task, sleep, spawn, timeout_after, yield_now};

use crate::support::sockets::{drain, pair, read};
use crate::support::{Faults, Faulty, Log, OnDrop, builder, kernel, ms, run, within};

type Wait = Pin<Box<dyn Future<Output = io::Result<()>>>>;

fn close(socket: SocketId) {
    attempt(socket, Attempt::Close).unwrap();
}

/// Closes a socket when it is dropped, as the owner of one does.
fn closer(socket: SocketId) -> impl Drop {
    OnDrop(move || close(socket))
}

fn assert_closed<T: std::fmt::Debug>(outcome: io::Result<T>) {
    let error = outcome.expect_err("the socket is closed");
    assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    assert!(error.get_ref().is_some_and(|inside| inside.is::<Closed>()), "{error:?}");
}

#[test]
fn closing_in_an_aborted_task_answers_the_reader() {
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
fn closing_in_a_dropped_output_answers_the_reader() {
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
fn closing_between_runs_answers_the_reader() {
    within(|| {
        let kernel = kernel();
        let (here, [reader]) = kernel.run(async {
            let (here, _there) = pair();
            let reader = spawn(read(here));
            sleep(ms(5)).await.unwrap();
            (here, [reader])
        });
        close(here);
        assert_closed(kernel.run(reader).unwrap());
    });
}

/// A wait outlives its task, and holds the last reference to it. The close drops wait, task and
/// output; the output's destructor uses sockets.
#[test]
fn closing_drops_waiters_that_use_sockets() {
    within(|| {
        run(async {
            let (here, there) = pair();
            drain(here);
            for _ in 0..2 {
                // A step has a quota of attempts, too.
                while attempt(here, Attempt::Write(&[0; 4096])).is_ok() {}
                yield_now().await.unwrap();
            }
            let waits: Rc<RefCell<Vec<Wait>>> = Rc::default();
            let log = Log::default();
            let start = |name, mut wait: Wait| {
                let (waits, log) = (waits.clone(), log.clone());
                let task = spawn(async move {
                    assert!(futures::poll!(wait.as_mut()).is_pending());
                    waits.borrow_mut().push(wait);
                    OnDrop(move || {
                        let outcome = attempt(there, Attempt::Read(&mut [0]));
                        log.add(format_args!("{name} {}", outcome.is_ok()));
                    })
                });
                task.detach();
            };
            start("reader", Box::pin(read_wait(here)));
            start("writer", Box::pin(write_wait(here)));
            sleep(ms(5)).await.unwrap();
            assert_eq!(waits.borrow().len(), 2);
            assert!(log.take().is_empty(), "the waits keep their tasks");
            close(here);
            assert_eq!(log.take(), ["reader true", "writer true"]);
            close(there);
        });
    });
}

#[test]
fn a_wait_at_a_closed_socket_fails() {
    within(|| {
        run(async {
            let (here, _there) = pair();
            drain(here);
            let waiter = spawn(async move { read_wait(here).await });
            sleep(ms(5)).await.unwrap();
            close(here);
            assert_closed(waiter.await.unwrap());
            assert_closed(read_wait(here).await);
        });
    });
}

#[test]
fn a_failed_registration_is_tried_again() {
    within(|| {
        let faults = Faults::default();
        let kernel = builder().build_on(Faulty::new(&faults));
        kernel.run(async {
            let (here, there) = pair();
            faults.register.set(true);
            let error = timeout_after(ms(100), read(here)).await.expect("refused at once");
            assert!(error.unwrap_err().to_string().contains("asked for"));
            attempt(there, Attempt::Write(b"x")).unwrap();
            let outcome = timeout_after(ms(100), read(here)).await;
            assert_eq!(outcome.expect("a byte is there").unwrap(), 1);
        });
    });
}

#[test]
fn retrying_a_busy_socket_lets_others_run() {
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
                // A task that used up its quota waits for its next step, and then tries again.
                let refused = read_wait(here).await.err();
                assert!(refused.is_none_or(|error| error.kind() == io::ErrorKind::ResourceBusy));
                answers += 1;
                assert!(answers < 100_000, "so many waits were answered and no other task ran");
            }
            first.abort();
        });
    });
}
