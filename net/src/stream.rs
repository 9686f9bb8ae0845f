//! The methods of byte streams.
//!
//! TCP streams, Unix streams, their halves and pipes have the same documented operations. They are
//! inherent methods, so reading a socket needs no trait, and come from macros: [`reading`],
//! [`peeking`] and [`writing`] for one direction, [`whole`] for a stream with both. Each macro
//! expects a field `socket` and takes the type's name for its examples.

/// The methods of a readable type.
macro_rules! reading {
    ($name:literal) => {
        /// Reads some bytes, waiting until there are any.
        ///
        /// Returns 0 at the end of the stream (or for an empty buffer).
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
        /// An interruption point while there is nothing to read. A read that is dropped or
        /// interrupted takes no bytes.
        ///
        /// # Errors
        ///
        /// The system's error, as [`ConnectionReset`](std::io::ErrorKind::ConnectionReset); the
        /// interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to
        /// read; [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// If polled outside a task of its kernel.
        #[track_caller]
        pub fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
            self.socket.read(buffer)
        }

        /// Reads some bytes behind those in a vector, waiting until there are any. They need not be
        /// zeroed before.
        ///
        /// Reads as much as the vector's capacity holds; one that is full grows by 16 KiB. Returns
        /// 0 at the end of the stream.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// let mut body = Vec::with_capacity(64 * 1024);
        /// while stream.read_buf(&mut body).await? > 0 {}
        /// println!("{} bytes", body.len());
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
        /// If polled outside a task of its kernel.
        #[track_caller]
        pub fn read_buf(&self, buffer: &mut Vec<u8>) -> impl Future<Output = io::Result<usize>> {
            self.socket.read_buf(buffer)
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
        /// An interruption point while there is nothing to read. The error of an interruption has
        /// the number of bytes read; a drop loses it.
        ///
        /// # Errors
        ///
        /// [`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof) if the stream ended before, and as
        /// for [`read`](Self::read); with the number of bytes that were read.
        ///
        /// # Panics
        ///
        /// If polled outside a task of its kernel.
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
        /// If polled outside a task of its kernel.
        #[track_caller]
        pub fn read_vectored(
            &self,
            buffers: &mut [IoSliceMut<'_>],
        ) -> impl Future<Output = io::Result<usize>> {
            self.socket.read_vectored(buffers)
        }

        /// Waits until [`try_read`](Self::try_read) may succeed.
        ///
        /// This is a hint: the attempt may still report that it would block. A socket that
        /// was never read from counts as readable.
        ///
        /// # Cancellation
        ///
        /// An interruption point. Dropping the future loses nothing.
        ///
        /// # Errors
        ///
        /// The interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to
        /// read; [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// If polled outside a task.
        #[track_caller]
        pub fn readable(&self) -> impl Future<Output = io::Result<()>> {
            self.socket.ready(Direction::Read)
        }

        /// Reads some bytes. Never suspends.
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
        /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if there is nothing to read or the task
        /// has used up the attempts of its step; as for [`read`](Self::read).
        pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
            self.socket.try_read(buffer)
        }
    };
}

/// The method of a readable socket that is no pipe.
macro_rules! peeking {
    ($name:literal) => {
        /// Reads some bytes without removing them, waiting until there are any.
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
        /// If polled outside a task of its kernel.
        #[track_caller]
        pub fn peek(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
            self.socket.peek(buffer)
        }
    };
}

/// The methods of a writable type.
macro_rules! writing {
    ($name:literal) => {
        /// Writes some of the data, waiting until there is room, and returns the number of bytes.
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
        /// An interruption point while there is no room. A write that is dropped or interrupted
        /// writes nothing.
        ///
        /// # Errors
        ///
        /// The system's error, as [`BrokenPipe`](std::io::ErrorKind::BrokenPipe); the interruption;
        /// [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to write;
        /// [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// If polled outside a task of its kernel.
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
        /// An interruption point while there is no room. The error of an interruption has the
        /// number of bytes written; a drop loses it.
        ///
        /// # Errors
        ///
        /// As for [`write`](Self::write), with the number of bytes that were written.
        ///
        /// # Panics
        ///
        /// If polled outside a task of its kernel.
        #[track_caller]
        pub fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
            self.socket.write_all(data)
        }

        /// Writes some of the data of several buffers, in their order, and returns the number of
        /// bytes.
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
        /// If polled outside a task of its kernel.
        #[track_caller]
        pub fn write_vectored(
            &self,
            buffers: &[IoSlice<'_>],
        ) -> impl Future<Output = io::Result<usize>> {
            self.socket.write_vectored(buffers)
        }

        /// Waits until [`try_write`](Self::try_write) may succeed.
        ///
        /// This is a hint: the attempt may still report that it would block.
        ///
        /// # Cancellation
        ///
        /// An interruption point. Dropping the future loses nothing.
        ///
        /// # Errors
        ///
        /// The interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to
        /// write; [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// If polled outside a task.
        #[track_caller]
        pub fn writable(&self) -> impl Future<Output = io::Result<()>> {
            self.socket.ready(Direction::Write)
        }

        /// Writes some of the data, and returns the number of bytes. Never suspends.
        ///
        /// # Errors
        ///
        /// [`WouldBlock`](std::io::ErrorKind::WouldBlock) if there is no room or the task has used
        /// up the attempts of its step; as for [`write`](Self::write).
        pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
            self.socket.try_write(data)
        }
    };
}

