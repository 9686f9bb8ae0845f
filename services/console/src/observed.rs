//! The kernels of the process, as the console's thread asks them.
//!
//! The console sends a closure to a kernel, which calls it between two steps. A kernel with 100,000
//! tasks is asked for a page at a time, so it steps its tasks in between. A kernel that does not
//! answer within [`ANSWER_WITHIN`] is stuck in a step, or nobody runs it.
//!
//! A look at waits takes two closures. The first one has each task of a page polled once more
//! ([`TaskRef::inspect`]), and the second one reads what the polls have left. The references to the
//! tasks travel with the console's thread meanwhile, in a [`Bound`].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{replace, take};
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pikake_kernel::inspect::{
    KernelView, TaskFigures, TaskPage, task_figures, tasks_from, time_steps,
};
use pikake_kernel::wait_graph::{GraphTask, GraphWait};
use pikake_time::{Rate, Ticks};
use pikake_traps::details::detail_of;
use pikake_traps::{
    Bound, GoesOn, Replied, Reply, SeenScope, SeenWait, TaskId, TaskRef, clock_rate, future_wait,
    now, sleep, timeout_after,
};

use crate::model::{self, Scope, State, TaskKey, Wait};

/// The time after which a kernel counts as one that does not answer. Longer than a step that is no
/// mistake, and short enough to wait for at a terminal.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_millis(250);

/// The time that a kernel which has just answered may take for a closure. It may have to step all
/// its tasks before.
pub(crate) const WORK_WITHIN: Duration = Duration::from_secs(3);

/// The number of tasks that one closure lists: the kernel stops for less than a millisecond.
const PAGE: usize = 1_000;

/// The number of tasks that the kernel polls once more for one closure. A poll takes longer than a
/// listing.
pub(crate) const INSPECTED_PAGE: usize = 200;

/// The number of tasks of which one closure reads a number.
pub(crate) const SEARCHED_PAGE: usize = 5_000;

/// The pauses between two closures that read the waits, if the kernel has not stepped all tasks of
/// the page.
const READ_AGAIN: Duration = Duration::from_micros(200);

/// The number of closures that read the waits of one page. A task that yields in a loop is always
/// ready.
const READINGS: usize = 10;

/// The largest number of waits of one task that are told.
const WAITS_OF_TASK: usize = 1_000;

/// The largest number of owners of one wait that are told, and of scopes around it.
pub(crate) const OWNERS_OF_WAIT: usize = 1_000;

/// The bytes of a text of the program that are told: its name, the thing that a task waits for, a
/// reason.
pub(crate) const TEXT_BYTES: usize = 4_096;

