//! The client: connections to one or several servers, made when they are needed.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::Location;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_net::{Read, TcpStream, UnixStream, Write};
use pikake_time::Ticks;
use pikake_traps::figures::of_kernel;
use pikake_traps::{About, Interrupted, WaitQueue, deadline_after, park_at, sleep};

use crate::breaker::{Breaker, BreakerOptions, Verdict};
use crate::codec::{ArgumentWriter, Codec};
use crate::endpoint::{Connect, Endpoint, Opening, pause_after};
use crate::error::{CallError, CallFailure, Executed};
use crate::link::{Arguments, Link, LinkOptions, Progress, deadline_ahead};
use crate::local::LocalConnector;
use crate::packet_error::PacketError;
use crate::packets::PacketOptions;
use crate::protocol::Metadata;
use crate::service::{Answered, Method};
use crate::trace::with_current;

pub(crate) mod figures;

use figures::{ClientFigures, MethodFigures, Outcome};

/// How long an attempt to connect may take by default: several round trips over a bad connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Which server gets the next call.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Balance {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest calls of this client under way.
    LeastOutstanding,
}

/// Calls services. The clones share the connections.
///
/// # Connections
///
/// One connection goes to each server, and carries any number of calls. A connection is made at the
/// first call, and again after it was lost. An attempt to connect goes on when the call that began
/// it is given up. Its failure ends the attempts of all calls that wait for it. After a failure,
/// the next attempt to connect begins after a pause. The first pause is 25 to 50 ms, and the later
/// ones grow to a second. With other servers, calls go to those until the server is back.
///
/// A call that is given up keeps its place in the server's limit until its handler has ended. A
/// call that waits for room in a full queue has its turn before later calls: while nobody polls it,
/// as after another branch of a `select!` won, those wait too.
///
/// When the last clone is dropped, each connection ends after its calls. A call borrows nothing, so
/// a task may await it after the client is dropped.
///
/// # Attempts
///
/// A call is tried again if it was certainly not executed: the server could not be reached, was
/// overloaded, or shut down before it took the call. A call of a method with `#[idempotent]` is
/// also tried again when its connection was lost. A call with a channel among its arguments is
/// tried again only if the channel has not travelled. All attempts and pauses are within the
/// caller's deadline, as of [`timeout_after`](pikake_traps::timeout_after). [`CallError::executed`]
/// says whether the call may have been executed.
///
/// # Examples
///
/// ```
/// use pikake::net::TcpListener;
/// use pikake::rpc::{Balance, Client, Server};
/// use pikake::timeout_after;
/// use std::time::Duration;
///
/// #[pikake::service]
/// trait Echo {
///     #[idempotent]
///     async fn echo(&self, text: String) -> String;
/// }
///
/// struct Wall;
///
/// impl Echo for Wall {
///     async fn echo(&self, text: String) -> String {
///         text
///     }
/// }
///
/// # pikake::sim::example(async {
/// for address in ["127.0.0.1:7000", "127.0.0.1:7001"] {
///     let listener = TcpListener::bind(address).await?;
///     pikake::spawn(Server::new().add(EchoServer::new(Wall)).serve(listener)).detach();
/// }
/// let client = Client::builder()
///     .tcp("127.0.0.1:7000")
///     .tcp("127.0.0.1:7001")
///     .balance(Balance::LeastOutstanding)
///     .build();
/// let echo = EchoClient::new(client.clone());
/// let answer = timeout_after(Duration::from_secs(1), echo.echo("hello".to_owned())).await??;
/// assert_eq!(answer, "hello");
/// client.close().await?;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Client {
    core: Rc<Core>,
    metadata: Rc<Metadata>,
}

struct Core {
    servers: Vec<Rc<Endpoint>>,
    balance: Balance,
    attempts: usize,
    hedge_after: Option<Duration>,
    /// The server that is looked at first for the next call.
    next: Cell<usize>,
    under_way: Cell<usize>,
    /// The waits for the end of all calls.
    idle: WaitQueue,
    /// Of the kernel of the first call.
    figures: OnceCell<Rc<ClientFigures>>,
}

