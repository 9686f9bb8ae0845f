//! Restores topology, channels and messages on a new connection.
//!
//! Declarations come first, over extra channels, since the broker closes the channel of a failed
//! one. Then each channel: confirm mode, prefetch, consumers (those of direct replies first).
//! Unconfirmed messages are sent again last, before any new ones.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use amq_protocol::protocol::AMQPClass;
use pikake_sync::oneshot;
use pikake_traps::{park, sleep, timeout_after};

use super::{Answer, ChannelInner, Hub, Milestone, Requester};
use crate::client::error::PublishError;
use crate::error::{CloseReason, Error};
use crate::message::REPLY_TO;
use crate::session::event::Ended;

/// RESOURCE_LOCKED: the lost connection owns an exclusive queue until the broker notices the loss.
const LOCKED: u16 = 405;
/// The number of attempts to declare a locked queue.
const LOCKED_TRIES: u32 = 20;
/// The wait between two such attempts.
const LOCKED_WAIT: Duration = Duration::from_millis(250);

/// The largest number of lanes: channels that declare concurrently.
const LANES: usize = 16;
/// The number of declarations per lane, up to the largest number of lanes.
const LANE_SHARE: usize = 8;

/// Declarations that do not depend on each other.
struct Stage {
    requests: RefCell<std::vec::IntoIter<AMQPClass>>,
    /// The requests that were pending when the broker closed the connection because of one.
    blamed: RefCell<Vec<AMQPClass>>,
}

/// Waits for all futures, or for the first error.
async fn all(
    futures: impl Iterator<Item: Future<Output = Result<(), Error>>>,
) -> Result<(), Error> {
    let mut running: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|cx| {
        let mut failed = None;
        running.retain_mut(|future| match future.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(done) => {
                failed = failed.take().or(done.err());
                false
            }
        });
        match (failed, running.is_empty()) {
            (Some(error), _) => Poll::Ready(Err(error)),
            (None, true) => Poll::Ready(Ok(())),
            (None, false) => Poll::Pending,
        }
    })
    .await
}

impl Hub {
    /// Restores everything. An error is one of the connection.
    pub(crate) async fn recover(self: &Rc<Self>) -> Result<(), Error> {
        let mut body = pin!(self.recover_all());
        let mut lost = pin!(async {
            while self.milestone.borrow().is_none() {
                park(&self.supervisor).await?;
            }
            Ok::<(), Error>(())
        });
        poll_fn(|cx| {
            if let Poll::Ready(result) = body.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            let lost = lost.as_mut().poll(cx);
            lost.map(|_| Err(Error::ConnectionLost("during recovery".to_owned())))
        })
        .await
    }

