//! Clients of the console: who may connect, and how many.
//!
//! The console keeps a descriptor in reserve. A process that is out of descriptors can so be looked
//! into: the console closes the spare descriptor, and takes the next client instead. The end of
//! that client brings the spare one back.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

use pikake_traps::{
    self as task, AsAttempt, Attempt, Direction, OpenSocket, Opened, SocketId, SocketTrap,
    kernel_trap_at, open_socket, sleep,
};
use rustix::io::Errno;
#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::process::geteuid;

use super::Server;
use super::connection::Connection;
use crate::protocol::Part;

/// The number of clients at once.
pub(crate) const CLIENTS: usize = 100;

/// The pause after a client that could not be accepted for lack of descriptors or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// The spare descriptor.
#[derive(Debug, Default)]
pub(super) struct Spare(RefCell<Option<File>>);

impl Spare {
    /// Opens the descriptor, if there is none and the process has room.
    pub(super) fn refill(&self) {
        let mut spare = self.0.borrow_mut();
        if spare.is_none() {
            *spare = File::open("/dev/null").ok();
        }
    }

    /// Closes the descriptor. Returns whether there was one.
    fn spend(&self) -> bool {
        self.0.take().is_some()
    }
}

/// A client that counts. The drop ends its connection, and so comes last.
struct Counted(Rc<Server>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.clients.set(self.0.clients.get() - 1);
        self.0.spare.refill();
    }
}

/// Accepts clients, each in a task of its own, until the listener fails.
pub(super) async fn accept_all(server: &Rc<Server>, arrivals: &Arrivals) -> io::Result<Infallible> {
    loop {
        server.spare.refill();
        let stream = next(server, arrivals).await?;
        if !is_trusted(&stream) {
            continue;
        }
        server.clients.set(server.clients.get() + 1);
        let counted = Counted(server.clone());
        let connection = match pikake_net::UnixStream::from_std(stream) {
            Ok(stream) => Connection::new(server.clone(), stream),
            Err(_) => continue,
        };
        if server.clients.get() > CLIENTS {
            let reason = format!("{CLIENTS} clients look into this process already");
            connection.refuse(&Part::Failed(reason)).await;
            continue;
        }
        let serve = async move {
            let _counted = counted;
            // The drop of the connection comes before that of the count, also if the task is
            // cancelled.
            let connection = connection;
            connection.serve().await;
        };
        task::Builder::new().name("client").spawn(serve).detach();
    }
}

async fn next(server: &Server, arrivals: &Arrivals) -> io::Result<UnixStream> {
    loop {
        let error = match arrivals.listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(error) => error,
        };
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::AGAIN) => arrivals.wait().await?,
            Some(Errno::INTR | Errno::CONNABORTED) => {}
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                if !server.spare.spend() {
                    sleep(SHORTAGE_PAUSE).await?;
                    server.spare.refill();
                }
            }
            _ => return Err(error),
        }
    }
}

/// Whether the client is this user, or root.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_trusted(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == geteuid() || peer.uid.is_root())
}

/// The mode of the socket's folder admits this user and root alone.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_trusted(_: &UnixStream) -> bool {
    true
}

/// A listener, whose arrivals the console's kernel waits for.
///
/// The standard library accepts: a stream of the kernel does not tell who is at its other end.
pub(super) struct Arrivals {
    listener: UnixListener,
    /// A duplicate.
    socket: SocketId,
}

impl Arrivals {
    pub(super) fn of(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        match open_socket(OpenSocket::Adopt(listener.try_clone()?.into()))? {
            Opened::One(socket) => Ok(Self { listener, socket }),
            other => panic!("a kernel answered another request: {other:?} (I1)"),
        }
    }

    async fn wait(&self) -> io::Result<()> {
        kernel_trap_at(SocketTrap::new(self.socket, HasArrived), Location::caller()).await
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        // `Close` fails if the kernel has ended, which has closed the descriptor.
        let _ = task::attempt(self.socket, Attempt::Close);
    }
}

/// Whether a client has arrived.
struct HasArrived;

impl AsAttempt for HasArrived {
    type Output = ();

    fn attempt(&mut self) -> Attempt<'_> {
        Attempt::Poll(Direction::Read)
    }

    fn output(&mut self, _: usize) {}
}
