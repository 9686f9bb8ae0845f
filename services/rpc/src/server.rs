//! The server: services, limits, and an end in order.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use pikake_net::{Closing, Farewell, Listener, ListenerFailed, Patience, Replicas, serve_until};
use pikake_traps::figures::of_kernel;

use crate::call::{CallInfo, Running};
use crate::codec::ArgumentReader;
use crate::figures::{MethodFigures, ServerFigures};
use crate::packet_error::PacketError;
use crate::packets::PacketOptions;
use crate::peer::Transport;
use crate::service::{Answer, Handler, Method, Service};
use crate::session::serve_calls;

/// How long an interrupted handler may go on, by default.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) packets: PacketOptions,
    /// The calls of a connection that may be under way.
    pub(crate) calls: usize,
    /// The calls of all connections that may be under way.
    pub(crate) all_calls: usize,
    connections: usize,
    pub(crate) items: usize,
    pub(crate) grace: Duration,
    patience: Patience,
}

type Interceptor = Rc<dyn Fn(&Rc<CallInfo>, Handler) -> Handler>;

/// The parts of a server that its connections share.
pub(crate) struct Core {
    pub(crate) options: Options,
    /// By their numbers.
    offers: BTreeMap<u32, Offer>,
    /// The outermost first.
    interceptors: Vec<Interceptor>,
    under_way: Rc<Cell<usize>>,
    pub(crate) figures: Rc<ServerFigures>,
    /// The servers that may take calls; `None` for a server on one kernel.
    pub(crate) replicas: Option<Replicas>,
    /// The calls that were interrupted at the soft deadline, and those that were dropped.
    unfinished: RefCell<(Vec<UnfinishedCall>, Vec<UnfinishedCall>)>,
}

/// A method that is offered.
pub(crate) struct Offer {
    /// The service and the method, as `Accounts.transfer`.
    pub(crate) method: &'static str,
    pub(crate) figures: Rc<MethodFigures>,
    service: Rc<dyn Offered>,
    index: usize,
}

impl Offer {
    /// Begins a call.
    pub(crate) fn call(&self, arguments: ArgumentReader<'_>) -> Result<Handler, String> {
        self.service.call(self.index, arguments)
    }
}

/// A service without its type.
trait Offered {
    fn methods(&self) -> &'static [Method];
    fn call(&self, index: usize, arguments: ArgumentReader<'_>) -> Result<Handler, String>;
}

struct OfService<S>(Rc<S>);

impl<S: Service> Offered for OfService<S> {
    fn methods(&self) -> &'static [Method] {
        self.0.methods()
    }

    fn call(&self, index: usize, arguments: ArgumentReader<'_>) -> Result<Handler, String> {
        self.0.clone().call(index, arguments)
    }
}

