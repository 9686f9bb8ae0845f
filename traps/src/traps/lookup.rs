//! The trap `lookup`: looks up the addresses of a host name.

use std::future::Future;
use std::io;
use std::panic::Location;
use std::sync::Arc;

use super::foreign::foreign_wait;
use crate::door;
use crate::kind::TrapName;
use crate::reply::Reply;
use crate::seen::About;
use crate::socket::Addresses;

static NAME: TrapName = TrapName::new("lookup");

/// Looks up the addresses of a host name, in the order in which to try them.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when the future is dropped.
///
/// # Errors
///
/// The error of the system's resolver, or an interruption of the wait.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn lookup(host: &str, port: u16) -> impl Future<Output = Addresses> + use<> {
    lookup_at(host, port, Location::caller())
}

/// [`lookup`], reported as awaited at `place`.
///
/// # Errors
///
/// As for [`lookup`].
pub fn lookup_at(
    host: &str,
    port: u16,
    place: &'static Location<'static>,
) -> impl Future<Output = Addresses> + use<> {
    let host: Arc<str> = host.into();
    async move {
        let (reply, replied) = Reply::channel();
        door::with(|local| local.kernel().outside().lookup(&host, port, reply));
        let about = || About::new(format!("addresses of `{host}`"));
        match foreign_wait(replied, &NAME, about, place).await? {
            Some(addresses) => addresses,
            None => Err(io::Error::other(format!("the kernel dropped the lookup of {host}"))),
        }
    }
}
