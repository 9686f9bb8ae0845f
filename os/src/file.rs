//! Files, whose operations run in helper threads, one at a time.
//!
//! Systems offer no readiness for files: their operations block. So each operation is a closure on
//! a helper thread of the kernel. Three rules determine the effect of an interruption:
//!
//! * *One at a time.* An operation begins when the previous one has ended, even if that was
//!   abandoned. An interruption during this wait has no effect on the file.
//! * *pikake keeps the position.* A read moves it when its bytes are delivered, so an abandoned
//!   read takes nothing. A write moves it in its thread, by the number of bytes written.
//! * *A write that has begun is finished.* If it is interrupted, it still takes all its data. If it
//!   then fails, the next operation returns that error and does nothing else.

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

use pikake_sync::Mutex as TaskMutex;
use pikake_traps::{Replied, Reply, blocking, future_wait_at, in_kernel, system};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::pool::{awaited, on_path};

/// A write that failed after its caller had abandoned it.
///
/// The payload of the next operation's [`io::Error`], which has the kind of
/// [`source`](std::error::Error::source).
#[derive(Debug)]
#[non_exhaustive]
pub struct LostWrite {
    /// The number of bytes of that write that are in the file.
    pub written: usize,
    /// The number of bytes that are not.
    pub missing: usize,
    /// The cause.
    pub source: io::Error,
}

impl fmt::Display for LostWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { written, missing, source } = self;
        write!(f, "an abandoned write wrote {written} bytes and lost {missing}: {source}")
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
    /// Whether writes go to the end of the file.
    appends: bool,
    /// The failure of the last write, returned to its caller or to the next operation.
    failed: Option<LostWrite>,
}

impl State {
    fn new(mut file: fs::File) -> io::Result<Self> {
        let appends = fcntl_getfl(&file)?.contains(OFlags::APPEND);
        let position = file.stream_position()?;
        Ok(Self { file, position, appends, failed: None })
    }

    /// Writes all data, at the position or the end.
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
            // The system also knows the end of devices.
            SeekFrom::End(_) => self.file.seek(to)?,
        };
        Ok(self.position)
    }
}

/// An operation that failed or was abandoned.
pub(crate) struct Abandoned {
    pub(crate) error: io::Error,
    /// Whether the operation continues in its thread.
    pub(crate) continues: bool,
}

impl<E: Into<io::Error>> From<E> for Abandoned {
    fn from(error: E) -> Self {
        Self { error: error.into(), continues: false }
    }
}

/// A file, or another object at a path that has positions, as a block device.
///
/// Operations take `&self` and run on the kernel's helper threads, one at a time, in the order of
/// their first polls. To read lines, use a [`BufReader`](pikake_net::BufReader), which has a limit.
///
/// Dropping a file closes it after the running operation. The drop loses errors of the close and of
/// abandoned writes; [`close`](Self::close) returns them.
///
/// # Examples
///
/// ```no_run
/// use pikake::fs::File;
/// use pikake::net::BufReader;
///
/// # async fn example() -> std::io::Result<()> {
/// let reader = BufReader::new(File::open("/etc/passwd").await?);
/// let mut lines = reader.lines();
/// while let Some(line) = lines.next_line().await? {
///     println!("{line}");
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "AsyncSeekExt")]
pub struct File {
    state: Arc<Mutex<State>>,
    /// Held by the running operation. The value is the end of an abandoned operation.
    running: TaskMutex<Option<Replied<()>>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic of an operation leaves the state consistent.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl File {
    /// Opens an existing file for reading.
    ///
    /// # Cancellation
    ///
    /// An interruption point. After an interruption or a drop, the file may still be opened, and is
    /// then closed in its thread.
    ///
    /// # Errors
    ///
    /// The system's, with the path; the interruption; [`Unsupported`](io::ErrorKind::Unsupported),
    /// in a simulation. A pipe or a terminal has no positions: `Illegal seek`.
    ///
    /// # Panics
    ///
    /// If polled outside a task of a kernel, as all operations on files.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> impl Future<Output = io::Result<Self>> {
        Self::open_with(path, OpenOptions::new().read(true).clone())
    }

    /// Opens a file for writing: truncates it, or creates it if it is missing.
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

    /// Opens a file for appending, and creates it if it is missing. Data that several processes
    /// append do not overwrite each other.
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