/// Makes a [`Client`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct ClientBuilder {
    servers: Vec<(Rc<str>, Connect)>,
    balance: Balance,
    attempts: usize,
    connections: usize,
    connect_timeout: Duration,
    breaker: Option<BreakerOptions>,
    hedge_after: Option<Duration>,
    link: LinkOptions,
}

/// A call of a user.
#[derive(Clone, Copy)]
struct Call<'a> {
    method: &'a Method,
    metadata: &'a Metadata,
    arguments: Arguments<'a>,
    place: &'static Location<'static>,
}

impl Client {
    /// Begins to describe a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            servers: Vec::new(),
            balance: Balance::default(),
            attempts: 3,
            connections: 1,
            connect_timeout: CONNECT_TIMEOUT,
            breaker: None,
            hedge_after: None,
            link: LinkOptions { codec: Codec::default(), items: 16, packets: PacketOptions::new() },
        }
    }

    /// A client of the server at `address`, such as `"127.0.0.1:7000"`, over TCP.
    pub fn tcp(address: &str) -> Self {
        Self::builder().tcp(address).build()
    }

    /// A client of the server at `path`, over a Unix socket.
    pub fn unix(path: impl AsRef<Path>) -> Self {
        Self::builder().unix(path).build()
    }

    /// A client of a server in another kernel of the process. See [`local`](crate::local).
    pub fn local(connector: &LocalConnector) -> Self {
        Self::builder().local(connector).build()
    }

    /// A client whose calls travel with this pair, in place of those of the same name. The new
    /// client shares the connections. Upper and lower case of a name are the same. A call has at
    /// most 64 pairs.
    #[must_use = "the calls of the client itself travel without the pair"]
    pub fn with_metadata(&self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, mut metadata) = (name.into(), (*self.metadata).clone());
        metadata.retain(|(at, _)| !at.eq_ignore_ascii_case(&name));
        metadata.push((name, value.into()));
        Self { core: self.core.clone(), metadata: Rc::new(metadata) }
    }

    /// As [`with_metadata`](Self::with_metadata), and keeps the other pairs of this name. A handler
    /// finds all of them in the field `metadata` of [`CallInfo`](crate::CallInfo).
    #[must_use = "the calls of the client itself travel without the pair"]
    pub fn add_metadata(&self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let mut metadata = (*self.metadata).clone();
        metadata.push((name.into(), value.into()));
        Self { core: self.core.clone(), metadata: Rc::new(metadata) }
    }

    /// Makes a call, for the code that `#[pikake::service]` writes. `returned` makes the method's
    /// output here: a future around this one would have the size of two.
    ///
    /// # Cancellation
    ///
    /// An interruption point. A call that is dropped or interrupted interrupts its handler.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[doc(hidden)]
    #[track_caller]
    pub fn call<F, R, T>(
        &self,
        method: &'static Method,
        arguments: F,
        returned: R,
    ) -> impl Future<Output = T> + use<F, R, T>
    where
        F: FnMut(&mut ArgumentWriter<'_>) -> Result<(), String> + 'static,
        R: FnOnce(Result<Answered, CallError>) -> T,
    {
        let (place, client) = (Location::caller(), self.clone());
        async move {
            let arguments = RefCell::new(arguments);
            let metadata = with_current(&client.metadata);
            let call = Call { method, metadata: &metadata, arguments: &arguments, place };
            let under_way = UnderWay::new(&client.core, method);
            let result = client.core.call(call).await;
            under_way.end(Outcome::of(&result));
            returned(result)
        }
    }

    /// Waits until no call is under way, and ends the connections. A later call makes a new one.
    ///
    /// Calls of the clones count, also those that begin in the meantime.
    ///
    /// # Cancellation
    ///
    /// An interruption point. A close that is dropped or interrupted has closed nothing, or
    /// everything: then what was sent is written all the same.
    ///
    /// # Errors
    ///
    /// The interruption.
    #[track_caller]
    pub fn close(&self) -> impl Future<Output = Result<(), Interrupted>> + '_ {
        let place = Location::caller();
        async move {
            let core = &self.core;
            while core.under_way.get() > 0 {
                let about = || About::new("the end of the calls under way");
                park_at((&core.idle, about), place).await?;
            }
            let links: Vec<_> = core.servers.iter().flat_map(|server| server.close()).collect();
            for link in links {
                link.finish().await?;
            }
            Ok(())
        }
    }
}

