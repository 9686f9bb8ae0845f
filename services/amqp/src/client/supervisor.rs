//! Keeps a connection up: connects, waits for its end, and connects again.
//!
//! ```text
//!   Connecting ─1─▶ Open ◀─────────5────────┐
//!       │          4│ ▲└──────2──────▶ Recovering
//!       │           ▼ │4                    │
//!       │         Blocked ─────────2────────┤
//!       └──3──▶ Closed ◀──────────3─────────┘
//! ```
//!
//! 1 the handshake is over (`connect`), 2 the connection was lost (`supervise`), 3 it is closed, or
//! not to be made again (`Hub::finish`), 4 the broker says so (`dispatch`), 5 everything is as it
//! was before (`recover`).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_traps::{ignore_after, park, random, timeout_after};

use crate::client::error::PublishError;
use crate::client::hub::{Hub, Milestone, State};
use crate::client::link::Link;
use crate::client::stream::Stream;
use crate::error::Error;
use crate::message::short;
use crate::session::Session;
use crate::session::event::Ended;
use crate::session::handshake::{Greeter, Limits, Password};

/// A connection that was lost sooner counts as another attempt that failed: it would be made, and lost,
/// again and again without a wait.
const STEADY: Duration = Duration::from_secs(1);
/// How long the broker has to answer a farewell.
const FAREWELL: Duration = Duration::from_secs(3);

/// Keeps the connection up until it is closed.
pub(crate) async fn supervise(hub: Rc<Hub>) {
    let end = keep_up(&hub).await;
    hub.finish(end);
}

async fn keep_up(hub: &Rc<Hub>) -> Error {
    let mut failed = 0;
    // Of those that came about and were lost at once.
    let mut cut_short = 0;
    let mut was_open = false;
    loop {
        let outcome = async {
            let link = connect(hub).await?;
            unless_closed(hub, hub.recover()).await?;
            Ok::<_, Error>(link)
        };
        let error = match outcome.await {
            Ok(link) => {
                (failed, was_open) = (0, true);
                open_up(hub);
                let opened = hub.time();
                let end = end_of_connection(hub).await;
                let was_steady = hub.time().saturating_sub(opened) >= STEADY;
                cut_short = if was_steady { 0 } else { cut_short + 1 };
                drop(link);
                if hub.close_requested.get() {
                    return Error::Closed;
                }
                match end {
                    Ok(lost) => lost,
                    Err(for_good) => return for_good,
                }
            }
            Err(_) if hub.close_requested.get() => return Error::Closed,
            Err(error) => {
                failed += 1;
                error
            }
        };
        hub.drop_session();
        let is_hopeless = matches!(error, Error::Invalid(_));
        let may_retry = was_open || hub.options.keep_trying && !is_hopeless;
        let Some(backoff) = hub.options.reconnect.filter(|_| may_retry) else { return error };
        tracing::warn!(broker = %hub.address.place(), failed, %error, "no connection");
        if was_open {
            hub.set_state(State::Recovering { attempt: failed + 1 });
        }
        hub.abandon_lost();
        let waits = failed + cut_short;
        if waits > 0 {
            let _closed = ignore_after(backoff.wait(waits, random::f64()), until_closed(hub)).await;
        }
        if hub.close_requested.get() {
            return Error::Closed;
        }
    }
}

fn open_up(hub: &Hub) {
    hub.is_ready.set(true);
    let blocked = hub.blocked.borrow().as_ref().map(|(reason, _)| reason.clone());
    hub.set_state(match blocked {
        Some(reason) => State::Blocked { reason },
        None => State::Open,
    });
    hub.wake_all();
}

