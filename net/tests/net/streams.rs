//! Reading in pieces, frames, copies, and connections taken many at a time.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::rc::Rc;

use pikake::net::{
    BufReader, BufWriter, Copied, Decode, FramedReader, FramedWriter, LengthDelimited,
    LimitExceeded, LineCodec, MemoryStream, Read, ReadBuffer, TcpListener, TcpStream, UnixListener,
    UnixStream, Write, copy, copy_bidirectional, interruption,
};
use pikake::{sleep, spawn, timed, timeout_after, yield_now};
use proptest::prelude::*;

use crate::support::scratch::Scratch;
use crate::support::{ms, run};

/// More than any test here writes without being read.
const ROOMY: usize = 1 << 20;

fn is_limit(error: &io::Error) -> bool {
    error.kind() == ErrorKind::InvalidData
        && error.get_ref().is_some_and(|inside| inside.is::<LimitExceeded>())
}

/// A stream on which this comes, and then the end.
async fn with(data: &[u8]) -> MemoryStream {
    let (there, here) = MemoryStream::pair(ROOMY);
    there.write_all(data).await.unwrap();
    here
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener =
        TcpListener::bind((std::net::IpAddr::from(Ipv4Addr::LOCALHOST), 0)).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

#[test]
fn pieces_are_taken_whole_and_in_order() {
    run(async {
        let reader = BufReader::new(with(b"one\r\ntwo\n\nfour|five|sixseven").await);
        assert_eq!(reader.next_line().await.unwrap().as_deref(), Some("one"));
        let mut lines = reader.lines();
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("two"));
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(""));
        assert_eq!(reader.next_segment(b'|').await.unwrap().as_deref(), Some(&b"four"[..]));
        let mut five = [0; 5];
        reader.read_exact(&mut five).await.unwrap();
        assert_eq!(&five, b"five|");
        let mut three = [0; 3];
        assert_eq!(reader.read(&mut three).await.unwrap(), 3);
        assert_eq!((&three, reader.buffered()), (b"six", 5));
        assert_eq!(reader.next_segment(b'|').await.unwrap().as_deref(), Some(&b"seven"[..]));
        assert_eq!(reader.next_segment(b'|').await.unwrap(), None);
        assert_eq!(reader.next_line().await.unwrap(), None);
        let error = reader.read_exact(&mut five).await.unwrap_err();
        assert_eq!((error.read, error.source.kind()), (0, ErrorKind::UnexpectedEof));
    });
}

