//! What the tasks of a running worker share: who runs, who was left without an end, and how far the worker's own end is.
//!
//! ```text
//!            (1)            (2)
//!   taken ────────▶ runs ────────▶ acknowledged, buried or given back by itself
//!                    │
//!                    │ (3)            (4)
//!                    └──────▶ orphan ──────▶ given back, or revoked
//! ```
//!
//! (1) [`run::start`](crate::worker::run::start). (2) `Run::carry_out`. (3) Its task was dropped half-way: it waited for
//! foreign futures alone when it was interrupted, it was aborted, or the broker could not be reached to the end.
//! (4) [`Hall::tend_orphans`], by the worker's own task.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use pikake_sync::{Event, Semaphore};
use pikake_traps::{Interrupted, TaskRef};
use slab::Slab;

use crate::broker::{Broker, BrokerError, Delivery};
use crate::client::app::App;
use crate::current::Facts;
use crate::report::Left;
use crate::worker::processes::Processes;
use crate::worker::shutdown::Phase;
use crate::worker::unfinished::Orphans;

/// How many cancelled jobs that have not come are remembered; the oldest are forgotten first.
const REVOKED_LIMIT: usize = 10_000;

/// Why a job that runs was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Its worker ends.
    Shutdown,
    /// Somebody cancelled it.
    Revoked,
}

/// The place of one job that runs.
#[derive(Default)]
struct Place {
    task: Option<TaskRef>,
    job: Option<Arc<Facts>>,
    told: Option<Told>,
}

pub(crate) struct Hall {
    pub(crate) app: App,
    pub(crate) broker: Rc<dyn Broker>,
    pub(crate) permits: Semaphore,
    pub(crate) processes: Processes,
    places: RefCell<Slab<Place>>,
    pub(crate) orphans: Orphans,
    /// Set when the worker's own task has something to look at.
    pub(crate) changed: Event,
    phase: Cell<Phase>,
    left: RefCell<Vec<Left>>,
    failure: RefCell<Option<BrokerError>>,
}

impl Hall {
    pub(crate) fn new(app: App, broker: Rc<dyn Broker>, processes: Processes) -> Self {
        let permits = Semaphore::bounded(app.0.concurrency.get());
        Self {
            app,
            broker,
            permits,
            processes,
            places: RefCell::default(),
            orphans: Orphans::default(),
            changed: Event::new(),
            phase: Cell::new(Phase::Open),
            left: RefCell::default(),
            failure: RefCell::default(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Goes on to a later phase; never back.
    pub(crate) fn advance(&self, to: Phase) {
        if self.phase.get() < to {
            self.phase.set(to);
            self.changed.set();
        }
    }

    /// The worker cannot go on.
    pub(crate) fn fail(&self, error: BrokerError) {
        self.failure.borrow_mut().get_or_insert(error);
        self.advance(Phase::Warm);
    }

    pub(crate) fn take_failure(&self) -> Option<BrokerError> {
        self.failure.take()
    }

    /// A job is about to run, with a permit that was taken for it.
    pub(crate) fn enter(&self) -> usize {
        self.places.borrow_mut().insert(Place::default())
    }

    pub(crate) fn set_task(&self, place: usize, task: &TaskRef) {
        // It is not stepped before this step has ended, but it is dropped at once in a kernel that ends.
        if let Some(place) = self.places.borrow_mut().get_mut(place) {
            place.task = Some(task.clone());
        }
    }

    pub(crate) fn set_job(&self, place: usize, job: Arc<Facts>) {
        self.places.borrow_mut()[place].job = Some(job);
    }

    pub(crate) fn told(&self, place: usize) -> Option<Told> {
        self.places.borrow()[place].told
    }

    /// A job has ended, one way or the other. What it leaves has come to no end.
    pub(crate) fn leave(&self, place: usize, left: Option<Delivery>, is_acked: bool) {
        let told = self.places.borrow_mut().remove(place).told;
        if let Some(delivery) = left {
            self.add_orphan(delivery, told, is_acked);
        }
        if self.places.borrow().is_empty() && self.phase.get() > Phase::Open {
            self.changed.set();
        }
        // As many as were taken and forgotten.
        let _ = self.permits.release(1);
    }

    /// A delivery that no job was begun for.
    pub(crate) fn orphan(&self, delivery: Delivery) {
        self.add_orphan(delivery, None, false);
    }

    /// Whether no job runs, and nothing is to be done for one.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.borrow().is_empty() && !self.orphans.are_waited_for(self.phase.get())
    }

    /// Notes that a job was told to end by the shutdown, and did not come to a value.
    pub(crate) fn note_left(&self, id: &str, name: &str) {
        self.left.borrow_mut().push(Left { id: id.to_owned(), name: name.to_owned() });
    }

    pub(crate) fn take_left(&self) -> Vec<Left> {
        self.left.take()
    }

    /// Interrupts all jobs that run.
    pub(crate) fn interrupt_all(&self, reason: &str) {
        self.tell(Told::Shutdown, reason, |_| true);
    }

    /// Interrupts the job, if it runs here.
    pub(crate) fn revoke_running(&self, id: &str) -> bool {
        let is_it = |place: &Place| place.job.as_ref().is_some_and(|job| job.id == id);
        self.tell(Told::Revoked, "the job was cancelled", is_it)
    }

    fn tell(&self, what: Told, reason: &str, whom: impl Fn(&Place) -> bool) -> bool {
        let mut tasks = Vec::new();
        for (_, place) in self.places.borrow_mut().iter_mut().filter(|(_, place)| whom(place)) {
            place.told.get_or_insert(what);
            tasks.extend(place.task.clone());
        }
        for task in &tasks {
            task.request_cancel(Interrupted::cancelled(reason));
        }
        !tasks.is_empty()
    }

    /// Drops all jobs that run; they become orphans.
    pub(crate) fn abort_all(&self) {
        let places = self.places.borrow();
        let tasks: Vec<_> = places.iter().filter_map(|(_, place)| place.task.clone()).collect();
        drop(places);
        for task in tasks {
            task.request_abort(Interrupted::cancelled("the worker's grace is over"));
        }
    }
}

impl fmt::Debug for Hall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hall")
            .field("phase", &self.phase.get())
            .field("running", &self.places.borrow().len())
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

/// Jobs that were cancelled before they came, of the last so many.
#[derive(Debug, Default)]
pub(crate) struct Revoked {
    ids: BTreeSet<String>,
    order: VecDeque<String>,
}

impl Revoked {
    pub(crate) fn insert(&mut self, id: String) {
        if !self.ids.insert(id.clone()) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > REVOKED_LIMIT
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    /// Whether the job was cancelled. It is remembered, since it may come again.
    pub(crate) fn contains(&self, id: &str) -> bool {
        !self.ids.is_empty() && self.ids.contains(id)
    }
}
