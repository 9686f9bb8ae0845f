//! The traits of other libraries on our streams: `tokio::io` and `futures_io`.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures::io::{AsyncReadExt, AsyncWriteExt};
use pikake::net::{SendIo, TcpListener, TcpStream, UnixStream, interruption};
use pikake::testing::Injector;
use pikake::{current, sleep, spawn, timed, timeout_after};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const MOMENT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(3600);

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (one, listener.accept().await.unwrap().0)
}

/// Reads by the trait of `tokio::io`.
async fn read<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut buffer = ReadBuf::new(buffer);
    poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut buffer)).await?;
    Ok(buffer.filled().len())
}

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, data: &[u8]) -> std::io::Result<usize> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, data)).await
}

/// More than the system's buffers hold, so that both sides have to wait.
fn much() -> Vec<u8> {
    (0..8_000_000_u32).map(|number| number as u8).collect()
}

#[pikake::test]
async fn tokio_io_transfers_both_ways_at_once() {
    let (mut one, other) = tcp_pair().await;
    let echo = spawn(async move {
        let (mut from, mut to) = other.into_split();
        let mut buffer = vec![0; 10_000];
        loop {
            let length = read(&mut from, &mut buffer).await.unwrap();
            if length == 0 {
                return poll_fn(|cx| Pin::new(&mut to).poll_shutdown(cx)).await.unwrap();
            }
            let mut rest = &buffer[..length];
            while !rest.is_empty() {
                rest = &rest[write(&mut to, rest).await.unwrap()..];
            }
        }
    });
    let data = much();
    let (mut sent, mut back) = (&data[..], Vec::new());
    let mut buffer = vec![0; 100_000];
    // One task polls both directions, so both waits are outstanding at once.
    poll_fn(|cx| {
        while !sent.is_empty()
            && let Poll::Ready(written) = AsyncWrite::poll_write(Pin::new(&mut one), cx, sent)
        {
            sent = &sent[written.unwrap()..];
            if sent.is_empty() {
                assert!(Pin::new(&mut one).poll_shutdown(cx).is_ready());
            }
        }
        loop {
            let mut room = ReadBuf::new(&mut buffer);
            match AsyncRead::poll_read(Pin::new(&mut one), cx, &mut room) {
                Poll::Ready(read) => read.unwrap(),
                Poll::Pending => return Poll::Pending,
            }
            if room.filled().is_empty() {
                return Poll::Ready(());
            }
            back.extend_from_slice(room.filled());
        }
    })
    .await;
    echo.await.unwrap();
    assert!(back == data, "{} of {} bytes came back", back.len(), data.len());
}

#[pikake::test]
async fn futures_io_transfers_over_unix_streams_and_halves() {
    let (mut one, other) = UnixStream::pair().unwrap();
    let data = much();
    let expected = data.clone();
    let reader = spawn(async move {
        let (mut from, _) = other.split();
        let mut all = Vec::new();
        from.read_to_end(&mut all).await.unwrap();
        all == expected
    });
    AsyncWriteExt::write_all(&mut one, &data).await.unwrap();
    AsyncWriteExt::close(&mut one).await.unwrap();
    assert!(reader.await.unwrap());
}

#[pikake::test]
async fn interruption_is_an_error_without_retry() {
    let (mut one, _other) = tcp_pair().await;
    let outcome = timed(MOMENT, read(&mut one, &mut [0; 8])).await;
    let error = outcome.output.expect("it was told").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(interruption(&error).is_some());

    let task = spawn(async move { read(&mut one, &mut [0; 8]).await.unwrap_err() });
    sleep(MOMENT).await.unwrap();
    task.cancel().await.unwrap();
    let error = task.await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Other);
    assert!(interruption(&error).is_some_and(|told| told.is_cancel()));
}

