//! Sockets, by trap.
//!
//! TCP, UDP and Unix sockets as the rest of the world knows them, with waits that are traps. What a
//! socket *is* the kernel decides: nothing here names a descriptor, a poller or a system call, so
//! the same program runs on sockets of the operating system and on those of a simulator.
//!
//! Every operation is one idea: *attempt it, and while it would block, wait until an attempt is
//! worthwhile*. It follows that an operation that can be done now is done without waiting, that an
//! interruption never hits an operation that succeeded, and that a future dropped while it waits
//! has moved no bytes (but for the two that move many, `read_exact` and `write_all`, whose errors
//! say how far they came).
//!
//! ```
//! use pikake_net::{TcpListener, TcpStream, serve};
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
//! # assert!(pikake_sim::example(pikake_traps::timeout_after(limit, example())).is_err());
//! ```
//!
//! # On top of sockets
//!
//! | you want | use |
//! | --- | --- |
//! | lines, or pieces up to a byte, with a limit | [`BufReader`] |
//! | messages | [`FramedReader`], [`FramedWriter`], and a codec: [`LengthDelimited`], [`LineCodec`], your own |
//! | a proxy | [`copy_bidirectional`], [`copy`] |
//! | to write code for any of these streams | [`Read`], [`Write`]; [`MemoryStream`] to test it |
//! | names that are kept and asked for once | [`Resolver`] |
//! | a server that ends gracefully | [`serve_until`] |
//! | TLS | `tls`, a feature |
//! | names from DNS servers, with their TTL | `dns`, a feature |
//!
//! # Rules for all sockets
//!
//! * Operations take `&self`, so one task may read while another writes. Two tasks that wait for
//!   the same direction of the same socket are a mistake: the second one gets
//!   [`ResourceBusy`](pikake_traps::ResourceBusy).
//! * Dropping a socket closes it. `close` does so while others still hold it: whoever waits on it
//!   is woken, and every later operation fails with [`Closed`](pikake_traps::Closed), kind
//!   [`NotConnected`](std::io::ErrorKind::NotConnected).
//! * A wait that is interrupted gives the interruption inside an [`std::io::Error`], never of the
//!   kind `Interrupted`, which everybody retries. [`interruption`] finds it.
//! * An error says what was attempted where the system's words do not: `bind 127.0.0.1:80:
//!   Permission denied (os error 13)`. Its kind is the one the system gave, and the system's error
//!   is its source.
//! * With the features `tokio-io` and `futures-io`, streams and their halves also have the traits of
//!   these names, for the libraries that are written for them.
//! * A socket belongs to the kernel it was opened in, and so to that kernel's thread. Opening one
//!   outside a kernel is a panic.

mod address;
mod buffered;
mod codec;
mod copy;
mod datagram;
#[cfg(feature = "dns")]
pub mod dns;
#[cfg(feature = "dns")]
mod dns_runtime;
mod error;
mod framed;
mod graceful;
mod halves;
mod handlers;
mod listener;
mod memory;
mod name_cache;
mod names;
mod pipe;
mod race;
mod read_write;
mod resolver;
#[cfg(any(feature = "tokio-io", feature = "futures-io"))]
mod seam;
#[cfg(any(feature = "tokio-io", feature = "futures-io"))]
mod send_io;
mod serve;
mod socket;
mod stream;
mod tcp;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "tls")]
mod tls_stream;
#[cfg(feature = "tls")]
mod tls_unverified;
mod udp;
mod unix;
mod unix_datagram;

pub use address::ToAddresses;
pub use buffered::{BufReader, DEFAULT_READ_LIMIT, LimitExceeded, Lines};
pub use codec::{Decode, Decoded, Encode, LengthDelimited, LineCodec};
pub use copy::{Copied, CopyBothError, CopyError, copy, copy_bidirectional};
pub use error::{
    AddressErrors, ReadExactError, ReuniteError, WriteAllError, in_context, interruption,
};
pub use framed::{FramedReader, FramedWriter, SendMessageError};
pub use graceful::{BACKLOG_WAIT, Closing, Ended, Farewell, Left, Patience, serve_until};
pub use halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
pub use memory::MemoryStream;
pub use names::{NameAnswer, NameError, NameSource, SystemNames};
pub use pipe::{PipeReader, PipeWriter, pipe};
pub use race::ATTEMPT_DELAY;
pub use read_write::{Read, Write};
pub use resolver::{DEFAULT_TTL, MAX_TTL, NEGATIVE_TTL, Resolver, ResolverBuilder};
#[cfg(any(feature = "tokio-io", feature = "futures-io"))]
pub use send_io::SendIo;
pub use serve::{Listener, serve};
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;
pub use unix::{UnixListener, UnixStream};
pub use unix_datagram::UnixDatagram;
