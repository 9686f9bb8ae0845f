//! The tasks of a pool in which the manager makes, verifies, cleans and destroys objects.
//!
//! A task whose future is dropped before its end, by a panic or with its kernel, leaves its object
//! to the keeper.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use pikake_traps::{
    About, Builder, Interrupted, TaskRef, WaitQueue, catch_and_log, is_closing, now, park_at,
    shield, timed, timeout_after,
};

use crate::core::{Core, Known, Stranded};
use crate::error::{CreateError, GetError};
use crate::idle::Kept;
use crate::limit::Unit;
use crate::manager::Manager;
use crate::options::Verify;

/// What a task of the pool does with an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Create,
    Verify,
    Clean,
    Destroy,
}

impl Kind {
    pub(crate) const COUNT: usize = 4;
    pub(crate) const ALL: [Self; Self::COUNT] =
        [Self::Create, Self::Verify, Self::Clean, Self::Destroy];

    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Create => "creates",
            Self::Verify => "verifies",
            Self::Clean => "cleans",
            Self::Destroy => "destroys",
        }
    }
}

/// Starts work in a task of the pool. Outside of the pool's kernel, leaves the object to the
/// keeper. A kernel that is being shut down takes no task: the object is then left to the keeper,
/// and the pool closes.
///
/// A cleaning and a verification begin at once, and have ended when this returns if they need not
/// wait.
pub(crate) fn start<M: Manager>(
    core: &Rc<Core<M>>,
    kind: Kind,
    kept: Option<Box<Kept<M::Object>>>,
    unit: Option<Unit>,
) {
    if !core.is_home() {
        if let Some(kept) = kept {
            core.strand(Stranded { kept, kind });
        }
        return;
    }
    start_at_home(core, kind, kept, unit);
}

/// [Starts](start) work where the calling code is inside the pool's kernel.
pub(crate) fn start_at_home<M: Manager>(
    core: &Rc<Core<M>>,
    kind: Kind,
    kept: Option<Box<Kept<M::Object>>>,
    unit: Option<Unit>,
) {
    let work = Work::begin(core, kind, kept, unit);
    match kind {
        Kind::Create => spawn(core, kind, work.create()),
        Kind::Verify | Kind::Clean => run_ahead(core, work),
        Kind::Destroy => spawn(core, kind, work.destroy()),
    }
}

/// Spawns a task of the pool.
fn spawn<M: Manager>(core: &Rc<Core<M>>, kind: Kind, body: impl Future<Output = ()> + 'static) {
    let name = core.names[kind as usize].clone();
    Builder::new().spawned_at(core.built_at).name(name).spawn(body).detach();
    if is_closing() {
        core.refused();
    }
}

/// Does work up to its first wait, inside the current step, and leaves the rest to a task.
///
/// The first part runs ahead of that task's first step, with the task as the current one, because
/// the caller's task is the wrong one for the manager's code: its interruption and its deadlines
/// are not meant for that code, and a lock that the code takes would count as the caller's. The
/// keeper's task is wrong as well, since two works that both wait would count as one.
fn run_ahead<M: Manager>(core: &Rc<Core<M>>, work: Work<M>) {
    let kind = work.kind;
    let worker = core.take_worker().filter(|worker| worker.is_free());
    let mut worker = worker.unwrap_or_else(|| Box::new(Worker::new(core)));
    worker.shared.is_idle.set(false);
    worker.shared.next.set(Some(work));
    let mut has_panicked = true;
    catch_and_log("a pool's manager", || {
        let _ = worker.task.poll_ahead(worker.body.as_mut());
        has_panicked = false;
    });
    if has_panicked {
        // The work was dropped, and has left its object to the keeper.
        worker.end();
    } else if worker.shared.is_idle.get() {
        core.keep_worker(worker);
    } else {
        worker.go_on(core.names[kind as usize].clone());
    }
}

/// Does one work after the other, each up to its first wait. Work that has to wait goes on in a
/// task, which waits for that, and ends with this work.
pub(crate) struct Worker<M: Manager> {
    body: Pin<Box<dyn Future<Output = ()>>>,
    shared: Rc<Shared<M>>,
    task: TaskRef,
    given: Rc<Given>,
}

