//! Who has taken messages out of a database, and whether they still live.
//!
//! Apart from the desk, which only has to know its number. An owner holds a locked file for as long as it lives. The system takes
//! the lock away when its process ends, however it ends, so others see at once that it is gone. Where
//! that cannot be told (the lock is held, but nothing moves), it is seen in the database that it beats no more.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, Result};

use crate::sqlite_statements as sql;

/// Which file a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let data = fs::metadata(path)?;
        Ok(Self { device: data.dev(), inode: data.ino() })
    }
}

/// The locked file of an owner. Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct OwnerLock {
    name: String,
    path: PathBuf,
    _file: File,
}

impl OwnerLock {
    /// Makes the file of an owner of the database, by a name that no other has.
    pub(crate) fn hold(database: &Path, number: u64) -> io::Result<Self> {
        let name = format!("owner-{number:016x}");
        let path = path_of(database, &name);
        let file = File::create_new(&path)?;
        file.try_lock().map_err(io::Error::from)?;
        Ok(Self { name, path, _file: file })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        // Left behind, it is taken away by whoever finds that nobody holds it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether the owner of that name is known to be gone. Its file is gone, too, then.
pub(crate) fn is_gone(database: &Path, name: &str) -> bool {
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
    lock: OwnerLock,
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
    pub(crate) fn new(lock: OwnerLock) -> Self {
        Self { lock, id: None, beat: None, is_new: false, has_lost_all: false }
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
        let id = sql::make_owner(db, self.lock.name())?;
        (self.id, self.beat, self.is_new) = (Some(id), Some(Instant::now()), true);
        Ok(id)
    }

    /// When it is to be shown that it lives.
    pub(crate) fn next_beat(&self) -> Duration {
        self.beat.map_or(Duration::ZERO, |beat| BEAT_EVERY.saturating_sub(beat.elapsed()))
    }

    /// Shows that it lives if that is due; tells whether it is an owner still.
    pub(crate) fn live(&mut self, db: &Connection) -> Result<bool> {
        let Some(id) = self.id else { return Ok(false) };
        let is_owner = match self.next_beat().is_zero() {
            true => {
                self.beat = Some(Instant::now());
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
