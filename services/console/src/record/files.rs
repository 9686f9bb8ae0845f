//! The files of a program's recordings in a folder: their names, and which of them are removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

/// The end of a file's name.
pub(crate) const END: &str = "pikake";

/// The mode of a file: only its user reads it.
const MODE: u32 = 0o600;

/// The mode of a folder that is made.
const FOLDER_MODE: u32 = 0o700;

/// The files of a program in a folder.
pub(crate) struct Files {
    folder: PathBuf,
    program: String,
}

/// A file that is there.
struct Found {
    path: PathBuf,
    length: u64,
    changed: SystemTime,
}

impl Files {
    /// Makes the folder if there is none.
    pub(crate) fn new(folder: &Path, program: &str) -> io::Result<Self> {
        let made = DirBuilder::new().mode(FOLDER_MODE).recursive(true).create(folder);
        made.map_err(|error| named(error, "make the folder", folder))?;
        // A file of this name is one in the folder.
        let program = program.replace(['/', '\0'], "_");
        Ok(Self { folder: folder.into(), program })
    }

    /// The greatest number of this process' files so far: another process may have had its number.
    pub(crate) fn last_number(&self, pid: u32) -> u32 {
        let number = |path: &Path| {
            let (_, of, number) = parts(path)?;
            (of == pid).then_some(number)
        };
        self.list().iter().filter_map(|found| number(&found.path)).max().unwrap_or(0)
    }

    /// Makes a file, which no other process removes while it is open.
    pub(crate) fn make(&self, pid: u32, number: u32) -> io::Result<(File, PathBuf)> {
        let path = self.folder.join(format!("{}-{pid}-{number:04}.{END}", self.program));
        let opened = OpenOptions::new().append(true).create_new(true).mode(MODE).open(&path);
        let file = opened.map_err(|error| named(error, "make the file", &path))?;
        // Some file systems have no locks.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok((file, path))
    }

    /// Removes files that are too old, and then the oldest ones until the rest has `bytes` at most.
    pub(crate) fn remove_old(&self, bytes: u64, age: Duration) {
        let now = SystemTime::now();
        let mut sum = 0;
        let mut found = self.list();
        // The newest first.
        found.sort_by(|one, other| (other.changed, &other.path).cmp(&(one.changed, &one.path)));
        for Found { path, length, changed } in found {
            let is_old = now.duration_since(changed).is_ok_and(|passed| passed > age);
            let is_too_much = sum + length > bytes;
            if (is_old || is_too_much) && !is_being_written(&path) && fs::remove_file(&path).is_ok()
            {
                tracing::debug!(path = %path.display(), "a file of a recording was removed");
            } else {
                sum += length;
            }
        }
    }

    /// The files of the program.
    fn list(&self) -> Vec<Found> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let found = |entry: fs::DirEntry| {
            let path = entry.path();
            let (program, ..) = parts(&path)?;
            // No link.
            let found = entry.metadata().ok().filter(|found| found.is_file())?;
            let changed = found.modified().ok()?;
            (program == self.program).then_some(Found { path, length: found.len(), changed })
        };
        entries.filter_map(found).collect()
    }
}

/// The program, the process and the number in the name of a file.
fn parts(path: &Path) -> Option<(&str, u32, u32)> {
    let name = path.file_name()?.to_str()?;
    let mut parts = name.strip_suffix(END)?.strip_suffix('.')?.rsplitn(3, '-');
    let number = parts.next()?.parse().ok()?;
    let pid = parts.next()?.parse().ok()?;
    Some((parts.next()?, pid, number))
}

/// Whether a process has the file open for writing. The end of the process ends its lock.
fn is_being_written(path: &Path) -> bool {
    let lock = |file| flock(&file, FlockOperation::NonBlockingLockShared);
    File::open(path).is_ok_and(|file| lock(file) == Err(rustix::io::Errno::WOULDBLOCK))
}

/// The same error with what was done to which path.
pub(crate) fn named(error: io::Error, doing: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{doing} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn names_have_program_process_and_number() {
        assert_eq!(parts(Path::new("/x/my-app-17-0003.pikake")), Some(("my-app", 17, 3)));
        for other in ["my-app.pikake", "my-app-17-0003", "my-app-x-1.pikake", "17-1.pikake"] {
            assert_eq!(parts(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn oldest_files_of_the_program_are_removed_and_open_ones_kept() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::new(folder.path(), "app").unwrap();
        let others = Files::new(folder.path(), "other").unwrap();
        let hours = |count: u64| SystemTime::now() - Duration::from_secs(3_600 * count);
        let make = |files: &Files, pid, number, age| {
            let (mut file, path) = files.make(pid, number).unwrap();
            file.write_all(&[0; 100]).unwrap();
            file.set_modified(hours(age)).unwrap();
            (file, path)
        };
        let (open, being_written) = make(&files, 1, 1, 30);
        let gone = [make(&files, 1, 2, 30).1, make(&files, 2, 1, 3).1];
        let kept = [make(&files, 2, 2, 2).1, make(&files, 2, 3, 1).1, make(&others, 2, 1, 40).1];
        files.remove_old(250, Duration::from_secs(24 * 3_600));
        assert!(gone.iter().all(|path| !path.exists()), "{gone:?}");
        assert!(kept.iter().all(|path| path.exists()), "{kept:?}");
        assert!(being_written.exists());
        assert_eq!((files.last_number(2), files.last_number(3)), (3, 0));
        drop(open);
        files.remove_old(250, Duration::from_secs(24 * 3_600));
        assert!(!being_written.exists());
    }
}
