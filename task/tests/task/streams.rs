//! `next_timeout`: a stream is looked at for a while, and does not notice.

use std::cell::RefCell;
use std::fmt::Debug;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use async_stream::try_stream;
use futures::stream::{FuturesUnordered, Stream, StreamExt, TryStreamExt};
use pikake::net::{BufReader, MemoryStream, TcpListener, TcpStream, UnixStream, Write};
use pikake::sync::{Queue, broadcast, mpsc};
use pikake::testing::interrupt_everywhere;
use pikake::time::Instant;
use pikake::{
    Flatten, Interrupted, TimedOut, ignore_after, next_timeout, sleep, spawn, timed, timeout_after,
    yield_now,
};
use tracing::field::Field;

use crate::support::warnings::OnWarning;
use crate::support::{ms, run};

type Numbers = Pin<Box<dyn Stream<Item = Result<u32, Interrupted>>>>;

/// A generator that needs 30 ms for each of its numbers.
fn numbers(last: u32) -> Numbers {
    Box::pin(try_stream! {
        for number in 1..=last {
            sleep(ms(30)).await?;
            yield number;
        }
    })
}

#[test]
fn a_generator_goes_on_after_a_timeout() {
    run(async {
        let begin = Instant::now();
        let mut numbers = numbers(2);
        let mut seen = Vec::new();
        while let Some(next) = next_timeout(ms(10), &mut numbers).await.transpose() {
            seen.push((begin.elapsed().as_millis(), next.map(Result::unwrap)));
        }
        let late = Err(TimedOut);
        // The item wins over a timeout of the same moment.
        assert_eq!(
            seen,
            [(10, late), (20, late), (30, Ok(1)), (40, late), (50, late), (60, Ok(2))]
        );
    });
}

/// The difference to a deadline, which a generator hands on to its end.
#[test]
fn a_deadline_around_a_generator_ends_it() {
    run(async {
        let mut numbers = numbers(2);
        assert_eq!(timeout_after(ms(10), numbers.next()).await, Err(TimedOut));
        assert_eq!(numbers.next().await, None);
    });
}

/// The item that says so is dropped, so a warning has the line of the timeout.
#[test]
fn a_warning_names_a_deadline_around_the_next_item() {
    let warned = Arc::new(Mutex::new(Vec::new()));
    let warnings = warned.clone();
    let on_warning = OnWarning(move |event: &tracing::Event<'_>| {
        event.record(&mut |field: &Field, value: &dyn Debug| {
            if field.name() == "set_at" {
                warnings.lock().unwrap().push(format!("{value:?}"));
            }
        });
    });
    let mut lines = Vec::new();
    tracing::subscriber::with_default(on_warning, || {
        run(async {
            let mut deadline = async |length| {
                lines.push(line!() + 1);
                let _ = timeout_after(length, numbers(2).next()).await;
            };
            deadline(ms(10)).await;
            deadline(ms(40)).await;
            let _ = timed(ms(10), numbers(2).next()).await;
            let _ = timeout_after(ms(10), sleep(ms(20))).await;
            let (_sender, mut receiver) = mpsc::channel::<u32>(1);
            let _ = timeout_after(ms(10), receiver.next()).await;
            lines.push(line!() + 1);
            let late = ignore_after(ms(10), numbers(2).try_next()).await;
            assert!(late.is_none());
        });
    });
    let lines = [lines[0], lines[2]].map(|line| format!("{}:{line}:", file!()));
    let warned = warned.lock().unwrap();
    assert_eq!(warned.len(), 2, "{warned:?}");
    assert!(warned.iter().zip(lines).all(|(warned, line)| warned.starts_with(&line)), "{warned:?}");
}

#[test]
fn a_length_of_zero_looks_once() {
    run(async {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        assert_eq!(next_timeout(ms(0), &mut receiver).await, Err(TimedOut));
        sender.send(1).unwrap();
        assert_eq!(next_timeout(ms(0), &mut receiver).await, Ok(Some(Ok(1))));
        drop(sender);
        assert_eq!(next_timeout(ms(0), &mut receiver).await, Ok(None));
    });
}

#[test]
fn a_getter_keeps_its_position() {
    run(async {
        let queue = Rc::new(Queue::unbounded());
        let mut first = queue.stream();
        assert_eq!(next_timeout(ms(1), &mut first).await, Err(TimedOut));
        let second = spawn({
            let queue = queue.clone();
            async move { queue.get().await }
        });
        yield_now().await.unwrap();
        assert_eq!(queue.getting(), 2);
        queue.put("first").await.unwrap();
        queue.put("second").await.unwrap();
        // Granted while nothing polled the stream.
        assert_eq!(next_timeout(ms(0), &mut first).await, Ok(Some(Ok("first"))));
        assert_eq!(second.await.unwrap(), Ok(Some("second")));
    });
}

