//! The registration of a socket: waits for its readiness by trap.
//!
//! A socket of `mio::net` makes its attempts through the kernel, which notes its readiness. For
//! another descriptor the system is asked whether it is ready, since the kernel does not see the
//! reads and writes.
//!
//! The kernel has one wait a direction. Tokio's methods that poll keep the waker of the last caller
//! and its futures one each, so the wait of a direction belongs to the registration, and wakes all
//! of them.

use std::cell::{Cell, RefCell};
use std::future::{poll_fn, Future};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll, Wake, Waker};

use mio::event::Source;
use mio::{Registered, Registry};
use pikake_traps::{
    attempt, door, kernel_trap, About, Attempt, Bound, KernelTrap, OneEntry, Outcome, Progress,
    SocketId, SocketTrap, Trap, TrapContext, TrapHandler, TrapKind, TrapName, WaitPlace,
};

use super::{kernels, scheduler};
use crate::io::interest::Interest;
use crate::io::Ready;
use crate::task::coop;

/// A direction, as the kernel knows it.
pub(crate) use pikake_traps::Direction;

static READ: TrapName = TrapName::new("read_wait").uninterruptible();
static WRITE: TrapName = TrapName::new("write_wait").uninterruptible();

/// A readiness that was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyEvent {
    pub(crate) ready: Ready,
}

impl ReadyEvent {
    pub(crate) fn with_ready(&self, ready: Ready) -> Self {
        Self { ready }
    }
}

/// How the kernel finds out whether a socket is ready.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Socket,
    Connecting,
    Descriptor,
}

/// Waits until a socket is ready in a direction. Not an interruption point, as no wait of tokio is.
struct Readiness {
    socket: SocketId,
    direction: Direction,
    kind: Kind,
}

impl Readiness {
    fn attempt(&self) -> Attempt<'_> {
        match (self.kind, self.direction) {
            (Kind::Descriptor, _) => Attempt::Poll(self.direction),
            (Kind::Connecting, Direction::Write) => Attempt::Connected,
            (Kind::Connecting | Kind::Socket, _) => Attempt::IsReady(self.direction),
        }
    }

    fn at_place(&mut self, wait: impl FnOnce(WaitPlace<'_>) -> Progress<()>) -> Progress<Answer> {
        let mut outcome = Outcome::default();
        let place = WaitPlace::Socket(self.socket, self.attempt(), &mut outcome);
        wait(place).map(|()| Answer(outcome.take().map(drop)))
    }
}

/// The answer of an uninterruptible wait.
struct Answer(io::Result<()>);

impl pikake_traps::CarriesInterruption for Answer {
    fn interrupted(why: pikake_traps::Interrupted) -> Self {
        Self(Err(why.into()))
    }
}

impl Trap for Readiness {
    type Answer = Answer;
    type Entries = OneEntry;

    fn kind(&mut self) -> TrapKind {
        match self.direction {
            Direction::Read => TrapKind::of(&READ),
            Direction::Write => TrapKind::of(&WRITE),
        }
    }

    fn begin(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Answer> {
        self.at_place(|place| cx.park(entry, place))
    }

    fn collect(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Answer> {
        self.at_place(|place| cx.collect(entry, place))
    }

    fn leave(&mut self, [entry]: &mut OneEntry, kernel: &dyn TrapHandler) {
        let mut none = Outcome::default();
        entry.leave(kernel, WaitPlace::Socket(self.socket, self.attempt(), &mut none));
    }

    fn about(&self) -> Option<About> {
        SocketTrap::new(self.socket, pikake_traps::IsReady(self.direction)).about()
    }
}

/// The waits for one direction.
#[derive(Default)]
struct Side {
    /// The kernel's wait.
    wait: Option<KernelTrap<Readiness>>,
    /// The waiter that polled the kernel's wait last: a future, or `None` for a method that polls.
    parked_by: Option<u64>,
    /// The last caller of a method that polls.
    poller: Option<Waker>,
    /// The futures that wait, each with its number.
    futures: Vec<(u64, Waker)>,
}

/// Wakes all that wait for a direction.
struct All(Vec<Waker>);

impl Wake for All {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        for waker in &self.0 {
            waker.wake_by_ref();
        }
    }
}

impl Side {
    fn waker_of(&self, waiter: Option<u64>) -> Option<&Waker> {
        match waiter {
            None => self.poller.as_ref(),
            Some(number) => self.futures.iter().find(|(n, _)| *n == number).map(|(_, waker)| waker),
        }
    }