/// A text of the program for a client.
pub(crate) fn shown(text: &str) -> String {
    if text.len() <= TEXT_BYTES {
        return text.to_owned();
    }
    let mut end = TEXT_BYTES;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

/// The kernel did not answer in time, or it has ended.
#[derive(Debug)]
pub(crate) struct Silent;

/// A task, as a closure on its kernel's thread has seen it.
#[derive(Clone, Debug)]
pub(crate) struct SeenTask {
    pub(crate) id: TaskId,
    name: Box<str>,
    detail: Option<Box<str>>,
    parent: Option<TaskId>,
    state: State,
    figures: Option<TaskFigures>,
    spawned_at: &'static Location<'static>,
    future: (&'static str, usize),
    cancelled: Option<Box<str>>,
    goes_on: Option<GoesOn>,
    /// Whether a foreign future can wake the task.
    has_wakers: bool,
    /// Whether the task has gone on during the look.
    has_moved: bool,
    waits: Vec<SeenWait>,
    /// The reading of the kernel's clock at which the waits were read, and its rate.
    read_at: (Ticks, Rate),
}

fn state_of(task: &TaskRef) -> State {
    match (task.was_stepped(), task.is_ready()) {
        (false, _) => State::New,
        (true, true) => State::Ready,
        (true, false) => State::Waiting,
    }
}

impl SeenTask {
    /// Looks at a task, without its waits. On its kernel's thread.
    fn of(task: &TaskRef) -> Self {
        let reason = |why: pikake_traps::Interrupted| why.reason().unwrap_or_default().into();
        Self {
            id: task.id(),
            name: task.name().into(),
            detail: detail_of(task).map(Into::into),
            parent: task.parent(),
            state: state_of(task),
            figures: task_figures(task),
            spawned_at: task.spawned_at(),
            future: task.future_type(),
            cancelled: task.cancel_reason().map(reason),
            goes_on: task.goes_on(),
            has_wakers: false,
            has_moved: false,
            waits: Vec::new(),
            read_at: (Ticks::ZERO, Rate::NANOS),
        }
    }

    /// Keeps what a closure has read of the waits.
    fn add(&mut self, read: ReadWaits) {
        let ReadWaits { state, has_wakers, has_moved, waits, at } = read;
        (self.state, self.has_wakers, self.has_moved) = (state, has_wakers, has_moved);
        (self.waits, self.read_at) = (waits, at);
    }

    /// The task for the graph of waits.
    pub(crate) fn to_graph(&self, kernel: u32) -> GraphTask<TaskKey> {
        let key_of = |task: TaskId| TaskKey { kernel, task: task.0 };
        GraphTask {
            key: key_of(self.id),
            name: self.full_name(),
            is_ready: self.state != State::Waiting,
            has_wakers: self.has_wakers,
            has_moved: self.has_moved,
            waits: self.waits.iter().map(|wait| GraphWait::of(wait, key_of)).collect(),
        }
    }

    /// The name of the task with its detail: that of a connection with its peer.
    fn full_name(&self) -> String {
        match &self.detail {
            Some(detail) => format!("{} {detail}", self.name).trim_start().to_owned(),
            None => self.name.to_string(),
        }
    }

    /// The name of the task, empty if it has none, and the place of its spawn.
    pub(crate) fn name(&self) -> (&str, &'static Location<'static>) {
        (&self.name, self.spawned_at)
    }

    /// The waits of the task.
    pub(crate) fn waits(&self) -> &[SeenWait] {
        &self.waits
    }

    /// The waits of the task.
    #[cfg(feature = "tokio-console")]
    pub(crate) fn into_waits(self) -> Vec<SeenWait> {
        self.waits
    }

    /// The task for a client.
    pub(crate) fn to_model(&self, kernel: u32) -> model::Task {
        let key = |task: TaskId| TaskKey { kernel, task: task.0 };
        let figures = self.figures.unwrap_or_default();
        model::Task {
            id: key(self.id),
            name: shown(&self.full_name()),
            parent: self.parent.map(key),
            state: self.state,
            since: self.figures.map(|figures| nanoseconds(figures.since)),
            steps: figures.steps,
            busy: nanoseconds(figures.busy),
            longest: nanoseconds(figures.longest),
            spawned_at: self.spawned_at.to_string(),
            future: shown(self.future.0),
            bytes: self.future.1 as u64,
            cancelled: self.cancelled.as_deref().map(shown),
            goes_on: self.goes_on.map(|goes_on| model::GoesOn {
                asked: nanoseconds(goes_on.asked),
                caught_at: goes_on.caught_at.to_string(),
                waits: goes_on.waits,
            }),
            waits: self.waits_to_model(kernel),
        }
    }
}

impl SeenTask {
    /// The waits for a client. The last one stands for those that are too many.
    fn waits_to_model(&self, kernel: u32) -> Vec<Wait> {
        let shown = self.waits.iter().take(WAITS_OF_TASK);
        let mut shown: Vec<Wait> =
            shown.map(|wait| wait_to_model(wait, kernel, self.read_at)).collect();
        let rest = self.waits.len() - shown.len();
        if rest > 0 {
            shown.push(further_waits(rest));
        }
        shown
    }
}

/// The words after the number of waits that are not told.
const FURTHER: &str = " further waits";

/// An entry that stands for waits which are too many for a client.
pub(crate) fn further_waits(count: usize) -> Wait {
    let about = Some(format!("{count}{FURTHER}"));
    Wait { trap: "more".into(), place: String::new(), about, owners: vec![], scopes: vec![] }
}

/// The number of waits that an entry stands for.
pub(crate) fn count_of_waits(wait: &Wait) -> usize {
    let about = wait.about.as_deref().filter(|_| wait.place.is_empty());
    about.and_then(|about| about.strip_suffix(FURTHER)?.parse().ok()).unwrap_or(1)
}

fn wait_to_model(wait: &SeenWait, kernel: u32, at: (Ticks, Rate)) -> Wait {
    let owners = wait.about.as_ref().map_or(&[][..], |about| about.owners());
    Wait {
        trap: wait.trap.name().to_owned(),
        place: wait.place.to_string(),
        about: wait.about.as_ref().map(|about| shown(about.text())),
        owners: owners
            .iter()
            .take(OWNERS_OF_WAIT)
            .map(|owner| TaskKey { kernel, task: owner.0 })
            .collect(),
        scopes: wait
            .scopes
            .iter()
            .take(OWNERS_OF_WAIT)
            .map(|scope| scope_to_model(scope, at))
            .collect(),
    }
}

fn scope_to_model(scope: &SeenScope, (now, rate): (Ticks, Rate)) -> Scope {
    match scope {
        SeenScope::Deadline { at, set_at, .. } => {
            let length = |from: Ticks, to: Ticks| {
                let ticks = to.since(from);
                i64::try_from(nanoseconds(rate.duration_floor(ticks))).unwrap_or(i64::MAX)
            };
            let left = match at.is_due(now) {
                true => -length(at.ticks(), now),
                false => length(now, at.ticks()),
            };
            Scope { left: Some(left), set_at: Some(set_at.to_string()) }
        }
        _ => Scope { left: None, set_at: None },
    }
}

/// A length for a client.
pub(crate) fn nanoseconds(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// Some tasks of a kernel, and the index where the next ones begin.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) tasks: Vec<SeenTask>,
    pub(crate) next: Option<u32>,
}

/// Sends a closure to a kernel, and returns the future of its answer. The kernel leaves the closure
/// out if nobody waits for the answer any more.
pub(crate) fn send<T, W>(kernel: &KernelView, work: W) -> Replied<T>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let (reply, replied) = Reply::channel();
    // A kernel that has ended drops the closure, which ends the wait for the reply.
    let _ = kernel.handle().call_there(Box::new(move || {
        if reply.is_awaited() {
            reply.send(work());
        }
    }));
    replied
}

/// The same question to each kernel. All who ask a kernel share one closure and its answer, so the
/// inbox of a kernel that does not answer does not grow.
pub(crate) struct Question<T>(Mutex<BTreeMap<u32, Arc<Mutex<Askers<T>>>>>);

/// The question whether a kernel answers.
pub(crate) type Pings = Question<()>;

/// Those who ask one kernel.
struct Askers<T> {
    /// The kernel has the closure.
    is_sent: bool,
    replies: Vec<Reply<T>>,
}

/// The closure's part. A kernel that ends drops it uncalled, which ends the waits.
struct Asked<T>(Option<Arc<Mutex<Askers<T>>>>);

impl<T> Asked<T> {
    /// Those who ask. Whoever asks from now on sends another closure.
    fn take(&mut self) -> Vec<Reply<T>> {
        let Some(askers) = self.0.take() else { return Vec::new() };
        let mut askers = lock(&askers);
        askers.is_sent = false;
        take(&mut askers.replies)
    }
}

impl<T> Drop for Asked<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> Default for Question<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Send + 'static> Question<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Asks a kernel, whose thread calls `work`.
    pub(crate) fn ask(&self, kernel: &KernelView, work: fn() -> T) -> Replied<T> {
        let (reply, replied) = Reply::channel();
        let nobody = || Arc::new(Mutex::new(Askers { is_sent: false, replies: Vec::new() }));
        let askers = lock(&self.0).entry(kernel.id().number()).or_insert_with(nobody).clone();
        let mut asked = lock(&askers);
        asked.replies.retain(Reply::is_awaited);
        asked.replies.push(reply);
        let is_sent = replace(&mut asked.is_sent, true);
        drop(asked);
        if !is_sent {
            let mut asked = Asked(Some(askers));
            let answer = move || {
                let replies = asked.take();
                if !replies.is_empty() {
                    let answer = work();
                    replies.into_iter().for_each(|reply| reply.send(answer.clone()));
                }
            };
            let _ = kernel.handle().call_there(Box::new(answer));
        }
        replied
    }

    /// Forgets the kernels with other numbers.
    pub(crate) fn retain(&self, is_there: impl Fn(u32) -> bool) {
        lock(&self.0).retain(|kernel, _| is_there(*kernel));
    }
}