#[test]
fn a_receiver_of_all_items_misses_none() {
    run(async {
        let (sender, mut receiver) = broadcast::channel(4);
        assert_eq!(next_timeout(ms(1), &mut receiver).await, Err(TimedOut));
        sender.send(1).unwrap();
        assert_eq!(next_timeout(ms(1), &mut receiver).await, Ok(Some(Ok(Ok(1)))));
    });
}

/// The generator has read a part of a message from a socket when the time is over.
#[test]
fn a_socket_loses_no_byte() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let reader = BufReader::new(here);
        let mut lines = pin!(try_stream! {
            while let Some(line) = reader.next_line().await? {
                yield line;
            }
        });
        there.write_all(b"one").await.unwrap();
        let next = next_timeout::<dyn Stream<Item = std::io::Result<String>> + Unpin>;
        assert!(matches!(next(ms(5), &mut lines).await, Err(TimedOut)));
        // Meanwhile the task waits for other things, also for this connection.
        sleep(ms(5)).await.unwrap();
        there.write_all(b" line\ntwo\n").await.unwrap();
        drop(there);
        for expected in ["one line", "two"] {
            assert_eq!(next(ms(5), &mut lines).await.unwrap().unwrap().unwrap(), expected);
        }
        assert!(next(ms(5), &mut lines).await.unwrap().is_none());
    });
}

/// A scope that is opened around a wait that is parked in the stream interrupts that wait, too.
#[test]
fn a_later_deadline_interrupts_what_is_inside() {
    run(async {
        let begin = Instant::now();
        let mut numbers = numbers(1);
        assert_eq!(next_timeout(ms(5), &mut numbers).await, Err(TimedOut));
        let inside = timed(ms(5), next_timeout(ms(60), &mut numbers)).await;
        assert!(inside.expired);
        let item = inside.output.expect("it waits on a trap").unwrap().unwrap();
        assert!(item.unwrap_err().is_timeout());
        assert_eq!(begin.elapsed(), ms(10));
    });
}

/// A deadline that had passed before the stream was polled inside its scope is none of the wait's:
/// code that cleans up can await the stream.
#[test]
fn a_passed_deadline_leaves_the_parked_wait_alone() {
    run(async {
        let mut numbers = numbers(1);
        assert_eq!(next_timeout(ms(5), &mut numbers).await, Err(TimedOut));
        let scope = timed(ms(5), async {
            assert!(sleep(ms(100)).await.unwrap_err().is_timeout());
            next_timeout(ms(60), &mut numbers).await
        });
        assert_eq!(scope.await.output, Some(Ok(Some(Ok(1)))));
    });
}

/// A wait that was polled inside a scope returns the scope's cause once, also if another wait has
/// returned it and the stream is polled only later.
#[test]
fn a_wait_of_the_scope_returns_the_passed_deadline() {
    run(async {
        let mut numbers = numbers(1);
        let scope = timed(ms(10), async {
            assert_eq!(next_timeout(ms(5), &mut numbers).await, Err(TimedOut));
            assert!(sleep(ms(100)).await.unwrap_err().is_timeout());
            next_timeout(ms(60), &mut numbers).await
        });
        let item = scope.await.output.unwrap().unwrap().unwrap();
        assert!(item.unwrap_err().is_timeout());
    });
}

/// A deadline inside the generator passes while nothing polls it.
#[test]
fn a_deadline_inside_a_generator_is_its_own() {
    run(async {
        let mut halves: Numbers = Box::pin(try_stream! {
            let late = timeout_after(ms(10), sleep(ms(100))).await;
            assert_eq!(late, Err(TimedOut));
            sleep(ms(10)).await?;
            yield 1;
        });
        assert_eq!(next_timeout(ms(5), &mut halves).await, Err(TimedOut));
        sleep(ms(20)).await.unwrap();
        assert_eq!(timeout_after(ms(50), sleep(ms(20))).await, Ok(Ok(())));
        assert_eq!(next_timeout(ms(20), &mut halves).await, Ok(Some(Ok(1))));
    });
}

#[test]
fn a_cancel_arrives_as_an_item() {
    run(async {
        let task = spawn(async {
            let mut numbers = numbers(1);
            let mut timeouts = 0;
            loop {
                match next_timeout(ms(10), &mut numbers).await {
                    Err(TimedOut) => timeouts += 1,
                    Ok(item) => return (timeouts, item),
                }
            }
        });
        sleep(ms(25)).await.unwrap();
        task.request_cancel("enough");
        let why = Interrupted::cancelled("enough");
        assert_eq!(task.await.unwrap(), (2, Some(Err(why))));
    });
}

