//! Calls between kernels of one process, without sockets.
//!
//! A [`LocalConnector`] and a [`LocalListener`] take the places of an address and a socket: the
//! same client and the same server exchange the same packets, so deadlines, cancels and channels
//! work as between processes.
//!
//! # Examples
//!
//! ```
//! use pikake::rpc::{Client, Server, local};
//!
//! #[pikake::service]
//! trait Adder {
//!     async fn add(&self, left: u64, right: u64) -> u64;
//! }
//!
//! struct Plain;
//!
//! impl Adder for Plain {
//!     async fn add(&self, left: u64, right: u64) -> u64 {
//!         left + right
//!     }
//! }
//!
//! let (connector, listener) = local::listener("adder");
//! let server = std::thread::spawn(move || {
//!     // Serves until all connectors are gone.
//!     pikake::run(Server::new().add(AdderServer::new(Plain)).serve(listener))
//! });
//! pikake::run(async {
//!     let adder = AdderClient::new(Client::builder().local(&connector).build());
//!     assert_eq!(adder.add(2, 3).await.unwrap(), 5);
//! });
//! drop(connector);
//! assert!(server.join().unwrap().unwrap().is_clean());
//! ```

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, Cursor, Read as _};
use std::sync::Arc;

use pikake_net::{Listener, Read, Write};
use pikake_sync::shared::Queue;
use pikake_traps::{Closed, Interrupted, yield_now};

use crate::peer::{Peer, Transport};

/// The connections that may wait to be accepted. Further ones wait to connect.
const BACKLOG: usize = 128;
/// The most bytes that are copied for one write.
const CHUNK: usize = 64 * 1024;
/// The writes that may wait to be read, in each direction of a connection.
const CHUNKS: usize = 16;
/// The chunks that a task reads and writes before it lets others run: a queue that is ready is no
/// trap, and has no quota.
const CHUNKS_IN_A_ROW: usize = 2 * CHUNKS;

/// Makes a listener for a server of one kernel, and a connector for clients of other kernels.
/// Errors and listings call the server `name`.
///
/// # Examples
///
/// See the [module](self).
pub fn listener(name: &str) -> (LocalConnector, LocalListener) {
    let streams = Arc::new(Queue::bounded(BACKLOG));
    let connector = Connector { name: name.into(), streams: streams.clone() };
    (LocalConnector(Arc::new(connector)), LocalListener { name: name.into(), streams })
}

/// Connects clients to the server of a [`LocalListener`]. Any thread may use it.
#[derive(Clone)]
pub struct LocalConnector(Arc<Connector>);

struct Connector {
    name: String,
    streams: Arc<Queue<LocalStream>>,
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.streams.close();
    }
}

impl LocalConnector {
    /// The name of the server.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Connects to the server, and waits while too many connections are to be accepted.
    ///
    /// # Cancellation
    ///
    /// An interruption point. A call that is dropped or interrupted makes no connection, or one
    /// that ends at once.
    ///
    /// # Errors
    ///
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused), if the listener is gone; the
    /// interruption.
    pub async fn connect(&self) -> io::Result<LocalStream> {
        let (here, there) = LocalStream::pair();
        match self.0.streams.put(there).await {
            Ok(()) => Ok(here),
            Err(error) => match error.interrupted() {
                Some(interrupted) => Err(interrupted.clone().into()),
                None => {
                    let text = format!("the listener of {} is gone", self.0.name);
                    Err(io::Error::new(io::ErrorKind::ConnectionRefused, text))
                }
            },
        }
    }
}

/// Accepts connections of clients of other kernels. It is for
/// [`Server::serve`](crate::Server::serve).
pub struct LocalListener {
    name: Arc<str>,
    streams: Arc<Queue<LocalStream>>,
}

impl Listener for LocalListener {
    type Connection = LocalStream;
    type Address = Arc<str>;

