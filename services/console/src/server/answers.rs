//! The answers to requests.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::mem::take;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_kernel::inspect::{KernelView, kernel_figures};
use pikake_kernel::wait_graph::{self, GraphTask, GraphWait, WaitGraph};
use pikake_traps::locks::{LockRow, lock_rows};
use pikake_traps::{Interrupted, Replied, TaskId, sleep};

use super::Server;
use super::blocked::{blocked, long_steps};
use super::leaks::leaks;
use super::profile::profile;
use super::trace::trace;
use crate::answer::Answer;
use crate::model::{self, Edge, Graph, KernelStats, Lock, PeerStats, State, Step, Task, TaskKey};
use crate::observed::{
    self, ANSWER_WITHIN, INSPECTED_PAGE, OWNERS_OF_WAIT, References, SeenTask, Silent, TEXT_BYTES,
    WORK_WITHIN, ask, find, future_bytes, list, list_with_waits, look_at, look_at_all, nanoseconds,
    shown as text_of,
};
use crate::protocol::{Part, Request};
use crate::text;

/// The number of tasks in a frame: less than the limit of a frame has room for, usually by far.
const TASKS_IN_FRAME: usize = 250;

/// The number of edges in a frame, which has room for more as a rule.
const EDGES_IN_FRAME: usize = 1_000;

/// The largest number of tasks of a deadlock that are told: a frame has room for them.
const MEMBERS: usize = 1_000;

/// The largest number of tasks that are polled once more at the same time.
const LOOKED_AT_AGAIN: usize = 2_000;

/// The time in which a task that was asked to end may end, before the client is told that it has
/// not.
const END_WITHIN: Duration = Duration::from_secs(1);

/// The pause between two looks at such a task.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The longest time for which steps are traced.
const LONGEST_TRACE: Duration = Duration::from_secs(3_600);

/// The longest time for which steps are profiled: the tables of stacks grow meanwhile.
const LONGEST_PROFILE: Duration = Duration::from_secs(60);

/// The requests of one kind that are answered at once, if each one takes much memory.
const HEAVY: usize = 4;

/// A request that takes much memory, until the drop.
struct Heavy<'a>(&'a Cell<usize>);

impl<'a> Heavy<'a> {
    fn begin(count: &'a Cell<usize>, doing: &str) -> Result<Self, Trouble> {
        if count.get() >= HEAVY {
            return refused(format!("{HEAVY} clients {doing} already: try it again later"));
        }
        count.set(count.get() + 1);
        Ok(Self(count))
    }
}

impl Drop for Heavy<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Why there is no complete answer.
pub(super) enum Trouble {
    /// The request failed, for this reason.
    Failed(String),
    /// The client has gone.
    Lost(#[expect(dead_code, reason = "shown by a debugger")] io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Failed(why.into()))
}

/// A wait of the console's own that was not satisfied, as at its end.
pub(super) fn failed(error: impl fmt::Display) -> Trouble {
    Trouble::Failed(error.to_string())
}

/// Takes the parts of an answer.
pub(super) trait Sink {
    async fn part(&self, part: Part) -> Result<(), Trouble>;
}

/// Answers a request, but for the part that says that the answer is complete.
pub(super) async fn answer(
    server: &Server,
    request: &Request,
    to: &impl Sink,
) -> Result<(), Trouble> {
    match request {
        Request::Kernels => {
            for (_, shown) in ping(server).await {
                to.part(Part::Kernel(shown)).await?;
            }
            Ok(())
        }
        Request::Tasks { waits: false } => tasks(server, Detail::Tasks, to).await,
        Request::Tasks { waits: true } => {
            let _heavy = Heavy::begin(&server.lists_of_waits, LIST_WAITS)?;
            tasks(server, Detail::Waits, to).await
        }
        Request::Waits => {
            let _heavy = Heavy::begin(&server.lists_of_waits, LIST_WAITS)?;
            waits(server, to).await
        }
        Request::Task { task } => {
            let kernel = kernel_of(server, *task)?;
            match look_at(&server.pings, &kernel, TaskId(task.task)).await {
                Ok(Some(seen)) => {
                    to.part(Part::Tasks(vec![seen.to_model(task.kernel)])).await?;
                    Ok(())
                }
                Ok(None) => refused(no_such_task(*task)),
                Err(Silent) => silent_task(server, &kernel, *task, to).await,
            }
        }
        Request::Stats => stats(server, to).await,
        Request::Locks => locks(server, to).await,
        Request::Leaks => {
            let _heavy = Heavy::begin(&server.lists_of_waits, LIST_WAITS)?;
            leaks(server, to).await
        }
        Request::Cancel { task, reason } => end(server, *task, Some(reason), to).await,
        Request::Abort { task } => end(server, *task, None, to).await,
        Request::Trace { seconds } => {
            let length = seconds.map(|seconds| check_length(seconds, LONGEST_TRACE)).transpose()?;
            let heavy = length.map(|_| Heavy::begin(&server.recordings, RECORD));
            let _heavy = heavy.transpose()?;
            trace(server, length, to).await
        }
        Request::Profile { seconds } => {
            let length = check_length(*seconds, LONGEST_PROFILE)?;
            let _heavy = Heavy::begin(&server.recordings, RECORD)?;
            profile(server, length, to).await
        }
        Request::Blocked => blocked(server, to).await,
        Request::LongSteps => long_steps(to).await,
        // The connection's own.
        Request::Time => Ok(()),
    }
}

/// What clients do that ask for all waits.
const LIST_WAITS: &str = "list the waits";

/// What clients with a trace or a profile do.
const RECORD: &str = "record this process";

fn check_length(seconds: f64, longest: Duration) -> Result<Duration, Trouble> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(length) if length <= longest => Ok(length),
        _ => refused(format!("{seconds} seconds: give a length of 0 to {}", longest.as_secs())),
    }
}

