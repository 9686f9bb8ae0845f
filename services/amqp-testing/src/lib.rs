//! A broker for tests of what uses `pikake-amqp`: it speaks the codec of the client, lives in the program, and forgets nothing it has
//! confirmed.
//!
//! [`Broker`] is a state machine without sockets (bytes of a connection in, bytes out, time told), and
//! [`serve`] runs it behind a listener, in a simulation or on loopback. It knows: queues with what is
//! ready and what is unacknowledged, acks, nacks and requeueing with counted deliveries, prefetch of
//! consumers, confirms and returns, time to live and dead-letter exchanges, exclusive and auto-delete
//! queues, direct, fanout and topic exchanges, direct reply-to, a broker that is blocked, and the
//! usual errors. It does not know priorities, transactions, users and virtual hosts: whoever comes is
//! let in.
//!
//! It differs from RabbitMQ where that costs a test nothing: a confirm comes at once, each alone, and
//! a message that expires inside a queue leaves it also when it is not at its head.
//!
//! # Examples
//!
//! ```
//! use pikake_amqp::{ConsumeOptions, Connection, Options, QueueOptions, persistent};
//! use pikake_amqp_testing::{Broker, serve};
//! use pikake_net::TcpListener;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = TcpListener::bind("127.0.0.1:5672").await?;
//! let broker = Broker::new();
//! let _serving = pikake_traps::spawn(serve(broker.clone(), listener)).cancel_on_drop();
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
//! # pikake_sim::example(async { example().await.unwrap() });
//! ```

#![forbid(unsafe_code)]

mod serve;
mod state;

pub use serve::{Broker, serve};
