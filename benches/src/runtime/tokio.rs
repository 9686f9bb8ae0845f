//! tokio: a runtime of one thread with a `LocalSet`, which is what its documentation has for
//! futures that are not `Send`.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{Mutex, MutexGuard, mpsc};
use tokio::task::{JoinHandle, LocalSet};

use crate::runtime::{Channel, Lock, Runtime, Sockets};

pub struct Tokio;

impl Runtime for Tokio {
    type Task<T: 'static> = JoinHandle<T>;
    type Channel = Mpsc;
    type Lock = Mutex<u32>;

    fn run<F: Future<Output: 'static> + 'static>(main: F) -> F::Output {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        LocalSet::new().block_on(&runtime, main)
    }

    fn spawn<F: Future<Output: 'static> + 'static>(future: F) -> Self::Task<F::Output> {
        tokio::task::spawn_local(future)
    }

    async fn join<T: 'static>(task: Self::Task<T>) -> T {
        task.await.expect("the task returns")
    }

    fn detach<T: 'static>(task: Self::Task<T>) {
        drop(task);
    }

    async fn sleep(length: Duration) {
        tokio::time::sleep(length).await;
    }

    async fn unless_late<F: Future>(length: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(length, future).await.ok()
    }

    async fn in_time<F: Future>(length: Duration, future: F) -> F::Output {
        tokio::time::timeout(length, future).await.expect("in time")
    }

    async fn yield_now() {
        tokio::task::yield_now().await;
    }

    async fn at_once() {
        tokio::task::consume_budget().await;
    }
}

/// tokio's own channel.
pub struct Mpsc;

impl Channel for Mpsc {
    type Sender = mpsc::Sender<u32>;
    type Receiver = mpsc::Receiver<u32>;

    fn new(room: usize) -> (Self::Sender, Self::Receiver) {
        mpsc::channel(room)
    }

    async fn send(sender: &mut Self::Sender, message: u32) {
        sender.send(message).await.expect("the receiver lives");
    }

    async fn receive(receiver: &mut Self::Receiver) -> u32 {
        receiver.recv().await.expect("the sender lives")
    }
}

impl Lock for Mutex<u32> {
    type Guard<'a> = MutexGuard<'a, u32>;

    fn lock(&self) -> impl Future<Output = Self::Guard<'_>> {
        self.lock()
    }
}

impl Sockets for Tokio {
    type Listener = TcpListener;
    type Stream = TcpStream;

    async fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        let listener = TcpListener::bind(Self::ANY_PORT).await?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        Ok(listener.accept().await?.0)
    }

    async fn read(stream: &mut Self::Stream, mut buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        (stream.read(&mut buffer).await, buffer)
    }

    async fn write(
        stream: &mut Self::Stream,
        buffer: Vec<u8>,
        length: usize,
    ) -> (io::Result<()>, Vec<u8>) {
        (stream.write_all(&buffer[..length]).await, buffer)
    }
}
