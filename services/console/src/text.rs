//! What a console tells, as text for people.
//!
//! Each function takes an [`Answer`] and returns lines that end with a line break. Lengths of time
//! are rounded down to two digits. Control characters in names are escaped, since they come from
//! another process.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write;

use crate::answer::Answer;
use crate::groups::{self, Group};
use crate::model::{
    Edge, Event, GoesOn, Graph, Kernel, KernelStats, Lock, Process, ProcessStats, ProfileRow,
    Samples, Scope, Stack, State, Step, Task, TaskKey, Wait, What,
};
use crate::page::{function_of, is_own};

/// The longest name of a task in a table, in characters.
const NAME_WIDTH: usize = 32;
/// The longest place in a table, in characters.
const PLACE_WIDTH: usize = 44;
/// The depth from which the tree indents no further: a line stays readable, and the text short.
const DEPTH_LIMIT: usize = 24;
/// The length of the longest bar of the histogram, in characters.
const BAR_WIDTH: u64 = 40;
/// The number of functions that the profile lists.
const FUNCTIONS: usize = 20;
/// The number of traps that a row of the profile lists.
const TRAPS: usize = 3;
/// The longest name of a function in a stack, in characters.
const FUNCTION_WIDTH: usize = 120;
/// The functions of a kernel that polls a task have one of these: by the name, or by the file where
/// the name is none of the whole.
const POLLS: [&str; 2] = ["_traps::cell::TaskCell", "traps/src/cell.rs:"];
/// The number of alike waits that are listed one by one.
const ALIKE: usize = 3;
/// The number of alike tasks that are listed one by one.
pub const FOLDED: usize = 100;
/// The cell of a value that is not known.
const UNKNOWN: &str = "-";

/// How tasks are numbered: `17` if there is one kernel, else `2.17`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ids {
    only_kernel: Option<u32>,
}

impl Ids {
    /// The numbers of the tasks of these kernels.
    pub fn of(kernels: &[Kernel]) -> Self {
        let only_kernel = match kernels {
            [kernel] => Some(kernel.id),
            _ => None,
        };
        Self { only_kernel }
    }

    /// Whether the numbers of tasks need that of their kernel.
    fn has_several(self) -> bool {
        self.only_kernel.is_none()
    }

    /// The number of a task, as text.
    pub fn show(self, task: TaskKey) -> String {
        match self.only_kernel {
            Some(kernel) if kernel == task.kernel => task.task.to_string(),
            _ => task.to_string(),
        }
    }

    /// The task of a text, which may name the kernel in any case.
    ///
    /// # Errors
    ///
    /// What is wrong with the text.
    pub fn parse(self, text: &str) -> Result<TaskKey, String> {
        match (text.parse(), self.only_kernel) {
            (Ok(task), Some(kernel)) => Ok(TaskKey { kernel, task }),
            _ => text.parse(),
        }
    }
}

/// A length of time in nanoseconds, as `1.2 s`, `340 ms` or `12 µs`.
pub fn duration(nanoseconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")];
    let seconds = nanoseconds / UNITS[0].0;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (1.., _, _) => format!("{days} d {} h", hours % 24),
        (_, 1.., _) => format!("{hours} h {} min", minutes % 60),
        (_, _, 1..) => format!("{minutes} min {} s", seconds % 60),
        _ => match UNITS.iter().find(|(unit, _)| nanoseconds >= *unit) {
            Some((unit, name)) => two_digits(nanoseconds, *unit, name),
            None => format!("{nanoseconds} ns"),
        },
    }
}

/// A number of bytes, as `1.2 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| count >= *unit) {
        Some((unit, name)) => two_digits(count, *unit, name),
        None => format!("{count} B"),
    }
}

/// `1.2 s`, but `12 s`.
fn two_digits(value: u64, unit: u64, name: &str) -> String {
    match value / unit {
        whole @ 10.. => format!("{whole} {name}"),
        whole => format!("{whole}.{} {name}", value % unit * 10 / unit),
    }
}

/// `1 task`, `2 tasks`.
pub fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// The text with its control characters escaped, so a terminal shows them, and does not obey.
///
/// # Examples
///
/// ```
/// use pikake::console::text::escaped;
///
/// assert_eq!(escaped("a task\u{1b}[2J"), "a task\\u{1b}[2J");
/// ```
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_debug()),
            false => shown.push(c),
        }
    }
    shown
}

/// The text, at most so many characters long: `…` replaces its middle.
pub fn cut_middle(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let end = width.saturating_sub(1) / 2;
    let begin = width.saturating_sub(1) - end;
    let kept = text.chars().take(begin).chain(['…']).chain(text.chars().skip(count - end));
    kept.collect()
}

/// The text, at most so wide, without its beginning.
fn cut_beginning(text: &str, width: usize) -> String {
    // Whole folders of a path are left out, as far as the file has room.
    let folders = text.match_indices('/').map(|(at, _)| &text[at..]);
    let fitting = |end: &&str| end.chars().count() < width;
    if text.chars().count() > width {
        if let Some(end) = folders.into_iter().find(fitting) {
            return format!("…{end}");
        }
    }
    match text.chars().count() {
        count if count > width => {
            ['…'].into_iter().chain(text.chars().skip(count - width + 1)).collect()
        }
        _ => text.to_owned(),
    }
}

/// A place of source as crate and file, without the folders of the machine that built the program.
fn place(place: &str) -> String {
    escaped(short_path(place))
}

/// The path of a source file as crate and file: without cargo's folders of packages and of
/// checkouts from git, and without that of the compiler's sources. Other paths stay.
pub fn short_path(path: &str) -> &str {
    let behind = |mark: &str, folders: usize| {
        let (_, rest) = path.split_once(mark)?;
        rest.splitn(folders + 1, '/').nth(folders)
    };
    // `…/registry/src/REGISTRY/CRATE-VERSION/…`, `/rustc/COMMIT/library/…`, and
    // `…/git/checkouts/REPOSITORY-HASH/COMMIT/…`.
    behind("/registry/src/", 1)
        .or_else(|| behind("/rustc/", 1))
        .or_else(|| behind("/git/checkouts/", 2))
        .unwrap_or(path)
}

