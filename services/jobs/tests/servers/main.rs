//! Jobs on real kernels: on a real RabbitMQ, with real Celery, on SQLite, in threads.

#[cfg(feature = "amqp")]
mod alarms;
mod celery;
#[cfg(feature = "amqp")]
#[path = "../../../../tests/support/child.rs"]
mod child;
mod end_to_end;
#[cfg(feature = "amqp")]
mod hostile;
#[cfg(feature = "redis")]
#[path = "../support/lines.rs"]
mod lines;
#[cfg(feature = "amqp")]
mod odd;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "amqp")]
#[path = "../support/server.rs"]
mod server;
mod sqlite;
mod threads;
mod too_big;
#[cfg(feature = "amqp")]
mod too_large;