impl Core {
    fn figures(&self) -> &ClientFigures {
        self.figures.get_or_init(of_kernel)
    }

    /// Makes a call, in several attempts if need be.
    async fn call(&self, call: Call<'_>) -> Result<Answered, CallError> {
        let attempts = Cell::new(0);
        let mut rounds = 0;
        let mut before: Option<(usize, CallError)> = None;
        loop {
            let tried = before.as_ref().map(|(index, _)| *index);
            let Some(index) = self.pick(tried) else {
                return Err(before.map_or_else(|| self.not_sent(call.method), |(_, error)| error));
            };
            let progress = Cell::default();
            let mut error = match self.hedged(call, index, &attempts, &progress).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let may_repeat = (error.executed == Executed::No || call.method.is_idempotent)
                && progress.get() != Progress::SentWithChannels
                && is_transient(&error.failure);
            if let Some((_, before)) = &before {
                error.executed = error.executed.max(before.executed);
            }
            let attempt = attempts.get();
            if attempt >= self.attempts || !may_repeat {
                return Err(error);
            }
            tracing::debug!(%error, attempt, "a call is tried again");
            // Each server that may take the call has refused it.
            let round = attempt / self.servers.len();
            if matches!(error.failure, CallFailure::Overloaded) && round > rounds {
                rounds = round;
                let pause = pause_after(u32::try_from(round).unwrap_or(u32::MAX));
                if deadline_ahead() <= deadline_after(pause) {
                    return Err(error);
                }
                if let Err(interrupted) = sleep(pause).await {
                    return Err(CallError {
                        failure: CallFailure::Interrupted(interrupted),
                        ..error
                    });
                }
            }
            self.figures().repeated();
            before = Some((index, error));
        }
    }

    /// An attempt at one server, and after a while at another one too, which counts as another
    /// attempt.
    async fn hedged(
        &self,
        call: Call<'_>,
        index: usize,
        attempts: &Cell<usize>,
        progress: &Cell<Progress>,
    ) -> Result<Answered, CallError> {
        attempts.set(attempts.get() + 1);
        let may_hedge = call.method.is_idempotent && attempts.get() < self.attempts;
        let Some(hedge_after) = self.hedge_after.filter(|_| may_hedge) else {
            return self.attempt(call, index, progress).await;
        };
        let mut first = Box::pin(self.attempt(call, index, progress));
        if let Some(result) = within(hedge_after, first.as_mut()).await {
            return result;
        }
        let other = self.pick(Some(index)).filter(|other| *other != index);
        let Some(other) = other.filter(|_| progress.get() != Progress::SentWithChannels) else {
            return first.await;
        };
        attempts.set(attempts.get() + 1);
        let mut under_way = vec![first];
        if progress.get() == Progress::Unsent {
            under_way.clear();
        }
        under_way.push(Box::pin(self.attempt(call, other, progress)));
        first_answer(under_way).await
    }

    async fn attempt(
        &self,
        call: Call<'_>,
        index: usize,
        progress: &Cell<Progress>,
    ) -> Result<Answered, CallError> {
        let server = &self.servers[index];
        let Call { method, metadata, arguments, place } = call;
        let pending = server.breaker.begin();
        let connection = server.choose();
        let result = match connection.link(place).await {
            Ok(link) => link.call(method, metadata, arguments, progress, place).await,
            Err(error) => Err(CallError {
                method: method.name,
                peer: server.peer.to_string(),
                failure: match error {
                    PacketError::Interrupted(interrupted) => CallFailure::Interrupted(interrupted),
                    error => CallFailure::Connection(error),
                },
                executed: Executed::No,
            }),
        };
        pending.end(verdict(method, &result));
        result
    }

