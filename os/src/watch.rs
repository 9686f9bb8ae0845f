//! Watches files and directories for changes.
//!
//! `notify` gets the changes from the system, on a thread of its own, and puts them into the
//! watcher's queue. The queue has a limit: a watcher that is too slow gets one [`Change::Missed`],
//! as it does when the system's own queue was full.

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

/// The capacity of a watcher's queue.
const CAPACITY: usize = 4096;

/// A change of a file or directory.
// Also here, where the documentation reads it.
#[cfg(feature = "watch")]
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Change {
    /// The path was created, or moved from a directory that is not watched.
    Created(PathBuf),
    /// The contents, permissions or times of the path have changed.
    Modified(PathBuf),
    /// The path was removed or renamed. If the new name is watched too, a `Renamed` follows.
    Removed(PathBuf),
    /// The path was renamed. A `Removed` of the old name came before.
    Renamed {
        /// The old name.
        from: PathBuf,
        /// The new name.
        to: PathBuf,
    },
    /// Changes were missed, since there were too many: read the directory again. Later changes
    /// happened after this.
    Missed,
}

#[derive(Default)]
struct Queue {
    changes: VecDeque<Change>,
    has_missed: bool,
    /// An error, which is returned after the changes before it.
    error: Option<io::Error>,
    /// The number of a rename whose old name was queued and whose new name comes next.
    moving: Option<usize>,
    waker: Option<Waker>,
}

impl Queue {
    fn put(&mut self, change: Change) {
        if self.changes.len() < CAPACITY {
            self.changes.push_back(change);
        } else {
            self.miss();
        }
    }

    /// Discards the queued changes, since the watcher must read the directory again.
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
            // For a rename within the watched paths, an event with both names follows.
            (EventKind::Modify(ModifyKind::Name(RenameMode::To)), ..)
                if number.is_some() && number == self.moving.take() => {}
            (EventKind::Modify(ModifyKind::Name(RenameMode::To)), Some(path), _) => {
                self.put(Change::Created(path));
            }
            (EventKind::Create(_), Some(path), _) => self.put(Change::Created(path)),
            (EventKind::Modify(_), Some(path), _) => self.put(Change::Modified(path)),
            (EventKind::Remove(_), Some(path), _) => self.put(Change::Removed(path)),
            // Other events: the file was opened, read or closed.
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
    // No foreign code runs under the lock, so a poisoned one is usable.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches a file, or a directory with its entries, and with all directories below if `recursive`.
///
/// # Examples
///
/// ```no_run
/// use pikake::fs::{Change, watch};
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
/// An interruption point. After an interruption or a drop, nothing is watched.
///
/// # Errors
///
/// [`NotFound`](io::ErrorKind::NotFound) if the path does not exist; the system's error, as when a
/// user watches too many files; the interruption; [`Unsupported`](io::ErrorKind::Unsupported), in a
/// simulation.
///
/// # Panics
///
/// If polled outside a task of a kernel.
// Also here, where the documentation reads it.
#[cfg(feature = "watch")]
#[track_caller]
pub fn watch(path: impl AsRef<Path>, recursive: bool) -> impl Future<Output = io::Result<Watcher>> {
    let mode = if recursive { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
    on_path(Location::caller(), "watch", path.as_ref().to_owned(), move |path| {
        // Returns the system's error for a path that cannot be accessed.
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

/// A watcher of changes, returned by [`watch`]. Its drop ends the watch.
// Also here, where the documentation reads it.
#[cfg(feature = "watch")]
#[must_use = "a watcher that is dropped watches nothing"]
pub struct Watcher {
    queue: Arc<Mutex<Queue>>,
    _watcher: RecommendedWatcher,
}

impl Watcher {
    /// Waits for the next change.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. A call that is dropped or interrupted loses no change.
    ///
    /// # Errors
    ///
    /// The system's error; the interruption.
    ///
    /// # Panics
    ///
    /// If it has to wait outside a task of a kernel.
    #[expect(clippy::should_implement_trait, reason = "an async `next`, as streams have it")]
    #[track_caller]
    pub fn next(&mut self) -> impl Future<Output = io::Result<Change>> {
        let place = Location::caller();
        async move { future_wait_at(poll_fn(|cx| self.poll_change(cx)), place).await? }
    }

    fn poll_change(&self, cx: &mut Context<'_>) -> Poll<io::Result<Change>> {
        // Wakers run foreign code, so they are cloned and dropped without the lock.
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
