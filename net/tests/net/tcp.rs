//! TCP over the real loopback: streams, listeners, addresses, and misbehaving peers.

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use futures::join;
use pikake::net::{
    AddressErrors, ReadExactError, TcpListener, TcpStream, WriteAllError, interruption,
};
use pikake::traps::{Closed, Direction, ResourceBusy};
use pikake::{Interrupted, TaskError, TimedOut, spawn, timeout_after, yield_now};

const LOOPBACK: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// More than the system keeps for a connection, so that writers have to wait for readers.
const MUCH: usize = 8 << 20;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(server.local_addr().unwrap(), client.peer_addr().unwrap());
    (client, server)
}

fn pattern(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn payload<E: std::error::Error + 'static>(error: &io::Error) -> Option<&E> {
    error.get_ref().and_then(|inside| inside.downcast_ref())
}

/// An address at which nobody listens, kept by a socket that is bound and no more.
fn deaf_address() -> (std::os::fd::OwnedFd, SocketAddr) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, address)
}

async fn read_to_end(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(all),
            length => all.extend_from_slice(&buffer[..length]),
        }
    }
}

#[pikake::test]
async fn small_message_is_echoed() {
    let (client, server) = pair().await;
    let echo = spawn(async move {
        let mut buffer = [0; 64];
        let length = server.read(&mut buffer).await?;
        server.write_all(&buffer[..length]).await?;
        io::Result::Ok(length)
    });
    client.write_all(b"hello").await.unwrap();
    assert_eq!(read_to_end(&client).await.unwrap(), b"hello");
    assert_eq!(echo.await.unwrap().unwrap(), 5);
}

#[pikake::test]
async fn much_in_both_directions_at_once() {
    let (client, server) = pair().await;
    let (there, back) = (pattern(MUCH, 1), pattern(MUCH, 2));
    let (mut arrived_there, mut arrived_back) = (vec![0; MUCH], vec![0; MUCH]);
    let (client_read, client_write) = client.split();
    let (server_read, server_write) = server.split();
    let (a, b, c, d) = join!(
        client_write.write_all(&there),
        server_read.read_exact(&mut arrived_there),
        server_write.write_all(&back),
        client_read.read_exact(&mut arrived_back),
    );
    a.unwrap();
    b.unwrap();
    c.unwrap();
    d.unwrap();
    assert!(there == arrived_there && back == arrived_back);
}

#[pikake::test]
async fn much_through_an_echo_task() {
    let (client, server) = pair().await;
    let echo = spawn(async move {
        let mut buffer = vec![0; 10_000];
        loop {
            match server.read(&mut buffer).await? {
                0 => return io::Result::Ok(()),
                length => server.write_all(&buffer[..length]).await?,
            }
        }
    });
    let sent = pattern(MUCH, 3);
    let (written, read) = join!(
        async {
            client.write_all(&sent).await?;
            client.shutdown(Shutdown::Write)
        },
        read_to_end(&client),
    );
    written.unwrap();
    assert!(read.unwrap() == sent);
    echo.await.unwrap().unwrap();
}

#[pikake::test]
async fn one_direction_ends_and_the_other_goes_on() {
    let (client, server) = pair().await;
    client.write_all(b"that is all").await.unwrap();
    client.split().1.shutdown().unwrap();
    assert_eq!(read_to_end(&server).await.unwrap(), b"that is all");
    server.write_all(b"thanks").await.unwrap();
    drop(server);
    assert_eq!(read_to_end(&client).await.unwrap(), b"thanks");
    let error = client.write_all(b"more").await.unwrap_err();
    assert_eq!((error.written, error.source.kind()), (0, ErrorKind::BrokenPipe));
}

#[pikake::test]
async fn dropping_the_owned_writer_ends_its_direction() {
    let (client, server) = pair().await;
    let (read, write) = client.into_split();
    let writer = spawn(async move { write.write_all(b"bye").await });
    assert_eq!(read_to_end(&server).await.unwrap(), b"bye");
    writer.await.unwrap().unwrap();
    server.write_all(b"still here?").await.unwrap();
    let mut buffer = [0; 11];
    read.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"still here?");
}

