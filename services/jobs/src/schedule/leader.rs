//! The leader of the schedules: the worker that holds their state, sends the jobs that are due, and
//! does what it is asked.
//!
//! ```text
//!            (1)                (2)                (3)
//!   waits ────────▶ collects ────────▶ leads ────────────▶ waits
//! ```
//!
//! (1) A first message comes: the queue has a single consumer at a time, so this is the one. (2) No
//! more messages have come for a moment: the latest state among them counts. (3) The broker is
//! lost, or has another consumer by now.
//!
//! # What holds
//!
//! * **The state is not lost with its leader.** The leader holds the message with the state. To
//!   change the state, it publishes another message, and acknowledges the first one when the other
//!   has come back. If the leader is lost in between, its successor gets both, and the one of the
//!   later version counts.
//! * **A job is sent at least once for each moment that is not skipped.** The moment is noted in
//!   the state after the broker has confirmed the job. If the leader is lost in between, its
//!   successor sends the job again, **with the same id**: the name of the schedule and the moment.
//! * **A job that the broker refuses stops no other.** Its queue may be deleted, or its message too
//!   large. The moment counts as sent, and an error is logged.
//! * **Two leaders at a moment** are possible where a broker takes a live leader for lost: after a
//!   partition, or if a process on SQLite does not run for longer than its lease. Both send jobs of
//!   the same ids. The older leader notices by its next acknowledgement. The later of both last
//!   moments of a schedule counts then.
//! * **A clock that is set ahead** makes moments pass at once, which are missed moments. A clock
//!   that is set back sends no job twice: a calendar goes on after its last moment, and an interval
//!   is counted anew.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use pikake_traps::{Instant, shield, sleep, timeout_after, wall_time};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::broker::{
    Broker, BrokerError, Deliveries, Delivery, PublishError, PublishFailure, QueueOptions, Receipt,
};
use crate::client::app::App;
use crate::client::signature::Signature;
use crate::error::SendError;
use crate::message::{Message, Outcome, OutcomeState};
use crate::schedule::Schedule;
use crate::schedule::state::State;
use crate::unique::{UniqueLock, UniqueSent};
use crate::wire::ids;
use crate::worker::body::text_of;

/// How many messages the leader may hold: more than come at a moment.
const PREFETCH: u16 = 200;

/// After this length without a message, all that were there have come.
const QUIET: Duration = Duration::from_millis(200);

/// How often the state is written without a change: RabbitMQ takes a message back that is held for
/// half an hour.
const RENEW_EVERY: Duration = Duration::from_secs(600);

/// The longest sleep until a time of the wall clock, which may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// The shortest sleep: a schedule whose interval is shorter than a round leaves other tasks their
/// turn.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// The pause after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// The `task` of the messages to the leader, for people who look into the queue.
const TASK: &str = "pikake.schedules";

/// A message to the leader.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Note {
    State(State),
    /// There may be no leader: whoever gets this is one.
    Hello,
    List,
    Put(Box<Schedule>),
    Remove(String),
    Pause(String),
    Resume(String),
    RunNow(String),
}

impl Note {
    pub(crate) fn message(&self, id: String) -> Message {
        let mut headers = Map::new();
        headers.insert("task".to_owned(), TASK.into());
        headers.insert("id".to_owned(), id.as_str().into());
        // All parts are JSON values and texts, which always serialize.
        let mut message = Message::json(headers, serde_json::to_vec(self).unwrap_or_default());
        message.correlation_id = Some(id);
        message
    }
}

impl App {
    /// The queue of the schedules, once it is declared.
    pub(crate) async fn schedule_queue(&self) -> Result<String, BrokerError> {
        let default = self.default_queue_name();
        let is_replicated = self.queues().get(&default).is_some_and(|options| options.replicated);
        let options = QueueOptions::new().replicated(is_replicated).single_consumer(true);
        let queue = format!("{default}.schedules");
        self.ensure_queue_as(&queue, &options).await?;
        Ok(queue)
    }

    /// Has the queue of the schedules declared again: it may have been deleted.
    pub(crate) fn forget_schedule_queue(&self) {
        self.forget_queue(&format!("{}.schedules", self.default_queue_name()));
    }
}

/// Leads whenever no other leader does, until it is interrupted. A worker sends jobs and says which
/// schedules the program has; any other process only answers.
pub(crate) async fn lead(app: App, is_worker: bool) {
    loop {
        match fenced(lead_once(&app, is_worker)).await {
            Ok(Err(BrokerError::Interrupted(_) | BrokerError::Closed)) => return,
            Ok(Err(error)) if error.is_lost() => tracing::debug!(%error, "leads no schedules"),
            Ok(Err(BrokerError::Stale) | Ok(())) => {
                tracing::info!("another worker leads the schedules");
            }
            Ok(Err(error)) => tracing::warn!(%error, "no schedules can be led"),
            Err(panic) => tracing::error!(panic, "the leader of the schedules panicked"),
        }
        app.forget_schedule_queue();
        if sleep(PAUSE).await.is_err() {
            return;
        }
    }
}

