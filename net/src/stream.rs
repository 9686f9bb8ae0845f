//! What a stream of bytes can do, written once for everything that is one.
//!
//! TCP streams, Unix streams and the halves of both offer the same operations, each with its
//! documentation. They are inherent methods, so that nobody has to import a trait to read from a
//! socket, and so they come from macros: [`reading`] and [`writing`] for what has that direction,
//! [`whole`] for a stream that has both. Each expects a field or method `socket` and is told what
//! the type is called in the examples.

/// The methods of everything that can be read from.
macro_rules! reading {
    ($name:literal) => {
        /// Reads what there is, waiting until there is something.
        ///
        /// 0 is the end of the stream (or of no room in the buffer).
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// let mut buffer = [0; 4096];
        /// let length = stream.read(&mut buffer).await?;
        /// println!("{:?}", &buffer[..length]);
        /// # Ok(()) }
        /// ```
        ///
        /// # Cancellation
        ///
        /// An interruption point while nothing is there. Dropped or interrupted, it has taken no
        /// bytes.
        ///
        /// # Errors
        ///
        /// The system's, as [`ConnectionReset`](std::io::ErrorKind::ConnectionReset); the
        /// interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to
        /// read; [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// When polled outside a task of its kernel.
        #[track_caller]
        pub fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
            self.socket.read(buffer)
        }

        /// Reads until the buffer is full.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// let mut length = [0; 4];
        /// stream.read_exact(&mut length).await?;
        /// let length = u32::from_be_bytes(length);
        /// # Ok(()) }
        /// ```
        ///
        /// # Cancellation
        ///
        /// An interruption point while nothing is there. Interrupted, the error says how many bytes
        /// are in the buffer. Dropped, nobody knows.
        ///
        /// # Errors
        ///
        /// [`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof) if the stream ended before, and as
        /// for [`read`](Self::read); with the number of bytes that were read.
        ///
        /// # Panics
        ///
        /// When polled outside a task of its kernel.
        #[track_caller]
        pub fn read_exact(
            &self,
            buffer: &mut [u8],
        ) -> impl Future<Output = Result<(), ReadExactError>> {
            self.socket.read_exact(buffer)
        }

        /// Reads into several buffers, filling each before the next.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// use std::io::IoSliceMut;
        ///
        /// let (mut header, mut body) = ([0; 16], [0; 1024]);
        /// let mut buffers = [IoSliceMut::new(&mut header), IoSliceMut::new(&mut body)];
        /// let length = stream.read_vectored(&mut buffers).await?;
        /// # Ok(()) }
        /// ```
        ///
        /// # Cancellation
        ///
        /// As for [`read`](Self::read).
        ///
        /// # Errors
        ///
        /// As for [`read`](Self::read).
        ///
        /// # Panics
        ///
        /// When polled outside a task of its kernel.
        #[track_caller]
        pub fn read_vectored(
            &self,
            buffers: &mut [IoSliceMut<'_>],
        ) -> impl Future<Output = io::Result<usize>> {
            self.socket.read_vectored(buffers)
        }

        /// Reads what there is and leaves it there, waiting until there is something.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// let mut first = [0];
        /// let is_tls = stream.peek(&mut first).await? == 1 && first == [0x16];
        /// # Ok(()) }
        /// ```
        ///
        /// # Cancellation
        ///
        /// As for [`read`](Self::read).
        ///
        /// # Errors
        ///
        /// As for [`read`](Self::read).
        ///
        /// # Panics
        ///
        /// When polled outside a task of its kernel.
        #[track_caller]
        pub fn peek(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
            self.socket.peek(buffer)
        }

        /// Waits until [`try_read`](Self::try_read) is worthwhile.
        ///
        /// That is a hint: it may still say that it would block, and then this waits. A socket that
        /// was never read from counts as worthwhile.
        ///
        /// # Cancellation
        ///
        /// An interruption point. Nothing is lost when it is dropped.
        ///
        /// # Errors
        ///
        /// The interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to
        /// read; [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// When polled outside a task.
        #[track_caller]
        pub fn readable(&self) -> impl Future<Output = io::Result<()>> {
            self.socket.ready(Direction::Read)
        }

        /// Reads what there is. Never suspends.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// use std::io::ErrorKind;
        ///
        /// let mut buffer = [0; 4096];
        /// let length = loop {
        ///     match stream.try_read(&mut buffer) {
        ///         Err(error) if error.kind() == ErrorKind::WouldBlock => stream.readable().await?,
        ///         result => break result?,
        ///     }
        /// };
        /// # Ok(()) }
        /// ```
        ///
        /// # Errors
        ///
        /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if nothing is there, or if the task has
        /// had its share of attempts for this step; what [`read`](Self::read) reports.
        pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
            self.socket.try_read(buffer)
        }
    };
}