/// A table with columns as wide as their widest cell; numbers are aligned right. Control characters
/// are escaped.
///
/// # Panics
///
/// If a row has fewer cells than the head.
pub fn table(head: &[&str], is_number: &[bool], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| escaped(cell)).collect()).collect();
    let mut widths: Vec<usize> = head.iter().map(|name| name.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    for row in [&head].into_iter().chain(&rows) {
        for (column, width) in widths.iter().enumerate() {
            let cell = &row[column];
            let _ = match is_number[column] {
                true => write!(text, "{cell:>width$}  "),
                false => write!(text, "{cell:<width$}  "),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// The numbers and names of tasks.
struct Names<'a> {
    ids: Ids,
    names: HashMap<TaskKey, &'a str>,
}

impl<'a> Names<'a> {
    fn of(answer: &'a Answer) -> Self {
        let tasks = answer.tasks.iter().map(|task| (task.id, task.name.as_str()));
        let of_events = answer.names.iter().map(|name| (name.id, name.name.as_str()));
        let names = tasks.chain(of_events).collect();
        Self { ids: Ids::of(&answer.kernels), names }
    }

    /// ``17 `worker` ``.
    fn short(&self, task: TaskKey) -> String {
        let name = self.names.get(&task).copied().unwrap_or_default();
        numbered(&self.ids.show(task), name)
    }

    /// ``task 17 `worker` ``.
    fn long(&self, task: TaskKey) -> String {
        format!("task {}", self.short(task))
    }
}

fn numbered(id: &str, name: &str) -> String {
    match name {
        "" => id.to_owned(),
        name => format!("{id} `{}`", cut_middle(&escaped(name), NAME_WIDTH)),
    }
}

fn state_name(state: State) -> &'static str {
    match state {
        State::New => "new",
        State::Ready => "ready",
        State::Running => "running",
        State::Waiting => "waiting",
    }
}

/// The state of a task in a table: `waiting, cancelled 3.2 s ago, goes on`.
fn state_of(task: &Task) -> String {
    let state = state_name(task.state);
    match &task.goes_on {
        Some(it) => format!("{state}, {}", goes_on(it)),
        None => state.to_owned(),
    }
}

fn goes_on(goes_on: &GoesOn) -> String {
    format!("cancelled {} ago, goes on", duration(goes_on.asked))
}

/// ``lock at src/main.rs:10:5 (mutex `accounts`, held by task 3)``.
fn wait_line(wait: &Wait) -> String {
    wait_words(&wait.trap, &wait.place, wait.about.as_deref())
}

fn wait_words(trap: &str, at: &str, about: Option<&str>) -> String {
    let about = about.map(|about| format!(" ({})", escaped(about))).unwrap_or_default();
    format!("{} at {}{about}", escaped(trap), place(at))
}

fn scope_line(scope: &Scope) -> String {
    let Some(left) = scope.left else { return "in a shield".to_owned() };
    let left = match u64::try_from(left) {
        Ok(left) => format!("in a deadline with {} left", duration(left)),
        Err(_) => format!("in a deadline that passed {} ago", duration(left.unsigned_abs())),
    };
    let set_at = scope.set_at.as_ref().map(|at| format!(", set at {}", place(at)));
    left + &set_at.unwrap_or_default()
}

/// Lines about the kernels that did not answer, each beginning with `!`. Empty if all did.
pub fn warnings(answer: &Answer) -> String {
    let names = Names::of(answer);
    let mut text = String::new();
    for kernel in answer.kernels.iter().filter(|k| k.stuck.is_some() || k.stale.is_some()) {
        let thread = escaped(&kernel.thread);
        let tid = kernel.tid.map(|tid| format!(" ({tid})")).unwrap_or_default();
        let _ = write!(text, "! kernel {} on thread `{thread}`{tid} ", kernel.id);
        text += &match &kernel.stuck {
            Some(step) => format!("is stuck: {}", step_line(names.ids, step)),
            None => "does not answer".to_owned(),
        };
        text += &match kernel.stale {
            Some(_) if answer.tasks.iter().all(|task| is_stuck(kernel, task)) => {
                "; its other tasks are not known\n".to_owned()
            }
            Some(age) => format!("; its tasks are as they were {} ago\n", duration(age)),
            None if answer.tasks.iter().any(|task| task.id.kernel == kernel.id) => "\n".to_owned(),
            None => "; its tasks are not known\n".to_owned(),
        };
    }
    text
}

/// Whether the task is another kernel's, or the one that the kernel is stuck in.
fn is_stuck(kernel: &Kernel, task: &Task) -> bool {
    task.id.kernel != kernel.id || kernel.stuck.as_ref().is_some_and(|step| step.task == task.id)
}

/// ``task 17 `worker`, spawned at src/main.rs:12:5, has been in one step for 3.2 s``.
fn step_line(ids: Ids, step: &Step) -> String {
    format!("{}, has been in one step for {}", step_task(ids, step), duration(step.lasts))
}

/// ``task 17 `worker`, spawned at src/main.rs:12:5``.
fn step_task(ids: Ids, step: &Step) -> String {
    let task = numbered(&ids.show(step.task), &step.name);
    format!("task {task}, spawned at {}", place(&step.spawned_at))
}

/// A table of processes, each with the number of its tasks if that is known.
pub fn processes(processes: &[(Process, Option<u64>)]) -> String {
    let row = |(process, tasks): &(Process, Option<u64>)| {
        let tasks = tasks.map_or_else(|| UNKNOWN.to_owned(), |tasks| tasks.to_string());
        let program = cut_middle(&process.program, NAME_WIDTH);
        vec![process.pid.to_string(), program, tasks, duration(process.age)]
    };
    let rows: Vec<Vec<String>> = processes.iter().map(row).collect();
    table(&["pid", "program", "tasks", "age"], &[true, false, true, true], &rows)
}

/// A table of the tasks. More than [`FOLDED`] tasks that do the same are one line, as
/// [`groups::alike`] finds them, unless `is_whole`; and more than `limit` lines are left out.
pub fn ps(answer: &Answer, is_whole: bool, limit: Option<usize>) -> String {
    let ids = Ids::of(&answer.kernels);
    let rows: Vec<Vec<String>> = if is_whole {
        answer.tasks.iter().map(|task| ps_row(ids, task).to_vec()).collect()
    } else {
        let groups = groups::alike(&answer.tasks);
        let rows = groups.iter().flat_map(|group| match group.tasks.len() {
            count if count > FOLDED => vec![folded_row(ids, group).to_vec()],
            _ => group.tasks.iter().map(|task| ps_row(ids, task).to_vec()).collect(),
        });
        rows.collect()
    };
    let shown = limit.unwrap_or(rows.len()).min(rows.len());
    let left_out = match rows.len() - shown {
        0 => String::new(),
        count => format!("… and {} more\n", counted(count as u64, "line")),
    };
    let rows = &rows[..shown];
    let is_number = [true, false, false, false, true, true, true, false];
    warnings(answer) + &table(&PS_HEAD, &is_number, rows) + &left_out + &totals(answer)
}

/// Tasks that do the same, as a row of [`ps`]: the first of them, with the number of all, the
/// longest time since a last step, and the sums of steps and their time.
fn folded_row(ids: Ids, group: &Group<'_>) -> [String; 8] {
    let first = group.tasks[0];
    let sum = |of: fn(&Task) -> u64| group.tasks.iter().map(|task| of(task)).sum();
    let since = group.tasks.iter().filter_map(|task| task.since).max();
    let (steps, busy) = (sum(|task| task.steps), sum(|task| task.busy));
    let name = group.name().to_owned();
    let all = Task { name, since, steps, busy, ..first.clone() };
    let [id, name, rest @ ..] = ps_row(ids, &all);
    let [state, wait, since, steps, busy, place] = rest;
    let name = format!("{name} ×{}", group.tasks.len());
    [format!("{id}…"), name, state, wait, since, steps, busy, place]
}

/// A table of the tasks by place of spawn, the largest group first.
pub fn ps_groups(answer: &Answer, limit: Option<usize>) -> String {
    let has_several = Ids::of(&answer.kernels).has_several();
    let row = |group: &Group<'_>| {
        let states = [State::New, State::Ready, State::Running, State::Waiting];
        let states = states.map(|state| (group.count(state), state_name(state)));
        let states = states.iter().filter(|(count, _)| *count > 0);
        let states: Vec<String> = states.map(|(count, name)| format!("{count} {name}")).collect();
        let wait = group.commonest_wait().map_or_else(String::new, |(trap, at, count)| {
            let of = if count < group.tasks.len() { format!(" ({count})") } else { String::new() };
            format!("{trap} at {}{of}", cut_beginning(&place(at), PLACE_WIDTH))
        });
        let since = group.tasks.iter().filter_map(|task| task.since).max();
        let busy: u64 = group.tasks.iter().map(|task| task.busy).sum();
        let kernel =
            if has_several { format!("{}: ", group.tasks[0].id.kernel) } else { String::new() };
        let name = match group.name() {
            "" => UNKNOWN.to_owned(),
            name => cut_middle(name, NAME_WIDTH),
        };
        vec![
            group.tasks.len().to_string(),
            format!("{kernel}{name}"),
            states.join(", "),
            wait,
            since.map_or_else(|| UNKNOWN.to_owned(), duration),
            if busy == 0 { UNKNOWN.to_owned() } else { duration(busy) },
            cut_beginning(&place(&group.tasks[0].spawned_at), PLACE_WIDTH),
        ]
    };
    let groups = groups::by_place(&answer.tasks);
    let shown = limit.unwrap_or(groups.len()).min(groups.len());
    let rows: Vec<Vec<String>> = groups[..shown].iter().map(row).collect();
    let left_out = match groups.len() - shown {
        0 => String::new(),
        count => format!("… and {} more\n", counted(count as u64, "group")),
    };
    let head = ["tasks", "name", "states", "most wait for", "oldest", "busy", "spawned at"];
    let is_number = [true, false, false, false, true, true, false];
    warnings(answer) + &table(&head, &is_number, &rows) + &left_out + &totals(answer)
}

/// The names of the columns of [`ps_row`].
pub const PS_HEAD: [&str; 8] =
    ["id", "name", "state", "waits for", "since", "steps", "busy", "spawned at"];

/// A task as a row of a table: its number, name, state, wait, the time since its last step, its
/// steps, their time, and the place of its spawn. Control characters are as they are.
pub fn ps_row(ids: Ids, task: &Task) -> [String; 8] {
    let name = match task.name.as_str() {
        "" => UNKNOWN.to_owned(),
        name => cut_middle(name, NAME_WIDTH),
    };
    let wait = task.waits.first().map_or_else(String::new, |wait| {
        let more = match task.waits.len() {
            1 => String::new(),
            count => format!(" (+{})", count - 1),
        };
        let at = cut_beginning(&place(&wait.place), PLACE_WIDTH);
        format!("{} at {at}{more}", wait.trap)
    });
    let known = |time: u64| match time {
        0 => UNKNOWN.to_owned(),
        time => duration(time),
    };
    [
        ids.show(task.id),
        name,
        state_of(task),
        wait,
        task.since.map_or_else(|| UNKNOWN.to_owned(), duration),
        task.steps.to_string(),
        known(task.busy),
        cut_beginning(&place(&task.spawned_at), PLACE_WIDTH),
    ]
}

/// `3 tasks: 1 ready, 2 waiting`.
fn totals(answer: &Answer) -> String {
    let tasks = &answer.tasks;
    let is_old = |kernel: &&Kernel| tasks.iter().any(|task| !is_stuck(kernel, task));
    let old = answer.kernels.iter().filter(|kernel| kernel.stale.is_some()).find(is_old);
    let age =
        old.and_then(|kernel| kernel.stale).map(|age| format!(" as of {} ago", duration(age)));
    let age = age.unwrap_or_default();
    let states = [State::New, State::Ready, State::Running, State::Waiting];
    let count_of = |state| tasks.iter().filter(|task| task.state == state).count();
    let parts = states.map(|state| (count_of(state), state_name(state)));
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .collect();
    let separator = if parts.is_empty() { "" } else { ": " };
    format!("{}{age}{separator}{}\n", counted(tasks.len() as u64, "task"), parts.join(", "))
}

/// The tasks with their children, their waits, and the scopes around these.
///
/// A task whose parent has ended is at the top.
pub fn tree(answer: &Answer) -> String {
    let ids = Ids::of(&answer.kernels);
    let present: HashSet<TaskKey> = answer.tasks.iter().map(|task| task.id).collect();
    let mut children: HashMap<TaskKey, Vec<&Task>> = HashMap::new();
    let mut text = warnings(answer);
    // The tasks that remain to be shown, the next one last, each with what stands before its own
    // branch.
    let mut rest: Vec<(&Task, Branch)> = Vec::new();
    for task in &answer.tasks {
        match task.parent.filter(|parent| present.contains(parent)) {
            Some(parent) => children.entry(parent).or_default().push(task),
            None => rest.push((task, Branch::default())),
        }
    }
    rest.reverse();
    while let Some((task, branch)) = rest.pop() {
        let below = children.remove(&task.id).unwrap_or_default();
        let _ = write!(text, "{}{}", branch.begin, numbered(&ids.show(task.id), &task.name));
        match task.parent {
            Some(parent) if !present.contains(&parent) => {
                let _ = write!(text, " (task {}, its parent, has ended)", ids.show(parent));
            }
            Some(parent) if branch.depth == DEPTH_LIMIT => {
                let _ = write!(text, " (child of task {})", ids.show(parent));
            }
            _ => {}
        }
        let is_deep = branch.depth == DEPTH_LIMIT;
        // The lines of the task stand left of the branches to its children.
        let bar = if below.is_empty() || is_deep { "   " } else { "│  " };
        let before = format!("{}{bar}", branch.next);
        text += &body(task, &before);
        let last = below.len().saturating_sub(1);
        let below = below.into_iter().enumerate().rev();
        rest.extend(below.map(|(index, child)| (child, branch.below(index == last))));
    }
    text
}

/// What stands before a task of the tree.
#[derive(Default)]
struct Branch {
    depth: usize,
    /// Before its first line.
    begin: String,
    /// Before its next lines and its children.
    next: String,
}

impl Branch {
    /// The branch of a child.
    fn below(&self, is_last: bool) -> Self {
        if self.depth == DEPTH_LIMIT {
            return Self { begin: self.begin.clone(), next: self.next.clone(), ..*self };
        }
        let (begin, next) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let (begin, next) = (format!("{}{begin}", self.next), format!("{}{next}", self.next));
        Self { depth: self.depth + 1, begin, next }
    }
}

/// The rest of a task's first line in the tree, and its other lines.
fn body(task: &Task, before: &str) -> String {
    let mut text = String::new();
    let since = match (task.state, task.since) {
        (State::Waiting, Some(since)) => format!(" for {}", duration(since)),
        _ => String::new(),
    };
    let _ = write!(text, ": {}{since}", state_name(task.state));
    if let Some(reason) = &task.cancelled {
        let _ = write!(text, ", {}", cancelled(reason));
    }
    if let Some(it) = &task.goes_on {
        let _ = write!(text, ", {}", goes_on(it));
    }
    if let [wait] = &task.waits[..] {
        let _ = write!(text, ", {}", wait_line(wait));
    }
    text.push('\n');
    for wait in &task.waits {
        if task.waits.len() > 1 {
            let _ = writeln!(text, "{before}{}", wait_line(wait));
        }
        for scope in &wait.scopes {
            let _ = writeln!(text, "{before}  {}", scope_line(scope));
        }
    }
    text
}

/// `cancelled 3.2 s ago, caught at src/main.rs:10:5, 27 waits since`.
fn goes_on_in_full(goes_on: &GoesOn) -> String {
    let (asked, caught_at) = (duration(goes_on.asked), place(&goes_on.caught_at));
    format!(
        "cancelled {asked} ago, caught at {caught_at}, {} since",
        counted(goes_on.waits, "wait")
    )
}

fn cancelled(reason: &str) -> String {
    match reason {
        "" => "asked to end".to_owned(),
        reason => format!("asked to end: {}", escaped(reason)),
    }
}

/// The tasks of the answer in full: every wait with its trap, its place, what it is for, and the
/// scopes around it.
pub fn where_(answer: &Answer) -> String {
    let names = Names::of(answer);
    let mut text = warnings(answer);
    for task in &answer.tasks {
        let _ = writeln!(text, "{}", names.long(task.id));
        let since = match (task.state, task.since) {
            (State::Waiting, Some(since)) => format!(" for {}", duration(since)),
            (_, Some(since)) => format!(", last stepped {} ago", duration(since)),
            (_, None) => String::new(),
        };
        let busy = match task.busy {
            0 => String::new(),
            busy => format!(", {} in all, the longest {}", duration(busy), duration(task.longest)),
        };
        let lines = [
            ("state", Some(format!("{}{since}", state_name(task.state)))),
            ("cancelled", task.cancelled.as_deref().map(cancelled)),
            ("goes on", task.goes_on.as_ref().map(goes_on_in_full)),
            ("parent", task.parent.map(|parent| names.long(parent))),
            ("spawned at", Some(place(&task.spawned_at))),
            ("future", Some(format!("{}, {}", escaped(&task.future), bytes(task.bytes)))),
            ("steps", Some(format!("{}{busy}", task.steps))),
        ];
        for (what, line) in lines {
            if let Some(line) = line {
                let _ = writeln!(text, "  {what:<10}  {line}");
            }
        }
        for wait in &task.waits {
            let _ = writeln!(text, "  waits in {} at {}", escaped(&wait.trap), place(&wait.place));
            if let Some(about) = &wait.about {
                let _ = writeln!(text, "    for {}", escaped(about));
            }
            if !wait.owners.is_empty() {
                let owners: Vec<String> =
                    wait.owners.iter().map(|owner| names.long(*owner)).collect();
                let _ = writeln!(text, "    until {} ends the wait", owners.join(" or "));
            }
            for scope in &wait.scopes {
                let _ = writeln!(text, "    {}", scope_line(scope));
            }
        }
    }
    text
}

/// Who waits for whom: deadlocks first, then waits that nothing polls, then all other waits for a
/// task.
pub fn waits(answer: &Answer) -> String {
    let all = answer.graph.as_ref().map(|graph| graph_text(answer, graph)).unwrap_or_default();
    match all.as_str() {
        "" => {
            warnings(answer)
                + &unknown_waits(answer)
                + "no task waits for another one, as far as is known\n"
        }
        _ => warnings(answer) + &unknown_waits(answer) + &all,
    }
}

/// A line for each kernel that did not answer, and of whose tasks nobody has listed all waits
/// before.
fn unknown_waits(answer: &Answer) -> String {
    let is_unknown = |kernel: &&Kernel| {
        let tasks = answer.tasks.iter().filter(|task| task.id.kernel == kernel.id);
        let mut waits = tasks.flat_map(|task| &task.waits);
        kernel.stale.is_some() && waits.all(|wait| wait.about.is_none())
    };
    let line = |kernel: &Kernel| {
        format!(
            "! who waits for whom in kernel {} is not known: nobody has asked before; `ps` lists its tasks\n",
            kernel.id
        )
    };
    answer.kernels.iter().filter(is_unknown).map(line).collect()
}

/// A circle of waits.
struct Circle<'a> {
    tasks: &'a [TaskKey],
    /// The number of the tasks that follow these.
    left_out: u64,
}

