//! The bus on RabbitMQ: Celery's exchanges and queues, so that Celery's workers and tools share it.
//!
//! Messages go over one channel of the connection that publishes, without confirms; each
//! subscription has a queue and a channel of its own. A subscription acknowledges what it has read,
//! so a slow reader holds few messages, and the rest expires at the broker.

use std::fmt;
use std::time::Duration;

use pikake_amqp::{
    Channel, Connection, ConsumeOptions, Consumer, ExchangeOptions, Properties, PublishError,
    QueueOptions as AmqpQueue, Table, Value, short,
};
use pikake_traps::{spawn, try_current, wall_time};

use crate::broker::bus::{Bus, Notice, Notices, SharedFact, SharedFacts, Topic};
use crate::broker::{BrokerError, LocalFuture};
use crate::brokers::rabbitmq::error::unpublished;
use crate::brokers::rabbitmq::value::table;
use crate::brokers::rabbitmq::{AmqpBroker, TRANSIENT, message};
use crate::wire::ids;

/// How often workers send heartbeats. Celery's interval.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How many messages a subscription holds.
const PREFETCH: u16 = 100;
/// How long a control message may wait for a broker that takes none.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

const COMMANDS: &str = "celery.pidbox";
const REPLIES: &str = "reply.celery.pidbox";
const EVENTS: &str = "celeryev";

fn exchange(topic: Topic) -> (&'static str, ExchangeOptions) {
    let transient = |kind| ExchangeOptions { durable: false, ..ExchangeOptions::of_kind(kind) };
    match topic {
        Topic::Commands => (COMMANDS, transient("fanout")),
        Topic::Replies => (REPLIES, transient("direct")),
        Topic::Events => (EVENTS, ExchangeOptions::of_kind("topic")),
    }
}

/// The name of a subscriber's queue, its options, and the key of its binding.
fn queue(topic: Topic, name: &str) -> (String, AmqpQueue, String) {
    let millis =
        |queue: AmqpQueue, name: &str, millis: i32| queue.argument(name, Value::LongInt(millis));
    match topic {
        Topic::Commands => {
            let options = millis(AmqpQueue::private(), "x-expires", 10_000);
            let options = millis(options, "x-message-ttl", 300_000);
            (format!("{name}.{COMMANDS}"), options, String::new())
        }
        Topic::Replies => {
            let options = millis(AmqpQueue::private(), "x-expires", 10_000);
            (format!("{name}.{REPLIES}"), options, name.to_owned())
        }
        Topic::Events => {
            let options = millis(AmqpQueue::private(), "x-expires", 60_000);
            let options = millis(options, "x-message-ttl", 5_000);
            (format!("{EVENTS}.{}", ids::random()), options, format!("{name}#"))
        }
    }
}

impl AmqpBroker {
    /// The channel that control messages go over.
    async fn bus_channel(&self) -> Result<Channel, BrokerError> {
        let known = self.0.bus.borrow().clone();
        if let Some(channel) = known.filter(|channel| channel.closed().is_none()) {
            return Ok(channel);
        }
        let channel = self.0.publisher.connection().channel_unconfirmed().await?;
        for topic in [Topic::Commands, Topic::Replies, Topic::Events] {
            let (name, options) = exchange(topic);
            channel.declare_exchange(name, options).await?;
        }
        *self.0.bus.borrow_mut() = Some(channel.clone());
        Ok(channel)
    }
}

/// The properties of a message that is worth nothing after a restart of the broker.
fn properties(notice: &Notice) -> Result<Properties, BrokerError> {
    Ok(Properties::default()
        .with_content_type(short("application/json")?)
        .with_content_encoding(short("utf-8")?)
        .with_delivery_mode(TRANSIENT)
        .with_priority(0)
        .with_headers(table(&notice.headers)?))
}

impl Bus for AmqpBroker {
    fn notify(&self, notice: Notice) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            let channel = self.bus_channel().await?;
            let properties = properties(&notice)?;
            let (exchange, _) = exchange(notice.topic);
            let sent = channel.publish(exchange, &notice.key, properties, notice.body, false).await;
            sent.map_err(|error| {
                unpublished(error, &self.0.publisher.connection(), WAIT_LIMIT).into()
            })
        })
    }

    fn subscribe<'a>(
        &'a self,
        topic: Topic,
        name: &'a str,
    ) -> LocalFuture<'a, Result<Box<dyn Notices>, BrokerError>> {
        Box::pin(async move {
            let channel = self.0.channel().await?;
            let (from, options) = exchange(topic);
            channel.declare_exchange(from, options).await?;
            let (queue, options, key) = queue(topic, name);
            // Made first, so that the queue is deleted wherever this call is interrupted.
            let subscription = Subscription { channel: channel.clone(), queue: queue.clone() };
            channel.declare_queue(&queue, options).await?;
            channel.bind(&queue, from, &key, Table::default()).await?;
            let options = ConsumeOptions { prefetch: PREFETCH, ..ConsumeOptions::default() };
            let consumer = channel.consume(&queue, options).await?;
            Ok(Box::new(AmqpNotices { topic, consumer, _subscription: subscription })
                as Box<dyn Notices>)
        })
    }

    fn heartbeat_interval(&self) -> Option<Duration> {
        Some(HEARTBEAT)
    }

    fn share<'a>(&'a self, _: &'a SharedFact) -> LocalFuture<'a, Result<bool, BrokerError>> {
        Box::pin(async { Ok(false) })
    }

    fn shared(&self) -> LocalFuture<'_, Result<Option<SharedFacts>, BrokerError>> {
        Box::pin(async { Ok(None) })
    }

    /// Sends a command that concerns nobody: RabbitMQ returns it if no queue is bound.
    fn has_others(&self) -> LocalFuture<'_, Result<bool, BrokerError>> {
        Box::pin(async move {
            self.bus_channel().await?;
            let connection: &Connection = &self.0.publisher.connection();
            let channel = connection.channel().await?;
            let body = br#"{"method": "ping", "arguments": {}, "destination": ["nobody"]}"#;
            let notice = Notice::new(Topic::Commands, "", body.to_vec());
            let properties = properties(&notice)?;
            match channel.publish(COMMANDS, "", properties, notice.body, true).await {
                Ok(()) => Ok(true),
                Err(PublishError::Returned { .. }) => Ok(false),
                Err(error) => Err(unpublished(error, connection, WAIT_LIMIT).into()),
            }
        })
    }
}

/// The queue of a subscription. Dropped, it is deleted.
struct Subscription {
    channel: Channel,
    queue: String,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // Outside a kernel, the broker deletes the queue with its last consumer.
        if try_current().is_some() && self.channel.closed().is_none() {
            let deleted = self.channel.delete_queue(&self.queue);
            spawn(async move { drop(deleted.await) }).detach();
        }
    }
}

struct AmqpNotices {
    topic: Topic,
    consumer: Consumer,
    _subscription: Subscription,
}

impl Notices for AmqpNotices {
    fn next(&mut self) -> LocalFuture<'_, Result<Notice, BrokerError>> {
        Box::pin(async move {
            let delivery = self.consumer.next().await?;
            // An acknowledgement that is lost costs a message that nobody reads again.
            let _ = delivery.receipt.ack();
            let key = delivery.routing_key.to_string();
            let read = message::message(&delivery.properties, Vec::new(), wall_time());
            let mut notice = Notice::new(self.topic, key, delivery.body);
            notice.headers = read.headers;
            Ok(notice)
        })
    }
}

impl fmt::Debug for AmqpNotices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpNotices").field("topic", &self.topic).finish_non_exhaustive()
    }
}
