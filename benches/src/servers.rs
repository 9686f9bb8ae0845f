//! The servers: one process each, in a runtime or on bare epoll.

use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process;
use std::str::FromStr;
use std::thread;

use crate::figures::{Figures, Stopwatch, Usage, resident};
use crate::runtime::{Runtime, Sockets};
use crate::system::{Epoll, SERVER_CORE, pin};
use crate::workloads::on_runtime;

/// The buffer of an echo connection.
const ECHO_BUFFER: usize = 1024;

/// What a client sends.
pub const ECHO_MESSAGE: usize = 64;

/// The buffer of a streaming connection.
pub const BLOCK: usize = 64 * 1024;

/// What a server does with a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Sends back what comes, until the peer has no more.
    Echo,
    /// Reads until the peer has no more, then hangs up.
    Sink,
    /// Sends one byte, then waits for the peer to hang up.
    Greet,
}

impl Service {
    fn buffer(self) -> Vec<u8> {
        vec![0; if self == Service::Sink { BLOCK } else { ECHO_BUFFER }]
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "echo" => Ok(Service::Echo),
            "sink" => Ok(Service::Sink),
            "greet" => Ok(Service::Greet),
            _ => Err(format!("there is no service {name}")),
        }
    }
}

/// Serves until the standard input ends. Says its port, then its usage for each line of input.
/// Returns if the runtime is not known.
pub fn serve(service: Service, runtime: &str) -> Option<()> {
    pin(SERVER_CORE);
    thread::spawn(answer_questions);
    on_runtime!(
        runtime,
        R => R::run(serve_on::<R>(service)),
        "floor" => Some(serve_on_epoll(service))
    )?
    .unwrap_or_else(|error| panic!("the server failed: {error}"));
    Some(())
}

fn answer_questions() {
    for _ in io::stdin().lock().lines() {
        let Usage { user, system } = Usage::of_this_process();
        println!("{} {} {}", user.as_micros(), system.as_micros(), resident());
    }
    process::exit(0);
}

fn say_port(address: SocketAddr) {
    println!("{}", address.port());
}

async fn serve_on<S: Sockets>(service: Service) -> io::Result<()> {
    let (listener, address) = S::listen().await?;
    say_port(address);
    loop {
        let stream = S::accept(&listener).await?;
        S::detach(S::spawn(async move {
            // The load generator says whether it was served well.
            let _ = attend::<S>(stream, service).await;
        }));
    }
}

async fn attend<S: Sockets>(mut stream: S::Stream, service: Service) -> io::Result<()> {
    let mut buffer = service.buffer();
    if service == Service::Greet {
        let (result, returned) = S::write(&mut stream, buffer, 1).await;
        result?;
        buffer = returned;
    }
    loop {
        let (result, returned) = S::read(&mut stream, buffer).await;
        buffer = returned;
        let length = match result? {
            0 => return Ok(()),
            length => length,
        };
        if service == Service::Echo {
            let (result, returned) = S::write(&mut stream, buffer, length).await;
            result?;
            buffer = returned;
        }
    }
}

/// An echo server that is loaded by a thread of the same process, over one connection.
pub async fn echo_here<S: Sockets>(rounds: usize) -> Figures {
    let (listener, address) = S::listen().await.expect("a listener");
    let client = thread::spawn(move || {
        let mut stream = TcpStream::connect(address)?;
        let mut message = [0; ECHO_MESSAGE];
        (0..rounds).try_for_each(|_| {
            stream.write_all(&message)?;
            stream.read_exact(&mut message)
        })
    });
    let stream = S::accept(&listener).await.expect("a connection");
    let watch = Stopwatch::start();
    attend::<S>(stream, Service::Echo).await.expect("the client hangs up when it is done");
    client.join().expect("no panics").expect("it is served");
    watch.per(rounds)
}

/// The floor: what one writes by hand for exactly this. One buffer for all connections.
fn serve_on_epoll(service: Service) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    say_port(listener.local_addr()?);
    let mut epoll = Epoll::new()?;
    epoll.add(&listener, 0)?;
    let mut buffer = service.buffer();
    // A connection's number is its place here, after the listener's.
    let mut streams: Vec<Option<TcpStream>> = vec![None];
    let mut free = Vec::new();
    let mut accepting = false;
    loop {
        for number in epoll.wait()? {
            if number == 0 {
                accepting = true;
            } else if attend_once(&mut streams[number], service, &mut buffer).is_err() {
                streams[number] = None;
                free.push(number);
            }
        }
        while accepting {
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    accepting = false;
                    break;
                }
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            if service == Service::Greet && stream.write_all(&buffer[..1]).is_err() {
                // It has gone already.
                continue;
            }
            let number = free.pop().unwrap_or_else(|| {
                streams.push(None);
                streams.len() - 1
            });
            epoll.add(&stream, number)?;
            streams[number] = Some(stream);
        }
    }
}

/// Serves what has come; an error ends the connection.
fn attend_once(
    stream: &mut Option<TcpStream>,
    service: Service,
    buffer: &mut [u8],
) -> io::Result<()> {
    let stream = stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
    match stream.read(buffer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        length if service == Service::Echo => stream.write_all(&buffer[..length]),
        _ => Ok(()),
    }
}