impl Circle<'_> {
    /// The edges that are known.
    fn edges(&self) -> impl Iterator<Item = (TaskKey, TaskKey)> {
        let next = self.tasks.iter().cycle().skip(1);
        let known = self.tasks.len() - usize::from(self.left_out > 0);
        self.tasks.iter().copied().zip(next.copied()).take(known)
    }
}

fn circles(graph: &Graph) -> impl Iterator<Item = Circle<'_>> {
    let left_out: HashMap<TaskKey, u64> = graph.left_out.iter().copied().collect();
    graph.deadlocks.iter().filter(|tasks| !tasks.is_empty()).map(move |tasks| {
        let left_out = left_out.get(&tasks[0]).copied().unwrap_or_default();
        Circle { tasks, left_out }
    })
}

/// The edges of all circles.
fn edges_of_circles(graph: &Graph) -> HashSet<(TaskKey, TaskKey)> {
    circles(graph).flat_map(|circle| circle.edges().collect::<Vec<_>>()).collect()
}

fn edge_words(edge: &Edge) -> String {
    wait_words(&edge.trap, &edge.place, edge.about.as_deref())
}

fn graph_text(answer: &Answer, graph: &Graph) -> String {
    let names = Names::of(answer);
    let edges: HashMap<(TaskKey, TaskKey), &Edge> =
        graph.edges.iter().map(|edge| ((edge.from, edge.to), edge)).collect();
    let line = |from: TaskKey, to: TaskKey| {
        let what = edges.get(&(from, to)).map(|edge| format!(": {}", edge_words(edge)));
        let what = what.unwrap_or_default();
        format!("{} waits for {}{what}\n", names.long(from), names.long(to))
    };
    let mut text = String::new();
    for circle in circles(graph) {
        let count = circle.tasks.len() as u64 + circle.left_out;
        text += &match circle.tasks[..] {
            [task] => format!("DEADLOCK: {} waits for itself\n", names.long(task)),
            _ => format!("DEADLOCK: {count} tasks wait for each other in a circle\n"),
        };
        for (from, to) in circle.edges() {
            text += "  ";
            text += &line(from, to);
        }
        if circle.left_out > 0 {
            let first = names.long(circle.tasks[0]);
            let count = circle.left_out;
            let _ = writeln!(text, "  {count} more tasks, the last of which waits for {first}");
        }
    }
    let tasks: HashMap<TaskKey, &Task> = answer.tasks.iter().map(|task| (task.id, task)).collect();
    for task in &graph.unpolled {
        let _ = writeln!(text, "FUTURELOCK: {} waits for itself", names.long(*task));
        text += "  Another future of the task can end the wait, and nothing polls that future.\n";
        for wait in tasks.get(task).into_iter().flat_map(|task| &task.waits) {
            let _ = writeln!(text, "  {}", wait_line(wait));
        }
    }
    let in_circles = edges_of_circles(graph);
    // Tasks that wait alike are one line.
    let mut alike: BTreeMap<_, Vec<&Edge>> = BTreeMap::new();
    for edge in graph.edges.iter().filter(|edge| !in_circles.contains(&(edge.from, edge.to))) {
        let spawned_at = tasks.get(&edge.from).map(|task| task.spawned_at.as_str());
        let words = edge_words(edge);
        alike.entry((edge.to, words, spawned_at)).or_default().push(edge);
    }
    let mut lines: Vec<_> = alike.into_iter().collect();
    lines.sort_by_key(|(_, edges)| edges[0].from);
    for ((to, words, _), edges) in lines {
        let to = names.long(to);
        if edges.len() > ALIKE {
            let (count, first) = (edges.len() as u64, names.long(edges[0].from));
            let _ =
                writeln!(text, "{} like {first} wait for {to}: {words}", counted(count, "task"));
            continue;
        }
        for edge in edges {
            let _ = writeln!(text, "{} waits for {to}: {words}", names.long(edge.from));
        }
    }
    text
}

