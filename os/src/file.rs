//! A file, whose operations are done in threads, one after the other.
//!
//! No system can wait for a disk; all one can do is block. So each operation is a closure in one of
//! the kernel's helper threads. What an interruption leaves of it follows from three rules:
//!
//! * *One at a time.* An operation begins when the one before it has ended, also one that nobody
//!   waits for any more. Who has to wait for their turn is interrupted there without a trace.
//! * *The position is this side's.* It moves when a read is delivered, so that one that was given up
//!   has taken nothing; and it moves in the thread that writes, by as much as was written.
//! * *What was begun is finished.* A write that was interrupted after its thread had begun has taken
//!   all its data. Should it fail, the next operation says so, and does nothing else.

use std::cell::Cell;
use std::fmt;
use std::fs::{self, Metadata, OpenOptions};
use std::future::Future;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::panic::Location;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pikake_sync::Mutex as Turns;
use pikake_traps::{Replied, Reply, blocking, future_wait_at, system};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::pool::{awaited, on_path};

/// Bytes that a write was to write and did not, found out after its caller had gone on.
///
/// It is the payload of the [`io::Error`] of the operation that follows, whose kind is that of
/// [`source`](std::error::Error::source).
#[derive(Debug)]
#[non_exhaustive]
pub struct LostWrite {
    /// How many bytes of that write are in the file.
    pub written: usize,
    /// How many are not.
    pub missing: usize,
    /// Why.
    pub source: io::Error,
}

impl fmt::Display for LostWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { written, missing, source } = self;
        write!(f, "a write that went on wrote {written} bytes and lost {missing}: {source}")
    }
}

impl std::error::Error for LostWrite {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

pub(crate) struct State {
    pub(crate) file: fs::File,
    pub(crate) position: u64,
    /// Writes go to the end, wherever that is.
    appends: bool,
    /// Of the last write; taken by its caller, or by the next operation if that has gone.
    failed: Option<LostWrite>,
}

impl State {
    fn new(mut file: fs::File) -> io::Result<Self> {
        let appends = fcntl_getfl(&file)?.contains(OFlags::APPEND);
        let position = file.stream_position()?;
        Ok(Self { file, position, appends, failed: None })
    }

    /// Writes all of it, at the position or the end.
    fn write(&mut self, data: &[u8]) {
        let mut written = 0;
        while written < data.len() {
            let rest = &data[written..];
            let more = match self.appends {
                true => self.file.write(rest),
                false => self.file.write_at(rest, self.position),
            };
            match more {
                Ok(more @ 1..) => {
                    written += more;
                    self.position += more as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) => return self.fail(written, data, io::ErrorKind::WriteZero.into()),
                Err(error) => return self.fail(written, data, error),
            }
        }
        if self.appends {
            self.position = self.file.stream_position().unwrap_or(self.position);
        }
    }

    fn fail(&mut self, written: usize, data: &[u8], source: io::Error) {
        self.failed = Some(LostWrite { written, missing: data.len() - written, source });
    }

    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the file");
        self.position = match to {
            SeekFrom::Start(position) => position,
            SeekFrom::Current(by) => self.position.checked_add_signed(by).ok_or_else(before)?,
            // The system knows the ends of more than files.
            SeekFrom::End(_) => self.file.seek(to)?,
        };
        Ok(self.position)
    }
}

/// An operation that did not come to its end.
pub(crate) struct GivenUp {
    pub(crate) error: io::Error,
    /// It goes on in its thread.
    pub(crate) goes_on: bool,
}

impl<E: Into<io::Error>> From<E> for GivenUp {
    fn from(error: E) -> Self {
        Self { error: error.into(), goes_on: false }
    }
}

