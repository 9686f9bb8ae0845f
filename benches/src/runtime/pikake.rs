//! pikake.

use std::future::{Future, ready};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream};
use pikake::sync::{Mutex, MutexGuard, mpsc};
use pikake::traps::Interrupted;

use crate::runtime::{Channel, Lock, Runtime, Sockets};

pub struct Pikake;

impl Runtime for Pikake {
    type Task<T: 'static> = pikake::Task<T>;
    type Channel = Mpsc;
    type Lock = Mutex<u32>;

    fn run<F: Future<Output: 'static> + 'static>(main: F) -> F::Output {
        pikake::run(main)
    }

    fn run_with_slack<F: Future<Output: 'static> + 'static>(main: F) -> F::Output {
        let kernel = pikake::Kernel::builder().timer_slack(Duration::from_millis(1)).build();
        kernel.expect("the system has a kernel's descriptors").run(main)
    }

    fn spawn<F: Future<Output: 'static> + 'static>(future: F) -> Self::Task<F::Output> {
        pikake::spawn(future)
    }

    async fn join<T: 'static>(task: Self::Task<T>) -> T {
        task.await.expect("the task returns")
    }

    fn detach<T: 'static>(task: Self::Task<T>) {
        task.detach();
    }

    async fn sleep(length: Duration) {
        // Those who still sleep when the main task has ended are interrupted.
        pikake::sleep(length).await.expect("nobody interrupts");
    }

    async fn in_time<F: Future>(length: Duration, future: F) -> F::Output {
        pikake::timeout_after(length, future).await.expect("in time")
    }

    async fn unless_late<F: Future>(length: Duration, future: F) -> Option<F::Output> {
        pikake::timeout_after(length, future).await.ok()
    }

    async fn yield_now() {
        pikake::yield_now().await.expect("nobody interrupts");
    }

    async fn at_once() {
        pikake::future_wait(ready(())).await.expect("nobody interrupts");
    }
}

/// pikake's own channel.
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
        receiver.recv().await.expect("nobody interrupts").expect("the sender lives")
    }
}

impl Lock for Mutex<u32> {
    // Nobody interrupts.
    type Guard<'a> = Result<MutexGuard<'a, u32>, Interrupted>;

    fn lock(&self) -> impl Future<Output = Self::Guard<'_>> {
        self.lock()
    }
}

impl Sockets for Pikake {
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
        (stream.write_all(&buffer[..length]).await.map_err(Into::into), buffer)
    }
}
