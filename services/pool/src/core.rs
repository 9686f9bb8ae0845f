//! The state of a pool, and who gets which object.
//!
//! An object is in one place at a time: idle, leased, in a task of the pool (busy), or stranded,
//! that is, given back where no task of the pool could take it. All four are counted, so an object
//! that user code loses by a panic counts no more.
//!
//! ```text
//!                 (1)                    (2)
//!   a new object ─────▶ busy: creating ─────▶ idle ◀──────────────┐
//!                                             │ │ (4)             │ (7)
//!                              busy: verifying◀─┘ ├──▶ leased ────┴─▶ busy: cleaning
//!                                     │    (3)──▶─┘      │ (5)              │
//!                                     ▼                  ▼                  ▼
//!                               busy: destroying ◀───────┴──────────────────┘ (6)
//! ```
//!
//! (1) [`Core::serve`], [`Core::tend`]. (2) [`Core::ready`]. (3) [`Core::hand_over`]. (4)
//! [`Core::take_ready`], [`Core::serve`]. (5), (7) [`Core::give_back`]. (6)
//! [`Work`](crate::work::Work).
//!
//! No code of a manager, no destructor of an object and no waker runs while the state is borrowed,
//! but for the waker of a keeper, which is the kernel's.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::collections::VecDeque;
use std::error::Error;
use std::panic::Location;
use std::rc::{Rc, Weak};
use std::time::Duration;

use pikake_time::{Deadline, Rate, Ticks};
use pikake_traps::{
    KernelId, TaskId, TaskMark, WaitQueue, catch_and_log, clock_rate, door, figures, now, random,
};

use crate::error::{CreateError, Exhausted, GetError, NotAdded};
use crate::figures::{HasStats, NamedFigures, PoolFigures};
use crate::holder::{Holder, NAMED, Note, holders_text};
use crate::idle::{Idle, IdleObjects, Kept};
use crate::keeper;
use crate::lease::Lease;
use crate::leases::Leases;
use crate::limit::{Limit, Membership, Unit};
use crate::manager::Manager;
use crate::options::{Options, Reuse, Verify};
use crate::stats::Stats;
use crate::ticket::Slot;
use crate::work::{Kind, Worker, start, start_at_home};

/// An object that came back where no task of the pool could take it.
pub(crate) struct Stranded<T> {
    pub(crate) kept: Box<Kept<T>>,
    pub(crate) kind: Kind,
}

/// The last failure of a creation, since which none has succeeded.
struct Failure<E> {
    error: GetError<E>,
    attempts: u32,
    retry_at: Deadline,
}

/// The life of a pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not used yet.
    New,
    Open,
    /// Lends nothing more. The keeper destroys what comes back.
    Closing,
    /// The keeper has ended: nothing is left, or the kernel has ended.
    Ended,
}

pub(crate) struct State<M: Manager> {
    phase: Phase,
    home: Option<Home>,
    limit: usize,
    idle: IdleObjects<M::Object>,
    /// Idle objects that [`Core::retain`] has taken out to look at them.
    being_checked: usize,
    /// The callers who wait, in the order of their numbers.
    waiters: VecDeque<Rc<Slot<M>>>,
    next_waiter: u64,
    /// Slots that are out of use.
    spare_slots: Vec<Rc<Slot<M>>>,
    leases: Leases,
    busy: [usize; Kind::COUNT],
    /// Of the objects being cleaned, those whose cleaning has not had to wait yet. They come back
    /// in a moment.
    fresh: usize,
    stranded: Vec<Stranded<M::Object>>,
    /// Objects whose end was cut short by the end of the kernel.
    cut: usize,
    /// The last holders of stranded objects.
    late: Vec<Holder>,
    failure: Option<Failure<M::Error>>,
    /// When the keeper looks at the pool again.
    keeper_due: Deadline,
    counters: Stats,
    /// How long callers waited, together, in ticks.
    waited_for: u64,
}

/// What a pool has in common with others.
#[derive(Default)]
pub(crate) struct Joined {
    pub(crate) common: Option<Limit>,
    pub(crate) on_empty: Option<Box<dyn Fn()>>,
    /// The name in the figures, if it is another one than that of the options.
    pub(crate) figures_name: Option<String>,
}

/// The options of a pool, in ticks of its kernel's clock.
#[derive(Clone, Copy)]
struct Home {
    rate: Rate,
    max_idle: Option<u64>,
    verify_after: Option<u64>,
    warn_after: Option<u64>,
}

pub(crate) struct Core<M: Manager> {
    pub(crate) manager: M,
    pub(crate) options: Options,
    pub(crate) built_at: &'static Location<'static>,
    /// The names of the pool's tasks that wait, by [`Kind`].
    pub(crate) names: [String; Kind::COUNT],
    figures_name: String,
    figures: OnceCell<Rc<NamedFigures>>,
    /// A task of the pool that waits for work.
    worker: Cell<Option<Box<Worker<M>>>>,
    pub(crate) common: Option<Membership>,
    /// Called when the pool is open and has nothing.
    on_empty: Option<Box<dyn Fn()>>,
    state: RefCell<State<M>>,
    /// The kernel of the first use.
    kernel: Cell<Option<KernelId>>,
    /// Where the keeper waits.
    pub(crate) keeper: WaitQueue,
    keeper_called: Cell<bool>,
    /// Whether the kernel has refused a task, since it is being shut down.
    is_refused: Cell<bool>,
    /// Whether waiters are being served.
    is_serving: Cell<bool>,
    /// Where `close` waits.
    pub(crate) ends: WaitQueue,
}

