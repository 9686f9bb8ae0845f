//! The supervisor of a connection: connects, waits for the end, and reconnects.
//!
//! ```text
//!   Connecting ─1─▶ Open ◀─────────5────────┐
//!       │          4│ ▲└──────2──────▶ Recovering
//!       │           ▼ │4                    │
//!       │         Blocked ─────────2────────┤
//!       └──3──▶ Closed ◀──────────3─────────┘
//! ```
//!
//! 1 the handshake is complete (`connect`), 2 the connection was lost (`connect_until_closed`), 3
//! the connection is closed, or must not reconnect (`Hub::finish`), 4 the broker sent
//! connection.blocked or unblocked (`dispatch`), 5 recovery is complete (`recover`).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_traps::{ignore_after, park, random, sleep, timeout_after};

use crate::client::error::PublishError;
use crate::client::hub::{Hub, Milestone, State};
use crate::client::link::Link;
use crate::client::outage::Outage;
use crate::client::stream::Stream;
use crate::error::Error;
use crate::message::short;
use crate::session::Session;
use crate::session::event::Ended;
use crate::session::handshake::{HandshakeConfig, Limits, Password};

/// A connection that is lost sooner counts as a failed attempt. Otherwise the client would
/// reconnect without a wait, again and again.
const STEADY: Duration = Duration::from_secs(1);
/// The time limit for the reply to connection.close.
const CLOSE_OK_WAIT: Duration = Duration::from_secs(3);

/// Runs the connection until it is closed.
pub(crate) async fn supervise(hub: Rc<Hub>) {
    let end = connect_until_closed(&hub).await;
    hub.finish(end);
}

async fn connect_until_closed(hub: &Rc<Hub>) -> Error {
    let mut failed = 0;
    // Connections in a row that were lost before `STEADY`.
    let mut short_lived = 0;
    let mut was_open = false;
    let mut outage = None;
    loop {
        let outcome = async {
            let link = connect(hub).await?;
            unless_closed(hub, hub.recover()).await?;
            Ok::<_, Error>(link)
        };
        let error = match outcome.await {
            Ok(link) => {
                (failed, was_open) = (0, true);
                enter_open(hub);
                let opened = hub.time();
                let end = steady_connection(hub, &mut outage).await;
                let was_steady = hub.time().saturating_sub(opened) >= STEADY;
                short_lived = if was_steady { 0 } else { short_lived + 1 };
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
        outage.get_or_insert_with(|| Outage::begin(hub.time())).note(
            &hub.address.host_and_port(),
            hub.time(),
            u32::from(failed > 0),
            &error,
        );
        if was_open {
            hub.set_state(State::Recovering { attempt: failed + 1 });
        }
        hub.abandon_lost();
        let fails = failed + short_lived;
        if fails > 0 {
            let _closed = ignore_after(backoff.wait(fails, random::f64()), until_closed(hub)).await;
        }
        if hub.close_requested.get() {
            return Error::Closed;
        }
    }
}

fn enter_open(hub: &Hub) {
    hub.is_ready.set(true);
    let blocked = hub.blocked.borrow().as_ref().map(|(reason, _)| reason.clone());
    hub.set_state(match blocked {
        Some(reason) => State::Blocked { reason },
        None => State::Open,
    });
    hub.wake_all();
}

/// Connects, and waits for the end of the handshake.
async fn connect(hub: &Rc<Hub>) -> Result<Link, Error> {
    let failed = |source| hub.address.connect_error(source);
    let making = async {
        let stream = Stream::connect(&hub.address, hub.options.connect_timeout).await?;
        hub.milestone.take();
        let session = Session::new(handshake_config(hub)?, hub.time());
        hub.session.replace(Some(session));
        let link = Link::start(hub, stream);
        match milestone(hub).await? {
            Milestone::Opened => Ok(link),
            Milestone::Lost(why) => Err(failed(std::io::Error::new(
                std::io::ErrorKind::ConnectionAborted,
                format!("in the handshake: {why}"),
            ))),
            Milestone::Ended(Ended::ByBroker { reason, .. }) => {
                Err(Error::Refused { address: hub.address.host_and_port(), reason })
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

/// Runs `work` until the close of the connection is requested: a silent peer must not delay a
/// close.
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

fn handshake_config(hub: &Hub) -> Result<HandshakeConfig, Error> {
    let options = &hub.options;
    Ok(HandshakeConfig {
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

/// Waits for the next milestone; an error if the close of the connection is requested first.
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

/// Waits for the end of a connection that was made, as [`end_of_connection`]. The outage before it
/// ends after [`STEADY`].
async fn steady_connection(hub: &Hub, outage: &mut Option<Outage>) -> Result<Error, Error> {
    let mut ending = pin!(end_of_connection(hub));
    let mut steady = pin!(sleep(STEADY));
    poll_fn(|cx| {
        let ended = ending.as_mut().poll(cx);
        if ended.is_pending()
            && outage.is_some()
            && steady.as_mut().poll(cx).is_ready()
            && let Some(outage) = outage.take()
        {
            outage.end(&hub.address.host_and_port(), hub.time());
        }
        ended
    })
    .await
}

/// Waits for the end of the connection, or closes it. `Ok` has an error after which the client
/// retries.
async fn end_of_connection(hub: &Hub) -> Result<Error, Error> {
    let end = match milestone(hub).await {
        Ok(end) => end,
        Err(_) => {
            hub.with(|session| session.close());
            let answered = async {
                // Checks no close request, since this is the close.
                while hub.milestone.take().is_none() {
                    if park(&hub.supervisor).await.is_err() {
                        return;
                    }
                }
            };
            let _in_time = ignore_after(CLOSE_OK_WAIT, answered).await;
            return Err(Error::Closed);
        }
    };
    match end {
        Milestone::Opened => Err(Error::Protocol("a second handshake".to_owned())),
        Milestone::Lost(why) => Ok(Error::ConnectionLost(why)),
        Milestone::Ended(Ended::Silent) => {
            Ok(Error::ConnectionLost("no input from the broker for two heartbeats".to_owned()))
        }
        Milestone::Ended(Ended::Protocol(error)) => Ok(error),
        Milestone::Ended(Ended::ByUs) => Err(Error::Closed),
        Milestone::Ended(Ended::ByBroker { reason, is_blamed }) => {
            if reason.is_internal() {
                // One of the sent messages may be the cause, and would be again after a resend.
                let error = Error::ConnectionClosed(reason.clone());
                hub.abandon_sent(&PublishError::Closed { error, message: None });
            }
            match is_blamed || reason.is_transient() {
                true => Ok(Error::ConnectionLost(reason.to_string())),
                false => Err(Error::ConnectionClosed(reason)),
            }
        }
    }
}