/// Asks all kernels at once whether they answer.
pub(super) async fn ping(server: &Server) -> Vec<(KernelView, model::Kernel)> {
    ping_for(server, false).await
}

async fn ping_for(server: &Server, with_waits: bool) -> Vec<(KernelView, model::Kernel)> {
    let kernels = server.kernels();
    let asked: Vec<Replied<()>> = kernels.iter().map(|kernel| server.pings.ping(kernel)).collect();
    let began = Instant::now();
    let mut answered = Vec::new();
    for (kernel, asked) in kernels.into_iter().zip(asked) {
        let answer = observed::answer(asked, ANSWER_WITHIN.saturating_sub(began.elapsed())).await;
        let shown = show(server, &kernel, answer.is_ok(), with_waits);
        answered.push((kernel, shown));
    }
    answered
}

/// A kernel for a client, and what the watchdog knows of it if it does not answer. Its list is then
/// the last one, or the last one with all waits.
fn show(server: &Server, kernel: &KernelView, answers: bool, with_waits: bool) -> model::Kernel {
    let id = kernel.id().number();
    let mut shown = model::Kernel {
        id,
        thread: kernel.thread_name(),
        tid: kernel.tid(),
        stuck: None,
        stale: None,
    };
    if !answers {
        let since = server.looks.last(id, with_waits).map_or(server.began, |listed| listed.at);
        shown.stale = Some(nanoseconds(since.elapsed()));
        shown.stuck = kernel.current_step().map(|step| Step {
            task: TaskKey { kernel: id, task: step.task.0 },
            name: step.name.into(),
            spawned_at: step.spawned_at.to_string(),
            lasts: nanoseconds(step.lasts),
        });
    }
    shown
}

/// What is told of each task.
enum Detail<'a> {
    /// The task, and the last wait that it polls itself.
    Tasks,
    /// All waits.
    Waits,
    /// All waits, which are also collected for the graph.
    Graph(&'a mut Vec<GraphTask<TaskKey>>),
}

/// All tasks with all waits, and the graph of the waits.
pub(super) async fn waits(server: &Server, to: &impl Sink) -> Result<(), Trouble> {
    let mut all = Vec::new();
    tasks(server, Detail::Graph(&mut all), to).await?;
    let mut graph = WaitGraph::new(&all);
    let stuck = graph.stuck();
    if all.len() > INSPECTED_PAGE && !stuck.is_empty() && stuck.len() <= LOOKED_AT_AGAIN {
        let stuck = stuck.to_vec();
        look_again(server, &stuck, &mut all).await;
        graph = WaitGraph::new(&all);
    }
    let mut graph = graph_of(&graph);
    let mut all_edges = take(&mut graph.edges).into_iter().peekable();
    while all_edges.peek().is_some() {
        let edges = all_edges.by_ref().take(EDGES_IN_FRAME).collect();
        to.part(Part::Graph(Graph { edges, ..Graph::default() })).await?;
    }
    to.part(Part::Graph(graph)).await
}

