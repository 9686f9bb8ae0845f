//! The ends of a stream of packets.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pikake_net::interruption;
use pikake_traps::Interrupted;

use crate::wire::Malformed;

/// The failure of a connection of packets, or of a single operation on it.
///
/// # Examples
///
/// ```
/// use pikake::net::{MemoryStream, Write};
/// use pikake::rpc::packets::{PacketError, PacketOptions, open};
///
/// # pikake::sim::example(async {
/// let (here, there) = MemoryStream::pair(4096);
/// there.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
/// let opened = open(here, PacketOptions::new()).await;
/// assert!(matches!(opened, Err(PacketError::Foreign)));
/// # });
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PacketError {
    /// An interruption of the caller. The connection goes on.
    Interrupted(Interrupted),
    /// A body is larger than its receiver takes. If it was to be sent, the connection goes on.
    TooLarge {
        /// The bytes of the body.
        size: usize,
        /// The most bytes.
        limit: usize,
    },
    /// The stream failed.
    Io(Arc<io::Error>),
    /// The peer, or this side, closed the stream before the last packet.
    Disconnected,
    /// The peer's first bytes are of another protocol.
    Foreign,
    /// The peer speaks no version that this side speaks.
    Version {
        /// The peer's lowest version.
        lowest: u8,
        /// The peer's highest version.
        highest: u8,
    },
    /// The peer sent what no peer of this protocol sends.
    Malformed(&'static str),
    /// The peer sent nothing for so long.
    Silent(Duration),
    /// A frame took longer than this, or the peer took no byte for so long.
    Stalled(Duration),
}

impl PacketError {
    /// The interruption, if the caller was interrupted.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        match self {
            Self::Interrupted(interrupted) => Some(interrupted),
            _ => None,
        }
    }
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted(interrupted) => write!(f, "{interrupted}"),
            Self::TooLarge { size, limit } => {
                write!(f, "a packet of {size} bytes is larger than the limit of {limit}")
            }
            Self::Io(error) => write!(f, "{error}"),
            Self::Disconnected => f.write_str("the connection was closed before its end"),
            Self::Foreign => f.write_str("the peer speaks another protocol"),
            Self::Version { lowest, highest } => {
                write!(f, "the peer speaks the versions {lowest} to {highest}, and this side 1")
            }
            Self::Malformed(what) => write!(f, "the peer broke the protocol: {what}"),
            Self::Silent(length) => write!(f, "the peer sent nothing for {length:?}"),
            Self::Stalled(length) => write!(f, "the peer stalled for {length:?}"),
        }
    }
}

impl Error for PacketError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Interrupted(interrupted) => Some(interrupted),
            Self::Io(error) => Some(&**error),
            _ => None,
        }
    }
}

impl From<Malformed> for PacketError {
    fn from(Malformed(what): Malformed) -> Self {
        Self::Malformed(what)
    }
}

impl From<io::Error> for PacketError {
    fn from(error: io::Error) -> Self {
        match interruption(&error) {
            Some(interrupted) => Self::Interrupted(interrupted.clone()),
            None => Self::Io(Arc::new(error)),
        }
    }
}

impl From<PacketError> for io::Error {
    fn from(error: PacketError) -> Self {
        let kind = match &error {
            PacketError::Interrupted(interrupted) => return interrupted.clone().into(),
            PacketError::Io(error) => error.kind(),
            PacketError::Disconnected => io::ErrorKind::UnexpectedEof,
            PacketError::Silent(_) | PacketError::Stalled(_) => io::ErrorKind::TimedOut,
            PacketError::TooLarge { .. } => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}