impl Pings {
    /// Asks a kernel whether it answers.
    pub(crate) fn ping(&self, kernel: &KernelView) -> Replied<()> {
        self.ask(kernel, || ())
    }
}

/// The requests to time the steps of kernels. Each kernel has one closure at most, which makes the
/// kernel follow the requests that there are by then.
#[derive(Default)]
pub(crate) struct Times(RefCell<BTreeMap<u32, Arc<Mutex<Wanted>>>>);

/// The requests to time the steps of one kernel.
#[derive(Default)]
struct Wanted {
    count: usize,
    /// The kernel has the closure.
    is_sent: bool,
    /// The kernel times steps for the console.
    is_timing: bool,
}

/// Requests to time the steps of some kernels. The drop takes them back.
pub(crate) struct Timing(Vec<(KernelView, Arc<Mutex<Wanted>>)>);

impl Times {
    /// Makes kernels time their steps.
    pub(crate) fn begin(&self, kernels: impl IntoIterator<Item = KernelView>) -> Timing {
        let mut times = self.0.borrow_mut();
        let mut wanted = |kernel: KernelView| {
            let wanted = times.entry(kernel.id().number()).or_default().clone();
            lock(&wanted).count += 1;
            follow(&kernel, &wanted);
            (kernel, wanted)
        };
        Timing(kernels.into_iter().map(&mut wanted).collect())
    }

