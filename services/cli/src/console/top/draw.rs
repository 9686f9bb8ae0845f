//! Draws what `top` shows.

use pikake::console::model::{Kernel, KernelStats, Task};
use pikake::console::text::{Ids, PS_HEAD, counted, duration, escaped, ps_row, warnings};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;

use super::view::{Order, View};

/// The widths of the columns: those of `ps` without the last, and the share of the time. The wait
/// has the rest.
const WIDTHS: [usize; 7] = [6, 24, 7, 6, 6, 8, 6];
/// The space between columns.
const GAP: &str = "  ";

/// Draws all: the figures, the warnings, the tasks or one of them, and the keys.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    let mut top: Vec<Line<'_>> = vec![Line::from(about(view)), Line::from(figures(view))];
    top.extend(kernels(view).into_iter().map(Line::from));
    top.extend(slowest_lock(view).map(Line::from));
    top.extend(warnings(view.tasks()).lines().map(|line| Line::from(line.to_owned()).red()));
    let bottom = area.height.saturating_sub(1);
    let mut row = 0;
    for line in top {
        put(frame, &mut row, bottom, line);
    }
    put(frame, &mut row, bottom, Line::default());
    match view.detail_lines() {
        Some(lines) => {
            for line in lines {
                put(frame, &mut row, bottom, Line::from(line));
            }
        }
        None => table(frame, view, row, bottom),
    }
    let mut last = bottom;
    put(frame, &mut last, area.height, Line::from(keys(view)).dim());
}

/// Draws a line if there is room for it.
fn put(frame: &mut Frame<'_>, row: &mut u16, end: u16, line: Line<'_>) {
    if *row < end {
        let area = Rect { y: *row, height: 1, ..frame.area() };
        frame.render_widget(line, area);
        *row += 1;
    }
}

fn about(view: &View) -> String {
    let process = view.process();
    let (program, pid) = (&process.program, process.pid);
    let kernels = counted(view.tasks().kernels.len() as u64, "kernel");
    let tasks = counted(view.tasks().tasks.len() as u64, "task");
    let ready = sum(view, |kernel| kernel.ready);
    format!("{program} ({pid}): {kernels}, {tasks}, {ready} ready")
}

fn sum(view: &View, field: impl Fn(&KernelStats) -> u64) -> u64 {
    view.stats().iter().map(field).sum()
}

fn figures(view: &View) -> String {
    let rate = view.steps_per_second().map_or_else(|| "-".to_owned(), |rate| rate.to_string());
    let longest = view.stats().iter().map(|kernel| kernel.longest_step).max().unwrap_or(0);
    let timers = counted(sum(view, |kernel| kernel.timers), "timer");
    let sockets = counted(sum(view, |kernel| kernel.sockets), "socket");
    let threads = counted(sum(view, |kernel| kernel.threads), "helper thread");
    let longest = duration(longest);
    format!("{rate} steps/s, the longest {longest}; {timers}, {sockets}, {threads}")
}

/// The kernels side by side, a line for each; none if there is one kernel. A kernel that is stuck
/// in a step is late by that step at least.
fn kernels(view: &View) -> Vec<String> {
    let kernels = &view.tasks().kernels;
    if kernels.len() < 2 {
        return Vec::new();
    }
    let row = |kernel: &Kernel| {
        let stats = view.stats().iter().find(|stats| stats.kernel == kernel.id);
        let peers = stats.and_then(|stats| stats.peers.as_ref());
        let stuck = kernel.stuck.as_ref().map(|step| step.lasts);
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let cells = [
            number(Some(kernel.id.into())),
            number(stats.map(|stats| stats.tasks)),
            number(stats.map(|stats| stats.ready)),
            number(view.steps_per_second_of(kernel.id)),
            stuck.or(peers.map(|peers| peers.late)).map(duration),
            peers.map(|peers| duration(peers.late_max)),
            number(peers.map(|peers| peers.offers_made)),
            number(peers.map(|peers| peers.offers_taken)),
        ];
        cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned())).collect()
    };
    let head = ["kernel", "tasks", "ready", "steps/s", "late", "max late", "offered", "taken"];
    let rows: Vec<Vec<String>> = kernels.iter().map(row).collect();
    let text = pikake::console::text::table(&head, &[true; 8], &rows);
    text.lines().map(str::to_owned).collect()
}

/// The lock that a task waited for longest; `None` if no task has waited for one.
fn slowest_lock(view: &View) -> Option<String> {
    let slowest = view.tasks().locks.iter().max_by_key(|lock| lock.longest_wait)?;
    let (lock, waited) = (escaped(&slowest.lock), duration(slowest.longest_wait));
    let held = match &slowest.longest_holder {
        Some((task, _)) => {
            format!(", and {} had it for {}", escaped(task), duration(slowest.longest_hold))
        }
        None => String::new(),
    };
    Some(format!("the slowest lock: {lock}, waited for {waited}{held}"))
}

fn keys(view: &View) -> String {
    if view.detail_lines().is_some() {
        return "Esc back  ↑↓ scroll  q end".to_owned();
    }
    match view.filter() {
        Some(filter) if view.is_typing() => format!("/{filter}▏  Enter keep  Esc clear"),
        Some(filter) => format!("/{filter}  Esc clear  Enter task  q end"),
        None => "sort: b busy  s steps  t since  i id   / filter  Enter task  q end".to_owned(),
    }
}

fn table(frame: &mut Frame<'_>, view: &View, from: u16, end: u16) {
    let mut row = from;
    put(frame, &mut row, end, Line::from(head(view.order())).bold());
    let height = usize::from(end.saturating_sub(row));
    let cursor = view.cursor();
    // The cursor is in the middle, except near the ends.
    let first = cursor.saturating_sub(height / 2).min(view.row_count().saturating_sub(height));
    let ids = Ids::of(&view.tasks().kernels);
    for (index, task) in view.rows(first, height).enumerate() {
        let style = match first + index == cursor {
            true => Style::new().reversed(),
            false => Style::new(),
        };
        let text = task_line(ids, task, view.share(task.id));
        let width = usize::from(frame.area().width);
        put(frame, &mut row, end, Line::from(format!("{text:<width$}")).style(style));
    }
}

/// The names of the columns; the one that the tasks are sorted by is marked.
fn head(order: Order) -> String {
    let [id, name, state, wait, since, steps, busy, _] = PS_HEAD;
    let mark = |column: &str, is_it: bool| match is_it {
        true => format!("{column}*"),
        false => column.to_owned(),
    };
    let cells = [
        mark(id, order == Order::Id),
        name.to_owned(),
        state.to_owned(),
        mark("share", order == Order::Busy),
        busy.to_owned(),
        mark(steps, order == Order::Steps),
        mark(since, order == Order::Since),
    ];
    columns(&cells) + wait
}

fn task_line(ids: Ids, task: &Task, share: f64) -> String {
    let [id, name, state, wait, since, steps, busy, _] = ps_row(ids, task);
    let share = format!("{:.1} %", share * 100.0);
    columns(&[id, name, state, share, busy, steps, since]) + &wait
}

/// The cells in their columns. Names and states are aligned left, and names are cut.
fn columns(cells: &[String; 7]) -> String {
    let mut line = String::new();
    for (column, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        let cell = match column {
            1 => format!("{:<width$}", pikake::console::text::cut_middle(cell, width)),
            2 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        };
        line.push_str(&cell);
        line.push_str(GAP);
    }
    line
}
