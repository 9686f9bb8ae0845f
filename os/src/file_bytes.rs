//! Reading from a file and writing to it: the operations that move bytes, and the traits that
//! everything has that does.

use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::Location;

use pikake_net::{Read, Write, WriteAllError};

use crate::file::File;

/// What is read at once at most, however large the buffer. It is read into memory of its own.
const MOST_AT_ONCE: usize = 1 << 20;

fn read_at(file: &std::fs::File, most: usize, position: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; most.min(MOST_AT_ONCE)];
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
    /// Reads at the position and moves it by as much. 0 is the end of the file (or of no room in the
    /// buffer).
    ///
    /// # Cancellation
    ///
    /// An interruption point. Dropped or interrupted, it has taken no bytes: the position stays.
    ///
    /// # Errors
    ///
    /// The system's; the interruption; a [`LostWrite`](crate::fs::LostWrite).
    #[track_caller]
    pub fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        let place = Location::caller();
        async move {
            let most = buffer.len();
            let read = self.perform(place, move |state| read_at(&state.file, most, state.position));
            let bytes = read.await.map_err(|given_up| given_up.error)?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            self.advance(bytes.len());
            Ok(bytes.len())
        }
    }

    /// Reads at a place and leaves the position. 0 is the end of the file (or of no room in the
    /// buffer).
    ///
    /// # Cancellation
    ///
    /// An interruption point. Nothing is lost.
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
            let bytes = read.await.map_err(|given_up| given_up.error)?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        }
    }

    /// Reads from the position to the end, if that is not more than so many bytes.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Dropped or interrupted, it has taken no bytes: the position stays.
    ///
    /// # Errors
    ///
    /// [`FileTooLarge`](io::ErrorKind::FileTooLarge), having taken nothing, if there is more; and as
    /// for [`read`](Self::read).
    #[track_caller]
    pub fn read_to_end(&self, limit: usize) -> impl Future<Output = io::Result<Vec<u8>>> {
        let place = Location::caller();
        async move {
            let read = self.perform(place, move |state| {
                let mut all = Vec::new();
                loop {
                    // One more, to see whether there is.
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
            let all = read.await.map_err(|given_up| given_up.error)?;
            self.advance(all.len());
            Ok(all)
        }
    }

    /// Writes all of the data at the position, or at the end of a file that was opened to append.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted, the error says how many bytes were taken: none if its
    /// thread had not begun; else all, which will be written before the next operation. If they
    /// cannot be, that one fails with a [`LostWrite`](crate::fs::LostWrite). Dropped, nobody knows
    /// which of the two it was.
    ///
    /// # Errors
    ///
    /// The system's, as [`StorageFull`](io::ErrorKind::StorageFull), with the number of bytes that
    /// were written; the interruption; a [`LostWrite`](crate::fs::LostWrite).
    #[track_caller]
    pub fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
        let written = self.write_in_one(Location::caller(), data);
        async move { written.await.map_err(|(written, source)| WriteAllError::new(written, source)) }
    }
}

impl Read for File {
    #[track_caller]
    fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        Self::read(self, buffer)
    }
}

/// What is written is written whole, or fails.
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

    /// Waits for the writes that go on, and tells of one that was lost.
    #[track_caller]
    fn flush(&self) -> impl Future<Output = io::Result<()>> {
        let flushed = self.perform(Location::caller(), |_| Ok(()));
        async move { flushed.await.map_err(|given_up| given_up.error) }
    }

    /// As `flush`: a file has no end that could be told.
    #[track_caller]
    fn finish(&self) -> impl Future<Output = io::Result<()>> {
        self.flush()
    }
}
