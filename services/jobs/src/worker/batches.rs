//! Batches: the runs of several messages meet, and one call of the job's function runs them all.
//!
//! ```text
//!            (1)            (2)             (3)           (4)
//!   (none) ──────▶ gathers ──────▶ begins ───────▶ runs ───────▶ (over)
//! ```
//!
//! (1) [`Run::gather`]: the first message of the job begins a batch, with a task of its own;
//! further ones join. (2) The batch is full, its wait is over, or the worker ends; and it has its
//! turn and a permit. (3) Each message was checked again, and handed its element over by
//! [`Run::answer`], or has left. (4) The function has returned, and each message gets its answer.
//!
//! Each message keeps a run of its own, which judges, limits and settles it as any other job. A run
//! that ends early leaves the batch: a [`Member`] is dropped. A batch without members is aborted in
//! every state.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pikake_sync::Event;
use pikake_sync::oneshot;
use pikake_traps::{Builder, Interrupted, TaskRef, TimedOut, timeout_after};

use crate::batch::RunBatch;
use crate::broker::Delivery;
use crate::broker::outcomes::revoked;
use crate::client::app::Registered;
use crate::current::{Current, CurrentJob};
use crate::rate::Turn;
use crate::running::CancelReason;
use crate::worker::body::Body;
use crate::worker::ended::Ended;
use crate::worker::run::{REVOKED, Run, Verdict};
use crate::worker::state::{Phase, WorkerState};