    /// Sets the waker of a waiter, and returns the one before, which is dropped where user code may
    /// run.
    fn set_waker(&mut self, waiter: Option<u64>, waker: Waker) -> Option<Waker> {
        let Some(number) = waiter else { return self.poller.replace(waker) };
        match self.futures.iter_mut().find(|(n, _)| *n == number) {
            Some((_, kept)) => Some(std::mem::replace(kept, waker)),
            None => {
                self.futures.push((number, waker));
                None
            }
        }
    }

    fn wakers(&self) -> Vec<Waker> {
        self.futures.iter().map(|(_, waker)| waker).chain(&self.poller).cloned().collect()
    }

    /// Removes a future that is dropped. Returns what to drop, and the waiters to wake, with
    /// nothing borrowed.
    ///
    /// If the future has polled the kernel's wait last, listings show the wait as that of its task.
    /// So the wait is left, and another waiter, which is woken, parks it anew. A waiter in the same
    /// task needs no other wait.
    fn remove(
        &mut self,
        number: u64,
    ) -> Option<(Waker, Option<KernelTrap<Readiness>>, Vec<Waker>)> {
        let index = self.futures.iter().position(|(n, _)| *n == number)?;
        let (_, waker) = self.futures.remove(index);
        let others = self.wakers();
        let is_left =
            self.parked_by == Some(number) && !others.iter().any(|other| other.will_wake(&waker));
        match is_left {
            true => Some((waker, self.wait.take(), others)),
            false => Some((waker, None, Vec::new())),
        }
    }
}

/// The waits for a socket, which stay on its thread.
struct Waits {
    kind: Cell<Kind>,
    /// The kernel takes a new socket for ready. So the system is asked once, for each direction.
    is_new: [Cell<bool>; 2],
    sides: [RefCell<Side>; 2],
    /// A duplicate of a descriptor. Closed after the waits.
    _descriptor: Option<Descriptor>,
}

/// Closes a duplicate of a descriptor when dropped, which [`Bound`] does at home.
struct Descriptor(SocketId);

impl Drop for Descriptor {
    fn drop(&mut self) {
        let _ = attempt(self.0, Attempt::Close);
    }
}

/// A socket that is known to the kernel.
pub(crate) struct Registration {
    socket: SocketId,
    waits: Bound<Box<Waits>>,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration").field("socket", &self.socket).finish()
    }
}

impl Registration {
    /// Gives a source to the current kernel, or to that of the runtime that was entered.
    #[track_caller]
    pub(crate) fn new_with_interest_and_handle(
        source: &mut impl Source,
        interest: Interest,
        handle: scheduler::Handle,
    ) -> io::Result<Self> {
        if door::current_kernel().is_some() {
            return Self::register(source, interest);
        }
        match kernels::enter(handle.kernel.id(), || Self::register(source, interest)) {
            Some(registered) => registered,
            None => panic!(
                "a socket was made on a thread without a kernel, in which alone it can be used: make \
                 it in a task"
            ),
        }
    }

    fn register(source: &mut impl Source, interest: Interest) -> io::Result<Self> {
        let registry = Registry::new();
        source.register(&registry, mio::Token(0), interest.to_mio())?;
        let (socket, kind) = match registry.take() {
            Some(Registered::Socket(socket)) => (socket, Kind::Socket),
            Some(Registered::Connecting(socket)) => (socket, Kind::Connecting),
            Some(Registered::Descriptor(socket)) => (socket, Kind::Descriptor),
            None => return Err(io::Error::other("the source did not register")),
        };
        let _descriptor = (kind == Kind::Descriptor).then(|| Descriptor(socket));
        let is_new = [Cell::new(kind != Kind::Descriptor), Cell::new(kind != Kind::Descriptor)];
        let kind = Cell::new(kind);
        let waits = Waits { kind, is_new, sides: Default::default(), _descriptor };
        Ok(Self { socket, waits: Bound::new(Box::new(waits)) })
    }

