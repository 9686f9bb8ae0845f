//! smol: its executor for one thread, driven by `smol::block_on`, which also turns its reactor.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use smol::future::FutureExt;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::{TcpListener, TcpStream};
use smol::{LocalExecutor, Timer};

use crate::runtime::{Common, CommonLock, Runtime, Sockets};

thread_local! {
    static EXECUTOR: LocalExecutor<'static> = const { LocalExecutor::new() };
}

pub struct Smol;

impl Runtime for Smol {
    type Task<T: 'static> = smol::Task<T>;
    // The common channel is smol's.
    type Channel = Common;
    type Lock = CommonLock;

    fn run<F: Future<Output: 'static> + 'static>(main: F) -> F::Output {
        EXECUTOR.with(|executor| smol::block_on(executor.run(main)))
    }

    fn spawn<F: Future<Output: 'static> + 'static>(future: F) -> Self::Task<F::Output> {
        EXECUTOR.with(|executor| executor.spawn(future))
    }

    async fn join<T: 'static>(task: Self::Task<T>) -> T {
        task.await
    }

    fn detach<T: 'static>(task: Self::Task<T>) {
        task.detach();
    }

    async fn sleep(length: Duration) {
        Timer::after(length).await;
    }

    async fn in_time<F: Future>(length: Duration, future: F) -> F::Output {
        let late = async {
            Timer::after(length).await;
            panic!("in time")
        };
        future.or(late).await
    }

    async fn yield_now() {
        smol::future::yield_now().await;
    }
}

impl Sockets for Smol {
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