#[pikake::test]
async fn abandoned_wait_blocks_no_other() {
    let (mut one, other) = tcp_pair().await;
    let mut buffer = [0; 8];
    // Polled once, and left there: no other wait may find that the stream is busy.
    let polled = poll_fn(|cx| {
        let mut room = ReadBuf::new(&mut buffer);
        Poll::Ready(Pin::new(&mut one).poll_read(cx, &mut room))
    });
    assert!(polled.await.is_pending());
    let waited = timed(MOMENT, one.read(&mut buffer)).await;
    let error = waited.output.expect("it was told").unwrap_err();
    assert!(interruption(&error).is_some(), "{error}");
    other.write_all(b"hello").await.unwrap();
    assert_eq!(one.read(&mut buffer).await.unwrap(), 5);

    // The same, and then in another task, by the trait.
    let polled = poll_fn(|cx| {
        let mut room = ReadBuf::new(&mut buffer);
        Poll::Ready(Pin::new(&mut one).poll_read(cx, &mut room))
    });
    assert!(polled.await.is_pending());
    let reader = spawn(async move { read(&mut one, &mut [0; 8]).await.unwrap() });
    sleep(MOMENT).await.unwrap();
    other.write_all(b"again!").await.unwrap();
    assert_eq!(reader.await.unwrap(), 6);
}

#[pikake::test]
async fn cancel_is_reported_after_an_abandoned_wait() {
    let (mut one, _other) = tcp_pair().await;
    let task = spawn(async move {
        let polled = poll_fn(|cx| {
            let mut buffer = [0; 8];
            let mut room = ReadBuf::new(&mut buffer);
            Poll::Ready(Pin::new(&mut one).poll_read(cx, &mut room))
        });
        assert!(polled.await.is_pending());
        let told = sleep(LONG).await.unwrap_err();
        assert!(current().name().is_empty());
        (told.is_cancel(), one)
    });
    sleep(MOMENT).await.unwrap();
    task.cancel().await.unwrap();
    assert!(task.await.unwrap().0);
}

#[pikake::test]
async fn close_wakes_a_pending_poll() {
    let (one, _other) = tcp_pair().await;
    let (mut from, to) = one.into_split();
    let reader = spawn(async move {
        let outcome = read(&mut from, &mut [0; 8]).await;
        (outcome.unwrap(), from)
    });
    sleep(MOMENT).await.unwrap();
    drop(_other);
    assert_eq!(reader.await.unwrap().0, 0);
    drop(to);
}

#[pikake::test]
async fn send_io_is_closed_on_its_kernel() {
    fn demanding<T: Send + Sync + 'static>(value: T) -> T {
        value
    }
    let (one, other) = tcp_pair().await;
    let mut one = demanding(SendIo::new(one));
    AsyncWriteExt::write_all(&mut one, b"hello").await.unwrap();
    let mut buffer = [0; 8];
    assert_eq!(other.read(&mut buffer).await.unwrap(), 5);
    other.write_all(b"you").await.unwrap();
    assert_eq!(read(&mut one, &mut buffer).await.unwrap(), 3);
    std::thread::spawn(move || drop(one)).join().unwrap();
    let end = timeout_after(Duration::from_secs(20), other.read(&mut buffer)).await;
    assert_eq!(end.expect("it is closed soon").unwrap(), 0);
}

/// Does something until it is done, and counts how often it was interrupted.
async fn insist(told: &Cell<u32>, mut attempt: impl AsyncFnMut() -> io::Result<usize>) -> usize {
    loop {
        match attempt().await {
            Ok(length) => return length,
            Err(error) => {
                assert!(interruption(&error).is_some(), "{error}");
                told.set(told.get() + 1);
            }
        }
    }
}