    /// The server for the next attempt, if possible one that is not away, and another than the one
    /// that was tried. `None`: no server may get a call.
    fn pick(&self, tried: Option<usize>) -> Option<usize> {
        if let [server] = &self.servers[..] {
            return server.breaker.admits().then_some(0);
        }
        let (first, count) = (self.next.get(), self.servers.len());
        let in_turn = (first..first + count).map(|index| index % count);
        let admitted = in_turn.filter(|&index| self.servers[index].breaker.admits());
        let key = |&index: &usize| {
            let server = &self.servers[index];
            let calls = match self.balance {
                Balance::RoundRobin => 0,
                Balance::LeastOutstanding => server.under_way(),
            };
            (server.probe(), tried == Some(index), calls)
        };
        // The first of equal ones.
        let picked = admitted.min_by_key(key)?;
        self.next.set((picked + 1) % count);
        Some(picked)
    }

    /// The error when no server may get a call.
    fn not_sent(&self, method: &Method) -> CallError {
        CallError {
            method: method.name,
            peer: self.servers[self.next.get()].peer.to_string(),
            failure: CallFailure::BreakerOpen,
            executed: Executed::No,
        }
    }
}

/// Whether another attempt may do better.
fn is_transient(failure: &CallFailure) -> bool {
    match failure {
        CallFailure::Connection(error) => {
            !matches!(error, PacketError::Foreign | PacketError::Version { .. })
        }
        CallFailure::Overloaded | CallFailure::ShuttingDown => true,
        _ => false,
    }
}

/// Tells by the end of an attempt how the server does.
fn verdict(method: &Method, result: &Result<Answered, CallError>) -> Verdict {
    match result.as_ref().map_err(|error| &error.failure) {
        // A notice was sent, and nothing more.
        Ok(_) if method.is_notice => Verdict::Unknown,
        Ok(_) => Verdict::Answered,
        Err(CallFailure::Connection(_) | CallFailure::Overloaded) => Verdict::Failed,
        Err(CallFailure::Interrupted(interrupted)) if interrupted.is_timeout() => Verdict::Failed,
        Err(
            CallFailure::Interrupted(_)
            | CallFailure::Encode(_)
            | CallFailure::ShuttingDown
            | CallFailure::Ended(_)
            | CallFailure::BreakerOpen,
        ) => Verdict::Unknown,
        Err(_) => Verdict::Answered,
    }
}

/// The output of a future, unless it takes longer.
async fn within<F: Future>(length: Duration, mut future: Pin<&mut F>) -> Option<F::Output> {
    let mut timer = pin!(sleep(length));
    let output = poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending => timer.as_mut().poll(cx).map(Err),
    });
    match output.await {
        Ok(output) => Some(output),
        Err(Ok(())) => None,
        // The cause interrupts the future too.
        Err(Err(_)) => Some(future.await),
    }
}

/// The first answer of several attempts, or the error of the last one to fail.
async fn first_answer(
    mut attempts: Vec<Pin<Box<impl Future<Output = Result<Answered, CallError>>>>>,
) -> Result<Answered, CallError> {
    let mut executed = Executed::No;
    poll_fn(|cx| {
        let mut index = 0;
        while let Some(attempt) = attempts.get_mut(index) {
            match attempt.as_mut().poll(cx) {
                Poll::Pending => index += 1,
                Poll::Ready(Ok(answer)) => return Poll::Ready(Ok(answer)),
                Poll::Ready(Err(mut error)) => {
                    drop(attempts.remove(index));
                    executed = executed.max(error.executed);
                    error.executed = executed;
                    if attempts.is_empty() {
                        return Poll::Ready(Err(error));
                    }
                }
            }
        }
        Poll::Pending
    })
    .await
}

