//! The socket of this process, in the file system.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, PoisonError};

use rustix::process::geteuid;

use crate::place::{
    FOLDER_MODE, NEW, check, is_listened_on, name_of, runtime_folder, temporary_folder,
};

/// The mode of a socket: only its user connects.
const SOCKET_MODE: u32 = 0o600;

/// The first folder of this user that can be used, made if there is none.
fn make_folder() -> io::Result<PathBuf> {
    let user = geteuid().as_raw();
    let in_runtime = runtime_folder(user).map(|folder| make(folder, user));
    match in_runtime {
        Some(Ok(folder)) => Ok(folder),
        _ => make(temporary_folder(user), user),
    }
}

fn make(folder: PathBuf, user: u32) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(FOLDER_MODE).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(at(error, "make the folder", &folder))
        }
        _ => check(&folder, user).map(|()| folder),
    }
}

fn at(error: io::Error, doing: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{doing} {}: {error}", path.display()))
}

/// The socket of this process, in the file system. The drop removes it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The device and number of the file.
    identity: (u64, u64),
    /// A fork has another one.
    pid: u32,
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|file| (file.dev(), file.ino()) == self.identity);
        if is_ours && process::id() == self.pid {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at a path, or at this process' place in the folder of its user.
///
/// # Errors
///
/// There is something else at the path; or that of the system, with the path.
pub(crate) fn listen(path: Option<&Path>) -> io::Result<(UnixListener, SocketFile)> {
    let pid = process::id();
    let path = match path {
        // The process may go to another directory.
        Some(path) => std::path::absolute(path)?,
        None => make_folder()?.join(name_of(pid)),
    };
    // The consoles of one process share the name before the listening.
    static BINDING: Mutex<()> = Mutex::new(());
    let _alone = BINDING.lock().unwrap_or_else(PoisonError::into_inner);
    check_vacant(&path)?;
    let new = path.with_file_name(format!(".{pid}.{NEW}"));
    remove_left(&new)?;
    let listener = UnixListener::bind(&new).map_err(|error| at(error, "listen at", &path))?;
    let file = fs::set_permissions(&new, Permissions::from_mode(SOCKET_MODE))
        .and_then(|()| fs::rename(&new, &path))
        .and_then(|()| fs::symlink_metadata(&path));
    match file {
        Ok(file) => Ok((listener, SocketFile { path, identity: (file.dev(), file.ino()), pid })),
        Err(error) => {
            let _ = fs::remove_file(&new);
            Err(at(error, "listen at", &path))
        }
    }
}

/// Removes the socket of this user that a killed process with the same number has left.
///
/// # Errors
///
/// There is something else at the path; or that of the system, with the path.
fn remove_left(path: &Path) -> io::Result<()> {
    check_vacant(path)?;
    match fs::symlink_metadata(path) {
        Ok(file) if file.uid() == geteuid().as_raw() => {
            fs::remove_file(path).map_err(|error| at(error, "remove", path))
        }
        _ => Ok(()),
    }
}

/// Checks that there is nothing at a path but the socket of a process that was killed.
fn check_vacant(path: &Path) -> io::Result<()> {
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(error, "listen at", path)),
    };
    let trouble = if !file.file_type().is_socket() {
        "is a file, and no socket"
    } else if is_listened_on(path) {
        "is the socket of another console"
    } else {
        return Ok(());
    };
    let text = format!("{} {trouble}", path.display());
    Err(io::Error::new(io::ErrorKind::AddrInUse, text))
}
