//! Children that nobody waits for any more.
//!
//! A process that has ended stays in the system's table until its parent has asked how. A child that
//! is dropped may outlive its task and its kernel, so none of those can ask: a thread does, which
//! waits for all such children at once and ends with the last of them.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::exit::descriptor_of;

/// How often a child is looked at that cannot be waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

struct Orphan {
    child: Child,
    /// Readable when it has ended. `None`: the system has no such thing.
    ended: Option<OwnedFd>,
}

#[derive(Default)]
struct Orphans {
    /// Those that the thread has not taken over yet.
    new: Vec<Orphan>,
    /// Wakes the thread; `None` while there is none.
    wake: Option<UnixStream>,
}

static ORPHANS: Mutex<Orphans> = Mutex::new(Orphans { new: Vec::new(), wake: None });

fn orphans() -> MutexGuard<'static, Orphans> {
    // Whole after each statement.
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a child waited for, perhaps killed first.
pub(crate) fn leave(mut child: Child, kill: bool) {
    if kill {
        // It fails if the child has ended.
        let _ = child.kill();
    }
    // An error means that there is nothing to be waited for.
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    let ended = descriptor_of(&child).ok();
    let mut orphans = orphans();
    orphans.new.push(Orphan { child, ended });
    match &mut orphans.wake {
        Some(wake) => {
            // There is room for the byte, or the thread has many to read already.
            let _ = wake.write(&[0]);
        }
        None => {
            if let Err(error) = start(&mut orphans) {
                tracing::error!(%error, "no thread waits for a child that was left");
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

/// The life of the thread.
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
        let asked = std::iter::once(woken.as_fd())
            .chain(waiting.iter().filter_map(|orphan| orphan.ended.as_ref().map(AsFd::as_fd)));
        let mut asked: Vec<_> =
            asked.map(|what| PollFd::from_borrowed_fd(what, PollFlags::IN)).collect();
        let must_look = asked.len() <= waiting.len();
        let limit = Timespec::try_from(LOOK_EVERY).expect("it is short");
        // Whatever it says, they are all looked at.
        if poll(&mut asked, must_look.then_some(&limit)).is_err() {
            thread::sleep(LOOK_EVERY);
        }
        let _ = woken.read(&mut [0; 64]);
    }
}
