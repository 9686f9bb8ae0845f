//! The real outside: sockets of the system, readiness from epoll or kqueue through mio.

mod addresses;
#[cfg(all(target_os = "linux", not(mio_unsupported_force_poll_poll)))]
mod alarm;
mod socket;

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
#[cfg(not(mio_unsupported_force_poll_poll))]
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Waker};
use pikake_traps::{Address, Addresses, Attempt, OpenSocket, Opened, Reply};

use crate::driver::{BlockingCall, Driver, Event, HelperThreads, Token};
use crate::helpers::Helpers;
use alarm::Alarm;
pub use socket::MioSocket;

/// Without a timerfd in mio's epoll set, a wait is as exact as mio makes it.
#[cfg(not(all(target_os = "linux", not(mio_unsupported_force_poll_poll))))]
mod alarm {
    use std::time::Duration;

    use mio::{Registry, Token};

    #[derive(Debug, Default)]
    pub(super) struct Alarm;

    impl Alarm {
        pub(super) fn limit(
            &mut self,
            limit: Duration,
            slack: Duration,
            _: &Registry,
            _: Token,
        ) -> Duration {
            limit.max(slack)
        }
    }
}

/// The number of events that one call takes from the system. The next call takes the rest.
const EVENTS_PER_WAIT: usize = 1024;

/// The token of the waker. No socket has this token, since no table is large enough for its index.
const WAKER: mio::Token = mio::Token(usize::MAX);

/// The token of the alarm. No socket has this token, either.
const ALARM: mio::Token = mio::Token(usize::MAX - 1);

/// Whether mio uses its poll(2) back end, which emulates edges: it reports a registered socket
/// once.
const EMULATED_EDGES: bool = cfg!(mio_unsupported_force_poll_poll);

/// Sockets of the operating system.
pub struct MioDriver {
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    helpers: Helpers,
    alarm: Alarm,
    timer_slack: Duration,
}

impl MioDriver {
    /// Opens the system's readiness queue.
    ///
    /// # Errors
    ///
    /// The system's, as when the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let events = Events::with_capacity(EVENTS_PER_WAIT);
        Ok(Self {
            poll,
            events,
            waker,
            helpers: Helpers::default(),
            alarm: Alarm::default(),
            timer_slack: Duration::ZERO,
        })
    }
}

impl fmt::Debug for MioDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MioDriver").field("threads", &self.helpers.count()).finish_non_exhaustive()
    }
}

/// Readable whenever the driver has events, so that a foreign loop can watch it.
///
/// mio's poll(2) back end has no descriptor.
#[cfg(not(mio_unsupported_force_poll_poll))]
impl AsRawFd for MioDriver {
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}

const INTEREST: Interest = Interest::READABLE.add(Interest::WRITABLE);

const TOKEN_GENERATION_SHIFT: u32 = 32;

fn to_mio(token: Token) -> mio::Token {
    let bits = u64::from(token.generation) << TOKEN_GENERATION_SHIFT | u64::from(token.index);
    mio::Token(usize::try_from(bits).expect("descriptors are polled on 64-bit systems"))
}

fn from_mio(token: mio::Token) -> Token {
    let bits = token.0 as u64;
    Token { index: bits as u32, generation: (bits >> TOKEN_GENERATION_SHIFT) as u32 }
}

impl Driver for MioDriver {
    type Socket = MioSocket;

    fn waker(&self) -> Box<dyn Fn() + Send + Sync> {
        let waker = self.waker.clone();
        Box::new(move || {
            if let Err(error) = waker.wake() {
                tracing::error!(%error, "the driver could not be woken");
            }
        })
    }

    fn wait(&mut self, limit: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        let limit = match limit {
            Some(limit) if !limit.is_zero() => {
                Some(self.alarm.limit(limit, self.timer_slack, self.poll.registry(), ALARM))
            }
            limit => limit,
        };
        match self.poll.poll(&mut self.events, limit) {
            Ok(()) => {}
            // A signal arrived. The kernel reads its clock and waits again.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        let of_sockets =
            self.events.iter().filter(|event| ![WAKER, ALARM].contains(&event.token()));
        events.extend(of_sockets.map(|event| {
            // An error or a hang-up makes both directions ready: the next attempt reports it.
            let ended = event.is_error() || (event.is_read_closed() && event.is_write_closed());
            let read_ended = ended || event.is_read_closed();
            let write_ended = ended || event.is_write_closed();
            Event {
                token: from_mio(event.token()),
                readable: event.is_readable() || read_ended,
                writable: event.is_writable() || write_ended,
                read_ended,
                write_ended,
            }
        }));
        Ok(())
    }

    fn register(&mut self, socket: &MioSocket, token: Token) -> io::Result<()> {
        let descriptor = socket.descriptor();
        self.poll.registry().register(&mut SourceFd(&descriptor), to_mio(token), INTEREST)
    }

    fn blocked(&mut self, socket: &MioSocket, token: Token) -> io::Result<()> {
        if !EMULATED_EDGES {
            return Ok(());
        }
        let descriptor = socket.descriptor();
        self.poll.registry().reregister(&mut SourceFd(&descriptor), to_mio(token), INTEREST)
    }

    fn deregister(&mut self, socket: &MioSocket) {
        // Closing a descriptor takes it out of epoll and kqueue, unless it has duplicates.
        if socket.is_shared() || EMULATED_EDGES {
            let descriptor = socket.descriptor();
            // The call does not fail for a registered socket. A failure would not keep the socket
            // open.
            let _ = self.poll.registry().deregister(&mut SourceFd(&descriptor));
        }
    }

    fn short_means_blocked(&self, socket: &MioSocket) -> bool {
        socket.is_stream() && !EMULATED_EDGES
    }

    fn open(&mut self, what: OpenSocket<'_>) -> io::Result<Opened<MioSocket>> {
        MioSocket::open(what)
    }

    #[inline(always)]
    fn attempt(
        &mut self,
        socket: &MioSocket,
        attempt: &mut Attempt<'_>,
    ) -> Option<io::Result<usize>> {
        none_if_blocked(socket.attempt(attempt))
    }

    fn accept(&mut self, listener: &MioSocket) -> Option<io::Result<(MioSocket, Address)>> {
        none_if_blocked(listener.accept())
    }

    fn limit_threads(&mut self, limit: usize, idle_exit: Duration) {
        self.helpers.limit(limit, idle_exit);
    }

    fn set_timer_slack(&mut self, slack: Duration) {
        self.timer_slack = slack;
    }

    fn threads(&self) -> HelperThreads {
        self.helpers.count()
    }

    fn blocking(&mut self, call: BlockingCall) -> Result<(), BlockingCall> {
        self.helpers.run(call)
    }

    fn lookup(
        &mut self,
        host: &str,
        port: u16,
        reply: Reply<Addresses>,
    ) -> Result<(), BlockingCall> {
        let host = host.to_owned();
        self.helpers.run(BlockingCall::new(reply, move |()| {
            let found = (host.as_str(), port).to_socket_addrs();
            found.map(Iterator::collect::<Vec<SocketAddr>>)
        }))
    }
}

/// Maps an attempt that would block to `None`.
#[inline]
fn none_if_blocked<T>(done: io::Result<T>) -> Option<io::Result<T>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        done => Some(done),
    }
}
