//! monoio, on io_uring where the system has it (its own choice), and on epoll.

use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use local_sync::mpsc::bounded::{Rx, Tx, channel};
use monoio::buf::IoBuf;
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::time::TimeDriver;
use monoio::{FusionDriver, LegacyDriver, RuntimeBuilder};

use crate::runtime::{Channel, CommonLock, Runtime, Sockets};

/// How the driver is chosen.
pub trait Choice: 'static {
    fn run<F: Future<Output: 'static> + 'static>(main: F) -> F::Output;
}

pub struct Best;

impl Choice for Best {
    fn run<F: Future<Output: 'static> + 'static>(main: F) -> F::Output {
        let mut runtime = RuntimeBuilder::<FusionDriver>::new().enable_timer().build();
        runtime.as_mut().expect("a runtime").block_on(main)
    }
}

pub struct Epoll;

impl Choice for Epoll {
    fn run<F: Future<Output: 'static> + 'static>(main: F) -> F::Output {
        let runtime = RuntimeBuilder::<LegacyDriver>::new().enable_timer().build();
        let mut runtime: monoio::Runtime<TimeDriver<LegacyDriver>> = runtime.expect("a runtime");
        runtime.block_on(main)
    }
}

pub struct Monoio<C>(PhantomData<C>);

impl<C: Choice> Runtime for Monoio<C> {
    type Task<T: 'static> = monoio::task::JoinHandle<T>;
    type Channel = LocalSync;
    type Lock = CommonLock;

    fn run<F: Future<Output: 'static> + 'static>(main: F) -> F::Output {
        C::run(main)
    }

    fn spawn<F: Future<Output: 'static> + 'static>(future: F) -> Self::Task<F::Output> {
        monoio::spawn(future)
    }

    async fn join<T: 'static>(task: Self::Task<T>) -> T {
        task.await
    }

    fn detach<T: 'static>(task: Self::Task<T>) {
        drop(task);
    }

    async fn sleep(length: Duration) {
        monoio::time::sleep(length).await;
    }

    async fn in_time<F: Future>(length: Duration, future: F) -> F::Output {
        monoio::time::timeout(length, future).await.expect("in time")
    }
}

/// The channel that monoio's documentation points to.
pub struct LocalSync;

impl Channel for LocalSync {
    type Sender = Tx<u32>;
    type Receiver = Rx<u32>;

    fn new(room: usize) -> (Self::Sender, Self::Receiver) {
        channel(room)
    }

    async fn send(sender: &mut Self::Sender, message: u32) {
        sender.send(message).await.expect("the receiver lives");
    }

    async fn receive(receiver: &mut Self::Receiver) -> u32 {
        receiver.recv().await.expect("the sender lives")
    }
}

impl<C: Choice> Sockets for Monoio<C> {
    type Listener = TcpListener;
    type Stream = TcpStream;

    async fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        let listener = TcpListener::bind(Self::ANY_PORT)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        Ok(listener.accept().await?.0)
    }

    async fn read(stream: &mut Self::Stream, mut buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        buffer.clear();
        stream.read(buffer).await
    }

    async fn write(
        stream: &mut Self::Stream,
        buffer: Vec<u8>,
        length: usize,
    ) -> (io::Result<()>, Vec<u8>) {
        let (result, slice) = stream.write_all(buffer.slice(..length)).await;
        (result.map(drop), slice.into_inner())
    }
}
