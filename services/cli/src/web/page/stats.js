// The view of the figures: of each kernel, with the last minutes, and of the process.

import { byId, bytes, count, duration, el, shortPlace, svg } from "./dom.js";

// How many looks the trends show.
const TREND_LENGTH = 120;
const TREND_WIDTH = 150;
const TREND_HEIGHT = 18;

// The rows of the tables of locks and of leaks.
const MOST_ROWS = 50;

const KERNEL = [
  ["Tasks", "tasks", count],
  ["Ready tasks", "ready", count],
  ["Tasks spawned", "spawned", count],
  ["Memory of futures", "future_bytes", bytes],
  ["Sleeps and deadlines", "timers", count],
  ["Waiters in queues", "waiters", count],
  ["Sockets", "sockets", count],
  ["Helper threads", "threads", count],
  ["Helper threads without work", "idle_threads", count],
  ["Closures that wait for a thread", "queued_closures", count],
  ["Steps", "steps", count],
  ["Polls of the driver", "polls", count],
  ["Messages of other threads", "messages", count],
  ["Longest step", "longest_step", (value) => (value ? duration(value) : "not timed")],
];

// Of kernels that have others beside them.
const PEERS = [
  ["Ready tasks may have waited", "late", duration],
  ["… at most in the last minute", "late_max", duration],
  ["Offers made", "offers_made", count],
  ["Offers of others taken", "offers_taken", count],
];

const PROCESS = [
  ["Memory in RAM", (of) => bytes(of.resident_bytes)],
  ["Open descriptors", (of) => (of.descriptors == null ? "" : `${count(of.descriptors)} of ${count(of.descriptor_limit)}`)],
  ["Threads", (of) => count(of.threads)],
  ["Processor time, program", (of) => duration(of.user_time)],
  ["Processor time, system", (of) => duration(of.system_time)],
  ["Page faults from disk", (of) => count(of.major_faults)],
  ["Voluntary switches", (of) => count(of.voluntary_switches)],
  ["Involuntary switches", (of) => count(of.involuntary_switches)],
];

// Steps a second, by kernel, and when the last figures came.
const trends = new Map();

let context;

export function start(given) {
  context = given;
}

export function show(answer) {
  const threadOf = (id) => context.kernels().find((kernel) => kernel.id === id)?.thread;
  const names = answer.stats.map(({ kernel }) => (threadOf(kernel) ? `${kernel} (${threadOf(kernel)})` : `${kernel}`));
  const table = byId("stats-table");
  table.tHead.rows[0].replaceChildren(
    el("th", { scope: "col" }, "Kernel"),
    ...names.map((name) => el("th", { scope: "col", class: "number" }, name)),
  );
  const rows = KERNEL.map(([title, key, text]) => row(title, answer.stats.map((stats) => text(stats[key]))));
  const speeds = answer.stats.map((stats) => trend(stats));
  if (answer.stats.some(({ peers }) => peers)) {
    rows.push(...PEERS.map(([title, key, text]) => row(title, answer.stats.map(({ peers }) => (peers ? text(peers[key]) : "")))));
  }
  rows.splice(11, 0, row("Steps a second", speeds.map(({ now }) => now)), row("Of the last two minutes", speeds.map(({ picture }) => picture)));
  table.tBodies[0].replaceChildren(...rows);
  if (answer.process) {
    byId("stats-process").tBodies[0].replaceChildren(
      ...PROCESS.map(([title, text]) => [title, text(answer.process)])
        .filter(([, text]) => text)
        .map(([title, text]) => row(title, [text])),
    );
  }
  byId("lateness").replaceChildren(...answer.stats.map(lateness).filter(Boolean));
}

// Locks, the one with the longest wait first.
export function showLocks({ locks }) {
  const sum = (counts) => counts.reduce((all, value) => all + value, 0);
  const sorted = [...locks].sort((a, b) => b.longest_wait - a.longest_wait).slice(0, MOST_ROWS);
  fill("locks-table", sorted.map((lock) => [
    lock.lock, [count(sum(lock.waits))], [duration(lock.longest_wait)], [count(sum(lock.holds))],
    [duration(lock.longest_hold)], lock.longest_holder ? `${lock.longest_holder[0]} since ${shortPlace(lock.longest_holder[1])}` : "",
  ]));
}

