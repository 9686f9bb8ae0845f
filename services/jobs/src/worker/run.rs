//! The run of one message: read, judged, executed and settled.
//!
//! Two steps: [`Run::judge`] runs the job and returns a [`Verdict`]; [`Run::settle`] does what
//! follows from the verdict at the broker, and acknowledges last. A run that is dropped in between
//! leaves its message to the worker.

use std::cell::{Cell, OnceCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pikake_sync::shared::Event;
use pikake_time::Ticks;
use pikake_traps::trigger::{Kind, fire_if_slow};
use pikake_traps::{
    Builder, TaskError, TimedOut, blocking_with, deadline_after, elapsed_since, is_closing, now,
    timeout_after, wall_time,
};
use serde_json::Value;

use crate::broker::Delivery;
use crate::broker::outcomes::{expired, revoked};
use crate::canvas::embed::Embed;
use crate::client::app::Registered;
use crate::completion::{Completion, Kind as Completed};
use crate::current::{Current, CurrentJob, Facts, NextRetry, Sent};
use crate::job::{Definition, Runner};
use crate::message::{Message, Outcome, OutcomeState};
use crate::options::{Acks, JobOptions};
use crate::rate::Turn;
use crate::report::JobStats;
use crate::running::CancelReason;
use crate::wire::failure::Failure;
use crate::wire::instant;
use crate::wire::request::{DELIVERIES, KILLS, Request, UNIQUE, own_headers};
use crate::wire::signature::CanvasSignature;
use crate::worker::batches::Member;
use crate::worker::body::{fence, panicked};
use crate::worker::builtin::builtin;
use crate::worker::ended::{Ended, ended, exceeded};
use crate::worker::limits::{Limited, limited, limited_once_begun};
use crate::worker::log;
use crate::worker::processes::Ran;
use crate::worker::ready::Ready;
use crate::worker::state::{Phase, WorkerState};

/// A job that arrives earlier than its time by no more than this is on time: brokers count in
/// milliseconds.
const ETA_TOLERANCE: Duration = Duration::from_millis(5);

/// What is to be done with a message.
pub(crate) enum Verdict {
    /// Store the outcome, and acknowledge.
    End(Outcome, Count),
    /// Send the workflow that takes the place of the job, and acknowledge.
    Replace(Box<CanvasSignature>),
    /// Add members to the job's chord; then store the outcome, a success, and acknowledge.
    AddMembers(Outcome, Vec<CanvasSignature>),
    /// Move the message to the dead letters, with a reason; store the outcome, if the job may have
    /// a waiter.
    Bury(String, Option<Outcome>),
    /// Store the outcome, publish this message with that `not_before` in place of the delivered
    /// one, and acknowledge.
    Again(Box<Message>, Option<SystemTime>, Option<Outcome>),
    /// Requeue the message.
    GiveBack,
}

/// The counter for an end.
pub(crate) type Count = fn(&mut JobStats);

pub(crate) const DONE: Count = |stats| stats.done += 1;
pub(crate) const FAILED: Count = |stats| stats.failed += 1;
pub(crate) const REVOKED: Count = |stats| stats.revoked += 1;

/// Starts a task for a delivery. The caller has taken a permit.
pub(crate) fn start(worker: &Rc<WorkerState>, delivery: Delivery) {
    let delivery = Rc::new(delivery);
    let key = worker.running.add(delivery.clone());
    let name = delivery.message.headers.get("task").and_then(Value::as_str).unwrap_or("(no job)");
    let task = Builder::new().name(name);
    let run = Run {
        worker: worker.clone(),
        key,
        delivery: Some(delivery),
        job: OnceCell::new(),
        is_acked: Cell::new(false),
        is_ignored: Cell::new(false),
        is_unlocked: Cell::new(false),
        began: Cell::new(None),
        has_permit: Cell::new(true),
        // Of a message that is not read yet.
        has_followers: Cell::new(true),
        joins_later: Cell::new(false),
    };
    let task = task.spawn(run.go());
    worker.running.set_task(key, task.task_ref());
}

/// The run of a delivery. If it is dropped before the delivery is settled, it leaves the delivery
/// to the worker.
pub(crate) struct Run {
    pub(crate) worker: Rc<WorkerState>,
    /// The key in [`RunningJobs`](crate::running::RunningJobs).
    pub(crate) key: usize,
    /// `None` once the delivery is settled.
    pub(crate) delivery: Option<Rc<Delivery>>,
    job: OnceCell<Rc<Registered>>,
    pub(crate) is_acked: Cell<bool>,
    /// Whether the sender ignores the outcome.
    pub(crate) is_ignored: Cell<bool>,
    /// Whether the lock that is released when the job begins has been released, by this run or an
    /// earlier one.
    pub(crate) is_unlocked: Cell<bool>,
    /// When the job started; `None` before that.
    began: Cell<Option<Ticks>>,
    /// Whether the run counts against the worker's concurrency: always, but while it waits for its
    /// turn or is part of a batch.
    pub(crate) has_permit: Cell<bool>,
    /// Whether something may follow from the job's end.
    pub(crate) has_followers: Cell<bool>,
    /// Whether another job joins the chord in the place of this one.
    pub(crate) joins_later: Cell<bool>,
}

impl Run {
    #[expect(clippy::manual_async_fn, reason = "an `async fn` has room for its argument twice")]
    fn go(mut self) -> impl Future<Output = ()> {
        async move {
            let verdict = match self.delivery.clone() {
                Some(delivery) => self.judge(&delivery).await,
                None => return,
            };
            self.settle(verdict).await;
        }
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut JobStats)) {
        match self.job.get() {
            Some(job) => job.counters.count(change),
            None => self.worker.app.0.unknown.count(change),
        }
    }

    /// How long ago the job started; `None` if it has not.
    pub(crate) fn seconds(&self) -> Option<f64> {
        self.began.get().map(|began| elapsed_since(began).as_secs_f64())
    }

    /// Decides what is to be done with the message, and runs the job if it is to be run.
    async fn judge(&self, delivery: &Delivery) -> Verdict {
        // In a box, as is all that is rare: a task has the size of all that it may hold over a
        // wait, and the allocator is fast up to one kilobyte.
        let request = match Request::read(&delivery.message) {
            Ok(request) => Box::new(request),
            Err(poison) => {
                let reason = poison.to_string();
                let outcome = Outcome::error(
                    OutcomeState::Failure,
                    "DecodeError",
                    "kombu.exceptions",
                    &reason,
                );
                // A job with an id may have a waiter.
                let outcome = delivery.message.job().map(|_| outcome);
                return Verdict::Bury(reason, outcome);
            }
        };
        self.is_ignored.set(request.ignore_result);
        self.is_unlocked.set(request.retries > 0);
        let embed = Embed::read(request.embed);
        self.has_followers.set(!matches!(embed, Ok(None)));
        let app = &self.worker.app.0;
        let Some(job) = self.job_of(request.job) else {
            let (why, reason) = match request.job {
                name @ "celery.chunks" => {
                    let why = format!(
                        "{name}: pikake's workers do not run this one of Celery's own tasks; send its `group()` instead"
                    );
                    (why.clone(), why)
                }
                name => (name.to_owned(), format!("no job `{name}` is registered here")),
            };
            let outcome =
                Outcome::error(OutcomeState::Failure, "NotRegistered", "celery.exceptions", &why);
            return Verdict::Bury(reason, Some(outcome));
        };
        if let Err(why) = embed.and_then(|embed| {
            embed.map_or(Ok(()), |embed| embed.check(self.worker.broker.shares_chords()))
        }) {
            let reason = format!("its workflow cannot be followed: {why}");
            tracing::warn!(id = request.id, job = request.job, reason, "a job is not run");
            let failed = Failure::new("InvalidTaskError", "celery.exceptions", &*reason);
            return Verdict::Bury(reason, Some(failed.into_outcome()));
        }
        let job = self.job.get_or_init(|| job);
        job.counters.count(|stats| stats.running += 1);
        if let Some(verdict) = self.check(delivery, &request) {
            return verdict;
        }
        if delivery.attempt >= app.max_deliveries.get() {
            let reason = format!("it was delivered {} times, and never ended", delivery.attempt);
            let failed = Failure::new("WorkerLostError", "billiard.exceptions", &*reason);
            return Verdict::Bury(reason, Some(failed.into_outcome()));
        }
        if !delivery.is_counted {
            let mut message = delivery.message.clone();
            message.headers.insert(DELIVERIES.to_owned(), delivery.attempt.into());
            return Verdict::Again(Box::new(message), None, None);
        }
        let mut member = None;
        if let Runner::Batch(batch) = job.definition.runner {
            match Box::pin(self.gather(job, batch, delivery)).await {
                Ok(joined) => member = Some(joined),
                Err(verdict) => return verdict,
            }
            if let Some(verdict) = self.check(delivery, &request) {
                return verdict;
            }
        } else if job.limiter.rate().is_some() {
            if !Box::pin(self.wait_for_turn(job, &request)).await {
                return Verdict::GiveBack;
            }
            // Much may have happened meanwhile.
            if let Some(verdict) = self.check(delivery, &request) {
                return verdict;
            }
        }
        self.run_job(delivery, &request, job, member).await
    }

    /// The job of this name that is registered or built in.
    fn job_of(&self, name: &str) -> Option<Rc<Registered>> {
        let mut jobs = self.worker.app.0.jobs.borrow_mut();
        if let Some(job) = jobs.get(name) {
            return Some(job.clone());
        }
        let (name, run) = builtin(name)?;
        let definition = Definition::new(name, JobOptions::DEFAULT, Runner::Task(run));
        Some(jobs.entry(definition.name).or_insert(Rc::new(Registered::new(definition))).clone())
    }

    /// Checks whether a job is not to be run, or not now.
    pub(crate) fn check(&self, delivery: &Delivery, request: &Request<'_>) -> Option<Verdict> {
        if self.worker.app.0.revoked.borrow().revokes(&delivery.message) {
            return Some(Verdict::End(revoked("cancelled"), REVOKED));
        }
        if request.expires.is_some() || request.eta.is_some() {
            let now = wall_time();
            if request.expires.is_some_and(|expires| expires <= now) {
                return Some(Verdict::End(expired(), REVOKED));
            }
            if let Some(eta) = request.eta.filter(|eta| *eta > now + ETA_TOLERANCE) {
                // An expiry before that time is stored when it happens.
                let not_before = request.expires.map_or(eta, |expires| eta.min(expires));
                let message = Box::new(delivery.message.clone());
                return Some(Verdict::Again(message, Some(not_before), None));
            }
        }
        None
    }

    /// Waits until the job's rate lets the run begin; `false` if the worker ends before. Other jobs
    /// run meanwhile.
    async fn wait_for_turn(&self, job: &Registered, request: &Request<'_>) -> bool {
        let key = job.definition.options.rate_by;
        let key = key.map_or_else(String::new, |key| key.argument(request.args, request.kwargs));
        while let Turn::After(length, changed) = job.limiter.turn(&key) {
            if self.has_permit.replace(false) {
                self.worker.release_permit();
            }
            match timeout_after(length, changed.wait()).await {
                Err(TimedOut) => break,
                Ok(Ok(())) if self.worker.phase() == Phase::Open => {}
                Ok(_) => return false,
            }
        }
        if !self.has_permit.get() {
            match self.worker.permit().await {
                Ok(permit) if self.worker.phase() == Phase::Open => permit.forget(),
                _ => return false,
            }
            self.has_permit.set(true);
        }
        true
    }

    async fn run_job(
        &self,
        delivery: &Delivery,
        request: &Request<'_>,
        job: &Registered,
        member: Option<Member>,
    ) -> Verdict {
        let options = &job.definition.options;
        let limits = job.limits.get();
        let soft = request.soft_limit.or(limits.soft);
        let hard = request.hard_limit.or(limits.hard);
        let facts = Arc::new(Facts {
            id: request.id.to_owned(),
            name: job.definition.name,
            queue: delivery.queue.clone(),
            root_id: request.root_id.to_owned(),
            retries: request.retries,
            max_retries: request.max_retries.unwrap_or(options.retries),
            replacements: request.replacements,
            attempt: delivery.attempt.saturating_add(request.kills).saturating_add(request.resent),
            headers: own_headers(&delivery.message.headers),
            sent: Sent {
                parent_id: request.parent_id.map(str::to_owned),
                group: request.group.map(str::to_owned),
                priority: delivery.message.priority,
                eta: request.eta,
                soft_limit: soft,
                hard_limit: hard,
            },
            on_progress: Some(self.worker.on_progress.clone()),
            ..Facts::default()
        });
        let current = CurrentJob { facts, cancel: None };
        let mut ready = match Ready::read(job.definition.runner, options.acks, &current, request) {
            Ok(ready) => ready,
            Err(ended) => return self.verdict(delivery, request, &current.facts, ended, job),
        };
        if options.acks == Acks::Early {
            ready = match Box::pin(self.ack_before(ready, delivery.receipt, request.id)).await {
                Ok(ready) => ready,
                Err(verdict) => return verdict,
            };
        }
        if request.retries == 0 && delivery.message.headers.contains_key(UNIQUE) {
            if let Err(verdict) = Box::pin(self.unlock_before(delivery, request)).await {
                return verdict;
            }
        }
        let began = now();
        self.worker.running.set_began(self.key, current.facts.clone(), began);
        self.began.set(Some(began));
        log::started(delivery, request.retries);
        if self.worker.events.is_on() {
            self.worker.events.started(request.id);
        }
        let ended = match ready {
            Ready::Task(body) => {
                if let Some(soft) = soft {
                    let _ = current.facts.deadline.set(deadline_after(soft));
                }
                let limited = limited(soft, hard, body).await;
                ended(limited, |output| output.map_or_else(Ended::Panicked, Ended::Returned))
            }
            Ready::Batch(element) => {
                if let Some(soft) = soft {
                    let _ = current.facts.deadline.set(deadline_after(soft));
                }
                let member = member.expect("the job of a batch has gathered");
                let answer = self.answer(member, element, current.clone());
                ended(Box::pin(limited(soft, hard, answer)).await, |ended| ended)
            }
            Ready::Thread(work) => {
                let mut job = current.clone();
                let work = |begun: Arc<Event>| {
                    blocking_with(move |flag| {
                        begun.set();
                        job.cancel = Some(flag.clone());
                        fence(Current::Job(job), work)
                    })
                };
                // In a box, so that other jobs' tasks are not larger for it.
                let limited = Box::pin(limited_once_begun(soft, hard, work)).await;
                ended(limited, |output| match output {
                    Ok(Ok(returned)) => Ended::Returned(returned),
                    Ok(Err(panic)) => Ended::Panicked(panic),
                    Err(TaskError::Panicked(panic)) => {
                        Ended::Panicked(panic.message().unwrap_or_default().to_owned())
                    }
                    Err(_) => Ended::Interrupted,
                })
            }
            Ready::Process => {
                // The limits begin when the job has a process.
                let processes = &self.worker.processes;
                let Ok(_slot) = processes.slot().await else {
                    return self.verdict(
                        delivery,
                        request,
                        &current.facts,
                        Ended::Interrupted,
                        job,
                    );
                };
                let limited = match Box::pin(processes.take()).await {
                    Ok(process) => {
                        let ran = Box::pin(processes.run(process, &current, request));
                        limited(soft, hard, ran).await
                    }
                    Err(ran) => Limited { output: Some(ran), exceeded: None },
                };
                ended(limited, |ran| match ran {
                    Ran::Returned(returned, next_retry) => {
                        *current.facts.next_retry() = next_retry;
                        Ended::Returned(returned)
                    }
                    Ran::Panicked(panic) => Ended::Panicked(panic),
                    Ran::WrongArguments(why) => Ended::WrongArguments(why),
                    Ran::Killed(how) => Ended::Killed(how),
                    Ran::Interrupted => Ended::Interrupted,
                })
            }
        };
        if let Some(began) = self.began.get() {
            let took = elapsed_since(began);
            job.run_times.note(took);
            fire_if_slow(Kind::SlowJob, took, || format!("{} {}", request.job, request.id));
        }
        self.verdict(delivery, request, &current.facts, ended, job)
    }

    /// The verdict for a job that has ended.
    fn verdict(
        &self,
        delivery: &Delivery,
        request: &Request<'_>,
        facts: &Facts,
        ended: Ended,
        job: &Registered,
    ) -> Verdict {
        let failed = match ended {
            Ended::Returned(Ok(completion)) => return self.completed(delivery, completion),
            Ended::WrongArguments(why) => {
                let outcome = Failure::new("TypeError", "builtins", &*why).into_outcome();
                return Verdict::Bury(why, Some(outcome));
            }
            ended => ended,
        };
        match self.worker.running.cancel_reason(self.key) {
            Some(CancelReason::Revoked) => return Verdict::End(revoked("cancelled"), REVOKED),
            Some(CancelReason::Shutdown) if !self.is_acked.get() => return Verdict::GiveBack,
            // A kernel that ends interrupts its tasks without the worker's doing.
            None if !self.is_acked.get() && is_closing() => return Verdict::GiveBack,
            _ => {}
        }
        let failed = match failed {
            Ended::Panicked(panic) => return self.fail(panicked(panic)),
            Ended::Killed(how) => return self.killed(delivery, request, how),
            Ended::Exceeded(limit) => exceeded(limit),
            Ended::Interrupted => Failure::new("Interrupted", "pikake", "the job was interrupted"),
            Ended::Returned(Err(failed)) => failed,
            Ended::Returned(Ok(_)) | Ended::WrongArguments(_) => unreachable!("returned above"),
        };
        if request.retries >= facts.max_retries {
            return self.fail(failed);
        }
        let backoff = job.definition.options.backoff;
        let NextRetry { delay, arguments } = facts.next_retry().clone();
        let pause = delay.unwrap_or_else(|| backoff.draw(request.retries));
        let not_before = instant::after(pause);
        if request.expires.is_some_and(|expires| expires <= not_before) {
            // The retry would come too late. Its cause goes into the traceback.
            return Verdict::End(expired().with_traceback(Some(failed.to_string())), REVOKED);
        }
        let mut message = delivery.message.clone();
        if let Some([args, kwargs]) = arguments {
            message.set_arguments(&args, &kwargs, request.embed);
        }
        let headers = &mut message.headers;
        headers.remove(DELIVERIES);
        headers.insert("retries".to_owned(), (request.retries + 1).into());
        headers.insert("parent_id".to_owned(), request.id.into());
        if let Some(eta) = instant::write(not_before) {
            headers.insert("eta".to_owned(), eta.into());
        }
        let outcome = Outcome { state: OutcomeState::Retry, ..failed.into_outcome() };
        Verdict::Again(Box::new(message), Some(not_before), Some(outcome))
    }

    /// The verdict for a job that has not failed.
    fn completed(&self, delivery: &Delivery, completion: Completion) -> Verdict {
        match completion.0 {
            Completed::Value(value) => Verdict::End(Outcome::success(value), DONE),
            Completed::Workflow(workflow) => Verdict::Replace(workflow),
            Completed::Members(value, members) => {
                match Embed::of(&delivery.message).is_some_and(|embed| embed.is_in_chord()) {
                    true => Verdict::AddMembers(Outcome::success(value), members),
                    false => {
                        let why = "the job is in no chord, and cannot add members to it";
                        self.fail(Failure::new("ValueError", "builtins", why))
                    }
                }
            }
        }
    }

    fn fail(&self, failed: Failure) -> Verdict {
        match self.worker.app.0.buries_failed.get() && !self.is_acked.get() {
            true => Verdict::Bury(failed.to_string(), Some(failed.into_outcome())),
            false => Verdict::End(failed.into_outcome(), FAILED),
        }
    }

    /// The verdict for a job whose process has ended, perhaps through the job.
    fn killed(&self, delivery: &Delivery, request: &Request<'_>, how: String) -> Verdict {
        let kills = request.kills.saturating_add(1);
        if kills >= self.worker.app.0.max_kills.get() || self.is_acked.get() {
            let reason = format!("it ended its worker process {kills} times: {how}");
            let failed = Failure::new("WorkerLostError", "billiard.exceptions", &*reason);
            return Verdict::Bury(reason, Some(failed.into_outcome()));
        }
        log::killed(self, &how);
        let mut message = delivery.message.clone();
        message.headers.insert(KILLS.to_owned(), kills.into());
        Verdict::Again(Box::new(message), None, None)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.job.get().is_some() {
            self.count(|stats| stats.running -= 1);
        }
        self.worker.leave(
            self.key,
            self.delivery.take(),
            self.is_acked.get(),
            self.is_unlocked.get(),
            self.has_permit.get(),
        );
    }
}
