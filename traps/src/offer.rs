//! Work that has not begun, and that another kernel may begin.
//!
//! The kernels of a process are each other's [`Peers`]. A kernel that is late offers work. A kernel
//! that has nothing else to do takes the oldest offer: its own it begins in the task that has
//! offered the work, that of another kernel in a new task. The task that offers makes its first
//! step when one of them has taken the work; if it is another kernel, the task waits for the
//! outcome. So that a busy kernel begins its own offers in the end, it takes one at each poll of
//! its driver that is due, and otherwise after some passes of its loop.
//!
//! ```text
//!   the task that offers              the offers of the peers           an idle kernel
//!   --------------------              -----------------------           --------------
//!   Builder::offer ─────────────────▶ free
//!     its first step: Claim::Here ◀── removed
//!                     Claim::There ◀─ removed ────────────────────────▶ begun in a task
//!                       ──cancel, abort────────────────────────────────▶
//!                       ◀─outcome───────────────────────────────────────
//! ```
//!
//! Work that has begun does not move. A cancel of a task whose work is free withdraws the work, and
//! the task ends as any that was cancelled before its first step. A cancel of a task whose work was
//! taken is passed on, and the task waits on; an abort, or the end of the kernel that offered,
//! drops the work's future there. The work inherits no deadline, as no task does.

use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::marker::PhantomData;
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use pikake_time::Ticks;

use crate::cell::Withdraw;
use crate::cell::reference::TaskRef;
use crate::door;
use crate::interrupt::TaskError;
use crate::kind::{TrapKind, TrapName};
use crate::local::{Local, Start};
use crate::names::{KernelId, TaskId};
use crate::peers::{LATE_AGAIN, Next, Offer, Offered, Peers, TIME_TO_TAKE};
use crate::remote::{Remote, Visitor};
use crate::seen::About;
use crate::task::{Builder, Task, current, spawn_at};
use crate::traps::foreign::{self, foreign_wait};

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
/// other tasks to step before. If none of them takes the work, this kernel begins it after all that
/// only this kernel can do; a busy kernel begins one such work after some passes of its loop. On a
/// kernel without others this is a [`spawn`](crate::spawn).
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

/// Shown as the wait of a task whose work is offered.
static NAME: TrapName = TrapName::new("offer");

/// Whether work should be offered to the [`Peers`] of the current kernel, since it may begin sooner
/// there: this kernel is late, or it was a short time ago and another one is idle. For services.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn should_offer() -> bool {
    door::with(|local| match local.peers() {
        Some(peers) => {
            let now_late = is_late(local) || local.kernel().offers_early();
            now_late && peers.has_others(local.id()) || local.was_late() && peers.idle().is_some()
        }
        None => false,
    })
}

/// Whether the kernel is late. If so, it notes that.
fn is_late(local: &Local) -> bool {
    let kernel = local.kernel();
    let now = kernel.now();
    let is_late = now >= local.home().late_from();
    if is_late {
        let until = now.saturating_add(kernel.rate().ticks_ceil(LATE_AGAIN));
        local.offers.late_until.set(until);
    }
    is_late
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
                let is_busy = !local.ready().is_empty() || is_late(local);
                (is_busy || local.kernel().offers_early()) && peers.has_others(local.id())
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
        let Some(peers) = door::with(|local| local.peers().cloned()) else {
            return self.spawn(here(Claim::Here(work)));
        };
        let (name, place) = (self.name, self.spawned_at.unwrap_or(Location::caller()));
        let (remote, visitor) = Remote::new();
        let begun = Arc::new(Beginner::new());
        let own = door::with(Local::id);
        let from = format!("{} of kernel {own}", name.as_deref().unwrap_or("work"));
        let work = Parcel { work, there, visitor, name: from, place, begun: begun.clone() };
        let taken = Cell::new(Some(Taken { remote, begun, place }));
        let key = OnceCell::new();
        let withdrawn = Cell::default();
        let offering = Rc::new(Offering { peers, key, withdrawn, taken, work: PhantomData });
        let claiming = Claiming(offering.clone());
        let task = async move { here(claiming.claim()).await };
        let task = spawn_at(task, name, place, Start::WhenWoken);
        // The kernel may have refused the task.
        if !task.is_finished() {
            let kind = TrapKind::of(&NAME);
            kind.number();
            task.task_ref().set_wait(kind, place);
            offering.put_among_offers(Box::new(work), task.task_ref());
            task.task_ref().set_offer(offering);
        }
        task
    }
}

/// The task that has begun the work.
type Beginner = OnceLock<(KernelId, TaskId)>;

/// Offered work, for the task that has offered it.
struct Offering<W, T> {
    peers: Peers,
    /// Set once the work is among the offers.
    key: OnceCell<u64>,
    /// The work, after a cancel before the task's first step.
    withdrawn: Cell<Option<Box<dyn Offered>>>,
    /// `None` once the work is claimed.
    taken: Cell<Option<Taken<T>>>,
    work: PhantomData<W>,
}