    /// Opens a file with options.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use pikake::fs::{File, OpenOptions};
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
    #[doc(alias = "options")]
    #[track_caller]
    pub fn open_with(
        path: impl AsRef<Path>,
        options: OpenOptions,
    ) -> impl Future<Output = io::Result<Self>> {
        let opened = on_path(Location::caller(), "open", path.as_ref().to_owned(), move |path| {
            State::new(options.open(path)?)
        });
        in_kernel(async move { opened.await.map(Self::of) })
    }

    /// Takes over a file of the standard library, at its position.
    ///
    /// # Errors
    ///
    /// The system's, as for a file without positions; [`Unsupported`](io::ErrorKind::Unsupported),
    /// in a simulation.
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
        Self { state: Arc::new(Mutex::new(state)), running: TaskMutex::new(None) }
    }

    /// Runs an operation after the previous ones.
    pub(crate) async fn perform<R: Send + 'static>(
        &self,
        place: &'static Location<'static>,
        work: impl FnOnce(&mut State) -> io::Result<R> + Send + 'static,
    ) -> Result<R, Abandoned> {
        let mut running = self.running.lock().await?;
        if let Some(before) = &mut *running {
            // The operation ends by an answer or a drop of its reply.
            let _: Option<()> = future_wait_at(before, place).await?;
            *running = None;
        }
        if let Some(lost) = lock(&self.state).failed.take() {
            return Err(io::Error::new(lost.source.kind(), lost).into());
        }
        let (ended, replied) = Reply::channel();
        *running = Some(replied);
        let state = self.state.clone();
        let continues = Rc::new(Cell::new(false));
        let note = continues.clone();
        let work = move || {
            let _ended = ended;
            work(&mut lock(&state))
        };
        let work = blocking(work).on_cancel(move || note.set(true)).awaited_at(place);
        match awaited(work).await {
            Ok(value) => {
                *running = None;
                Ok(value)
            }
            Err(error) => Err(Abandoned { error, continues: continues.get() }),
        }
    }

    /// As [`perform`](Self::perform), with the error alone.
    async fn call<R: Send + 'static>(
        &self,
        place: &'static Location<'static>,
        work: impl FnOnce(&mut State) -> io::Result<R> + Send + 'static,
    ) -> io::Result<R> {
        self.perform(place, work).await.map_err(|abandoned| abandoned.error)
    }

    /// Writes all data in one operation. The error has the number of bytes written.
    pub(crate) async fn write_whole(
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
            Err(abandoned) => Err((if abandoned.continues { length } else { 0 }, abandoned.error)),
        }
    }

    /// Moves the position by the bytes that a read delivers.
    pub(crate) fn advance(&self, by: usize) {
        lock(&self.state).position += by as u64;
    }

    /// Moves the position, and returns the new one.
    ///
    /// # Cancellation
    ///
    /// An interruption point. After an interruption or a drop, the position may still be moved.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a position before the file's beginning;
    /// the interruption; a [`LostWrite`].
    #[track_caller]
    pub fn seek(&self, to: SeekFrom) -> impl Future<Output = io::Result<u64>> {
        self.call(Location::caller(), move |state| state.seek(to))
    }

    /// Sets the length of the file: truncates it, or extends it with zeros. The position stays.
    ///
    /// # Cancellation
    ///
    /// An interruption point. After an interruption or a drop, the operation may still be done,
    /// before the next one.
    ///
    /// # Errors
    ///
    /// The system's error; the interruption; a [`LostWrite`].
    #[track_caller]
    pub fn set_len(&self, length: u64) -> impl Future<Output = io::Result<()>> {
        self.call(Location::caller(), move |state| state.file.set_len(length))
    }

    /// Waits until the disk has the written data and the file's metadata.
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

    /// As [`sync_all`](Self::sync_all), without metadata that is not needed to read the data.
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

    /// The file's metadata: its length, times and owner.
    ///
    /// # Cancellation
    ///
    /// An interruption point; a drop loses nothing.
    ///
    /// # Errors
    ///
    /// As for [`set_len`](Self::set_len).
    #[track_caller]
    pub fn metadata(&self) -> impl Future<Output = io::Result<Metadata>> {
        self.call(Location::caller(), |state| state.file.metadata())
    }

    /// Waits until all operations have ended, and closes the file.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interruption or a drop drops the file.
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