/// Looks once more at the tasks that cannot go on: at those of a kernel all at once. The pages of
/// the listing are of different moments, so tasks that hand locks around may look like a deadlock.
async fn look_again(server: &Server, stuck: &[TaskKey], all: &mut [GraphTask<TaskKey>]) {
    let mut now = BTreeMap::new();
    for kernel in server.kernels() {
        let id = kernel.id().number();
        let ids = stuck.iter().filter(|key| key.kernel == id).map(|key| TaskId(key.task));
        let ids: BTreeSet<TaskId> = ids.collect();
        if ids.is_empty() {
            continue;
        }
        // A kernel that is stuck by now keeps what was seen.
        if let Ok(seen) = look_at_all(&kernel, ids).await {
            now.extend(seen.iter().map(|task| task.to_graph(id)).map(|task| (task.key, task)));
        }
    }
    for task in all {
        if let Some(later) = now.remove(&task.key) {
            *task = later;
        }
    }
}

fn graph_of(graph: &WaitGraph<'_, TaskKey>) -> Graph {
    // A wait for any of a million tasks has a million edges.
    let mut last = None;
    let is_told = |edge: &&wait_graph::Edge<'_, TaskKey>| {
        let wait: *const GraphWait<TaskKey> = edge.wait;
        let count = match last {
            Some((same, count)) if same == wait => count + 1,
            _ => 1,
        };
        last = Some((wait, count));
        count <= OWNERS_OF_WAIT
    };
    let edges = graph.edges().iter().filter(is_told).map(|edge| Edge {
        from: edge.from.key,
        to: *edge.to,
        trap: edge.wait.trap.clone(),
        place: edge.wait.place.clone(),
        about: edge.wait.about.as_deref().map(text_of),
    });
    let unpolled: BTreeSet<TaskKey> = graph.unpolled().iter().map(|wait| *wait.task).collect();
    let cycles = || graph.deadlocks().iter().map(|cycle| cycle.split_at(cycle.len().min(MEMBERS)));
    let left_out = cycles().filter(|(_, left_out)| !left_out.is_empty());
    Graph {
        edges: edges.collect(),
        deadlocks: cycles().map(|(told, _)| told.to_vec()).collect(),
        left_out: left_out.map(|(told, left_out)| (told[0], left_out.len() as u64)).collect(),
        unpolled: unpolled.into_iter().collect(),
    }
}

/// All tasks of all kernels.
async fn tasks(server: &Server, mut detail: Detail<'_>, to: &impl Sink) -> Result<(), Trouble> {
    let with_waits = !matches!(detail, Detail::Tasks);
    for (kernel, shown) in ping_for(server, with_waits).await {
        let answers = shown.stale.is_none();
        let id = shown.id;
        let stuck = shown.stuck.clone();
        to.part(Part::Kernel(shown)).await?;
        if !answers {
            let listed = server.looks.last(id, with_waits).map(|listed| listed.tasks);
            let listed = listed.unwrap_or_default();
            if let Detail::Graph(all) = &mut detail {
                all.extend(listed.iter().map(|task| task.to_graph(id)));
            }
            earlier_tasks(&listed, id, stuck.as_ref(), to).await?;
            continue;
        }
        let mut look = Vec::new();
        let mut next = Some(0);
        while let Some(index) = next {
            let page = match detail {
                Detail::Tasks => list(&kernel, index).await,
                Detail::Waits | Detail::Graph(_) => list_with_waits(&kernel, index).await,
            };
            let Ok(page) = page else {
                // The kernel is stuck since the first look.
                to.part(Part::Kernel(show(server, &kernel, false, with_waits))).await?;
                break;
            };
            if let Detail::Graph(all) = &mut detail {
                all.extend(page.tasks.iter().map(|task| task.to_graph(id)));
            }
            send_tasks(id, &page.tasks, to).await?;
            look.extend(page.tasks.iter().cloned());
            next = page.next;
        }
        if next.is_none() {
            server.looks.keep(id, Rc::new(look), with_waits);
        }
    }
    Ok(())
}

