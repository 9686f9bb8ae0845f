//! TCP: streams and listeners.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::panic::Location;
use std::time::Duration;

use pikake_traps::{Direction, OpenSocket, SocketId, SocketOption, in_kernel};

use crate::address::{Resolved, ToSocketAddrs, resolve};
use crate::error::{ReadExactError, ReuniteError, WriteAllError, interruption};
use crate::halves::{self, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::listener::listening;
use crate::race::race;
use crate::replicas::Replicas;
use crate::socket::{Socket, ip, wrong_option};
use crate::stream::{owned_halves, peeking, reading, whole, writing};

/// The backlog of a listener. Systems cap it, Linux at 4096; no common system refuses a burst of
/// this size.
pub(crate) const BACKLOG: u32 = 1024;

/// A TCP connection.
#[derive(Debug)]
pub struct TcpStream {
    socket: Socket,
}

impl TcpStream {
    #[cfg(feature = "io-traits")]
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Connects to a host.
    ///
    /// If the host has several addresses, they are tried as in RFC 8305 ("happy eyeballs"): IPv6
    /// and IPv4 alternate, and the next attempt begins when the one before has failed, or has not
    /// succeeded within 250 ms. The first connection wins; the others are closed.
    ///
    /// Each call looks the name up; a [`Resolver`](crate::Resolver) caches the answers.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use pikake::net::TcpStream;
    /// use pikake::timeout_after;
    /// use std::time::Duration;
    ///
    /// let limit = Duration::from_secs(3);
    /// let stream = timeout_after(limit, TcpStream::connect("example.org:80")).await??;
    /// # Ok(()) }
    /// # let mut sim = pikake::sim::Sim::new(0);
    /// # sim.host("example.org", || async {
    /// #     let listener = pikake::net::TcpListener::bind("0.0.0.0:80").await.unwrap();
    /// #     while listener.accept().await.is_ok() {}
    /// # });
    /// # sim.run_here("client", example()).unwrap().outcome.unwrap().unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// An interruption point during the lookup and the attempts. An interruption or a drop closes
    /// the sockets that were being connected.
    ///
    /// # Errors
    ///
    /// [`AddressErrors`](crate::AddressErrors) with every address that was tried, as
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused); a name that has no address or is
    /// invalid; the interruption.
    ///
    /// # Panics
    ///
    /// If called or polled outside a task.
    #[track_caller]
    pub fn connect<A: ToSocketAddrs>(to: A) -> impl Future<Output = io::Result<Self>> + use<A> {
        let place = Location::caller();
        let resolving = resolve("connect to", to);
        in_kernel(async move { Self::connect_resolved(resolving.await?, place).await })
    }

    pub(crate) async fn connect_resolved(
        resolved: Resolved,
        place: &'static Location<'static>,
    ) -> io::Result<Self> {
        let Resolved { addresses, mut errors } = resolved;
        let [address] = addresses[..] else {
            let connect = move |address| Self::connect_one(address, place);
            return race(addresses, errors, connect, place).await;
        };
        match Self::connect_one(address, place).await {
            Err(error) if interruption(&error).is_none() => {
                errors.add(address, error);
                Err(errors.into())
            }
            result => result,
        }
    }

    async fn connect_one(
        address: SocketAddr,
        place: &'static Location<'static>,
    ) -> io::Result<Self> {
        let socket = Socket::open(OpenSocket::TcpStream(address))?;
        socket.connected(place).await?;
        Ok(Self { socket })
    }

    /// Sets whether small writes are sent at once, instead of being collected (`TCP_NODELAY`).
    ///
    /// # Errors
    ///
    /// [`Closed`](pikake_traps::Closed), or the system's error.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket.set(SocketOption::NoDelay(on))
    }

    /// Whether small writes are sent at once. Off for a new connection.
    ///
    /// # Errors
    ///
    /// As for [`set_nodelay`](Self::set_nodelay).
    pub fn nodelay(&self) -> io::Result<bool> {
        match self.socket.option(SocketOption::NoDelay(false))? {
            SocketOption::NoDelay(on) => Ok(on),
            other => Err(wrong_option(other)),
        }
    }

    /// Sets how long the system sends unsent data after the stream is closed (`SO_LINGER`). `None`
    /// leaves that to the system; zero resets the connection, so the peer gets an error.
    ///
    /// Closing never waits. Systems know whole seconds only.
    ///
    /// # Errors
    ///
    /// As for [`set_nodelay`](Self::set_nodelay).
    #[doc(alias = "set_zero_linger")]
    pub fn set_linger(&self, time: Option<Duration>) -> io::Result<()> {
        self.socket.set(SocketOption::Linger(time))
    }

    /// How long the system sends unsent data after the stream is closed.
    ///
    /// # Errors
    ///
    /// As for [`set_nodelay`](Self::set_nodelay).
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        match self.socket.option(SocketOption::Linger(None))? {
            SocketOption::Linger(time) => Ok(time),
            other => Err(wrong_option(other)),
        }
    }

    whole!(TcpStream, "pikake::net::TcpStream", SocketAddr, ip, std::net::TcpStream);
}

