//! Control: what operators and programs see of a broker's workers, and the commands that they send
//! them.
//!
//! Messages are those of Celery's remote control on every broker, so one side of the code serves
//! all of them: [`Control`] here asks, and the control task of a worker (`serve.rs`, `answers.rs`)
//! answers. The broker's bus carries the messages.

mod answers;
pub(crate) mod command;
pub(crate) mod events;
mod info;
mod known;
pub(crate) mod revoked;
mod sent;
pub(crate) mod serve;
pub(crate) mod settings;
mod state_file;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use pikake_traps::{TimedOut, deadline_after, timeout_at, wall_time};
use serde_json::{Map, Value, json};

use crate::broker::bus::{Notices, SharedFact, Topic};
use crate::broker::{Broker, BrokerError};
use crate::client::app::App;
use crate::control::command::Command;
use crate::control::known::Heartbeat;
use crate::wire::ids;

pub use info::{Answer, ControlEvent, EndedRuns, JobInfo, JobState, WorkerInfo};

/// How long answers are collected by default. Celery's length.
const WAIT: Duration = Duration::from_secs(1);
/// The largest reply that is read, in bytes.
const LARGEST_REPLY: usize = 16 << 20;

/// Asks and controls the workers of an application's broker, Celery's included. Made by
/// [`App::control`].
///
/// A question goes to all workers, or to those of [`to`](Self::to). Answers are collected until all
/// known workers have answered, at most for a second ([`wait`](Self::wait)). A worker that is too
/// slow, or was started a moment ago, may be missing in the answer. Without workers there is no
/// answer, and no error.
///
/// # Examples
///
/// ```
/// use pikake::jobs::App;
///
/// # pikake::sim::example(async {
/// let app = App::new("memory://")?.connect().await?;
/// let worker = pikake::spawn(app.worker().run());
/// # pikake::sleep(std::time::Duration::from_millis(1)).await?;
/// let workers = app.control().workers().await?;
/// assert_eq!(workers[0].name, app.worker_name());
/// assert_eq!(workers[0].queues, ["pikake"]);
/// app.control().shutdown().await?;
/// worker.await??;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// # Cancellation
///
/// Every method that waits is an interruption point. Interrupted, a command may have been sent.
///
/// # Errors
///
/// Every method returns the broker's errors; [`BrokerError::Refused`] on a broker without a
/// [`Bus`](crate::Bus).
#[derive(Debug, Clone)]
#[must_use = "a control does nothing until it is asked"]
pub struct Control {
    app: App,
    wait: Duration,
    to: Option<BTreeSet<String>>,
}

/// The replies to a command, by worker: a value, or the text of an error.
type Replies = BTreeMap<String, Result<Value, String>>;

impl App {
    /// Control over the workers of this application's broker.
    pub fn control(&self) -> Control {
        Control { app: self.clone(), wait: WAIT, to: None }
    }
}

#[expect(clippy::missing_errors_doc, reason = "the type says it for all methods")]
impl Control {
    /// Sets how long answers are collected.
    pub fn wait(mut self, length: Duration) -> Self {
        self.wait = length;
        self
    }

    /// Asks the workers of these names only.
    pub fn to(mut self, workers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.to = Some(workers.into_iter().map(Into::into).collect());
        self
    }

    /// The names of the workers that answer, in order.
    pub async fn ping(&self) -> Result<Vec<String>, BrokerError> {
        Ok(self.ask("ping", json!({})).await?.into_keys().collect())
    }

    /// The workers, by name. A worker that sends heartbeats and does not answer is among them.
    pub async fn workers(&self) -> Result<Vec<WorkerInfo>, BrokerError> {
        let questions = ["stats", "active", "active_queues"].map(|method| (method, json!({})));
        let [stats, active, queues] = self.ask_all(questions).await?;
        let now = wall_time();
        let mut workers = BTreeMap::<String, WorkerInfo>::new();
        for (name, Heartbeat { at, active, processed, .. }) in self.app.0.control.known.living(now)
        {
            if self.to.as_ref().is_none_or(|to| to.contains(&name)) {
                let info = WorkerInfo::unanswered(&name, at, active, processed);
                workers.insert(name, info);
            }
        }
        let names: BTreeSet<_> = stats.keys().chain(active.keys()).chain(queues.keys()).collect();
        for name in names {
            let told = |replies: &Replies| match replies.get(name) {
                Some(Ok(value)) => value.clone(),
                _ => Value::Null,
            };
            let info = workers.entry(name.clone());
            let info = info.or_insert_with(|| WorkerInfo::unanswered(name, now, 0, 0));
            info.set_answers(&told(&stats), &told(&active), &told(&queues), now);
        }
        Ok(workers.into_values().collect())
    }

