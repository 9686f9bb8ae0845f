//! Who has taken messages out of a database, and whether they still live.
//!
//! An owner holds a locked file for as long as it lives. The system takes
//! the lock away when its process ends, however it ends, so others see at once that it is gone. Where
//! that cannot be told (the lock is held, but nothing moves), it is seen in the database that it beats no more.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, Result};

use crate::brokers::sqlite::schema::directory;
use crate::brokers::sqlite::statements as sql;

/// Which file a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|data| Self::from(&data))
    }
}

impl From<&fs::Metadata> for FileId {
    fn from(data: &fs::Metadata) -> Self {
        Self { device: data.dev(), inode: data.ino() }
    }
}

/// How the names of locks begin.
const LOCK: &str = "owner-";

/// The locked file of an owner. Dropped, it is gone.
#[derive(Debug)]
struct OwnerLock {
    path: PathBuf,
    file: File,
}

impl OwnerLock {
    fn hold(database: &Path, name: &str) -> io::Result<Self> {
        let path = path_of(database, name);
        let file = locked(&path)?;
        Ok(Self { path, file })
    }

    /// Makes the file again if somebody has removed it, as who cleans up does.
    fn keep(&mut self) -> io::Result<()> {
        if FileId::of(&self.path).ok() != Some(FileId::from(&self.file.metadata()?)) {
            self.file = locked(&self.path)?;
        }
        Ok(())
    }
}

fn locked(path: &Path) -> io::Result<File> {
    let file = File::create_new(path)?;
    file.try_lock().map_err(io::Error::from)?;
    Ok(file)
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        // Left behind, it is taken away by whoever finds that nobody holds it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether nobody holds the lock of that name. Its file is gone then.
fn is_gone(database: &Path, name: &str) -> bool {
    let path = path_of(database, name);
    match File::open(&path) {
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => {
                let _ = fs::remove_file(&path);
                true
            }
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
        },
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Takes away the files of owners that were killed while they had no messages, and that nobody knows of for that.
fn sweep(database: &Path) {
    let Some(beginning) = path_of(database, LOCK).file_name().map(ToOwned::to_owned) else {
        return;
    };
    let Ok(files) = fs::read_dir(directory(database)) else { return };
    for file in files.flatten() {
        let name = file.file_name();
        let number = name.as_encoded_bytes().strip_prefix(beginning.as_encoded_bytes());
        if let Some(number) = number.and_then(|number| std::str::from_utf8(number).ok()) {
            is_gone(database, &format!("{LOCK}{number}"));
        }
    }
}

fn path_of(database: &Path, name: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push("-");
    path.push(name);
    path.into()
}

/// How often an owner shows that it lives, while it has messages.
const BEAT_EVERY: Duration = Duration::from_secs(4);

/// Who takes messages in this process.
pub(crate) struct Owner {
    /// The file of the database, after which locks are named: that itself, whichever link led to it.
    database: PathBuf,
    /// The name of its lock.
    name: String,
    /// None before there is a consumer: who only sends is not looked for by anybody.
    lock: Option<OwnerLock>,
    /// The number under which messages are taken; none before the first.
    id: Option<i64>,
    /// When it was last shown that it lives.
    beat: Option<Instant>,
    /// Its number is of the transaction that is under way.
    is_new: bool,
    /// Others thought that this process was gone, and have what it had.
    has_lost_all: bool,
}

impl Owner {
    /// One by a number that no other has.
    pub(crate) fn new(database: PathBuf, number: u64) -> Self {
        Self {
            database,
            name: format!("{LOCK}{number:016x}"),
            lock: None,
            id: None,
            beat: None,
            is_new: false,
            has_lost_all: false,
        }
    }

    /// Whether the other owner of that name is known to be gone. Its file is gone, too, then.
    pub(crate) fn finds_gone(&self, name: &str) -> bool {
        is_gone(&self.database, name)
    }

    /// Makes its lock, without which it is taken for gone. Inside of a transaction: between the file and its lock, nobody
    /// else may look for files that nobody has locked.
    pub(crate) fn hold(&mut self) -> io::Result<()> {
        if self.lock.is_none() {
            sweep(&self.database);
            self.lock = Some(OwnerLock::hold(&self.database, &self.name)?);
        }
        Ok(())
    }

    pub(crate) fn id(&self) -> Option<i64> {
        self.id
    }

    /// Its number, under which messages may be taken now.
    pub(crate) fn ensure(&mut self, db: &Connection) -> Result<i64> {
        if self.live(db)?
            && let Some(id) = self.id
        {
            return Ok(id);
        }
        self.keep_lock();
        let id = sql::make_owner(db, &self.name)?;
        (self.id, self.beat, self.is_new) = (Some(id), Some(Instant::now()), true);
        Ok(id)
    }

    /// When it is to be shown that it lives.
    pub(crate) fn next_beat(&self) -> Duration {
        self.beat.map_or(Duration::ZERO, |beat| BEAT_EVERY.saturating_sub(beat.elapsed()))
    }

    fn keep_lock(&mut self) {
        if let Some(lock) = &mut self.lock {
            // Without, it is taken for gone; it is tried again at the next beat.
            let _ = lock.keep();
        }
    }

    /// Shows that it lives if that is due; tells whether it is an owner still.
    pub(crate) fn live(&mut self, db: &Connection) -> Result<bool> {
        let Some(id) = self.id else { return Ok(false) };
        let is_owner = match self.next_beat().is_zero() {
            true => {
                self.beat = Some(Instant::now());
                self.keep_lock();
                sql::beat(db, id)?
            }
            false => sql::is_owner(db, id)?,
        };
        if !is_owner {
            (self.id, self.has_lost_all) = (None, true);
        }
        Ok(is_owner)
    }

    /// The transaction has been committed. Whether what was held before is others' by now.
    pub(crate) fn settle(&mut self) -> bool {
        self.is_new = false;
        std::mem::take(&mut self.has_lost_all)
    }

    /// The transaction came to nothing.
    pub(crate) fn unsettle(&mut self) {
        if std::mem::take(&mut self.is_new) {
            self.id = None;
        }
        self.beat = None;
    }
}