/// A place among the calls under way, free again when dropped.
pub(crate) struct Place(Rc<Cell<usize>>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Core {
    pub(crate) fn find(&self, number: u32) -> Option<&Offer> {
        self.offers.get(&number)
    }

    pub(crate) fn try_begin(&self) -> Option<Place> {
        if self.under_way.get() >= self.options.all_calls {
            return None;
        }
        self.under_way.set(self.under_way.get() + 1);
        Some(Place(self.under_way.clone()))
    }

    /// The interceptors around a handler, which is polled at once if there are none.
    pub(crate) fn intercepted(&self, running: &Rc<Running>, handler: Handler) -> Handler {
        if self.interceptors.is_empty() {
            running.is_begun.set(true);
            return handler;
        }
        let call = running.clone();
        let handler: Handler = Box::pin(async move {
            if call.has_ended.get() {
                return Answer::refused("the call has ended");
            }
            call.is_begun.set(true);
            handler.await
        });
        let around = |next, interceptor: &Interceptor| interceptor(&running.info, next);
        self.interceptors.iter().rev().fold(handler, around)
    }

    pub(crate) fn note_interrupted(&self, calls: impl Iterator<Item = UnfinishedCall>) {
        self.unfinished.borrow_mut().0.extend(calls);
    }

    pub(crate) fn note_dropped(&self, calls: impl Iterator<Item = UnfinishedCall>) {
        self.unfinished.borrow_mut().1.extend(calls);
    }
}

/// Offers services on connections.
///
/// A server belongs to its kernel, and is not `Send`. To use more cores, start one in each kernel:
/// `pikake::net::serve_on_all` gives each a listener of the same port. A kernel that is late then
/// offers the calls that come to the others: one that is idle answers with its own services, unless
/// the call has channels or is a notice.
///
/// # Examples
///
/// See the [front page](crate).
pub struct Server {
    options: Options,
    methods: BTreeMap<u32, (Rc<dyn Offered>, usize)>,
    interceptors: Vec<Interceptor>,
    closing: Closing,
    under_way: Rc<Cell<usize>>,
}

impl Server {
    /// A server without services.
    pub fn new() -> Self {
        let options = Options {
            packets: PacketOptions::new(),
            calls: 1_000,
            all_calls: 10_000,
            connections: 10_000,
            items: 16,
            grace: GRACE,
            patience: Patience { hard: GRACE + Duration::from_secs(1), ..Patience::default() },
        };
        Self {
            options,
            methods: BTreeMap::new(),
            interceptors: Vec::new(),
            closing: Closing::new(),
            under_way: Rc::default(),
        }
    }

    /// Offers a service.
    ///
    /// # Panics
    ///
    /// If the server has a method of this name, or one whose name has the same number.
    #[expect(clippy::should_implement_trait, reason = "a sum of servers means nothing")]
    #[track_caller]
    pub fn add<S: Service>(mut self, service: S) -> Self {
        let service: Rc<dyn Offered> = Rc::new(OfService(Rc::new(service)));
        for (index, method) in service.methods().iter().enumerate() {
            let before = self.methods.insert(method.number, (service.clone(), index));
            if let Some((other, at)) = before {
                let other = other.methods()[at].name;
                panic!("{} and {other} have the same number: rename one", method.name);
            }
        }
        self
    }

    /// How packets are sent and received. The server's answers and items also keep to its own
    /// [frame limit](PacketOptions::frame_limit), whatever the client takes.
    pub fn packets(mut self, options: PacketOptions) -> Self {
        self.options.packets = options;
        self
    }

    /// The calls of each connection that may be under way, 1,000 by default. Clients wait with
    /// further calls.
    ///
    /// As many notices may run besides. Further ones are not taken, which nobody learns but the
    /// figures and the log.
    ///
    /// # Panics
    ///
    /// If `count` is zero.
    #[track_caller]
    pub fn calls(mut self, count: usize) -> Self {
        assert!(count > 0, "a connection must have room for at least one call");
        self.options.calls = count;
        self
    }

    /// The calls of all connections that may be under way, 10,000 by default. Further ones fail
    /// with [`CallFailure::Overloaded`](crate::CallFailure::Overloaded). With zero, all calls fail
    /// so.
    pub fn all_calls(mut self, count: usize) -> Self {
        self.options.all_calls = count;
        self
    }

    /// The connections that may be open, 10,000 by default. Further ones wait in the backlog.
    ///
    /// # Panics
    ///
    /// If `count` is zero.
    #[track_caller]
    pub fn connections(mut self, count: usize) -> Self {
        assert!(count > 0, "a server must have room for at least one connection");
        self.options.connections = count;
        self
    }

    /// The items that may wait in each channel of a call, 16 by default.
    ///
    /// A connection may hold so many items of the [frame limit](PacketOptions::frame_limit) for
    /// each channel of each call: 1 GiB for each 64 channels with the defaults. Lower one of the
    /// limits for services of unknown clients that upload.
    ///
    /// # Panics
    ///
    /// If `count` is zero.
    #[track_caller]
    pub fn items(mut self, count: usize) -> Self {
        assert!(count > 0, "a channel must have room for at least one item");
        self.options.items = count;
        self
    }

    /// How long a handler may go on after an interruption, 5 s by default. Then it is dropped.
    pub fn grace(mut self, length: Duration) -> Self {
        self.options.grace = length;
        self
    }

    /// How long the calls under way may go on when the server ends: 20 s by default, and 6 s more
    /// after their interruption.
    ///
    /// The time after the interruption should be longer than the [grace](Self::grace), so that the
    /// handlers end first.
    pub fn patience(mut self, patience: Patience) -> Self {
        self.options.patience = patience;
        self
    }

    /// Ends the server when `closing` begins.
    pub fn closing(mut self, closing: &Closing) -> Self {
        self.closing = closing.clone();
        self
    }

    /// Runs `interceptor` around each handler: to refuse calls ([`Answer::refused`]), or to note
    /// what happens. The interceptors that were added first are the outer ones.
    ///
    /// An interceptor gets the call and its handler, which begins when the interceptor awaits it.
    /// Both run in the task of the call, so [`current_call`](crate::current_call) is set, and an
    /// interruption of the call reaches both. A handler that an interceptor has kept does not begin
    /// after the end of the call.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::rpc::{Answer, Server};
    ///
    /// let key = "secret".to_owned();
    /// let server = Server::new()
    ///     .intercept(async |call, next| {
    ///         println!("{call} begins");
    ///         let answer = next.await;
    ///         println!("{call} ends");
    ///         answer
    ///     })
    ///     .intercept(async move |call, next| match call.metadata("key") {
    ///         Some(sent) if sent == key => next.await,
    ///         _ => Answer::refused("the key is wrong"),
    ///     });
    /// ```
    pub fn intercept<F>(mut self, interceptor: F) -> Self
    where
        F: AsyncFn(Rc<CallInfo>, Handler) -> Answer + 'static,
    {
        let interceptor = Rc::new(interceptor);
        let boxed: Interceptor = Rc::new(move |info, next| {
            let (interceptor, info) = (interceptor.clone(), info.clone());
            Box::pin(async move { interceptor(info, next).await }) as Handler
        });
        self.interceptors.push(boxed);
        self
    }

    fn core(&self, replicas: Option<Replicas>) -> Rc<Core> {
        let figures = of_kernel::<ServerFigures>();
        let offer = |(&number, (service, index)): (&u32, &(Rc<dyn Offered>, usize))| {
            let (service, index) = (service.clone(), *index);
            let method = service.methods()[index].name;
            (number, Offer { method, figures: figures.method(method), service, index })
        };
        Rc::new(Core {
            offers: self.methods.iter().map(offer).collect(),
            options: self.options.clone(),
            interceptors: self.interceptors.clone(),
            under_way: self.under_way.clone(),
            figures,
            replicas,
            unfinished: RefCell::default(),
        })
    }

    /// Answers the calls of one connection, until it ends. Use it in an accept loop of your own, or
    /// for a stream that no [`Listener`] accepts.
    ///
    /// All connections of a server count for [`all_calls`](Self::all_calls).
    /// [`connections`](Self::connections) and [`patience`](Self::patience) are for
    /// [`serve`](Self::serve) alone.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::net::MemoryStream;
    /// use pikake::rpc::{Client, Server};
    ///
    /// #[pikake::service]
    /// trait Echo {
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
    /// let server = Server::new().add(EchoServer::new(Wall));
    /// let connect = move || {
    ///     let (here, there) = MemoryStream::pair(64 * 1024);
    ///     pikake::spawn(server.serve_connection(there)).detach();
    ///     async move { Ok(here) }
    /// };
    /// let echo = EchoClient::new(Client::builder().server("memory", connect).build());
    /// assert_eq!(echo.echo("hello".to_owned()).await?, "hello");
    /// # Ok::<_, pikake::rpc::CallError>(()) }).unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interruption interrupts the handlers, and waits for them for the
    /// grace. A drop drops them.
    ///
    /// # Errors
    ///
    /// The end of the connection, unless the client has ended it in order.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    pub fn serve_connection<S: Transport>(
        &self,
        stream: S,
    ) -> impl Future<Output = Result<(), PacketError>> + use<S> {
        serve_calls(stream, self.core(None), self.closing.clone())
    }

    /// Answers the calls of all connections of a listener, until the server is asked to end or its
    /// task is interrupted. The server then takes no more calls, waits for those under way,
    /// interrupts them at the soft deadline, and drops them at the hard one; see [`serve_until`].
    ///
    /// # Cancellation
    ///
    /// See [`serve_until`].
    ///
    /// # Errors
    ///
    /// See [`serve_until`].
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    pub async fn serve<L>(
        self,
        listener: L,
    ) -> Result<Report<L::Address>, ListenerFailed<L::Address>>
    where
        L: Listener,
        L::Connection: Transport,
        L::Address: fmt::Debug + Clone + 'static,
    {
        let closing = self.closing.clone();
        let core = self.core(listener.replicas());
        let _entered = core.replicas.as_ref().map(|replicas| replicas.enter(core.clone()));
        let (shared, begun) = (core.clone(), closing.clone());
        let handler = move |stream, address: L::Address| {
            let (core, closing) = (shared.clone(), begun.clone());
            async move {
                if let Err(error) = serve_calls(stream, core, closing).await {
                    tracing::debug!(peer = ?address, %error, "a connection of calls has ended");
                }
            }
        };
        let (limit, patience) = (core.options.connections, core.options.patience);
        let farewell = serve_until(listener, limit, closing, patience, handler).await?;
        let (interrupted, dropped) = core.unfinished.take();
        Ok(Report { farewell, interrupted, dropped })
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("methods", &self.methods.len()).finish_non_exhaustive()
    }
}