    /// The jobs that run: 5,000 of each worker at most. Of a job whose message has more than 64
    /// KiB, the arguments are those that its sender has written for people.
    pub async fn running(&self) -> Result<Vec<JobInfo>, BrokerError> {
        self.jobs("active", JobState::Running).await
    }

    /// The jobs that workers hold and that have not begun: they wait for the end of another one.
    pub async fn reserved(&self) -> Result<Vec<JobInfo>, BrokerError> {
        self.jobs("reserved", JobState::Reserved).await
    }

    /// The jobs that workers hold until their time: those of Celery's workers. Workers of this
    /// library leave such jobs at the broker ([`Counts::delayed`](crate::Counts)).
    pub async fn scheduled(&self) -> Result<Vec<JobInfo>, BrokerError> {
        self.jobs("scheduled", JobState::Scheduled).await
    }

    async fn jobs(&self, method: &str, state: JobState) -> Result<Vec<JobInfo>, BrokerError> {
        let replies = self.ask(method, json!({})).await?;
        let lists = replies.iter().filter_map(|(worker, reply)| {
            let jobs = reply.as_ref().ok()?.as_array()?;
            Some(jobs.iter().filter_map(|job| JobInfo::read(worker, state, job)))
        });
        Ok(lists.flatten().collect())
    }

    /// The job of an id, from each worker that holds it.
    pub async fn query(&self, id: &str) -> Result<Vec<JobInfo>, BrokerError> {
        let replies = self.ask("query_task", json!({ "ids": [id] })).await?;
        let found = replies.iter().filter_map(|(worker, reply)| {
            let job = reply.as_ref().ok()?.get(id)?;
            JobInfo::read(worker, JobState::of(job.get(0)?.as_str()?), job.get(1)?)
        });
        Ok(found.collect())
    }

    /// Revokes a job: no worker begins it any more.
    ///
    /// With `terminate`, a job that runs is interrupted where it runs. A job in a task has five
    /// seconds for its end, and is then aborted. A job in a thread is asked to end
    /// ([`CurrentJob::is_cancelled`](crate::CurrentJob::is_cancelled)); the worker does not wait
    /// for the thread, and does not use its value. A worker process is killed. The job's outcome
    /// says that it was revoked, unless it returns a value all the same.
    ///
    /// Workers keep 50,000 ids, each for a week. On RabbitMQ, workers tell those that start later;
    /// when all workers have ended, the file of [`App::state_file`] has the ids.
    pub async fn revoke(&self, id: &str, terminate: bool) -> Result<Vec<Answer>, BrokerError> {
        self.share(SharedFact::Revoked(id.to_owned())).await?;
        self.tell("revoke", json!({"task_id": id, "terminate": terminate, "signal": "SIGTERM"}))
            .await
    }

    /// Pauses a queue: no worker of this library takes messages from it until it is resumed, also
    /// none that starts later. Running jobs go on; those that have not begun are requeued.
    ///
    /// On RabbitMQ, workers tell those that start later; when all workers have ended, the file of
    /// [`App::state_file`] has the queue.
    pub async fn pause(&self, queue: &str) -> Result<Vec<Answer>, BrokerError> {
        self.share(SharedFact::Paused(queue.to_owned())).await?;
        self.tell(answers::PAUSE, json!({ "queue": queue })).await
    }

    /// Resumes a paused queue.
    pub async fn resume(&self, queue: &str) -> Result<Vec<Answer>, BrokerError> {
        self.share(SharedFact::Resumed(queue.to_owned())).await?;
        self.tell(answers::RESUME, json!({ "queue": queue })).await
    }

    /// The paused queues, as the broker or its workers know them.
    pub async fn paused(&self) -> Result<Vec<String>, BrokerError> {
        let broker = self.app.broker()?;
        if let Some(facts) = bus_of(&*broker)?.shared().await? {
            return Ok(facts.paused);
        }
        let replies = self.ask("stats", json!({})).await?;
        let lists =
            replies.values().filter_map(|reply| reply.as_ref().ok()?.get("paused")?.as_array());
        let queues: BTreeSet<_> = lists.flatten().filter_map(Value::as_str).collect();
        Ok(queues.into_iter().map(str::to_owned).collect())
    }

