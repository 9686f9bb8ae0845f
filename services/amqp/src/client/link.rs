//! The tasks of one connection: reader, writer and timer.
//!
//! The writer takes all queued output when it is stepped: messages and acknowledgements of all
//! tasks of a turn are one write.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake_traps::{Builder, Task, ignore_after, park, shield, sleep};

use crate::client::error::PublishError;
use crate::client::hub::{Hub, Milestone};
use crate::client::stream::Stream;

/// The size of the read buffer, in bytes.
const READ_SIZE: usize = 64 * 1024;
/// The capacity, in bytes, to which the empty write buffer is shrunk.
const MAX_KEPT_BUFFER: usize = 256 * 1024;
/// The wait after a failed write in which the reader may receive the broker's close, which has the
/// reason.
const CLOSE_REASON_WAIT: Duration = Duration::from_millis(500);

/// The tasks of one connection, which are aborted on drop.
#[derive(Debug)]
pub(crate) struct Link {
    tasks: [Task<()>; 3],
}

impl Link {
    pub(crate) fn start(hub: &Rc<Hub>, stream: Stream) -> Self {
        let stream = Rc::new(stream);
        let tasks = [
            spawn("amqp reader", run_reader(hub.clone(), stream.clone())),
            spawn("amqp writer", run_writer(hub.clone(), stream)),
            spawn("amqp timer", run_timer(hub.clone())),
        ];
        Self { tasks }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(Task::abort);
    }
}

/// Spawns a task that is shielded from a shutdown: tasks that are ending still have to acknowledge
/// and requeue. The task ends with its connection.
pub(crate) fn spawn(name: &str, body: impl Future<Output = ()> + 'static) -> Task<()> {
    Builder::new().name(name).spawn(shield(body))
}

fn lost(error: &io::Error) -> Milestone {
    Milestone::Lost(error.to_string())
}

async fn run_reader(hub: Rc<Hub>, stream: Rc<Stream>) {
    let mut buffer = vec![0; READ_SIZE];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) => return hub.set_milestone(Milestone::Lost("the broker hung up".to_owned())),
            Ok(length) => {
                let now = hub.time();
                hub.with(|session| session.input(&buffer[..length], now));
                hub.dispatch();
            }
            Err(error) => return hub.set_milestone(lost(&error)),
        }
    }
}

async fn run_writer(hub: Rc<Hub>, stream: Rc<Stream>) {
    let mut buffer = Vec::new();
    loop {
        let now = hub.time();
        if let Some(session) = &mut *hub.session.borrow_mut() {
            session.take_output(&mut buffer, now);
        }
        if buffer.is_empty() {
            if park(&hub.writer).await.is_err() {
                return;
            }
            continue;
        }
        if let Err(error) = stream.write_all(&buffer).await {
            let _interrupted = sleep(CLOSE_REASON_WAIT).await;
            return hub.set_milestone(lost(&error));
        }
        buffer.clear();
        buffer.shrink_to(MAX_KEPT_BUFFER);
        hub.gate.wake(usize::MAX);
    }
}

/// Sends heartbeats, and fails unconfirmed messages once the broker is blocked for
/// `blocked_deadline`.
async fn run_timer(hub: Rc<Hub>) {
    loop {
        let now = hub.time();
        hub.with(|session| session.tick(now));
        hub.dispatch();
        let next = hub.session.borrow().as_ref().and_then(|session| session.next_tick());
        let blocked = hub.blocked.borrow().clone();
        let limit = hub.options.blocked_deadline;
        let next = match blocked {
            Some((reason, since)) if now >= since + limit => {
                hub.abandon_unconfirmed(&PublishError::Blocked { reason, message: None });
                next
            }
            Some((_, since)) => Some(next.map_or(since + limit, |next| next.min(since + limit))),
            None => next,
        };
        let again = park(&hub.timer);
        let is_over = match next {
            Some(next) => {
                ignore_after(next.saturating_sub(now), again).await.is_some_and(|r| r.is_err())
            }
            None => again.await.is_err(),
        };
        if is_over {
            return;
        }
    }
}
