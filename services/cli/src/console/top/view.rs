//! What `top` shows, and what its keys do.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use pikake::console::answer::Answer;
use pikake::console::model::{KernelStats, Process, Task, TaskKey};
use pikake::console::text::{Ids, where_};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// How far a page key goes.
const PAGE: usize = 20;

/// The process at a moment.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// The time since the first look.
    pub(super) at: Duration,
    pub(super) tasks: Answer,
    pub(super) stats: Vec<KernelStats>,
}

/// By what tasks are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// The busiest since the last look first.
    Busy,
    /// The most steps first.
    Steps,
    /// The longest without a step first.
    Since,
    /// The oldest first.
    Id,
}

/// What a key asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Stay,
    End,
    /// Ask for this task from now on, or for none.
    Detail(Option<TaskKey>),
}

/// A task in full.
#[derive(Debug)]
struct Detail {
    task: TaskKey,
    text: String,
    scroll: usize,
}

/// What is shown.
#[derive(Debug)]
pub(super) struct View {
    process: Process,
    look: Look,
    /// The steps in a second of each kernel of the last two looks.
    steps_per_second: Option<BTreeMap<u32, u64>>,
    /// The part of the time since the look before that each task was stepped.
    shares: HashMap<TaskKey, f64>,
    /// The tasks that pass the filter, in order, as places in the look.
    rows: Vec<usize>,
    order: Order,
    filter: String,
    is_typing: bool,
    /// The task that the cursor is on; `None`: the first one, whichever that is.
    selected: Option<TaskKey>,
    detail: Option<Detail>,
}

impl View {
    pub(super) fn new(process: Process) -> Self {
        Self {
            process,
            look: Look::default(),
            steps_per_second: None,
            shares: HashMap::new(),
            rows: Vec::new(),
            order: Order::Busy,
            filter: String::new(),
            is_typing: false,
            selected: None,
            detail: None,
        }
    }

    /// Takes a new look.
    pub(super) fn look(&mut self, look: Look) {
        let before = std::mem::replace(&mut self.look, look);
        let seconds = self.look.at.saturating_sub(before.at).as_secs_f64();
        self.shares.clear();
        self.steps_per_second = None;
        // The first look has none before it.
        if seconds > 0.0 && !before.stats.is_empty() {
            let steps: HashMap<u32, u64> =
                before.stats.iter().map(|kernel| (kernel.kernel, kernel.steps)).collect();
            let rate = |now: &KernelStats| {
                let more = now.steps.saturating_sub(*steps.get(&now.kernel)?);
                Some((now.kernel, (more as f64 / seconds).round() as u64))
            };
            self.steps_per_second = Some(self.look.stats.iter().filter_map(rate).collect());
            let busy: HashMap<TaskKey, u64> =
                before.tasks.tasks.iter().map(|task| (task.id, task.busy)).collect();
            for task in &self.look.tasks.tasks {
                let more = task.busy.saturating_sub(busy.get(&task.id).copied().unwrap_or(0));
                self.shares.insert(task.id, more as f64 / 1e9 / seconds);
            }
        }
        self.arrange();
    }

    /// Takes a task in full; `None` if it has ended.
    pub(super) fn detail(&mut self, task: TaskKey, answer: Option<Answer>) {
        let Some(detail) = self.detail.as_mut().filter(|detail| detail.task == task) else {
            return;
        };
        let kernels = self.look.tasks.kernels.clone();
        detail.text = match answer {
            Some(answer) => where_(&Answer { kernels, ..answer }),
            None => format!("task {} has ended", Ids::of(&kernels).show(task)),
        };
    }