/// The methods of a stream with both directions, of any address family.
macro_rules! whole {
    ($stream:ident, $name:literal, $address:ty, $convert:path, $std:ty) => {
        /// Takes over a stream of the standard library.
        ///
        /// # Errors
        ///
        /// [`Unsupported`](std::io::ErrorKind::Unsupported), from a kernel whose sockets are no
        /// descriptors; otherwise the system's error.
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
        /// If writing is ended, the peer reads the end of the stream. The other direction
        /// continues.
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
        /// The system's error, as [`NotConnected`](std::io::ErrorKind::NotConnected);
        /// [`Closed`](pikake_traps::Closed).
        pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
            self.socket.shutdown(how)
        }

        /// Closes the stream, even if other tasks still hold it.
        ///
        /// Waits and later operations fail with [`Closed`](pikake_traps::Closed). A second call has
        /// no effect.
        pub fn close(&self) {
            self.socket.close();
        }

        /// The address on this side.
        ///
        /// # Errors
        ///
        /// [`Closed`](pikake_traps::Closed), or the system's error.
        pub fn local_addr(&self) -> io::Result<$address> {
            self.socket.local_address().and_then($convert)
        }

        /// The address on the other side.
        ///
        /// # Errors
        ///
        /// [`NotConnected`](std::io::ErrorKind::NotConnected), if the peer is gone;
        /// [`Closed`](pikake_traps::Closed).
        pub fn peer_addr(&self) -> io::Result<$address> {
            self.socket.peer_address().and_then($convert)
        }

        /// The number by which the kernel knows the socket, for traps of your own.
        ///
        /// The stream keeps the socket: when the stream is dropped, operations on the number fail
        /// with [`Closed`](pikake_traps::Closed).
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// use pikake::traps::read_wait;
        ///
        /// read_wait(stream.socket_id()).await?; // as `stream.readable()`
        /// # Ok(()) }
        /// ```
        pub fn socket_id(&self) -> SocketId {
            self.socket.id()
        }

        /// The two directions of the stream, as borrowed halves.
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

        /// The two directions of the stream, as owned halves for two tasks.
        ///
        /// Dropping the writing half ends its direction. When both are dropped, the stream is
        /// closed. [`OwnedReadHalf::reunite`] joins the halves.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(stream: ", $name, ") -> std::io::Result<()> {")]
        /// let (read, write) = stream.into_split();
        /// let writer = pikake::spawn(async move { write.write_all(b"hello").await });
        /// let mut buffer = [0; 4096];
        /// let length = read.read(&mut buffer).await?;
        /// # Ok(()) }
        /// ```
        pub fn into_split(self) -> (OwnedReadHalf<$stream>, OwnedWriteHalf<$stream>) {
            halves::owned(self.socket)
        }

        reading!($name);
        peeking!($name);
        writing!($name);
    };
}

/// The methods of owned halves that depend on the stream's type.
macro_rules! owned_halves {
    ($stream:ident) => {
        impl OwnedReadHalf<$stream> {
            /// Joins the halves to a stream.
            ///
            /// # Errors
            ///
            /// [`ReuniteError`] with both halves, if they are not of the same stream.
            pub fn reunite(
                self,
                write: OwnedWriteHalf<$stream>,
            ) -> Result<$stream, ReuniteError<$stream>> {
                halves::whole(self, write).map(|socket| $stream { socket })
            }
        }
    };
}

pub(crate) use {owned_halves, peeking, reading, whole, writing};
