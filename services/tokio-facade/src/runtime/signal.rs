//! Signals: a task of the kernel reads the pipe into which tokio's handler writes.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use pikake_traps::{attempt, open_socket, read_wait, Attempt, KernelId, OpenSocket, Opened};

use super::handle::Handle as Runtime;
use crate::signal::registry::globals;

thread_local! {
    /// The kernels of this thread that read the pipe.
    static LISTENING: RefCell<Vec<KernelId>> = const { RefCell::new(Vec::new()) };
}

/// Shows that a kernel reads the pipe.
#[derive(Debug, Default)]
pub(crate) struct Handle(());

impl Handle {
    pub(crate) fn check_inner(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Runtime {
    pub(crate) fn signal(&self) -> &Handle {
        listen(self)
    }
}

/// Has the current kernel read the pipe.
#[track_caller]
fn listen(runtime: &Runtime) -> &'static Handle {
    static HANDLE: Handle = Handle(());
    assert!(runtime.is_here(), "signals are waited for inside a kernel: in a task");
    let is_new = LISTENING.with_borrow_mut(|listening| {
        let is_new = !listening.contains(&runtime.kernel.id());
        if is_new {
            listening.push(runtime.kernel.id());
        }
        is_new
    });
    if is_new {
        pikake_traps::Builder::new().name("signals").spawn(broadcast()).detach();
    }
    &HANDLE
}

/// Tells all listeners of the process about each signal, until the kernel ends. Each kernel has a
/// descriptor of its own for the pipe, since a kernel's sockets are its own.
async fn broadcast() -> io::Result<()> {
    // SAFETY: the pipe is a part of tokio's globals, which are never dropped.
    let pipe = unsafe { BorrowedFd::borrow_raw(globals().receiver.as_raw_fd()) };
    let Opened::One(pipe) = open_socket(OpenSocket::Adopt(pipe.try_clone_to_owned()?))? else {
        return Err(io::Error::other("the kernel opened two sockets"));
    };
    // The kernel closes the socket at its end, which interrupts the wait.
    while read_wait(pipe).await.is_ok() {
        let mut signals = [0; 128];
        while attempt(pipe, Attempt::Read(&mut signals)).is_ok_and(|length| length > 0) {}
        globals().broadcast();
    }
    Ok(())
}