    pub(crate) fn deregister(&mut self, source: &mut impl Source) -> io::Result<()> {
        self.forget_waits();
        source.deregister(&Registry::new())
    }

    fn forget_waits(&mut self) {
        if self.waits.is_home() {
            for side in &self.waits.get().sides {
                drop(side.take());
            }
        }
    }

    fn waits_here(&self) -> io::Result<&Waits> {
        match self.waits.is_home() {
            true => Ok(self.waits.get()),
            false => Err(io::Error::other(mio::ElsewhereUsed)),
        }
    }

    fn side(&self, direction: Direction) -> &RefCell<Side> {
        &self.waits.get().sides[direction as usize]
    }

    fn wait_for(&self, direction: Direction) -> Readiness {
        Readiness { socket: self.socket, direction, kind: self.waits.get().kind.get() }
    }

    fn is_ready(&self, direction: Direction) -> io::Result<bool> {
        let waits = self.waits_here()?;
        if waits.kind.get() != Kind::Connecting && waits.is_new[direction as usize].take() {
            // A simulated socket cannot be asked, and its kernel's answer will do.
            let polled = attempt(self.socket, Attempt::Poll(direction));
            if polled.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return Ok(false);
            }
        }
        match attempt(self.socket, self.wait_for(direction).attempt()) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Parks the kernel's wait for all that wait in a direction, one of whom polls now. Wakers are
    /// called and dropped with nothing borrowed.
    fn park(
        &self,
        direction: Direction,
        waiter: Option<u64>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let side = self.side(direction);
        let is_known =
            side.borrow().waker_of(waiter).is_some_and(|waker| waker.will_wake(cx.waker()));
        if !is_known {
            let waker = cx.waker().clone();
            let before = side.borrow_mut().set_waker(waiter, waker);
            drop(before);
        }
        let (all, wait) = {
            let mut side = side.borrow_mut();
            side.parked_by = waiter;
            // A task's own waker shows the wait as the task's own.
            let is_alone = side.futures.is_empty();
            let all = (!is_alone).then(|| Waker::from(Arc::new(All(side.wakers()))));
            (all, side.wait.take())
        };
        let mut wait = wait.unwrap_or_else(|| kernel_trap(self.wait_for(direction)));
        let polled = match &all {
            None => Pin::new(&mut wait).poll(cx),
            Some(all) => Pin::new(&mut wait).poll(&mut Context::from_waker(all)),
        };
        match polled {
            Poll::Pending => {
                side.borrow_mut().wait = Some(wait);
                Poll::Pending
            }
            Poll::Ready(Answer(result)) => {
                let wakers = side.borrow().wakers();
                let others = wakers.iter().filter(|waker| !waker.will_wake(cx.waker()));
                others.for_each(Waker::wake_by_ref);
                Poll::Ready(result)
            }
        }
    }

    /// A call that would block was perhaps not made through the kernel, but on the descriptor: then
    /// the system is asked, for the kernel to note the answer.
    fn note_blocked(&self, interest: Interest) {
        if self.waits.get().kind.get() != Kind::Socket {
            return;
        }
        for direction in directions(interest) {
            if let Ok(true) = self.is_ready(direction) {
                // A simulated socket has no descriptor for such calls.
                let _ = attempt(self.socket, Attempt::Poll(direction));
            }
        }
    }

    /// The kernel has noted an attempt that would block, or is asked each time.
    pub(crate) fn clear_readiness(&self, _: ReadyEvent) {}

