//! The methods of a connection's handle.

use std::fmt;
use std::future::Future;

use pikake_traps::park;

use crate::client::address::Address;
use crate::client::channel::Channel;
use crate::client::hub::{Connection, Hub, State};
use crate::client::link::spawn;
use crate::client::options::Options;
use crate::client::supervisor::supervise;
use crate::error::Error;

impl Connection {
    /// Connects to a broker.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interrupted or dropped future leaves no connection.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`], also for a failed TLS handshake, and [`Error::Refused`], both at once
    /// unless [`Options::keep_trying`]; [`Error::Invalid`] for unusable files in the URL;
    /// [`Error::Protocol`] if the peer is no AMQP broker; the interruption.
    ///
    /// # Panics
    ///
    /// When polled outside a task.
    pub fn open(
        address: &Address,
        options: Options,
    ) -> impl Future<Output = Result<Self, Error>> + use<> {
        let address = address.clone();
        async move {
            let options = address.query().apply_to(options);
            let hub = Hub::new(address, options);
            let connection = Self::first_handle(&hub);
            spawn("amqp connection", supervise(hub)).detach();
            loop {
                match connection.state() {
                    State::Closed(error) => return Err(error),
                    State::Connecting => connection.until_changed().await?,
                    _ => return Ok(connection),
                };
            }
        }
    }

    /// Opens a channel in confirm mode. If all [`Options::channel_max`] channels are open, this
    /// waits for the close of one, in first-come order.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interrupted or dropped future leaves no channel.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if there is no connection or free channel for longer than
    /// [`Options::blocked_deadline`]; [`Error::Closed`]; the interruption.
    pub fn channel(&self) -> impl Future<Output = Result<Channel, Error>> + use<> {
        Channel::open(self.clone(), true)
    }

    /// Opens a channel without confirms: publishing ends when the message is queued in this
    /// process, and the message may be lost unnoticed.
    ///
    /// # Errors
    ///
    /// As for [`channel`](Self::channel).
    pub fn channel_unconfirmed(&self) -> impl Future<Output = Result<Channel, Error>> + use<> {
        Channel::open(self.clone(), false)
    }

    /// The state of the connection.
    pub fn state(&self) -> State {
        self.hub().state.borrow().clone()
    }

    /// The number of times that the connection was lost. A change means that the broker has dropped
    /// its state for the connection: direct reply-to addresses and unsettled deliveries.
    pub fn epoch(&self) -> u64 {
        self.hub().epoch.get()
    }

    /// The number of channels that can be open at a time, as agreed with the broker. `None` without
    /// a connection.
    pub fn channel_max(&self) -> Option<u16> {
        self.hub().session.borrow().as_ref().map(|session| session.limits.channel_max)
    }

    /// The broker's version, as `3.10.8`. `None` without a connection, or if the broker says none.
    pub fn server_version(&self) -> Option<String> {
        self.hub().session.borrow().as_ref()?.server_version.clone()
    }

    /// The broker's address.
    pub fn address(&self) -> &Address {
        &self.hub().address
    }

    /// Waits until the state changes, and returns the new one. A closed connection returns its
    /// state at once.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// Only the interruption.
    pub fn changed(&self) -> impl Future<Output = Result<State, Error>> + use<> {
        let connection = self.clone();
        async move {
            if !matches!(connection.state(), State::Closed(_)) {
                connection.until_changed().await?;
            }
            Ok(connection.state())
        }
    }

    async fn until_changed(&self) -> Result<(), Error> {
        let before = self.hub().changes.get();
        while self.hub().changes.get() == before {
            park(&self.hub().changed).await?;
        }
        Ok(())
    }

    /// Closes the connection: sends all queued output and the close, and waits three seconds for
    /// the reply.
    ///
    /// All waits on the connection fail with [`Error::Closed`]. Unconfirmed messages become
    /// uncertain: await their confirms first.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The connection closes even if the wait is interrupted or dropped.
    ///
    /// # Errors
    ///
    /// Only the interruption. The connection closes even if the broker does not reply.
    pub fn close(&self) -> impl Future<Output = Result<(), Error>> + use<> {
        let connection = self.clone();
        async move {
            connection.hub().request_close();
            while !matches!(connection.state(), State::Closed(_)) {
                connection.until_changed().await?;
            }
            Ok(())
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hub().fmt(f)
    }
}
