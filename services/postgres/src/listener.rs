//! `LISTEN`: the notifications of channels, over a connection of its own.
//!
//! The listener drives its connection itself, so it reads no further than the program: the server
//! buffers the rest.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use pikake_traps::{Interrupted, future_wait, ignore_after, random, shield, sleep};
use tokio_postgres::{AsyncMessage, Notification};

use crate::config::Config;
use crate::connect::Session;
use crate::error::Error;

/// How long a listener waits for a message before it asks the server whether the connection is
/// alive.
pub const HEARTBEAT: Duration = Duration::from_secs(30);

/// How long the server may take to answer a listener.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The pause before the second attempt to connect again; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between two attempts to connect again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What a [`Listener`] returns.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A notification.
    Notification(Notification),
    /// The connection was lost, and a new one listens to all channels. Notifications in between are
    /// lost, so the program reads anew what they would have told.
    Reconnected,
}

/// Listens to channels, and connects again when the connection is lost.
///
/// The connection is not one of a pool, which resets its connections.
///
/// # Examples
///
/// ```no_run
/// use pikake::postgres::{Config, Event, Listener};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config: Config = "postgres://shop@localhost/shop".parse()?;
/// let mut listener = Listener::connect(&config, ["orders"]).await?;
/// loop {
///     match listener.next().await? {
///         Event::Notification(it) => println!("{}: {}", it.channel(), it.payload()),
///         Event::Reconnected => println!("look for orders in the table"),
///         _ => {}
///     }
/// }
/// # }
/// ```
pub struct Listener {
    config: Config,
    channels: BTreeSet<String>,
    /// `None` while the connection is lost.
    session: Option<Session>,
    /// Whether the server listens to `channels`.
    is_current: bool,
    /// Whether `session` replaces a lost one, and has listened to no channel yet.
    is_replaced: bool,
    arrived: VecDeque<Event>,
    /// The pause before the next attempt to connect.
    pause: Option<Duration>,
}

impl Listener {
    /// Connects, and listens to channels.
    ///
    /// # Errors
    ///
    /// As for [`Config::connect`]; [`Error::Config`] for a name that no channel can have.
    ///
    /// # Panics
    ///
    /// If polled outside a task.
    pub async fn connect<C: Into<String>>(
        config: &Config,
        channels: impl IntoIterator<Item = C>,
    ) -> Result<Self, Error> {
        let channels: BTreeSet<String> = channels.into_iter().map(Into::into).collect();
        channels.iter().try_for_each(|channel| check(channel))?;
        let mut listener = Self {
            config: config.clone(),
            channels,
            session: Some(Session::open(config).await?),
            is_current: false,
            is_replaced: false,
            arrived: VecDeque::new(),
            pause: None,
        };
        listener.subscribe().await?;
        Ok(listener)
    }

    /// Listens to one more channel. After `Ok`, no notification of the channel is missed.
    ///
    /// # Cancellation
    ///
    /// An interruption point. After an interruption or a drop, the next call of any method listens
    /// to the channel.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a name that no channel can have; the server's; the interruption. A
    /// lost connection is no error: see [`next`](Self::next).
    pub async fn listen(&mut self, channel: impl Into<String>) -> Result<(), Error> {
        let channel = channel.into();
        check(&channel)?;
        self.is_current &= !self.channels.insert(channel.clone());
        let updated = self.update().await;
        if let Err(Error::Statement(_)) = updated {
            self.channels.remove(&channel);
        }
        updated
    }

    /// Listens to a channel no more. Notifications that have arrived are still returned.
    ///
    /// # Cancellation
    ///
    /// As for [`listen`](Self::listen).
    ///
    /// # Errors
    ///
    /// As for [`listen`](Self::listen).
    pub async fn unlisten(&mut self, channel: &str) -> Result<(), Error> {
        self.is_current &= !self.channels.remove(channel);
        self.update().await
    }

