//! Jobs on real kernels: on a real RabbitMQ, with real Celery, on SQLite, in threads.

#[cfg(feature = "amqp")]
mod alarms;
mod celery;
mod end_to_end;
#[cfg(feature = "amqp")]
mod odd;
#[cfg(feature = "amqp")]
#[path = "../support/server.rs"]
mod server;
mod sqlite;
mod threads;
mod too_big;
#[cfg(feature = "amqp")]
mod too_large;
