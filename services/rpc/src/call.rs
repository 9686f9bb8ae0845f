//! A call at the server: what its handler sees, its task, and its end.
//!
//! ```text
//!   request ──▶ task ──(1)──▶ answered
//!                │ (2)           ▲
//!                ▼      (1)      │
//!           interrupted ─────────┤
//!                │ (3)           │
//!                ▼               │
//!             dropped ───────────┘
//! ```
//!
//! (1) The handler returned or panicked. (2) The caller gave up, its time is over, the connection
//! is lost, or the server ends. (3) The grace is over. Each request has one answer, at whichever
//! end ([`EndOfCall`]).
//!
//! Several of these causes may come, such as the deadline and the cancel of the caller, who has the
//! same deadline. Only the first one interrupts the handler ([`Running::interrupt`]), so that its
//! cleanup may wait.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use pikake_net::Replicas;
use pikake_time::{Deadline, Ticks};
use pikake_traps::{CancelOnDrop, Panic, Task, TaskMark, catch_and_log, now, timeout_at};
use tracing::Span;
use tracing::field::{Empty, display};

use crate::codec::{ArgumentReader, Codec};
use crate::figures::{MethodFigures, Outcome};
use crate::moved::MovedAnswer;
use crate::packet_error::PacketError;
use crate::peer::Peer;
use crate::protocol::{ERROR, Failure, Metadata};
use crate::server::{Core, Place};
use crate::service::{Answer, Given, Handler};
use crate::session::Session;
use crate::stream::Ported;
use crate::trace::TraceContext;

/// A call, as its handler and interceptors see it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallInfo {
    /// The service and the method, as `Accounts.transfer`.
    pub method: &'static str,
    /// The number of the call on its connection.
    pub id: u64,
    /// The client.
    pub peer: Rc<Peer>,
    /// When the caller stops waiting.
    pub deadline: Deadline,
    /// The pairs that the caller has sent with the call.
    pub metadata: Vec<(String, String)>,
    /// The trace that the caller has named in the metadata, with an id of this call. See
    /// [`trace`](crate::trace).
    pub trace: Option<TraceContext>,
}

impl CallInfo {
    /// The value of the first metadata of this name, in upper or lower case.
    pub fn metadata(&self, name: &str) -> Option<&str> {
        let found = self.metadata.iter().find(|(at, _)| at.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

impl fmt::Display for CallInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, call {} of {}", self.method, self.id, self.peer)
    }
}

type InTask = (TaskMark, Rc<CallInfo>);

thread_local! {
    /// The call whose handler runs, and its task. A step of another task may run inside.
    static CURRENT: Cell<Option<InTask>> = const { Cell::new(None) };
}

/// Makes a call the current one until the drop.
struct Entered(Option<InTask>);

impl Entered {
    fn new(info: &Rc<CallInfo>) -> Self {
        Self(CURRENT.replace(Some((TaskMark::current(), info.clone()))))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// The call whose handler runs in this task; `None` in other tasks, also in those that a handler
/// has started.
///
/// # Examples
///
/// ```
/// use pikake::net::TcpListener;
/// use pikake::rpc::{Client, Server, current_call};
///
/// #[pikake::service]
/// trait Names {
///     async fn method(&self) -> String;
/// }
///
/// struct Plain;
///
/// impl Names for Plain {
///     async fn method(&self) -> String {
///         current_call().unwrap().method.to_owned()
///     }
/// }
///
/// # pikake::sim::example(async {
/// let listener = TcpListener::bind("127.0.0.1:7000").await?;
/// let server = pikake::spawn(Server::new().add(NamesServer::new(Plain)).serve(listener));
/// let names = NamesClient::new(Client::tcp("127.0.0.1:7000"));
/// assert_eq!(names.method().await?, "Names.method");
/// # server.cancel().await?;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn current_call() -> Option<Rc<CallInfo>> {
    let current = CURRENT.take();
    let found = current.as_ref().filter(|(task, _)| *task == TaskMark::current());
    let info = found.map(|(_, info)| info.clone());
    CURRENT.set(current);
    info
}

/// A call whose handler has not ended.
pub(crate) struct Running {
    pub(crate) info: Rc<CallInfo>,
    pub(crate) is_notice: bool,
    pub(crate) task: RefCell<Option<Task<()>>>,
    pub(crate) channels: RefCell<Vec<Rc<dyn Ported>>>,
    /// Drops the handler when the grace is over.
    pub(crate) grace: RefCell<Option<CancelOnDrop<()>>>,
    /// The task of the call was asked to end.
    is_interrupted: Cell<bool>,
    /// The service's own handler was polled, and not only the interceptors around it.
    pub(crate) is_begun: Cell<bool>,
    /// The call is answered. A handler that an interceptor has kept does not begin any more.
    pub(crate) has_ended: Cell<bool>,
}

impl Running {
    pub(crate) fn new(
        info: Rc<CallInfo>,
        is_notice: bool,
        channels: Vec<Rc<dyn Ported>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            info,
            is_notice,
            task: RefCell::default(),
            channels: RefCell::new(channels),
            grace: RefCell::default(),
            is_interrupted: Cell::new(false),
            is_begun: Cell::new(false),
            has_ended: Cell::new(false),
        })
    }

