//! The control task of a worker: receives commands, answers them, and sends heartbeats and events.
//!
//! Nothing here may harm jobs: a bus that fails or hangs costs control, and a message that is no
//! command a line in the log.

use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use pikake_time::Deadline;
use pikake_traps::{
    CancelOnDrop, Interrupted, TimedOut, deadline_after, ignore_after, random, shield, sleep,
    spawn, timeout_after, timeout_at, wall_time,
};
use serde_json::{Map, Value, json};

use crate::broker::BrokerError;
use crate::broker::bus::{Bus, Notice, Notices, Topic};
use crate::control::answers::{answer, learn};
use crate::control::command::Command;
use crate::control::events::FLUSH_EVERY;
use crate::control::state_file;
use crate::wire::ids;
use crate::worker::settle::Pauses;
use crate::worker::state::WorkerState;

/// How long jobs wait for what other workers know, at the start.
const PREPARE_LIMIT: Duration = Duration::from_secs(3);
/// How long a worker that starts waits for the broker to say whether there are others. In an alarm,
/// RabbitMQ says nothing.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// Workers that have subscribed again ask others at random moments within this, since an outage
/// ends for all at once.
const ASK_SPREAD: Duration = Duration::from_secs(5);
/// How long a worker waits for the answers of others, at the start. Celery's length.
const MINGLE: Duration = Duration::from_secs(1);
/// The pause after the broker has refused: another worker may have this one's name for now.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// How long a reply or an event may take to be sent; then it is dropped.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// Prepares the consumers, begins them, and then controls the worker until this is interrupted.
pub(crate) async fn serve(worker: Rc<WorkerState>) {
    let broker = worker.broker.clone();
    if state_file::load(&worker.app).await.is_err() {
        return;
    }
    let Some(bus) = broker.bus() else {
        worker.update_consumers();
        return;
    };
    let mut asking = None;
    let preparing = prepare(&worker, bus, &mut asking, true);
    let mut notices = match timeout_after(PREPARE_LIMIT, preparing).await {
        Ok(Ok(notices)) => Some(notices),
        Ok(Err(BrokerError::Interrupted(_))) => return,
        Ok(Err(error)) if !error.is_lost() => {
            let name = worker.app.worker_name();
            tracing::warn!(name, %error, "this worker cannot be controlled; it tries again");
            None
        }
        Ok(Err(_)) | Err(TimedOut) => None,
    };
    worker.update_consumers();
    let flushing = spawn(flush(worker.clone())).cancel_on_drop();
    let saving = spawn(state_file::save_changes(worker.app.clone())).cancel_on_drop();
    let mut pauses = Pauses::new();
    loop {
        let ended = match &mut notices {
            Some(notices) => {
                let Err(error) = receive(&worker, bus, &mut **notices).await;
                error
            }
            None => match prepare(&worker, bus, &mut asking, false).await {
                Ok(subscribed) => {
                    notices = Some(subscribed);
                    // What the others know has come late.
                    worker.update_consumers();
                    continue;
                }
                Err(error) => error,
            },
        };
        let pause = match ended {
            BrokerError::Interrupted(_) | BrokerError::Closed => break,
            error => {
                tracing::debug!(%error, "the worker cannot be controlled at this moment");
                if error.is_lost() { pauses.next() } else { REFUSED_PAUSE }
            }
        };
        notices = None;
        if sleep(pause).await.is_err() {
            break;
        }
    }
    drop((flushing, asking));
    saving.request_cancel("the worker ends");
    let last = shield(async {
        // Two that write at a time would share the file beside it.
        let _ended = saving.await;
        state_file::save(&worker.app).await;
        if let Some(notice) = worker.events.take() {
            send(bus, notice).await?;
        }
        send(bus, worker_event(&worker, "offline")).await
    });
    // Nothing interrupts a shield.
    let _: Result<(), Interrupted> = last.await;
}

/// Subscribes to commands, and learns what other workers know. A worker that has not just started
/// asks the others beside its work, as does one whose broker does not say whether there are any.
async fn prepare(
    worker: &Rc<WorkerState>,
    bus: &dyn Bus,
    asking: &mut Option<CancelOnDrop<()>>,
    is_first: bool,
) -> Result<Box<dyn Notices>, BrokerError> {
    let has_others = match is_first {
        true => match timeout_after(ASK_LIMIT, bus.has_others()).await {
            Ok(Err(error)) if !error.is_lost() => return Err(error),
            Ok(known) => known.ok(),
            Err(TimedOut) => None,
        },
        false => None,
    };
    let name = worker.app.worker_name();
    let notices = bus.subscribe(Topic::Commands, &name).await?;
    // Asked after that: what happens meanwhile comes as a command.
    match bus.shared().await? {
        Some(facts) => {
            let now = wall_time();
            let mut revoked = worker.app.0.revoked.borrow_mut();
            for id in facts.revoked {
                revoked.insert(id, now, now);
            }
            drop(revoked);
            worker.app.0.control.set_paused(facts.paused.into_iter().collect());
        }
        None => match has_others {
            Some(true) => mingle(worker, bus, &name).await?,
            Some(false) => {}
            None => {
                let delay = if is_first { Duration::ZERO } else { ASK_SPREAD };
                let asks = ask_later(worker.clone(), delay.mul_f64(random::f64()));
                *asking = Some(spawn(asks).cancel_on_drop());
            }
        },
    }
    send(bus, worker_event(worker, "online")).await?;
    Ok(notices)
}