/// What a worker's body shares with the pool.
struct Shared<M: Manager> {
    next: Cell<Option<Work<M>>>,
    /// The body has done its work, and waits for the next.
    is_idle: Cell<bool>,
    /// The body ends with its work.
    is_last: Cell<bool>,
}

/// How a worker's task is given the body.
#[derive(Default)]
struct Given {
    body: Cell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    queue: WaitQueue,
}

impl<M: Manager> Worker<M> {
    fn new(core: &Core<M>) -> Self {
        let shared = Rc::new(Shared {
            next: Cell::new(None),
            is_idle: Cell::new(true),
            is_last: Cell::new(false),
        });
        let given = Rc::<Given>::default();
        let task = Builder::new().spawned_at(core.built_at);
        let task = task.spawn(given.clone().wait(core.built_at));
        if is_closing() {
            core.refused();
        }
        let body = Box::pin(shared.clone().work());
        Self { body, shared, task: task.task_ref().clone(), given }
    }

    /// Whether the task can go on with work: it has not ended, and nobody has asked it to.
    #[inline]
    fn is_free(&self) -> bool {
        !self.task.is_ended() && !self.task.was_asked_to_end()
    }

    /// Has the task go on with the work.
    fn go_on(self, name: String) {
        if !self.task.is_ended() {
            self.task.set_name(name);
        }
        self.shared.is_last.set(true);
        self.given.body.set(Some(self.body));
        self.given.queue.wake(1);
    }

    /// Ends the task, which has no work.
    pub(crate) fn end(self) {
        self.task.request_cancel(Interrupted::cancelled("the pool has no work for this task"));
    }
}

impl<M: Manager> Shared<M> {
    async fn work(self: Rc<Self>) {
        loop {
            let next = poll_fn(|_| match self.next.take() {
                Some(work) => Poll::Ready(work),
                None => Poll::Pending,
            });
            let mut work = next.await;
            match work.kind {
                Kind::Verify => work.verify().await,
                _ => work.clean().await,
            }
            drop(work);
            if self.is_last.get() {
                return;
            }
            self.is_idle.set(true);
        }
    }
}

impl Given {
    async fn wait(self: Rc<Self>, place: &'static Location<'static>) {
        let about = || About::new("work of a pool that has to wait");
        while let Ok(()) = match self.body.take() {
            Some(body) => return body.await,
            None => park_at((&self.queue, about), place).await,
        } {}
    }
}

/// A task's part in the counts of its pool.
pub(crate) struct Work<M: Manager> {
    core: Rc<Core<M>>,
    kind: Kind,
    kept: Option<Box<Kept<M::Object>>>,
    /// The part of a common limit for an object that is to be made.
    unit: Option<Unit>,
    /// Whether the work is a cleaning that has not had to wait yet.
    is_fresh: bool,
    is_done: bool,
}

impl<M: Manager> Work<M> {
    #[inline]
    pub(crate) fn begin(
        core: &Rc<Core<M>>,
        kind: Kind,
        kept: Option<Box<Kept<M::Object>>>,
        unit: Option<Unit>,
    ) -> Self {
        let is_fresh = kind == Kind::Clean;
        core.begin_work(kind, is_fresh);
        Self { core: core.clone(), kind, kept, unit, is_fresh, is_done: false }
    }

    async fn create(mut self) {
        let (core, unit, begun) = (self.core.clone(), self.unit.take(), now());
        let made = match core.options.create_within {
            None => core.manager.create().await.map_err(Some),
            Some(length) => {
                let made = timed(length, core.manager.create()).await;
                match made.output {
                    // An object that came late is good all the same.
                    Some(Ok(object)) => Ok(object),
                    Some(Err(error)) if !made.expired => Err(Some(error)),
                    _ => Err(None),
                }
            }
        };
        let object = match made {
            Ok(object) => object,
            Err(error) => {
                drop(unit);
                let is_timeout = error.is_none();
                return self.fail(GetError::Create(CreateError::new(error, is_timeout)));
            }
        };
        core.created(begun);
        self.kept = Some(core.made(object, unit));
        let verified = match core.options.verify {
            Verify::Always => self.is_verified().await,
            _ => Ok(()),
        };
        let Err(error) = verified else {
            core.creation_succeeded();
            return self.finish(Known::New);
        };
        self.turn(Kind::Destroy);
        core.creation_failed(match error {
            Some(error) => GetError::Verify(Arc::new(error)),
            None => GetError::Create(CreateError::new(None, true)),
        });
        self.destroy().await;
    }