    /// Waits for the next notification. If the connection is lost, connects again until that
    /// succeeds, and then returns [`Event::Reconnected`].
    ///
    /// Failed attempts are logged (`tracing`, level `warn`).
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interrupted or dropped wait loses no notification.
    ///
    /// # Errors
    ///
    /// The interruption.
    pub async fn next(&mut self) -> Result<Event, Interrupted> {
        loop {
            if let Some(event) = self.arrived.pop_front() {
                return Ok(event);
            }
            let gone = match self.attend().await {
                Ok(()) => continue,
                Err(Error::Interrupted { why, .. }) => return Err(why),
                Err(error) => error,
            };
            tracing::warn!(error = %gone, "not listening to the database");
            self.session = None;
        }
    }

    /// One step towards the next event.
    async fn attend(&mut self) -> Result<(), Error> {
        if self.session.is_none() {
            if let Some(pause) = self.pause {
                sleep(pause.mul_f64(0.5 + random::f64() / 2.0)).await?;
            }
            self.pause = Some(self.pause.map_or(FIRST_PAUSE, |pause| LONGEST_PAUSE.min(pause * 2)));
            self.session = Some(Session::open(&self.config).await?);
            self.is_current = false;
            self.is_replaced = true;
        }
        self.subscribe().await?;
        // Those that came during a request that was interrupted.
        self.collect();
        if !self.arrived.is_empty() {
            return Ok(());
        }
        match ignore_after(HEARTBEAT, self.message()).await {
            Some(message) => {
                self.arrived.push_back(Event::Notification(message?));
                Ok(())
            }
            None => self.request(async |client| client.check_connection().await).await,
        }
    }

    /// Makes the server listen to the channels. A lost connection is left to `next`.
    async fn update(&mut self) -> Result<(), Error> {
        match self.subscribe().await {
            Err(Error::Lost { .. }) => {
                self.session = None;
                Ok(())
            }
            result => result,
        }
    }

    async fn subscribe(&mut self) -> Result<(), Error> {
        if self.is_current || self.session.is_none() {
            return Ok(());
        }
        // One transaction, so the channels that stay miss nothing.
        let mut text = "UNLISTEN *".to_owned();
        for channel in &self.channels {
            text.push_str(&format!("; LISTEN \"{}\"", channel.replace('"', "\"\"")));
        }
        self.request(async |client| client.batch_execute(&text).await).await?;
        self.is_current = true;
        if std::mem::take(&mut self.is_replaced) {
            self.pause = None;
            // Before what the new connection has brought.
            self.arrived.push_front(Event::Reconnected);
        }
        Ok(())
    }

    /// Takes the notifications that came while requests were awaited.
    fn collect(&mut self) {
        let notifications = self.session.iter_mut().flat_map(|it| it.notifications.drain(..));
        self.arrived.extend(notifications.map(Event::Notification));
    }

    async fn request(
        &mut self,
        request: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<(), tokio_postgres::Error>,
    ) -> Result<(), Error> {
        let Some(session) = &mut self.session else { return Err(Error::lost(None)) };
        let answered = ignore_after(ANSWER_WITHIN, session.request(request)).await;
        self.collect();
        answered.unwrap_or(Err(Error::lost(None)))
    }

    /// Waits for a notification.
    async fn message(&mut self) -> Result<Notification, Error> {
        let Some(session) = &mut self.session else { return Err(Error::lost(None)) };
        let message = poll_fn(|cx| {
            loop {
                match session.driver.poll_message(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(AsyncMessage::Notification(it)))) => {
                        return Poll::Ready(Ok(it));
                    }
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(Some(Err(error))) => {
                        return Poll::Ready(Err(Error::from_end(error)));
                    }
                    Poll::Ready(None) => return Poll::Ready(Err(Error::lost(None))),
                }
            }
        });
        // An interruption inside the driver would end the connection.
        future_wait(shield(message)).await?
    }
}

/// Refuses a name that no server takes.
fn check(channel: &str) -> Result<(), Error> {
    match channel.is_empty() || channel.contains('\0') {
        true => Err(Error::Config(format!("a channel cannot have the name {channel:?}"))),
        false => Ok(()),
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener")
            .field("channels", &self.channels)
            .field("is_connected", &self.session.is_some())
            .finish_non_exhaustive()
    }
}
