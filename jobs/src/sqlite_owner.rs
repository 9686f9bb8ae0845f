//! Who has taken messages out of a database, and whether they still live.
//!
//! Apart from the database: an owner holds a locked file for as long as it lives. The system takes
//! the lock away when its process ends, however it ends, so others see at once that it is gone. Where
//! that cannot be told (the lock is held, but nothing moves), it is seen in the database that it beats no more.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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
