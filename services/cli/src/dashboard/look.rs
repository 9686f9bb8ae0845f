//! The state of a broker and its workers, as the page's server has seen it last.
//!
//! ```text
//!   idle ──(1)──▶ looks every two seconds ──(2)──▶ idle
//! ```
//!
//! (1) A page asks ([`Looker::snapshot`]). (2) No page has asked for [`LEASE`], or the server ends.
//! Events of jobs are listened to in the same time: workers whose events are off turn them on at
//! (1), and off again at (2).

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use pikake::jobs::{App, BrokerError, Control, ControlEvents, Counts, JobInfo, WorkerInfo};
use pikake::sync::Event;
use pikake::time::{Deadline, Ticks};
use pikake::traps::{deadline_after, elapsed_since, now, wall_time};
use pikake::{Interrupted, shield, sleep, timeout_after};
use serde::Serialize;

use crate::dashboard::Readiness;
use crate::dashboard::history::History;

/// How long the broker is looked at after the last request of a page.
const LEASE: Duration = Duration::from_secs(60);
/// The pause between two looks.
const INTERVAL: Duration = Duration::from_secs(2);
/// How long a look may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// After so long, a worker is asked for its events again.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// How many running or reserved jobs a snapshot has.
const MOST_JOBS: usize = 500;

/// A queue of the page. `counts` is absent if the broker does not say, and `error` then says why.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Queue {
    pub(crate) name: String,
    ready: u64,
    taken: Option<u64>,
    delayed: u64,
    dead: u64,
    consumers: Option<u64>,
    is_paused: bool,
    error: Option<String>,
}

/// What was seen of a broker and its workers. Times are seconds since 1970.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Snapshot {
    at: f64,
    broker: String,
    /// `open`, or what is wrong with the connection.
    state: String,
    pub(crate) queues: Vec<Queue>,
    workers: Vec<WorkerInfo>,
    running: Vec<JobInfo>,
    running_count: usize,
    reserved: Vec<JobInfo>,
    reserved_count: usize,
    /// Why the last look failed; the rest is of the look before it.
    error: Option<String>,
}

/// Looks at a broker while a page wants it.
pub(crate) struct Looker {
    app: App,
    /// A worker that is not ready, for example since it ends, is not looked from.
    readiness: Readiness,
    /// When the last page asked; `None` if none did.
    asked: Cell<Option<Deadline>>,
    is_wanted: Event,
    has_looked: Event,
    snapshot: RefCell<Snapshot>,
    history: RefCell<History>,
}

impl Looker {
    pub(crate) fn new(app: App, readiness: Readiness) -> Rc<Self> {
        let snapshot = Snapshot { broker: app.redacted_url(), ..Snapshot::default() };
        Rc::new(Self {
            app,
            readiness,
            asked: Cell::new(None),
            is_wanted: Event::new(),
            has_looked: Event::new(),
            snapshot: RefCell::new(snapshot),
            history: RefCell::default(),
        })
    }

    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    pub(crate) fn history(&self) -> Ref<'_, History> {
        self.history.borrow()
    }

    /// The last snapshot, after the first one was made; it is followed by others for a while.
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, Interrupted> {
        self.want();
        self.has_looked.wait().await?;
        Ok(self.snapshot.borrow().clone())
    }

    /// Has the broker looked at for a while.
    pub(crate) fn want(&self) {
        self.asked.set(Some(deadline_after(LEASE)));
        self.is_wanted.set();
    }

    fn is_wanted(&self) -> bool {
        self.asked.get().is_some_and(|until| !until.is_due(now()))
    }

    /// Whether jobs are taken, or why not.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        (self.readiness)()
    }

    /// Looks again and again while a page wants it.
    pub(crate) async fn run(self: Rc<Self>) {
        while self.is_wanted.wait().await.is_ok() {
            let mut events = EventsOn::default();
            let ended = self.look_while_wanted(&mut events).await;
            let turned_on = events.turned_on;
            self.is_wanted.clear();
            if self.readiness().is_ok() {
                self.has_looked.clear();
            }
            if !turned_on.is_empty() {
                let turning_off =
                    async { self.app.control().to(turned_on).enable_events(false).await.map(drop) };
                // In a shield: an interruption that ends the server must not leave the events on.
                let turned_off = shield(timeout_after(PATIENCE, turning_off)).await;
                if !matches!(turned_off, Ok(Ok(()))) {
                    tracing::warn!("workers may go on sending events of jobs");
                }
            }
            if ended.is_err() {
                return;
            }
        }
    }

    async fn look_while_wanted(&self, events: &mut EventsOn) -> Result<(), Interrupted> {
        while self.is_wanted() && self.readiness().is_ok() {
            let error = match timeout_after(PATIENCE, self.look(events)).await {
                Ok(Ok(snapshot)) => {
                    *self.snapshot.borrow_mut() = snapshot;
                    None
                }
                Ok(Err(BrokerError::Interrupted(why))) => return Err(why),
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("the broker does not answer within {PATIENCE:?}")),
            };
            self.tell(error);
            sleep(INTERVAL).await?;
        }
        Ok(())
    }

    /// Completes the snapshot, and notifies the requests that wait for the first one.
    fn tell(&self, error: Option<String>) {
        let mut snapshot = self.snapshot.borrow_mut();
        snapshot.error = error;
        snapshot.state = self.state();
        self.has_looked.set();
    }

    /// `open`, or what is wrong with the connection.
    pub(crate) fn state(&self) -> String {
        self.app.broker().map_or_else(|_| "not connected".to_owned(), |broker| broker.state())
    }

    async fn look(&self, events: &mut EventsOn) -> Result<Snapshot, BrokerError> {
        let app = &self.app;
        let control = app.control();
        let mut workers = control.workers().await?;
        let mut running = control.running().await?;
        let mut reserved = control.reserved().await?;
        turn_events_on(&control, &workers, events).await?;
        let paused = control.paused().await?;
        let broker = app.broker()?;
        let mut names: BTreeSet<String> = app.queues().into_keys().collect();
        names.extend(broker.queues().await?.into_iter().flatten());
        names.extend(workers.iter().flat_map(|worker| worker.queues.iter().cloned()));
        let names: Vec<String> = names.into_iter().collect();
        let counted = broker.counts_of(&names).await?;
        let mut queues = Vec::new();
        for (name, counted) in names.into_iter().zip(counted) {
            let is_paused = paused.contains(&name);
            queues.push(match counted {
                Ok(mut counts) => {
                    let held = running.iter().chain(&reserved).filter(|job| job.queue == name);
                    counts.taken.get_or_insert(held.count() as u64);
                    queue(name, counts, is_paused, None)
                }
                Err(error) => queue(name, Counts::default(), is_paused, Some(error.to_string())),
            });
        }
        let counts = workers.iter_mut();
        let counts = counts.filter_map(|worker| Some((worker.name.clone(), worker.jobs.take()?)));
        self.history.borrow_mut().set_counts(counts.collect());
        let (running_count, reserved_count) = (running.len(), reserved.len());
        running.truncate(MOST_JOBS);
        reserved.truncate(MOST_JOBS);
        Ok(Snapshot {
            at: seconds(wall_time()),
            broker: app.redacted_url(),
            state: String::new(),
            queues,
            workers,
            running,
            running_count,
            reserved,
            reserved_count,
            error: None,
        })
    }

    /// Listens to events while a page wants it.
    pub(crate) async fn listen(self: Rc<Self>) {
        loop {
            if self.is_wanted.wait().await.is_err() {
                return;
            }
            let heard = match self.app.control().events().await {
                Ok(events) => self.hear(events).await,
                Err(error) => Err(error),
            };
            match heard {
                Ok(()) => {}
                Err(BrokerError::Interrupted(_)) => return,
                Err(error) => tracing::debug!(%error, "no events come"),
            }
            if sleep(INTERVAL).await.is_err() {
                return;
            }
        }
    }

    async fn hear(&self, mut events: ControlEvents) -> Result<(), BrokerError> {
        while self.is_wanted() {
            // Workers send heartbeats, but there may be none.
            if let Ok(event) = timeout_after(INTERVAL, events.next()).await {
                self.history.borrow_mut().add(&event?, seconds(wall_time()));
            }
        }
        Ok(())
    }
}

