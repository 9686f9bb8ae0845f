//! The tasks of one connection: one reads, one writes, one watches the time.
//!
//! The writer takes what has been queued until its turn comes, and writes it at once: what the tasks
//! of a turn publish and acknowledge leaves together.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake_traps::{Builder, Task, ignore_after, park, shield, sleep};

use crate::client::error::PublishError;
use crate::client::hub::{Hub, Milestone};
use crate::client::stream::Stream;

/// What is read at once, at most.
const READ: usize = 64 * 1024;
/// A buffer that has grown beyond is given up when it is empty.
const KEPT: usize = 256 * 1024;
/// After a write has failed, the reader has so long to find out why: a broker that hangs up has said
/// so before.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The tasks of one connection. They end with this.
#[derive(Debug)]
pub(crate) struct Link {
    tasks: [Task<()>; 3],
}

impl Link {
    pub(crate) fn start(hub: &Rc<Hub>, stream: Stream) -> Self {
        let stream = Rc::new(stream);
        let tasks = [
            spawn("amqp reader", read(hub.clone(), stream.clone())),
            spawn("amqp writer", write(hub.clone(), stream)),
            spawn("amqp timer", watch(hub.clone())),
        ];
        Self { tasks }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(Task::abort);
    }
}

/// Starts a task that ends with its connection, not with a shutdown: tasks that are being ended still
/// have to acknowledge and to give back. The connection ends when the last of them lets go of it.
pub(crate) fn spawn(name: &str, body: impl Future<Output = ()> + 'static) -> Task<()> {
    Builder::new().name(name).spawn(shield(body))
}

fn why(error: &io::Error) -> Milestone {
    Milestone::Lost(error.to_string())
}

async fn read(hub: Rc<Hub>, stream: Rc<Stream>) {
    let mut buffer = vec![0; READ];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) => return hub.reach(Milestone::Lost("the broker hung up".to_owned())),
            Ok(length) => {
                let now = hub.time();
                hub.with(|session| session.input(&buffer[..length], now));
                hub.dispatch();
            }
            Err(error) => return hub.reach(why(&error)),
        }
    }
}

async fn write(hub: Rc<Hub>, stream: Rc<Stream>) {
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
            let _interrupted = sleep(LAST_WORDS).await;
            return hub.reach(why(&error));
        }
        buffer.clear();
        buffer.shrink_to(KEPT);
        hub.gate.wake(usize::MAX);
    }
}

/// Heartbeats, and the end of patience with a broker that takes no messages.
async fn watch(hub: Rc<Hub>) {
    loop {
        let now = hub.time();
        hub.with(|session| session.tick(now));
        hub.dispatch();
        let next = hub.session.borrow().as_ref().and_then(|session| session.next_tick());
        let blocked = hub.blocked.borrow().clone();
        let patience = hub.options.blocked_deadline;
        let next = match blocked {
            Some((reason, since)) if now >= since + patience => {
                hub.abandon_unconfirmed(&PublishError::Blocked { reason, message: None });
                next
            }
            Some((_, since)) => {
                Some(next.map_or(since + patience, |next| next.min(since + patience)))
            }
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
