//! Hands the session's events to whom they concern.

use std::rc::Rc;
use std::time::Duration;

use super::{Answer, Asker, ChannelInner, Delivery, Hub, Milestone, Publisher, State};
use crate::client::error::PublishError;
use crate::error::Error;
use crate::session::Session;
use crate::session::event::{Event, Outcome, Reply};

impl Hub {
    /// Hands out all that has happened.
    pub(crate) fn dispatch(&self) {
        loop {
            let event = self.session.borrow_mut().as_mut().and_then(Session::next_event);
            let Some(event) = event else { return };
            self.tell(event);
        }
    }

    fn channel(&self, number: u16) -> Option<Rc<ChannelInner>> {
        self.channels.borrow().get(&number).and_then(std::rc::Weak::upgrade)
    }

    fn tell(&self, event: Event<Asker, Publisher>) {
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
                        let what = format!("far more deliveries than the {most} of consumer {tag}");
                        self.with(|session| session.fail(Error::Protocol(what)));
                    }
                    // Its consumer has gone: back to where it came from.
                    _ if content.is_owed => {
                        self.with(|session| session.give_back(number, content.tag));
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
                // Whoever published may have stopped waiting.
                let _told = sender.send(result);
                channel.window.wake(1);
            }
            Event::Replied { token, result } => self.replied(token, result),
            Event::TakenBack { channel } => {
                if let Some(channel) = self.channel(channel) {
                    channel.forget_waiting();
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
            Event::NumberFree => {
                self.numbers.wake(1);
            }
            Event::Flow => self.wake_all(),
            Event::Blocked(reason) => {
                tracing::warn!(broker = %self.address.place(), %reason, "the broker is blocked");
                self.blocked.replace(Some((reason.clone(), self.time())));
                if self.is_ready.get() {
                    self.set_state(State::Blocked { reason });
                }
                // Who waits for room as well: from now on there is a deadline.
                self.wake_all();
            }
            Event::Unblocked => {
                self.blocked.replace(None);
                if self.is_ready.get() {
                    self.set_state(State::Open);
                }
                self.wake_all();
            }
            Event::Opened => {
                self.reach(Milestone::Opened);
                // From now on there are heartbeats.
                self.timer.wake(1);
            }
            Event::Ended(why) => self.reach(Milestone::Ended(why)),
        }
    }

    fn replied(&self, asker: Asker, result: Result<Reply, Error>) {
        let answer = result.map(|reply| match (reply, asker.channel) {
            (Reply::Queue(queue), _) => Answer::Queue(queue),
            (Reply::Count(count), _) => Answer::Count(count),
            (Reply::Got(Some(content)), Some(channel)) => {
                Answer::Got(Some(Box::new(Delivery::new(channel, *content, self.epoch.get()))))
            }
            (Reply::Got(_), _) => Answer::Got(None),
            (Reply::Rejected, _) => Answer::Rejected,
            (Reply::Done, _) => Answer::Done,
        });
        if let Some(sender) = asker.sender {
            // An answer that nobody waits for any more is dropped, and a message in it given back.
            let _told = sender.send(answer);
        }
    }

    /// The connection is gone: what was asked fails, what was not confirmed is kept, and what was
    /// delivered is the broker's again.
    pub(crate) fn drop_session(&self) {
        self.is_ready.set(false);
        self.blocked.replace(None);
        let session = self.session.borrow_mut().take();
        for channel in self.live_channels() {
            channel.forget_deliveries();
        }
        // The next session uses their numbers again.
        self.channels.borrow_mut().clear();
        let Some(mut session) = session else { return };
        // What the broker said last still counts.
        while let Some(event) = session.next_event() {
            if matches!(event, Event::Confirmed { .. } | Event::Replied { .. }) {
                self.tell(event);
            }
        }
        self.epoch.set(self.epoch.get() + 1);
        let remains = session.dismantle();
        // Their senders tell them.
        drop(remains.requests);
        for (_, message, mut publisher) in remains.unconfirmed {
            publisher.lost_at.get_or_insert(self.time());
            match self.options.republish {
                true => self.retained.borrow_mut().push((message, publisher)),
                false => drop(publisher.sender.send(Err(PublishError::Uncertain))),
            }
        }
        self.wake_all();
    }

    /// Nobody is kept waiting any longer for messages that were sent.
    pub(crate) fn abandon_unconfirmed(&self, error: &PublishError) {
        self.abandon_sent(error);
        for (_, publisher) in self.retained.take() {
            let _told = publisher.sender.send(Err(error.clone()));
        }
    }

    /// The same of those that were sent over this connection.
    pub(crate) fn abandon_sent(&self, error: &PublishError) {
        let sent = self.with(|session| session.abandon_unconfirmed()).unwrap_or_default();
        for publisher in sent {
            let _told = publisher.sender.send(Err(error.clone()));
        }
    }

    /// Nobody is kept waiting any longer for messages that were lost long ago. They may have been sent
    /// again since, over connections that were lost as well.
    pub(crate) fn abandon_lost(&self) {
        let (now, patience) = (self.time(), self.options.blocked_deadline);
        let is_old = |at: Duration| now.saturating_sub(at) >= patience;
        let (gone, kept): (Vec<_>, _) = self
            .retained
            .take()
            .into_iter()
            .partition(|(_, publisher)| publisher.lost_at.is_some_and(is_old));
        self.retained.replace(kept);
        for (_, publisher) in gone {
            let _told = publisher.sender.send(Err(PublishError::Uncertain));
        }
    }

    /// It is over for good.
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
