//! The view that a kernel of a simulated host has of the world: sockets, clocks, and wakes.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::net::SocketAddr;
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net as unix;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pikake_traps::Address;
use rustix::io::Errno;

use crate::clock::{SimClock, WallClock, time_of_step_on};
use crate::log::KernelKey;
use crate::net::Net;
use crate::socket::{Key, Kind};

/// A socket of a simulated host.
pub struct SimSocket {
    pub(crate) key: Key,
    pub(crate) net: Rc<RefCell<Net>>,
    pub(crate) clock: SimClock,
}

impl fmt::Debug for SimSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimSocket").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        let mut net = self.net.borrow_mut();
        net.now = self.clock.get();
        net.close(self.key);
    }
}

/// Kernels that were woken outside their turn: by a task of another kernel, or by a thread.
#[derive(Default, Debug)]
pub(crate) struct Woken {
    /// Each with the virtual time of the wake, if that is known.
    kernels: Mutex<Vec<(KernelKey, Option<u64>)>>,
    is_any: AtomicBool,
}

impl Woken {
    /// Notes a wake. A step of another kernel of the host wakes it at that step's time. A wake from
    /// elsewhere takes place at the time of the world.
    pub(crate) fn push(&self, key: KernelKey) {
        let at = time_of_step_on(key.host);
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).push((key, at));
        self.is_any.store(true, Ordering::SeqCst);
    }

    pub(crate) fn take(&self) -> Vec<(KernelKey, Option<u64>)> {
        if !self.is_any.swap(false, Ordering::SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut *self.kernels.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The state that a kernel of a host shares with the world.
#[derive(Clone)]
pub(crate) struct Outside {
    pub(crate) net: Rc<RefCell<Net>>,
    pub(crate) clock: SimClock,
    /// All kernels of the host share the wall clock.
    pub(crate) wall: Rc<RefCell<WallClock>>,
    pub(crate) woken: Arc<Woken>,
    pub(crate) key: KernelKey,
}

impl Net {
    pub(crate) fn kind(&self, key: Key) -> io::Result<&Kind> {
        self.sockets.get(key).map(|socket| &socket.kind).ok_or_else(|| Errno::NOTCONN.into())
    }

    /// The program or the host's kernel has closed a socket.
    pub(crate) fn close(&mut self, key: Key) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        socket.token = None;
        let resets = socket.options.linger == Some(Duration::ZERO);
        match socket.kind {
            Kind::Listener(_) => self.listener_close(key),
            Kind::Stream(_) => self.stream_close(key, resets),
            Kind::Datagram(_) => self.datagram_close(key),
            Kind::UnixListener(_) | Kind::UnixStream(_) | Kind::UnixDatagram(_) => {
                self.unix_close(key);
            }
        }
    }
}

pub(crate) fn ip(address: &Address) -> io::Result<SocketAddr> {
    match address {
        Address::Ip(address) => Ok(*address),
        Address::Unix(_) => Err(Errno::AFNOSUPPORT.into()),
    }
}

/// A Unix address as the world stores it: a path, or a zero byte and an abstract name.
pub(crate) fn unix_name(address: &Address) -> io::Result<OsString> {
    let Address::Unix(address) = address else { return Err(Errno::AFNOSUPPORT.into()) };
    if let Some(path) = address.as_pathname() {
        return Ok(path.into());
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Some(name) = std::os::linux::net::SocketAddrExt::as_abstract_name(&**address) {
        return Ok(OsStr::from_bytes(&[b"\0", name].concat()).to_owned());
    }
    Ok(OsString::new())
}

pub(crate) fn unix_address(name: &OsStr) -> io::Result<Address> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Some(name) = name.as_bytes().strip_prefix(b"\0") {
        use std::os::linux::net::SocketAddrExt;
        return Ok(Address::Unix(Box::new(unix::SocketAddr::from_abstract_name(name)?)));
    }
    Ok(Address::Unix(Box::new(unix::SocketAddr::from_pathname(Path::new(name))?)))
}