#[pikake::test]
async fn only_halves_of_one_stream_reunite() {
    let (client, server) = pair().await;
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let error = client_read.reunite(server_write).unwrap_err();
    assert_eq!(error.to_string(), "the two halves are not of the same stream");
    let client = error.read.reunite(client_write).unwrap();
    let server = server_read.reunite(error.write).unwrap();
    // Neither direction was ended on the way.
    client.write_all(b"a").await.unwrap();
    server.write_all(b"b").await.unwrap();
    let mut buffer = [0];
    client.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"b");

    let (read, write) = client.into_split();
    write.forget();
    server.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"a");
    assert_eq!(server.try_read(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(read);
    assert_eq!(server.read(&mut buffer).await.unwrap(), 0);
}

#[pikake::test]
async fn several_buffers_in_one_call() {
    let (client, server) = pair().await;
    let slices = [IoSlice::new(b"he"), IoSlice::new(b""), IoSlice::new(b"llo")];
    assert_eq!(client.write_vectored(&slices).await.unwrap(), 5);
    let (mut one, mut two) = ([0; 1], [0; 9]);
    let mut buffers = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
    assert_eq!(server.read_vectored(&mut buffers).await.unwrap(), 5);
    assert_eq!((&one, &two[..4]), (b"h", &b"ello"[..]));
}

#[pikake::test]
async fn more_buffers_than_the_system_takes_at_once() {
    const COUNT: usize = 3000;
    let (client, server) = pair().await;
    // Registered with the kernel's driver, as a short transfer matters only then.
    assert_eq!(server.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let slices = vec![IoSlice::new(b"x"); COUNT];
    let mut written = 0;
    while written < COUNT {
        written += client.write_vectored(&slices[written..]).await.unwrap();
    }
    let mut bytes = [[0]; COUNT];
    let mut buffers: Vec<_> = bytes.iter_mut().map(|byte| IoSliceMut::new(byte)).collect();
    let mut read = 0;
    while read < COUNT {
        read += server.read_vectored(&mut buffers[read..]).await.unwrap();
    }
    assert!(bytes.iter().all(|byte| byte == b"x"));
}

#[pikake::test]
async fn empty_reads_and_writes_return_at_once() {
    let (client, _server) = pair().await;
    assert_eq!(client.read(&mut []).await.unwrap(), 0);
    assert_eq!(client.read_vectored(&mut []).await.unwrap(), 0);
    client.read_exact(&mut []).await.unwrap();
    client.write_all(b"").await.unwrap();
}

#[pikake::test]
async fn peeking_leaves_the_bytes() {
    let (client, server) = pair().await;
    let peeking = async {
        let mut buffer = [0; 16];
        let length = server.peek(&mut buffer).await.unwrap();
        buffer[..length].to_vec()
    };
    let (peeked, _) = join!(peeking, client.write_all(b"peek"));
    assert_eq!(peeked, b"peek");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&server).await.unwrap(), b"peek");
}

#[pikake::test]
async fn options_are_kept() {
    let (client, _server) = pair().await;
    assert!(!client.nodelay().unwrap());
    client.set_nodelay(true).unwrap();
    assert!(client.nodelay().unwrap());
    assert_eq!(client.linger().unwrap(), None);
    client.set_linger(Some(Duration::from_secs(3))).unwrap();
    assert_eq!(client.linger().unwrap(), Some(Duration::from_secs(3)));
}