    async fn share(&self, fact: SharedFact) -> Result<(), BrokerError> {
        let broker = self.app.broker()?;
        bus_of(&*broker)?.share(&fact).await.map(drop)
    }

    /// Ends the workers: they take no more jobs, and running jobs have the worker's grace. There is
    /// no answer.
    pub async fn shutdown(&self) -> Result<(), BrokerError> {
        self.send("shutdown", json!({})).await
    }

    /// Sets how many jobs a worker runs at a time. Celery's workers do not know this command.
    pub async fn set_concurrency(&self, limit: usize) -> Result<Vec<Answer>, BrokerError> {
        self.tell(answers::CONCURRENCY, json!({ "n": limit })).await
    }

    /// Sets how often a job may begin, in Celery's form: `10/s`, `5/m`, `100/h`; `0` for no limit.
    pub async fn rate_limit(&self, job: &str, rate: &str) -> Result<Vec<Answer>, BrokerError> {
        self.tell("rate_limit", json!({"task_name": job, "rate_limit": rate})).await
    }

    /// Sets the time limits of a job's runs that begin later, unless their messages have limits of
    /// their own. `None` is no limit.
    pub async fn time_limit(
        &self,
        job: &str,
        soft: Option<Duration>,
        hard: Option<Duration>,
    ) -> Result<Vec<Answer>, BrokerError> {
        let [soft, hard] = [soft, hard].map(|limit| limit.map(|limit| limit.as_secs_f64()));
        self.tell("time_limit", json!({"task_name": job, "soft": soft, "hard": hard})).await
    }

    /// Has the workers take messages of one more queue, until they end.
    pub async fn add_queue(&self, queue: &str) -> Result<Vec<Answer>, BrokerError> {
        self.tell("add_consumer", json!({ "queue": queue })).await
    }

    /// Has the workers take no more messages of a queue, until they end.
    pub async fn cancel_queue(&self, queue: &str) -> Result<Vec<Answer>, BrokerError> {
        self.tell("cancel_consumer", json!({ "queue": queue })).await
    }

    /// Turns events of jobs on or off.
    pub async fn enable_events(&self, on: bool) -> Result<Vec<Answer>, BrokerError> {
        self.tell(if on { "enable_events" } else { "disable_events" }, json!({})).await
    }

    /// The events of workers and jobs from now on. Workers send those of jobs while they are
    /// [enabled](Self::enable_events).
    pub async fn events(&self) -> Result<ControlEvents, BrokerError> {
        let broker = self.app.broker()?;
        let notices = bus_of(&*broker)?.subscribe(Topic::Events, "").await?;
        Ok(ControlEvents { notices, read: VecDeque::new() })
    }

    /// Sends a command that this type has no method for, and collects the answers.
    pub async fn tell(&self, method: &str, arguments: Value) -> Result<Vec<Answer>, BrokerError> {
        let replies = self.ask(method, arguments).await?;
        Ok(replies.into_iter().map(|(worker, result)| Answer { worker, result }).collect())
    }

    async fn ask(&self, method: &str, arguments: Value) -> Result<Replies, BrokerError> {
        let [replies] = self.ask_all([(method, arguments)]).await?;
        Ok(replies)
    }

