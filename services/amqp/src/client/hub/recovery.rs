//! Makes everything on a new connection what it was on the one before.
//!
//! First what was declared, over a channel of its own, since what cannot be declared any more costs
//! its channel. Then each channel: confirms, limits, consumers (those of answers first), and the
//! messages that were not confirmed, before any new ones.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use amq_protocol::protocol::AMQPClass;
use pikake_sync::oneshot;
use pikake_traps::{park, sleep, timeout_after};

use super::{Answer, Asker, ChannelInner, Hub, Milestone};
use crate::client::error::PublishError;
use crate::error::{CloseReason, Error};
use crate::message::REPLY_TO;
use crate::session::event::Ended;

/// An exclusive queue may still belong to the connection that was lost, until the broker notices.
const LOCKED: u16 = 405;
/// How often, and after which waits, such a queue is asked for again.
const LOCKED_TRIES: u32 = 20;
const LOCKED_WAIT: Duration = Duration::from_millis(250);

/// So many channels, at most, declare side by side,
const LANES: usize = 16;
/// and each of them so much, before there is another.
const LANE_SHARE: usize = 8;

/// What is declared side by side.
struct Stage {
    requests: RefCell<std::vec::IntoIter<AMQPClass>>,
    /// Those of them that were under way when the broker closed the connection for one of them.
    blamed: RefCell<Vec<AMQPClass>>,
}