    /// Interrupts the handler, unless it was interrupted before. Returns whether this is the first
    /// cause.
    pub(crate) fn interrupt(&self, reason: &str) -> bool {
        // A deadline that has passed interrupts the handler by itself, and drops it after the
        // grace.
        if self.is_interrupted.get() || self.info.deadline.is_due(now()) {
            return false;
        }
        let task = self.task.borrow();
        let Some(task) = &*task else { return false };
        self.is_interrupted.set(true);
        task.request_cancel(reason);
        true
    }
}

/// The task of a call. For one that is answered on another kernel, the interceptors run there, and
/// the deadline is kept there.
pub(crate) async fn handle(end: EndOfCall, handler: Handler, is_moved: bool) {
    let info = end.running.info.clone();
    in_call(&info, answer(end, handler, is_moved)).await;
}

/// A call on its way to another kernel.
pub(crate) struct MovedCall {
    pub(crate) method: u32,
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) deadline: Deadline,
    pub(crate) metadata: Metadata,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) codec: Codec,
    pub(crate) arguments: Vec<u8>,
    pub(crate) span: Span,
    /// Set by the kernel that answers, when the service's own handler begins.
    pub(crate) is_begun: Arc<AtomicBool>,
}

/// The end of a call on the kernel that answers it for another one.
struct EndThere {
    running: Rc<Running>,
    is_begun: Arc<AtomicBool>,
}

impl Drop for EndThere {
    fn drop(&mut self) {
        self.running.has_ended.set(true);
        self.is_begun.store(self.running.is_begun.get(), Ordering::Release);
    }
}

/// Answers a call of another kernel with the server of this one.
pub(crate) async fn answer_of_other(replicas: Replicas, call: MovedCall) -> MovedAnswer {
    let Some(core) = replicas.here::<Rc<Core>>() else { return MovedAnswer::NotBegun };
    let Some(offer) = core.find(call.method) else { return MovedAnswer::NotBegun };
    let MovedCall { id, peer, deadline, metadata, trace, codec, arguments, span, is_begun, .. } =
        call;
    let read = ArgumentReader::new(codec, &arguments).and_then(|reader| offer.call(reader));
    let handler = match read {
        Ok(handler) => handler,
        Err(text) => return MovedAnswer::Failure(Failure::Arguments, text),
    };
    let (method, peer) = (offer.method, Rc::new(peer));
    let info = Rc::new(CallInfo { method, id, peer, deadline, metadata, trace });
    let running = Running::new(info.clone(), false, Vec::new());
    let end = EndThere { running: running.clone(), is_begun };
    let mut handler = core.intercepted(&running, handler);
    let in_span = poll_fn(|cx| {
        let _entered = span.enter();
        handler.as_mut().poll(cx)
    });
    // The connection's kernel may be late: the deadline is kept here.
    let answer = in_call(&info, async {
        match deadline.is_never() {
            true => Some(in_span.await),
            false => timeout_at(deadline, in_span).grace(core.options.grace).await.ok(),
        }
    });
    let answer = answer.await;
    drop(end);
    let Some(answer) = answer else {
        return MovedAnswer::Failure(Failure::Ended, OVERDUE.to_owned());
    };
    match answer.0 {
        Given::Failure(failure, text) => MovedAnswer::Failure(failure, text),
        Given::Value(value) => {
            let mut bytes = Vec::new();
            match value.encode(codec, &mut bytes) {
                Ok(()) => MovedAnswer::Value { bytes, is_error: value.is_error() },
                Err(text) => MovedAnswer::Failure(Failure::Answer, text),
            }
        }
    }
}

