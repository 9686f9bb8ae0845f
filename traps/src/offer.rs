//! Work that has not begun, and that another kernel may begin.
//!
//! The kernels of a process are each other's [`Peers`]. A kernel that is late offers work; an idle
//! one takes it, before it sleeps, and makes the work's future in a task of its own. The task that
//! offers is an ordinary one: if nobody has taken the work when its turn comes, it begins the work
//! itself, and otherwise it waits for the outcome.
//!
//! ```text
//!   the task that offers              the offers of the peers           an idle kernel
//!   --------------------              -----------------------           --------------
//!   Builder::offer ─────────────────▶ free
//!     its first step: Claim::Here ◀── removed
//!                     Claim::There    removed ────────────────────────▶ begun in a task
//!                       ──cancel, abort────────────────────────────────▶
//!                       ◀─outcome───────────────────────────────────────
//! ```
//!
//! Work that has begun does not move. A cancel of a task whose work is free withdraws the work, and
//! the task ends as any that was cancelled before its first step. A cancel of a task whose work was
//! taken is passed on, and the task waits on; an abort, or the end of the kernel that offered,
//! drops the work's future there. The work inherits no deadline, as no task does.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::marker::PhantomData;
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use crate::cell::Withdraw;
use crate::door;
use crate::interrupt::TaskError;
use crate::local::{Local, Start};
use crate::names::{KernelId, TaskId};
use crate::peers::{Offered, Peers};
use crate::remote::{Remote, Visitor};
use crate::seen::About;
use crate::task::{Builder, Task, current, spawn_at};
use crate::traps::foreign::{NAME, foreign_wait};

/// Starts a task whose work may begin on any kernel of the process: the one that is idle, or else
/// the current one.
///
/// `make` makes the work's future where the work begins, so it is [`Send`], as the result, and its
/// future need not be. From its first step on the work stays where it is. The task itself is one of
/// the current kernel. If the work has begun elsewhere, the task waits for it: a join, a cancel and
/// an abort of the task mean the work's, and a panic of the work is the task's.
///
/// The kernels are those of `#[pikake::main(threads = N)]`, or of a `Kernels` that was started in a
/// task of this one. The work is offered to them if this kernel is late by a millisecond, or has
/// other tasks to step before. On a kernel without others this is a [`spawn`](crate::spawn).
///
/// Other runtimes have the like as `spawn_pinned` of a pool of local threads.
///
/// # Examples
///
/// ```
/// use pikake::task::spawn_anywhere;
/// use std::rc::Rc;
///
/// #[pikake::main(threads = 2)]
/// async fn main() -> Result<(), pikake::TaskError> {
///     let squares = (0..10).map(|number| {
///         spawn_anywhere(move || async move {
///             let number = Rc::new(number); // which is not `Send`
///             *number * *number
///         })
///     });
///     for (number, square) in squares.collect::<Vec<_>>().into_iter().enumerate() {
///         assert_eq!(square.await?, number * number);
///     }
///     Ok(())
/// }
/// ```
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn spawn_anywhere<M, F>(make: M) -> Task<F::Output>
where
    M: FnOnce() -> F + Send + 'static,
    F: Future<Output: Send + 'static> + 'static,
{
    Builder::new().spawn_anywhere(make)
}

/// Whether the current kernel is late and another one of its [`Peers`] is not, so that work that is
/// offered to them begins sooner. For services.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn should_offer() -> bool {
    door::with(|local| match local.peers() {
        Some(peers) => {
            let now = local.kernel().now();
            let is_late = now >= local.home().late_from();
            is_late && peers.has_time(local.id(), now) || offers_early(local, peers)
        }
        None => false,
    })
}

fn offers_early(local: &Local, peers: &Peers) -> bool {
    local.kernel().offers_early() && peers.has_others(local.id())
}

fn is_late(local: &Local) -> bool {
    local.kernel().now() >= local.home().late_from()
}

/// The kernel that has begun offered work, from the first step of the task that offered it.
#[derive(Debug)]
pub enum Claim<W, T> {
    /// This one: here is the work.
    Here(W),
    /// Another one.
    There(Taken<T>),
}

impl<M, F> Claim<M, F::Output>
where
    M: FnOnce() -> F,
    F: Future,
{
    /// The output of the work: begins it, if it has not begun elsewhere.
    ///
    /// # Cancellation
    ///
    /// As for [`Taken::outcome`].
    pub async fn output(self) -> F::Output {
        match self {
            Self::Here(make) => make().await,
            Self::There(taken) => taken.output().await,
        }
    }
}

