// The page: asks for what its view shows, again and again, and tells what is wrong with the process.

import { get } from "./api.js";
import { ask, byId, duration, el, label, plural, setKernels, setText, taskLink } from "./dom.js";
import * as profile from "./profile.js";
import * as stats from "./stats.js";
import * as tasks from "./tasks.js";
import * as timelines from "./timelines.js";
import * as waits from "./waits.js";

const VIEWS = ["tasks", "waits", "timelines", "profile", "stats"];
const NS_PER_MS = 1e6;
// A shorter step may end any moment.
const STUCK_NS = 1e9;
// The tasks of a deadlock that a banner names.
const MOST_OF_DEADLOCK = 6;

// How often the page asks for what it shows.
const INTERVAL_MS = 1000;
// How often the page asks for waits while it shows something else, to tell of deadlocks. Each task is polled for that.
const WAITS_INTERVAL_MS = 10_000;
// A process with many tasks is asked less often: answers take at most this part of the time.
const SHARE = 0.2;

const shown = {
  view: "tasks",
  isPaused: false,
  // What the last answers told.
  process: null,
  kernels: [],
  graph: null,
  names: new Map(),
  // When the last good answer came, and what is wrong since.
  at: null,
  trouble: null,
};

const context = {
  name: (id) => shown.names.get(id) ?? "",
  kernels: () => shown.kernels,
};

function read({ process }) {
  shown.process = process;
  shown.at = performance.now();
  shown.trouble = null;
}

// Reads an answer about all tasks.
function readAll({ kernels, tasks, graph }) {
  shown.kernels = kernels;
  setKernels(kernels);
  // Tasks that have ended keep their names for the timelines, within limits.
  if (shown.names.size > 4 * tasks.length + 1000) shown.names.clear();
  for (const task of tasks) if (task.name) shown.names.set(task.id, task.name);
  if (graph) shown.graph = graph;
}

// Asks again and again while `isWanted`, and shows each answer. `refused` shows why the process refuses one.
async function poll(path, interval, isWanted, show, refused) {
  for (;;) {
    let took = 0;
    if (isWanted() && !shown.isPaused) {
      const begin = performance.now();
      try {
        const told = await get(path());
        took = performance.now() - begin;
        read(told);
        show(told.answer);
      } catch (problem) {
        if (refused && !problem.isLost) refused(problem.message);
        else shown.trouble = problem;
      }
      showState();
    }
    const pause = Math.max(interval(), took / SHARE);
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, pause);
      // Another view is asked for at once.
      addEventListener("hashchange", () => { clearTimeout(timer); resolve(); }, { once: true });
    });
  }
}

function showState() {
  const { process, at, trouble } = shown;
  if (process) {
    setText(byId("program"), process.program);
    setText(
      byId("process"),
      `process ${process.pid}, pikake ${process.pikake}, console open for ${duration(process.age)}`,
    );
    document.title = `${process.program} ${process.pid} – pikake`;
  }
  const link = byId("link");
  const age = at == null ? null : (performance.now() - at) * NS_PER_MS;
  const isOld = age != null && age > 3 * INTERVAL_MS * NS_PER_MS;
  link.className = trouble ? "gone" : shown.isPaused || isOld ? "old" : "";
  const what = trouble ? "no answer" : shown.isPaused ? "paused" : at == null ? "connecting" : "live";
  setText(link, age != null && (trouble || shown.isPaused || isOld) ? `${what}, last look ${duration(age)} ago` : what);
  document.body.classList.toggle("stale", Boolean(trouble));
  showBanners();
}

function banner(isBad, title, parts, button) {
  return el(
    "div",
    { class: isBad ? "banner bad" : "banner" },
    el("strong", {}, title),
    el("span", {}, ...parts),
    button,
  );
}

