//! Detects the end of a child.
//!
//! Linux has process descriptors (pidfd), which become readable at the end of the process, and are
//! adopted like other descriptors. Without them, SIGCHLD reports the end of some child; it does not
//! say which, so each waiter checks its own child.

use std::io;
use std::panic::Location;
use std::process::Child;

use pikake_traps::{About, AsAttempt, Attempt, Direction, SocketTrap, kernel_trap_at};
use signal_hook::consts::SIGCHLD;

use crate::adopted::Adopted;
use crate::signals::Signals;

pub(crate) enum Exit {
    Descriptor(Adopted),
    Signal(Box<Signals>),
}

impl Exit {
    /// Starts to detect the end of a child. Must be called before its status is first checked, so
    /// no end is missed.
    pub(crate) fn of(child: &Child) -> io::Result<Self> {
        match descriptor_of(child) {
            Ok(descriptor) => Adopted::new(descriptor).map(Self::Descriptor),
            Err(_) => Self::by_signal(),
        }
    }

    pub(crate) fn by_signal() -> io::Result<Self> {
        Signals::new([SIGCHLD]).map(|signals| Self::Signal(Box::new(signals)))
    }

    /// Waits until the child may have ended. Listings show the wait as one for `process`.
    pub(crate) async fn changed(
        &mut self,
        process: &str,
        place: &'static Location<'static>,
    ) -> io::Result<()> {
        match self {
            Self::Descriptor(descriptor) => {
                kernel_trap_at(SocketTrap::new(descriptor.id(), HasEnded(process)), place).await
            }
            Self::Signal(signals) => signals.next().await.map(drop),
        }
    }
}

/// Whether the process of a descriptor has ended, with its description.
struct HasEnded<'a>(&'a str);

impl AsAttempt for HasEnded<'_> {
    type Output = ();

    fn attempt(&mut self) -> Attempt<'_> {
        Attempt::Poll(Direction::Read)
    }

    fn output(&mut self, _: usize) {}

    fn about(&self) -> Option<About> {
        Some(About::new(self.0))
    }
}

/// A descriptor that becomes readable when a process ends.
#[cfg(target_os = "linux")]
pub(crate) fn descriptor_of(child: &Child) -> io::Result<std::os::fd::OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    Ok(pidfd_open(Pid::from_child(child), PidfdFlags::NONBLOCK)?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn descriptor_of(_: &Child) -> io::Result<std::os::fd::OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}
