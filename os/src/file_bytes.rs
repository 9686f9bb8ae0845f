//! Reads and writes of files, with the traits of byte streams.

use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::Location;

use pikake_net::{Read, Write, WriteAllError};

use crate::file::File;

/// The largest read of a helper thread, which has a buffer of its own.
const LARGEST_READ: usize = 1 << 20;

fn read_at(file: &std::fs::File, most: usize, position: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; most.min(LARGEST_READ)];
    let length = loop {
        match file.read_at(&mut bytes, position) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result?,
        }
    };
    bytes.truncate(length);
    Ok(bytes)
}

impl File {
    /// Reads at the position, and moves it by the number of bytes. Returns 0 at the end of the file
    /// (or for an empty buffer).
    ///
    /// # Cancellation
    ///
    /// An interruption point. A read that is dropped or interrupted takes no bytes: the position
    /// stays.
    ///
    /// # Errors
    ///
    /// The system's error; the interruption; a [`LostWrite`](crate::fs::LostWrite).
    #[track_caller]
    pub fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        let place = Location::caller();
        async move {
            let most = buffer.len();
            let read = self.perform(place, move |state| read_at(&state.file, most, state.position));
            let bytes = read.await.map_err(|abandoned| abandoned.error)?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            self.advance(bytes.len());
            Ok(bytes.len())
        }
    }

    /// Reads at `position`, without moving the file's position. Returns 0 at the end of the file
    /// (or for an empty buffer).
    ///
    /// # Cancellation
    ///
    /// An interruption point; a drop loses nothing.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    #[track_caller]
    pub fn read_at(
        &self,
        buffer: &mut [u8],
        position: u64,
    ) -> impl Future<Output = io::Result<usize>> {
        let place = Location::caller();
        async move {
            let most = buffer.len();
            let read = self.perform(place, move |state| read_at(&state.file, most, position));
            let bytes = read.await.map_err(|abandoned| abandoned.error)?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        }
    }

    /// Reads from the position to the end, at most `limit` bytes.
    ///
    /// # Cancellation
    ///
    /// An interruption point. A read that is dropped or interrupted takes no bytes: the position
    /// stays.
    ///
    /// # Errors
    ///
    /// [`FileTooLarge`](io::ErrorKind::FileTooLarge) if there are more bytes; the position stays.
    /// Otherwise as for [`read`](Self::read).
    #[track_caller]
    pub fn read_to_end(&self, limit: usize) -> impl Future<Output = io::Result<Vec<u8>>> {
        let place = Location::caller();
        async move {
            let read = self.perform(place, move |state| {
                let mut all = Vec::new();
                loop {
                    // One more byte than allowed, to detect a longer file.
                    let most = (limit - all.len()).saturating_add(1);
                    let more = read_at(&state.file, most, state.position + all.len() as u64)?;
                    if more.is_empty() {
                        return Ok(all);
                    }
                    all.extend(more);
                    if all.len() > limit {
                        let message = format!("there are more than {limit} bytes to read");
                        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
                    }
                }
            });
            let all = read.await.map_err(|abandoned| abandoned.error)?;
            self.advance(all.len());
            Ok(all)
        }
    }

    /// Writes all of the data at the position, or at the end of a file that was opened to append.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The error of an interruption has the number of bytes taken: zero if
    /// the write had not begun, otherwise all, which are written before the next operation. If that
    /// write fails, the next operation returns a [`LostWrite`](crate::fs::LostWrite). A drop loses
    /// the number.
    ///
    /// # Errors
    ///
    /// The system's error, as [`StorageFull`](io::ErrorKind::StorageFull), with the number of bytes
    /// that were written; the interruption; a [`LostWrite`](crate::fs::LostWrite).
    #[track_caller]
    pub fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
        let written = self.write_whole(Location::caller(), data);
        async move { written.await.map_err(|(written, source)| WriteAllError::new(written, source)) }
    }
}

impl Read for File {
    #[track_caller]
    fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        Self::read(self, buffer)
    }
}

/// A write takes all data, or fails.
impl Write for File {
    #[track_caller]
    fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
        let written = Self::write_all(self, data);
        async move {
            written.await?;
            Ok(data.len())
        }
    }

    #[track_caller]
    fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
        Self::write_all(self, data)
    }

    /// Waits for abandoned writes, and returns the error of one that failed.
    #[track_caller]
    fn flush(&self) -> impl Future<Output = io::Result<()>> {
        let flushed = self.perform(Location::caller(), |_| Ok(()));
        async move { flushed.await.map_err(|abandoned| abandoned.error) }
    }

    /// As `flush`: a file has no direction to end.
    #[track_caller]
    fn finish(&self) -> impl Future<Output = io::Result<()>> {
        self.flush()
    }
}