/// Asks other workers what they know, once the broker takes the question.
async fn ask_later(worker: Rc<WorkerState>, delay: Duration) {
    let Some(bus) = worker.broker.bus() else { return };
    let name = worker.app.worker_name();
    let mut pause = delay;
    let mut pauses = Pauses::new();
    while sleep(pause).await.is_ok() {
        let asked = async {
            // RabbitMQ says that it takes no messages only to those who have sent one.
            worker.broker.probe().await?;
            mingle(&worker, bus, &name).await
        };
        match asked.await {
            Ok(()) => return worker.update_consumers(),
            Err(BrokerError::Interrupted(_) | BrokerError::Closed) => return,
            Err(error) => tracing::debug!(%error, "other workers cannot be asked at this moment"),
        }
        pause = pauses.next();
    }
}

/// Asks other workers what they know; a worker of this library knows which queues are paused, and
/// is the last that counts.
async fn mingle(worker: &WorkerState, bus: &dyn Bus, name: &str) -> Result<(), BrokerError> {
    let inbox = ids::random();
    let mut replies = bus.subscribe(Topic::Replies, &inbox).await?;
    let mut arguments = Map::new();
    arguments.insert("from_node".to_owned(), name.into());
    arguments.insert("revoked".to_owned(), revoked_ids(worker));
    let command = Command {
        ticket: Some(ids::random()),
        reply_to: Some(inbox),
        clock: worker.events.tick(),
        ..Command::new("hello", arguments)
    };
    match timeout_after(MINGLE, bus.notify(command.write(Some(wall_time() + MINGLE)))).await {
        Ok(sent) => sent?,
        Err(TimedOut) => return Err(BrokerError::Lost("the question could not be sent".into())),
    }
    let end = deadline_after(MINGLE);
    while let Ok(reply) = timeout_at(end, replies.next()).await {
        let Ok(Value::Object(reply)) = serde_json::from_slice(&reply?.body) else { continue };
        for (from, told) in reply {
            learn(worker, &told);
            if from != name && told.get("paused").is_some() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The ids of revoked jobs that a worker tells others of: the latest, so that the message has a
/// bound.
pub(crate) fn revoked_ids(worker: &WorkerState) -> Value {
    const MOST: usize = 10_000;
    let revoked = worker.app.0.revoked.borrow();
    let count = revoked.iter().count();
    revoked.iter().skip(count.saturating_sub(MOST)).map(|(id, _)| id).collect()
}

/// Answers commands and sends heartbeats, until the subscription or the task ends.
async fn receive(
    worker: &Rc<WorkerState>,
    bus: &dyn Bus,
    notices: &mut dyn Notices,
) -> Result<Infallible, BrokerError> {
    let interval = bus.heartbeat_interval();
    let mut beat = interval.map(deadline_after);
    loop {
        let notice = match until(beat, notices.next()).await {
            Some(notice) => notice?,
            None => {
                beat = interval.map(deadline_after);
                send(bus, worker_event(worker, "heartbeat")).await?;
                continue;
            }
        };
        let command = match Command::read(&notice, wall_time()) {
            Ok(command) => command,
            Err(why) => {
                tracing::debug!(why, "a control message is no command");
                continue;
            }
        };
        worker.events.adjust(command.clock);
        let name = worker.app.worker_name();
        if !command.is_for(&name) {
            continue;
        }
        let method = command.method.as_str();
        let Some(reply) = answer(worker, &command) else {
            tracing::debug!(method, "a command is unknown, or has no reply");
            continue;
        };
        tracing::debug!(method, "a command was executed");
        if method == "heartbeat" {
            send(bus, worker_event(worker, "heartbeat")).await?;
        }
        if let Some(key) = &command.reply_to {
            let body = json!({ name: reply }).to_string().into_bytes();
            let mut reply = Notice::new(Topic::Replies, key, body);
            if let Some(ticket) = &command.ticket {
                reply = reply.header("ticket", ticket.as_str());
            }
            send(bus, reply.header("clock", worker.events.tick())).await?;
        }
    }
}

/// The output of a future, unless the deadline comes first.
async fn until<T>(deadline: Option<Deadline>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

fn worker_event(worker: &WorkerState, what: &str) -> Notice {
    let stats = worker.app.stats().all;
    let processed = stats.done + stats.failed + stats.retried + stats.revoked + stats.dead;
    worker.events.worker(what, worker.running.len(), processed)
}

/// Sends a message, if the broker lets it. An interruption comes once, so that it is handed on.
async fn send(bus: &dyn Bus, notice: Notice) -> Result<(), Interrupted> {
    match ignore_after(SEND_LIMIT, bus.notify(notice)).await {
        Some(Err(BrokerError::Interrupted(why))) => return Err(why),
        Some(Err(error)) => tracing::debug!(%error, "a control message could not be sent"),
        Some(Ok(())) | None => {}
    }
    Ok(())
}

/// Sends events of jobs, some at a time.
async fn flush(worker: Rc<WorkerState>) -> Result<(), Interrupted> {
    let Some(bus) = worker.broker.bus() else { return Ok(()) };
    loop {
        worker.events.has_some.wait().await?;
        let full = timeout_after(FLUSH_EVERY, worker.events.is_full.wait()).await;
        full.unwrap_or(Ok(()))?;
        if let Some(notice) = worker.events.take() {
            send(bus, notice).await?;
        }
    }
}
