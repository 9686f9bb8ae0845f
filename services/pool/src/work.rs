//! The tasks of a pool in which the manager makes, verifies, cleans and destroys objects.
//!
//! A task whose future is dropped before its end, by a panic or with its kernel, leaves its object
//! to the keeper.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use pikake_traps::{Builder, is_closing, shield, timed, timeout_after};

use crate::core::{Core, Kept, Known, Stranded};
use crate::error::{CreateError, GetError};
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

/// Starts a task of the pool. Outside of the pool's kernel, leaves the object to the keeper. A
/// kernel that is being shut down takes no task: the object is then left to the keeper, and the
/// pool closes.
pub(crate) fn start<M: Manager>(
    core: &Rc<Core<M>>,
    kind: Kind,
    kept: Option<Kept<M::Object>>,
    unit: Option<Unit>,
) {
    if !core.is_home() {
        if let Some(kept) = kept {
            core.strand(Stranded { kept, kind });
        }
        return;
    }
    let work = work(core, kind, kept, unit);
    let task = Builder::new().spawned_at(core.built_at);
    let task = match kind {
        // An object whose cleaning does not wait is ready at once.
        Kind::Clean => task.eager().spawn(work),
        Kind::Create | Kind::Verify | Kind::Destroy => task.spawn(work),
    };
    if is_closing() {
        core.refused();
    }
    if !task.is_finished() {
        task.task_ref().set_name(core.names[kind as usize].clone());
    }
}

/// The future of a task of the pool.
pub(crate) fn work<M: Manager>(
    core: &Rc<Core<M>>,
    kind: Kind,
    kept: Option<Kept<M::Object>>,
    unit: Option<Unit>,
) -> impl Future<Output = ()> + use<M> {
    Work::begin(core, kind, kept).run(unit)
}

/// A task's part in the counts of its pool.
struct Work<M: Manager> {
    core: Rc<Core<M>>,
    kind: Kind,
    kept: Option<Kept<M::Object>>,
    /// Whether the work is a cleaning that has not had to wait yet.
    is_fresh: bool,
    is_done: bool,
}

impl<M: Manager> Work<M> {
    fn begin(core: &Rc<Core<M>>, kind: Kind, kept: Option<Kept<M::Object>>) -> Self {
        core.begin_work(kind);
        let is_fresh = kind == Kind::Clean;
        if is_fresh {
            core.count_fresh(true);
        }
        Self { core: core.clone(), kind, kept, is_fresh, is_done: false }
    }

    async fn run(mut self, unit: Option<Unit>) {
        match self.kind {
            Kind::Create => self.create(unit).await,
            Kind::Verify => self.verify().await,
            Kind::Clean => self.clean().await,
            Kind::Destroy => self.destroy().await,
        }
    }

    async fn create(&mut self, unit: Option<Unit>) {
        let core = self.core.clone();
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
        core.count(|counters| counters.created += 1);
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
            Err(_) => {
                self.turn(Kind::Destroy);
                self.core.serve();
                self.destroy().await;
            }
        }
    }

    /// Verifies the object. An error without a cause: the manager gave no answer in time.
    async fn is_verified(&mut self) -> Result<(), Option<M::Error>> {
        let core = self.core.clone();
        let Some(kept) = &mut self.kept else { return Ok(()) };
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
        let core = self.core.clone();
        if !self.kept.as_ref().is_some_and(|kept| core.is_dead(&kept.object)) {
            if self.is_cleaned().await {
                return self.finish(Known::Nothing);
            }
            core.count(|counters| counters.clean_failures += 1);
        }
        self.turn(Kind::Destroy);
        core.serve();
        self.destroy().await;
    }

    async fn is_cleaned(&mut self) -> bool {
        let core = self.core.clone();
        let Self { kept: Some(kept), is_fresh, .. } = self else { return false };
        let cleaned = core.manager.clean(&mut kept.object);
        let mut cleaned = pin!(timeout_after(core.options.clean_within, cleaned));
        let cleaned = poll_fn(|cx| {
            let polled = cleaned.as_mut().poll(cx);
            if polled.is_pending() && std::mem::take(is_fresh) {
                // It may take long, so a caller who waits may get a new object before.
                core.count_fresh(false);
                core.serve();
            }
            polled
        });
        matches!(cleaned.await, Ok(Ok(())))
    }

    async fn destroy(&mut self) {
        let core = self.core.clone();
        if let Some(Kept { object, unit, .. }) = self.kept.take() {
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

    /// Goes on with other work on the same object.
    fn turn(&mut self, kind: Kind) {
        self.end();
        self.core.begin_work(kind);
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
        self.core.end_work(self.kind);
        if std::mem::take(&mut self.is_fresh) {
            self.core.count_fresh(false);
        }
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