#[test]
fn partly_read_piece_refuses_other_readers() {
    run(async {
        let (there, here) = MemoryStream::pair(ROOMY);
        there.write_all(b"be").await.unwrap();
        let reader = Rc::new(BufReader::new(here));
        let shared = reader.clone();
        let line = spawn(async move { shared.next_line().await });
        sleep(ms(1)).await.unwrap();
        // The line's task is awake, and somebody else is first.
        there.write_all(b"gun\n").await.unwrap();
        for length in [1, 1 << 16] {
            let error = reader.read(&mut vec![0; length]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        }
        assert_eq!(line.await.unwrap().unwrap().as_deref(), Some("begun"));
    });
}

#[test]
fn read_into_an_empty_buffer_returns_at_once() {
    run(async {
        let (_there, here) = MemoryStream::pair(ROOMY);
        let reader = BufReader::new(here);
        assert_eq!(timeout_after(ms(10), reader.read(&mut [])).await.unwrap().unwrap(), 0);
    });
}

#[test]
fn into_parts_returns_the_buffered_bytes() {
    run(async {
        let reader = BufReader::new(with(b"CONNECT\nthe rest").await);
        reader.next_line().await.unwrap();
        let (stream, rest) = reader.into_parts();
        assert_eq!(rest, b"the rest");
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
    });
}

#[test]
fn line_that_is_not_utf8_is_skipped() {
    run(async {
        let reader = BufReader::new(with(b"\xff\xfe\nplain\n").await);
        assert_eq!(reader.next_line().await.unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(reader.next_line().await.unwrap().as_deref(), Some("plain"));
    });
}

#[test]
fn line_over_the_limit_is_an_error() {
    run(async {
        let (hostile, stream) = MemoryStream::pair(100);
        let sent = std::rc::Rc::new(Cell::new(0));
        let counted = sent.clone();
        let flood = spawn(async move {
            while hostile.write_all(&[b'x'; 100]).await.is_ok() {
                counted.set(counted.get() + 100);
            }
        });
        let reader = BufReader::new(stream).limit(50_000);
        for _ in 0..2 {
            let error = reader.next_line().await.unwrap_err();
            assert!(is_limit(&error), "{error}");
            assert!(error.to_string().contains("50000 bytes"), "{error}");
        }
        // No more was kept than the limit and a chunk.
        assert!(reader.buffered() > 50_000 && reader.buffered() <= 50_000 + 16 * 1024);
        assert!(sent.get() <= 50_000 + 16 * 1024 + 200);
        assert!(is_limit(&reader.read_to_end(&mut Vec::new()).await.unwrap_err()));
        drop(reader);
        flood.await.unwrap();

        // At the limit is within it.
        let reader = BufReader::new(with(b"12345678\n123456789\n").await).limit(9);
        assert_eq!(reader.next_line().await.unwrap().as_deref(), Some("12345678"));
        assert!(is_limit(&reader.next_line().await.unwrap_err()));
    });
}

async fn all_of(stream: impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    BufReader::new(stream).read_to_end(&mut all).await.unwrap();
    all
}

#[test]
fn text_is_read_to_the_end() {
    run(async {
        let reader = BufReader::new(with(b"one\r\ntwo\r").await);
        let mut text = "zero ".to_owned();
        assert_eq!(reader.read_to_string(&mut text).await.unwrap(), 9);
        assert_eq!(text, "zero one\r\ntwo\r");
        let reader = BufReader::new(with(b"\xff!").await);
        let error = reader.read_to_string(&mut text).await.unwrap_err();
        assert_eq!((error.kind(), text.len(), reader.buffered()), (ErrorKind::InvalidData, 14, 2));
    });
}

#[test]
fn small_writes_are_gathered() {
    run(async {
        let (near, far) = MemoryStream::pair(4);
        let writer = BufWriter::with_capacity(8, near);
        writer.write_all(b"one ").await.unwrap();
        writer.write_all(b"two ").await.unwrap();
        assert_eq!(writer.buffered(), 8);
        // Four bytes are taken. The write that is interrupted takes nothing of its own data.
        let late = timed(ms(1), writer.write_all(b"three ")).await;
        assert_eq!((late.output.unwrap().unwrap_err().written, writer.buffered()), (0, 4));
        let reading = spawn(async move { all_of(far).await });
        writer.write_all(b"three ").await.unwrap();
        writer.write_all(b"a long one ").await.unwrap();
        writer.write_all(b"end").await.unwrap();
        writer.finish().await.unwrap();
        assert_eq!(reading.await.unwrap(), b"one two three a long one end");
    });
}

#[test]
fn second_writer_of_a_full_buffer_is_refused() {
    run(async {
        let (near, far) = MemoryStream::pair(4);
        let writer = Rc::new(BufWriter::with_capacity(8, near));
        writer.write_all(b"12345678").await.unwrap();
        let flushing = spawn({
            let writer = writer.clone();
            async move { writer.flush().await }
        });
        yield_now().await.unwrap();
        let error = writer.write_all(b"9").await.unwrap_err();
        assert_eq!((error.written, error.source.kind()), (0, ErrorKind::ResourceBusy));
        let mut read = [0; 8];
        BufReader::new(far).read_exact(&mut read).await.unwrap();
        flushing.await.unwrap().unwrap();
        assert_eq!((&read, writer.buffered()), (b"12345678", 0));
    });
}

#[test]
fn read_to_end_stops_at_the_limit() {
    run(async {
        let data: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
        let reader = BufReader::new(with(&data).await).limit(100_000);
        let mut all = b"before".to_vec();
        assert_eq!(reader.read_to_end(&mut all).await.unwrap(), data.len());
        assert_eq!(all[6..], data);
        assert_eq!(reader.read_to_end(&mut all).await.unwrap(), 0);
        let reader = BufReader::new(with(&data).await).limit(99_999);
        assert!(is_limit(&reader.read_to_end(&mut Vec::new()).await.unwrap_err()));
    });
}

#[test]
fn interrupted_or_dropped_line_is_read_again() {
    run(async {
        let (there, here) = MemoryStream::pair(ROOMY);
        let reader = BufReader::new(here);
        there.write_all(b"half a ").await.unwrap();
        let line = timeout_after(ms(5), reader.next_line()).await;
        assert!(line.is_err());
        assert_eq!(reader.buffered(), 7);
        {
            let mut dropped = std::pin::pin!(reader.next_line());
            assert!(futures::poll!(dropped.as_mut()).is_pending());
            // Meanwhile nobody else may.
            let error = reader.next_line().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        }
        there.write_all(b"line\n").await.unwrap();
        assert_eq!(reader.next_line().await.unwrap().as_deref(), Some("half a line"));
    });
}

#[test]
fn frames_are_split_by_their_headers() {
    run(async {
        let (one, other) = MemoryStream::pair(7);
        let codec = LengthDelimited::new(4).limit(300);
        let mut writer = FramedWriter::new(one, codec);
        let frames: Vec<Vec<u8>> = [0, 1, 300, 17].map(|length| vec![b'x'; length]).into();
        let sent = frames.clone();
        let writing = spawn(async move {
            let too_long = writer.send(&[0; 301]).await.unwrap_err();
            assert!(!too_long.is_taken);
            for frame in &sent {
                writer.send(frame).await.unwrap();
            }
            writer.finish().await.unwrap();
        });
        let mut reader = FramedReader::new(other, codec);
        let mut received = Vec::new();
        while let Some(frame) = reader.next().await.unwrap() {
            received.push(frame);
        }
        assert_eq!(received, frames);
        writing.await.unwrap();
    });
}

#[test]
fn frame_over_the_limit_fails_at_its_header() {
    run(async {
        let mut reader =
            FramedReader::new(with(&u64::MAX.to_be_bytes()).await, LengthDelimited::new(8));
        assert!(is_limit(&reader.next().await.unwrap_err()));
        // A liar that announces what is allowed, and sends nothing, has no memory kept for it.
        let (_there, here) = MemoryStream::pair(ROOMY);
        _there.write_all(&60_000_u32.to_be_bytes()).await.unwrap();
        let mut reader = FramedReader::new(here, LengthDelimited::new(4));
        timeout_after(ms(5), reader.next()).await.unwrap_err();
        assert_eq!(reader.into_parts().2.len(), 4);
    });
}

#[test]
fn end_within_a_frame_is_an_error() {
    run(async {
        let mut reader = FramedReader::new(with(b"\0\x05hel").await, LengthDelimited::new(2));
        let error = reader.next().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("5 bytes"), "{error}");
        let mut reader = FramedReader::new(with(b"one\r\nlast").await, LineCodec::new());
        assert_eq!(reader.next().await.unwrap().as_deref(), Some("one"));
        assert_eq!(reader.next().await.unwrap().as_deref(), Some("last"));
        assert_eq!(reader.next().await.unwrap(), None);
    });
}

/// A codec that never finds anything and trusts in the reader.
struct Never;

impl Decode for Never {
    type Item = ();

    fn decode(&mut self, _: &mut ReadBuffer) -> io::Result<Option<()>> {
        Ok(None)
    }

    fn limit(&self) -> usize {
        1000
    }
}

#[test]
fn written_lines_are_limited_and_single() {
    run(async {
        let mut reader = FramedReader::new(with(&[b'x'; 2000]).await, LineCodec::new().limit(10));
        assert!(is_limit(&reader.next().await.unwrap_err()));
        let mut reader = FramedReader::new(with(&[b'x'; 2000]).await, Never);
        assert!(is_limit(&reader.next().await.unwrap_err()));
        let (one, other) = MemoryStream::pair(ROOMY);
        let mut writer = FramedWriter::new(one, LineCodec::new());
        let error = writer.send("two\nlines").await.unwrap_err();
        assert!(!error.is_taken && error.source.kind() == ErrorKind::InvalidInput);
        writer.send("one line").await.unwrap();
        let reader = BufReader::new(other);
        assert_eq!(reader.next_line().await.unwrap().as_deref(), Some("one line"));
    });
}

#[test]
fn an_interrupted_message_is_finished_before_the_next() {
    run(async {
        let (one, other) = MemoryStream::pair(4);
        let mut writer = FramedWriter::new(one, LineCodec::new());
        let error =
            pikake::timed(ms(5), writer.send("first line")).await.output.unwrap().unwrap_err();
        assert!(error.is_taken && interruption(&error.source).is_some());
        let error = pikake::timed(ms(5), writer.send("second")).await.output.unwrap().unwrap_err();
        assert!(!error.is_taken, "{error}");
        let reading = spawn(async move {
            let reader = BufReader::new(other);
            let mut lines = Vec::new();
            while let Some(line) = reader.next_line().await.unwrap() {
                lines.push(line);
            }
            lines
        });
        writer.send("third").await.unwrap();
        drop(writer);
        assert_eq!(reading.await.unwrap(), ["first line", "third"]);
    });
}

#[test]
fn copy_counts_and_returns_unwritten_bytes() {
    run(async {
        let (there, here) = MemoryStream::pair(10);
        let data = vec![7; 1000];
        let from = with(&data).await;
        let reading = spawn(async move { all_of(there).await });
        assert_eq!(copy(&from, &here).await.unwrap(), 1000);
        drop(here);
        assert_eq!(reading.await.unwrap(), data);

        let (_there, here) = MemoryStream::pair(10);
        let from = with(b"more than there is room for").await;
        let timed = pikake::timed(ms(5), copy(&from, &here)).await;
        let error = timed.output.unwrap().unwrap_err();
        assert!(interruption(&error.source).is_some());
        assert_eq!((error.copied, &error.unwritten[..]), (10, &b"there is room for"[..]));
        let error = io::Error::from(error);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(interruption(&error).is_some());
    });
}

#[test]
fn proxy_copies_and_half_closes_each_way() {
    run(async {
        let (client, near) = tcp_pair().await;
        let (far, server) = tcp_pair().await;
        let proxy = spawn(async move { copy_bidirectional(&near, &far).await });
        client.write_all(b"question").await.unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let asked = all_of(&server).await;
        assert_eq!(asked, b"question");
        // The other half goes on.
        server.write_all(b"the answer").await.unwrap();
        drop(server);
        assert_eq!(all_of(&client).await, b"the answer");
        let copied = proxy.await.unwrap().unwrap();
        assert_eq!(copied, Copied { to_second: 8, to_first: 10 });
    });
}

#[test]
fn interrupted_proxy_returns_the_bytes_of_both_ways() {
    run(async {
        let (client, near) = MemoryStream::pair(100);
        let (far, server) = MemoryStream::pair(4);
        client.write_all(b"question").await.unwrap();
        server.write_all(b"an").await.unwrap();
        let timed = pikake::timed(ms(5), copy_bidirectional(&near, &far)).await;
        let error = timed.output.unwrap().unwrap_err();
        assert!(interruption(&error.source).is_some());
        assert_eq!(error.copied, Copied { to_second: 4, to_first: 2 });
        assert_eq!((&error.for_second[..], &error.for_first[..]), (&b"tion"[..], &b""[..]));
    });
}

#[test]
fn closed_peer_ends_a_proxy() {
    run(async {
        let (client, near) = MemoryStream::pair(100);
        let (far, server) = MemoryStream::pair(100);
        let proxy = spawn(async move { copy_bidirectional(&near, &far).await });
        drop(server);
        sleep(ms(1)).await.unwrap();
        client.write_all(b"too late").await.unwrap();
        let error = proxy.await.unwrap().unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::BrokenPipe);
        assert_eq!((error.copied, &error.for_second[..]), (Copied::default(), &b"too late"[..]));
    });
}