async fn send_tasks(kernel: u32, tasks: &[SeenTask], to: &impl Sink) -> Result<(), Trouble> {
    for tasks in tasks.chunks(TASKS_IN_FRAME) {
        let tasks = tasks.iter().map(|task| task.to_model(kernel)).collect();
        to.part(Part::Tasks(tasks)).await?;
    }
    Ok(())
}

/// The tasks of a kernel that does not answer: those of the last look, and the one that is being
/// stepped.
async fn earlier_tasks(
    look: &[SeenTask],
    kernel: u32,
    stuck: Option<&Step>,
    to: &impl Sink,
) -> Result<(), Trouble> {
    let mut running = stuck.map(|step| running(look, step));
    for tasks in look.chunks(TASKS_IN_FRAME) {
        let mut tasks: Vec<Task> = tasks.iter().map(|task| task.to_model(kernel)).collect();
        for task in &mut tasks {
            if running.as_ref().is_some_and(|running| running.id == task.id) {
                *task = running.take().expect("this is some");
            }
        }
        to.part(Part::Tasks(tasks)).await?;
    }
    if let Some(task) = running {
        to.part(Part::Tasks(vec![task])).await?;
    }
    Ok(())
}

/// The task of a step that lasts.
fn running(look: &[SeenTask], step: &Step) -> Task {
    let known = look.iter().find(|task| task.id.0 == step.task.task);
    let known = known.map(|task| task.to_model(step.task.kernel));
    let unknown = || Task {
        id: step.task,
        name: step.name.clone(),
        parent: None,
        state: State::Running,
        since: None,
        steps: 0,
        busy: 0,
        longest: 0,
        spawned_at: step.spawned_at.clone(),
        future: String::new(),
        bytes: 0,
        cancelled: None,
        goes_on: None,
        waits: Vec::new(),
    };
    let known = known.unwrap_or_else(unknown);
    Task { state: State::Running, since: None, waits: Vec::new(), ..known }
}

/// One task of a kernel that does not answer.
async fn silent_task(
    server: &Server,
    kernel: &KernelView,
    task: TaskKey,
    to: &impl Sink,
) -> Result<(), Trouble> {
    let shown = show(server, kernel, false, true);
    let look = server.looks.last(task.kernel, true).map(|listed| listed.tasks);
    let look = look.unwrap_or_default();
    let known = match &shown.stuck {
        Some(step) if step.task == task => Some(running(&look, step)),
        _ => look.iter().find(|seen| seen.id.0 == task.task).map(|seen| seen.to_model(task.kernel)),
    };
    match known {
        Some(known) => {
            to.part(Part::Kernel(shown)).await?;
            to.part(Part::Tasks(vec![known])).await?;
            Ok(())
        }
        None => refused(no_answer(&shown)),
    }
}

fn no_such_task(task: TaskKey) -> String {
    format!("there is no task {task}: it has ended, or there never was one")
}

/// Says why a kernel does not answer.
fn no_answer(kernel: &model::Kernel) -> String {
    match &kernel.stuck {
        Some(step) => format!(
            "kernel {} does not answer: it is in a step of task {}{} for {:.1?}, which was spawned at {}",
            kernel.id,
            step.task,
            if step.name.is_empty() { String::new() } else { format!(" `{}`", step.name) },
            Duration::from_nanos(step.lasts),
            step.spawned_at
        ),
        None => format!("kernel {} does not answer: the program does not run it", kernel.id),
    }
}

/// The kernel of a task.
fn kernel_of(server: &Server, task: TaskKey) -> Result<KernelView, Trouble> {
    let found = server.kernels().into_iter().find(|kernel| kernel.id().number() == task.kernel);
    found.map_or_else(|| refused(format!("there is no kernel {}", task.kernel)), Ok)
}