/// Runs a part of a call, which is the [current one](current_call) there.
async fn in_call<F: Future>(info: &Rc<CallInfo>, work: F) -> F::Output {
    let mut work = pin!(work);
    let polls = poll_fn(|cx| {
        let _entered = Entered::new(info);
        work.as_mut().poll(cx)
    });
    polls.await
}

/// Runs a handler, and answers its call.
async fn answer(end: EndOfCall, handler: Handler, is_moved: bool) {
    let (core, running) = (end.session.core().clone(), end.running.clone());
    let grace = core.options.grace;
    let span = end.span.clone();
    let (handler, is_begun) = (Some(handler), is_moved);
    let mut body = Caught { handler, is_begun, core, running: running.clone(), span };
    let ended = match is_moved {
        true => Some((&mut body).await),
        false => until_deadline(&running, grace, &mut body).await,
    };
    match ended {
        Some(Ok(answer)) => end.answer(answer),
        Some(Err(panic)) => end.panicked(&panic),
        None => {
            drop(body);
            end.fail(Failure::Ended, OVERDUE);
        }
    }
}

/// Runs a handler in the scope of its call's deadline. `None`: the handler must be dropped.
async fn until_deadline(
    running: &Running,
    grace: Duration,
    body: &mut Caught,
) -> Option<Result<Answer, Panic>> {
    let deadline = running.info.deadline;
    if deadline.is_never() {
        return Some(body.await);
    }
    if deadline.is_due(now()) {
        return None;
    }
    {
        let mut scope = pin!(timeout_at(deadline, &mut *body).grace(grace));
        let ended = poll_fn(|cx| match running.is_interrupted.get() {
            true => Poll::Ready(None),
            false => scope.as_mut().poll(cx).map(Some),
        });
        if let Some(ended) = ended.await {
            return ended.ok();
        }
    }
    // Without the scope, whose deadline would be a second cause.
    Some(body.await)
}

const OVERDUE: &str = "the caller's time is over";

/// A handler with its interceptors, in the call's span. Catches panics, also of a drop.
struct Caught {
    handler: Option<Handler>,
    /// The interceptors are around the handler.
    is_begun: bool,
    core: Rc<Core>,
    running: Rc<Running>,
    span: Span,
}

impl Caught {
    /// Drops the handler inside its span.
    fn drop_handler(&mut self) -> Result<(), Panic> {
        let Some(handler) = self.handler.take() else { return Ok(()) };
        let _entered = self.span.enter();
        catch_unwind(AssertUnwindSafe(|| drop(handler))).map_err(Panic::new)
    }

    fn poll_handler(&mut self, cx: &mut Context<'_>) -> Poll<Answer> {
        if !mem::replace(&mut self.is_begun, true) {
            let handler = self.handler.take();
            self.handler = handler.map(|handler| self.core.intercepted(&self.running, handler));
        }
        let handler = self.handler.as_mut().expect("a handler is not polled after its end");
        handler.as_mut().poll(cx)
    }
}

impl Future for Caught {
    type Output = Result<Answer, Panic>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let span = self.span.clone();
        let polled = {
            let _entered = span.enter();
            catch_unwind(AssertUnwindSafe(|| self.poll_handler(cx))).map_err(Panic::new)
        };
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(answer)) => Poll::Ready(self.drop_handler().map(|()| answer)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        // The drop may be that of the task.
        let _entered = self.handler.as_ref().map(|_| Entered::new(&self.running.info));
        if let Err(panic) = self.drop_handler() {
            log_panic(&self.running.info, &panic);
        }
    }
}

fn log_panic(info: &CallInfo, panic: &Panic) {
    let panic = panic.message().unwrap_or("(not a text)");
    let CallInfo { method, id, peer, .. } = info;
    tracing::error!(method, id, %peer, panic, "a handler panicked");
}

