// The view of the tasks: a tree or a flat table, of which only the rows in sight are in the document, and one task.

import { post } from "./api.js";
import {
  Head, ask, byId, bytes, count, duration, el, label, plural, setAttribute, setText, shortPlace, showId, taskLink,
  taskName,
} from "./dom.js";

// Rows beyond the edges of what is in sight.
const MARGIN = 10;
const INDENT_PX = 16;
// Deeper tasks are not indented further.
const DEEPEST = 20;

const COLUMNS = [
  { key: "name", title: "Task", of: taskName, width: "20%" },
  { key: "id", title: "Number", of: (task) => idNumber(task.id), width: "76px" },
  { key: "state", title: "State", of: (task) => task.state, width: "92px" },
  { key: "wait", title: "Waits in", of: (task) => waitText(task) || null, width: "36%" },
  { key: "since", title: "Since", of: (task) => task.since, isNumber: true, width: "82px" },
  { key: "steps", title: "Steps", of: (task) => task.steps, isNumber: true, width: "76px" },
  { key: "busy", title: "Busy", of: (task) => task.busy, isNumber: true, isWide: true, width: "76px" },
  { key: "longest", title: "Longest", of: (task) => task.longest, isNumber: true, isWide: true, width: "76px" },
  { key: "bytes", title: "Future", of: (task) => task.bytes, isNumber: true, isWide: true, width: "76px" },
  { key: "place", title: "Spawned at", of: (task) => task.spawned_at, isWide: true, width: "22%" },
];

let context;
let head;
let tasks = [];
let staleKernels = new Set();
// What the table shows: `{ task, depth, hasChildren, isContext }`.
let lines = [];
const collapsed = new Set();
let chosenId = null;
// The task whose row the Tab key reaches.
let current = null;
// The current row is to be scrolled into sight when it is there.
let isSought = false;

const kernelOf = (id) => Number(id.split(".")[0]);

function idNumber(id) {
  const [kernel, task] = id.split(".");
  return Number(kernel) * 2 ** 40 + Number(task);
}

// `cancelled 3.2 s ago, goes on`.
const goesOn = (task) => task.goes_on ? `cancelled ${duration(task.goes_on.asked)} ago, goes on` : "";

function waitText(task, place = (place) => place) {
  return [goesOn(task), lastWait(task, place)].filter(Boolean).join(": ");
}

function lastWait(task, place) {
  const wait = task.waits.at(-1);
  if (!wait) return "";
  const about = wait.about ? `, ${wait.about}` : "";
  return wait.place ? `${wait.trap} at ${place(wait.place)}${about}` : wait.trap + about;
}

const scroller = () => byId("tasks-scroller");
const body = () => byId("tasks-table").tBodies[0];

export function start(given) {
  context = given;
  const table = byId("tasks-table");
  const changed = () => update();
  head = new Head(table.tHead.rows[0], COLUMNS, { key: "id", isDescending: false }, changed);
  COLUMNS.forEach((column, at) => { head.cells[at].style.width = column.width; });
  for (const id of ["filter", "state", "tree"]) byId(id).addEventListener("input", changed);
  byId("collapse").addEventListener("click", () => {
    for (const task of tasks) collapsed.add(task.id);
    update();
  });
  byId("expand").addEventListener("click", () => { collapsed.clear(); update(); });
  scroller().addEventListener("scroll", () => requestAnimationFrame(render), { passive: true });
  new ResizeObserver(() => render()).observe(scroller());
  body().addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (!row?.dataset.id) return;
    if (event.target.closest(".toggle")) toggle(row.dataset.id);
    else open(row.dataset.id);
  });
  body().addEventListener("keydown", onKey);
}

const open = (id) => { location.hash = `#tasks/${id}`; };

function toggle(id, isCollapsed = !collapsed.has(id)) {
  if (isCollapsed) collapsed.add(id);
  else collapsed.delete(id);
  update();
}

function onKey(event) {
  const id = event.target.closest("tr")?.dataset.id;
  const at = lines.findIndex((line) => line.task.id === id);
  if (at < 0) return;
  const page = Math.max(1, Math.floor(scroller().clientHeight / rowHeight()) - 2);
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -lines.length, End: lines.length };
  if (event.key in moves) {
    focusLine(Math.min(lines.length - 1, Math.max(0, at + moves[event.key])));
  } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    toggle(id, event.key === "ArrowLeft");
  } else if (event.key === "Enter" || event.key === " ") {
    open(id);
  } else {
    return;
  }
  event.preventDefault();
}

