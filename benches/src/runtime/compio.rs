//! compio, on io_uring (its own choice on Linux) and on epoll.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use compio::BufResult;
use compio::buf::{IntoInner, IoBuf};
use compio::driver::{DriverType, ProactorBuilder};
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::{JoinHandle, RuntimeBuilder};

use crate::runtime::{Common, CommonLock, Runtime, Sockets};

pub struct Compio<const EPOLL: bool>;

impl<const EPOLL: bool> Runtime for Compio<EPOLL> {
    type Task<T: 'static> = JoinHandle<T>;
    type Channel = Common;
    type Lock = CommonLock;

    fn run<F: Future<Output: 'static> + 'static>(main: F) -> F::Output {
        let driver = if EPOLL { DriverType::Poll } else { DriverType::IoUring };
        let mut proactor = ProactorBuilder::new();
        proactor.driver_type(driver);
        let runtime = RuntimeBuilder::new().with_proactor(proactor).build().expect("a runtime");
        assert_eq!(runtime.driver_type(), driver);
        runtime.block_on(main)
    }

    fn spawn<F: Future<Output: 'static> + 'static>(future: F) -> Self::Task<F::Output> {
        compio::runtime::spawn(future)
    }

    async fn join<T: 'static>(task: Self::Task<T>) -> T {
        task.await.expect("the task returns")
    }

    fn detach<T: 'static>(task: Self::Task<T>) {
        task.detach();
    }

    async fn sleep(length: Duration) {
        compio::runtime::time::sleep(length).await;
    }

    async fn in_time<F: Future>(length: Duration, future: F) -> F::Output {
        compio::runtime::time::timeout(length, future).await.expect("in time")
    }
}

impl<const EPOLL: bool> Sockets for Compio<EPOLL> {
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
        buffer.clear();
        let BufResult(result, buffer) = stream.read(buffer).await;
        (result, buffer)
    }

    async fn write(
        stream: &mut Self::Stream,
        buffer: Vec<u8>,
        length: usize,
    ) -> (io::Result<()>, Vec<u8>) {
        let BufResult(result, slice) = stream.write_all(buffer.slice(..length)).await;
        (result, slice.into_inner())
    }
}
