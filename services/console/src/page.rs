//! A profile as a page of HTML: a table that sorts, and flame graphs of the samples.
//!
//! The page is one file that loads nothing, so a browser shows it from a disk. A flame graph is a
//! set of boxes at fractions of the width: a script of a few lines widens the one that is clicked.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use crate::model::{ProfileRow, Samples, Stack};

/// The least part of the samples that a box stands for, in percent: a narrower one has no room on a
/// screen.
const NARROWEST: f64 = 0.05;

/// The height of a box in pixels, with the gap to the next one.
const ROW: usize = 18;

const STYLE: &str = "
:root { color-scheme: light dark; --back: #fff; --text: #1a1a1a; --faint: #666; --line: #ddd;
  --own: #f4a261; --pikake: #8ecae6; --other: #d5d5d5; --box: #1a1a1a; }
@media (prefers-color-scheme: dark) { :root { --back: #16181b; --text: #e6e6e6; --faint: #999; --line: #33373d;
  --own: #b5652a; --pikake: #2a6f8a; --other: #474c54; --box: #f2f2f2; } }
body { background: var(--back); color: var(--text); font: 14px/1.4 system-ui, sans-serif; margin: 1.5em; }
h1 { font-size: 1.3em; } h2 { font-size: 1.1em; margin-top: 2em; } p { color: var(--faint); }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .25em .6em; text-align: left; vertical-align: top; }
th button { all: unset; cursor: pointer; font-weight: 600; } th button:focus-visible { outline: 2px solid; }
th[aria-sort=descending] button::after { content: ' \\25BE'; } th[aria-sort=ascending] button::after { content: ' \\25B4'; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code, .flame { font-family: ui-monospace, monospace; font-size: 12px; }
.flame { position: relative; overflow: hidden; }
.flame div { position: absolute; box-sizing: border-box; height: 17px; padding: 0 3px; overflow: hidden; cursor: pointer;
  white-space: nowrap; text-overflow: ellipsis; color: var(--box); background: var(--other);
  border-right: 1px solid var(--back); }
.flame .own { background: var(--own); } .flame .pikake { background: var(--pikake); }
";

const SCRIPT: &str = "
for (const th of document.querySelectorAll('th')) th.firstChild.onclick = () => {
  const down = th.ariaSort !== 'descending';
  for (const other of th.parentNode.children) other.ariaSort = null;
  th.ariaSort = down ? 'descending' : 'ascending';
  const key = row => { const td = row.children[th.cellIndex]; return td.dataset.v ?? td.textContent; };
  const order = (a, b) => th.className === 'n' ? key(a) - key(b) : key(a).localeCompare(key(b));
  const body = document.querySelector('tbody');
  body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
};
for (const flame of document.querySelectorAll('.flame')) for (const chosen of flame.children) chosen.onclick = () => {
  const [from, width] = [+chosen.dataset.x, +chosen.dataset.w];
  for (const box of flame.children) {
    const left = Math.max(+box.dataset.x, from), right = Math.min(+box.dataset.x + +box.dataset.w, from + width);
    box.hidden = right - left <= width * 1e-6;
    box.style.left = (left - from) / width * 100 + '%';
    box.style.width = (right - left) / width * 100 + '%';
  }
};
";

/// Writes a profile as one page of HTML that loads no other file.
///
/// The rows are sorted by their time; a click on a column's title sorts by that column. A click on
/// a box of a flame graph widens it. Blocked steps have a graph of their own.
///
/// # Examples
///
/// ```
/// use pikake::console::model::{ProfileRow, Samples};
/// use pikake::console::page::write_page;
///
/// let row = ProfileRow { name: "connection".into(), steps: 2, busy: 7_000, ..ProfileRow::default() };
/// let mut page = Vec::new();
/// write_page(&mut page, "my_server", &[row], &Samples::default())?;
/// assert!(String::from_utf8(page).unwrap().contains("7.0µs"));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// That of the writer.
pub fn write_page(
    to: &mut impl Write,
    title: &str,
    rows: &[ProfileRow],
    samples: &Samples,
) -> io::Result<()> {
    let title = escape(title);
    writeln!(to, "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">")?;
    writeln!(to, "<meta name=\"viewport\" content=\"width=device-width\">")?;
    writeln!(to, "<title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>")?;
    write_table(to, rows)?;
    write_samples(to, samples)?;
    writeln!(to, "<script>{SCRIPT}</script>\n</html>")
}

fn write_table(to: &mut impl Write, rows: &[ProfileRow]) -> io::Result<()> {
    const COLUMNS: [(&str, &str, &str); 9] = [
        ("", "Task", ""),
        ("", "Spawned at", ""),
        ("n", "Spawned", "The tasks that were spawned meanwhile"),
        ("n", "Steps", ""),
        ("n", "Time", "The time of the steps"),
        ("n", "Share", "Its part of the time of all steps"),
        ("n", "Mean", "The mean length of a step"),
        ("n", "Longest", "The longest step"),
        ("", "Waits", "The waits that followed steps"),
    ];
    writeln!(to, "<h2>Tasks by name and place</h2>\n<table>\n<thead><tr>")?;
    for (class, name, title) in COLUMNS {
        let sort = if name == "Time" { " aria-sort=\"descending\"" } else { "" };
        writeln!(to, "<th class=\"{class}\" title=\"{title}\"{sort}><button>{name}</button></th>")?;
    }
    writeln!(to, "</tr></thead>\n<tbody>")?;
    let mut rows: Vec<&ProfileRow> = rows.iter().collect();
    rows.sort_by(|a, b| b.busy.cmp(&a.busy).then_with(|| a.spawned_at.cmp(&b.spawned_at)));
    let all: u64 = rows.iter().map(|row| row.busy).sum();
    for row in rows {
        let ProfileRow { name, spawned_at, spawned, steps, busy, longest, waits } = row;
        let (name, spawned_at) = (escape(name), escape(spawned_at));
        write!(to, "<tr><td>{name}</td><td><code>{spawned_at}</code></td>")?;
        for count in [spawned, steps] {
            write!(to, "<td class=\"n\" data-v=\"{count}\">{count}</td>")?;
        }
        write!(to, "<td class=\"n\" data-v=\"{busy}\">{}</td>", time(*busy))?;
        let share = 100.0 * *busy as f64 / all.max(1) as f64;
        write!(to, "<td class=\"n\" data-v=\"{share}\">{share:.1} %</td>")?;
        for length in [busy / (*steps).max(1), *longest] {
            write!(to, "<td class=\"n\" data-v=\"{length}\">{}</td>", time(length))?;
        }
        let waits: Vec<_> =
            waits.iter().map(|(trap, count)| format!("{}\u{a0}{count}", escape(trap))).collect();
        writeln!(to, "<td>{}</td></tr>", waits.join(", "))?;
    }
    writeln!(to, "</tbody>\n</table>")
}

fn write_samples(to: &mut impl Write, samples: &Samples) -> io::Result<()> {
    writeln!(to, "<h2>Processor time by function</h2>")?;
    if let Some(why) = &samples.none {
        return writeln!(to, "<p>No samples: {}.</p>", escape(why));
    }
    let mut root = Node::default();
    for stack in &samples.stacks {
        root.add(format!("thread {}", stack.thread), stack, stack.count);
    }
    if root.count == 0 {
        writeln!(to, "<p>No samples: the process used no processor time.</p>")?;
    } else {
        writeln!(
            to,
            "<p>{} samples, {} a second of processor time. The outermost function is at the top; wider is more time. \
             Boxes of the program, of pikake, and of other libraries differ in colour.</p>",
            root.count, samples.frequency
        )?;
        write_flame(to, &root, |count| format!("{count} samples"))?;
    }
    if samples.blocked.is_empty() {
        return Ok(());
    }
    let mut root = Node::default();
    for it in &samples.blocked {
        root.add(format!("task {} of {}", it.name, it.spawned_at), &it.stack, it.time);
    }
    writeln!(
        to,
        "<h2>Blocked steps by function</h2>\n<p>For {}, the thread of a kernel slept in a step, and its other tasks \
         had to wait. The outermost function is at the top; wider is more time.</p>",
        time(root.count)
    )?;
    write_flame(to, &root, time)
}

fn write_flame(to: &mut impl Write, root: &Node, amount: impl Fn(u64) -> String) -> io::Result<()> {
    let mut boxes = Vec::new();
    root.write(&mut boxes, "all", 0, 0.0, root.count as f64, &amount)?;
    writeln!(to, "<div class=\"flame\" style=\"height:{}px\">", root.depth() * ROW)?;
    to.write_all(&boxes)?;
    writeln!(to, "</div>")
}

/// A function in the flame graph, with the functions that it called.
#[derive(Default)]
struct Node {
    count: u64,
    callees: BTreeMap<String, Node>,
}

impl Node {
    /// Adds a stack under a box with this name.
    fn add(&mut self, under: String, stack: &Stack, count: u64) {
        let frames = stack.frames.iter().map(|frame| function_of(frame).to_owned());
        let mut node = self;
        node.count += count;
        for name in std::iter::once(under).chain(frames) {
            node = node.callees.entry(name).or_default();
            node.count += count;
        }
    }

    fn depth(&self) -> usize {
        1 + self.callees.values().map(Self::depth).max().unwrap_or(0)
    }

    /// Writes the box of the function, and below it those of its callees, the one with the most
    /// samples first.
    fn write(
        &self,
        to: &mut impl Write,
        name: &str,
        depth: usize,
        left: f64,
        all: f64,
        amount: &impl Fn(u64) -> String,
    ) -> io::Result<()> {
        let width = 100.0 * self.count as f64 / all;
        if width < NARROWEST {
            return Ok(());
        }
        let (class, name, top, count) = (kind(name), escape(name), depth * ROW, amount(self.count));
        writeln!(
            to,
            "<div class=\"{class}\" style=\"left:{left:.4}%;width:{width:.4}%;top:{top}px\" data-x=\"{left:.4}\" \
             data-w=\"{width:.4}\" title=\"{name}&#10;{count}, {width:.1} %\">{name}</div>"
        )?;
        let mut callees: Vec<_> = self.callees.iter().collect();
        callees.sort_by_key(|(_, node)| std::cmp::Reverse(node.count));
        let mut left = left;
        for (name, node) in callees {
            node.write(to, name, depth + 1, left, all, amount)?;
            left += 100.0 * node.count as f64 / all;
        }
        Ok(())
    }
}

/// The function of a frame, `name (file:line)`: a function is one box, in whichever line it was.
pub(crate) fn function_of(frame: &str) -> &str {
    match frame.rsplit_once(" (") {
        Some((name, place)) if place.ends_with(')') => name,
        _ => frame,
    }
}

/// Whether a function belongs to the program or to a library of it, and neither to pikake nor to
/// the standard library.
pub(crate) fn is_own(frame: &str) -> bool {
    kind(function_of(frame)) == "own"
}

/// The class of a box: whose function it is, by the first crate in its name. A name without a path
/// is another's.
fn kind(name: &str) -> &'static str {
    let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let path = name.trim_start_matches(|c| !is_of_path(c)).trim_start_matches("dyn ");
    let path = path.split(|c| !is_of_path(c)).next().unwrap_or_default();
    match path.split_once("::").map(|(first, _)| first) {
        Some("std" | "core" | "alloc") | None => "other",
        Some(first) if first.starts_with("pikake") => "pikake",
        Some(_) => "own",
    }
}

fn time(nanos: u64) -> String {
    format!("{:.1?}", Duration::from_nanos(nanos))
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
}