/// What is to be done with an idle object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lend,
    Verify,
    Destroy,
}

/// What is known of an object that comes in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// The object was made just now, and verified if the options ask for it.
    New,
    /// The object was verified, or comes back from a caller who has not seen it.
    Good,
    Nothing,
}

/// An object's greatest age is up to this part less, at random.
const AGE_SPREAD: u64 = 10;

/// The most slots that are kept for later callers. While callers wait all the time, each takes the
/// slot of one who has just been served.
const SPARE_SLOTS: usize = 16;

/// What [`Core::serve`] does next.
enum Next<M: Manager> {
    Deliver(Box<Kept<M::Object>>),
    Start(Kind, Box<Kept<M::Object>>),
    /// The first caller, who waits since then, needs a new object. Whether the pool has none.
    Create(Ticks, bool),
    Fail(Vec<Rc<Slot<M>>>, GetError<M::Error>),
}

impl<M: Manager> Core<M> {
    pub(crate) fn new(
        manager: M,
        options: Options,
        joined: Joined,
        built_at: &'static Location<'static>,
    ) -> Self {
        let Joined { common, on_empty, figures_name } = joined;
        let label = label(&options.name);
        let names = Kind::ALL.map(|kind| format!("pool{label} {} an object", kind.verb()));
        let state = State {
            phase: Phase::New,
            home: None,
            limit: options.limit,
            idle: IdleObjects::new(),
            being_checked: 0,
            waiters: VecDeque::new(),
            next_waiter: 0,
            spare_slots: Vec::new(),
            leases: Leases::new(),
            busy: [0; Kind::COUNT],
            fresh: 0,
            stranded: Vec::new(),
            cut: 0,
            late: Vec::new(),
            failure: None,
            keeper_due: Deadline::NEVER,
            counters: Stats::default(),
            waited_for: 0,
        };
        let figures_name = figures_name.unwrap_or_else(|| options.name.clone());
        Self {
            manager,
            options,
            built_at,
            names,
            figures_name,
            figures: OnceCell::new(),
            worker: Cell::new(None),
            common: common.as_ref().map(Membership::new),
            on_empty,
            state: RefCell::new(state),
            kernel: Cell::new(None),
            keeper: WaitQueue::new(),
            keeper_called: Cell::new(false),
            is_refused: Cell::new(false),
            is_serving: Cell::new(false),
            ends: WaitQueue::new(),
        }
    }

    /// The pool's name, as ` `name``, to follow the word pool.
    pub(crate) fn label(&self) -> String {
        label(&self.options.name)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state.borrow().phase
    }

