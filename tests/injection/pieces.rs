//! Reads by pieces, frames, and copies.

use pikake::net::{
    BufReader, FramedReader, FramedWriter, LengthDelimited, LineCodec, MemoryStream, Read,
    TcpListener, TcpStream, Write, copy, copy_bidirectional,
};
use pikake::{Task, sleep, spawn};

use crate::support::insist::{Insistent, a_moment, insist_inside, insist_on_sockets, ms};

/// A stream on which these come one by one, with time in between.
fn dribble(parts: &'static [&'static str]) -> MemoryStream {
    let (there, here) = MemoryStream::pair(1000);
    spawn(async move {
        for part in parts {
            sleep(ms(1)).await.unwrap();
            there.write_all(part.as_bytes()).await.unwrap();
        }
        sleep(ms(1)).await.unwrap();
        there.finish().await.unwrap();
        while let Ok(1..) = there.read(&mut [0; 16]).await {}
    })
    .detach();
    here
}

/// A task that reads all that comes, three bytes at a time.
fn slow_reader(from: MemoryStream) -> Task<Vec<u8>> {
    spawn(async move {
        let (mut all, mut buffer) = (Vec::new(), [0; 3]);
        loop {
            sleep(ms(1)).await.unwrap();
            match from.read(&mut buffer).await.unwrap() {
                0 => return all,
                length => all.extend(&buffer[..length]),
            }
        }
    })
}

async fn outcome<T>(insistent: &Insistent, mut task: Task<T>) -> T {
    insistent.on(async || (&mut task).await).await
}

const PARTS: &[&str] = &["li", "ne", "\nun", "til", "|ex", "ac", "tre", "st"];

#[test]
fn reading_pieces() {
    let expected = (Some("line".into()), Some(b"until".to_vec()), *b"exact", b"rest".to_vec());
    insist_inside(expected, async |insistent| {
        let reader = BufReader::new(dribble(PARTS));
        let line = insistent.on(async || reader.next_line().await).await;
        let until = insistent.on(async || reader.next_segment(b'|').await).await;
        let (mut exact, mut read) = ([0; 5], 0);
        while let Err(error) = reader.read_exact(&mut exact[read..]).await {
            insistent.note(&error.source);
            read += error.read;
        }
        let mut rest = Vec::new();
        while let Err(error) = reader.read_to_end(&mut rest).await {
            insistent.note(&error);
        }
        (line, until, exact, rest)
    });
}

#[test]
fn reading_and_writing_frames() {
    insist_inside(vec!["one".to_owned(), "two".into(), "three".into()], async |insistent| {
        let mut reader =
            FramedReader::new(dribble(&["on", "e\nt", "wo\nth", "ree"]), LineCodec::new());
        let (one, other) = MemoryStream::pair(2);
        let echoed = slow_reader(other);
        let mut writer = FramedWriter::new(one, LengthDelimited::new(1));
        while let Some(line) = insistent.on(async || reader.next().await).await {
            loop {
                match writer.send(line.as_bytes()).await {
                    Ok(()) => break,
                    Err(error) => {
                        insistent.note(&error.source);
                        if error.is_taken {
                            break;
                        }
                    }
                }
            }
        }
        insistent.on(async || writer.finish().await).await;
        let mut bytes = &outcome(insistent, echoed).await[..];
        let mut frames = Vec::new();
        while let Some((length, rest)) = bytes.split_first() {
            let (frame, rest) = rest.split_at(usize::from(*length));
            frames.push(String::from_utf8(frame.to_vec()).unwrap());
            bytes = rest;
        }
        frames
    });
}

#[test]
fn copying() {
    insist_inside((true, 11), async |insistent| {
        let from = dribble(&["hello", ", ", "you", "!"]);
        let (one, other) = MemoryStream::pair(4);
        let copied = slow_reader(other);
        let (mut held, mut count) = (Vec::new(), 0);
        loop {
            while !held.is_empty() {
                match one.write(&held).await {
                    Ok(length) => {
                        count += length as u64;
                        held.drain(..length);
                    }
                    Err(error) => insistent.note(&error),
                }
            }
            match copy(&from, &one).await {
                Ok(more) => {
                    count += more;
                    break;
                }
                Err(error) => {
                    insistent.note(&error.source);
                    count += error.copied;
                    held = error.unwritten;
                }
            }
        }
        drop(one);
        (outcome(insistent, copied).await == b"hello, you!", count)
    });
}

#[test]
fn copying_both_ways() {
    let report = pikake::testing::interrupt_everywhere(
        || async {
            let (near, far) = (dribble(&["ques", "tion"]), dribble(&["an", "swer", "s"]));
            // The copied bytes of both ways, for each end.
            match copy_bidirectional(&near, &far).await {
                Ok(copied) => (copied, 0, true),
                Err(error) => {
                    let held = error.for_first.len() + error.for_second.len();
                    (error.copied, held, false)
                }
            }
        },
        |run| {
            let (copied, held, is_done) = run.output.expect("it waits on traps");
            assert_eq!(held, 0, "there is room for all");
            if is_done {
                assert_eq!((copied.to_second, copied.to_first), (8, 7));
            } else {
                assert!(run.interruption.is_some());
                assert!([0, 4, 8].contains(&copied.to_second), "{copied:?}");
                assert!([0, 2, 6, 7].contains(&copied.to_first), "{copied:?}");
            }
        },
    );
    assert!(report.suspensions > 4 && report.cancels > 0, "{report:?}");
}

#[test]
fn accepting_many() {
    insist_on_sockets(4, async |insistent| {
        let listener = insistent.on(async || TcpListener::bind("127.0.0.1:0").await).await;
        let address = listener.local_addr().unwrap();
        spawn(async move {
            let mut clients = Vec::new();
            for _ in 0..4 {
                a_moment().await;
                clients.push(TcpStream::connect(address).await.unwrap());
            }
            a_moment().await;
        })
        .detach();
        let mut accepted = 0;
        while accepted < 4 {
            accepted += insistent.on(async || listener.accept_many(3).await).await.len();
        }
        accepted
    });
}