#[test]
fn a_burst_of_clients_is_taken_at_once() {
    run(async {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        assert!(listener.accept_many(0).await.unwrap().is_empty());
        let mut clients = Vec::new();
        for _ in 0..10 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let first = listener.accept_many(7).await.unwrap();
        let second = listener.accept_many(7).await.unwrap();
        assert_eq!((first.len(), second.len()), (7, 3));
        for (client, (_, peer)) in clients.iter().zip(first.iter().chain(&second)) {
            assert_eq!(client.local_addr().unwrap(), *peer);
        }
        let none = timeout_after(ms(5), listener.accept_many(7)).await;
        assert!(none.is_err());
        listener.close();
        assert_eq!(listener.accept_many(7).await.unwrap_err().kind(), ErrorKind::NotConnected);
    });
    run(async {
        let scratch = Scratch::new();
        let path = scratch.path("burst");
        let listener = UnixListener::bind(&path).unwrap();
        let _one = UnixStream::connect(&path).await.unwrap();
        let _two = UnixStream::connect(&path).await.unwrap();
        assert_eq!(listener.accept_many(7).await.unwrap().len(), 2);
    });
}

#[test]
fn memory_stream_behaves_as_a_stream() {
    run(async {
        let (one, other) = MemoryStream::pair(3);
        assert_eq!(one.write(b"hello").await.unwrap(), 3);
        assert!(timeout_after(ms(1), one.write(b"lo")).await.is_err());
        assert_eq!(other.read(&mut []).await.unwrap(), 0);
        let mut buffer = [0; 8];
        assert_eq!(other.read(&mut buffer).await.unwrap(), 3);
        one.finish().await.unwrap();
        assert_eq!(other.read(&mut buffer).await.unwrap(), 0);
        assert_eq!(one.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        other.write_all(b"yes").await.unwrap();
        drop(other);
        assert_eq!(one.read(&mut buffer).await.unwrap(), 3);
        assert_eq!(one.read(&mut buffer).await.unwrap(), 0);
    });
}

proptest! {
    /// However bytes are cut on their way, the same frames come out, and no cut makes a codec fail.
    #[test]
    fn frames_do_not_depend_on_how_they_arrive(
        frames in prop::collection::vec(
            prop_oneof![0_usize..40, 8_000_usize..40_000]
                .prop_map(|length| (0..length).map(|index| (index % 251) as u8).collect::<Vec<u8>>()),
            0..8,
        ),
        part in 1_usize..30,
        width in 2_usize..9,
    ) {
        let sent = frames.clone();
        let longest = frames.iter().map(Vec::len).max().unwrap_or_default();
        let room = part * (1 + longest / 40);
        let received = run(async move {
            let (one, other) = MemoryStream::pair(room);
            let codec = LengthDelimited::new(width);
            spawn(async move {
                let mut writer = FramedWriter::new(one, codec);
                for frame in &sent {
                    writer.send(frame).await.unwrap();
                }
            })
            .detach();
            let mut reader = FramedReader::new(other, codec);
            let mut received = Vec::new();
            while let Some(frame) = reader.next().await.unwrap() {
                received.push(frame);
            }
            received
        });
        prop_assert_eq!(received, frames);
    }

    /// A codec returns for every input, within its limit.
    #[test]
    fn no_bytes_break_a_codec(bytes in prop::collection::vec(any::<u8>(), 0..200), limit in 0_usize..50) {
        let mut left = ReadBuffer::from(bytes.clone());
        if let Ok(Some(frame)) = LengthDelimited::new(2).limit(limit).decode(&mut left) {
            prop_assert!(frame.len() <= limit && left.len() + frame.len() + 2 == bytes.len());
        }
        let mut left = ReadBuffer::from(bytes.clone());
        if let Ok(Some(line)) = LineCodec::new().limit(limit).decode(&mut left) {
            let length = bytes.len() - left.len();
            prop_assert!(line.len() < length && length <= limit);
        }
    }

    /// Whatever was read, and however it is taken, the bytes come out in their order.
    #[test]
    fn bytes_of_a_buffer_keep_their_order(
        lengths in prop::collection::vec((0_usize..40_000, any::<bool>()), 0..8),
        rest in 0_usize..20_000,
    ) {
        let length = lengths.iter().map(|(length, _)| length).sum::<usize>() + rest;
        let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
        let (mut buffer, mut at) = (ReadBuffer::from(bytes.clone()), 0);
        for (length, splits) in lengths {
            if splits {
                prop_assert_eq!(&buffer.split_to(length)[..], &bytes[at..][..length]);
            } else {
                buffer.advance(length);
            }
            at += length;
            prop_assert_eq!(&buffer[..], &bytes[at..]);
        }
    }
}

/// `?` turns each error of several steps into an `io::Error` or a boxed error, with the kind, the
/// interruption and the progress.
#[test]
fn errors_convert_by_the_question_mark() {
    use std::error::Error;

    use pikake::net::{
        CopyBothError, CopyError, ListenerFailed, ReadExactError, SendMessageError, WriteAllError,
    };

    fn converts<E: Error + Into<io::Error> + Send + Sync + 'static>() {}
    converts::<ReadExactError>();
    converts::<WriteAllError>();
    converts::<SendMessageError>();
    converts::<CopyError>();
    converts::<CopyBothError>();
    converts::<ListenerFailed<std::net::SocketAddr>>();

    async fn read(stream: &MemoryStream) -> io::Result<()> {
        Ok(BufReader::new(stream).read_exact(&mut [0; 100]).await?)
    }

    async fn write(stream: &MemoryStream) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(Write::write_all(stream, &[7; 100]).await?)
    }

    run(async {
        let (one, other) = MemoryStream::pair(30);
        Write::write_all(&other, &[7; 20]).await.unwrap();
        let error = timed(ms(1), read(&one)).await.output.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(interruption(&error).is_some());
        assert_eq!(error.downcast::<ReadExactError>().unwrap().read, 20);
        let error = timed(ms(1), write(&one)).await.output.unwrap().unwrap_err();
        let error = *error.downcast::<WriteAllError>().unwrap();
        assert_eq!(error.written, 30);
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
    });
}

/// The memory of another stream's read is no reason to exceed a limit.
#[test]
fn readers_keep_to_their_limit_whatever_the_thread_has_read() {
    run(async {
        let (near, far) = MemoryStream::pair(100_000);
        near.write_all(&[b'x'; 40_000]).await.unwrap();
        near.write_all(b"\n").await.unwrap();
        BufReader::new(far).next_line().await.unwrap();
        let (near, far) = MemoryStream::pair(100_000);
        near.write_all(&[b'x'; 60_000]).await.unwrap();
        let reader = BufReader::new(far).limit(10);
        assert!(is_limit(&reader.next_line().await.unwrap_err()));
        assert!(reader.buffered() <= 10 + 16 * 1024, "{} bytes", reader.buffered());
    });
}