    /// Sends commands together, and collects the replies to each.
    async fn ask_all<const N: usize>(
        &self,
        questions: [(&str, Value); N],
    ) -> Result<[Replies; N], BrokerError> {
        let broker = self.app.broker()?;
        let bus = bus_of(&*broker)?;
        if bus.heartbeat_interval().is_some() {
            known::watch(&self.app);
        }
        let inbox = ids::random();
        let mut notices = bus.subscribe(Topic::Replies, &inbox).await?;
        let mut tickets = Vec::new();
        for (method, arguments) in questions {
            let command = Command {
                ticket: Some(ids::random()),
                reply_to: Some(inbox.clone()),
                ..self.command(method, arguments)
            };
            bus.notify(command.write(Some(wall_time() + self.wait))).await?;
            tickets.extend(command.ticket);
        }
        let end = deadline_after(self.wait);
        let mut all = [(); N].map(|()| Replies::new());
        // A message has one reply, so a check costs little: the names may be ten thousand.
        let mut replies_to_check = 0;
        loop {
            if replies_to_check == 0 {
                match self.expected(bus).await? {
                    Some(expected) => {
                        let answered = |replies: &Replies| {
                            expected.iter().filter(|name| replies.contains_key(*name)).count()
                        };
                        replies_to_check =
                            all.iter().map(|replies| expected.len() - answered(replies)).sum();
                        if replies_to_check == 0 {
                            return Ok(all);
                        }
                    }
                    None => replies_to_check = 1,
                }
            }
            let notice = match timeout_at(end, notices.next()).await {
                Ok(notice) => notice?,
                Err(TimedOut) => return Ok(all),
            };
            replies_to_check -= 1;
            let ticket = notice.headers.get("ticket").and_then(Value::as_str);
            let question = tickets.iter().position(|known| Some(&**known) == ticket);
            let Some(replies) = question.and_then(|question| all.get_mut(question)) else {
                continue;
            };
            if notice.body.len() > LARGEST_REPLY {
                continue;
            }
            let Ok(Value::Object(told)) = serde_json::from_slice(&notice.body) else { continue };
            for (worker, reply) in told {
                let reply = match reply.get("error") {
                    Some(Value::String(error)) => Err(error.clone()),
                    _ => Ok(reply),
                };
                replies.insert(worker, reply);
            }
        }
    }

    /// The workers whose answers are waited for, if they are known.
    async fn expected(
        &self,
        bus: &dyn crate::Bus,
    ) -> Result<Option<BTreeSet<String>>, BrokerError> {
        if self.to.is_some() {
            return Ok(self.to.clone());
        }
        if let Some(names) = bus.workers().await? {
            return Ok(Some(names.into_iter().collect()));
        }
        let (known, now) = (&self.app.0.control.known, wall_time());
        Ok(known.is_complete(now).then(|| known.living(now).into_keys().collect()))
    }

    fn command(&self, method: &str, arguments: Value) -> Command {
        let arguments = match arguments {
            Value::Object(arguments) => arguments,
            _ => Map::new(),
        };
        let destination = self.to.as_ref().map(|to| to.iter().cloned().collect());
        Command { destination, ..Command::new(method, arguments) }
    }

    /// Revokes and terminates jobs without waiting for answers.
    pub(crate) async fn post_revokes(&self, ids: &[String]) -> Result<(), BrokerError> {
        for id in ids {
            self.share(SharedFact::Revoked(id.clone())).await?;
        }
        // A command of more than a megabyte is read by nobody.
        for ids in ids.chunks(1_000) {
            let arguments = json!({"task_id": ids, "terminate": true, "signal": "SIGTERM"});
            self.send("revoke", arguments).await?;
        }
        Ok(())
    }

    /// Sends a command without waiting for answers.
    pub(crate) async fn send(&self, method: &str, arguments: Value) -> Result<(), BrokerError> {
        let broker = self.app.broker()?;
        bus_of(&*broker)?.notify(self.command(method, arguments).write(None)).await
    }
}

fn bus_of(broker: &dyn Broker) -> Result<&dyn crate::Bus, BrokerError> {
    broker.bus().ok_or_else(|| BrokerError::Refused("this broker has no control".to_owned()))
}

/// The events of a broker's workers and their jobs. Made by [`Control::events`].
#[derive(Debug)]
#[must_use = "dropping it ends the subscription"]
pub struct ControlEvents {
    notices: Box<dyn Notices>,
    read: VecDeque<ControlEvent>,
}

impl ControlEvents {
    /// Waits for the next event.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted, no event is lost.
    ///
    /// # Errors
    ///
    /// The broker's. After [`BrokerError::Lost`], the events of the outage are missing.
    pub async fn next(&mut self) -> Result<ControlEvent, BrokerError> {
        loop {
            if let Some(event) = self.read.pop_front() {
                return Ok(event);
            }
            let notice = self.notices.next().await?;
            if notice.body.len() > LARGEST_REPLY {
                continue;
            }
            match serde_json::from_slice(&notice.body) {
                Ok(Value::Array(events)) => {
                    self.read.extend(events.into_iter().filter_map(ControlEvent::read));
                }
                Ok(event) => self.read.extend(ControlEvent::read(event)),
                Err(_) => {}
            }
        }
    }
}