impl Builder {
    /// Starts a task whose work may begin on any kernel of the process. See [`spawn_anywhere`].
    /// Work that is offered to others does not begin in this call, also in an
    /// [`eager`](Self::eager) task.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn spawn_anywhere<M, F>(self, make: M) -> Task<F::Output>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output: Send + 'static> + 'static,
    {
        self.spawn_anywhere_in(make, Claim::output)
    }

    /// As [`spawn_anywhere`](Self::spawn_anywhere), in a future that `around` makes of the
    /// [claim](Claim::output). For implementations of groups.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn spawn_anywhere_in<M, F, H, G>(self, make: M, around: H) -> Task<G::Output>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output: Send + 'static> + 'static,
        H: FnOnce(Claim<M, F::Output>) -> G + 'static,
        G: Future + 'static,
    {
        let is_offered = door::with(|local| match local.peers() {
            Some(peers) => {
                !local.ready().is_empty() || is_late(local) || offers_early(local, peers)
            }
            None => false,
        });
        match is_offered {
            true => self.offer(make, |make| make(), around),
            false => self.spawn(around(Claim::Here(make))),
        }
    }

    /// Starts a task, and offers its work to the [`Peers`] of the current kernel, if it has any.
    /// For services; see [`spawn_anywhere`].
    ///
    /// `here` makes the task's future when its turn comes, with the work if nobody has taken it. A
    /// kernel that takes the work makes `there` of it, in a task of its own.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn offer<W, M, F, H, G>(self, work: W, there: M, here: H) -> Task<G::Output>
    where
        W: Send + 'static,
        M: FnOnce(W) -> F + Send + 'static,
        F: Future<Output: Send + 'static> + 'static,
        H: FnOnce(Claim<W, F::Output>) -> G + 'static,
        G: Future + 'static,
    {
        if door::with(|local| local.kernel().outside().is_closing()) {
            // The kernel refuses the task.
            return self.spawn(here(Claim::Here(work)));
        }
        let (name, place) = (self.name, self.spawned_at.unwrap_or(Location::caller()));
        let offer = Rc::new(Offer::make(work, there, name.as_deref(), place));
        let claiming = Claiming(offer.clone());
        let task = async move { here(claiming.claim()).await };
        let task = spawn_at(task, name, place, Start::Later);
        task.task_ref().set_offer(offer);
        task
    }
}

/// The task that has begun the work.
type Beginner = OnceLock<(KernelId, TaskId)>;

/// Offered work, for the task that has offered it.
struct Offer<W, T> {
    peers: Peers,
    key: u64,
    /// The work, after a cancel before the task's first step.
    withdrawn: Cell<Option<Box<dyn Offered>>>,
    /// `None` once the work is claimed.
    taken: Cell<Option<Taken<T>>>,
    work: PhantomData<W>,
}

impl<W: Send + 'static, T: Send + 'static> Offer<W, T> {
    fn make<M, F>(work: W, there: M, name: Option<&str>, place: &'static Location<'static>) -> Self
    where
        M: FnOnce(W) -> F + Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (peers, from) = door::with(|local| {
            local.count_offer();
            (local.peers().cloned().unwrap_or_default(), local.id())
        });
        let name = format!("{} of kernel {from}", name.unwrap_or("work"));
        let (remote, visitor) = Remote::new();
        let begun = Arc::new(Beginner::new());
        let offered = Parcel { work, there, visitor, name, place, begun: begun.clone() };
        let key = peers.offer(Box::new(offered));
        let taken = Cell::new(Some(Taken { remote, begun, place }));
        Self { peers, key, withdrawn: Cell::new(None), taken, work: PhantomData }
    }
}

impl<W, T> Withdraw for Offer<W, T> {
    fn withdraw(&self) -> bool {
        let before = self.withdrawn.take();
        let withdrawn = before.or_else(|| self.peers.withdraw(self.key));
        let is_withdrawn = withdrawn.is_some();
        self.withdrawn.set(withdrawn);
        is_withdrawn
    }
}

/// The right to claim an offer. The drop withdraws the work, or has it dropped where it has begun.
struct Claiming<W, T>(Rc<Offer<W, T>>);

impl<W: 'static, T> Claiming<W, T> {
    /// The work, if nobody has taken it.
    fn claim(self) -> Claim<W, T> {
        let taken = self.0.taken.take().expect("an offer is claimed once");
        match self.0.peers.withdraw(self.0.key) {
            Some(offered) => {
                let work = offered.into_work().downcast::<W>();
                Claim::Here(*work.expect("a key has the work of its offer"))
            }
            None => Claim::There(taken),
        }
    }
}