/// Waits for all of them, or for the first error.
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
    /// Makes everything what it was before. An error is one of the connection.
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
            lost.map(|_| Err(Error::ConnectionLost("while it was being recovered".to_owned())))
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
                    let _told = publisher.sender.send(Err(closed));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Declares again what was declared, over a few channels at a time: what a queue needs that delays is
    /// more than a hundred round trips one after the other.
    ///
    /// What costs the connection would cost the next one as well, so it is forgotten. If it may have been
    /// one of several, they are declared one after the other next time.
    async fn recover_topology(&self) -> Result<(), Error> {
        let stages = self.topology.borrow().stages();
        let lanes = [const { Cell::new(None) }; LANES];
        let most = if self.is_careful.get() { 1 } else { LANES };
        for stage in stages {
            let count = stage.len().div_ceil(LANE_SHARE).min(most);
            let requests = RefCell::new(stage.into_iter());
            let stage = Stage { requests, blamed: RefCell::default() };
            let lanes = lanes[..count].iter().enumerate();
            let done = all(lanes.map(|(n, lane)| self.recover_some(&stage, lane, n > 0))).await;
            match &*stage.blamed.take() {
                [] => {}
                [one] => {
                    tracing::warn!(?one, "it costs the connection, and is not declared any more");
                    self.topology.borrow_mut().remove(one);
                }
                _ => self.is_careful.set(true),
            }
            done?;
        }
        self.is_careful.set(false);
        let open = lanes.iter().filter_map(Cell::take);
        all(open.map(|number| self.close_number(number))).await
    }

    /// Makes one request after the other, as long as there are any. One of the lanes has to, `may_fail`
    /// the others: there may be no more channels.
    async fn recover_some(
        &self,
        stage: &Stage,
        lane: &Cell<Option<u16>>,
        may_fail: bool,
    ) -> Result<(), Error> {
        if lane.get().is_none() {
            match self.open_number().await {
                Ok(number) => lane.set(Some(number)),
                Err(Error::Invalid(_)) if may_fail => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        loop {
            let Some(request) = stage.requests.borrow_mut().next() else { return Ok(()) };
            self.recover_one(request, lane, &stage.blamed).await?;
        }
    }

    async fn recover_one(
        &self,
        request: AMQPClass,
        lane: &Cell<Option<u16>>,
        blamed: &RefCell<Vec<AMQPClass>>,
    ) -> Result<(), Error> {
        for attempt in 1.. {
            let number = match lane.get() {
                Some(number) => number,
                None => self.open_number().await?,
            };
            lane.set(Some(number));
            match self.ask(number, request.clone()).await {
                Ok(_) => break,
                Err(Error::ChannelClosed(why)) if self.was_closed_for(&why) => {
                    blamed.borrow_mut().push(request);
                    return Err(Error::ConnectionLost(why.to_string()));
                }
                Err(Error::ChannelClosed(why)) if why.code == LOCKED && attempt < LOCKED_TRIES => {
                    lane.set(None);
                    sleep(LOCKED_WAIT).await?;
                }
                Err(error @ (Error::ChannelClosed(_) | Error::Invalid(_))) => {
                    tracing::warn!(%error, "could not be declared again");
                    lane.set(None);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether a channel's end was the connection's, and would be again.
    fn was_closed_for(&self, why: &CloseReason) -> bool {
        let milestone = self.milestone.borrow();
        let Some(Milestone::Ended(Ended::ByBroker { reason, .. })) = &*milestone else {
            return false;
        };
        reason == why && !why.is_passing()
    }

    /// Closes a channel, and waits until its number is free.
    async fn close_number(&self, number: u16) -> Result<(), Error> {
        let (sender, receiver) = oneshot::channel();
        let asker = Asker { sender: Some(sender), channel: None };
        let asked = self.with(|session| session.close_channel(number, asker));
        asked.ok_or(Error::Closed)?.map_err(|(error, _)| error)?;
        self.soon(receiver).await.map(drop)
    }

    async fn recover_channel(&self, channel: &Rc<ChannelInner>) -> Result<(), Error> {
        let number = self.open_number().await?;
        if channel.has_ended() {
            self.with(|session| session.close_channel(number, Asker::NOBODY).is_ok());
            return Ok(());
        }
        channel.number.set(number);
        self.channels.borrow_mut().insert(number, Rc::downgrade(channel));
        if channel.confirms {
            self.with(|session| session.expect_confirms(number));
        }
        for request in channel.settings() {
            self.ask(number, request).await?;
            // Whoever closed it meanwhile has told the broker.
            if channel.has_ended() {
                return Ok(());
            }
        }
        let mut consumers = channel.consumers.borrow().clone();
        // What is published as soon as this is done must not overtake the consumer of its answers. Of
        // all that are asked for, only the first is sent at once.
        consumers.sort_by_key(|consumer| {
            consumer.upgrade().is_none_or(|consumer| consumer.queue.as_str() != REPLY_TO)
        });
        for consumer in consumers {
            // One that has gone meanwhile must not be asked for: nobody would end it.
            let Some(consumer) = consumer.upgrade().filter(|consumer| !consumer.has_ended()) else {
                continue;
            };
            if let Some(limit) = channel.limit(&consumer) {
                self.with(|session| session.request(number, limit, Asker::NOBODY).is_ok());
            }
            // Not waited for: one queue that has trouble must not keep the others waiting. If it is
            // refused, the channel is closed.
            self.with(|session| session.request(number, consumer.request(), Asker::NOBODY).is_ok());
        }
        Ok(())
    }

    async fn open_number(&self) -> Result<u16, Error> {
        let (sender, receiver) = oneshot::channel();
        let asker = Asker { sender: Some(sender), channel: None };
        let opened = self.with(|session| session.open_channel(asker));
        let number = opened.ok_or(Error::Closed)?.map_err(|(error, _)| error)?;
        self.soon(receiver).await?;
        Ok(number)
    }

    async fn ask(&self, number: u16, method: AMQPClass) -> Result<Answer, Error> {
        let (sender, receiver) = oneshot::channel();
        let asker = Asker { sender: Some(sender), channel: None };
        let asked = self.with(|session| session.request(number, method, asker));
        asked.ok_or(Error::Closed)?.map_err(|(error, _)| error)?;
        self.soon(receiver).await
    }

    async fn soon(
        &self,
        receiver: oneshot::Receiver<Result<Answer, Error>>,
    ) -> Result<Answer, Error> {
        match timeout_after(self.options.connect_timeout, receiver).await {
            Ok(Ok(answer)) => answer,
            _ => Err(Error::ConnectionLost("while it was being recovered".to_owned())),
        }
    }
}