/// Interrupts at every wait a task that sends a lot, and takes back what the other side then
/// echoes.
fn nothing_is_lost(
    send: impl AsyncFn(&mut UnixStream, &[u8]) -> io::Result<usize>,
    take: impl AsyncFn(&mut UnixStream, &mut [u8]) -> io::Result<usize>,
) {
    const LENGTH: usize = 500_000;
    let data = &much()[..LENGTH];
    let report = Injector::new().cleanup_limit(None).patience(Duration::from_millis(1)).run(
        async || {
            let (mut one, other) = UnixStream::pair().unwrap();
            let echo = spawn(async move {
                let mut all = vec![0; LENGTH];
                other.read_exact(&mut all).await.unwrap();
                other.write_all(&all).await.unwrap();
            });
            let (told, mut rest) = (Cell::new(0), data);
            while !rest.is_empty() {
                rest = &rest[insist(&told, async || send(&mut one, rest).await).await..];
            }
            let (mut back, mut length) = (vec![0; LENGTH], 0);
            while length < LENGTH {
                let room = &mut back[length..];
                length += insist(&told, async || take(&mut one, room).await).await;
            }
            // Nothing is interrupted any more, for nothing is waited for.
            drop(echo);
            (back == data, told.get())
        },
        |run| {
            let (is_whole, told) = run.output.unwrap();
            assert!(is_whole, "something was lost or doubled");
            assert!(told <= u32::from(run.interruption.is_some()), "told {told} times");
        },
    );
    assert!(report.suspensions > 2 && report.cancels > 2, "{report:?}");
}

#[test]
fn interrupted_tokio_io_loses_nothing() {
    nothing_is_lost(
        async |stream, data| write(stream, data).await,
        async |stream, buffer| read(stream, buffer).await,
    );
}

#[test]
fn interrupted_futures_io_loses_nothing() {
    nothing_is_lost(
        async |stream, data| AsyncWriteExt::write(stream, data).await,
        async |stream, buffer| AsyncReadExt::read(stream, buffer).await,
    );
}

/// A buffer of this size, of which nothing is initialized.
const ROOMY: usize = 1 << 20;

/// Reads by the trait of `tokio::io` into buffers that are not initialized, or only in part.
async fn read_uninitialized() {
    let (mut one, other) = UnixStream::pair().unwrap();
    let mut memory = Box::new_uninit_slice(ROOMY);
    let mut buffer = ReadBuf::uninit(&mut memory);
    let waits = poll_fn(|cx| {
        let polled = Pin::new(&mut one).poll_read(cx, &mut buffer);
        Poll::Ready(polled.is_pending())
    });
    assert!(waits.await);
    assert_eq!(buffer.initialized().len(), 0, "an attempt that would block touches nothing");

    other.write_all(b"hello").await.unwrap();
    poll_fn(|cx| Pin::new(&mut one).poll_read(cx, &mut buffer)).await.unwrap();
    assert_eq!(buffer.initialized(), b"hello", "nothing but what was read is touched");
    assert_eq!(buffer.filled(), b"hello");

    // Bytes that are initialized stay so: a read goes into them, and the next behind them.
    buffer.initialize_unfilled_to(3).fill(b'-');
    other.write_all(b" world").await.unwrap();
    while buffer.filled().len() < 11 {
        poll_fn(|cx| Pin::new(&mut one).poll_read(cx, &mut buffer)).await.unwrap();
    }
    assert_eq!(buffer.initialized(), b"hello world");

    let mut vector = Vec::with_capacity(4);
    other.write_all(b"into a vector").await.unwrap();
    while vector.len() < 13 {
        assert!(one.read_buf(&mut vector).await.unwrap() > 0);
    }
    assert_eq!(vector, b"into a vector");
    drop(other);
    let mut nothing = ReadBuf::uninit(&mut memory);
    poll_fn(|cx| Pin::new(&mut one).poll_read(cx, &mut nothing)).await.unwrap();
    assert_eq!((nothing.filled().len(), one.read_buf(&mut vector).await.unwrap()), (0, 0));
}

#[pikake::test]
async fn uninitialized_buffers_are_read_into_as_they_are() {
    read_uninitialized().await;
}

#[test]
fn uninitialized_buffers_in_simulation() {
    pikake::sim::example(read_uninitialized());
}
