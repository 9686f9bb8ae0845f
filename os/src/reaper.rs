//! The reaper thread, which waits for dropped children.
//!
//! A process that has ended stays in the system's table until its parent waits for it. A dropped
//! child may outlive its task and its kernel, so a thread waits for all dropped children at once,
//! and ends with the last of them.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::exit::descriptor_of;

/// The interval of checks of children without process descriptors.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

struct Orphan {
    child: Child,
    /// Readable when the child has ended. `None`: the system has no process descriptors.
    ended: Option<OwnedFd>,
}

#[derive(Default)]
struct Orphans {
    /// Children that the thread has not taken over yet.
    new: Vec<Orphan>,
    /// Wakes the thread; `None` while there is none.
    wake: Option<UnixStream>,
}

static ORPHANS: Mutex<Orphans> = Mutex::new(Orphans { new: Vec::new(), wake: None });

fn orphans() -> MutexGuard<'static, Orphans> {
    // Each statement leaves the state consistent.
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves a child to the thread, and kills it first if `kill` is set.
pub(crate) fn leave(mut child: Child, kill: bool) {
    if kill {
        // `kill` fails if the child has ended.
        let _ = child.kill();
    }
    // After an error there is no child to wait for.
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    let ended = descriptor_of(&child).ok();
    let mut orphans = orphans();
    orphans.new.push(Orphan { child, ended });
    match &mut orphans.wake {
        Some(wake) => {
            // The write fails only if the pipe is full, and then the thread wakes anyway.
            let _ = wake.write(&[0]);
        }
        None => {
            if let Err(error) = start(&mut orphans) {
                tracing::error!(%error, "no thread waits for a dropped child");
            }
        }
    }
}

fn start(orphans: &mut Orphans) -> std::io::Result<()> {
    let (wake, woken) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    thread::Builder::new().name("pikake-reaper".into()).spawn(move || reap(&woken))?;
    orphans.wake = Some(wake);
    Ok(())
}

/// The main function of the thread.
fn reap(mut woken: &UnixStream) {
    let mut waiting: Vec<Orphan> = Vec::new();
    loop {
        waiting.retain_mut(|orphan| matches!(orphan.child.try_wait(), Ok(None)));
        {
            let mut orphans = orphans();
            waiting.append(&mut orphans.new);
            if waiting.is_empty() {
                orphans.wake = None;
                return;
            }
        }
        let descriptors = std::iter::once(woken.as_fd())
            .chain(waiting.iter().filter_map(|orphan| orphan.ended.as_ref().map(AsFd::as_fd)));
        let mut polled: Vec<_> =
            descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let must_check = polled.len() <= waiting.len();
        let limit = Timespec::try_from(CHECK_INTERVAL).expect("the interval is short");
        // The next round checks all children, whatever `poll` reports.
        if poll(&mut polled, must_check.then_some(&limit)).is_err() {
            thread::sleep(CHECK_INTERVAL);
        }
        let _ = woken.read(&mut [0; 64]);
    }
}