/// Asks a task to end, or drops its future, and looks what becomes of it.
async fn end(
    server: &Server,
    task: TaskKey,
    cancel: Option<&String>,
    to: &impl Sink,
) -> Result<(), Trouble> {
    if cancel.is_some_and(|reason| reason.len() > TEXT_BYTES) {
        return refused(format!("the reason is too long: it may have {TEXT_BYTES} bytes"));
    }
    let kernel = kernel_of(server, task)?;
    let silent = |Silent| Trouble::Failed(no_answer(&show(server, &kernel, false, false)));
    let Some(mut found) = find(&server.pings, &kernel, TaskId(task.task)).await.map_err(silent)?
    else {
        return refused(no_such_task(task));
    };
    let cancel = cancel.cloned();
    found = ask(&kernel, move || {
        let task = &found.get()[0];
        match cancel {
            Some(reason) => task.request_cancel(Interrupted::cancelled(&reason)),
            None => task.request_abort(Interrupted::cancelled("aborted by the console")),
        }
        found
    })
    .await
    .map_err(silent)?;
    match what_becomes_of(server, &kernel, task, found).await {
        Ok((is_ended, text)) => to.part(Part::Ended(is_ended, text)).await,
        // The task may have been the program's main task.
        Err(Silent) if kernel.handle().is_closed() => {
            to.part(Part::Ended(true, "ended, and so has its kernel".into())).await
        }
        Err(Silent) => {
            let shown = show(server, &kernel, false, false);
            refused(match shown.stuck {
                Some(_) => no_answer(&shown),
                None => format!(
                    "the task was asked to end, and nobody runs kernel {} since then: the program \
                     may have ended",
                    shown.id
                ),
            })
        }
    }
}

/// Looks for a while whether a task that was asked to end does so. `true`: it has ended.
async fn what_becomes_of(
    server: &Server,
    kernel: &KernelView,
    task: TaskKey,
    mut found: References,
) -> Result<(bool, String), Silent> {
    let asked = Instant::now();
    while asked.elapsed() < END_WITHIN {
        let look = move || {
            let is_ended = found.get()[0].is_ended();
            (found, is_ended)
        };
        let is_ended;
        (found, is_ended) = ask(kernel, look).await?;
        if is_ended {
            return Ok((true, "ended".into()));
        }
        sleep(LOOK_AGAIN).await.map_err(|_| Silent)?;
    }
    Ok(match look_at(&server.pings, kernel, TaskId(task.task)).await? {
        Some(seen) => {
            (false, format!("still running: {}", what_it_does(&seen.to_model(task.kernel))))
        }
        None => (true, "ended".into()),
    })
}

/// What a task does, in words.
fn what_it_does(task: &Task) -> String {
    match task.waits.as_slice() {
        [] => match task.state {
            State::New => "it was never stepped".into(),
            State::Ready => "it is ready for its next step".into(),
            State::Running => "it is being stepped".into(),
            State::Waiting => "it waits for a foreign future".into(),
        },
        [first, rest @ ..] => {
            let about = first.about.as_deref().unwrap_or(&first.trap);
            let more = if rest.is_empty() {
                String::new()
            } else {
                format!(", and {} waits more", rest.len())
            };
            let is_shielded = first.scopes.iter().any(|scope| scope.left.is_none());
            let shield = if is_shielded { ", inside a shield" } else { "" };
            format!("it waits for {about} at {}{shield}{more}", first.place)
        }
    }
}

pub(super) async fn stats(server: &Server, to: &impl Sink) -> Result<(), Trouble> {
    let process = server.system.borrow_mut().stats();
    to.part(Part::Process(process)).await?;
    for (kernel, shown) in ping(server).await {
        let stats = match shown.stale {
            None => kernel_stats(&kernel).await,
            Some(_) => Err(Silent),
        };
        match stats {
            Ok(stats) => to.part(Part::Stats(stats)).await?,
            Err(Silent) => to.part(Part::Kernel(show(server, &kernel, false, false))).await?,
        }
    }
    Ok(())
}

/// The figures of the locks of each kernel.
async fn locks(server: &Server, to: &impl Sink) -> Result<(), Trouble> {
    for (kernel, shown) in ping(server).await {
        let id = shown.id;
        let locks = match shown.stale {
            None => {
                ask(&kernel, move || lock_rows().iter().map(|row| lock_of(id, row)).collect()).await
            }
            Some(_) => Err(Silent),
        };
        match locks {
            Ok(locks) => to.part(Part::Locks(locks)).await?,
            Err(Silent) => to.part(Part::Kernel(show(server, &kernel, false, false))).await?,
        }
    }
    Ok(())
}

