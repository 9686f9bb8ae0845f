//! The methods of datagram sockets, for UDP and Unix.
//!
//! A datagram arrives whole or not at all; bytes that do not fit into the receiver's buffer are
//! lost. A socket with a peer, set by `connect`, uses `send`, and receives from that peer only.

/// The methods of every datagram socket.
macro_rules! datagrams {
    ($name:literal, $address:ty, $convert:path, $std:ty) => {
        /// Takes over a socket of the standard library.
        ///
        /// # Errors
        ///
        /// [`Unsupported`](io::ErrorKind::Unsupported), from a kernel whose sockets are no
        /// descriptors; otherwise the system's error.
        ///
        /// # Panics
        ///
        /// Outside a kernel.
        #[track_caller]
        pub fn from_std(socket: $std) -> io::Result<Self> {
            Socket::adopt(socket.into()).map(|socket| Self { socket })
        }

        /// Receives a datagram, waiting until there is one, and returns its length and sender.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(socket: ", $name, ") -> std::io::Result<()> {")]
        /// let mut buffer = [0; 1500];
        /// let (length, from) = socket.recv_from(&mut buffer).await?;
        /// println!("{from:?} says {:?}", &buffer[..length]);
        /// # Ok(()) }
        /// ```
        ///
        /// # Cancellation
        ///
        /// An interruption point while there is none. A call that is dropped or interrupted takes
        /// none.
        ///
        /// # Errors
        ///
        /// The system's error; the interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if
        /// another task waits to receive; [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// If polled outside a task of its kernel.
        #[track_caller]
        pub fn recv_from(
            &self,
            buffer: &mut [u8],
        ) -> impl Future<Output = io::Result<(usize, $address)>> {
            let receiving = self.socket.receive(buffer);
            async move {
                let (length, from) = receiving.await?;
                Ok((length, $convert(from)?))
            }
        }

        /// Receives a datagram, waiting until there is one.
        ///
        /// # Cancellation
        ///
        /// As for [`recv_from`](Self::recv_from).
        ///
        /// # Errors
        ///
        /// As for [`recv_from`](Self::recv_from);
        /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if no socket receives at the
        /// peer's address.
        ///
        /// # Panics
        ///
        /// If polled outside a task of its kernel.
        #[track_caller]
        pub fn recv(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
            let receiving = self.socket.receive(buffer);
            async move { receiving.await.map(|(length, _)| length) }
        }

        /// Receives a datagram without removing it, waiting until there is one.
        ///
        /// # Cancellation
        ///
        /// As for [`recv_from`](Self::recv_from).
        ///
        /// # Errors
        ///
        /// As for [`recv_from`](Self::recv_from).
        ///
        /// # Panics
        ///
        /// If polled outside a task of its kernel.
        #[track_caller]
        pub fn peek(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
            self.socket.peek(buffer)
        }

        /// Sends a datagram to the peer that `connect` gave, waiting until there is room.
        ///
        /// # Examples
        ///
        /// ```no_run
        #[doc = concat!("# async fn example(socket: ", $name, ") -> std::io::Result<()> {")]
        /// socket.send(b"ping").await?;
        /// # Ok(()) }
        /// ```
        ///
        /// # Cancellation
        ///
        /// An interruption point while there is no room. A call that is dropped or interrupted
        /// sends nothing.
        ///
        /// # Errors
        ///
        /// The system's error; the interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if
        /// another task waits to send; [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// If polled outside a task of its kernel.
        #[track_caller]
        pub fn send(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
            self.socket.send(data, None)
        }

        /// The socket's own address.
        ///
        /// # Errors
        ///
        /// [`Closed`](pikake_traps::Closed), or the system's error.
        pub fn local_addr(&self) -> io::Result<$address> {
            self.socket.local_address().and_then($convert)
        }

        /// The address of the peer that `connect` gave.
        ///
        /// # Errors
        ///
        /// [`NotConnected`](io::ErrorKind::NotConnected), if there is none;
        /// [`Closed`](pikake_traps::Closed).
        pub fn peer_addr(&self) -> io::Result<$address> {
            self.socket.peer_address().and_then($convert)
        }

        /// Closes the socket, even if other tasks still hold it. Waiting tasks get
        /// [`Closed`](pikake_traps::Closed).
        pub fn close(&self) {
            self.socket.close();
        }
    };
}

pub(crate) use datagrams;
