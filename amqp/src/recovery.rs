//! Makes everything on a new connection what it was on the one before.
//!
//! First what was declared, over a channel of its own, since what cannot be declared any more costs
//! its channel. Then each channel: confirms, limits, consumers, and the messages that were not
//! confirmed, before any new ones.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use amq_protocol::protocol::AMQPClass;
use pikake_sync::oneshot;
use pikake_traps::{park, sleep, timeout_after};

use crate::channel::ChannelInner;
use crate::error::Error;
use crate::hub::{Answer, Asker, Hub};

/// An exclusive queue may still belong to the connection that was lost, until the broker notices.
const LOCKED: u16 = 405;
/// How often, and after which waits, such a queue is asked for again.
const LOCKED_TRIES: u32 = 20;
const LOCKED_WAIT: Duration = Duration::from_millis(250);

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
                    let closed = crate::PublishError::Closed { error, message: None };
                    let _told = publisher.sender.send(Err(closed));
                }
                None => {}
            }
        }
        Ok(())
    }

    async fn recover_topology(&self) -> Result<(), Error> {
        let requests = self.topology.borrow().requests();
        let mut scratch = None;
        for request in requests {
            for attempt in 1.. {
                let number = match scratch {
                    Some(number) => number,
                    None => *scratch.insert(self.open_number().await?),
                };
                match self.ask(number, request.clone()).await {
                    Ok(_) => break,
                    Err(Error::ChannelClosed(why))
                        if why.code == LOCKED && attempt < LOCKED_TRIES =>
                    {
                        scratch = None;
                        sleep(LOCKED_WAIT).await?;
                    }
                    Err(error @ (Error::ChannelClosed(_) | Error::Invalid(_))) => {
                        tracing::warn!(%error, "could not be declared again");
                        scratch = None;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if let Some(number) = scratch {
            self.with(|session| session.close_channel(number, Asker::NOBODY).is_ok());
        }
        Ok(())
    }

    async fn recover_channel(&self, channel: &Rc<ChannelInner>) -> Result<(), Error> {
        let number = self.open_number().await?;
        channel.number.set(number);
        self.channels.borrow_mut().insert(number, Rc::downgrade(channel));
        if channel.confirms {
            self.with(|session| session.expect_confirms(number));
        }
        for request in channel.settings() {
            self.ask(number, request).await?;
        }
        let consumers = channel.consumers.borrow().clone();
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
