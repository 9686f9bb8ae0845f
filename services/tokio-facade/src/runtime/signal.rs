//! Signals: a task of the kernel reads the pipe into which tokio's handler writes.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use pikake_traps::{
    attempt, open_socket, read_wait, Attempt, KernelId, OpenSocket, Opened, SocketId,
};

use super::handle::Handle as Runtime;
use crate::signal::registry::globals;

thread_local! {
    /// The kernels of this thread that read the pipe.
    static LISTENING: RefCell<Vec<KernelId>> = const { RefCell::new(Vec::new()) };
}

/// Whether a kernel reads the pipe.
#[derive(Debug, Default)]
pub(crate) struct Handle {
    is_reading: bool,
}

impl Handle {
    pub(crate) fn check_inner(&self) -> io::Result<()> {
        match self.is_reading {
            true => Ok(()),
            false => Err(io::Error::other("the kernel cannot read the pipe of signals")),
        }
    }
}

impl Runtime {
    /// Has the current kernel read the pipe.
    #[track_caller]
    pub(crate) fn signal(&self) -> &Handle {
        assert!(self.is_here(), "signals are waited for inside a kernel: in a task");
        let id = self.kernel.id();
        if !LISTENING.with_borrow(|listening| listening.contains(&id)) {
            let Ok(pipe) = Pipe::open(id) else { return &Handle { is_reading: false } };
            pikake_traps::Builder::new().name("signals").spawn(pipe.broadcast()).detach();
        }
        &Handle { is_reading: true }
    }
}

/// A kernel's descriptor of the pipe, since a kernel's sockets are its own.
struct Pipe {
    kernel: KernelId,
    socket: SocketId,
}

impl Pipe {
    fn open(kernel: KernelId) -> io::Result<Self> {
        // SAFETY: the pipe is a part of tokio's globals, which are never dropped.
        let pipe = unsafe { BorrowedFd::borrow_raw(globals().receiver.as_raw_fd()) };
        let Opened::One(socket) = open_socket(OpenSocket::Adopt(pipe.try_clone_to_owned()?))?
        else {
            return Err(io::Error::other("the kernel opened two sockets"));
        };
        LISTENING.with_borrow_mut(|listening| listening.push(kernel));
        Ok(Self { kernel, socket })
    }

    /// Tells all listeners of the process about each signal, until the kernel ends.
    async fn broadcast(self) {
        while read_wait(self.socket).await.is_ok() {
            let mut signals = [0; 128];
            while attempt(self.socket, Attempt::Read(&mut signals)).is_ok_and(|read| read > 0) {}
            globals().broadcast();
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = attempt(self.socket, Attempt::Close);
        let _ = LISTENING.try_with(|listening| {
            listening.borrow_mut().retain(|kernel| *kernel != self.kernel);
        });
    }
}
