//! TCP, on the kernel's sockets.

pub(crate) mod socket;

tokio_files! {
    "../../../../../target/tokio-source/src/net/tcp/listener.rs" pub(crate) mod listener;
    "../../../../../target/tokio-source/src/net/tcp/split.rs" mod split;
    "../../../../../target/tokio-source/src/net/tcp/split_owned.rs" mod split_owned;
    "../../../../../target/tokio-source/src/net/tcp/stream.rs" pub(crate) mod stream;
}

pub use split::{ReadHalf, WriteHalf};
pub use split_owned::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};
pub(crate) use stream::TcpStream;
