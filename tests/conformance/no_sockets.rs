//! The socket traps of a kernel that has none: each is refused.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::OwnedFd;

use pikake::traps::{Address, OpenSocket, SocketId, SocketOption, Sockets};

pub(crate) struct NoSockets;

macro_rules! refused {
    ($($name:ident($($argument:ty),*) -> $output:ty;)*) => {
        impl Sockets for NoSockets {
            fn is_open(&self, _: SocketId) -> bool {
                false
            }

            $(fn $name(&self, $(_: $argument),*) -> io::Result<$output> {
                Err(ErrorKind::Unsupported.into())
            })*
        }
    };
}

refused! {
    open(OpenSocket<'_>) -> SocketId;
    pair(bool) -> (SocketId, SocketId);
    adopt(OwnedFd) -> SocketId;
    close(SocketId) -> ();
    accept(SocketId) -> (SocketId, Address);
    connected(SocketId) -> ();
    read(SocketId, &mut [IoSliceMut<'_>]) -> usize;
    peek(SocketId, &mut [u8]) -> usize;
    write(SocketId, &[IoSlice<'_>]) -> usize;
    receive(SocketId, &mut [u8]) -> (usize, Address);
    send(SocketId, &[u8], Option<&Address>) -> usize;
    connect(SocketId, &Address) -> ();
    shutdown(SocketId, Shutdown) -> ();
    local_address(SocketId) -> Address;
    peer_address(SocketId) -> Address;
    set_option(SocketId, SocketOption) -> ();
    option(SocketId, SocketOption) -> SocketOption;
}