#[pikake::test]
async fn attempts_never_suspend_and_waits_report_readiness() {
    let (client, server) = pair().await;
    let mut buffer = [0; 16];
    assert_eq!(server.try_read(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    let (ready, written) = join!(server.readable(), async { client.try_write(b"now") });
    ready.unwrap();
    assert_eq!(written.unwrap(), 3);
    assert_eq!(server.try_read(&mut buffer).unwrap(), 3);
    client.writable().await.unwrap();
}

#[pikake::test]
async fn a_refused_connection_says_so_and_where() {
    let (_kept, address) = deaf_address();
    let error = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let text = error.to_string();
    assert!(text.starts_with(&format!("connect to {address}: Connection refused")), "{text}");
    let errors: &AddressErrors = payload(&error).unwrap();
    let [(tried, cause)] = errors.tried() else { panic!("{errors:?}") };
    assert_eq!((*tried, cause.raw_os_error()), (address, Some(111)));
}

/// `main` prints the `Debug` of its error.
#[pikake::test]
async fn errors_of_addresses_are_sentences_in_debug_text() {
    let (_kept, address) = deaf_address();
    let refused = TcpStream::connect(address).await.unwrap_err();
    let text = format!("\"connect to {address}: Connection refused (os error 111)\"");
    let expected = format!("Custom {{ kind: ConnectionRefused, error: {text} }}");
    assert_eq!(format!("{refused:?}"), expected);
    let invalid = TcpListener::bind("127.0.0.1:99999").await.unwrap_err();
    let text = format!("{invalid:?}");
    let begin = r#"Custom { kind: InvalidInput, error: "bind \"127.0.0.1:99999\": not an address"#;
    assert!(text.starts_with(begin), "{text}");
}

#[pikake::test]
async fn connect_tries_and_reports_every_address() {
    let (_kept, address) = deaf_address();
    let name = format!("localhost:{}", address.port());
    let error = TcpStream::connect(&name).await.unwrap_err();
    let errors: &AddressErrors = payload(&error).unwrap();
    assert!(errors.tried().iter().any(|(tried, _)| *tried == address), "{errors:?}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("connect to {name}: ")), "{text}");
    assert!(text.contains(&format!("{address}: Connection refused")), "{text}");
}

#[pikake::test]
async fn connect_by_name_finds_the_listening_address() {
    let listener = TcpListener::bind(("localhost".to_owned(), 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for _ in 0..2 {
        let client = TcpStream::connect(("localhost", port)).await.unwrap();
        let (_, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    }
}

#[pikake::test]
async fn invalid_address_is_an_error_with_an_example() {
    let error = TcpStream::connect("localhost").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().starts_with("connect to \"localhost\": not an address"), "{error}");
    let error = TcpListener::bind("name.invalid:80").await.unwrap_err();
    assert!(error.to_string().starts_with("bind name.invalid:80: "), "{error}");
}

#[pikake::test]
async fn an_address_in_use_is_named() {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = listener.local_addr().unwrap();
    let error = TcpListener::bind(address).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let text = error.to_string();
    assert!(text.starts_with(&format!("bind {address}: Address already in use")), "{text}");
}

#[pikake::test]
async fn a_reset_interrupts_a_read() {
    let (client, server) = pair().await;
    let client = Rc::new(client);
    let reader = spawn({
        let client = client.clone();
        async move { client.read_exact(&mut [0; 10]).await }
    });
    yield_now().await.unwrap();
    server.set_linger(Some(Duration::ZERO)).unwrap();
    drop(server);
    let error = reader.await.unwrap().unwrap_err();
    assert_eq!((error.read, error.source.kind()), (0, ErrorKind::ConnectionReset));
    assert_eq!(io::Error::from(error).kind(), ErrorKind::ConnectionReset);
    assert_eq!(client.write_all(b"x").await.unwrap_err().source.kind(), ErrorKind::BrokenPipe);
}

#[pikake::test]
async fn end_of_stream_fails_only_read_exact() {
    let (client, server) = pair().await;
    server.write_all(b"abc").await.unwrap();
    drop(server);
    let mut buffer = [0; 10];
    let error: ReadExactError = client.read_exact(&mut buffer).await.unwrap_err();
    assert_eq!((error.read, &buffer[..3]), (3, &b"abc"[..]));
    assert_eq!(error.to_string(), "after 3 bytes were read: the stream ended");
    assert_eq!(io::Error::from(error).kind(), ErrorKind::UnexpectedEof);
    assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
    assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
}

#[pikake::test]
async fn timed_out_write_reports_its_progress() {
    let (client, server) = pair().await;
    let data = pattern(8 * MUCH, 4);
    let mut interrupted: Option<WriteAllError> = None;
    let writing = async {
        interrupted = client.write_all(&data).await.err();
    };
    assert_eq!(timeout_after(Duration::from_millis(50), writing).await, Err(TimedOut));
    let error = interrupted.expect("it cannot have written everything");
    assert!(error.written > 0 && error.written < data.len());
    assert_eq!(error.source.kind(), ErrorKind::TimedOut);
    let written = error.written;
    assert!(interruption(&io::Error::from(error)).is_some_and(|why| why.is_timeout()));

    client.shutdown(Shutdown::Write).unwrap();
    assert!(read_to_end(&server).await.unwrap() == data[..written]);
}

#[pikake::test]
async fn one_reader_at_a_time() {
    let (client, server) = pair().await;
    let client = Rc::new(client);
    let first = spawn({
        let client = client.clone();
        async move { client.read(&mut [0; 8]).await }
    });
    yield_now().await.unwrap();
    let error = client.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert_eq!(payload(&error), Some(&ResourceBusy(Direction::Read)));
    // Writing is another direction, and the first reader is where it was.
    client.write_all(b"x").await.unwrap();
    server.write_all(b"four").await.unwrap();
    assert_eq!(first.await.unwrap().unwrap(), 4);
}

#[pikake::test]
async fn closing_wakes_a_reader() {
    let (client, _server) = pair().await;
    let client = Rc::new(client);
    let reader = spawn({
        let client = client.clone();
        async move { client.read(&mut [0; 8]).await }
    });
    let waiter = spawn({
        let client = client.clone();
        async move {
            // Filled, the other direction has a waiter of its own.
            let data = vec![0; 64 << 20];
            client.write_all(&data).await
        }
    });
    yield_now().await.unwrap();
    yield_now().await.unwrap();
    client.close();
    client.close();
    let error = reader.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), payload(&error)), (ErrorKind::NotConnected, Some(&Closed)));
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!(payload(&error.source), Some(&Closed));
    for error in [
        client.read(&mut [0]).await.unwrap_err(),
        client.write(b"x").await.unwrap_err(),
        client.readable().await.unwrap_err(),
        client.local_addr().unwrap_err(),
        client.set_nodelay(true).unwrap_err(),
    ] {
        assert_eq!(payload(&error), Some(&Closed));
    }
}

#[pikake::test]
async fn closing_wakes_readiness_waiters() {
    let (client, _server) = pair().await;
    assert_eq!(client.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let (ready, ()) = join!(client.readable(), async { client.close() });
    assert_eq!(payload(&ready.unwrap_err()), Some(&Closed));
}

#[pikake::test]
async fn closing_wakes_an_accept() {
    let listener = Rc::new(TcpListener::bind(LOOPBACK).await.unwrap());
    let accepting = spawn({
        let listener = listener.clone();
        async move { listener.accept().await }
    });
    yield_now().await.unwrap();
    listener.close();
    assert_eq!(payload(&accepting.await.unwrap().unwrap_err()), Some(&Closed));
}

#[pikake::test]
async fn cancel_is_the_error_of_the_read() {
    let (client, _server) = pair().await;
    let reader = spawn(async move { client.read(&mut [0; 8]).await });
    yield_now().await.unwrap();
    reader.request_cancel("enough");
    let error = reader.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Other);
    assert_eq!(interruption(&error).and_then(|why| why.reason()), Some("enough"));
}

#[pikake::test]
async fn sockets_of_the_standard_library_are_taken_over() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let client = TcpStream::from_std(client).unwrap();
    let (server, _) = listener.accept().await.unwrap();
    let (read, written) = join!(async { server.read(&mut [0; 8]).await }, client.write_all(b"std"));
    assert_eq!(read.unwrap(), 3);
    written.unwrap();
}

#[test]
fn a_stream_outlives_its_kernel_and_is_closed() {
    let (client, server) = pikake::run(pair());
    assert_eq!(payload(&client.try_read(&mut [0]).unwrap_err()), Some(&Closed));
    drop(server);
    pikake::run(async {
        assert_eq!(payload(&client.read(&mut [0]).await.unwrap_err()), Some(&Closed));
    });
}

#[test]
#[should_panic(expected = "needs a pikake kernel")]
fn a_socket_outside_a_kernel_is_a_panic() {
    drop(TcpListener::from_std(std::net::TcpListener::bind("127.0.0.1:0").unwrap()));
}

#[test]
fn interruption_is_found_in_an_error_of_any_type() {
    #[derive(Debug)]
    struct Failed(Box<dyn Error + Send + Sync>);

    impl fmt::Display for Failed {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("failed")
        }
    }

    impl Error for Failed {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&*self.0)
        }
    }

    /// As `#[error(transparent)]` of `thiserror` makes it.
    #[derive(Debug)]
    struct Transparent(io::Error);

    impl fmt::Display for Transparent {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    impl Error for Transparent {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.0.source()
        }
    }

    fn reason<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a str> {
        interruption(error).and_then(Interrupted::reason)
    }

    let stop = Interrupted::cancelled("stop");
    assert_eq!(reason(&stop), Some("stop"));
    let own = Failed(stop.clone().into());
    assert_eq!(reason(&own), Some("stop"));
    assert_eq!(reason(&Failed(io::Error::other(own).into())), Some("stop"));
    assert_eq!(reason(&Failed(TaskError::Interrupted(stop.clone()).into())), Some("stop"));
    assert_eq!(reason(&Transparent(stop.clone().into())), Some("stop"));
    assert_eq!(reason(&Transparent(TaskError::Interrupted(stop.clone()).into())), Some("stop"));
    // A task that was joined ended by it, and not the joiner.
    assert_eq!(reason(&Failed(TaskError::Cancelled(stop.clone()).into())), None);
    assert_eq!(reason(&Transparent(io::Error::other(TaskError::Cancelled(stop)))), None);
    assert_eq!(reason(&Failed("another".into())), None);
}
