//! Dispatches the session's events to channels, consumers and waiting tasks.

use std::rc::Rc;
use std::time::Duration;

use super::{Answer, ChannelInner, Delivery, Hub, Milestone, Publisher, Requester, State};
use crate::client::error::PublishError;
use crate::error::Error;
use crate::session::Session;
use crate::session::event::{Event, Outcome, Reply};

impl Hub {
    /// Handles all events of the session.
    pub(crate) fn dispatch(&self) {
        loop {
            let event = self.session.borrow_mut().as_mut().and_then(Session::next_event);
            let Some(event) = event else { return };
            self.handle_event(event);
        }
    }

    fn channel(&self, number: u16) -> Option<Rc<ChannelInner>> {
        self.channels.borrow().get(&number).and_then(std::rc::Weak::upgrade)
    }

    fn handle_event(&self, event: Event<Requester, Publisher>) {
        match event {
            Event::Delivered { channel: number, consumer, content } => {
                let channel = self.channel(number);
                let found =
                    channel.as_ref().and_then(|channel| channel.consumer(consumer.as_str()));
                match (channel, found) {
                    (Some(channel), Some(consumer)) if consumer.has_room() => {
                        consumer.put(Delivery::new(channel, *content, self.epoch.get()));
                    }
                    (_, Some(consumer)) => {
                        let (tag, most) = (consumer.tag.as_str(), consumer.options.prefetch);
                        let what = format!("consumer {tag} has far more deliveries than {most}");
                        self.with(|session| session.fail(Error::Protocol(what)));
                    }
                    // The consumer is gone.
                    _ if content.needs_ack => {
                        self.with(|session| session.requeue(number, content.tag));
                    }
                    _ => {}
                }
            }
            Event::Confirmed { token, outcome } => {
                let Publisher { sender, channel, .. } = token;
                let result = match outcome {
                    Outcome::Acked => Ok(self.epoch.get()),
                    Outcome::Nacked => Err(PublishError::Nacked),
                    Outcome::Returned { code, text } => Err(PublishError::Returned { code, text }),
                    Outcome::Unknown(error) => Err(PublishError::Closed { error, message: None }),
                };
                // The publisher may have dropped the future.
                let _receiver_dropped = sender.send(result);
                channel.window.wake(1);
            }
            Event::Replied { token, result } => self.handle_reply(token, result),
            Event::Recovered { channel } => {
                if let Some(channel) = self.channel(channel) {
                    channel.drop_buffered();
                }
            }
            Event::ConsumerCancelled { channel, consumer } => {
                let channel = self.channel(channel);
                if let Some(consumer) =
                    channel.and_then(|channel| channel.consumer(consumer.as_str()))
                {
                    consumer.end(Error::ConsumerCancelled);
                }
            }
            Event::ChannelClosed { channel, reason } => {
                let removed = self.channels.borrow_mut().remove(&channel);
                if let Some(channel) = removed.and_then(|channel| channel.upgrade()) {
                    channel.end(&Error::ChannelClosed(reason));
                }
            }
            Event::NumberFreed => {
                self.number_freed.wake(1);
            }
            Event::Flow => self.wake_all(),
            Event::Blocked(reason) => {
                tracing::warn!(broker = %self.address.host_and_port(), %reason, "the broker is blocked");
                self.blocked.replace(Some((reason.clone(), self.time())));
                if self.is_ready.get() {
                    self.set_state(State::Blocked { reason });
                }
                // Waiters for room in the window now have a deadline, too.
                self.wake_all();
            }
            Event::Unblocked => {
                if let Some((_, since)) = self.blocked.take() {
                    let seconds = self.time().saturating_sub(since).as_secs_f64();
                    tracing::warn!(broker = %self.address.host_and_port(), seconds, "the broker takes messages again");
                }
                if self.is_ready.get() {
                    self.set_state(State::Open);
                }
                self.wake_all();
            }
            Event::Opened => {
                self.set_milestone(Milestone::Opened);
                // Heartbeats start now.
                self.timer.wake(1);
            }
            Event::Ended(why) => self.set_milestone(Milestone::Ended(why)),
        }
    }