// Groups of tasks that only grow, and tasks that wait for ended ones.
export function showLeaks({ growing, waits_for_ended: ended }) {
  const waits = (wait) => (wait ? `${wait.about ?? wait.trap} at ${shortPlace(wait.place)}` : "");
  const groups = growing.map((group) => [
    [count(group.count)], group.name, shortPlace(group.spawned_at), [`${count(group.grown)} in ${duration(group.over)}`], waits(group.wait),
  ]);
  const forEver = ended.map((task) => [["1"], task.name, shortPlace(task.spawned_at), ["for ever"], waits(task.wait)]);
  fill("leaks-table", [...groups, ...forEver].slice(0, MOST_ROWS));
}

// Fills a table, which is hidden without rows. A number is a list of one.
function fill(id, rows) {
  const table = byId(id);
  table.hidden = !rows.length;
  const cell = (value) => (Array.isArray(value) ? el("td", { class: "number" }, value[0]) : el("td", {}, value));
  table.tBodies[0].replaceChildren(...rows.map((cells) => el("tr", {}, ...cells.map(cell))));
}

function row(title, cells) {
  return el("tr", {}, el("th", { scope: "row" }, title), ...cells.map((cell) => el("td", { class: "number" }, cell)));
}

function trend({ kernel, steps }) {
  const now = performance.now();
  if (!trends.has(kernel)) trends.set(kernel, { speeds: [], last: null });
  const kept = trends.get(kernel);
  if (kept.last && now > kept.last.now) {
    kept.speeds.push(Math.max(0, (steps - kept.last.steps) / ((now - kept.last.now) / 1000)));
    kept.speeds.splice(0, kept.speeds.length - TREND_LENGTH);
  }
  kept.last = { now, steps };
  const most = Math.max(1, ...kept.speeds);
  const points = kept.speeds.map((speed, at) => {
    const x = TREND_WIDTH - (kept.speeds.length - 1 - at) * (TREND_WIDTH / TREND_LENGTH);
    return `${x.toFixed(1)} ${(TREND_HEIGHT - 1 - (speed / most) * (TREND_HEIGHT - 2)).toFixed(1)}`;
  });
  return {
    now: kept.speeds.length ? count(Math.round(kept.speeds.at(-1))) : "",
    picture: svg(
      "svg",
      { class: "trend", width: TREND_WIDTH, height: TREND_HEIGHT, role: "img", "aria-label": "Steps a second in the last two minutes" },
      points.length > 1 ? svg("path", { d: `M${points.join("L")}` }) : null,
    ),
  };
}

// How late timers fired, as bars.
function lateness({ kernel, lateness }) {
  const total = lateness.reduce((sum, value) => sum + value, 0);
  if (!total) return null;
  const last = lateness.findLastIndex((value) => value > 0);
  const shown = lateness.slice(0, last + 1);
  const most = Math.max(...shown);
  const [width, height, line] = [220, 12, 18];
  const bars = shown.flatMap((value, at) => {
    const length = value ? Math.max(1, (value / most) * width) : 0;
    const text = value ? count(value) : "";
    return [
      svg("text", { x: 86, y: at * line + 11, "text-anchor": "end", class: "quiet" }, `< ${duration(2 ** at * 1000)}`),
      svg("rect", { x: 94, y: at * line, width: length, height }),
      svg("text", { x: 100 + length, y: at * line + 11, class: "quiet" }, text),
    ];
  });
  return el(
    "div",
    {},
    el("h3", {}, `How late timers of kernel ${kernel} fired`),
    svg("svg", { width: 420, height: shown.length * line + 4, role: "img", "aria-label": `${count(total)} timers` }, ...bars),
  );
}