/// The methods of everything that can be written to.
macro_rules! writing {
    ($name:literal) => {
        /// Writes some of the data, waiting until there is room, and tells how much it was.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// let data = b"hello";
        /// let rest = &data[stream.write(data).await?..];
        /// # Ok(()) }
        /// ```
        ///
        /// # Cancellation
        ///
        /// An interruption point while there is no room. Dropped or interrupted, it has written
        /// nothing.
        ///
        /// # Errors
        ///
        /// The system's, as [`BrokenPipe`](std::io::ErrorKind::BrokenPipe); the interruption;
        /// [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to write;
        /// [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// When polled outside a task of its kernel.
        #[track_caller]
        pub fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
            self.socket.write(data)
        }

        /// Writes all of the data.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// stream.write_all(b"hello").await?;
        /// # Ok(()) }
        /// ```
        ///
        /// # Cancellation
        ///
        /// An interruption point while there is no room. Interrupted, the error says how many bytes
        /// were written. Dropped, nobody knows.
        ///
        /// # Errors
        ///
        /// As for [`write`](Self::write), with the number of bytes that were written.
        ///
        /// # Panics
        ///
        /// When polled outside a task of its kernel.
        #[track_caller]
        pub fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
            self.socket.write_all(data)
        }

        /// Writes some of the data of several buffers, in their order, and tells how much it was.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// use std::io::IoSlice;
        ///
        /// let buffers = [IoSlice::new(b"header"), IoSlice::new(b"body")];
        /// let length = stream.write_vectored(&buffers).await?;
        /// # Ok(()) }
        /// ```
        ///
        /// # Cancellation
        ///
        /// As for [`write`](Self::write).
        ///
        /// # Errors
        ///
        /// As for [`write`](Self::write).
        ///
        /// # Panics
        ///
        /// When polled outside a task of its kernel.
        #[track_caller]
        pub fn write_vectored(
            &self,
            buffers: &[IoSlice<'_>],
        ) -> impl Future<Output = io::Result<usize>> {
            self.socket.write_vectored(buffers)
        }

        /// Waits until [`try_write`](Self::try_write) is worthwhile.
        ///
        /// That is a hint: it may still say that it would block, and then this waits.
        ///
        /// # Cancellation
        ///
        /// An interruption point. Nothing is lost when it is dropped.
        ///
        /// # Errors
        ///
        /// The interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to
        /// write; [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// When polled outside a task.
        #[track_caller]
        pub fn writable(&self) -> impl Future<Output = io::Result<()>> {
            self.socket.ready(Direction::Write)
        }

        /// Writes some of the data, and tells how much it was. Never suspends.
        ///
        /// # Errors
        ///
        /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if there is no room, or if the task has
        /// had its share of attempts for this step; what [`write`](Self::write) reports.
        pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
            self.socket.try_write(data)
        }
    };
}