    /// Forgets the kernels with other numbers.
    pub(crate) fn retain(&self, is_there: impl Fn(u32) -> bool) {
        self.0.borrow_mut().retain(|kernel, _| is_there(*kernel));
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        for (kernel, wanted) in &self.0 {
            lock(wanted).count -= 1;
            follow(kernel, wanted);
        }
    }
}

/// Has a kernel follow the requests to time steps, unless it has the closure for that.
fn follow(kernel: &KernelView, wanted: &Arc<Mutex<Wanted>>) {
    let is_sent = replace(&mut lock(wanted).is_sent, true);
    if is_sent {
        return;
    }
    let wanted = wanted.clone();
    let follow = move || {
        let mut wanted = lock(&wanted);
        wanted.is_sent = false;
        let is_wanted = wanted.count > 0;
        if replace(&mut wanted.is_timing, is_wanted) != is_wanted {
            drop(wanted);
            time_steps(is_wanted);
        }
    };
    // A kernel that has ended times nothing.
    let _ = kernel.handle().call_there(Box::new(follow));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No statement leaves a value that is half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits so long for the answer of a kernel.
pub(crate) async fn answer<T>(replied: Replied<T>, within: Duration) -> Result<T, Silent> {
    match timeout_after(within, future_wait(replied)).await {
        Ok(Ok(Some(answer))) => Ok(answer),
        _ => Err(Silent),
    }
}

/// Has a kernel call a closure, after it has answered another one.
pub(crate) async fn ask<T, W>(kernel: &KernelView, work: W) -> Result<T, Silent>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    answer(send(kernel, work), WORK_WITHIN).await
}

/// Lists some tasks, each with the last wait of those that it polls itself.
pub(crate) async fn list(kernel: &KernelView, index: u32) -> Result<Page, Silent> {
    let look = move || {
        let TaskPage { tasks, next } = tasks_from(index, PAGE);
        let tasks =
            tasks.iter().map(|task| SeenTask { waits: last_wait(task), ..SeenTask::of(task) });
        Page { tasks: tasks.collect(), next }
    };
    ask(kernel, look).await
}

fn last_wait(task: &TaskRef) -> Vec<SeenWait> {
    // Not that of a step in the future.
    if task.is_ready() { Vec::new() } else { task.seen_waits() }
}

/// Lists some tasks with all waits, after one more poll of each.
pub(crate) async fn list_with_waits(kernel: &KernelView, index: u32) -> Result<Page, Silent> {
    if index == 0 {
        show_all(kernel).await?;
    }
    let look = move || {
        let TaskPage { tasks, next } = tasks_from(index, INSPECTED_PAGE);
        (inspect(tasks), next)
    };
    let ((tasks, references), next) = ask(kernel, look).await?;
    let tasks = read_waits(kernel, tasks, references).await?;
    Ok(Page { tasks, next })
}

/// References to tasks, on their way through the console's thread.
pub(crate) type References = Bound<Vec<TaskRef>>;

/// Looks at tasks, and has each of them polled once more.
fn inspect(tasks: Vec<TaskRef>) -> (Vec<SeenTask>, References) {
    let seen = tasks.iter().map(SeenTask::of).collect();
    tasks.iter().for_each(TaskRef::inspect);
    (seen, Bound::new(tasks))
}