/// Counts a call of a client while it is under way.
struct UnderWay<'a> {
    core: &'a Core,
    figures: Rc<MethodFigures>,
    began: Option<Ticks>,
    outcome: Outcome,
}

impl<'a> UnderWay<'a> {
    fn new(core: &'a Core, method: &Method) -> Self {
        core.under_way.set(core.under_way.get() + 1);
        let figures = core.figures().method(method);
        let began = figures.began();
        Self { core, figures, began, outcome: Outcome::Abandoned }
    }

    fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.figures.ended(self.outcome, self.began);
        let core = self.core;
        core.under_way.set(core.under_way.get() - 1);
        if core.under_way.get() == 0 {
            core.idle.wake(usize::MAX);
        }
    }
}

impl ClientBuilder {
    /// Adds a server over TCP, such as `"127.0.0.1:7000"` or `"accounts.example:7000"`.
    ///
    /// A name with several addresses is one server: the connection goes to the first address that
    /// accepts it. See [`TcpStream::connect`].
    pub fn tcp(self, address: &str) -> Self {
        let name = address.to_owned();
        self.server(address, move || {
            let address = name.clone();
            async move { connect_tcp(&address).await }
        })
    }

    /// Adds a server over TLS on TCP, whose certificate must be good for `name`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use pikake::net::tls::{Identity, TlsConnector};
    /// use pikake::rpc::Client;
    ///
    /// # fn example() -> std::io::Result<()> {
    /// let tls = TlsConnector::builder()
    ///     .roots_pem(&std::fs::read("authority.crt")?)?
    ///     .identity(Identity::from_pem_files("client.crt", "client.key")?)
    ///     .build()?;
    /// let client = Client::builder().tls("10.0.0.7:7000", "accounts.example", tls).build();
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(self, address: &str, name: &str, tls: pikake_net::tls::TlsConnector) -> Self {
        let names = (address.to_owned(), name.to_owned());
        self.server(address, move || {
            let ((address, name), tls) = (names.clone(), tls.clone());
            async move { tls.connect(&name, connect_tcp(&address).await?).await }
        })
    }

    /// Adds a server over a Unix socket.
    pub fn unix(self, path: impl AsRef<Path>) -> Self {
        let to = path.as_ref().to_owned();
        self.server(&path.as_ref().display().to_string(), move || {
            let path = to.clone();
            async move { UnixStream::connect(&path).await }
        })
    }

    /// Adds a server of another kernel of the process. See [`local`](crate::local).
    pub fn local(self, connector: &LocalConnector) -> Self {
        let to = connector.clone();
        self.server(connector.name(), move || {
            let connector = to.clone();
            async move { connector.connect().await }
        })
    }

