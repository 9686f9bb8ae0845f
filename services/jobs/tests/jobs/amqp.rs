//! Jobs over AMQP, on the broker for tests.

mod alarms;
mod batches;
mod channels;
mod consumers;
mod control;
mod expired;
#[path = "../support/fake.rs"]
pub(crate) mod fake;
mod half_open;
mod killed;
mod losses;
mod lost_messages;
mod many_workers;
mod outages;
mod sim;
mod waiting;
