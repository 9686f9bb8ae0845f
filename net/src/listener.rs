//! The methods of listeners, for TCP and Unix sockets.

/// The methods of a listener. Arguments: types and conversion of its connections, two lines of
/// examples.
macro_rules! listening {
    ($stream:ident, $address:ty, $to_address:expr, $standard:ty, $bind:literal, $client:literal) => {
        /// Takes over a listener of the standard library.
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
        pub fn from_std(listener: $standard) -> io::Result<Self> {
            Socket::adopt(listener.into()).map(Self::new)
        }

        /// Accepts a connection, waiting until there is one, and returns it with its peer's
        /// address. (Few clients of Unix sockets have an address.)
        ///
        /// Connections that failed before they were accepted are skipped.
        ///
        /// # Cancellation
        ///
        /// An interruption point while there is none. A call that is dropped or interrupted takes
        /// none.
        ///
        /// # Errors
        ///
        /// The system's error, where a lack of descriptors or memory is temporary; the
        /// interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to
        /// accept; [`Closed`](pikake_traps::Closed).
        ///
        /// # Panics
        ///
        /// If polled outside a task of its kernel.
        #[track_caller]
        pub fn accept(&self) -> impl Future<Output = io::Result<($stream, $address)>> {
            let accepting = self.socket.accept();
            async move {
                let (socket, address) = accepting.await?;
                Ok(($stream { socket }, $to_address(address)?))
            }
        }

        /// Accepts up to `most` connections, waiting until there is one.
        ///
        /// Takes one wait for a burst of clients, where [`accept`](Self::accept) takes one for
        /// each.
        ///
        /// # Examples
        ///
        /// ```
        /// # pikake::sim::example(async {
        #[doc = $bind]
        #[doc = $client]
        /// for (stream, _) in listener.accept_many(100).await? {
        ///     pikake::spawn(async move { stream.write_all(b"hello").await }).detach();
        /// }
        /// client.read_exact(&mut [0; 5]).await?;
        /// # std::io::Result::Ok(()) }).unwrap();
        /// ```
        ///
        /// # Cancellation
        ///
        /// An interruption point while there is none. A call that is dropped or interrupted takes
        /// none.
        ///
        /// # Errors
        ///
        /// As for [`accept`](Self::accept). An error after the first connection is left for
        /// the next call.
        ///
        /// # Panics
        ///
        /// If polled outside a task of its kernel.
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
                while accepted.len() < most {
                    let Some((socket, address)) = self.socket.try_accept() else { break };
                    accepted.push(($stream { socket }, $to_address(address)?));
                }
                Ok(accepted)
            }
        }

        /// The address of the listener, with the port that the system chose.
        ///
        /// # Errors
        ///
        /// [`Closed`](pikake_traps::Closed), or the system's error.
        pub fn local_addr(&self) -> io::Result<$address> {
            self.socket.local_address().and_then($to_address)
        }

        /// Closes the listener, even if other tasks still hold it. A task that waits to accept
        /// gets [`Closed`](pikake_traps::Closed), and connections that were not accepted are reset.
        /// The file of a Unix socket stays.
        pub fn close(&self) {
            self.socket.close();
        }
    };
}

pub(crate) use listening;