/// Reads the waits of tasks, when the kernel has polled them.
async fn read_waits(
    kernel: &KernelView,
    mut tasks: Vec<SeenTask>,
    mut references: References,
) -> Result<Vec<SeenTask>, Silent> {
    for reading in 1.. {
        let is_last = reading == READINGS;
        let read = move || {
            let is_polled = |task: &TaskRef| task.is_ended() || !task.is_ready();
            if !is_last && !references.get().iter().all(is_polled) {
                return Err(references);
            }
            let at = (now(), clock_rate());
            let read = |task: &TaskRef| ReadWaits::of(task, at);
            Ok(references.get().iter().map(read).collect::<Vec<_>>())
        };
        match ask(kernel, read).await? {
            Ok(waits) => {
                tasks.iter_mut().zip(waits).for_each(|(task, read)| task.add(read));
                break;
            }
            Err(not_yet) => references = not_yet,
        }
        sleep(READ_AGAIN).await.map_err(|_| Silent)?;
    }
    Ok(tasks)
}

/// The waits of a task, as a closure on its kernel's thread has read them.
struct ReadWaits {
    state: State,
    has_wakers: bool,
    has_moved: bool,
    waits: Vec<SeenWait>,
    at: (Ticks, Rate),
}

impl ReadWaits {
    fn of(task: &TaskRef, at: (Ticks, Rate)) -> Self {
        let waits = if task.is_ended() { Vec::new() } else { task.waits() };
        let (has_wakers, has_moved) = (task.has_wakers(), task.has_moved());
        Self { state: state_of(task), has_wakers, has_moved, waits, at }
    }
}

/// Looks at one task with all waits. `None` if there is no such task.
pub(crate) async fn look_at(
    pings: &Pings,
    kernel: &KernelView,
    task: TaskId,
) -> Result<Option<SeenTask>, Silent> {
    answer(pings.ping(kernel), ANSWER_WITHIN).await?;
    Ok(look_at_all(kernel, BTreeSet::from([task])).await?.pop())
}

/// Looks at some tasks with all waits, at all of them between the same two steps. Those that have
/// ended are left out.
pub(crate) async fn look_at_all(
    kernel: &KernelView,
    tasks: BTreeSet<TaskId>,
) -> Result<Vec<SeenTask>, Silent> {
    let found = find_all(kernel, tasks).await?;
    let (tasks, references) = ask(kernel, move || inspect(found.into_inner())).await?;
    read_waits(kernel, tasks, references).await
}

/// Finds a task by its number.
pub(crate) async fn find(
    pings: &Pings,
    kernel: &KernelView,
    id: TaskId,
) -> Result<Option<References>, Silent> {
    answer(pings.ping(kernel), ANSWER_WITHIN).await?;
    let found = find_all(kernel, BTreeSet::from([id])).await?;
    ask(kernel, move || (!found.get().is_empty()).then_some(found)).await
}

/// Has a kernel find the names of tasks that others wait for: a kernel with many tasks finds those
/// that pages have shown.
async fn show_all(kernel: &KernelView) -> Result<(), Silent> {
    find_all(kernel, BTreeSet::new()).await.map(drop)
}

/// Finds tasks by their numbers. Goes through all tasks.
async fn find_all(kernel: &KernelView, ids: BTreeSet<TaskId>) -> Result<References, Silent> {
    let ids = Arc::new(ids);
    let mut found = ask(kernel, || Bound::new(Vec::new())).await?;
    let mut next = Some(0);
    while let Some(index) = next {
        let ids = ids.clone();
        let search = move || {
            let TaskPage { tasks, next } = tasks_from(index, SEARCHED_PAGE);
            let wanted = tasks.into_iter().filter(|task| ids.contains(&task.id()));
            found.get_mut().extend(wanted);
            (found, next)
        };
        (found, next) = ask(kernel, search).await?;
    }
    Ok(found)
}

/// The bytes of the futures of all tasks. The kernel keeps no sum, which each spawn would have to
/// add to.
pub(crate) async fn future_bytes(kernel: &KernelView, within: Duration) -> Result<u64, Silent> {
    let mut sum = 0;
    let mut next = Some(0);
    while let Some(index) = next {
        let add = move || {
            let TaskPage { tasks, next } = tasks_from(index, SEARCHED_PAGE);
            let bytes = tasks.iter().map(|task| task.future_type().1 as u64);
            (bytes.sum::<u64>(), next)
        };
        let bytes;
        (bytes, next) = answer(send(kernel, add), within).await?;
        sum += bytes;
    }
    Ok(sum)
}

/// What was seen of a kernel's tasks when it last answered. In memory that this thread has
/// allocated: if it freed that of the kernel's thread all at once, the kernel's next allocation
/// would take as long as the allocator needs to sort it.
pub(crate) type Look = Rc<Vec<SeenTask>>;