/// Who waits for whom, as a graph in the language of Graphviz: deadlocks are red, unpolled waits
/// are orange.
pub fn dot(answer: &Answer) -> String {
    let names = Names::of(answer);
    let none = Graph::default();
    let graph = answer.graph.as_ref().unwrap_or(&none);
    let in_circles = edges_of_circles(graph);
    let deadlocked: HashSet<TaskKey> = in_circles.iter().map(|(from, _)| *from).collect();
    let unpolled: HashSet<TaskKey> = graph.unpolled.iter().copied().collect();
    let ends = graph.edges.iter().flat_map(|edge| [edge.from, edge.to]);
    let nodes: BTreeSet<TaskKey> = ends.chain(deadlocked.clone()).chain(unpolled.clone()).collect();
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let mut text = "digraph waits {\n  node [shape=box]\n".to_owned();
    for node in nodes {
        let colour = match (deadlocked.contains(&node), unpolled.contains(&node)) {
            (true, _) => " color=red",
            (false, true) => " color=orange",
            (false, false) => "",
        };
        let label = quoted(&names.short(node));
        let _ = writeln!(text, "  \"{node}\" [label=\"{label}\"{colour}]");
    }
    for edge in &graph.edges {
        let (from, to) = (edge.from, edge.to);
        let colour = if in_circles.contains(&(from, to)) { " color=red" } else { "" };
        let label = quoted(&edge_words(edge));
        let _ = writeln!(text, "  \"{from}\" -> \"{to}\" [label=\"{label}\"{colour}]");
    }
    text + "}\n"
}

