//! What a stack is: a server, and clients that call it. Each runs on a runtime of one thread.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use hdrhistogram::Histogram;

/// The argument of a call, and its answer.
pub const TEXT: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// More than any measurement has under way.
pub const MOST_CALLS: usize = 2_000;

/// More connections than any measurement has open.
pub const MOST_CONNECTIONS: usize = 20_000;

/// Latencies in nanoseconds.
pub type Latencies = Arc<Mutex<Histogram<u64>>>;

/// A connection to a server. The clones share the connection.
pub trait Caller: Clone + 'static {
    /// Connects, and makes a call.
    async fn connect(address: &str) -> Self;

    /// Has a number of tasks make a number of calls each.
    async fn call_from_tasks(&self, tasks: usize, calls: usize);

    /// Starts a task that makes a call, and notes how long after `due` the answer came.
    fn call_in_background(&self, due: Instant, latencies: &Latencies);
}

/// Notes a latency.
pub fn note(latencies: &Latencies, due: Instant) {
    let latency = due.elapsed().as_nanos() as u64;
    latencies.lock().expect("nobody panics").record(latency).expect("it grows");
}

/// Whether an address is a path, and none of TCP.
pub fn is_path(address: &str) -> bool {
    address.contains('/')
}