/// The output of a future, or the text of its panic.
async fn fenced<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    let fenced = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(text_of(&*panic))),
    });
    fenced.await
}

async fn lead_once(app: &App, is_worker: bool) -> Result<(), BrokerError> {
    let broker = app.bare_broker()?;
    let queue = app.schedule_queue().await?;
    let mut deliveries = broker.consume(&queue, PREFETCH).await?;
    if is_worker {
        broker.publish(&queue, Note::Hello.message(ids::random()), None).await.map_err(cause)?;
    }
    let mut came = Vec::new();
    let Some(first) = deliveries.next().await? else { return Ok(()) };
    came.push(first);
    while let Ok(next) = timeout_after(QUIET, deliveries.next()).await {
        let Some(next) = next? else { return Ok(()) };
        came.push(next);
    }
    let leader = Leader {
        app,
        broker: broker.clone(),
        queue,
        is_worker,
        state: State::default(),
        held: Vec::new(),
        is_changed: is_worker,
        written: Instant::now(),
    };
    leader.lead(&mut *deliveries, came).await
}

struct Leader<'a> {
    app: &'a App,
    broker: Rc<dyn Broker>,
    queue: String,
    is_worker: bool,
    state: State,
    /// The messages that are acknowledged when the next state has come.
    held: Vec<Receipt>,
    /// Whether the state is to be written.
    is_changed: bool,
    written: Instant,
}

