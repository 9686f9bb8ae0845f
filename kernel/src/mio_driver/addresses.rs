//! Conversion between the addresses of pikake, socket2 and rustix.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net as unix;

use pikake_traps::Address;
use socket2::SockAddr;

fn unnamed() -> io::Result<unix::SocketAddr> {
    unix::SocketAddr::from_pathname("")
}

pub(super) fn to_address(address: &SockAddr) -> io::Result<Address> {
    if let Some(address) = address.as_socket() {
        return Ok(Address::Ip(address));
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Some(name) = address.as_abstract_namespace() {
        use std::os::linux::net::SocketAddrExt;
        return Ok(Address::Unix(Box::new(unix::SocketAddr::from_abstract_name(name)?)));
    }
    match address.as_unix() {
        Some(address) => Ok(Address::Unix(Box::new(address))),
        None => Ok(Address::Unix(Box::new(unnamed()?))),
    }
}

pub(super) fn from_address(address: &Address) -> io::Result<SockAddr> {
    match address {
        Address::Ip(address) => Ok((*address).into()),
        Address::Unix(address) => {
            if let Some(path) = address.as_pathname() {
                return SockAddr::unix(path);
            }
            #[cfg(any(target_os = "linux", target_os = "android"))]
            if let Some(name) = std::os::linux::net::SocketAddrExt::as_abstract_name(&**address) {
                use std::os::unix::ffi::OsStrExt;
                let name = [b"\0", name].concat();
                return SockAddr::unix(std::ffi::OsStr::from_bytes(&name));
            }
            SockAddr::unix("")
        }
    }
}

/// The address that the system reported for a peer. A peer without one is an unnamed Unix socket.
pub(super) fn from_any(address: Option<rustix::net::SocketAddrAny>) -> io::Result<Address> {
    use rustix::net::{AddressFamily, SocketAddrUnix};
    use std::os::unix::ffi::OsStrExt;
    let Some(address) = address else {
        return Ok(Address::Unix(Box::new(unnamed()?)));
    };
    if let Ok(address) = SocketAddr::try_from(address.clone()) {
        return Ok(Address::Ip(address));
    }
    if address.address_family() != AddressFamily::UNIX {
        return Err(io::Error::other(format!(
            "a peer has an address of an unknown family: {address:?}"
        )));
    }
    let address = SocketAddrUnix::try_from(address)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // rustix shows the address of an unnamed socket as an empty abstract name.
    if let Some(name) = address.abstract_name().filter(|name| !name.is_empty()) {
        use std::os::linux::net::SocketAddrExt;
        return Ok(Address::Unix(Box::new(unix::SocketAddr::from_abstract_name(name)?)));
    }
    match address.path() {
        Some(path) => {
            let path = std::ffi::OsStr::from_bytes(path.to_bytes());
            Ok(Address::Unix(Box::new(unix::SocketAddr::from_pathname(path)?)))
        }
        None => Ok(Address::Unix(Box::new(unnamed()?))),
    }
}