/// The batches that gather, by their jobs' names.
#[derive(Default)]
pub(crate) struct Batches(RefCell<BTreeMap<&'static str, Rc<Batch>>>);

impl Batches {
    /// The worker ends: batches wait for no more messages.
    pub(crate) fn hurry(&self) {
        for batch in self.0.borrow().values() {
            batch.due.set();
        }
    }

    /// The batch takes no more messages.
    fn close(&self, batch: &Rc<Batch>) {
        let mut gathering = self.0.borrow_mut();
        if gathering.get(batch.name).is_some_and(|other| Rc::ptr_eq(other, batch)) {
            gathering.remove(batch.name);
        }
    }
}

struct Batch {
    name: &'static str,
    /// The messages, by numbers that are not reused.
    slots: RefCell<BTreeMap<usize, Slot>>,
    /// How many messages have joined.
    came: Cell<usize>,
    /// The last message of each id. Earlier ones leave: a lost broker delivers messages again that
    /// have gathered, and those of one id run apart.
    latest: RefCell<BTreeMap<String, usize>>,
    /// Set when the batch waits for no more messages.
    due: Event,
    /// Set when the messages are to be handed over, or the batch is over.
    begun: Event,
    /// Set when a message was handed over, or has left.
    changed: Event,
    is_over: Cell<bool>,
    task: RefCell<Option<TaskRef>>,
}

/// The place of a message in its batch.
struct Slot {
    /// The message's id.
    id: String,
    /// `None` before the message is handed over, and once the function has it.
    handed: Option<Handed>,
    is_handed: bool,
    /// Whether the message's own run was interrupted, and waits for the function nevertheless.
    is_interrupted: bool,
}

struct Handed {
    element: Box<dyn Any>,
    job: CurrentJob,
    answer: oneshot::Sender<Ended>,
}

impl Batch {
    fn is_latest(&self, id: &str, key: usize) -> bool {
        self.latest.borrow().get(id) == Some(&key)
    }

    /// Interrupts the function if all messages that it still runs for were interrupted, and drops
    /// it if there are none.
    fn look(&self) {
        let slots = self.slots.borrow();
        let Some(task) = self.task.borrow().clone() else { return };
        if slots.is_empty() {
            drop(slots);
            task.request_abort(Interrupted::cancelled("no message of the batch is left"));
        } else if slots.values().all(|slot| slot.is_interrupted) {
            task.request_cancel(Interrupted::cancelled("all jobs of the batch are interrupted"));
        }
    }
}

/// A message's membership in a batch. Dropped, the message leaves the batch.
pub(crate) struct Member {
    worker: Rc<WorkerState>,
    batch: Rc<Batch>,
    key: usize,
}

impl Member {
    fn join(
        worker: &Rc<WorkerState>,
        job: &Rc<Registered>,
        run: RunBatch,
        delivery: &Delivery,
    ) -> Self {
        let name = job.definition.name;
        let gathering = worker.batches.0.borrow().get(name).cloned();
        let batch = gathering.unwrap_or_else(|| Batch::start(worker, job, run));
        let key = batch.came.get();
        batch.came.set(key + 1);
        let id = delivery.message.job().unwrap_or_default().to_owned();
        batch.latest.borrow_mut().insert(id.clone(), key);
        let slot = Slot { id, handed: None, is_handed: false, is_interrupted: false };
        batch.slots.borrow_mut().insert(key, slot);
        // A smaller prefetch lets no more messages come.
        let most = run.size.get().min(worker.prefetch_of(&delivery.queue));
        let is_full = batch.latest.borrow().len() >= usize::from(most);
        if is_full {
            worker.batches.close(&batch);
        }
        if is_full || worker.phase() > Phase::Open {
            batch.due.set();
        }
        Self { worker: worker.clone(), batch, key }
    }

    fn is_latest(&self) -> bool {
        let slots = self.batch.slots.borrow();
        slots.get(&self.key).is_some_and(|slot| self.batch.is_latest(&slot.id, self.key))
    }

    /// Whether the function runs for another message, too.
    fn has_others(&self) -> bool {
        let slots = self.batch.slots.borrow();
        slots.iter().any(|(key, slot)| *key != self.key && !slot.is_interrupted)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let left = self.batch.slots.borrow_mut().remove(&self.key);
        if let Some(Slot { id, .. }) = left.filter(|slot| self.batch.is_latest(&slot.id, self.key))
        {
            self.batch.latest.borrow_mut().remove(&id);
        }
        if self.batch.slots.borrow().is_empty() {
            self.worker.batches.close(&self.batch);
        }
        self.batch.changed.set();
        self.batch.look();
    }
}

impl Run {
    /// Joins a batch, and waits until it begins. The verdict if it does not.
    pub(crate) async fn gather(
        &self,
        job: &Rc<Registered>,
        run: RunBatch,
        delivery: &Delivery,
    ) -> Result<Member, Verdict> {
        let running = &self.worker.running;
        let member = Member::join(&self.worker, job, run, delivery);
        running.set_gathers(self.key, true);
        // The batch takes one for all.
        if self.has_permit.replace(false) {
            self.worker.release_permit();
        }
        let begun = member.batch.begun.wait().await;
        running.set_gathers(self.key, false);
        match begun {
            Ok(()) if !member.batch.is_over.get() && member.is_latest() => Ok(member),
            _ if running.cancel_reason(self.key) == Some(CancelReason::Revoked) => {
                Err(Verdict::End(revoked("cancelled"), REVOKED))
            }
            _ => Err(Verdict::GiveBack),
        }
    }

    /// Hands the message's element over, and waits for its answer.
    pub(crate) async fn answer(
        &self,
        member: Member,
        element: Box<dyn Any>,
        job: CurrentJob,
    ) -> Ended {
        let batch = &member.batch;
        let (answer, mut answered) = oneshot::channel();
        if let Some(slot) = batch.slots.borrow_mut().get_mut(&member.key) {
            (slot.handed, slot.is_handed) = (Some(Handed { element, job, answer }), true);
        }
        batch.changed.set();
        loop {
            match (&mut answered).await {
                Ok(Ok(ended)) => return ended,
                // The batch was interrupted before its function began.
                Ok(Err(_)) => return Ended::Interrupted,
                Err(_) => {
                    let reason = self.worker.running.cancel_reason(self.key);
                    if reason == Some(CancelReason::Revoked) && member.has_others() {
                        return Ended::Interrupted;
                    }
                    if let Some(slot) = batch.slots.borrow_mut().get_mut(&member.key) {
                        slot.is_interrupted = true;
                    }
                    batch.look();
                }
            }
        }
    }
}

impl Batch {
    fn start(worker: &Rc<WorkerState>, job: &Rc<Registered>, run: RunBatch) -> Rc<Self> {
        let name = job.definition.name;
        let batch = Rc::new(Self {
            name,
            slots: RefCell::default(),
            came: Cell::new(0),
            latest: RefCell::default(),
            due: Event::new(),
            begun: Event::new(),
            changed: Event::new(),
            is_over: Cell::new(false),
            task: RefCell::default(),
        });
        worker.batches.0.borrow_mut().insert(name, batch.clone());
        let running = RunningBatch { worker: worker.clone(), batch: batch.clone(), permit: false };
        // A kernel that shuts down drops it at once.
        let task = Builder::new().name(name).spawn(running.go(job.clone(), run));
        *batch.task.borrow_mut() = Some(task.task_ref().clone());
        batch
    }

    /// Takes what was handed over; the keys are those of the slots.
    fn take(&self) -> Vec<Handed> {
        self.slots.borrow_mut().values_mut().filter_map(|slot| slot.handed.take()).collect()
    }
}

/// The task of a batch.
struct RunningBatch {
    worker: Rc<WorkerState>,
    batch: Rc<Batch>,
    /// Whether the batch counts against the worker's concurrency.
    permit: bool,
}

impl RunningBatch {
    async fn go(mut self, job: Rc<Registered>, run: RunBatch) {
        // An interruption ends the batch; its messages are requeued, or get no answer.
        let _ended = self.run(&job, run).await;
    }

    async fn run(&mut self, job: &Registered, run: RunBatch) -> Result<(), Interrupted> {
        let batch = self.batch.clone();
        if let Ok(due) = timeout_after(run.wait, batch.due.wait()).await {
            due?;
        }
        while let Turn::After(length, changed) = job.limiter.turn("") {
            match timeout_after(length, changed.wait()).await {
                Err(TimedOut) => break,
                Ok(changed) => changed?,
            }
            if self.worker.phase() > Phase::Open {
                return Ok(());
            }
        }
        let permit = self.worker.permit().await?;
        if self.worker.phase() == Phase::Cold {
            return Ok(());
        }
        permit.forget();
        self.permit = true;
        self.worker.batches.close(&batch);
        batch.begun.set();
        while batch.slots.borrow().values().any(|slot| !slot.is_handed) {
            batch.changed.wait().await?;
            batch.changed.clear();
        }
        let (mut elements, mut jobs, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        for Handed { element, job, answer } in batch.take() {
            elements.push(element);
            jobs.push(job);
            answers.push(answer);
        }
        tracing::debug!(job = batch.name, count = jobs.len(), "a batch begins");
        let ended = Body::new((run.run)(elements), Current::Batch(jobs.into())).await;
        let count = answers.len();
        let each: Vec<Ended> = match ended {
            Ok(Ok(results)) if results.len() == count => {
                results.into_iter().map(Ended::Returned).collect()
            }
            Ok(Ok(results)) => {
                let results = results.len();
                let why = format!("the batch returned {results} values for {count} messages");
                answers.iter().map(|_| Ended::Panicked(why.clone())).collect()
            }
            Ok(Err(failed)) => {
                answers.iter().map(|_| Ended::Returned(Err(failed.clone()))).collect()
            }
            Err(panic) => answers.iter().map(|_| Ended::Panicked(panic.clone())).collect(),
        };
        for (answer, ended) in answers.into_iter().zip(each) {
            // A message that has left takes none.
            let _ = answer.send(ended);
        }
        Ok(())
    }
}

impl Drop for RunningBatch {
    fn drop(&mut self) {
        let batch = &self.batch;
        batch.task.take();
        batch.is_over.set(true);
        self.worker.batches.close(batch);
        // What was handed over and not run gets no answer.
        drop(batch.take());
        batch.begun.set();
        if self.permit {
            self.worker.release_permit();
        }
    }
}