    /// Adds a server to which `connect` makes streams. Errors and listings call it `peer`.
    pub fn server<F, S>(mut self, peer: &str, connect: impl Fn() -> F + 'static) -> Self
    where
        F: Future<Output = io::Result<S>> + 'static,
        S: Read + Write + 'static,
    {
        let (peer, connect) = (Rc::<str>::from(peer), Rc::new(connect));
        let name = peer.clone();
        let open = move |options| {
            let (connect, peer) = (connect.clone(), name.clone());
            Box::pin(async move { Link::open(connect().await?, &peer, options).await }) as Opening
        };
        self.servers.push((peer, Rc::new(open)));
        self
    }

    /// Which server gets the next call: by default one after the other.
    ///
    /// Servers that could not be reached get no calls while others can be.
    pub fn balance(mut self, balance: Balance) -> Self {
        self.balance = balance;
        self
    }

    /// The most attempts of a call, three by default. A hedge is an attempt too, so a server gets
    /// no more requests than that for a call. See [`Client`] for the calls that are tried again.
    ///
    /// # Panics
    ///
    /// If `count` is zero.
    #[track_caller]
    pub fn attempts(mut self, count: usize) -> Self {
        assert!(count > 0, "a call is tried at least once");
        self.attempts = count;
        self
    }

    /// The number of connections to each server, one by default.
    ///
    /// One connection suffices for any number of calls. Several connections have separate limits of
    /// calls and separate queues, so a large argument delays fewer calls. A call goes to the
    /// connection with the fewest calls.
    ///
    /// # Panics
    ///
    /// If `count` is zero.
    #[track_caller]
    pub fn connections(mut self, count: usize) -> Self {
        assert!(count > 0, "a client needs a connection to each server");
        self.connections = count;
        self
    }

    /// How long an attempt to connect may take, from the lookup to the server's hello; 10 s by
    /// default.
    pub fn connect_timeout(mut self, length: Duration) -> Self {
        self.connect_timeout = length;
        self
    }

    /// Sends a server no calls for `pause` after so many calls in a row have failed; by default,
    /// calls are always sent.
    ///
    /// A call has failed if the server could not be reached, the connection was lost, the server
    /// was overloaded, or the caller's deadline has passed. After the pause, one call is sent. When
    /// it is answered, further calls follow; when it fails, another pause begins. When it has no
    /// answer after another pause, a further call is sent. A call that may be sent to no server
    /// fails with [`CallFailure::BreakerOpen`].
    ///
    /// # Panics
    ///
    /// If `failures` is zero.
    #[track_caller]
    pub fn break_after(mut self, failures: usize, pause: Duration) -> Self {
        assert!(failures > 0, "a server that has not failed gets calls");
        self.breaker = Some(BreakerOptions { failures, pause });
        self
    }

    /// Sends a call of an idempotent method to another server as well when it has no answer after
    /// `length`; off by default.
    ///
    /// The first answer counts, and the other attempt is given up. Another connection to the same
    /// server is no other server. A call with a channel among its arguments goes to one server
    /// only, and so does the last of its [`attempts`](Self::attempts).
    pub fn hedge_after(mut self, length: Duration) -> Self {
        self.hedge_after = Some(length);
        self
    }

    /// How arguments and answers become bytes.
    pub fn codec(mut self, codec: Codec) -> Self {
        self.link.codec = codec;
        self
    }

    /// The items that may wait in each channel of a call, 16 by default.
    ///
    /// # Panics
    ///
    /// If `count` is zero.
    #[track_caller]
    pub fn items(mut self, count: usize) -> Self {
        assert!(count > 0, "a channel must have room for at least one item");
        self.link.items = count;
        self
    }

    /// How packets are sent and received.
    pub fn packets(mut self, options: PacketOptions) -> Self {
        self.link.packets = options;
        self
    }

    /// The client. It connects when it is called.
    ///
    /// # Panics
    ///
    /// Without a server.
    #[track_caller]
    pub fn build(self) -> Client {
        assert!(!self.servers.is_empty(), "a client needs a server");
        let limits = (self.connections, self.connect_timeout);
        let server = |(peer, connect)| {
            let breaker = Breaker::new(self.breaker);
            Rc::new(Endpoint::new(peer, connect, self.link.clone(), limits, breaker))
        };
        let core = Core {
            servers: self.servers.into_iter().map(server).collect(),
            balance: self.balance,
            attempts: self.attempts,
            hedge_after: self.hedge_after,
            next: Cell::new(0),
            under_way: Cell::new(0),
            idle: WaitQueue::new(),
            figures: OnceCell::new(),
        };
        Client { core: Rc::new(core), metadata: Rc::default() }
    }
}

/// Connects, and sends small packets at once.
async fn connect_tcp(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peers: Vec<_> = self.core.servers.iter().map(|server| &server.peer).collect();
        f.debug_struct("Client")
            .field("servers", &peers)
            .field("calls", &self.core.under_way.get())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("servers", &self.servers.len())
            .field("balance", &self.balance)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
