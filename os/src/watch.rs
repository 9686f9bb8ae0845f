//! What happens in a directory.
//!
//! `notify` asks the system, in a thread of its own, and what it reports goes into a queue that
//! whoever watches empties. The queue has a limit: who is slower than the changes come is told once
//! that some were missed, and that is also what they are told when the system's own queue was full.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use notify::event::{EventKind, ModifyKind, RenameMode};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _, recommended_watcher};
use pikake_traps::future_wait_at;

use crate::pool::on_path;

/// How many changes wait to be asked for, at most.
const MOST_WAITING: usize = 4096;

/// Something that happened to a file or directory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Change {
    /// It was made, or moved here from a directory that is not watched.
    Created(PathBuf),
    /// What is in it, or its permissions or times, have changed.
    Modified(PathBuf),
    /// It was removed, or has another name now. Where that is watched too, a `Renamed` follows.
    Removed(PathBuf),
    /// It has another name. A `Removed` of the old one came before.
    Renamed {
        /// The name it had.
        from: PathBuf,
        /// The name it has.
        to: PathBuf,
    },
    /// Changes were missed, since there were too many: look at the directory anew. What is told
    /// after this happened after it.
    Missed,
}

#[derive(Default)]
struct Queue {
    changes: VecDeque<Change>,
    has_missed: bool,
    /// What went wrong, which is told after the changes before.
    error: Option<io::Error>,
    /// The move that is under way, by its number: its old name was told, its new one comes next.
    moving: Option<usize>,
    waker: Option<Waker>,
}

impl Queue {
    fn put(&mut self, change: Change) {
        if self.changes.len() < MOST_WAITING {
            self.changes.push_back(change);
        } else {
            self.miss();
        }
    }

    /// All that was there is part of what has to be looked at anew.
    fn miss(&mut self) {
        self.changes.clear();
        self.has_missed = true;
    }

    fn note(&mut self, event: notify::Result<notify::Event>) {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                self.error = Some(to_io(error));
                return;
            }
        };
        if event.need_rescan() {
            self.miss();
        }
        let number = event.attrs.tracker();
        let mut paths = event.paths.into_iter();
        match (event.kind, paths.next(), paths.next()) {
            (EventKind::Modify(ModifyKind::Name(RenameMode::Both)), Some(from), Some(to)) => {
                self.put(Change::Renamed { from, to });
            }
            (EventKind::Modify(ModifyKind::Name(RenameMode::From)), Some(path), _) => {
                self.moving = number;
                self.put(Change::Removed(path));
            }
            // Of a move within, both names are told next.
            (EventKind::Modify(ModifyKind::Name(RenameMode::To)), ..)
                if number.is_some() && number == self.moving.take() => {}
            (EventKind::Modify(ModifyKind::Name(RenameMode::To)), Some(path), _) => {
                self.put(Change::Created(path));
            }
            (EventKind::Create(_), Some(path), _) => self.put(Change::Created(path)),
            (EventKind::Modify(_), Some(path), _) => self.put(Change::Modified(path)),
            (EventKind::Remove(_), Some(path), _) => self.put(Change::Removed(path)),
            // That it was opened, read, closed.
            _ => {}
        }
    }

    fn next(&mut self) -> Option<io::Result<Change>> {
        if mem::take(&mut self.has_missed) {
            return Some(Ok(Change::Missed));
        }
        let change = self.changes.pop_front().map(Ok);
        change.or_else(|| self.error.take().map(Err))
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // No code of others runs under the lock.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches a file or directory: what happens to it, to what is in it, and, if `recursive`, in all
/// directories below.
///
/// # Examples
///
/// ```no_run
/// use pikake_os::fs::{Change, watch};
///
/// # async fn example() -> std::io::Result<()> {
/// let mut watcher = watch("inbox", false).await?;
/// loop {
///     match watcher.next().await? {
///         Change::Created(path) => println!("new: {}", path.display()),
///         Change::Missed => println!("read the directory"),
///         _ => {}
///     }
/// }
/// # }
/// ```
///
/// # Cancellation
///
/// An interruption point. Interrupted or dropped, nothing is watched.
///
/// # Errors
///
/// [`NotFound`](io::ErrorKind::NotFound) if there is nothing at the path; the system's, as when too
/// much is watched already; the interruption; [`Unsupported`](io::ErrorKind::Unsupported), in a
/// simulation.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn watch(path: impl AsRef<Path>, recursive: bool) -> impl Future<Output = io::Result<Watcher>> {
    let mode = if recursive { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
    on_path(Location::caller(), "watch", path.as_ref().to_owned(), move |path| {
        // A file that cannot be looked at is told by the system's words.
        std::fs::metadata(path)?;
        let queue = Arc::new(Mutex::new(Queue::default()));
        let noted = queue.clone();
        let mut watcher = recommended_watcher(move |event| {
            let waker = {
                let mut queue = lock(&noted);
                queue.note(event);
                queue.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        })
        .map_err(to_io)?;
        watcher.watch(path, mode).map_err(to_io)?;
        Ok(Watcher { queue, _watcher: watcher })
    })
}

fn to_io(error: notify::Error) -> io::Error {
    match error.kind {
        notify::ErrorKind::Io(error) => error,
        notify::ErrorKind::PathNotFound => io::ErrorKind::NotFound.into(),
        notify::ErrorKind::MaxFilesWatch => {
            let message = "the system watches no more files for this user";
            io::Error::new(io::ErrorKind::QuotaExceeded, message)
        }
        _ => io::Error::other(error),
    }
}

/// Tells of changes, given by [`watch`]. Dropped, it stops to watch.
#[must_use = "who does not ask is told nothing"]
pub struct Watcher {
    queue: Arc<Mutex<Queue>>,
    _watcher: RecommendedWatcher,
}

impl Watcher {
    /// Waits for the next change.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is none. Dropped or interrupted, no change is lost.
    ///
    /// # Errors
    ///
    /// The system's; the interruption.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[expect(
        clippy::should_implement_trait,
        reason = "it is what one waits for; streams have it, too"
    )]
    #[track_caller]
    pub fn next(&mut self) -> impl Future<Output = io::Result<Change>> {
        let place = Location::caller();
        async move { future_wait_at(poll_fn(|cx| self.poll_change(cx)), place).await? }
    }

    fn poll_change(&self, cx: &mut Context<'_>) -> Poll<io::Result<Change>> {
        // Wakers are another's code: cloned and dropped outside of the lock.
        let waker = cx.waker().clone();
        let (change, before) = {
            let mut queue = lock(&self.queue);
            let change = queue.next();
            let before = match change {
                None => queue.waker.replace(waker),
                Some(_) => queue.waker.take(),
            };
            (change, before)
        };
        drop(before);
        change.map_or(Poll::Pending, Poll::Ready)
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = lock(&self.queue).changes.len();
        f.debug_struct("Watcher").field("waiting", &waiting).finish_non_exhaustive()
    }
}