    /// Filters and sorts the rows.
    fn arrange(&mut self) {
        let tasks = &self.look.tasks.tasks;
        let rows = (0..tasks.len()).filter(|row| passes(&tasks[*row], &self.filter));
        let mut rows: Vec<usize> = rows.collect();
        match self.order {
            Order::Busy => rows.sort_by(|a, b| {
                let key = |row: usize| (self.share(tasks[row].id), tasks[row].busy);
                let ((a_share, a_busy), (b_share, b_busy)) = (key(*a), key(*b));
                b_share.total_cmp(&a_share).then(b_busy.cmp(&a_busy))
            }),
            Order::Steps => rows.sort_by_key(|row| Reverse(tasks[*row].steps)),
            Order::Since => rows.sort_by_key(|row| Reverse(tasks[*row].since)),
            Order::Id => rows.sort_by_key(|row| tasks[*row].id),
        }
        self.rows = rows;
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    /// The tasks and kernels of the last look.
    pub(super) fn tasks(&self) -> &Answer {
        &self.look.tasks
    }

    pub(super) fn stats(&self) -> &[KernelStats] {
        &self.look.stats
    }

    /// The steps of all kernels in a second.
    pub(super) fn steps_per_second(&self) -> Option<u64> {
        self.steps_per_second.as_ref().map(|kernels| kernels.values().sum())
    }

    /// The steps of a kernel in a second.
    pub(super) fn steps_per_second_of(&self, kernel: u32) -> Option<u64> {
        self.steps_per_second.as_ref()?.get(&kernel).copied()
    }

    /// The part of the last second that the task was stepped.
    pub(super) fn share(&self, task: TaskKey) -> f64 {
        self.shares.get(&task).copied().unwrap_or(0.0)
    }

    pub(super) fn order(&self) -> Order {
        self.order
    }

    /// The filter, if there is one or it is being typed.
    pub(super) fn filter(&self) -> Option<&str> {
        (self.is_typing || !self.filter.is_empty()).then_some(self.filter.as_str())
    }

    pub(super) fn is_typing(&self) -> bool {
        self.is_typing
    }

    pub(super) fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// The tasks of some rows.
    pub(super) fn rows(&self, from: usize, count: usize) -> impl Iterator<Item = &Task> {
        self.rows.iter().skip(from).take(count).map(|row| &self.look.tasks.tasks[*row])
    }

    /// The row that the cursor is on.
    pub(super) fn cursor(&self) -> usize {
        let tasks = &self.look.tasks.tasks;
        let found = self.rows.iter().position(|row| Some(tasks[*row].id) == self.selected);
        found.unwrap_or(0)
    }

    /// The lines of the task in full, from the one that is on top.
    pub(super) fn detail_lines(&self) -> Option<impl Iterator<Item = &str>> {
        self.detail.as_ref().map(|detail| detail.text.lines().skip(detail.scroll))
    }

    /// Does what a key asks for.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Stay;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::End;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Action::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return Action::End,
            KeyCode::Up | KeyCode::Char('k') => self.go(|at| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go(|at| at + 1),
            KeyCode::PageUp => self.go(|at| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.go(|at| at + PAGE),
            KeyCode::Home => self.go(|_| 0),
            KeyCode::End => self.go(|_| usize::MAX),
            KeyCode::Esc if self.detail.take().is_some() => return Action::Detail(None),
            _ if self.detail.is_some() => {}
            KeyCode::Enter => return self.open(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter_by(String::new()),
            KeyCode::Char('b') => self.order_by(Order::Busy),
            KeyCode::Char('s') => self.order_by(Order::Steps),
            KeyCode::Char('t') => self.order_by(Order::Since),
            KeyCode::Char('i') => self.order_by(Order::Id),
            _ => {}
        }
        Action::Stay
    }

    fn type_filter(&mut self, code: KeyCode) {
        let mut filter = self.filter.clone();
        match code {
            KeyCode::Char(c) => filter.push(c),
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                filter.clear();
            }
            _ => {}
        }
        self.filter_by(filter);
    }

    fn filter_by(&mut self, filter: String) {
        self.filter = filter;
        self.arrange();
    }

    fn order_by(&mut self, order: Order) {
        self.order = order;
        self.arrange();
    }

    /// Moves the cursor, or scrolls the task in full.
    fn go(&mut self, to: impl Fn(usize) -> usize) {
        if let Some(detail) = &mut self.detail {
            let last = detail.text.lines().count().saturating_sub(1);
            detail.scroll = to(detail.scroll).min(last);
            return;
        }
        let Some(last) = self.rows.len().checked_sub(1) else { return };
        let row = to(self.cursor()).min(last);
        let task = self.look.tasks.tasks[self.rows[row]].id;
        // On the first row the cursor stays there, whichever task is the busiest.
        self.selected = (row > 0).then_some(task);
    }

    /// Opens the task that the cursor is on.
    fn open(&mut self) -> Action {
        let Some(task) = self.rows(self.cursor(), 1).next().map(|task| task.id) else {
            return Action::Stay;
        };
        self.detail = Some(Detail { task, text: "…".to_owned(), scroll: 0 });
        Action::Detail(Some(task))
    }
}

/// Whether a text is in the task's name, its places or its traps.
fn passes(task: &Task, filter: &str) -> bool {
    let waits = task.waits.iter().flat_map(|wait| [&wait.trap, &wait.place]);
    filter.is_empty()
        || [&task.name, &task.spawned_at].into_iter().chain(waits).any(|text| text.contains(filter))
}