function showBanners() {
  const banners = [];
  const link = (id) => taskLink(id, context.name(id));
  if (shown.trouble) {
    const text = shown.at == null ? "" : " What is shown is the last that was told.";
    banners.push(banner(true, "No answer", [`${shown.trouble.message}.${text}`]));
  }
  for (const { id, thread, stuck, stale } of shown.kernels) {
    if (stuck) {
      const stack = el("button", { type: "button", on: { click: showBlocked } }, "Show the stack");
      const age = stale == null ? "" : ` What is told of its tasks is ${duration(stale)} old.`;
      const parts = [
        `Task `, taskLink(stuck.task, stuck.name),
        `, spawned at ${stuck.spawned_at}, has been in one step for ${duration(stuck.lasts)}.${age}`,
      ];
      const isStuck = stuck.lasts >= STUCK_NS;
      const title = `Kernel ${id} (${thread}) is ${isStuck ? "stuck" : "busy"}`;
      banners.push(banner(isStuck, title, parts, isStuck ? stack : null));
    } else if (stale != null) {
      const parts = [`It does not answer. What is told of its tasks is ${duration(stale)} old.`];
      banners.push(banner(false, `Kernel ${id} (${thread})`, parts));
    }
  }
  const leftOut = new Map(shown.graph?.left_out ?? []);
  for (const cycle of (shown.graph?.deadlocks ?? []).slice(0, 3)) {
    const all = cycle.length + (leftOut.get(cycle[0]) ?? 0);
    const parts = cycle.slice(0, MOST_OF_DEADLOCK).flatMap((id) => [" waits for ", link(id)]).slice(1);
    const others = all - MOST_OF_DEADLOCK;
    if (others > 0) parts.push(` waits for ${plural(others, "other task")}, the last of which`);
    banners.push(banner(true, `Deadlock of ${plural(all, "task")}`, [...parts, " waits for ", link(cycle[0])]));
  }
  const more = (shown.graph?.deadlocks.length ?? 0) - 3;
  if (more > 0) banners.push(banner(true, "Deadlocks", [`There are ${plural(more, "other one")}; see Waits.`]));
  for (const id of (shown.graph?.unpolled ?? []).slice(0, 3)) {
    const parts = [
      link(id), " waits for what another future of the same task holds, and that future is not polled.",
    ];
    banners.push(banner(true, "Futurelock", parts));
  }
  replaceUnlessSame(byId("banners"), banners);
}

// Leaves the banners alone that say the same, so that the focus stays and screen readers are silent.
function replaceUnlessSame(node, banners) {
  const old = [...node.children];
  banners.forEach((made, at) => {
    const has = old[at];
    if (!has) {
      node.append(made);
    } else if (has.textContent !== made.textContent) {
      if (has.contains(document.activeElement)) {
        has.querySelector("strong").replaceWith(made.querySelector("strong"));
        has.querySelectorAll("span")[0].replaceWith(made.querySelector("span"));
      } else {
        has.replaceWith(made);
      }
    }
  });
  old.slice(banners.length).forEach((node) => node.remove());
}

async function showBlocked() {
  let body;
  try {
    const { answer } = await get("blocked");
    body = answer.blocked.map(({ kernel, step, stack, no_stack: why, thread }) => {
      const frames = stack?.frames ?? [];
      const name = label(step.task, step.name);
      return el(
        "div",
        {},
        el("p", {}, `Kernel ${kernel}: task ${name}, for ${duration(step.lasts)}. ${thread ? `The thread: ${thread}.` : ""}`),
        frames.length
          ? el("pre", {}, ["The innermost function is the first.", "", ...[...frames].reverse()].join("\n"))
          : el("p", { class: "quiet" }, `There is no stack: ${why ?? "it cannot be read"}.`),
      );
    });
    if (!body.length) body = [el("p", {}, "No kernel is stuck.")];
  } catch (problem) {
    body = [el("p", { class: "error" }, problem.message)];
  }
  ask("Where the kernel is stuck", body, []);
}

function showView() {
  const [view, argument] = location.hash.slice(1).split("/");
  shown.view = VIEWS.includes(view) ? view : "tasks";
  for (const name of VIEWS) byId(name).hidden = name !== shown.view;
  for (const link of document.querySelectorAll("nav a")) {
    const isCurrent = link.hash === `#${shown.view}`;
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (shown.view === "tasks") tasks.choose(argument ?? null);
  if (shown.view === "timelines") timelines.enter();
}

byId("pause").addEventListener("click", () => {
  shown.isPaused = !shown.isPaused;
  byId("pause").setAttribute("aria-pressed", shown.isPaused);
  setText(byId("pause"), shown.isPaused ? "Go on" : "Pause");
  showState();
});

tasks.start(context);
waits.start(context);
timelines.start(context);
profile.start(context);
stats.start(context);
addEventListener("hashchange", showView);
showView();

const isShown = (view) => () => shown.view === view;
const always = () => INTERVAL_MS;
poll(() => (byId("timed").checked ? "tasks?timed" : "tasks"), always, isShown("tasks"), (answer) => {
  readAll(answer);
  tasks.show(answer);
});
poll(() => `task/${tasks.chosen()}`, always, () => shown.view === "tasks" && tasks.chosen(), tasks.showTask, tasks.showRefusal);
poll(() => "waits", () => (shown.view === "waits" ? INTERVAL_MS : WAITS_INTERVAL_MS), () => true, (answer) => {
  readAll(answer);
  waits.show(answer);
});
poll(() => "stats", always, isShown("stats"), stats.show);
// A process of a version before refuses these.
poll(() => "locks", always, isShown("stats"), stats.showLocks, () => {});
poll(() => "leaks", () => WAITS_INTERVAL_MS, isShown("stats"), stats.showLeaks, () => {});
setInterval(showState, INTERVAL_MS);