impl<W, T> Offering<W, T> {
    fn put_among_offers(&self, work: Box<dyn Offered>, task: &TaskRef) {
        let offer = Offer { from: task.kernel(), waker: task.waker(), work };
        let (key, is_woken) = self.peers.offer(offer);
        self.key.set(key).expect("the work is offered once");
        door::with(|local| local.note_offer(is_woken));
    }

    /// The work, unless another kernel has taken it.
    fn take_back(&self) -> Option<Box<dyn Offered>> {
        self.key.get().and_then(|key| self.peers.withdraw(*key))
    }
}

impl<W, T> Withdraw for Offering<W, T> {
    fn withdraw(&self) -> bool {
        let before = self.withdrawn.take();
        let withdrawn = before.or_else(|| self.take_back());
        let is_withdrawn = withdrawn.is_some();
        self.withdrawn.set(withdrawn);
        is_withdrawn
    }

    fn is_free(&self) -> bool {
        self.key.get().is_some_and(|key| self.peers.has(*key))
    }
}

/// The right to claim an offer. The drop withdraws the work, or has it dropped where it has begun.
struct Claiming<W, T>(Rc<Offering<W, T>>);

impl<W: 'static, T> Claiming<W, T> {
    /// The work, if nobody has taken it.
    fn claim(self) -> Claim<W, T> {
        let taken = self.0.taken.take().expect("an offer is claimed once");
        match self.0.take_back() {
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
        let withdrawn = self.0.take_back().or_else(|| self.0.withdrawn.take());
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
            match foreign_wait(ended, &foreign::NAME, about, self.place).await {
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

/// Wakes a task when it is dropped.
struct WakeAtEnd(Waker);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.wake_by_ref();
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
    /// Takes the oldest offer of the kernel's [`Peers`]: wakes the task that offers it if it is
    /// this kernel's, and begins the work in a new task otherwise. For the kernel, when it has no
    /// task to step.
    pub fn take_offer(&self, of_others: bool) {
        let next = self.has_offers().then(|| self.next_offer(self.takes_from(of_others)));
        match next.flatten() {
            None => {}
            Some(Next::Own(waker)) => waker.wake(),
            Some(Next::Other(Offer { waker, work, .. })) => {
                let taken = &self.offers.taken;
                taken.set(taken.get() + 1);
                // The task is woken also if an observer panics.
                let _woken = WakeAtEnd(waker);
                work.begin();
            }
        }
    }

    /// Wakes the task of the oldest offer that the kernel has made itself, unless it leaves its
    /// offers to others now.
    pub fn take_own_offer(&self) {
        if self.has_offers()
            && let Some(Next::Own(waker)) = self.next_offer(self.takes_from(false))
        {
            waker.wake();
        }
    }

    fn next_offer(&self, is_wanted: impl Fn(KernelId) -> bool) -> Option<Next> {
        self.peers()?.next_for(self.id(), is_wanted)
    }

    /// Whether there is an offer to take.
    pub fn has_offer(&self, of_others: bool) -> bool {
        let has_offer = |peers: &Peers| peers.has_offer_of(self.takes_from(of_others));
        self.has_offers() && self.peers().is_some_and(has_offer)
    }

    /// Whose offers the kernel takes now.
    fn takes_from(&self, of_others: bool) -> impl Fn(KernelId) -> bool {
        let leaves_own = self.kernel().now() < self.offers.left_until.get();
        let own = self.id();
        move |from| if from == own { !leaves_own } else { of_others }
    }

    /// Until when the kernel leaves its own offers to others. `None`: it has none.
    pub fn leaves_offers_until(&self) -> Option<Ticks> {
        let has_own = |peers: &Peers| peers.has_offer_of(|from| from == self.id());
        let has_own = self.has_offers() && self.peers().is_some_and(has_own);
        has_own.then(|| self.offers.left_until.get())
    }

    /// Whether the kernel has made an offer since the last call, and has one that is free.
    pub fn take_new_offer_mark(&self) -> bool {
        self.offers.is_new.take() && self.leaves_offers_until().is_some()
    }

    /// Whether the kernel was late a short time ago.
    fn was_late(&self) -> bool {
        self.kernel().now() < self.offers.late_until.get()
    }

    /// Counts an offer of this kernel, and leaves it to another one that was woken for it.
    fn note_offer(&self, is_woken: bool) {
        let made = &self.offers.made;
        made.set(made.get() + 1);
        self.offers.is_new.set(true);
        let kernel = self.kernel();
        if is_woken && kernel.is_real_time() {
            let time = kernel.rate().ticks_ceil(TIME_TO_TAKE);
            self.offers.left_until.set(kernel.now().saturating_add(time));
        }
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
        if let Some(peers) = self.peers() {
            peers.wake_one();
        }
    }

    /// Whether the kernel has [`Peers`].
    #[inline]
    pub fn has_peers(&self) -> bool {
        self.peers().is_some()
    }

    /// Whether the kernel's [`Peers`] have an offer.
    pub fn has_offers(&self) -> bool {
        self.peers().is_some_and(Peers::has_offers)
    }
}