    /// The creation has given no object.
    fn fail(&mut self, error: GetError<M::Error>) {
        self.end();
        self.core.creation_failed(error);
    }

    async fn verify(&mut self) {
        match self.is_verified().await {
            Ok(()) => self.finish(Known::Good),
            Err(_) => self.discard(),
        }
    }

    /// Verifies the object. An error without a cause: the manager gave no answer in time.
    async fn is_verified(&mut self) -> Result<(), Option<M::Error>> {
        let Self { core, kept: Some(kept), .. } = self else { return Ok(()) };
        let verified = core.manager.verify(&mut kept.object);
        let verified = match timeout_after(core.options.clean_within, verified).await {
            Ok(verified) => verified.map_err(Some),
            Err(_) => Err(None),
        };
        if verified.is_err() {
            core.count(|counters| counters.verify_failures += 1);
        }
        verified
    }

    async fn clean(&mut self) {
        let is_dead = self.kept.as_ref().is_some_and(|kept| self.core.is_dead(&kept.object));
        if is_dead {
            return self.discard();
        }
        if self.is_cleaned().await {
            return self.finish(Known::Nothing);
        }
        self.core.count(|counters| counters.clean_failures += 1);
        self.discard();
    }

    async fn is_cleaned(&mut self) -> bool {
        let Self { core, kept: Some(kept), is_fresh, .. } = self else { return false };
        let cleaned = core.manager.clean(&mut kept.object);
        let mut cleaned = pin!(timeout_after(core.options.clean_within, cleaned));
        let cleaned = poll_fn(|cx| {
            let polled = cleaned.as_mut().poll(cx);
            if polled.is_pending() && std::mem::take(is_fresh) {
                // It may take long, so a caller who waits may get a new object before.
                core.is_not_fresh();
                core.serve();
            }
            polled
        });
        matches!(cleaned.await, Ok(Ok(())))
    }

    pub(crate) async fn destroy(mut self) {
        let core = self.core.clone();
        if let Some(kept) = self.kept.take() {
            let Kept { object, unit, .. } = *kept;
            let destroyed = timeout_after(core.options.clean_within, core.manager.destroy(object));
            // The shutdown of the kernel leaves the manager its time, within the grace.
            if shield(destroyed).await.is_err() {
                tracing::debug!(
                    pool = %core.options.name,
                    "the end of an object took longer than {:?}, and was cut short",
                    core.options.clean_within,
                );
            }
            core.count(|counters| counters.destroyed += 1);
            drop(unit);
        }
        self.end();
        core.gone();
    }

    /// The object is bad.
    fn discard(&mut self) {
        self.end();
        start(&self.core, Kind::Destroy, self.kept.take(), None);
        self.core.serve();
    }

    /// Goes on with other work on the same object.
    fn turn(&mut self, kind: Kind) {
        self.end();
        self.core.begin_work(kind, false);
        (self.kind, self.is_done) = (kind, false);
    }

    /// The object is good.
    fn finish(&mut self, known: Known) {
        self.end();
        if let Some(kept) = self.kept.take() {
            self.core.ready(kept, known);
        }
        // Another creation or verification may begin.
        self.core.serve();
    }

    /// Takes the work out of the counts.
    fn end(&mut self) {
        self.is_done = true;
        self.core.end_work(self.kind, std::mem::take(&mut self.is_fresh));
    }
}

impl<M: Manager> Drop for Work<M> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        self.end();
        let kept = self.kept.take();
        let is_left = kept.is_some();
        if let Some(kept) = kept {
            self.core.strand(Stranded { kept, kind: Kind::Destroy });
        }
        if self.kind == Kind::Create && std::thread::panicking() {
            self.core.creation_failed(GetError::Create(CreateError::new(None, false)));
        } else if !is_left {
            if self.kind == Kind::Destroy && !std::thread::panicking() {
                self.core.cut_short();
            }
            // The kernel is being shut down. Nothing more can be started.
            self.core.ends.wake(usize::MAX);
            self.core.call_keeper();
        }
    }
}