    /// Changes the counters.
    pub(crate) fn count(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.state.borrow_mut().counters);
    }

    /// Begins the pool's tasks at its first use.
    ///
    /// # Panics
    ///
    /// Outside a kernel, and in another kernel than that of the first use.
    #[track_caller]
    #[inline]
    pub(crate) fn open(self: &Rc<Self>) {
        if !self.is_home() || self.phase() != Phase::Open {
            self.open_first();
        }
    }

    #[track_caller]
    fn open_first(self: &Rc<Self>) {
        let here = door::current_kernel();
        {
            let state = self.state.borrow();
            match state.phase {
                Phase::New => {}
                Phase::Ended | Phase::Closing => return,
                Phase::Open if here.is_none() => {}
                Phase::Open => panic!(
                    "the pool{} belongs to another kernel than this one: make a pool for each kernel",
                    self.label()
                ),
            }
        }
        let rate = clock_rate();
        let verify_after = match self.options.verify {
            Verify::Always => Some(0),
            Verify::AfterIdle(length) => Some(rate.ticks_ceil(length)),
            Verify::Never => None,
        };
        let max_idle = self.options.max_idle_time.map(|length| rate.ticks_ceil(length));
        let warn_after = self.options.warn_if_held_for.map(|length| rate.ticks_ceil(length));
        {
            let mut state = self.state.borrow_mut();
            state.phase = Phase::Open;
            state.home = here.map(|_| Home { rate, max_idle, verify_after, warn_after });
        }
        self.kernel.set(here);
        self.common.iter().for_each(|common| common.note_creation(None, rate));
        let core: Weak<Self> = Rc::downgrade(self);
        let named = figures::of_kernel::<PoolFigures>().add(&self.figures_name, core);
        let _ = self.figures.set(named);
        keeper::start(self);
        self.call_keeper();
    }

    /// Whether the calling code is inside the pool's kernel, so that tasks can be spawned.
    #[inline]
    pub(crate) fn is_home(&self) -> bool {
        let home = self.kernel.get();
        home.is_some() && door::current_kernel() == home
    }

    /// The kernel takes no more tasks.
    pub(crate) fn refused(&self) {
        self.is_refused.set(true);
        self.begin_close();
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.get()
    }

    /// What to do with the next idle object.
    fn look(&self, state: &State<M>, now: Ticks) -> Option<Fate> {
        let idle = match self.options.reuse {
            Reuse::Lifo => state.idle.last(),
            Reuse::Fifo => state.idle.first(),
        }?;
        let home = state.home.as_ref()?;
        let idle_for = now.since(idle.since);
        let is_spare = state.idle.len() > self.options.min_idle;
        let is_idle_too_long = is_spare && home.max_idle.is_some_and(|max| idle_for >= max);
        Some(if idle.kept.expires.is_due(now) || is_idle_too_long {
            Fate::Destroy
        } else if home.verify_after.is_some_and(|length| idle_for >= length) {
            Fate::Verify
        } else {
            Fate::Lend
        })
    }

    /// Takes the next idle object.
    fn pop(&self, state: &mut State<M>) -> Box<Kept<M::Object>> {
        let popped = match self.options.reuse {
            Reuse::Lifo => state.idle.pop_last(),
            Reuse::Fifo => state.idle.pop_first(),
        };
        self.idle_changed(state);
        popped.expect("the caller has looked at the object")
    }

    /// Tells the other pools.
    fn idle_changed(&self, state: &State<M>) {
        let since = || state.idle.first().map(|idle| idle.since);
        self.common.iter().for_each(|common| common.set_idle(since()));
    }

    /// Whether the calling code may call the manager: in the pool's kernel, and not during an
    /// unwind, where another panic would end the process.
    fn may_call_manager(&self) -> bool {
        self.is_home() && !std::thread::panicking()
    }

    /// Whether the object is dead. If the manager panics, it is.
    pub(crate) fn is_dead(&self, object: &M::Object) -> bool {
        let mut is_dead = true;
        catch_and_log("`is_dead` of a pool's manager", || is_dead = self.manager.is_dead(object));
        if is_dead {
            self.count(|counters| counters.dead += 1);
        }
        is_dead
    }

    /// Whether the object needs no cleaning. If the manager panics, it does.
    fn is_clean(&self, object: &M::Object) -> bool {
        let mut is_clean = false;
        catch_and_log("`is_clean` of a pool's manager", || {
            is_clean = self.manager.is_clean(object)
        });
        is_clean
    }

    /// An idle object that needs no verification, if nobody waits.
    #[inline]
    pub(crate) fn take_ready(
        self: &Rc<Self>,
        place: &'static Location<'static>,
    ) -> Option<Lease<M>> {
        loop {
            let mut state = self.state.borrow_mut();
            let is_anything_idle = state.idle.len() > 0 && state.waiters.is_empty();
            if state.phase != Phase::Open || !is_anything_idle {
                return None;
            }
            let now = now();
            let (kept, fate) = match self.look(&state, now)? {
                Fate::Verify => return None,
                fate => (self.pop(&mut state), fate),
            };
            drop(state);
            if fate == Fate::Lend && !self.is_dead(&kept.object) {
                let note = Note { task: TaskMark::current(), place, since: now };
                return Some(self.lease(self.state.borrow_mut(), kept, note));
            }
            start(self, Kind::Destroy, Some(kept), None);
        }
    }

    #[inline]
    fn lease(
        self: &Rc<Self>,
        mut state: RefMut<'_, State<M>>,
        kept: Box<Kept<M::Object>>,
        note: Note,
    ) -> Lease<M> {
        state.counters.lent += 1;
        let key = state.leases.insert(note);
        let is_keeper_needed =
            state.warn_at(note.since) < state.keeper_due || self.is_short_of_idle(&state);
        drop(state);
        if is_keeper_needed {
            self.call_keeper();
        }
        Lease::new(self.clone(), kept, key)
    }

    /// Enters a caller behind the others. The caller calls [`serve`](Self::serve) once it can give
    /// up its place.
    pub(crate) fn enter(self: &Rc<Self>, place: &'static Location<'static>) -> Rc<Slot<M>> {
        let note = Note { task: TaskMark::current(), place, since: now() };
        let mut state = self.state.borrow_mut();
        let number = state.next_waiter;
        let spare = state.spare_slots.pop().and_then(|mut slot| {
            *Rc::get_mut(&mut slot)? = Slot::new(number, note);
            Some(slot)
        });
        let slot = spare.unwrap_or_else(|| Rc::new(Slot::new(number, note)));
        state.next_waiter = number + 1;
        state.waiters.push_back(slot.clone());
        slot
    }

    /// Keeps a slot that is out of use for the next caller.
    pub(crate) fn keep_slot(&self, slot: &Rc<Slot<M>>) {
        let spare = &mut self.state.borrow_mut().spare_slots;
        if Rc::strong_count(slot) == 1 && spare.len() < SPARE_SLOTS {
            spare.push(slot.clone());
        }
    }

    /// Takes a caller out who gives up.
    pub(crate) fn leave(&self, number: u64) {
        let mut state = self.state.borrow_mut();
        let index = state.waiters.binary_search_by_key(&number, |slot| slot.number);
        let left = index.ok().and_then(|index| state.waiters.remove(index));
        state.counters.gave_up += u64::from(left.is_some());
        self.first_changed(&state);
        if state.waiters.is_empty() {
            drop(state);
            self.look_whether_empty();
        }
    }

    /// Has the pool's request of the common limit stand for its first waiter.
    fn first_changed(&self, state: &State<M>) {
        self.common.iter().for_each(|common| common.set_first(state.first_waiter()));
    }

    /// Gives objects to the callers who wait, the first one first, and begins what they need. In
    /// another place than the pool's kernel, and during an unwind, leaves that to the keeper.
    #[inline]
    pub(crate) fn serve(self: &Rc<Self>) {
        struct Serving<'a>(&'a Cell<bool>);
        impl Drop for Serving<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }

        // Work that ends at once, inside of this, leaves the rest to the loop that has begun it.
        if self.state.borrow().waiters.is_empty() || self.is_serving.replace(true) {
            return;
        }
        let _serving = Serving(&self.is_serving);
        self.serve_waiters();
    }

    fn serve_waiters(self: &Rc<Self>) {
        loop {
            if !self.may_call_manager() {
                return self.call_keeper();
            }
            let next = self.next(&mut self.state.borrow_mut());
            match next {
                None => return,
                Some(Next::Deliver(kept)) => match self.is_dead(&kept.object) {
                    false => self.deliver(kept, now()),
                    true => start(self, Kind::Destroy, Some(kept), None),
                },
                Some(Next::Start(kind, kept)) => start(self, kind, Some(kept), None),
                Some(Next::Create(first, has_none)) => {
                    let common = self.common.as_ref();
                    let unit = common.map(|common| common.take(first, has_none));
                    match unit {
                        Some(None) => return,
                        unit => start(self, Kind::Create, None, unit.flatten()),
                    }
                }
                Some(Next::Fail(slots, error)) => {
                    slots.iter().for_each(|slot| slot.answer(Err(error.clone())));
                }
            }
        }
    }

    fn next(&self, state: &mut State<M>) -> Option<Next<M>> {
        if state.phase != Phase::Open {
            return None;
        }
        let first = state.first_waiter()?;
        let is_full = state.total() >= state.limit;
        if is_full && state.idle.len() == 0 && state.failure.is_none() {
            return None;
        }
        let now = now();
        match self.look(state, now) {
            Some(Fate::Lend) => return Some(Next::Deliver(self.pop(state))),
            Some(Fate::Destroy) => {
                return Some(Next::Start(Kind::Destroy, self.pop(state)));
            }
            Some(Fate::Verify) if state.busy(Kind::Verify) < state.waiters.len() => {
                return Some(Next::Start(Kind::Verify, self.pop(state)));
            }
            _ => {}
        }
        if self.is_short_of_new(state, now) {
            return Some(Next::Create(first, state.live() == 0));
        }
        let failure = state.failure.as_ref().filter(|failure| !failure.retry_at.is_due(now))?;
        if state.live() > 0 {
            return None;
        }
        let error = failure.error(now, state.home?.rate);
        let waiters = std::mem::take(&mut state.waiters);
        self.first_changed(state);
        Some(Next::Fail(waiters.into(), error))
    }

    /// Whether a new object is to be made for a caller who waits.
    fn is_short_of_new(&self, state: &State<M>, now: Ticks) -> bool {
        let coming = state.busy(Kind::Verify) + state.busy(Kind::Create) + state.fresh;
        state.waiters.len() > coming && self.may_create(state, now)
    }

    /// Whether a new object is to be made, since too few are idle.
    fn is_short_of_idle(&self, state: &State<M>) -> bool {
        let least = self.options.min_idle;
        let ready = state.idle.len() + state.busy(Kind::Create) + state.busy(Kind::Verify);
        least > 0
            && ready < least.saturating_add(state.waiters.len())
            && self.may_create(state, now())
    }

    fn may_create(&self, state: &State<M>, now: Ticks) -> bool {
        let creating = state.busy(Kind::Create);
        state.total() < state.limit
            && creating < self.options.creations
            && state
                .failure
                .as_ref()
                .is_none_or(|failure| creating == 0 && failure.retry_at.is_due(now))
    }

    /// Gives an object that is good to the first caller who waits, or keeps it.
    fn deliver(self: &Rc<Self>, kept: Box<Kept<M::Object>>, now: Ticks) {
        let mut state = self.state.borrow_mut();
        let Some(slot) = state.waiters.pop_front() else { return self.keep(state, kept, now) };
        self.first_changed(&state);
        let waited = now.since(slot.note.since);
        state.counters.waited += 1;
        state.waited_for += waited;
        if let Some(figures) = self.figures.get().filter(|_| figures::are_times_measured()) {
            figures.waits.note(state.length(waited));
        }
        let lease = self.lease(state, kept, Note { since: now, ..slot.note });
        slot.answer(Ok(lease));
    }

    /// Puts an object among the idle ones.
    #[inline]
    fn keep(&self, mut state: RefMut<'_, State<M>>, kept: Box<Kept<M::Object>>, now: Ticks) {
        let max_idle = state.home.as_ref().and_then(|home| home.max_idle);
        let due = max_idle.map_or(Deadline::NEVER, |max| Deadline::at(now.saturating_add(max)));
        let due = due.min(kept.expires);
        state.idle.push(kept, now);
        self.idle_changed(&state);
        let is_keeper_needed = due < state.keeper_due || self.is_short_of_idle(&state);
        drop(state);
        if is_keeper_needed {
            self.call_keeper();
        }
    }

    // Coming in.

    /// Takes an object that is good: new, cleaned, verified or added. The first caller who waits
    /// gets it.
    pub(crate) fn ready(self: &Rc<Self>, kept: Box<Kept<M::Object>>, known: Known) {
        let now = now();
        let state = self.state.borrow_mut();
        let is_kept =
            state.phase == Phase::Open && state.live() < state.limit && !kept.expires.is_due(now);
        if !is_kept {
            drop(state);
            return start(self, Kind::Destroy, Some(kept), None);
        }
        let is_verified = known != Known::Nothing || self.options.verify != Verify::Always;
        if state.waiters.is_empty() {
            return self.keep(state, kept, now);
        }
        if !is_verified {
            self.keep(state, kept, now);
        } else {
            drop(state);
            if known == Known::New || !self.is_dead(&kept.object) {
                return self.deliver(kept, now);
            }
            start(self, Kind::Destroy, Some(kept), None);
        }
        self.serve();
    }

    /// Takes a leased object back.
    pub(crate) fn give_back(
        self: &Rc<Self>,
        mut kept: Box<Kept<M::Object>>,
        key: usize,
        is_wanted: bool,
    ) {
        kept.uses += 1;
        let is_home = self.is_home();
        let is_used_up = self.options.max_uses.is_some_and(|max| kept.uses >= max);
        let (note, is_kept) = {
            let mut state = self.state.borrow_mut();
            let note = state.leases.remove(key);
            let is_over = state.phase != Phase::Open || state.live() >= state.limit;
            let is_kept = is_wanted && !is_over && !is_used_up;
            let common = self.common.as_ref().filter(|_| is_kept && is_home);
            let is_given_up = common.is_some_and(|common| {
                common.gives_returned(kept.unit.as_mut(), state.first_waiter(), now())
            });
            (note, is_kept && !is_given_up)
        };
        match self.intake(&kept.object, is_kept, is_home) {
            None => self.ready(kept, Known::Nothing),
            Some(kind) if is_home => start_at_home(self, kind, Some(kept), None),
            Some(kind) => self.strand(Stranded { kept, kind }),
        }
        if (!is_home || self.is_refused()) && self.phase() != Phase::Ended {
            let holder = self.holder(&note);
            self.state.borrow_mut().late.push(holder);
        }
    }

    /// What is to be done with an object that came back; `None` if it is good as it is.
    fn intake(&self, object: &M::Object, is_kept: bool, is_home: bool) -> Option<Kind> {
        if !is_kept {
            return Some(Kind::Destroy);
        }
        if !is_home || std::thread::panicking() || !self.is_clean(object) {
            return Some(Kind::Clean);
        }
        self.is_dead(object).then_some(Kind::Destroy)
    }

    /// Takes back an object that a caller was given and has not seen.
    pub(crate) fn take_back(self: &Rc<Self>, kept: Box<Kept<M::Object>>, key: usize) {
        {
            let mut state = self.state.borrow_mut();
            state.leases.remove(key);
            state.counters.gave_up += 1;
        }
        match self.may_call_manager() {
            true => self.ready(kept, Known::Good),
            false => start(self, Kind::Clean, Some(kept), None),
        }
    }

    /// Forgets a leased object, which its holder keeps.
    pub(crate) fn forget(self: &Rc<Self>, key: usize) {
        {
            let mut state = self.state.borrow_mut();
            state.leases.remove(key);
            state.counters.detached += 1;
        }
        self.gone();
    }

    /// An object is gone, which may make room for another one.
    pub(crate) fn gone(self: &Rc<Self>) {
        match self.phase() {
            Phase::Open => {
                self.serve();
                self.look_whether_empty();
                if self.options.min_idle > 0 {
                    self.call_keeper();
                }
            }
            _ => {
                self.ends.wake(usize::MAX);
                self.call_keeper();
            }
        }
    }

    /// Leaves an object to the keeper; drops it if the keeper has ended.
    pub(crate) fn strand(&self, stranded: Stranded<M::Object>) {
        {
            let mut state = self.state.borrow_mut();
            if state.phase != Phase::Ended {
                state.stranded.push(stranded);
                drop(state);
                return self.call_keeper();
            }
            state.counters.destroyed += 1;
        }
        drop(stranded);
        self.ends.wake(usize::MAX);
    }

    /// A creation has failed, or its object was bad. Callers for whom nothing else can come learn
    /// it at once.
    ///
    /// Creations that ran at the same time count as one attempt.
    pub(crate) fn creation_failed(self: &Rc<Self>, error: GetError<M::Error>) {
        let (now, shown) = (now(), error.clone());
        let (attempts, before) = {
            let mut state = self.state.borrow_mut();
            state.counters.create_failures += 1;
            let before = state.failure.take();
            let (attempts, retry_at) = match &before {
                Some(last) if !last.retry_at.is_due(now) => (last.attempts, last.retry_at),
                last => {
                    let attempts = last.as_ref().map_or(1, |last| last.attempts.saturating_add(1));
                    let (first, greatest) = self.options.backoff;
                    let doublings = (attempts - 1).min(u32::BITS - 1);
                    let length = first.saturating_mul(1 << doublings).min(greatest);
                    let ticks = state.home.map_or(0, |home| home.rate.ticks_ceil(length));
                    (attempts, Deadline::at(now.saturating_add(ticks)))
                }
            };
            state.failure = Some(Failure { error, attempts, retry_at });
            (attempts, before)
        };
        // The manager's errors are dropped and shown outside of the borrow.
        drop(before);
        tracing::debug!(pool = %self.options.name, attempts, "a creation failed: {shown}");
        self.serve();
        self.call_keeper();
    }

    /// A creation that began at this moment has given an object.
    pub(crate) fn created(&self, begun: Ticks) {
        self.count(|counters| counters.created += 1);
        let length = Some(now().since(begun));
        self.common.iter().for_each(|common| common.note_creation(length, clock_rate()));
    }

    /// A creation has given a good object: the failures before are of no more use.
    pub(crate) fn creation_succeeded(&self) {
        let before = self.state.borrow_mut().failure.take();
        drop(before);
    }

    /// An object was made. Notes what the pool knows of it.
    pub(crate) fn made(&self, object: M::Object, unit: Option<Unit>) -> Box<Kept<M::Object>> {
        let expires = match (self.options.max_age, self.state.borrow().home) {
            (Some(age), Some(home)) => {
                let latest = home.rate.ticks_ceil(age);
                let spread = latest / AGE_SPREAD;
                let less = if spread > 0 { random::range(0..spread) } else { 0 };
                Deadline::at(now().saturating_add(latest - less))
            }
            _ => Deadline::NEVER,
        };
        Box::new(Kept { object, expires, uses: 0, unit })
    }

    /// Adds an object from outside.
    pub(crate) fn add(self: &Rc<Self>, object: M::Object) -> Result<(), (M::Object, NotAdded)> {
        self.open();
        let unit = {
            let state = self.state.borrow();
            if state.phase != Phase::Open {
                return Err((object, NotAdded::Closed));
            }
            if state.total() >= state.limit {
                return Err((object, NotAdded::Full));
            }
            match self.common.as_ref().map(Membership::take_free) {
                None => None,
                Some(Some(unit)) => Some(unit),
                Some(None) => return Err((object, NotAdded::Full)),
            }
        };
        let kept = self.made(object, unit);
        self.count(|counters| counters.added += 1);
        self.ready(kept, Known::Nothing);
        Ok(())
    }

    /// Destroys the idle objects for which `is_kept` returns `false`, and returns their number.
    pub(crate) fn retain(self: &Rc<Self>, mut is_kept: impl FnMut(&M::Object) -> bool) -> usize {
        /// The objects that are not idle meanwhile. The drop makes the rest idle again, also if
        /// `is_kept` panics.
        struct Look<'a, M: Manager>(&'a Core<M>, VecDeque<Idle<M::Object>>);
        impl<M: Manager> Drop for Look<'_, M> {
            fn drop(&mut self) {
                let mut state = self.0.state.borrow_mut();
                state.being_checked -= self.1.len();
                state.idle.put_back(std::mem::take(&mut self.1));
                self.0.idle_changed(&state);
            }
        }

        let mut look = {
            let mut state = self.state.borrow_mut();
            let idle = state.idle.take_all();
            state.being_checked += idle.len();
            Look(self, idle)
        };
        let answers: Vec<bool> = look.1.iter().map(|idle| is_kept(&idle.kept.object)).collect();
        let mut answers = answers.into_iter();
        let (kept, gone): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut look.1).into_iter().partition(|_| answers.next() == Some(true));
        let count = gone.len();
        self.state.borrow_mut().being_checked -= count;
        look.1 = kept;
        drop(look);
        for idle in gone {
            start(self, Kind::Destroy, Some(idle.kept), None);
        }
        self.serve();
        count
    }

    // The work of the pool's tasks.

    /// Keeps an idle task of the pool for the next work, instead of one that is kept already. A
    /// closed pool keeps none.
    pub(crate) fn keep_worker(&self, worker: Box<Worker<M>>) {
        let unwanted = match self.phase() {
            Phase::Open => self.worker.replace(Some(worker)),
            _ => Some(worker),
        };
        if let Some(worker) = unwanted {
            worker.end();
        }
    }

    /// The idle task of the pool that was kept.
    pub(crate) fn take_worker(&self) -> Option<Box<Worker<M>>> {
        self.worker.take()
    }

    pub(crate) fn begin_work(&self, kind: Kind, is_fresh: bool) {
        let mut state = self.state.borrow_mut();
        state.busy[kind as usize] += 1;
        state.fresh += usize::from(is_fresh);
    }

    pub(crate) fn end_work(&self, kind: Kind, is_fresh: bool) {
        let mut state = self.state.borrow_mut();
        state.busy[kind as usize] -= 1;
        state.fresh -= usize::from(is_fresh);
    }

    /// The end of the kernel has cut the end of an object short.
    pub(crate) fn cut_short(&self) {
        self.state.borrow_mut().cut += 1;
    }

    /// A cleaning has had to wait.
    pub(crate) fn is_not_fresh(&self) {
        self.state.borrow_mut().fresh -= 1;
    }

    // The keeper's side.

    pub(crate) fn call_keeper(&self) {
        self.keeper_called.set(true);
        self.keeper.wake(1);
    }

    /// Forgets that the keeper was called.
    pub(crate) fn take_call(&self) {
        self.keeper_called.set(false);
    }

    /// Whether the keeper was called since then.
    pub(crate) fn is_called(&self) -> bool {
        self.keeper_called.get()
    }

    /// Does what is due, and returns when to look again; `None` if the pool is closed and nothing
    /// is left.
    pub(crate) fn tend(self: &Rc<Self>) -> Option<Deadline> {
        // What becomes due from here on is not done yet when the keeper waits again.
        let now = now();
        for Stranded { kept, kind } in self.take_stranded() {
            start(self, kind, Some(kept), None);
        }
        if self.phase() != Phase::Open {
            drop(self.common.as_ref().map(Membership::take_granted));
            for kept in self.take_idle() {
                start(self, Kind::Destroy, Some(kept), None);
            }
            self.ends.wake(usize::MAX);
            return (self.state.borrow().total() > 0).then_some(Deadline::NEVER);
        }
        for kept in self.take_superfluous() {
            start(self, Kind::Destroy, Some(kept), None);
        }
        self.warn_of_long_leases(now);
        self.serve();
        self.fill();
        let is_short = self.is_short_of_new(&self.state.borrow(), now);
        if let Some(common) = self.common.as_ref().filter(|_| !is_short) {
            // Those that nobody needs any more. A unit that came meanwhile is for the next look.
            drop(common.take_granted());
        }
        if let Some(on_empty) = self.on_empty.as_ref().filter(|_| self.is_forgettable()) {
            on_empty();
        }
        let mut state = self.state.borrow_mut();
        let due = self.due(&state, now);
        state.keeper_due = due;
        Some(due)
    }

    /// Has the keeper look whether the pool is empty, if somebody wants to know.
    fn look_whether_empty(&self) {
        if self.on_empty.is_some() {
            self.call_keeper();
        }
    }

    /// Whether the pool has nothing, wants nothing, and remembers no failure that is still of use.
    fn is_forgettable(&self) -> bool {
        let state = self.state.borrow();
        let is_remembered = self.forget_at(&state).is_some_and(|at| !at.is_due(now()));
        state.total() == 0 && state.waiters.is_empty() && !is_remembered
    }

    /// When the last failure of a creation is of no more use.
    fn forget_at(&self, state: &State<M>) -> Option<Deadline> {
        let (failure, home) = (state.failure.as_ref()?, state.home?);
        let more = home.rate.ticks_ceil(self.options.backoff.1);
        Some(Deadline::at(failure.retry_at.ticks().saturating_add(more)))
    }

    /// Takes idle objects out, those first that came back first.
    fn take_idle(&self) -> Vec<Box<Kept<M::Object>>> {
        let mut state = self.state.borrow_mut();
        let taken = std::iter::from_fn(|| state.idle.pop_first()).collect();
        self.idle_changed(&state);
        taken
    }

    /// Takes out the idle objects that are too old, beyond the limit, idle for too long, or needed
    /// by callers of other pools.
    fn take_superfluous(&self) -> Vec<Box<Kept<M::Object>>> {
        let now = now();
        let mut state = self.state.borrow_mut();
        let mut taken = Vec::new();
        while let Some(kept) = state.idle.pop_too_old(now) {
            taken.push(kept);
        }
        let beyond = state.live().saturating_sub(state.limit);
        taken.extend((0..beyond).map_while(|_| state.idle.pop_first()));
        while self.idle_until(&state).is_due(now) {
            let Some(kept) = state.idle.pop_first() else { break };
            taken.push(kept);
        }
        self.idle_changed(&state);
        let common = self.common.as_ref();
        while common.is_some_and(|common| common.gives_idle(state.idle.first_unit(), now)) {
            taken.extend(state.idle.pop_first());
            self.idle_changed(&state);
        }
        taken
    }

    /// The moment at which the next object is idle for too long, unless `min_idle` keeps it.
    fn idle_until(&self, state: &State<M>) -> Deadline {
        let max_idle = state.home.as_ref().and_then(|home| home.max_idle);
        let max_idle = max_idle.filter(|_| state.idle.len() > self.options.min_idle);
        let until = max_idle.zip(state.idle.first().map(|idle| idle.since));
        until.map_or(Deadline::NEVER, |(max, since)| Deadline::at(since.saturating_add(max)))
    }

    /// Begins to make the objects that are missing of the least number of idle ones.
    fn fill(self: &Rc<Self>) {
        loop {
            let unit = {
                if !self.is_short_of_idle(&self.state.borrow()) {
                    return;
                }
                match self.common.as_ref().map(Membership::take_free) {
                    None => None,
                    Some(Some(unit)) => Some(unit),
                    Some(None) => return,
                }
            };
            start(self, Kind::Create, None, unit);
        }
    }

    /// Warns of the leases that were held for long, once of each.
    fn warn_of_long_leases(&self, now: Ticks) {
        loop {
            let note = {
                let mut state = self.state.borrow_mut();
                let due = state
                    .leases
                    .quiet_since()
                    .is_some_and(|since| state.warn_at(since).is_due(now));
                if !due {
                    return;
                }
                state.leases.warn()
            };
            let Some(Holder { task, held_for, place }) = note.map(|note| self.holder(&note)) else {
                return;
            };
            tracing::warn!(
                pool = %self.options.name,
                built_at = %self.built_at,
                task,
                ?held_for,
                asked_at = %place,
                "a lease of a pool has been held for long"
            );
        }
    }

    /// When something is to be done again that was not due yet.
    fn due(&self, state: &State<M>, now: Ticks) -> Deadline {
        let is_missing = !state.waiters.is_empty() || state.idle.len() < self.options.min_idle;
        let retry = state.failure.as_ref().filter(|_| is_missing && state.busy(Kind::Create) == 0);
        let retry = retry.map(|failure| failure.retry_at).filter(|at| !at.is_due(now));
        let forget = self.on_empty.as_ref().and_then(|_| self.forget_at(state));
        let forget = forget.filter(|at| !at.is_due(now));
        let warning = state.leases.quiet_since().map(|since| state.warn_at(since));
        let look = self.common.as_ref().map_or(Deadline::NEVER, Membership::look_again_at);
        let objects = [self.idle_until(state), state.idle.too_old_at(), look];
        let all = objects.into_iter().chain(retry).chain(forget).chain(warning);
        all.min().unwrap_or(Deadline::NEVER)
    }

    // The end.

    /// Lends nothing more. What is idle, and what comes back, is destroyed.
    pub(crate) fn begin_close(&self) {
        if let Some(worker) = self.worker.take() {
            worker.end();
        }
        let waiters = {
            let mut state = self.state.borrow_mut();
            state.phase = match state.phase {
                Phase::New | Phase::Ended => Phase::Ended,
                Phase::Open | Phase::Closing => Phase::Closing,
            };
            let waiters = std::mem::take(&mut state.waiters);
            self.first_changed(&state);
            waiters
        };
        waiters.iter().for_each(|slot| slot.answer(Err(GetError::Closed)));
        self.call_keeper();
    }

    /// Takes out what the keeper has to destroy itself, since the kernel takes no new task.
    pub(crate) fn take_left(&self) -> Vec<Box<Kept<M::Object>>> {
        drop(self.common.as_ref().map(Membership::take_granted));
        let stranded = self.take_stranded().into_iter().map(|stranded| stranded.kept);
        stranded.chain(self.take_idle()).collect()
    }

    fn take_stranded(&self) -> Vec<Stranded<M::Object>> {
        let mut state = self.state.borrow_mut();
        state.late.clear();
        std::mem::take(&mut state.stranded)
    }

    /// The keeper has ended: drops what is left, and names those who hold leases, or held them to
    /// the end of the kernel.
    pub(crate) fn end(&self) {
        self.begin_close();
        let mut holders = self.holders();
        let leased = holders.len();
        holders.append(&mut self.state.borrow_mut().late);
        let left = self.take_left();
        let unfinished = {
            let mut state = self.state.borrow_mut();
            state.phase = Phase::Ended;
            state.cut + state.busy.iter().sum::<usize>() - state.busy(Kind::Create)
        };
        let count = left.len() + leased + unfinished;
        for kept in left {
            self.count(|counters| counters.destroyed += 1);
            catch_and_log("the drop of an object of a pool", || drop(kept));
        }
        if count > 0 {
            let held = if holders.is_empty() {
                String::new()
            } else {
                holders_text(&holders, holders.len())
            };
            tracing::warn!(
                pool = %self.options.name,
                built_at = %self.built_at,
                count,
                holders = held,
                "a kernel ended while its pool had objects: they are dropped, and not destroyed in order. Shut the kernel down, \
                 and let the holders end within its grace",
            );
        }
        self.ends.wake(usize::MAX);
    }

    /// The number of objects that are not destroyed.
    pub(crate) fn total(&self) -> usize {
        self.state.borrow().total()
    }

    // What others see.

    pub(crate) fn resize(self: &Rc<Self>, limit: usize) {
        self.state.borrow_mut().limit = limit;
        self.call_keeper();
    }

    fn holder(&self, note: &Note) -> Holder {
        let rate = self.state.borrow().home.map(|home| home.rate);
        let is_here = door::is_open();
        let held_for =
            rate.filter(|_| is_here).map(|rate| rate.duration_floor(now().since(note.since)));
        note.holder(held_for.unwrap_or_default())
    }

    /// The holders of leases, the oldest first.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        self.oldest_holders(usize::MAX)
    }

    /// The holders of the oldest leases, at most `most`.
    fn oldest_holders(&self, most: usize) -> Vec<Holder> {
        let notes: Vec<Note> = self.state.borrow().leases.iter().take(most).copied().collect();
        notes.iter().map(|note| self.holder(note)).collect()
    }

    /// The tasks that can end a wait, if nothing else can.
    pub(crate) fn owners(&self) -> Vec<TaskId> {
        let state = self.state.borrow();
        let is_full = state.total() >= state.limit && state.leases.len() == state.total();
        let notes = state.leases.iter().map(|note| note.task.id_here());
        if is_full { notes.collect::<Option<_>>().unwrap_or_default() } else { Vec::new() }
    }

    pub(crate) fn exhausted(&self, waited: Duration) -> Exhausted {
        let state = self.state.borrow();
        let (limit, leased) = (state.limit, state.leases.len());
        let error = state.failure.as_ref().map(|failure| failure.error.clone());
        drop(state);
        let creation_failed = error.map(|error| error.to_string());
        let (pool, holders) = (self.options.name.clone(), self.oldest_holders(NAMED));
        let common = self.common.as_ref().map(Membership::usage);
        Exhausted { pool, waited, limit, leased, holders, common, creation_failed }
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.state.borrow();
        Stats {
            limit: state.limit,
            total: state.total(),
            idle: state.idle.len(),
            leased: state.leases.len(),
            creating: state.busy(Kind::Create),
            verifying: state.busy(Kind::Verify),
            cleaning: state.busy(Kind::Clean),
            destroying: state.busy(Kind::Destroy),
            waiting: state.waiters.len(),
            waited_for: state.length(state.waited_for),
            ..state.counters
        }
    }
}