    /// An accepted connection is tried without a question, since the client has often written.
    pub(crate) fn assume_ready(&self, _: Ready) {
        self.waits.get().is_new.iter().for_each(|is_new| is_new.set(false));
    }

    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<ReadyEvent>> {
        self.poll_ready(cx, Direction::Read)
    }

    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<ReadyEvent>> {
        self.poll_ready(cx, Direction::Write)
    }

    pub(crate) fn poll_read_io<R>(
        &self,
        cx: &mut Context<'_>,
        attempt: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        self.poll_io(cx, Direction::Read, attempt)
    }

    pub(crate) fn poll_write_io<R>(
        &self,
        cx: &mut Context<'_>,
        attempt: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        self.poll_io(cx, Direction::Write, attempt)
    }

    fn poll_ready(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
    ) -> Poll<io::Result<ReadyEvent>> {
        let coop = ready!(coop::poll_proceed(cx));
        let waits = self.waits_here()?;
        let is_connecting = direction == Direction::Write && waits.kind.get() == Kind::Connecting;
        if is_connecting && waits.is_new[direction as usize].take() {
            // With tokio a connection is made after a turn of its driver, and pools of connections
            // count on that: an idle one comes first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !self.is_ready(direction)? {
            ready!(self.park(direction, None, cx))?;
        }
        if is_connecting {
            waits.kind.set(Kind::Socket);
        }
        coop.made_progress();
        Poll::Ready(Ok(ReadyEvent { ready: seen(direction) }))
    }

    fn poll_io<R>(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        mut attempt: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            ready!(self.poll_ready(cx, direction))?;
            let result = attempt();
            if !is_blocked(&result) {
                return Poll::Ready(result);
            }
        }
    }

    pub(crate) fn try_io<R>(
        &self,
        interest: Interest,
        attempt: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        for direction in directions(interest) {
            if self.is_ready(direction)? {
                let result = attempt();
                if is_blocked(&result) {
                    self.note_blocked(interest);
                }
                return result;
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    pub(crate) async fn readiness(&self, interest: Interest) -> io::Result<ReadyEvent> {
        struct Waiting<'a>(&'a Registration, Interest, u64);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                if !self.0.waits.is_home() {
                    return;
                }
                for direction in directions(self.1) {
                    let removed = self.0.side(direction).borrow_mut().remove(self.2);
                    if let Some((waker, wait, others)) = removed {
                        drop((waker, wait));
                        others.iter().for_each(Waker::wake_by_ref);
                    }
                }
            }
        }
        let number = next_number();
        let _waiting = Waiting(self, interest, number);
        poll_fn(|cx| {
            let mut ready = Ready::EMPTY;
            for direction in directions(interest) {
                if self.is_ready(direction)? {
                    ready |= seen(direction);
                }
            }
            if !ready.is_empty() {
                return Poll::Ready(Ok(ReadyEvent { ready }));
            }
            for direction in directions(interest) {
                if let Poll::Ready(result) = self.park(direction, Some(number), cx) {
                    result?;
                    ready |= seen(direction);
                }
            }
            match ready.is_empty() {
                true => Poll::Pending,
                false => Poll::Ready(Ok(ReadyEvent { ready })),
            }
        })
        .await
    }

    pub(crate) async fn async_io<R>(
        &self,
        interest: Interest,
        mut attempt: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            self.readiness(interest).await?;
            let coop = poll_fn(coop::poll_proceed).await;
            let result = attempt();
            if !is_blocked(&result) {
                coop.made_progress();
                return result;
            }
            self.note_blocked(interest);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.forget_waits();
    }
}

fn is_blocked<R>(result: &io::Result<R>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// The directions that an interest is about; errors are seen in both.
fn directions(interest: Interest) -> impl Iterator<Item = Direction> {
    let reads = interest.is_readable() || interest.is_error() || interest.is_priority();
    let read = reads.then_some(Direction::Read);
    read.into_iter().chain(interest.is_writable().then_some(Direction::Write))
}

fn seen(direction: Direction) -> Ready {
    match direction {
        Direction::Read => Ready::READABLE,
        Direction::Write => Ready::WRITABLE,
    }
}

fn next_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