    async fn recover_all(self: &Rc<Self>) -> Result<(), Error> {
        self.recover_topology().await?;
        let channels = self.live_channels();
        for channel in &channels {
            match self.recover_channel(channel).await {
                Ok(()) => {}
                Err(error @ (Error::ChannelClosed(_) | Error::Invalid(_))) => {
                    tracing::warn!(%error, "a channel could not be recovered");
                    channel.end(&error);
                }
                Err(error) => return Err(error),
            }
        }
        for (message, publisher) in self.retained.take() {
            let channel = publisher.channel.clone();
            let number = channel.number.get();
            let published = self.with(|session| session.publish(number, message, publisher));
            match published {
                Some(Ok(_)) => {}
                Some(Err((error, _, publisher))) => {
                    let error = channel.closed().unwrap_or(error);
                    let closed = PublishError::Closed { error, message: None };
                    let _receiver_dropped = publisher.sender.send(Err(closed));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Repeats all declarations, over several lanes. One queue with delays alone needs more than a
    /// hundred, each of them a round trip.
    ///
    /// A declaration that makes the broker close the connection is dropped, since it would do so
    /// again. If several were pending, the next recovery declares one by one.
    async fn recover_topology(&self) -> Result<(), Error> {
        let stages = self.topology.borrow().stages();
        let lanes = [const { Cell::new(None) }; LANES];
        let most = if self.declares_one_by_one.get() { 1 } else { LANES };
        for stage in stages {
            let count = stage.len().div_ceil(LANE_SHARE).min(most);
            let requests = RefCell::new(stage.into_iter());
            let stage = Stage { requests, blamed: RefCell::default() };
            let lanes = lanes[..count].iter().enumerate();
            let done = all(lanes.map(|(n, lane)| self.redeclare_from(&stage, lane, n > 0))).await;
            match &*stage.blamed.take() {
                [] => {}
                [one] => {
                    tracing::warn!(?one, "dropped a declaration that closes the connection");
                    self.topology.borrow_mut().remove(one);
                }
                _ => self.declares_one_by_one.set(true),
            }
            done?;
        }
        self.declares_one_by_one.set(false);
        let open = lanes.iter().filter_map(Cell::take);
        all(open.map(|number| self.close_channel_number(number))).await
    }

    /// Sends the requests of a stage one by one, until none is left. Only the first lane fails if
    /// all channels are in use; the others `may_fail`.
    async fn redeclare_from(
        &self,
        stage: &Stage,
        lane: &Cell<Option<u16>>,
        may_fail: bool,
    ) -> Result<(), Error> {
        if lane.get().is_none() {
            match self.open_channel_number().await {
                Ok(number) => lane.set(Some(number)),
                Err(Error::Invalid(_)) if may_fail => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        loop {
            let Some(request) = stage.requests.borrow_mut().next() else { return Ok(()) };
            self.redeclare(request, lane, &stage.blamed).await?;
        }
    }

    async fn redeclare(
        &self,
        request: AMQPClass,
        lane: &Cell<Option<u16>>,
        blamed: &RefCell<Vec<AMQPClass>>,
    ) -> Result<(), Error> {
        for attempt in 1.. {
            let number = match lane.get() {
                Some(number) => number,
                None => self.open_channel_number().await?,
            };
            lane.set(Some(number));
            match self.ask(number, request.clone()).await {
                Ok(_) => break,
                Err(Error::ChannelClosed(why)) if self.closed_connection_for_good(&why) => {
                    blamed.borrow_mut().push(request);
                    return Err(Error::ConnectionLost(why.to_string()));
                }
                Err(Error::ChannelClosed(why)) if why.code == LOCKED && attempt < LOCKED_TRIES => {
                    lane.set(None);
                    sleep(LOCKED_WAIT).await?;
                }
                Err(error @ (Error::ChannelClosed(_) | Error::Invalid(_))) => {
                    tracing::warn!(%error, "a declaration could not be repeated");
                    lane.set(None);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the error that ended a channel closed the connection, and would do so again.
    fn closed_connection_for_good(&self, why: &CloseReason) -> bool {
        let milestone = self.milestone.borrow();
        let Some(Milestone::Ended(Ended::ByBroker { reason, .. })) = &*milestone else {
            return false;
        };
        reason == why && !why.is_transient()
    }

    /// Closes a channel, and waits until its number is free.
    async fn close_channel_number(&self, number: u16) -> Result<(), Error> {
        let (sender, receiver) = oneshot::channel();
        let requester = Requester { sender: Some(sender), channel: None };
        let asked = self.with(|session| session.close_channel(number, requester));
        asked.ok_or(Error::Closed)?.map_err(|(error, _)| error)?;
        self.answer_in_recovery(receiver).await.map(drop)
    }

    async fn recover_channel(&self, channel: &Rc<ChannelInner>) -> Result<(), Error> {
        let number = self.open_channel_number().await?;
        if channel.has_ended() {
            self.with(|session| session.close_channel(number, Requester::NONE).is_ok());
            return Ok(());
        }
        channel.number.set(number);
        self.channels.borrow_mut().insert(number, Rc::downgrade(channel));
        if channel.confirms {
            self.with(|session| session.enable_confirms(number));
        }
        for request in channel.settings() {
            self.ask(number, request).await?;
            // A close during the wait has sent its own channel.close.
            if channel.has_ended() {
                return Ok(());
            }
        }
        let mut consumers = channel.consumers.borrow().clone();
        // A message published after recovery must not overtake the consumer of its replies. Only
        // the first of these requests is sent at once.
        consumers.sort_by_key(|consumer| {
            consumer.upgrade().is_none_or(|consumer| consumer.queue.as_str() != REPLY_TO)
        });
        for consumer in consumers {
            // A consumer that has ended must not be restored: its cancel was already sent.
            let Some(consumer) = consumer.upgrade().filter(|consumer| !consumer.has_ended()) else {
                continue;
            };
            if let Some(limit) = channel.prefetch_request(&consumer) {
                self.with(|session| session.request(number, limit, Requester::NONE).is_ok());
            }
            // Not awaited: one slow queue must not delay the others. If the broker refuses, it
            // closes the channel.
            self.with(|session| {
                session.request(number, consumer.request(), Requester::NONE).is_ok()
            });
        }
        Ok(())
    }

    async fn open_channel_number(&self) -> Result<u16, Error> {
        let (sender, receiver) = oneshot::channel();
        let requester = Requester { sender: Some(sender), channel: None };
        let opened = self.with(|session| session.open_channel(requester));
        let number = opened.ok_or(Error::Closed)?.map_err(|(error, _)| error)?;
        self.answer_in_recovery(receiver).await?;
        Ok(number)
    }

    async fn ask(&self, number: u16, method: AMQPClass) -> Result<Answer, Error> {
        let (sender, receiver) = oneshot::channel();
        let requester = Requester { sender: Some(sender), channel: None };
        let asked = self.with(|session| session.request(number, method, requester));
        asked.ok_or(Error::Closed)?.map_err(|(error, _)| error)?;
        self.answer_in_recovery(receiver).await
    }

    async fn answer_in_recovery(
        &self,
        receiver: oneshot::Receiver<Result<Answer, Error>>,
    ) -> Result<Answer, Error> {
        match timeout_after(self.options.connect_timeout, receiver).await {
            Ok(Ok(Ok(answer))) => answer,
            _ => Err(Error::ConnectionLost("during recovery".to_owned())),
        }
    }
}