    fn handle_reply(&self, requester: Requester, result: Result<Reply, Error>) {
        let channel = requester.channel.and_then(|channel| channel.upgrade());
        let answer = result.map(|reply| match (reply, channel) {
            (Reply::Queue(queue), _) => Answer::Queue(queue),
            (Reply::Count(count), _) => Answer::Count(count),
            (Reply::Got(Some(content)), Some(channel)) => {
                Answer::Got(Some(Box::new(Delivery::new(channel, *content, self.epoch.get()))))
            }
            (Reply::Got(_), _) => Answer::Got(None),
            (Reply::Rejected, _) => Answer::Rejected,
            (Reply::Done, _) => Answer::Done,
        });
        if let Some(sender) = requester.sender {
            // An unclaimed answer is dropped, and a message in it is requeued.
            let _receiver_dropped = sender.send(answer);
        }
    }

    /// Drops the session of a lost connection: requests fail, unconfirmed messages are retained,
    /// and deliveries become stale.
    pub(crate) fn drop_session(&self) {
        self.is_ready.set(false);
        self.blocked.replace(None);
        let session = self.session.borrow_mut().take();
        for channel in self.live_channels() {
            channel.detach();
        }
        // The next session reuses the numbers.
        self.channels.borrow_mut().clear();
        let Some(mut session) = session else { return };
        // The last confirms and replies still count.
        while let Some(event) = session.next_event() {
            if matches!(event, Event::Confirmed { .. } | Event::Replied { .. }) {
                self.handle_event(event);
            }
        }
        self.epoch.set(self.epoch.get() + 1);
        let unanswered = session.take_unanswered();
        // Dropping the senders fails the requests.
        drop(unanswered.requests);
        for (_, message, mut publisher) in unanswered.unconfirmed {
            publisher.lost_at.get_or_insert(self.time());
            match self.options.republish {
                true => self.retained.borrow_mut().push((message, publisher)),
                false => drop(publisher.sender.send(Err(PublishError::Uncertain))),
            }
        }
        self.wake_all();
    }

    /// Fails all messages that were sent and not confirmed.
    pub(crate) fn abandon_unconfirmed(&self, error: &PublishError) {
        self.abandon_sent(error);
        for (_, publisher) in self.retained.take() {
            let _receiver_dropped = publisher.sender.send(Err(error.clone()));
        }
    }

    /// Fails the unconfirmed messages of this connection.
    pub(crate) fn abandon_sent(&self, error: &PublishError) {
        let sent = self.with(|session| session.abandon_unconfirmed()).unwrap_or_default();
        for publisher in sent {
            let _receiver_dropped = publisher.sender.send(Err(error.clone()));
        }
    }

    /// Fails retained messages whose first connection was lost `blocked_deadline` ago. They may
    /// have been sent again since, over connections that were lost as well.
    pub(crate) fn abandon_lost(&self) {
        let (now, limit) = (self.time(), self.options.blocked_deadline);
        let is_old = |at: Duration| now.saturating_sub(at) >= limit;
        let (expired, kept): (Vec<_>, _) = self
            .retained
            .take()
            .into_iter()
            .partition(|(_, publisher)| publisher.lost_at.is_some_and(is_old));
        self.retained.replace(kept);
        for (_, publisher) in expired {
            let _receiver_dropped = publisher.sender.send(Err(PublishError::Uncertain));
        }
    }

    /// Closes the connection for good: fails all waits, and ends all channels.
    pub(crate) fn finish(&self, error: Error) {
        self.drop_session();
        let closed = PublishError::Closed { error: error.clone(), message: None };
        self.abandon_unconfirmed(&closed);
        for channel in self.live_channels() {
            channel.end(&error);
        }
        self.channels.borrow_mut().clear();
        self.set_state(State::Closed(error));
        self.wake_all();
    }
}
