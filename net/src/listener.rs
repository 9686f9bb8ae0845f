//! What a listener of connections can do, written once for TCP and Unix sockets.

/// The methods of a listener: what it gives, how that shows an address, and two lines of the examples.
macro_rules! listening {
    ($stream:ident, $address:ty, $to_address:expr, $standard:ty, $bind:literal, $client:literal) => {
        /// Takes over a listener of the standard library.
        ///
        /// # Errors
        ///
        /// [`Unsupported`](io::ErrorKind::Unsupported), from a kernel whose sockets are no
        /// descriptors; else the system's.
        ///
        /// # Panics
        ///
        /// Outside a kernel.
        #[track_caller]
        pub fn from_std(listener: $standard) -> io::Result<Self> {
            Socket::adopt(listener.into()).map(|socket| Self { socket })
        }

        /// Takes a connection, waiting until there is one, and tells where it comes from. (Few clients of
        /// Unix sockets have an address.)
        ///
        /// A connection that failed before it was accepted is passed over.
        ///
        /// # Cancellation
        ///
        /// An interruption point while there is none. Dropped or interrupted, it has taken none.
        ///
        /// # Errors
        ///
        /// The system's, of which those about a lack of descriptors or memory pass; the interruption;
        /// [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to accept;
        /// [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// When polled outside a task of its kernel.
        #[track_caller]
        pub fn accept(&self) -> impl Future<Output = io::Result<($stream, $address)>> {
            let accepting = self.socket.accept();
            async move {
                let (socket, address) = accepting.await?;
                Ok(($stream { socket }, $to_address(address)?))
            }
        }

        /// Takes at most `most` of the connections that are there, and waits until there is one.
        ///
        /// One wait for a burst of clients, where [`accept`](Self::accept) has one for each.
        ///
        /// # Examples
        ///
        /// ```
        /// # pikake_sim::example(async {
        #[doc = $bind]
        #[doc = $client]
        /// for (stream, _) in listener.accept_many(100).await? {
        ///     pikake_traps::spawn(async move { stream.write_all(b"hello").await }).detach();
        /// }
        /// client.read_exact(&mut [0; 5]).await?;
        /// # std::io::Result::Ok(()) }).unwrap();
        /// ```
        ///
        /// # Cancellation
        ///
        /// An interruption point while there is none. Dropped or interrupted, it has taken none.
        ///
        /// # Errors
        ///
        /// As for [`accept`](Self::accept). An error that comes after connections have been taken is
        /// left for the next call.
        ///
        /// # Panics
        ///
        /// When polled outside a task of its kernel.
        #[track_caller]
        pub fn accept_many(
            &self,
            most: usize,
        ) -> impl Future<Output = io::Result<Vec<($stream, $address)>>> {
            let first = self.socket.accept();
            async move {
                let mut accepted = Vec::new();
                if most == 0 {
                    return Ok(accepted);
                }
                let (socket, address) = first.await?;
                accepted.push(($stream { socket }, $to_address(address)?));
                while accepted.len() < most
                    && let Some((socket, address)) = self.socket.try_accept()
                {
                    accepted.push(($stream { socket }, $to_address(address)?));
                }
                Ok(accepted)
            }
        }

        /// Where it listens; with the port that the system chose.
        ///
        /// # Errors
        ///
        /// [`Closed`](pikake_traps::Closed), or the system's.
        pub fn local_addr(&self) -> io::Result<$address> {
            self.socket.local_address().and_then($to_address)
        }

        /// Closes the listener, also while other tasks still hold it. A task that waits to accept gets
        /// [`Closed`](pikake_traps::Closed), and connections that were not accepted are reset. The file of a
        /// Unix socket stays.
        pub fn close(&self) {
            self.socket.close();
        }
    };
}

pub(crate) use listening;