fn label(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!(" `{name}`"),
    }
}

impl<M: Manager> HasStats for Core<M> {
    fn stats(&self) -> Stats {
        self.stats()
    }
}

impl<M: Manager> Drop for Core<M> {
    fn drop(&mut self) {
        if let Some(figures) = self.figures.get() {
            figures.pool_ends(&self.stats());
        }
    }
}

impl<M: Manager> State<M> {
    /// A number of ticks as a length; zero before the first use.
    fn length(&self, ticks: u64) -> Duration {
        self.home.as_ref().map_or(Duration::ZERO, |home| home.rate.duration_floor(ticks))
    }

    /// Since when the first caller waits.
    fn first_waiter(&self) -> Option<Ticks> {
        self.waiters.front().map(|slot| slot.note.since)
    }

    /// When the pool warns of a lease that began at this moment.
    #[inline]
    fn warn_at(&self, since: Ticks) -> Deadline {
        let after = self.home.as_ref().and_then(|home| home.warn_after);
        after.map_or(Deadline::NEVER, |after| Deadline::at(since.saturating_add(after)))
    }

    fn busy(&self, kind: Kind) -> usize {
        self.busy[kind as usize]
    }

    fn total(&self) -> usize {
        let busy: usize = self.busy.iter().sum();
        self.idle.len() + self.being_checked + self.leases.len() + self.stranded.len() + busy
    }

    /// The objects that may yet come to a caller.
    fn live(&self) -> usize {
        self.total() - self.busy(Kind::Destroy)
    }
}

impl<E: Error + 'static> Failure<E> {
    /// The error for a caller who asks now.
    fn error(&self, now: Ticks, rate: Rate) -> GetError<E> {
        match self.error.clone() {
            GetError::Create(error) => GetError::Create(CreateError {
                attempts: self.attempts,
                next_attempt: rate.duration_ceil(self.retry_at.ticks().since(now)),
                ..error
            }),
            error => error,
        }
    }
}
