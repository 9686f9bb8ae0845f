//! An AMQP broker in the test program, for tests of programs that use `pikake-amqp`. The broker
//! shares the client's codec, and keeps all confirmed messages.
//!
//! [`Broker`] is a state machine without sockets: callers pass in the bytes of connections and the
//! time, and take out bytes. [`serve`] runs a broker behind a listener, in a simulation or on
//! loopback.
//!
//! Supported are queues with ready and unacknowledged messages, acks, nacks and requeueing with
//! delivery counts, prefetch of consumers, confirms, returns, time to live, dead-letter exchanges,
//! exclusive and auto-delete queues, queues with priorities, direct, fanout and topic exchanges,
//! direct reply-to, connection.blocked, and the usual errors. Not supported are TLS, transactions,
//! users and virtual hosts: any login is accepted.
//!
//! Two differences from RabbitMQ do not matter to tests. The broker confirms each message at once
//! and alone, and removes an expired message even if it is not at the head of its queue.
//!
//! `cargo xtask suites amqp` runs the tests of py-amqp and kombu against this broker and RabbitMQ.
//!
//! # Examples
//!
//! ```
//! use pikake::amqp::{Connection, ConsumeOptions, Options, QueueOptions, persistent};
//! use pikake::net::TcpListener;
//! use pikake_amqp_testing::{Broker, serve};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = TcpListener::bind("127.0.0.1:5672").await?;
//! let broker = Broker::new();
//! let _serving = pikake::spawn(serve(broker.clone(), listener)).cancel_on_drop();
//!
//! let address = "amqp://127.0.0.1".parse()?;
//! let connection = Connection::open(&address, Options::default()).await?;
//! let channel = connection.channel().await?;
//! channel.declare_queue("jobs", QueueOptions::quorum()).await?;
//! channel.publish("", "jobs", persistent(), b"hello".to_vec(), true).await?;
//! assert_eq!(broker.ready("jobs"), 1);
//! let mut consumer = channel.consume("jobs", ConsumeOptions::default()).await?;
//! consumer.next().await?.ack()?;
//! # Ok(()) }
//! # pikake::sim::example(async { example().await.unwrap() });
//! ```

#![forbid(unsafe_code)]

mod serve;
mod state;

pub use serve::{Broker, serve};