impl Leader<'_> {
    async fn lead(
        mut self,
        deliveries: &mut dyn Deliveries,
        came: Vec<Delivery>,
    ) -> Result<(), BrokerError> {
        let mut asked = Vec::new();
        for delivery in came {
            match read(&delivery) {
                Some(Note::State(state)) => self.add_state(state, delivery.receipt).await?,
                _ => asked.push(delivery),
            }
        }
        if self.is_worker {
            tracing::info!(queue = self.queue, "leads the schedules");
            self.state.set_program(&self.app.0.schedules.borrow(), timestamp());
        }
        // The leader holds the state, or the message that makes it write one.
        self.is_changed |= self.held.is_empty();
        for delivery in asked {
            self.handle(delivery).await?;
        }
        loop {
            // In a shield: a job that was sent is to be noted, too.
            shield(self.send_due()).await?;
            match timeout_after(self.pause(), deliveries.next()).await {
                Ok(Ok(Some(delivery))) => self.handle(delivery).await?,
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// How long there is nothing to do, unless a message comes.
    fn pause(&self) -> Duration {
        let until = |moment: SystemTime| moment.duration_since(wall_time()).unwrap_or_default();
        let next = self.state.next().filter(|_| self.is_worker).map_or(LONGEST_SLEEP, until);
        let renew = RENEW_EVERY.saturating_sub(self.written.elapsed());
        next.min(renew).clamp(SHORTEST_SLEEP, LONGEST_SLEEP)
    }

    /// Sends the jobs that are due, and writes the state if it has changed.
    async fn send_due(&mut self) -> Result<(), BrokerError> {
        let now = timestamp();
        let due = if self.is_worker { self.state.due(now) } else { Vec::new() };
        for due in due {
            match self.send(due.task.signature(Some(due.id()))).await {
                // The moment of a job that cannot be sent passes as well: the next one may be sent.
                Ok(sent) => self.state.passed(&due, sent.is_ok(), now),
                Err(error) => {
                    // The next leader does not repeat what was sent.
                    if self.is_changed && !error.is_lost() {
                        self.write().await?;
                    }
                    return Err(error);
                }
            }
            self.is_changed = true;
        }
        if self.is_changed || self.written.elapsed() >= RENEW_EVERY {
            self.write().await?;
        }
        Ok(())
    }

    /// Sends a job. The inner error is of a job that cannot be sent, also not by the next leader.
    async fn send(&self, signature: Signature) -> Result<Result<(), String>, BrokerError> {
        let queue = signature.queue.clone().unwrap_or_else(|| self.app.queue_of(&signature.name));
        let sent = match signature.message(self.app.origin()) {
            Ok((mut message, not_before)) => {
                let lock = signature.lock(&mut message);
                self.publish(&queue, message, not_before, lock.as_ref()).await
            }
            Err(SendError::Broker(error)) => Err(error),
            Err(error) => Err(BrokerError::Refused(error.to_string())),
        };
        match sent {
            Ok(UniqueSent::Sent) => Ok(Ok(())),
            // An earlier leader has sent the job of this moment.
            Ok(UniqueSent::Held(Some(first))) if Some(&first.0) == signature.id.as_ref() => {
                Ok(Ok(()))
            }
            Ok(UniqueSent::Held(first)) => {
                let first = first.map_or_else(String::new, |first| format!(" {first}"));
                let why = format!("the earlier job{first} is the only one meanwhile");
                tracing::info!(why, queue, job = signature.name, "a scheduled job is not sent");
                Ok(Err(why))
            }
            Err(BrokerError::Refused(why)) => {
                tracing::error!(why, queue, job = signature.name, "a scheduled job cannot be sent");
                self.app.forget_queue(&queue);
                Ok(Err(why))
            }
            Err(error) => {
                tracing::warn!(%error, job = signature.name, "a scheduled job was not sent yet");
                Err(error)
            }
        }
    }

    async fn publish(
        &self,
        queue: &str,
        message: Message,
        not_before: Option<SystemTime>,
        lock: Option<&UniqueLock>,
    ) -> Result<UniqueSent, BrokerError> {
        self.app.ensure_queue(queue).await?;
        match lock {
            Some(lock) => {
                self.broker.publish_unique(queue, message, not_before, lock).await.map_err(cause)
            }
            None => {
                self.broker.publish(queue, message, not_before).await.map_err(cause)?;
                Ok(UniqueSent::Sent)
            }
        }
    }

    async fn write(&mut self) -> Result<(), BrokerError> {
        self.state.version = self.state.version.saturating_add(1);
        let message = Note::State(self.state.clone()).message(ids::random());
        self.broker.publish(&self.queue, message, None).await.map_err(cause)?;
        (self.is_changed, self.written) = (false, Instant::now());
        Ok(())
    }

    /// A state has come: the one that this leader has written, or one of an earlier leader.
    async fn add_state(&mut self, state: State, receipt: Receipt) -> Result<(), BrokerError> {
        if state.version < self.state.version {
            // One of this leader's own has nothing new. Written again, there would always be an
            // earlier one under way.
            let before = self.state.clone();
            self.state.merge(state);
            self.is_changed |= self.state != before;
            return self.broker.ack(receipt).await;
        }
        self.state.merge(state);
        for earlier in std::mem::replace(&mut self.held, vec![receipt]) {
            self.broker.ack(earlier).await?;
        }
        Ok(())
    }

    async fn handle(&mut self, delivery: Delivery) -> Result<(), BrokerError> {
        let receipt = delivery.receipt;
        let note = match read(&delivery) {
            Some(Note::State(state)) => return self.add_state(state, receipt).await,
            Some(Note::Hello) => return self.done(receipt).await,
            Some(note) => note,
            None => {
                let why = "it is no message to the leader of the schedules".to_owned();
                return self.broker.bury(receipt, delivery.message, why).await;
            }
        };
        let answer = shield(self.answer(note, delivery.message.job().unwrap_or_default())).await?;
        let outcome = match answer {
            Ok(()) => Outcome::success(serde_json::to_value(self.state.list()).unwrap_or_default()),
            Err(why) => Outcome::error(OutcomeState::Failure, "ScheduleError", "pikake.jobs", &why),
        };
        match self.broker.store(&delivery.message, outcome).await {
            // Nobody can be told: not even by the next leader.
            Ok(()) | Err(BrokerError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        self.done(receipt).await
    }

    /// Does what is asked, and writes the state if that has changed it. A message may come twice.
    async fn answer(&mut self, note: Note, id: &str) -> Result<Result<(), String>, BrokerError> {
        let now = timestamp();
        let is_change = !matches!(note, Note::List | Note::RunNow(_));
        let answer = match note {
            Note::Put(schedule) => {
                let is_of_program =
                    self.app.0.schedules.borrow().iter().any(|own| own.name == schedule.name);
                match self.is_worker && is_of_program {
                    true => Err(format!("schedule `{}` is of the program", schedule.name)),
                    false => schedule.check().map(|()| self.state.put(*schedule, true, now)),
                }
            }
            Note::Remove(name) => self.state.remove(&name),
            Note::Pause(name) => self.state.pause(&name, true, now),
            Note::Resume(name) => self.state.pause(&name, false, now),
            Note::RunNow(name) => match self.state.task(&name) {
                Ok(task) => self.send(task.signature(Some(format!("{name}@{id}")))).await?,
                Err(why) => Err(why),
            },
            Note::State(_) | Note::Hello | Note::List => Ok(()),
        };
        if is_change && answer.is_ok() {
            self.write().await?;
        }
        Ok(answer)
    }

    /// Acknowledges a message; the first one later, if no state is held: a leader always holds a
    /// message. It holds no more than that, since the broker delivers no state behind as many as it
    /// may hold.
    async fn done(&mut self, receipt: Receipt) -> Result<(), BrokerError> {
        match self.held.is_empty() {
            true => {
                self.held.push(receipt);
                Ok(())
            }
            false => self.broker.ack(receipt).await,
        }
    }
}

fn read(delivery: &Delivery) -> Option<Note> {
    serde_json::from_slice(&delivery.message.body).ok()
}

fn timestamp() -> Timestamp {
    Timestamp::try_from(wall_time()).unwrap_or(Timestamp::MAX)
}

/// Why a message was not published.
pub(crate) fn cause(error: PublishError) -> BrokerError {
    match error.cause {
        PublishFailure::Blocked(length) => {
            BrokerError::Lost(format!("the broker has taken no message for {length:?}"))
        }
        PublishFailure::Broker(error) => error,
    }
}
