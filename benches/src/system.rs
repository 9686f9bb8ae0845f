//! The few system calls that the standard library does not have, made safe.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Where servers run. The load generator, or the other thread, runs on the next one.
pub const SERVER_CORE: usize = 0;
pub const LOAD_CORE: usize = 1;

/// After which time without any progress a measurement is given up.
pub const PATIENCE: Duration = Duration::from_secs(20);

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Binds the calling thread, and the threads it will start, to a core. Where there is no such core,
/// it stays where it is.
pub fn pin(core: usize) {
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `core` is far less than the size of a set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the pointer is to a set of the size that is given.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
    if result < 0 {
        eprintln!("core {core} cannot be had: {}", io::Error::last_os_error());
    }
}

/// Lets the system send a reset when the stream is closed, so that no port is kept waiting.
pub fn reset_when_closed(stream: &TcpStream) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of_val(&linger) as libc::socklen_t;
    let (fd, level, option) = (stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: the pointer is to a `linger`, whose size is given.
    check(unsafe { libc::setsockopt(fd, level, option, (&raw const linger).cast(), size) })?;
    Ok(())
}

/// An eventfd.
pub fn event_counter() -> io::Result<std::fs::File> {
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
    // SAFETY: the call has just opened it, for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

/// Events that one call of [`Epoll::wait`] reports at most.
const EVENTS: usize = 256;

/// Level-triggered readiness for reading, by a number of the caller's.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the call has just opened it, for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: Vec::with_capacity(EVENTS) })
    }

    pub fn add(&self, source: &impl AsRawFd, number: usize) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number as u64 };
        let (fd, source) = (self.fd.as_raw_fd(), source.as_raw_fd());
        // SAFETY: the pointer is to an event.
        check(unsafe { libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, source, &mut event) })?;
        Ok(())
    }

    /// Blocks until something can be read, and says what. For [`PATIENCE`] at most, which is an
    /// error.
    pub fn wait(&mut self) -> io::Result<impl ExactSizeIterator<Item = usize> + '_> {
        let (fd, events) = (self.fd.as_raw_fd(), self.events.as_mut_ptr());
        let patience = PATIENCE.as_millis() as libc::c_int;
        // SAFETY: there is room for so many events behind the pointer.
        let count =
            check(unsafe { libc::epoll_wait(fd, events, EVENTS as libc::c_int, patience) })?;
        if count == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // SAFETY: the call has filled so many.
        unsafe { self.events.set_len(count as usize) };
        Ok(self.events.iter().map(|event| event.u64 as usize))
    }
}