/// The methods of a stream that has both directions, and nothing to do with its family.
macro_rules! whole {
    ($stream:ident, $name:literal, $address:ty, $convert:path, $std:ty) => {
        /// Takes over a stream of the standard library.
        ///
        /// # Errors
        ///
        /// [`Unsupported`](std::io::ErrorKind::Unsupported), from a kernel whose sockets are no
        /// descriptors; else the system's.
        ///
        /// # Panics
        ///
        /// Outside a kernel.
        #[track_caller]
        pub fn from_std(stream: $std) -> io::Result<Self> {
            Socket::adopt(stream.into()).map(|socket| Self { socket })
        }

        /// Ends one or both directions.
        ///
        /// The peer reads the end of the stream where writing was ended; the other direction goes
        /// on.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// use std::net::Shutdown;
        ///
        /// stream.write_all(b"that is all").await?;
        /// stream.shutdown(Shutdown::Write)?;
        /// let mut answer = [0; 4096];
        /// let length = stream.read(&mut answer).await?;
        /// # Ok(()) }
        /// ```
        ///
        /// # Errors
        ///
        /// The system's, as [`NotConnected`](std::io::ErrorKind::NotConnected);
        /// [`Closed`](pikake_traps::Closed).
        pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
            self.socket.shutdown(how)
        }

        /// Closes the stream while others may still hold it, as dropping it does when nobody does.
        ///
        /// Whoever waits on it is woken with [`Closed`](pikake_traps::Closed), and so fails every
        /// later operation. Closing it again does nothing.
        pub fn close(&self) {
            self.socket.close();
        }

        /// The address on this side.
        ///
        /// # Errors
        ///
        /// [`Closed`](pikake_traps::Closed), or the system's.
        pub fn local_addr(&self) -> io::Result<$address> {
            self.socket.local_address().and_then($convert)
        }

        /// The address on the other side.
        ///
        /// # Errors
        ///
        /// [`NotConnected`](std::io::ErrorKind::NotConnected), if the peer has gone;
        /// [`Closed`](pikake_traps::Closed).
        pub fn peer_addr(&self) -> io::Result<$address> {
            self.socket.peer_address().and_then($convert)
        }

        /// The stream's two directions, each by itself, for as long as the stream is borrowed.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// let (read, write) = stream.split();
        /// let mut buffer = [0; 4096];
        /// let length = read.read(&mut buffer).await?;
        /// write.write_all(&buffer[..length]).await?;
        /// # Ok(()) }
        /// ```
        pub fn split(&self) -> (ReadHalf<'_>, WriteHalf<'_>) {
            halves::borrowed(&self.socket)
        }

        /// The stream's two directions as values of their own, for two tasks.
        ///
        /// Dropping the half that writes ends that direction. When both have been dropped, the
        /// stream is closed. [`OwnedReadHalf::reunite`] makes it whole again.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// let (read, write) = stream.into_split();
        /// let writer = pikake_traps::spawn(async move { write.write_all(b"hello").await });
        /// let mut buffer = [0; 4096];
        /// let length = read.read(&mut buffer).await?;
        /// # Ok(()) }
        /// ```
        pub fn into_split(self) -> (OwnedReadHalf<$stream>, OwnedWriteHalf<$stream>) {
            halves::owned(self.socket)
        }

        reading!($name);
        writing!($name);
    };
}

/// The methods of the owned halves that depend on what they are halves of.
macro_rules! owned_halves {
    ($stream:ident) => {
        impl OwnedReadHalf<$stream> {
            /// Makes the stream whole again.
            ///
            /// # Errors
            ///
            /// [`ReuniteError`] with both halves inside, if they are not of the same stream.
            pub fn reunite(
                self,
                write: OwnedWriteHalf<$stream>,
            ) -> Result<$stream, ReuniteError<$stream>> {
                halves::whole(self, write).map(|socket| $stream { socket })
            }
        }
    };
}

pub(crate) use {owned_halves, reading, whole, writing};