/// Asks workers whose events were not asked for lately. Each answer that does not come costs a look
/// a second.
async fn turn_events_on(
    control: &Control,
    workers: &[WorkerInfo],
    events: &mut EventsOn,
) -> Result<(), BrokerError> {
    let names = workers.iter().map(|worker| &worker.name);
    let asked = events.due_workers(names, now());
    if asked.is_empty() {
        return Ok(());
    }
    for answer in control.clone().to(asked).enable_events(true).await? {
        // A worker whose events were on before keeps them.
        if answer.result.is_ok_and(|told| told["ok"] == "task events enabled") {
            events.turned_on.insert(answer.worker);
        }
    }
    Ok(())
}

/// The workers that are asked for events.
#[derive(Debug, Default)]
struct EventsOn {
    /// The workers whose events a look has turned on.
    turned_on: BTreeSet<String>,
    /// When each worker was last asked.
    asked: BTreeMap<String, Ticks>,
}

impl EventsOn {
    /// The workers that are to be asked now: another page may have turned their events off, and a
    /// worker may have started anew.
    fn due_workers<'a>(
        &mut self,
        workers: impl Iterator<Item = &'a String> + Clone,
        now: Ticks,
    ) -> Vec<String> {
        let all: BTreeSet<_> = workers.clone().collect();
        self.asked.retain(|name, _| all.contains(name));
        let is_old = |asked: &Ticks| elapsed_since(*asked) >= ASK_AGAIN;
        let asked: Vec<_> =
            workers.filter(|name| self.asked.get(*name).is_none_or(is_old)).cloned().collect();
        self.asked.extend(asked.iter().map(|name| (name.clone(), now)));
        asked
    }
}

fn queue(name: String, counts: Counts, is_paused: bool, error: Option<String>) -> Queue {
    let Counts { ready, taken, delayed, dead, consumers, .. } = counts;
    Queue { name, ready, taken, delayed, dead, consumers, is_paused, error }
}

/// Seconds since 1970.
pub(crate) fn seconds(moment: SystemTime) -> f64 {
    moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that does not answer costs a look a second once a minute.
    #[test]
    fn workers_are_asked_for_events_once_a_minute() {
        pikake::sim::example(async {
            let mut events = EventsOn::default();
            let one = ["one".to_owned()];
            let both = ["one".to_owned(), "two".to_owned()];
            assert_eq!(events.due_workers(one.iter(), now()), ["one"]);
            sleep(Duration::from_secs(30)).await.unwrap();
            assert_eq!(events.due_workers(both.iter(), now()), ["two"]);
            sleep(Duration::from_secs(30)).await.unwrap();
            assert_eq!(events.due_workers(both.iter(), now()), ["one"]);
            // Gone, and there again.
            assert!(events.due_workers([].iter(), now()).is_empty());
            assert_eq!(events.due_workers(both.iter(), now()), both);
        });
    }
}
