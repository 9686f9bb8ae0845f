// The view of the flight recorder: steps as bars over time, a row for each task or for each kernel.

import { get } from "./api.js";
import { byId, count, duration, el, label, plural, setText, shortPlace } from "./dom.js";

const ROW = 22;
const RULER = 22;
const LABEL = 230;
// Canvases have limits, and nobody looks at more rows.
const MOST_ROWS = 1000;
const MOST_TABLE_ROWS = 300;
// Steps that take longer keep the other tasks waiting for too long.
const SLOW_NS = 10e6;
const ZOOM = 1.5;
const LEGEND = `Blue: a step. Red: a step of ${duration(SLOW_NS)} or longer. Green: spawned. Dark: ended. Drag to move; Ctrl and the wheel zoom.`;

let context;
let events = [];
// What the events' tasks are called, `{ name, spawned_at }` by number.
let names = new Map();
let rows = [];
let left = 0;
let right = 1;
let hasLooked = false;
let isTimed = false;

const canvas = () => byId("timeline-canvas");

export function start(given) {
  context = given;
  const columns = ["Time", "Task", "Event", "Took", "Then waits in"];
  byId("trace-table").tHead.rows[0].append(...columns.map((name) => el("th", { scope: "col" }, name)));
  byId("trace-record").addEventListener("click", () => load(Number(byId("trace-seconds").value) || 2));
  byId("trace-last").addEventListener("click", () => load(0));
  byId("trace-rows").addEventListener("input", arrange);
  byId("trace-in").addEventListener("click", () => zoom(1 / ZOOM));
  byId("trace-out").addEventListener("click", () => zoom(ZOOM));
  byId("trace-fit").addEventListener("click", fit);
  const target = canvas();
  target.addEventListener("wheel", (event) => {
    // Without a key, the wheel moves the rows.
    if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX)) return;
    event.preventDefault();
    if (event.ctrlKey) zoom(event.deltaY > 0 ? ZOOM : 1 / ZOOM, timeAt(event.offsetX));
    else move((event.deltaX || event.deltaY) / plotWidth());
  }, { passive: false });
  let from = null;
  target.addEventListener("pointerdown", (event) => {
    from = event.offsetX;
    target.setPointerCapture(event.pointerId);
  });
  target.addEventListener("pointermove", (event) => {
    if (from != null) {
      move((from - event.offsetX) / plotWidth());
      from = event.offsetX;
    }
    hint(event.offsetX, event.offsetY);
  });
  target.addEventListener("pointerup", () => { from = null; });
  target.addEventListener("keydown", (event) => {
    const actions = {
      ArrowLeft: () => move(-0.1), ArrowRight: () => move(0.1), "+": () => zoom(1 / ZOOM), "-": () => zoom(ZOOM), 0: fit,
    };
    if (!(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  });
  new ResizeObserver(() => draw()).observe(byId("timeline"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// The view is shown. The last events are there for the asking.
export function enter() {
  if (!hasLooked) load(0);
  else draw();
}

async function load(seconds) {
  hasLooked = true;
  const buttons = [byId("trace-record"), byId("trace-last")];
  buttons.forEach((button) => { button.disabled = true; });
  setText(byId("trace-note"), seconds ? `recording for ${seconds} s` : "looking");
  try {
    const { answer } = await get(seconds ? `trace?seconds=${seconds}` : "trace", seconds);
    events = answer.events.sort((a, b) => a.at - b.at);
    names = new Map(answer.names.map((task) => [task.id, task]));
    isTimed = events.some((event) => event.took != null);
    const lost = answer.lost.reduce((sum, [, number]) => sum + number, 0);
    const notes = [
      events.length ? plural(events.length, "event") : "There are no events.",
      lost ? `${count(lost)} more are lost` : "",
      events.length && !isTimed ? "steps were not timed, so bars have no length: record" : "",
    ];
    setText(byId("trace-note"), notes.filter(Boolean).join("; "));
    setText(byId("timeline-hint"), LEGEND);
    arrange();
    fit();
    showTable();
  } catch (problem) {
    setText(byId("trace-note"), problem.message);
  } finally {
    buttons.forEach((button) => { button.disabled = false; });
  }
}

// An event as a bar from `begin` to `at`.
const beginOf = (event) => event.at - (event.took ?? 0);

function arrange() {
  const [keyOf, labelOf] = {
    task: [(id) => id, taskLabel],
    place: [placeLabel, (key) => key],
    kernel: [(id) => id.split(".")[0], kernelLabel],
  }[byId("trace-rows").value];
  const made = new Map();
  for (const event of events) {
    const key = keyOf(event.task);
    if (!made.has(key)) made.set(key, { key, events: [] });
    made.get(key).events.push(event);
  }
  const compare = (a, b) => a.key.localeCompare(b.key, "en", { numeric: true });
  rows = [...made.values()].sort(compare).slice(0, MOST_ROWS);
  for (const row of rows) row.label = labelOf(row.key);
  draw();
}

function kernelLabel(id) {
  const kernel = context.kernels().find((kernel) => String(kernel.id) === id);
  return kernel ? `kernel ${id} (${kernel.thread})` : `kernel ${id}`;
}

// A task without a name is called by the place of its spawn.
const taskLabel = (id) => label(id, placeLabel(id));

function placeLabel(id) {
  const task = names.get(id);
  return task?.name || context.name(id) || (task ? shortPlace(task.spawned_at) : "");
}

function bounds() {
  if (!events.length) return [0, 1];
  const begin = events.reduce((least, event) => Math.min(least, beginOf(event)), Infinity);
  return [begin, Math.max(events.at(-1).at, begin + 1)];
}

function fit() {
  const [begin, end] = bounds();
  const margin = (end - begin) * 0.01;
  [left, right] = [begin - margin, end + margin];
  draw();
}

function zoom(factor, around = (left + right) / 2) {
  const [begin, end] = bounds();
  const length = Math.min(Math.max((right - left) * factor, 100), (end - begin) * 1.02 + 100);
  const share = (around - left) / (right - left);
  left = around - share * length;
  right = left + length;
  move(0);
}

function move(share) {
  const [begin, end] = bounds();
  const length = right - left;
  const margin = (end - begin) * 0.01;
  const lowest = begin - margin;
  const highest = Math.max(lowest, end + margin - length);
  left = Math.min(Math.max(left + share * length, lowest), highest);
  right = left + length;
  draw();
}

const plotWidth = () => Math.max(1, canvas().clientWidth - LABEL);
const timeAt = (x) => left + ((x - LABEL) / plotWidth()) * (right - left);

function draw() {
  const place = byId("timeline");
  if (!place.clientWidth) return;
  const width = place.clientWidth;
  const height = Math.max(RULER + rows.length * ROW + 4, 60);
  const target = canvas();
  const scale = devicePixelRatio || 1;
  target.style.width = `${width}px`;
  target.style.height = `${height}px`;
  target.width = width * scale;
  target.height = height * scale;
  const pen = target.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const ink = (name) => style.getPropertyValue(name).trim();
  const colours = {
    ink: ink("--ink"), quiet: ink("--quiet"), line: ink("--line"), bar: ink("--bar"), bad: ink("--bad"), good: ink("--good"),
  };
  pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  pen.textBaseline = "middle";
  ruler(pen, width, height, colours);
  const plot = plotWidth();
  const xOf = (time) => LABEL + ((time - left) / (right - left)) * plot;
  rows.forEach((row, at) => {
    const y = RULER + at * ROW;
    pen.fillStyle = colours.line;
    pen.fillRect(0, y + ROW - 1, width, 0.5);
    pen.fillStyle = colours.ink;
    pen.fillText(fitText(pen, row.label, LABEL - 20), 10, y + ROW / 2);
    drawRow(pen, row, y, xOf, width, colours);
  });
  if (!rows.length) {
    pen.fillStyle = colours.quiet;
    pen.fillText("No events yet.", 10, RULER + 16);
  }
}

function drawRow(pen, row, y, xOf, width, colours) {
  // Rows of many tasks would have little else.
  const hasMarks = byId("trace-rows").value === "task";
  pen.save();
  pen.beginPath();
  pen.rect(LABEL, y, width - LABEL, ROW);
  pen.clip();
  // Bars that share a pixel are drawn once.
  let drawnTo = -Infinity;
  for (const event of row.events) {
    if (event.at < left || beginOf(event) > right) continue;
    const end = xOf(event.at);
    if (event.event === "spawned") {
      if (!hasMarks) continue;
      pen.fillStyle = colours.good;
      pen.fillRect(end - 1, y + 2, 2, ROW - 5);
      continue;
    }
    const begin = xOf(beginOf(event));
    const isSlow = (event.took ?? 0) >= SLOW_NS;
    if (end > drawnTo + 0.5 || isSlow) {
      pen.fillStyle = isSlow ? colours.bad : colours.bar;
      pen.fillRect(begin, y + 4, Math.max(end - begin, 1), ROW - 9);
      drawnTo = end;
    }
    if (hasMarks && event.event === "ended") {
      pen.fillStyle = colours.ink;
      pen.fillRect(end - 1, y + 2, 2, ROW - 5);
    }
  }
  pen.restore();
}

function fitText(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return `${text.slice(0, length)}…`;
}

function ruler(pen, width, height, colours) {
  const [begin] = bounds();
  const rough = ((right - left) / plotWidth()) * 110;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
  for (let at = Math.ceil((left - begin) / step); begin + at * step <= right; at += 1) {
    const x = LABEL + ((begin + at * step - left) / (right - left)) * plotWidth();
    pen.fillStyle = colours.line;
    pen.fillRect(x, RULER - 4, 1, height);
    pen.fillStyle = colours.quiet;
    const text = at === 0 ? "0" : duration(at * step);
    if (x + 4 + pen.measureText(text).width < width) pen.fillText(text, x + 4, RULER / 2);
  }
}

function tell(event) {
  const task = taskLabel(event.task);
  const [begin] = bounds();
  const when = `at ${duration(beginOf(event) - begin)}`;
  const took = event.took == null ? "" : `, took ${duration(event.took)}`;
  if (event.event === "spawned") return `${task}: spawned ${when}`;
  if (event.event === "ended") return `${task}: the last step ${when}${took}; ${event.exit}`;
  const wait = event.trap ? `, then waits in ${event.trap}${event.place ? ` at ${event.place}` : ""}` : "";
  return `${task}: a step ${when}${took}${wait}`;
}

function hint(x, y) {
  const row = rows[Math.floor((y - RULER) / ROW)];
  const time = timeAt(x);
  const near = ((right - left) / plotWidth()) * 4;
  let best = null;
  let distance = near;
  for (const event of row?.events ?? []) {
    const away = Math.max(beginOf(event) - time, time - event.at, 0);
    if (away < distance) [best, distance] = [event, away];
  }
  setText(byId("timeline-hint"), best ? tell(best) : x < LABEL && row ? row.label : LEGEND);
}

function showTable() {
  const [begin] = bounds();
  const last = events.slice(-MOST_TABLE_ROWS).reverse();
  const made = last.map((event) => el(
    "tr",
    {},
    el("td", { class: "number" }, duration(event.at - begin)),
    el("td", {}, taskLabel(event.task)),
    el("td", {}, event.event === "ended" ? event.exit : event.event),
    el("td", { class: "number" }, duration(event.took)),
    el("td", {}, event.trap ? `${event.trap}${event.place ? ` at ${event.place}` : ""}` : ""),
  ));
  if (events.length > last.length) {
    made.push(el("tr", {}, el("td", { colspan: 5, class: "quiet" }, `and ${count(events.length - last.length)} earlier ones`)));
  }
  byId("trace-table").tBodies[0].replaceChildren(...made);
}