owned_halves!(TcpStream);

/// A listener for TCP connections.
///
/// # Examples
///
/// ```
/// # async fn example() -> std::io::Result<()> {
/// use pikake::net::TcpListener;
///
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// println!("listening at {}", listener.local_addr()?);
/// # let client = pikake::net::TcpStream::connect(listener.local_addr()?);
/// # pikake::spawn(async { client.await }).detach();
/// let (stream, peer) = listener.accept().await?;
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// For a server, see [`serve`](crate::serve()).
#[derive(Debug)]
pub struct TcpListener {
    socket: Socket,
    /// See [`Listener::replicas`](crate::Listener::replicas).
    pub(crate) replicas: Option<Replicas>,
}

impl TcpListener {
    fn new(socket: Socket) -> Self {
        Self { socket, replicas: None }
    }

    /// Listens at the first of a host's addresses that is available. With port 0 the system chooses
    /// a port.
    ///
    /// # Cancellation
    ///
    /// An interruption point while a name is looked up. A numeric address needs no wait.
    ///
    /// # Errors
    ///
    /// [`AddressErrors`](crate::AddressErrors) with every address that was tried, as
    /// [`AddrInUse`](io::ErrorKind::AddrInUse); a name that has no address or is invalid; the
    /// interruption.
    ///
    /// # Panics
    ///
    /// If called or polled outside a kernel.
    #[track_caller]
    pub fn bind<A: ToSocketAddrs>(to: A) -> impl Future<Output = io::Result<Self>> + use<A> {
        let resolving = resolve("bind", to);
        in_kernel(async move {
            let open = |address| Socket::open(OpenSocket::TcpListener(address, BACKLOG));
            resolving.await?.first(open).map(Self::new)
        })
    }

    /// Listens at an address together with other listeners that were bound in this way, in any
    /// kernels: the system distributes the connections.
    ///
    /// Closing a listener resets the connections in its backlog, also if other listeners remain.
    /// With port 0 each listener gets a port of its own.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(others: Vec<pikake::KernelHandle>) {
    /// use pikake::net::{TcpListener, serve};
    ///
    /// for kernel in &others {
    ///     let served = kernel.spawn(|| async {
    ///         let listener = TcpListener::bind_shared("0.0.0.0:7000").await.unwrap();
    ///         let ended = serve(listener, 1000, |stream, _| async move { drop(stream) }).await;
    ///         println!("{}", ended.unwrap());
    ///     });
    /// }
    /// # }
    /// ```
    ///
    /// # Cancellation
    ///
    /// As for [`bind`](Self::bind).
    ///
    /// # Errors
    ///
    /// As for [`bind`](Self::bind); [`Unsupported`](io::ErrorKind::Unsupported), from a kernel
    /// without shared listeners.
    ///
    /// # Panics
    ///
    /// If called or polled outside a kernel.
    #[track_caller]
    pub fn bind_shared<A: ToSocketAddrs>(to: A) -> impl Future<Output = io::Result<Self>> + use<A> {
        let resolving = resolve("bind", to);
        in_kernel(async move {
            let open = |address| Socket::open(OpenSocket::SharedTcpListener(address, BACKLOG));
            resolving.await?.first(open).map(Self::new)
        })
    }

    listening!(
        TcpStream,
        SocketAddr,
        ip,
        std::net::TcpListener,
        r#"let listener = pikake::net::TcpListener::bind("127.0.0.1:0").await?;"#,
        "let client = pikake::net::TcpStream::connect(listener.local_addr()?).await?;"
    );
}
