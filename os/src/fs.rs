//! Files and directories, in the kernel's helper threads.
//!
//! Each function works as the one of the same name in [`std::fs`], with the path in its error.
//!
//! | for | use |
//! | --- | --- |
//! | a whole file | [`read()`], [`read_to_string`], [`write()`], [`copy`] |
//! | a part of a file, or a file bit by bit | [`File`], with [`OpenOptions`] |
//! | the lines of a file | a [`BufReader`](pikake_net::BufReader) on a [`File`] |
//! | directories | [`read_dir`], [`create_dir_all`], [`remove_dir_all`] |
//! | facts about a path | [`metadata`], [`exists`] |
//! | changes in a directory | `watch`, with the feature `watch` |
//!
//! ```no_run
//! use pikake::fs;
//!
//! # async fn example() -> std::io::Result<()> {
//! fs::create_dir_all("log").await?;
//! fs::write("log/today", "started\n").await?;
//! for entry in fs::read_dir("log").await? {
//!     println!("{}", entry.path().display());
//! }
//! # Ok(()) }
//! ```
//!
//! # Cancellation
//!
//! All functions are interruption points. The caller continues at once. An operation that waits for
//! a thread is not done; one that has begun runs to its end, and its result is discarded. So an
//! interrupted `write` or `copy` may be done or not, also later: write to another name and
//! [`rename`] it.
//!
//! # Errors
//!
//! The system's error, with the path; the interruption;
//! [`Unsupported`](std::io::ErrorKind::Unsupported), in a simulation.
//!
//! # Panics
//!
//! If polled outside a task of a kernel.

use std::future::Future;
use std::io;
use std::panic::Location;
use std::path::{Path, PathBuf};

use crate::pool::on_path;

pub use std::fs::{DirEntry, FileType, Metadata, OpenOptions, Permissions};

pub use crate::file::{File, LostWrite};
#[cfg(feature = "watch")]
pub use crate::watch::{Change, Watcher, watch};

/// Functions of one path.
macro_rules! of_a_path {
    ($($(#[$doc:meta])* $name:ident: $verb:literal -> $output:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        ///
        /// See the [module](self).
        #[track_caller]
        pub fn $name(path: impl AsRef<Path>) -> impl Future<Output = io::Result<$output>> {
            on_path(Location::caller(), $verb, path.as_ref().to_owned(), |path| std::fs::$name(path))
        }
    )*};
}

of_a_path! {
    /// Reads a whole file. [`File::read_to_end`] has a limit, for files that may be large.
    read: "read" -> Vec<u8>;
    /// Reads a whole file as text.
    read_to_string: "read" -> String;
    /// The metadata of a file or directory; follows links.
    metadata: "look at" -> Metadata;
    /// The metadata of a file, directory or link.
    symlink_metadata: "look at" -> Metadata;
    /// The path without links, `.` and `..`.
    canonicalize: "resolve" -> PathBuf;
    /// The target of a link.
    read_link: "read the link" -> PathBuf;
    /// Creates a directory.
    create_dir: "make the directory" -> ();
    /// Creates a directory and its missing parents.
    create_dir_all: "make the directory" -> ();
    /// Removes a file or a link.
    remove_file: "remove" -> ();
    /// Removes an empty directory.
    remove_dir: "remove the directory" -> ();
    /// Removes a directory with its contents.
    remove_dir_all: "remove the directory" -> ();
}

/// Functions of two paths.
macro_rules! of_two_paths {
    ($($(#[$doc:meta])* $name:ident: $verb:literal, $word:literal, $call:path => $output:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        ///
        /// See the [module](self).
        #[track_caller]
        pub fn $name(
            from: impl AsRef<Path>,
            to: impl AsRef<Path>,
        ) -> impl Future<Output = io::Result<$output>> {
            two(Location::caller(), $verb, $word, from.as_ref(), to.as_ref(), $call)
        }
    )*};
}

of_two_paths! {
    /// Copies a file with its permissions, replacing an existing one; returns its length.
    copy: "copy", "to", std::fs::copy => u64;
    /// Renames a file or directory, replacing an existing file. Within one file system this is
    /// atomic.
    rename: "rename", "to", std::fs::rename => ();
    /// Creates a hard link `to` for the file `from`.
    hard_link: "link", "as", std::fs::hard_link => ();
    /// Creates a symbolic link `to` with the target `from`.
    symlink: "link to", "as", std::os::unix::fs::symlink => ();
}

#[track_caller]
fn two<R: Send + 'static>(
    place: &'static Location<'static>,
    verb: &'static str,
    word: &'static str,
    from: &Path,
    to: &Path,
    call: fn(PathBuf, PathBuf) -> io::Result<R>,
) -> impl Future<Output = io::Result<R>> + use<R> {
    let (from, to) = (from.to_owned(), to.to_owned());
    let what = PathBuf::from(format!("{} {word} {}", from.display(), to.display()));
    on_path(place, verb, what, move |_| call(from, to))
}

/// Writes a file: replaces its contents, or creates it if it is missing.
///
/// # Errors
///
/// See the [module](self).
#[track_caller]
pub fn write(
    path: impl AsRef<Path>,
    contents: impl Into<Vec<u8>>,
) -> impl Future<Output = io::Result<()>> {
    let contents = contents.into();
    on_path(Location::caller(), "write", path.as_ref().to_owned(), move |path| {
        std::fs::write(path, contents)
    })
}

/// The entries of a directory, in no particular order.
///
/// # Errors
///
/// See the [module](self).
#[track_caller]
pub fn read_dir(path: impl AsRef<Path>) -> impl Future<Output = io::Result<Vec<DirEntry>>> {
    on_path(Location::caller(), "read the directory", path.as_ref().to_owned(), |path| {
        std::fs::read_dir(path)?.collect()
    })
}

/// Whether a path exists; follows links.
///
/// # Errors
///
/// See the [module](self).
#[doc(alias = "try_exists")]
#[track_caller]
pub fn exists(path: impl AsRef<Path>) -> impl Future<Output = io::Result<bool>> {
    on_path(Location::caller(), "look for", path.as_ref().to_owned(), Path::try_exists)
}

/// Sets the permissions of a file or directory.
///
/// # Errors
///
/// See the [module](self).
#[track_caller]
pub fn set_permissions(
    path: impl AsRef<Path>,
    permissions: Permissions,
) -> impl Future<Output = io::Result<()>> {
    on_path(Location::caller(), "set the permissions of", path.as_ref().to_owned(), move |path| {
        std::fs::set_permissions(path, permissions)
    })
}