/// Makes a connection, up to the end of the handshake.
async fn connect(hub: &Rc<Hub>) -> Result<Link, Error> {
    let failed = |source| hub.address.no_connection(source);
    let making = async {
        let stream = Stream::connect(&hub.address, hub.options.connect_timeout).await?;
        hub.milestone.take();
        let session = Session::new(greeter(hub)?, hub.time());
        hub.session.replace(Some(session));
        let link = Link::start(hub, stream);
        match milestone(hub).await? {
            Milestone::Opened => Ok(link),
            Milestone::Lost(why) => Err(failed(std::io::Error::new(
                std::io::ErrorKind::ConnectionAborted,
                format!("in the handshake: {why}"),
            ))),
            Milestone::Ended(Ended::ByBroker { reason, .. }) => {
                Err(Error::Refused { address: hub.address.place(), reason })
            }
            Milestone::Ended(Ended::Protocol(error)) => Err(error),
            Milestone::Ended(Ended::ByUs | Ended::Silent) => Err(Error::Closed),
        }
    };
    let limit = hub.options.connect_timeout;
    let making = unless_closed(hub, making);
    timeout_after(limit, making).await.unwrap_or_else(|_| {
        let what = format!("no connection and handshake within {limit:?}");
        Err(failed(std::io::Error::new(std::io::ErrorKind::TimedOut, what)))
    })
}

async fn until_closed(hub: &Hub) {
    while !hub.close_requested.get() && park(&hub.supervisor).await.is_ok() {}
}

/// A peer that does not answer, in the middle of a handshake or later, keeps nobody who wants to go.
async fn unless_closed<T>(
    hub: &Hub,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let (mut work, mut closing) = (pin!(work), pin!(until_closed(hub)));
    poll_fn(|cx| match closing.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Err(Error::Closed)),
        Poll::Pending => work.as_mut().poll(cx),
    })
    .await
}

fn greeter(hub: &Hub) -> Result<Greeter, Error> {
    let options = &hub.options;
    Ok(Greeter {
        is_external: hub.address.query().is_external,
        user: hub.address.user().to_owned(),
        password: Password(hub.address.password().to_owned()),
        vhost: short(hub.address.vhost())?,
        name: options.name.clone(),
        wanted: Limits {
            frame_max: options.frame_max as usize,
            channel_max: options.channel_max,
            heartbeat: options.heartbeat,
        },
    })
}

/// What happens next; an error if the connection is to be closed before.
async fn milestone(hub: &Hub) -> Result<Milestone, Error> {
    loop {
        if let Some(milestone) = hub.milestone.take() {
            return Ok(milestone);
        }
        if hub.close_requested.get() {
            return Err(Error::Closed);
        }
        park(&hub.supervisor).await?;
    }
}

/// Waits until the connection ends, or ends it. An inner error is worth another attempt.
async fn end_of_connection(hub: &Hub) -> Result<Error, Error> {
    let end = match milestone(hub).await {
        Ok(end) => end,
        Err(_) => {
            hub.with(|session| session.close());
            let answered = async {
                // Not a close that was asked for: it is what is going on.
                while hub.milestone.take().is_none() {
                    if park(&hub.supervisor).await.is_err() {
                        return;
                    }
                }
            };
            let _in_time = ignore_after(FAREWELL, answered).await;
            return Err(Error::Closed);
        }
    };
    match end {
        Milestone::Opened => Err(Error::Protocol("the handshake came twice".to_owned())),
        Milestone::Lost(why) => Ok(Error::ConnectionLost(why)),
        Milestone::Ended(Ended::Silent) => Ok(Error::ConnectionLost(
            "the broker has given no sign of life for two heartbeats".to_owned(),
        )),
        Milestone::Ended(Ended::Protocol(error)) => Ok(error),
        Milestone::Ended(Ended::ByUs) => Err(Error::Closed),
        Milestone::Ended(Ended::ByBroker { reason, is_blamed }) => {
            if reason.is_internal() {
                // One of them may be the cause, and would be again.
                let error = Error::ConnectionClosed(reason.clone());
                hub.abandon_sent(&PublishError::Closed { error, message: None });
            }
            match is_blamed || reason.is_passing() {
                true => Ok(Error::ConnectionLost(reason.to_string())),
                false => Err(Error::ConnectionClosed(reason)),
            }
        }
    }
}