/// The generator cleans up, by awaiting, for longer than the caller looks.
#[test]
fn a_generator_may_clean_up_beyond_a_timeout() {
    run(async {
        let log = Rc::new(RefCell::new(Vec::new()));
        let of_task = log.clone();
        let task = spawn(async move {
            let of_stream = of_task.clone();
            let mut stream: Numbers = Box::pin(try_stream! {
                let slept = sleep(ms(100)).await;
                sleep(ms(35)).await?;
                of_stream.borrow_mut().push("clean");
                slept?;
                yield 1;
            });
            loop {
                match next_timeout(ms(20), &mut stream).await {
                    Err(TimedOut) => of_task.borrow_mut().push("late"),
                    Ok(item) => return item.unwrap().unwrap_err().is_cancel(),
                }
            }
        });
        sleep(ms(10)).await.unwrap();
        task.request_cancel("enough");
        assert!(task.await.unwrap());
        assert_eq!(*log.borrow(), ["late", "late", "clean"]);
    });
}

/// As anywhere, a scope around foreign futures alone is dropped at its deadline.
#[test]
fn a_foreign_stream_is_dropped_by_a_deadline() {
    run(async {
        let begin = Instant::now();
        let mut foreign = futures::stream::pending::<u32>();
        let looks = next_timeout(ms(100), &mut foreign);
        assert_eq!(timeout_after(ms(10), looks).await, Err(TimedOut));
        assert_eq!(begin.elapsed(), ms(10));
        assert_eq!(next_timeout(ms(10), &mut foreign).await, Err(TimedOut));
    });
}

/// Another task, and then a combinator with wakers of its own, go on with a parked wait.
#[test]
fn a_stream_moves_to_another_task() {
    run(async {
        let (first, second) = (numbers(1), numbers(1));
        let mut streams = vec![first, second];
        for stream in &mut streams {
            assert_eq!(next_timeout(ms(1), stream).await, Err(TimedOut));
        }
        let task = spawn(async move {
            for stream in &mut streams {
                assert_eq!(next_timeout(ms(1), stream).await, Err(TimedOut));
            }
            let looks = streams.iter_mut().map(|stream| next_timeout(ms(60), stream));
            looks.collect::<FuturesUnordered<_>>().collect::<Vec<_>>().await
        });
        assert_eq!(task.await.unwrap(), vec![Ok(Some(Ok(1))); 2]);
    });
}

/// Whatever wait is interrupted: no message is lost, and the cancel comes through.
#[test]
fn a_subscription_survives_every_interruption() {
    let program = async || {
        let (here, there) = MemoryStream::pair(64);
        let writer = spawn(async move {
            for line in ["one\n", "two\n"] {
                sleep(ms(25)).await?;
                there.write_all(line.as_bytes()).await?;
            }
            std::io::Result::Ok(())
        });
        let reader = BufReader::new(here);
        let mut lines = pin!(try_stream! {
            while let Some(line) = reader.next_line().await? {
                yield line;
            }
        });
        let mut read: Vec<String> = Vec::new();
        let end: Option<std::io::Error> = loop {
            match next_timeout(ms(10), &mut lines).await {
                Ok(Some(Ok(line))) => read.push(line),
                Ok(Some(Err(error))) => break Some(error),
                Ok(None) => break None,
                Err(TimedOut) => {}
            }
        };
        drop(writer.cancel_on_drop());
        (read, end.is_some())
    };
    interrupt_everywhere(program, |run| {
        let (read, was_interrupted) = run.output.clone().unwrap();
        match was_interrupted {
            true => {
                assert!(["one", "two"].starts_with(&read.iter().map(|l| &**l).collect::<Vec<_>>()))
            }
            false => assert_eq!(read, ["one", "two"]),
        }
    });
}

/// The same over a network, in whatever order the tasks run.
#[pikake::sim(seeds = 20)]
async fn a_subscription_outlives_quiet_times() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let reader = BufReader::new(TcpStream::connect(listener.local_addr()?).await?);
    let publisher = spawn(async move {
        let (stream, _) = listener.accept().await?;
        for number in 1..=3 {
            sleep(ms(25)).await?;
            stream.write_all(format!("{number}\n").as_bytes()).await?;
        }
        std::io::Result::Ok(())
    });
    let mut lines = pin!(try_stream! {
        while let Some(line) = reader.next_line().await? {
            yield line;
        }
    });
    let (mut read, mut quiet) = (Vec::new(), 0);
    loop {
        let next: Result<Option<std::io::Result<String>>, TimedOut> =
            next_timeout(ms(10), &mut lines).await;
        match next {
            Ok(Some(line)) => read.push(line?),
            Ok(None) => break,
            Err(TimedOut) => quiet += 1,
        }
    }
    publisher.await.flatten()?;
    assert_eq!(read, ["1", "2", "3"]);
    assert!(quiet >= 6, "{quiet}");
    Ok(())
}