/// How a server ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report<A> {
    /// The connections.
    pub farewell: Farewell<A>,
    /// The calls that were interrupted at the soft deadline.
    pub interrupted: Vec<UnfinishedCall>,
    /// The calls whose handlers were dropped: at the hard deadline, or earlier when the grace after
    /// the soft deadline was over.
    pub dropped: Vec<UnfinishedCall>,
}

impl<A> Report<A> {
    /// Whether no connection and no call was interrupted.
    pub fn is_clean(&self) -> bool {
        self.farewell.is_clean() && self.interrupted.is_empty() && self.dropped.is_empty()
    }
}

impl<A: fmt::Debug> fmt::Display for Report<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.farewell)?;
        self.interrupted.iter().try_for_each(|call| write!(f, "; interrupted: {call}"))?;
        self.dropped.iter().try_for_each(|call| write!(f, "; dropped: {call}"))
    }
}

/// A call that still ran at a deadline of its server's end.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UnfinishedCall {
    /// The service and the method, as `Accounts.transfer`.
    pub method: &'static str,
    /// The number of the call on its connection.
    pub id: u64,
    /// The address of the client.
    pub peer: String,
}

impl UnfinishedCall {
    pub(crate) fn new(info: &CallInfo) -> Self {
        Self { method: info.method, id: info.id, peer: info.peer.to_string() }
    }
}

impl fmt::Display for UnfinishedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, call {} of {}", self.method, self.id, self.peer)
    }
}