/// The figures of the process and of its kernels.
pub fn stats(answer: &Answer) -> String {
    let mut text = warnings(answer);
    if let Some(process) = &answer.process {
        text += "process\n";
        text += &lines(&process_lines(process));
    }
    for stats in &answer.stats {
        let _ = writeln!(text, "kernel {}", stats.kernel);
        text += &lines(&kernel_lines(stats));
        text += &lateness(&stats.lateness);
    }
    text
}

fn lines(lines: &[(&str, Option<String>)]) -> String {
    let known = lines.iter().filter_map(|(what, value)| Some((what, value.as_ref()?)));
    known.map(|(what, value)| format!("  {what:<14}  {value}\n")).collect()
}

fn process_lines(process: &ProcessStats) -> [(&'static str, Option<String>); 6] {
    let limit = process.descriptor_limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
    let (user, system) = (duration(process.user_time), duration(process.system_time));
    let switches = format!(
        "{} voluntary, {} involuntary",
        process.voluntary_switches, process.involuntary_switches
    );
    [
        ("memory", process.resident_bytes.map(bytes)),
        ("descriptors", process.descriptors.map(|count| format!("{count}{limit}"))),
        ("threads", process.threads.map(|count| count.to_string())),
        ("processor time", Some(format!("{user} in the program, {system} in the system"))),
        ("page faults", Some(format!("{} from the disk", process.major_faults))),
        ("switches", Some(switches)),
    ]
}

fn kernel_lines(stats: &KernelStats) -> [(&'static str, Option<String>); 10] {
    let futures = bytes(stats.future_bytes);
    let longest = match stats.longest_step {
        0 => String::new(),
        longest => format!(", the longest {}", duration(longest)),
    };
    let threads = format!(
        "{}, {} of them idle; {} queued",
        stats.threads,
        stats.idle_threads,
        counted(stats.queued_closures, "closure")
    );
    let tasks = format!(
        "{}, {} ready, {futures} of futures; {} spawned so far",
        stats.tasks, stats.ready, stats.spawned
    );
    let late = stats.peers.as_ref().map(|it| {
        let (late, most) = (duration(it.late), duration(it.late_max));
        format!("by {late}, at most by {most} in the last minute")
    });
    let offers = stats
        .peers
        .as_ref()
        .map(|it| format!("{} made, {} of others taken", it.offers_made, it.offers_taken));
    [
        ("tasks", Some(tasks)),
        ("steps", Some(format!("{}{longest}", stats.steps))),
        ("tasks are late", late),
        ("offers", offers),
        ("timers", Some(stats.timers.to_string())),
        ("waiters", Some(stats.waiters.to_string())),
        ("sockets", Some(stats.sockets.to_string())),
        ("helper threads", Some(threads)),
        ("driver polls", Some(stats.polls.to_string())),
        ("messages", Some(stats.messages.to_string())),
    ]
}

/// The histogram of late timers.
fn lateness(counts: &[u64]) -> String {
    let Some(first) = counts.iter().position(|count| *count > 0) else { return String::new() };
    let last = counts.iter().rposition(|count| *count > 0).unwrap_or(first);
    let most = counts.iter().copied().max().unwrap_or(1);
    let most_digits = most.to_string().len();
    let mut text = "  timers were late by less than\n".to_owned();
    for (power, count) in counts.iter().enumerate().take(last + 1).skip(first) {
        let limit = 1_000_u64.saturating_mul(1_u64.checked_shl(power as u32).unwrap_or(u64::MAX));
        let bar = (count.saturating_mul(BAR_WIDTH)).div_ceil(most);
        let bar = "#".repeat(bar as usize);
        let line = format!("  {:>14}  {count:>most_digits$}  {bar}", duration(limit));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// The events of the flight recorder, the oldest first.
pub fn events(answer: &Answer) -> String {
    let names = Names::of(answer);
    let mut text = String::new();
    for event in &answer.events {
        let _ = writeln!(text, "{}", event_line(&names, event));
    }
    if answer.events.is_empty() {
        text += "no events\n";
    }
    for (kernel, count) in &answer.lost {
        let count = counted(*count, "event");
        let _ = writeln!(
            text,
            "! kernel {kernel} made more events than the console could keep: {count} are lost"
        );
    }
    text
}

fn event_line(names: &Names<'_>, event: &Event) -> String {
    let microseconds = event.at / 1_000;
    let at = format!("{}.{:06} s", microseconds / 1_000_000, microseconds % 1_000_000);
    let length = |took: &Option<u64>| took.map(|took| format!(" {}", duration(took)));
    let what = match &event.what {
        What::Spawned => "spawned".to_owned(),
        What::Stepped { took, trap, place: at } => {
            let took = length(took).unwrap_or_default();
            let wait = match (trap, at) {
                (Some(trap), Some(at)) => format!(", {}", wait_words(trap, at, None)),
                (Some(trap), None) => format!(", {}", escaped(trap)),
                _ => String::new(),
            };
            format!("stepped{took}{wait}")
        }
        What::Ended { took, exit } => {
            let took = took.map(|took| format!(", the last step {}", duration(took)));
            format!("{}{}", escaped(exit), took.unwrap_or_default())
        }
    };
    format!("{at:>14}  {}: {what}", names.long(event.task))
}

/// Leaks of tasks: groups that only grow, and tasks that wait for ended ones.
pub fn leaks(answer: &Answer) -> String {
    let ids = Ids::of(&answer.kernels);
    let mut text = warnings(answer);
    for group in &answer.growing {
        let name = match group.name.as_str() {
            "" => String::new(),
            name => format!(" like `{}`", escaped(name)),
        };
        let _ = writeln!(
            text,
            "GROWING: {}{name}, spawned at {}: {} more in {}, and never fewer",
            counted(group.count, "task"),
            place(&group.spawned_at),
            group.grown,
            duration(group.over)
        );
        if let Some(wait) = &group.wait {
            let task = numbered(&ids.show(group.first), &group.name);
            let wait = wait_words(&wait.trap, &wait.place, wait.about.as_deref());
            let _ = writeln!(text, "  the oldest, task {task}, waits: {wait}");
        }
    }
    for ended in &answer.waits_for_ended {
        let task = numbered(&ids.show(ended.task), &ended.name);
        let wait = wait_words(&ended.wait.trap, &ended.wait.place, ended.wait.about.as_deref());
        let _ = writeln!(text, "FOR EVER: task {task} waits for a task that has ended: {wait}");
    }
    if answer.growing.is_empty() && answer.waits_for_ended.is_empty() {
        text += "no group of tasks only grows, and no task waits for one that has ended\n";
    }
    text
}

/// The locks that tasks waited for, the one with the longest wait first.
pub fn locks(answer: &Answer) -> String {
    let has_several = Ids::of(&answer.kernels).has_several();
    let mut sorted: Vec<&Lock> = answer.locks.iter().collect();
    sorted.sort_by(|a, b| b.longest_wait.cmp(&a.longest_wait).then_with(|| a.lock.cmp(&b.lock)));
    let row = |lock: &&Lock| {
        let kernel = if has_several { format!("{}: ", lock.kernel) } else { String::new() };
        let holder = match &lock.longest_holder {
            Some((task, at)) => format!("{task} since {}", place(at)),
            None => UNKNOWN.to_owned(),
        };
        vec![
            format!("{kernel}{}", lock.lock),
            lock.waits.iter().sum::<u64>().to_string(),
            below(&lock.waits, 50),
            below(&lock.waits, 99),
            duration(lock.longest_wait),
            lock.holds.iter().sum::<u64>().to_string(),
            below(&lock.holds, 99),
            duration(lock.longest_hold),
            holder,
        ]
    };
    let rows: Vec<Vec<String>> = sorted.iter().map(row).collect();
    let head =
        ["lock", "waits", "50 %", "99 %", "longest", "holds", "99 %", "longest", "longest hold by"];
    let is_number = [false, true, true, true, true, true, true, true, false];
    match rows.is_empty() {
        true => warnings(answer) + "no task has waited for a lock\n",
        false => warnings(answer) + &table(&head, &is_number, &rows),
    }
}

/// The length that so many of a hundred are below, by counts of powers of two of a microsecond.
fn below(counts: &[u64], percent: u64) -> String {
    let all: u64 = counts.iter().sum();
    let mut sum = 0;
    let class = counts.iter().position(|count| {
        sum += count;
        sum * 100 >= all * percent
    });
    match class.filter(|_| all > 0) {
        Some(class) => format!("<{}", duration(1_000 << class)),
        None => UNKNOWN.to_owned(),
    }
}

/// The kernels that are in one step for too long, and the last long steps that are over, each with
/// the stack of the thread.
pub fn blocked(answer: &Answer) -> String {
    let ids = Ids::of(&answer.kernels);
    let mut text = String::new();
    if answer.blocked.iter().all(|blocked| blocked.ago.is_some()) {
        text += "no kernel is in one step for too long\n";
    }
    for blocked in &answer.blocked {
        let _ = match blocked.ago {
            None => {
                let step = step_line(ids, &blocked.step);
                writeln!(text, "! kernel {} is stuck: {step}", blocked.kernel)
            }
            Some(ago) => {
                let task = step_task(ids, &blocked.step);
                let (took, ago) = (duration(blocked.step.lasts), duration(ago));
                writeln!(text, "\n{ago} ago, {task}, was in one step for {took}")
            }
        };
        if let Some(thread) = &blocked.thread {
            let _ = writeln!(text, "  its thread: {}", escaped(thread));
        }
        match (&blocked.stack, &blocked.no_stack) {
            (Some(stack), _) => text += &stack_lines(stack),
            (None, Some(why)) => {
                let _ = writeln!(text, "  no stack: {}", escaped(why));
            }
            (None, None) => {}
        }
    }
    text
}

/// The functions of the task, the innermost first, without those of the kernel that polls it.
pub(crate) fn of_task(frames: &[String]) -> impl Iterator<Item = &str> {
    let is_poll = |frame: &&str| POLLS.iter().any(|poll| frame.contains(poll));
    frames.iter().rev().map(String::as_str).take_while(move |frame| !is_poll(frame))
}

/// The functions of the task, and the number of those of the kernel that polls it.
fn stack_lines(stack: &Stack) -> String {
    let thread = escaped(&stack.thread);
    let mut text = format!("  stack of thread `{thread}`, the innermost function first:\n");
    let all = stack.frames.len();
    let mut shown = 0;
    for frame in of_task(&stack.frames) {
        let _ = writeln!(text, "    {}", cut_middle(&escaped(frame), FUNCTION_WIDTH));
        shown += 1;
    }
    if shown < all {
        let _ =
            writeln!(text, "    … and {} of the kernel", counted((all - shown) as u64, "function"));
    }
    text
}

/// The profile: a row for the tasks of each name and place of spawn, the busiest first, and the
/// functions that most samples of processor time are in, and in which steps were blocked.
pub fn profile(answer: &Answer) -> String {
    let mut sorted: Vec<&ProfileRow> = answer.profile.iter().collect();
    sorted.sort_by_key(|row| (std::cmp::Reverse(row.busy), std::cmp::Reverse(row.steps)));
    let all: u64 = sorted.iter().map(|row| row.busy).sum();
    let row = |row: &&ProfileRow| {
        let mut waits = row.waits.clone();
        waits.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let waits: Vec<String> =
            waits.iter().take(TRAPS).map(|(trap, count)| format!("{trap} {count}")).collect();
        let name = match row.name.as_str() {
            "" => UNKNOWN.to_owned(),
            name => cut_middle(name, NAME_WIDTH),
        };
        vec![
            name,
            percent(row.busy, all),
            duration(row.busy),
            row.steps.to_string(),
            duration(row.longest),
            row.spawned.to_string(),
            cut_beginning(&place(&row.spawned_at), PLACE_WIDTH),
            waits.join(", "),
        ]
    };
    let rows: Vec<Vec<String>> = sorted.iter().map(row).collect();
    let head = ["name", "share", "busy", "steps", "longest", "spawned", "spawned at", "waits"];
    let is_number = [false, true, true, true, true, true, false, false];
    let samples = match &answer.samples {
        Some(Samples { none: Some(why), .. }) => format!("\nno samples: {}\n", escaped(why)),
        Some(samples) => functions(samples) + &blocked_steps(samples),
        None => String::new(),
    };
    table(&head, &is_number, &rows) + &samples
}

/// The functions that most samples are in.
fn functions(samples: &Samples) -> String {
    let all: u64 = samples.stacks.iter().map(|stack| stack.count).sum();
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for stack in &samples.stacks {
        if let Some(innermost) = stack.frames.last() {
            *counts.entry(innermost).or_default() += stack.count;
        }
    }
    let mut counts: Vec<(&str, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(function, count)| (std::cmp::Reverse(*count), *function));
    let rows = counts.iter().take(FUNCTIONS);
    let rows: Vec<Vec<String>> = rows
        .map(|(function, count)| {
            vec![percent(*count, all), count.to_string(), cut_middle(function, FUNCTION_WIDTH)]
        })
        .collect();
    let head = format!("{} of processor time, {} Hz", counted(all, "sample"), samples.frequency);
    format!("\n{head}\n{}", table(&["share", "samples", "function"], &[true, true, false], &rows))
}

/// The functions in which steps were blocked, that with the most time first. Empty if none was.
fn blocked_steps(samples: &Samples) -> String {
    if samples.blocked.is_empty() {
        return String::new();
    }
    let mut sums: HashMap<(&str, &str, String), (u64, u64)> = HashMap::new();
    for it in &samples.blocked {
        let key = (it.name.as_str(), it.spawned_at.as_str(), blocking_function(&it.stack));
        let (time, count) = sums.entry(key).or_default();
        *time += it.time;
        *count += it.stack.count;
    }
    let time: u64 = sums.values().map(|(time, _)| time).sum();
    let count: u64 = sums.values().map(|(_, count)| count).sum();
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(a, (x, _)), (b, (y, _))| y.cmp(x).then_with(|| a.cmp(b)));
    let row = |((name, at, function), (time, count)): &((&str, &str, String), (u64, u64))| {
        let name = if name.is_empty() { UNKNOWN.to_owned() } else { cut_middle(name, NAME_WIDTH) };
        vec![
            duration(*time),
            count.to_string(),
            name,
            cut_beginning(&place(at), PLACE_WIDTH),
            cut_middle(function, FUNCTION_WIDTH),
        ]
    };
    let rows: Vec<Vec<String>> = sums.iter().take(FUNCTIONS).map(row).collect();
    let head = ["blocked", "samples", "task", "spawned at", "function"];
    format!(
        "\nsteps were blocked for {}: {} of threads that slept in a step\n{}",
        duration(time),
        counted(count, "sample"),
        table(&head, &[true, true, false, false, false], &rows)
    )
}

/// The innermost function of the program or of its libraries, and the function that it blocked in:
/// `app::work (src/main.rs:3), in clock_nanosleep`.
fn blocking_function(stack: &Stack) -> String {
    let Some(innermost) = stack.frames.last() else { return UNKNOWN.to_owned() };
    match stack.frames.iter().rev().find(|frame| is_own(frame)) {
        Some(own) if own != innermost => format!("{own}, in {}", function_of(innermost)),
        _ => innermost.clone(),
    }
}

fn percent(part: u64, all: u64) -> String {
    match all {
        0 => UNKNOWN.to_owned(),
        _ => format!("{:.1} %", part as f64 * 100.0 / all as f64),
    }
}

/// All about the process, as it goes to standard error at a signal: the tasks as a tree, and who
/// waits for whom.
pub fn dump(process: &Process, answer: &Answer) -> String {
    let (pid, age) = (process.pid, duration(process.age));
    let head = format!("pikake: {} (process {pid}, up {age})\n", escaped(&process.program));
    let graph = answer.graph.as_ref().map(|graph| graph_text(answer, graph)).unwrap_or_default();
    head + &tree(answer) + &totals(answer) + &graph
}
