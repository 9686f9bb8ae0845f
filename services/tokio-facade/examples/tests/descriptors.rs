//! `into_std` and `from_std` of streams in the simulator.

use pikake::net::TcpListener;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// As redis does to set options.
#[pikake::sim(seeds = 20)]
async fn simulated_socket_returns_from_std() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, peer) = listener.accept().await.unwrap();

    let descriptor = stream.into_std().unwrap();
    descriptor.set_nodelay(true).unwrap();
    let mut stream = TcpStream::from_std(descriptor).unwrap();
    assert_eq!(stream.local_addr().unwrap(), peer);
    stream.write_all(b"hello").await.unwrap();
    drop(stream);

    let mut received = [0; 5];
    accepted.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"hello");
    assert_eq!(accepted.read(&mut received).await.unwrap(), 0);
}

/// Worlds follow each other on one thread, and may get the same descriptors.
#[pikake::sim(seeds = 20)]
async fn closed_descriptor_stands_for_no_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    drop(stream.into_std().unwrap());
    let other = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    other.set_nonblocking(true).unwrap();
    // A descriptor from outside is refused, as in any simulated world.
    TcpStream::from_std(other.into()).unwrap_err();
}