    /// Accepts a connection, waiting until there is one.
    ///
    /// # Errors
    ///
    /// The interruption; [`Closed`], if all connectors are gone.
    async fn accept(&self) -> io::Result<(LocalStream, Arc<str>)> {
        let stream = self.streams.get().await?.ok_or(Closed)?;
        Ok((stream, self.name.clone()))
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        self.streams.close();
        // The clients that nobody accepts any more learn it.
        while self.streams.try_get().is_ok() {}
    }
}

/// One end of a connection between two kernels.
///
/// The stream behaves like a socket: unread bytes stop the writer, each direction ends separately,
/// and the end of a kernel ends its streams.
pub struct LocalStream {
    incoming: Arc<Queue<Vec<u8>>>,
    outgoing: Arc<Queue<Vec<u8>>>,
    /// The bytes that were received and not read yet.
    rest: RefCell<Cursor<Vec<u8>>>,
    /// The chunks since other tasks could run.
    in_a_row: Cell<usize>,
}

impl LocalStream {
    fn pair() -> (Self, Self) {
        let queue = || Arc::new(Queue::bounded(CHUNKS));
        let (one, other) = (queue(), queue());
        let end = |incoming, outgoing| Self {
            incoming,
            outgoing,
            rest: RefCell::default(),
            in_a_row: Cell::new(0),
        };
        (end(one.clone(), other.clone()), end(other, one))
    }

    /// Lets other tasks run after so many chunks.
    async fn count_chunk(&self) -> Result<(), Interrupted> {
        if self.in_a_row.get() >= CHUNKS_IN_A_ROW {
            self.in_a_row.set(0);
            yield_now().await?;
        }
        self.in_a_row.set(self.in_a_row.get() + 1);
        Ok(())
    }
}

impl Read for LocalStream {
    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        while !buffer.is_empty() {
            let count = self.rest.borrow_mut().read(buffer)?;
            if count > 0 {
                return Ok(count);
            }
            self.count_chunk().await?;
            match self.incoming.get().await {
                Ok(Some(chunk)) => drop(self.rest.replace(Cursor::new(chunk))),
                Ok(None) => return Ok(0),
                Err(interrupted) => return Err(interrupted.into()),
            }
        }
        Ok(0)
    }
}

impl Write for LocalStream {
    async fn write(&self, data: &[u8]) -> io::Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let chunk = &data[..data.len().min(CHUNK)];
        self.count_chunk().await?;
        self.outgoing.put(chunk.to_vec()).await?;
        Ok(chunk.len())
    }

    async fn finish(&self) -> io::Result<()> {
        self.outgoing.close();
        Ok(())
    }
}

impl Drop for LocalStream {
    fn drop(&mut self) {
        self.outgoing.close();
        self.incoming.close();
    }
}

impl Transport for LocalStream {
    fn peer(&self) -> Peer {
        Peer::new("another kernel of the process")
    }
}

impl fmt::Debug for LocalConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalConnector").field(&self.0.name).finish()
    }
}

impl fmt::Debug for LocalListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalListener").field(&self.name).finish()
    }
}

impl fmt::Debug for LocalStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalStream")
            .field("to_read", &self.incoming.len())
            .field("to_be_read", &self.outgoing.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// Each end has room or bytes all the time, as if a peer on another thread was fast.
    #[test]
    fn streams_let_other_tasks_run() {
        pikake::sim::example(async {
            let (here, there) = LocalStream::pair();
            let others = Rc::new(Cell::new(false));
            let ran = others.clone();
            pikake::spawn(async move { ran.set(true) }).detach();
            for _ in 0..CHUNKS_IN_A_ROW {
                assert!(!others.get());
                here.write(b"chunk").await.unwrap();
                assert_eq!(there.read(&mut [0; 5]).await.unwrap(), 5);
            }
            here.write(b"chunk").await.unwrap();
            assert!(others.replace(false));
            let ran = others.clone();
            pikake::spawn(async move { ran.set(true) }).detach();
            assert_eq!(there.read(&mut [0; 5]).await.unwrap(), 5);
            assert!(others.get());
        });
    }
}
