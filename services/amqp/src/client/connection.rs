//! The connection, as tasks hold it.

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
    /// An interruption point. Interrupted or dropped, it leaves no connection.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`], also for a handshake of TLS that failed, and [`Error::Refused`] with address
    /// and cause, at once unless [`Options::keep_trying`]; [`Error::Invalid`] for files that the URL names
    /// and that cannot be used; [`Error::Protocol`] if something else than a broker is there; the
    /// interruption.
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
            let options = address.query().over(options);
            let hub = Hub::new(address, options);
            let connection = Self::of(&hub);
            spawn("amqp connection", supervise(hub)).detach();
            loop {
                match connection.state() {
                    State::Closed(error) => return Err(error),
                    State::Connecting => connection.change().await?,
                    _ => return Ok(connection),
                };
            }
        }
    }

    /// Opens a channel whose messages are confirmed. If there are as many as there may be
    /// ([`Options::channel_max`]), it waits for the end of another; who came first is first.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted or dropped, it leaves no channel.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if there is no connection, or no channel to be had, for longer than
    /// [`Options::blocked_deadline`]; [`Error::Closed`]; the interruption.
    pub fn channel(&self) -> impl Future<Output = Result<Channel, Error>> + use<> {
        Channel::open(self.clone(), true)
    }

    /// Opens a channel whose messages are not confirmed: publishing ends when the message is queued
    /// here, and what is lost on the way is lost.
    ///
    /// # Errors
    ///
    /// As for [`channel`](Self::channel).
    pub fn channel_unconfirmed(&self) -> impl Future<Output = Result<Channel, Error>> + use<> {
        Channel::open(self.clone(), false)
    }

    /// How it is.
    pub fn state(&self) -> State {
        self.hub().state.borrow().clone()
    }

    /// How often it was lost. What a broker keeps for a connection is gone when this has changed: whom
    /// it answers directly, what it has delivered.
    pub fn epoch(&self) -> u64 {
        self.hub().epoch.get()
    }

    /// Where it goes.
    pub fn address(&self) -> &Address {
        &self.hub().address
    }

    /// Waits until its state changes, and gives the new one. At the end there is no change any more,
    /// and the end is given at once.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Nothing is lost when it is dropped.
    ///
    /// # Errors
    ///
    /// Only the interruption.
    pub fn changed(&self) -> impl Future<Output = Result<State, Error>> + use<> {
        let connection = self.clone();
        async move {
            if !matches!(connection.state(), State::Closed(_)) {
                connection.change().await?;
            }
            Ok(connection.state())
        }
    }

    async fn change(&self) -> Result<(), Error> {
        let before = self.hub().changes.get();
        while self.hub().changes.get() == before {
            park(&self.hub().changed).await?;
        }
        Ok(())
    }

    /// Closes it: what is queued is sent, the broker told, and its answer awaited for three seconds.
    ///
    /// Whoever waits on it gets [`Error::Closed`]. Messages that are not confirmed yet are uncertain:
    /// await them before.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The connection is closed also if this is interrupted or dropped.
    ///
    /// # Errors
    ///
    /// Only the interruption: that a connection cannot be closed in good order does not keep it open.
    pub fn close(&self) -> impl Future<Output = Result<(), Error>> + use<> {
        let connection = self.clone();
        async move {
            connection.hub().request_close();
            while !matches!(connection.state(), State::Closed(_)) {
                connection.change().await?;
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
