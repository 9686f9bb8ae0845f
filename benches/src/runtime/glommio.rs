//! glommio, which is on io_uring always.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::channels::local_channel::{LocalReceiver, LocalSender, new_bounded};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement, Task};

use crate::runtime::{Channel, CommonLock, Runtime, Sockets};

pub struct Glommio;

impl Runtime for Glommio {
    type Task<T: 'static> = Task<T>;
    type Channel = Local;
    type Lock = CommonLock;

    fn run<F: Future<Output: 'static> + 'static>(main: F) -> F::Output {
        LocalExecutorBuilder::new(Placement::Unbound).make().expect("an executor").run(main)
    }

    fn spawn<F: Future<Output: 'static> + 'static>(future: F) -> Self::Task<F::Output> {
        glommio::spawn_local(future)
    }

    async fn join<T: 'static>(task: Self::Task<T>) -> T {
        task.await
    }

    fn detach<T: 'static>(task: Self::Task<T>) {
        task.detach();
    }

    async fn sleep(length: Duration) {
        glommio::timer::sleep(length).await;
    }

    async fn in_time<F: Future>(length: Duration, future: F) -> F::Output {
        glommio::timer::timeout(length, async { Ok(future.await) }).await.expect("in time")
    }

    async fn yield_now() {
        glommio::executor().yield_now().await;
    }
}

/// glommio's own channel.
pub struct Local;

impl Channel for Local {
    type Sender = LocalSender<u32>;
    type Receiver = LocalReceiver<u32>;

    fn new(room: usize) -> (Self::Sender, Self::Receiver) {
        new_bounded(room)
    }

    async fn send(sender: &mut Self::Sender, message: u32) {
        sender.send(message).await.expect("the receiver lives");
    }

    async fn receive(receiver: &mut Self::Receiver) -> u32 {
        receiver.recv().await.expect("the sender lives")
    }
}

impl Sockets for Glommio {
    type Listener = TcpListener;
    type Stream = TcpStream;

    async fn listen() -> io::Result<(Self::Listener, SocketAddr)> {
        let listener = TcpListener::bind(Self::ANY_PORT)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        Ok(listener.accept().await?)
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