function focusLine(at) {
  current = lines[at].task.id;
  const top = at * rowHeight();
  const view = scroller();
  const headHeight = byId("tasks-table").tHead.offsetHeight;
  if (top < view.scrollTop) view.scrollTop = top;
  const bottom = top + rowHeight() + headHeight;
  if (bottom > view.scrollTop + view.clientHeight) view.scrollTop = bottom - view.clientHeight;
  render();
  body().querySelector(`tr[tabindex="0"]`)?.focus({ preventScroll: true });
}

const rowHeight = () => parseInt(getComputedStyle(document.documentElement).getPropertyValue("--row"), 10);

export function show(answer) {
  tasks = answer.tasks;
  staleKernels = new Set(answer.kernels.filter(({ stale }) => stale != null).map(({ id }) => id));
  update();
}

function matches(task, words, state) {
  if (state && task.state !== state) return false;
  if (!words.length) return true;
  const text = `${showId(task.id)} ${taskName(task)} ${task.future} ${task.spawned_at} ${waitText(task)}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

// Computes the lines anew.
function update() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const state = byId("state").value;
  const isTree = byId("tree").checked;
  const found = tasks.filter((task) => matches(task, words, state));
  lines = isTree ? treeLines(found) : head.apply(found).map((task) => ({ task, depth: 0 }));
  const isAll = found.length === tasks.length;
  setText(
    byId("count"),
    isAll ? plural(tasks.length, "task") : `${count(found.length)} of ${plural(tasks.length, "task")}`,
  );
  byId("collapse").disabled = byId("expand").disabled = !isTree;
  render();
}

// The tree of the found tasks and their ancestors. Siblings are sorted.
function treeLines(found) {
  const all = new Map(tasks.map((task) => [task.id, task]));
  const isFound = new Set(found.map((task) => task.id));
  const shown = new Map();
  for (const task of found) {
    for (let at = task; at && !shown.has(at.id); at = all.get(at.parent)) shown.set(at.id, at);
  }
  const children = new Map();
  const roots = [];
  for (const task of head.apply([...shown.values()])) {
    if (!shown.has(task.parent)) {
      roots.push(task);
    } else if (children.has(task.parent)) {
      children.get(task.parent).push(task);
    } else {
      children.set(task.parent, [task]);
    }
  }
  const made = [];
  const rest = roots.reverse().map((task) => [task, 0]);
  while (rest.length) {
    const [task, depth] = rest.pop();
    const below = children.get(task.id);
    made.push({ task, depth, hasChildren: Boolean(below), isContext: !isFound.has(task.id) });
    if (below && !collapsed.has(task.id)) {
      for (const child of below.reverse()) rest.push([child, depth + 1]);
    }
  }
  return made;
}

function newRow() {
  const row = el("tr", {});
  COLUMNS.forEach((column, at) => {
    const names = [column.isNumber && "number", column.isWide && "wide"].filter(Boolean).join(" ");
    const cell = el("td", { class: names || null });
    if (at === 0) {
      cell.append(el("span", { class: "toggle", "aria-hidden": "true" }), el("span", {}));
    } else if (column.key === "state") {
      cell.append(el("span", {}));
    }
    row.append(cell);
  });
  return row;
}

function fillRow(row, { task, depth, hasChildren, isContext }, at) {
  row.dataset.id = task.id;
  const isChosen = task.id === chosenId;
  setAttribute(row, "aria-rowindex", at + 2);
  setAttribute(row, "aria-selected", isChosen);
  setAttribute(row, "aria-level", byId("tree").checked ? depth + 1 : null);
  setAttribute(row, "aria-expanded", hasChildren ? String(!collapsed.has(task.id)) : null);
  row.tabIndex = task.id === current ? 0 : -1;
  row.classList.toggle("context", Boolean(isContext));
  row.classList.toggle("stale", staleKernels.has(kernelOf(task.id)));
  const texts = [
    null,
    showId(task.id),
    null,
    waitText(task, shortPlace),
    duration(task.since),
    count(task.steps),
    task.busy ? duration(task.busy) : "",
    task.longest ? duration(task.longest) : "",
    bytes(task.bytes),
    shortPlace(task.spawned_at),
  ];
  texts.forEach((text, column) => {
    if (text != null) setText(row.cells[column], text);
  });
  const [mark, name] = row.cells[0].children;
  setText(mark, hasChildren ? (collapsed.has(task.id) ? "▸" : "▾") : "");
  setText(name, taskName(task));
  row.cells[0].style.paddingInlineStart = `${4 + Math.min(depth, DEEPEST) * INDENT_PX}px`;
  row.cells[0].title = `${taskName(task)}\n${task.future}`;
  row.cells[3].title = waitText(task);
  row.cells[9].title = task.spawned_at;
  const state = row.cells[2].firstChild;
  setText(state, task.state);
  state.className = `state ${task.state}${task.cancelled == null ? "" : " asked"}`;
  state.title = task.cancelled == null ? "" : `asked to end: ${task.cancelled}`;
}

// Scrolls to the current row, which may be out of sight.
function seek() {
  const view = scroller();
  const at = lines.findIndex((line) => line.task.id === current);
  if (at < 0 || !view.clientHeight) return;
  isSought = false;
  const top = at * rowHeight();
  const isInSight = top >= view.scrollTop && top + 3 * rowHeight() <= view.scrollTop + view.clientHeight;
  if (isInSight) return;
  view.scrollTop = top - view.clientHeight / 3;
  render();
}

// Shows the lines that are in sight.
function render() {
  const view = scroller();
  const height = rowHeight();
  const table = byId("tasks-table");
  setAttribute(table, "aria-rowcount", lines.length + 1);
  if (lines.length && !lines.some((line) => line.task.id === current)) current = lines[0].task.id;
  const first = Math.max(0, Math.floor(view.scrollTop / height) - MARGIN);
  const fits = Math.ceil(view.clientHeight / height) + 2 * MARGIN;
  const visible = lines.slice(first, first + fits);
  // The Tab key finds a row, also if the current one is out of sight.
  const isCurrentVisible = visible.some((line) => line.task.id === current);
  const focused = body().contains(document.activeElement)
    ? document.activeElement.closest("tr")?.dataset.id
    : null;
  const rows = [...body().querySelectorAll("tr:not(.space)")];
  while (rows.length < visible.length) {
    const row = newRow();
    rows.push(row);
  }
  rows.splice(visible.length).forEach((row) => row.remove());
  const space = (lines) => {
    const row = el("tr", { class: "space", "aria-hidden": "true" }, el("td", {}));
    row.firstChild.style.height = `${lines * height}px`;
    return row;
  };
  body().querySelectorAll("tr.space").forEach((row) => row.remove());
  visible.forEach((line, at) => fillRow(rows[at], line, first + at));
  if (!isCurrentVisible && rows.length) rows[0].tabIndex = 0;
  const isInPlace = rows.every((row) => row.parentNode === body());
  if (!isInPlace) body().append(...rows);
  if (first > 0) body().prepend(space(first));
  const below = lines.length - first - visible.length;
  if (below > 0) body().append(space(below));
  if (focused) {
    const row = rows.find((row) => row.dataset.id === focused);
    if (row && row !== document.activeElement) row.focus({ preventScroll: true });
  }
  if (isSought) seek();
}

export const chosen = () => chosenId;

// Shows a task, or none.
export function choose(id) {
  const isValid = /^\d+\.\d+$/.test(id ?? "");
  const isNew = chosenId !== id;
  chosenId = isValid ? id : null;
  const panel = byId("task");
  panel.hidden = !chosenId;
  panel.parentNode.classList.toggle("narrowed", Boolean(chosenId));
  if (isNew) panel.replaceChildren(el("p", { class: "quiet" }, "looking"));
  if (chosenId && isNew) {
    current = chosenId;
    isSought = true;
  }
  render();
}

export function showTask(answer) {
  const task = answer.tasks[0];
  // Another task may have been chosen since.
  if (task && task.id !== chosenId) return;
  fillPanel(task ? panelOf(task) : [closing("The task has ended"), el("p", {}, showId(chosenId))]);
}

// Shows why the process does not tell of the chosen task now, and what it has told before.
export function showRefusal(why) {
  if (!chosenId) return;
  const task = tasks.find(({ id }) => id === chosenId);
  const known = task ? panelOf(task) : [closing(label(chosenId, context.name(chosenId)))];
  fillPanel([...known.slice(0, 1), el("p", { class: "error" }, why), ...known.slice(1)]);
}

function fillPanel(made) {
  const panel = byId("task");
  // A text that somebody selects, and a button with the focus, stay.
  const selection = getSelection();
  const isBusy = !selection.isCollapsed && panel.contains(selection.anchorNode);
  if (!chosenId || isBusy) return;
  const had = panel.contains(document.activeElement)
    ? [...panel.querySelectorAll("button")].indexOf(document.activeElement)
    : -1;
  const top = panel.scrollTop;
  panel.replaceChildren(...made);
  panel.scrollTop = top;
  if (had >= 0) panel.querySelectorAll("button")[had]?.focus({ preventScroll: true });
}

function closing(title) {
  const close = el("button", { type: "button", "aria-label": "Close", on: { click: () => { location.hash = "#tasks"; } } }, "✕");
  return el("header", {}, el("h3", {}, title), close);
}

function panelOf(task) {
  const children = tasks.filter((other) => other.parent === task.id).length;
  const kernel = context.kernels().find(({ id }) => id === kernelOf(task.id));
  const state = task.cancelled == null ? task.state : `${task.state}, asked to end: ${task.cancelled}`;
  const parent = task.parent && (tasks.some(({ id }) => id === task.parent)
    ? taskLink(task.parent, context.name(task.parent))
    : `${showId(task.parent)}, which has ended`);
  const facts = [
    ["Number", showId(task.id)],
    ["State", state],
    ["Goes on", task.goes_on && el(
      "span",
      {},
      `${goesOn(task)}: ${plural(task.goes_on.waits, "wait")} since the interruption was caught at `,
      el("code", {}, task.goes_on.caught_at),
    )],
    ["Since", duration(task.since)],
    ["Steps", count(task.steps)],
    ["Busy", task.busy ? `${duration(task.busy)}, the longest step ${duration(task.longest)}` : ""],
    ["Spawned at", el("code", {}, task.spawned_at)],
    ["Spawned by", parent],
    ["Children", children ? count(children) : ""],
    ["Future", `${bytes(task.bytes)}`],
    ["Type", el("code", {}, task.future)],
    ["Kernel", kernel && `${kernel.id} (${kernel.thread})`],
    ["Last look", kernel?.stale == null ? "" : `${duration(kernel.stale)} ago: the kernel does not answer`],
  ].filter(([, value]) => value);
  const waits = task.waits.map((wait) => el(
    "li",
    {},
    el("strong", {}, wait.trap), " at ", el("code", {}, wait.place),
    wait.about ? el("div", {}, wait.about) : null,
    wait.owners.length
      ? el("div", {}, "ended by ", ...wait.owners.flatMap((id) => [taskLink(id, context.name(id)), " "]))
      : null,
    wait.scopes.length ? el("ul", {}, ...wait.scopes.map((scope) => el("li", {}, ...scopeText(scope)))) : null,
  ));
  return [
    closing(taskName(task) || showId(task.id)),
    el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    el("h4", {}, waits.length ? `Waits (${waits.length})` : "The task waits for nothing."),
    el("ol", { class: "waits" }, ...waits),
    el(
      "p",
      { class: "buttons" },
      el("button", { type: "button", on: { click: () => askToEnd("cancel", task) } }, "Cancel…"),
      el("button", { type: "button", class: "danger", on: { click: () => askToEnd("abort", task) } }, "Abort…"),
    ),
  ];
}

function scopeText(scope) {
  if (scope.left == null) return ["within a shield"];
  const left = scope.left < 0 ? `its deadline passed ${duration(-scope.left)} ago` : `${duration(scope.left)} left`;
  return scope.set_at ? [`${left}, set at `, el("code", {}, scope.set_at)] : [left];
}

function askToEnd(how, task) {
  const isCancel = how === "cancel";
  const name = label(task.id, taskName(task));
  const reason = el("input", { type: "text", maxlength: 500, value: "by the console" });
  const note = el("p", { role: "status" });
  const text = isCancel
    ? "The task sees the reason at its next trap, and may clean up."
    : "The task's future is dropped where it waits. It cannot clean up with traps.";
  const act = async () => {
    try {
      const { answer } = await post(`${how}/${task.id}`, { reason: reason.value });
      note.className = "";
      setText(note, answer.ended?.[1] ?? "done");
    } catch (problem) {
      note.className = "error";
      setText(note, problem.message);
    }
    return false;
  };
  ask(
    `${isCancel ? "Cancel" : "Abort"} task ${name}?`,
    [el("p", {}, text), isCancel ? el("label", {}, "Reason", reason) : null, note].filter(Boolean),
    [[isCancel ? "Cancel the task" : "Abort the task", act, true]],
  );
}