impl<W, T> Drop for Claiming<W, T> {
    fn drop(&mut self) {
        let Some(taken) = self.0.taken.take() else { return };
        let withdrawn = self.0.peers.withdraw(self.0.key).or_else(|| self.0.withdrawn.take());
        drop(withdrawn);
        drop(taken);
    }
}

/// Work among the offers, and what a kernel needs to begin it.
struct Parcel<W, M, T> {
    work: W,
    there: M,
    visitor: Visitor<T>,
    name: String,
    place: &'static Location<'static>,
    begun: Arc<Beginner>,
}

impl<W, M, F> Offered for Parcel<W, M, F::Output>
where
    W: Send + 'static,
    M: FnOnce(W) -> F + Send + 'static,
    F: Future<Output: Send + 'static> + 'static,
{
    fn begin(self: Box<Self>) {
        let Self { work, there, visitor, name, place, begun } = *self;
        let run = visitor.run(move || there(work));
        let task = spawn_at(run, Some(name.into()), place, Start::Later);
        // Nobody else sets it.
        let _ = begun.set((task.task_ref().kernel(), task.id()));
    }

    fn into_work(self: Box<Self>) -> Box<dyn Any> {
        Box::new(self.work)
    }
}

/// Work that another kernel has begun. The drop before the outcome drops the work's future there.
pub struct Taken<T> {
    remote: Remote<T>,
    begun: Arc<Beginner>,
    place: &'static Location<'static>,
}

impl<T> Taken<T> {
    /// The outcome of the work.
    ///
    /// # Cancellation
    ///
    /// The first interruption is passed on to the work, and the wait goes on.
    ///
    /// # Errors
    ///
    /// [`TaskError::Panicked`]; [`TaskError::Cancelled`], when the work was dropped after a cancel;
    /// [`TaskError::Stopped`], when its kernel has ended.
    pub async fn outcome(mut self) -> Result<T, TaskError> {
        let begun = self.begun.clone();
        let about = || {
            About::new(match begun.get() {
                Some((kernel, task)) => format!("its work, task {} of kernel {kernel}", task.0),
                None => "its work, of another kernel".into(),
            })
        };
        loop {
            let ended = poll_fn(|cx| self.remote.poll(cx));
            match foreign_wait(ended, &NAME, about, self.place).await {
                Ok(outcome) => return outcome,
                Err(why) => self.remote.cancel(&why),
            }
        }
    }

    /// The result of the work. Without one the current task ends as the work did.
    ///
    /// # Cancellation
    ///
    /// As for [`outcome`](Self::outcome).
    pub async fn output(self) -> T {
        match self.outcome().await {
            Ok(output) => output,
            Err(error) => end_as(error).await,
        }
    }
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        self.remote.abort();
    }
}

impl<T> fmt::Debug for Taken<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken").field("begun", &self.begun).finish_non_exhaustive()
    }
}

/// Ends the current task with this outcome.
async fn end_as<T>(outcome: TaskError) -> T {
    let task = current().task_ref().clone();
    door::with(|local| local.kernel().abort(&task, outcome));
    // The kernel drops the task before the next step of any task.
    pending().await
}

impl Local {
    /// Begins the oldest offer of the kernel's [`Peers`], in a new task. Returns whether there was
    /// one. For the kernel, when it has no task to step.
    pub fn take_offer(&self) -> bool {
        let Some(offered) = self.peers().and_then(Peers::take) else { return false };
        let taken = &self.offers.taken;
        taken.set(taken.get() + 1);
        offered.begin();
        true
    }

    fn count_offer(&self) {
        let made = &self.offers.made;
        made.set(made.get() + 1);
    }

    /// The number of offers that the kernel has made.
    pub fn offers_made(&self) -> u64 {
        self.offers.made.get()
    }

    /// The number of its peers' offers that the kernel has taken.
    pub fn offers_taken(&self) -> u64 {
        self.offers.taken.get()
    }

    /// Wakes another kernel for the offers that this one has no time to take.
    pub fn pass_offers_on(&self) {
        self.peers().into_iter().for_each(Peers::wake_one);
    }

    /// Whether the kernel has [`Peers`].
    #[inline]
    pub fn has_peers(&self) -> bool {
        self.peers().is_some()
    }

    /// Whether there is an offer to take.
    pub fn has_offers(&self) -> bool {
        self.peers().is_some_and(Peers::has_offers)
    }
}
