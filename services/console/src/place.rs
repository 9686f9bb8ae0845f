//! Where the sockets of consoles are, and which processes have one.
//!
//! A user's sockets are in a folder that only this user can enter: `$XDG_RUNTIME_DIR/pikake`, or
//! `/tmp/pikake-UID` where that is not to be had. The socket of a process is `PID.sock` there. Two
//! processes of one user may see different environments, so a console takes the first folder that
//! it can use, and a client looks into all.
//!
//! Others can write to `/tmp`. So each use of a folder checks first that it is a real directory,
//! that it is the user's, and that its mode admits nobody else. What passes was made by the user
//! (or by root), and the sticky bit of `/tmp` keeps others from replacing it.
//!
//! A socket gets its name only when it is listened on. So a socket that refuses a connection is
//! stale: its process was killed. [`processes`] removes it.

use std::env;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, geteuid, test_kill_process};

/// The variable of the environment that gives a program a console, or takes it away.
pub const VARIABLE: &str = "PIKAKE_CONSOLE";

/// The end of a socket's name.
const SOCKET: &str = "sock";

/// The end of a socket's name before it is listened on: `.PID.new`.
pub(crate) const NEW: &str = "new";

/// The mode of a folder: only its user enters it.
pub(crate) const FOLDER_MODE: u32 = 0o700;

/// The bits of a mode that admit others than the user.
const OTHERS: u32 = 0o077;

/// What the variable [`PIKAKE_CONSOLE`](VARIABLE) asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Setting {
    /// The variable is not set.
    Unset,
    /// No console: the variable is empty, or `0`.
    Off,
    /// A console whose socket is in the folder of the user: the variable is `1`.
    Folder,
    /// A console with its socket at this path.
    Path(PathBuf),
}

impl Setting {
    /// Reads the variable.
    pub fn from_environment() -> Self {
        let Some(value) = env::var_os(VARIABLE) else { return Self::Unset };
        match value.to_str() {
            Some("" | "0") => Self::Off,
            Some("1") => Self::Folder,
            _ => Self::Path(value.into()),
        }
    }
}

/// A process that listens.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Listening {
    /// The number of the process.
    pub pid: u32,
    /// Its socket.
    pub path: PathBuf,
}

/// The processes of this user that have a console, in the order of their numbers.
///
/// Removes the sockets of processes that were killed.
///
/// # Examples
///
/// ```
/// for process in pikake::console::place::processes()? {
///     println!("{} listens at {}", process.pid, process.path.display());
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// No folder of the user can be read, though there is one; or the only one is not the user's.
pub fn processes() -> io::Result<Vec<Listening>> {
    let user = geteuid().as_raw();
    let mut found = Vec::new();
    let mut trouble = None;
    let mut is_any_read = false;
    for folder in folders_of(user) {
        match list(&folder, user, &mut found) {
            Ok(()) => is_any_read = true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => trouble = trouble.or(Some(error)),
        }
    }
    found.sort();
    found.dedup_by_key(|listening| listening.pid);
    match trouble {
        Some(error) if !is_any_read => Err(error),
        _ => Ok(found),
    }
}

fn list(folder: &Path, user: u32, found: &mut Vec<Listening>) -> io::Result<()> {
    check(folder, user)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(pid) = pid_of(&path) else { continue };
        // Another listing may have removed it.
        let Ok(file) = fs::symlink_metadata(&path) else { continue };
        if !file.file_type().is_socket() || file.uid() != user {
            continue;
        }
        let is_named = path.extension().is_some_and(|end| end == SOCKET);
        if is_named && is_listened_on(&path) {
            found.push(Listening { pid, path });
        } else if !exists(pid) {
            // A process that has this number by now replaces the socket of the one before.
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

/// The process that a socket belongs to, by its name.
fn pid_of(path: &Path) -> Option<u32> {
    let (end, stem) = (path.extension()?, path.file_stem()?.to_str()?);
    let number = if end == SOCKET {
        stem
    } else if end == NEW {
        stem.strip_prefix('.')?
    } else {
        return None;
    };
    number.parse().ok()
}

/// The name of a process' socket in a folder.
pub(crate) fn name_of(pid: u32) -> String {
    format!("{pid}.{SOCKET}")
}

/// Whether there is such a process, of whatever user.
pub(crate) fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Whether a process listens there. It has no more of it than a connection that ends at once.
/// `true` also where it cannot be told, as without a descriptor for the attempt.
pub(crate) fn is_listened_on(path: &Path) -> bool {
    let stale = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
    try_connect(path, SocketFlags::NONBLOCK)
        .map_or_else(|error| !stale.contains(&error.kind()), |_| true)
}

/// A connection to a socket.
fn try_connect(path: &Path, flags: SocketFlags) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = flags | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &address)?;
    Ok(socket)
}

/// The folder in `$XDG_RUNTIME_DIR`. The variable may come from another user, as after `su`.
pub(crate) fn runtime_folder(user: u32) -> Option<PathBuf> {
    let runtime = PathBuf::from(env::var_os("XDG_RUNTIME_DIR")?);
    let is_usable = runtime.is_absolute()
        && fs::metadata(&runtime).is_ok_and(|found| found.is_dir() && found.uid() == user);
    is_usable.then(|| runtime.join("pikake"))
}

/// The folder where there is no other.
pub(crate) fn temporary_folder(user: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/pikake-{user}"))
}

/// The folders that may have sockets of a user, the likely one first.
pub(crate) fn folders_of(user: u32) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = runtime_folder(user).into_iter().collect();
    // A process may have been started without the variable, and the other one with it.
    for folder in [PathBuf::from(format!("/run/user/{user}/pikake")), temporary_folder(user)] {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// Checks that a folder belongs to a user and admits nobody else.
///
/// # Errors
///
/// It does not; or that of the system.
pub(crate) fn check(folder: &Path, user: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(folder)?;
    let trouble = if !found.is_dir() {
        "is no directory".to_owned()
    } else if found.uid() != user {
        format!("belongs to user {}, and not to user {user}", found.uid())
    } else if found.mode() & OTHERS != 0 {
        format!("admits others than its user: `chmod {FOLDER_MODE:o}` it, or remove it")
    } else {
        return Ok(());
    };
    let text = format!("{} {trouble}", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}
