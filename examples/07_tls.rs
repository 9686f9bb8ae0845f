//! Lines over TLS, and a server that ends gracefully. Needs the feature `tls`.
//!
//! The server shakes hands in each connection's own task, with a deadline, and reads lines of a
//! bounded length. When it is told to end, it lets its handlers come to theirs: one of them does,
//! between two lines, and one has to be interrupted. With certificates made on the spot, it talks
//! to itself and prints:
//!
//! ```text
//! client: HELLO over pikake/1
//! client: a line too long ends the connection: true
//! client: told to go: GOODBYE
//! server: 3 connections handled; 1 interrupted, of which 0 dropped
//! ```

use std::error::Error;
use std::io;
use std::time::Duration;

use pikake::net::tls::{Identity, TlsAcceptor, TlsConnector, TlsStream};
use pikake::net::{
    BufReader, Closing, Patience, Resolver, TcpListener, TcpStream, interruption, serve_until,
};
use pikake::{sleep, spawn};

const MOST_CONNECTIONS: usize = 100;
const LONGEST_LINE: usize = 1000;
const PATIENCE: Patience =
    Patience { soft: Duration::from_millis(200), hard: Duration::from_secs(2) };

/// Answers each line in capitals, until the client ends or the server does.
async fn shout(stream: TcpStream, acceptor: TlsAcceptor, closing: Closing) -> io::Result<()> {
    let stream = acceptor.accept(stream).await?;
    let reader = BufReader::new(&stream).limit(LONGEST_LINE);
    while !closing.has_begun() {
        match reader.next_line().await {
            Ok(Some(line)) => {
                let answer = format!("{}\n", line.to_uppercase());
                stream.write_all(answer.as_bytes()).await?;
            }
            Ok(None) => break,
            // Everything this function knows is still there, so it can take its leave.
            Err(error) if interruption(&error).is_some() => {
                stream.write_all(b"GOODBYE\n").await?;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    stream.finish().await
}

async fn connect(connector: &TlsConnector, port: u16) -> io::Result<TlsStream<TcpStream>> {
    let stream = Resolver::new().connect(("localhost", port)).await?;
    connector.connect("localhost", stream).await
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes())?;
    let acceptor = TlsAcceptor::builder(identity).alpn(["pikake/1"]).build()?;
    let connector = TlsConnector::builder().roots_pem(certificate.as_bytes())?;
    let connector = connector.alpn(["pikake/1"]).build()?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let closing = Closing::new();
    let told = closing.clone();
    let server = spawn(serve_until(listener, MOST_CONNECTIONS, closing.clone(), PATIENCE, {
        move |stream, peer| {
            let shouting = shout(stream, acceptor.clone(), told.clone());
            async move {
                if let Err(error) = shouting.await {
                    eprintln!("{peer}: {error}");
                }
            }
        }
    }));

    let stream = connect(&connector, port).await?;
    stream.write_all(b"hello\n").await?;
    let line = BufReader::new(&stream).next_line().await?.unwrap_or_default();
    let protocol = String::from_utf8(stream.alpn_protocol().unwrap_or_default())?;
    println!("client: {line} over {protocol}");
    stream.finish().await?;

    let stream = connect(&connector, port).await?;
    stream.write_all(&[b'x'; LONGEST_LINE + 1]).await?;
    let cut = stream.read(&mut [0; 1]).await.is_err();
    println!("client: a line too long ends the connection: {cut}");

    let stream = connect(&connector, port).await?;
    // The server has to have seen it.
    stream.write_all(b"are you there?\n").await?;
    let reader = BufReader::new(&stream);
    reader.next_line().await?;
    sleep(Duration::from_millis(1)).await?;
    closing.begin();
    let line = reader.next_line().await?.unwrap_or_default();
    println!("client: told to go: {line}");
    println!("server: {}", server.await??);
    Ok(())
}