/// A file, or anything else that the system keeps at a path and that has positions.
///
/// Operations take `&self` and are done in the order in which they are first polled, each in one
/// piece, in the kernel's helper threads. Read lines with a
/// [`BufReader`](pikake_net::BufReader), which has a limit.
///
/// Dropping a file closes it, when the operation that runs has ended. An error of that is lost, as is
/// that of a write that was given up: [`close`](Self::close) tells.
///
/// # Examples
///
/// ```no_run
/// use pikake_net::BufReader;
/// use pikake_os::fs::File;
///
/// # async fn example() -> std::io::Result<()> {
/// let reader = BufReader::new(File::open("/etc/passwd").await?);
/// let mut lines = reader.lines();
/// while let Some(line) = lines.next().await? {
///     println!("{line}");
/// }
/// # Ok(()) }
/// ```
pub struct File {
    state: Arc<Mutex<State>>,
    /// Whose turn it is; and what tells when the operation before has ended, if its caller has not
    /// seen that.
    turns: Turns<Option<Replied<()>>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // An operation that panicked has done what it had done.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl File {
    /// Opens a file that exists, to read from it.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted or dropped, the file may be opened all the same, and is
    /// closed in its thread.
    ///
    /// # Errors
    ///
    /// The system's, with the path; the interruption; [`Unsupported`](io::ErrorKind::Unsupported), in
    /// a simulation. A pipe or a terminal has no positions: `Illegal seek`.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel, as all operations on files.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> impl Future<Output = io::Result<Self>> {
        Self::open_with(path, OpenOptions::new().read(true).clone())
    }

    /// Opens a file to write to it, empty: made if there was none.
    ///
    /// # Cancellation
    ///
    /// As for [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    #[track_caller]
    pub fn create(path: impl AsRef<Path>) -> impl Future<Output = io::Result<Self>> {
        Self::open_with(path, OpenOptions::new().write(true).create(true).truncate(true).clone())
    }

    /// Opens a file to write behind its end: made if there was none. What several processes append
    /// does not overwrite each other.
    ///
    /// # Cancellation
    ///
    /// As for [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    #[track_caller]
    pub fn append(path: impl AsRef<Path>) -> impl Future<Output = io::Result<Self>> {
        Self::open_with(path, OpenOptions::new().append(true).create(true).clone())
    }

    /// Opens a file in whichever way.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use pikake_os::fs::{File, OpenOptions};
    ///
    /// # async fn example() -> std::io::Result<()> {
    /// let options = OpenOptions::new().read(true).write(true).create_new(true).clone();
    /// let file = File::open_with("shop.lock", options).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// As for [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    #[track_caller]
    pub fn open_with(
        path: impl AsRef<Path>,
        options: OpenOptions,
    ) -> impl Future<Output = io::Result<Self>> {
        let opened = on_path(Location::caller(), "open", path.as_ref().to_owned(), move |path| {
            State::new(options.open(path)?)
        });
        async move { opened.await.map(Self::of) }
    }

    /// Takes over a file of the standard library, at its position.
    ///
    /// # Errors
    ///
    /// The system's, as for a file without positions; [`Unsupported`](io::ErrorKind::Unsupported), in
    /// a simulation.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn from_std(file: fs::File) -> io::Result<Self> {
        system()?;
        State::new(file).map(Self::of)
    }

    fn of(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(state)), turns: Turns::new(None) }
    }

    /// Does an operation, when its turn has come.
    pub(crate) async fn perform<R: Send + 'static>(
        &self,
        place: &'static Location<'static>,
        work: impl FnOnce(&mut State) -> io::Result<R> + Send + 'static,
    ) -> Result<R, GivenUp> {
        let mut turn = self.turns.lock().await?;
        if let Some(before) = &mut *turn {
            // It says that it has ended by answering, or by being gone.
            let _: Option<()> = future_wait_at(before, place).await?;
            *turn = None;
        }
        if let Some(lost) = lock(&self.state).failed.take() {
            return Err(io::Error::new(lost.source.kind(), lost).into());
        }
        let (ended, replied) = Reply::channel();
        *turn = Some(replied);
        let state = self.state.clone();
        let goes_on = Rc::new(Cell::new(false));
        let note = goes_on.clone();
        let work = move || {
            let _ended = ended;
            work(&mut lock(&state))
        };
        let work = blocking(work).on_cancel(move || note.set(true)).awaited_at(place);
        match awaited(work).await {
            Ok(value) => {
                *turn = None;
                Ok(value)
            }
            Err(error) => Err(GivenUp { error, goes_on: goes_on.get() }),
        }
    }

    /// As [`perform`](Self::perform), for what leaves nothing to be said when it is given up.
    async fn call<R: Send + 'static>(
        &self,
        place: &'static Location<'static>,
        work: impl FnOnce(&mut State) -> io::Result<R> + Send + 'static,
    ) -> io::Result<R> {
        self.perform(place, work).await.map_err(|given_up| given_up.error)
    }

    /// Writes all of it; what failed is told by how far it came.
    pub(crate) async fn write_in_one(
        &self,
        place: &'static Location<'static>,
        data: &[u8],
    ) -> Result<(), (usize, io::Error)> {
        let length = data.len();
        let data = data.to_vec();
        let performed = self.perform(place, move |state| {
            state.write(&data);
            Ok(())
        });
        match performed.await {
            Ok(()) => match lock(&self.state).failed.take() {
                None => Ok(()),
                Some(lost) => Err((lost.written, lost.source)),
            },
            Err(given_up) => Err((if given_up.goes_on { length } else { 0 }, given_up.error)),
        }
    }

    /// Moves the position when what was read there is delivered.
    pub(crate) fn advance(&self, by: usize) {
        lock(&self.state).position += by as u64;
    }

    /// Moves the position, and tells where it is now.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted or dropped, the position may have been moved, and nothing
    /// else.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a position before the file's beginning; the
    /// interruption; a [`LostWrite`].
    #[track_caller]
    pub fn seek(&self, to: SeekFrom) -> impl Future<Output = io::Result<u64>> {
        self.call(Location::caller(), move |state| state.seek(to))
    }

    /// Makes the file so long: cuts it, or fills it up with zeros. The position stays.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted or dropped, it may be done all the same, before the next
    /// operation.
    ///
    /// # Errors
    ///
    /// The system's; the interruption; a [`LostWrite`].
    #[track_caller]
    pub fn set_len(&self, length: u64) -> impl Future<Output = io::Result<()>> {
        self.call(Location::caller(), move |state| state.file.set_len(length))
    }

    /// Waits until the disk has what was written, and what the system keeps about the file.
    ///
    /// # Cancellation
    ///
    /// As for [`set_len`](Self::set_len).
    ///
    /// # Errors
    ///
    /// As for [`set_len`](Self::set_len).
    #[track_caller]
    pub fn sync_all(&self) -> impl Future<Output = io::Result<()>> {
        self.call(Location::caller(), |state| state.file.sync_all())
    }

    /// As [`sync_all`](Self::sync_all), without what is not needed to read the data again.
    ///
    /// # Cancellation
    ///
    /// As for [`set_len`](Self::set_len).
    ///
    /// # Errors
    ///
    /// As for [`set_len`](Self::set_len).
    #[track_caller]
    pub fn sync_data(&self) -> impl Future<Output = io::Result<()>> {
        self.call(Location::caller(), |state| state.file.sync_data())
    }

    /// What the system keeps about the file: its length, its times, its owner.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Nothing is lost.
    ///
    /// # Errors
    ///
    /// As for [`set_len`](Self::set_len).
    #[track_caller]
    pub fn metadata(&self) -> impl Future<Output = io::Result<Metadata>> {
        self.call(Location::caller(), |state| state.file.metadata())
    }

    /// Waits until all operations have ended, tells of a write that was lost, and closes the file.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted or dropped, it is the drop of the file.
    ///
    /// # Errors
    ///
    /// A [`LostWrite`]; the interruption.
    #[track_caller]
    pub fn close(self) -> impl Future<Output = io::Result<()>> {
        let place = Location::caller();
        async move { self.call(place, |_| Ok(())).await }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("File");
        if let Ok(state) = self.state.try_lock() {
            shown.field("file", &state.file).field("position", &state.position);
        }
        shown.finish_non_exhaustive()
    }
}
