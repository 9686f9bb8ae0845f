//! Sockets, streams, names and servers.
//!
//! | for | use |
//! | --- | --- |
//! | a connection over TCP, or on one machine | [`TcpStream::connect`], [`UnixStream::connect`] |
//! | a server whose connections are tasks | [`serve`] on a [`TcpListener`] or [`UnixListener`]; with a graceful shutdown: [`serve_until`] |
//! | datagrams | [`UdpSocket`], [`UnixDatagram`] |
//! | lines, or pieces up to a byte, with a limit | [`BufReader`] |
//! | messages | [`FramedReader`], [`FramedWriter`], and a codec: [`LengthDelimited`], [`LineCodec`], your own |
//! | one task that reads and one that writes | `split`, `into_split` of a stream |
//! | a proxy | [`copy_bidirectional`], [`copy`] |
//! | code for any of these streams | [`Read`], [`Write`]; [`MemoryStream`] for its tests |
//! | pipes | [`pipe`](pipe()) |
//! | cached and shared name lookups | [`Resolver`] |
//! | TLS | `tls`, a feature |
//! | names from DNS servers, with their TTL | `dns`, a feature |
//! | the interruption in an [`std::io::Error`] | [`interruption`] |
//!
//! # Examples
//!
//! A server:
//!
//! ```
//! use pikake::net::{TcpListener, TcpStream, serve};
//!
//! async fn echo(stream: TcpStream) -> std::io::Result<()> {
//!     let mut buffer = [0; 4096];
//!     loop {
//!         match stream.read(&mut buffer).await? {
//!             0 => return Ok(()),
//!             length => stream.write_all(&buffer[..length]).await?,
//!         }
//!     }
//! }
//!
//! # async fn example() -> std::io::Result<()> {
//! let listener = TcpListener::bind("127.0.0.1:7000").await?;
//! serve(listener, 100, |stream, peer| async move {
//!     if let Err(error) = echo(stream).await {
//!         eprintln!("{peer}: {error}");
//!     }
//! })
//! .await?;
//! # Ok(()) }
//! # let limit = std::time::Duration::from_secs(1);
//! # assert!(pikake::sim::example(pikake::timeout_after(limit, example())).is_err());
//! ```
//!
//! # How sockets wait
//!
//! The kernel defines a socket: this module names no descriptor, poller or system call, so the same
//! program runs on sockets of the operating system and on those of a simulator.
//!
//! Every operation *attempts, and while the attempt would block, waits for readiness*. So an
//! operation that is possible now does not wait, an interruption never hits an operation that
//! succeeded, and a future that is dropped while it waits has moved no bytes. Only `read_exact` and
//! `write_all` move bytes before they end; their errors have the number.
//!
//! # Rules for all sockets
//!
//! * Operations take `&self`, so one task may read while another writes. Only one task may wait for
//!   a direction of a socket: a second one gets [`ResourceBusy`](pikake_traps::ResourceBusy).
//! * Dropping a socket closes it. `close` does so even if other tasks still hold the socket: waits
//!   and later operations fail with [`Closed`](pikake_traps::Closed), kind
//!   [`NotConnected`](std::io::ErrorKind::NotConnected).
//! * An interrupted wait returns the interruption inside an [`std::io::Error`], never of the kind
//!   `Interrupted`, which libraries retry. [`interruption`] finds it.
//! * An error names the operation where the system's message does not: `bind 127.0.0.1:80:
//!   Permission denied (os error 13)`. It has the kind of the system's error, which is its source.
//! * With the feature `io-traits`, streams and their halves also implement the
//!   traits of these crates.
//! * A socket belongs to the kernel that opened it, and to that kernel's thread. Opening a socket
//!   outside a kernel panics.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod address;
mod buf_writer;
mod buffered;
mod chunk;
mod codec;
mod copy;
mod datagram;
#[cfg(feature = "dns")]
pub mod dns;
mod ended;
mod error;
mod framed;
mod graceful;
mod halves;
mod handlers;
mod listener;
mod memory;
mod name_cache;
mod names;
mod on_all;
mod pipe;
mod race;
mod read_write;
mod replicas;
mod resolver;
#[cfg(feature = "io-traits")]
mod seam;
#[cfg(feature = "io-traits")]
mod send_io;
mod serve;
mod socket;
mod stream;
mod tcp;
#[cfg(feature = "tls")]
pub mod tls;
mod udp;
mod unix;

pub use address::{ToSocketAddrs, lookup_host};
pub use buf_writer::BufWriter;
pub use buffered::{BufReader, DEFAULT_READ_LIMIT, LimitExceeded, Lines, ReadBuffer};
pub use codec::{Decode, Encode, LengthDelimited, LineCodec};
pub use copy::{Copied, CopyBothError, CopyError, copy, copy_bidirectional};
pub use ended::Ended;
pub use error::{
    AddressErrors, ReadExactError, ReuniteError, WriteAllError, in_context, interruption,
};
pub use framed::{FramedReader, FramedWriter, SendMessageError};
pub use graceful::{Closing, Farewell, Left, ListenerFailed, Patience, serve_until};
pub use halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
pub use memory::MemoryStream;
pub use names::{NameAnswer, NameError, NameSource, SystemNames};
pub use on_all::serve_on_all;
pub use pikake_traps::PeerCredentials;
pub use pipe::{PipeReader, PipeWriter, pipe};
pub use race::ATTEMPT_DELAY;
pub use read_write::{Read, Write};
pub use replicas::{EnteredReplica, Replicas};
pub use resolver::{DEFAULT_TTL, MAX_TTL, NEGATIVE_TTL, Resolver, ResolverBuilder};
#[cfg(feature = "io-traits")]
pub use send_io::SendIo;
#[doc(hidden)]
pub use serve::serve_at;
pub use serve::{BACKLOG_WAIT, Listener, serve};
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;
pub use unix::{UnixDatagram, UnixListener, UnixStream};