/// The end of a call: answers once, at the latest when it is dropped, and gives back the call's
/// place.
pub(crate) struct EndOfCall {
    session: Rc<Session>,
    running: Rc<Running>,
    /// Also true at a notice's end, which has no answer.
    is_answered: Cell<bool>,
    outcome: Cell<Outcome>,
    span: Span,
    figures: Rc<MethodFigures>,
    /// When the call began, if calls are timed.
    began: Option<Ticks>,
    _place: Place,
}

impl EndOfCall {
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn new(
        session: Rc<Session>,
        running: Rc<Running>,
        figures: Rc<MethodFigures>,
        place: Place,
    ) -> Self {
        let CallInfo { method, id, peer, trace, .. } = &*running.info;
        let span = tracing::debug_span!("call", method, %peer, id, trace = Empty, outcome = Empty);
        if let Some(trace) = trace.as_ref().filter(|_| !span.is_disabled()) {
            span.record("trace", display(trace));
        }
        let began = figures.began();
        let is_answered = Cell::new(running.is_notice);
        Self {
            session,
            running,
            is_answered,
            outcome: Cell::new(Outcome::Ended),
            span,
            figures,
            began,
            _place: place,
        }
    }

    fn answer(self, answer: Answer) {
        let value = match answer.0 {
            Given::Failure(failure, text) => return self.fail(failure, &text),
            Given::Value(value) => value,
        };
        if self.running.is_notice {
            drop_value(value);
            return self.outcome.set(Outcome::Answered);
        }
        let codec = self.session.codec();
        let (flags, outcome) = match value.is_error() {
            true => (ERROR, Outcome::Error),
            false => (0, Outcome::Answered),
        };
        let mut value = Some(value);
        let put = self.session.put_answer(self.running.info.id, flags, |body| {
            // `Serialize` and the drop of the value are the user's code.
            let encoded = catch_unwind(AssertUnwindSafe(|| {
                value.take().map_or(Ok(()), |value| value.encode(codec, body))
            }));
            match encoded {
                Ok(encoded) => encoded.map_err(AnswerFailure::Answer),
                Err(payload) => Err(AnswerFailure::Panicked(Panic::new(payload))),
            }
        });
        drop_value(value);
        match put {
            Ok(()) => {
                self.is_answered.set(true);
                self.outcome.set(outcome);
            }
            Err(AnswerFailure::Answer(text)) => self.fail(Failure::Answer, &text),
            Err(AnswerFailure::Panicked(panic)) => self.panicked(&panic),
            Err(AnswerFailure::Packet(error @ PacketError::TooLarge { .. })) => {
                self.fail(Failure::Answer, &error.to_string());
            }
            // The connection has failed, and nobody waits.
            Err(AnswerFailure::Packet(_)) => self.is_answered.set(true),
        }
    }

    fn panicked(self, panic: &Panic) {
        log_panic(&self.running.info, panic);
        self.fail(Failure::Panicked, "");
    }

    fn fail(self, failure: Failure, text: &str) {
        self.outcome.set(match failure {
            Failure::Panicked => Outcome::Panicked,
            Failure::Refused => Outcome::Refused,
            _ => Outcome::Ended,
        });
        if !self.is_answered.replace(true) {
            self.session.put_failure(&self.running, failure, text);
        }
    }
}

/// Drops an answer that is not sent. Its destructor is the user's code.
fn drop_value<V>(value: V) {
    catch_and_log("the destructor of an answer", || drop(value));
}

/// Why an answer is not sent.
enum AnswerFailure {
    /// It cannot be written.
    Answer(String),
    Panicked(Panic),
    Packet(PacketError),
}

impl From<PacketError> for AnswerFailure {
    fn from(error: PacketError) -> Self {
        Self::Packet(error)
    }
}

impl Drop for EndOfCall {
    fn drop(&mut self) {
        if !self.is_answered.get() {
            let failure = match self.running.is_begun.get() || !self.session.is_leaving() {
                true => Failure::Ended,
                false => Failure::ShuttingDown,
            };
            self.session.put_failure(&self.running, failure, "the handler was dropped");
        }
        self.running.has_ended.set(true);
        self.session.call_ended(self.running.info.id);
        self.figures.ended(self.outcome.get(), self.began);
        if !self.span.is_disabled() {
            self.span.record("outcome", self.outcome.get().name());
        }
    }
}
