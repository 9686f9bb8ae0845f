//! The event of a job that an application has sent, in Celery's form, for those that ask for it.

use std::time::{Duration, SystemTime};

use pikake_traps::{ignore_after, shield, wall_time};
use serde_json::{Map, Value, json};

use crate::broker::bus::{Notice, Topic};
use crate::broker::{Broker, PublishError};
use crate::client::app::App;
use crate::control::command::seconds;
use crate::message::Message;
use crate::unique::{UniqueLock, UniqueSent};

/// How long an event may take to be sent; then it is dropped.
const SEND_LIMIT: Duration = Duration::from_secs(1);

impl App {
    /// Has this application send an event for each job that it sends, as Celery's
    /// `task_send_sent_event` does: operators then see jobs that no worker has received yet. Each
    /// costs a second message.
    pub fn send_sent_events(self, on: bool) -> Self {
        self.0.control.sends_sent_events.set(on);
        self
    }

    /// Publishes a job, under its lock if it is unique, and sends the event of it if the
    /// application does so.
    pub(crate) async fn publish(
        &self,
        broker: &dyn Broker,
        queue: &str,
        message: Message,
        not_before: Option<SystemTime>,
        lock: Option<&UniqueLock>,
    ) -> Result<UniqueSent, PublishError> {
        let is_told = self.0.control.sends_sent_events.get();
        let event = is_told.then(|| sent(self, queue, &message));
        let sent = match lock {
            Some(lock) => broker.publish_unique(queue, message, not_before, lock).await?,
            None => broker.publish(queue, message, not_before).await.map(|()| UniqueSent::Sent)?,
        };
        if sent != UniqueSent::Sent {
            return Ok(sent);
        }
        if let (Some(event), Some(bus)) = (event, broker.bus()) {
            // In a shield: the job was sent, and an interruption is for whoever waits next.
            let told = Box::pin(shield(ignore_after(SEND_LIMIT, bus.notify(event)))).await;
            if let Some(Err(error)) = told {
                tracing::debug!(%error, "the event of a job that was sent could not be sent");
            }
        }
        Ok(sent)
    }
}

fn sent(app: &App, queue: &str, message: &Message) -> Notice {
    let header = |name: &str| message.headers.get(name).cloned().unwrap_or_default();
    let mut event = Map::new();
    for (name, header_name) in [
        ("uuid", "id"),
        ("root_id", "root_id"),
        ("parent_id", "parent_id"),
        ("name", "task"),
        ("args", "argsrepr"),
        ("kwargs", "kwargsrepr"),
        ("retries", "retries"),
        ("eta", "eta"),
        ("expires", "expires"),
    ] {
        event.insert(name.to_owned(), header(header_name));
    }
    let clock = app.0.control.sent_clock.get() + 1;
    app.0.control.sent_clock.set(clock);
    let more = json!({
        "type": "task-sent", "hostname": app.origin(), "utcoffset": 0.0, "pid": std::process::id(), "clock": clock,
        "timestamp": seconds(wall_time()), "queue": queue, "exchange": "", "routing_key": queue,
    });
    if let Value::Object(more) = more {
        event.extend(more);
    }
    let body = Value::from(event).to_string().into_bytes();
    Notice::new(Topic::Events, "task.sent", body).header("hostname", app.origin())
}