fn lock_of(kernel: u32, row: &LockRow) -> Lock {
    let name = row.name.map_or_else(
        || "s beyond those with figures of their own".to_owned(),
        |name| name.to_string(),
    );
    let holder = row.longest_holder.borrow();
    Lock {
        kernel,
        lock: text_of(&format!("{}{name}", row.kind)),
        waits: row.waits.counts(),
        waited: nanoseconds(row.waits.sum()),
        longest_wait: nanoseconds(row.longest_wait.get()),
        holds: row.holds.counts(),
        longest_hold: nanoseconds(row.longest_hold.get()),
        longest_holder: holder.as_ref().map(|(task, place)| (text_of(task), place.to_string())),
    }
}

async fn kernel_stats(kernel: &KernelView) -> Result<KernelStats, Silent> {
    let figures = ask(kernel, kernel_figures).await?;
    Ok(KernelStats {
        kernel: kernel.id().number(),
        tasks: figures.tasks as u64,
        ready: figures.ready as u64,
        spawned: figures.spawned,
        future_bytes: future_bytes(kernel, WORK_WITHIN).await?,
        timers: figures.timers as u64,
        waiters: figures.waiters as u64,
        sockets: figures.sockets as u64,
        threads: figures.busy_threads as u64,
        idle_threads: figures.idle_threads as u64,
        queued_closures: figures.queued_closures as u64,
        steps: figures.steps,
        polls: figures.polls,
        messages: figures.messages,
        longest_step: nanoseconds(figures.longest_step),
        lateness: figures.lateness,
        peers: figures.peers.map(|it| PeerStats {
            late: nanoseconds(it.late),
            late_max: nanoseconds(it.late_max),
            offers_made: it.offers_made,
            offers_taken: it.offers_taken,
        }),
    })
}

/// The parts of an answer, for the console itself.
#[derive(Default)]
pub(super) struct Collected(RefCell<Vec<Part>>);

impl Collected {
    /// The parts so far, as an answer.
    pub(super) fn into_answer(self) -> Answer {
        // No part says that the request failed.
        Answer::of(self.0.into_inner()).unwrap_or_default()
    }
}

impl Sink for Collected {
    async fn part(&self, part: Part) -> Result<(), Trouble> {
        self.0.borrow_mut().push(part);
        Ok(())
    }
}

/// All tasks with their waits, and the figures, in words.
pub(super) async fn dump(server: &Server) -> String {
    let collected = Collected::default();
    // Neither fails: there is no client that may go.
    let _ = waits(server, &collected).await;
    let _ = stats(server, &collected).await;
    let answer = collected.into_answer();
    text::dump(&server.process(), &answer) + &text::stats(&answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{FRAME_LIMIT, frame};

    /// The tasks of a deadlock, each of which waits for the next one.
    fn ring(count: u64) -> Vec<GraphTask<TaskKey>> {
        let key = |task| TaskKey { kernel: 1, task };
        let waits_for = |owner| GraphWait {
            trap: "park".into(),
            place: "src/main.rs:1:1".into(),
            about: None,
            owners: vec![key(owner)],
            is_granted: false,
            is_polled: true,
            ends_by_time: false,
        };
        let task = |task| GraphTask {
            key: key(task),
            name: String::new(),
            is_ready: false,
            has_wakers: false,
            has_moved: false,
            waits: vec![waits_for((task + 1) % count)],
        };
        (0..count).map(task).collect()
    }

    #[test]
    fn a_deadlock_of_many_tasks_fits_into_a_frame() {
        const TASKS: u64 = 200_000;
        let tasks = ring(TASKS);
        let mut graph = graph_of(&WaitGraph::new(&tasks));
        assert_eq!(graph.edges.len() as u64, TASKS);
        // The edges are divided.
        graph.edges.clear();
        assert_eq!((graph.deadlocks.len(), graph.deadlocks[0].len()), (1, MEMBERS));
        let first = TaskKey { kernel: 1, task: 0 };
        assert_eq!(graph.left_out, [(first, TASKS - MEMBERS as u64)]);
        assert!(frame(&Part::Graph(graph)).unwrap().len() < FRAME_LIMIT / 10);
    }

    #[test]
    fn a_deadlock_of_few_tasks_is_whole() {
        let tasks = ring(MEMBERS as u64);
        let graph = graph_of(&WaitGraph::new(&tasks));
        assert_eq!(graph.deadlocks[0].len(), MEMBERS);
        assert!(graph.left_out.is_empty());
    }
}
