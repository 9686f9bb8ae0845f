//! Sockets, timers and tasks for hickory-resolver, by traps.
//!
//! hickory requires `Send` of all values that it gets through its runtime trait, though it polls
//! them on this thread. So they are [`Bound`]. Each direction of a socket stores one wait, which is
//! polled again with the waker of the latest poll.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use hickory_resolver::net::runtime::{DnsTcpStream, DnsUdpSocket, RuntimeProvider, Spawn, Time};
use pikake_traps::{Bound, Builder, sleep, timeout_after};

use crate::tcp::TcpStream;
use crate::udp::UdpSocket;

/// The timeout of a TCP connection, where hickory sets none.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs hickory's resolver on this kernel. Pass it where hickory wants a `RuntimeProvider`.
#[derive(Clone, Copy, Default, Debug)]
pub struct DnsRuntime;

/// Starts hickory's background tasks in this kernel.
#[derive(Clone, Copy, Default, Debug)]
pub struct DnsSpawner;

/// This kernel's clock, for hickory.
#[derive(Clone, Copy, Debug)]
pub struct DnsTime;

/// A UDP socket, for hickory.
#[derive(Debug)]
pub struct DnsUdp(Bound<Ready<UdpSocket>>);

/// A TCP connection, for hickory.
#[derive(Debug)]
pub struct DnsTcp(Bound<Ready<TcpStream>>);

impl RuntimeProvider for DnsRuntime {
    type Handle = DnsSpawner;
    type Timer = DnsTime;
    type Udp = DnsUdp;
    type Tcp = DnsTcp;

    fn create_handle(&self) -> DnsSpawner {
        DnsSpawner
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        _: Option<SocketAddr>,
        timeout: Option<Duration>,
    ) -> Pin<Box<dyn Send + Future<Output = io::Result<DnsTcp>>>> {
        Box::pin(Bound::future(async move {
            let connecting = TcpStream::connect(server);
            let stream = timeout_after(timeout.unwrap_or(CONNECT_TIMEOUT), connecting).await??;
            stream.set_nodelay(true)?;
            Ok(DnsTcp(Bound::new(Ready::new(stream))))
        }))
    }

    fn bind_udp(
        &self,
        local: SocketAddr,
        _: SocketAddr,
    ) -> Pin<Box<dyn Send + Future<Output = io::Result<DnsUdp>>>> {
        Box::pin(Bound::future(async move {
            let socket = UdpSocket::bind(local).await?;
            Ok(DnsUdp(Bound::new(Ready::new(socket))))
        }))
    }
}

impl Spawn for DnsSpawner {
    fn spawn_bg(&mut self, future: impl Future<Output = ()> + Send + 'static) {
        Builder::new().name("dns connection").spawn(future).detach();
    }
}

impl Time for DnsTime {
    fn delay_for<'a>(duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        // An interruption ends the sleep early. The lookup's caller waits in another task, and gets
        // its own error.
        Box::pin(Bound::future(async move { drop(sleep(duration).await) }))
    }

    fn timeout<'a, F: Future + Send + 'static>(
        duration: Duration,
        future: F,
    ) -> Pin<Box<dyn Future<Output = Result<F::Output, io::Error>> + Send + 'a>> {
        Box::pin(BoundTimeout::new(duration, future))
    }
}

/// A timeout around a future whose output is not known to be `'static`.
struct BoundTimeout<F> {
    future: Pin<Box<F>>,
    timer: Bound<Pin<Box<dyn Future<Output = ()>>>>,
}

impl<F> BoundTimeout<F> {
    fn new(duration: Duration, future: F) -> Self {
        let timer: Pin<Box<dyn Future<Output = ()>>> =
            Box::pin(async move { drop(sleep(duration).await) });
        Self { future: Box::pin(future), timer: Bound::new(timer) }
    }
}

impl<F: Future> Future for BoundTimeout<F> {
    type Output = io::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        ready!(Pin::new(&mut self.timer).poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the server did not answer in time",
        )))
    }
}

type Wait = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// A socket with the outstanding wait of each direction.
struct Ready<S> {
    socket: Rc<S>,
    to_read: RefCell<Option<Wait>>,
    to_write: RefCell<Option<Wait>>,
}

impl<S> Ready<S> {
    fn new(socket: S) -> Self {
        Self { socket: Rc::new(socket), to_read: RefCell::default(), to_write: RefCell::default() }
    }

    /// Repeats an attempt while it would block, with the stored wait in between.
    fn poll<R>(
        slot: &RefCell<Option<Wait>>,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut() -> io::Result<R>,
        wait: impl Fn() -> Wait,
    ) -> Poll<io::Result<R>> {
        loop {
            let mut slot = slot.borrow_mut();
            if let Some(waiting) = slot.as_mut() {
                let waited = ready!(waiting.as_mut().poll(cx));
                *slot = None;
                waited?;
            }
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => *slot = Some(wait()),
                result => return Poll::Ready(result),
            }
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Ready<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

macro_rules! waits {
    ($socket:ty) => {
        impl Ready<$socket> {
            fn poll_read<R>(
                &self,
                cx: &mut Context<'_>,
                attempt: impl FnMut() -> io::Result<R>,
            ) -> Poll<io::Result<R>> {
                Self::poll(&self.to_read, cx, attempt, || {
                    let socket = self.socket.clone();
                    Box::pin(async move { socket.readable().await })
                })
            }

            fn poll_write<R>(
                &self,
                cx: &mut Context<'_>,
                attempt: impl FnMut() -> io::Result<R>,
            ) -> Poll<io::Result<R>> {
                Self::poll(&self.to_write, cx, attempt, || {
                    let socket = self.socket.clone();
                    Box::pin(async move { socket.writable().await })
                })
            }
        }
    };
}

waits!(UdpSocket);
waits!(TcpStream);

impl DnsUdpSocket for DnsUdp {
    type Time = DnsTime;

    fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        let this = self.0.get();
        this.poll_read(cx, || this.socket.try_recv_from(buffer))
    }

    fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        data: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        let this = self.0.get();
        this.poll_write(cx, || this.socket.try_send_to(data, to))
    }
}

impl DnsTcpStream for DnsTcp {
    type Time = DnsTime;
}

impl AsyncRead for DnsTcp {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.0.get();
        this.poll_read(cx, || this.socket.try_read(buffer))
    }
}

impl AsyncWrite for DnsTcp {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.0.get();
        this.poll_write(cx, || this.socket.try_write(data))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.get().socket.shutdown(Shutdown::Write))
    }
}
