// The page: asks its server for what its view shows, again and again.

import { get, post } from "./api.js";
import { bars, lines } from "./charts.js";
import { Head, ask, byId, count, duration, el, plural, setText } from "./dom.js";

const VIEWS = ["overview", "running", "recent", "dead", "schedules"];
const INTERVAL_MS = 2000;
const NS = 1e9;

const shown = {
  view: "overview",
  isHeld: false,
  overview: null,
  at: null,
  trouble: null,
  queue: null,
};

const seconds = (value) => (value == null ? "" : duration(value * NS));

// How long ago a moment was: nobody reads milliseconds of that.
function ago(at) {
  if (at == null) return "";
  const age = now() - at;
  return age < 1 ? "just now" : `${seconds(age < 60 ? Math.floor(age) : age).replace(/\.0+ s$/, " s")} ago`;
}

const mono = (text) => el("code", {}, text ?? "");
const part = encodeURIComponent;

// The time by the server's clock.
function now() {
  const { overview, at } = shown;
  return overview ? overview.now + (performance.now() - at) / 1000 : Date.now() / 1000;
}

// A table whose columns are `{ key, title, of, cell, isNumber, class }`. It is drawn anew; a button with the focus keeps it.
class Table {
  constructor(id, columns, sort, empty) {
    this.body = byId(id).tBodies[0];
    this.columns = columns;
    this.empty = empty;
    this.rows = [];
    this.head = new Head(byId(id).tHead.rows[0], columns, sort, () => this.draw());
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const focus = document.activeElement?.dataset?.focus;
    const made = this.head.apply(this.rows).map((row) => el(
      "tr",
      {},
      ...this.columns.map(({ cell, isNumber, class: name }) => el("td", { class: isNumber ? "number" : name }, ...[cell(row)].flat())),
    ));
    if (!made.length) made.push(el("tr", {}, el("td", { class: "quiet", colspan: this.columns.length }, this.empty)));
    this.body.replaceChildren(...made);
    if (focus) this.body.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
  }
}

function button(text, focus, click) {
  return el("button", { type: "button", "data-focus": focus, on: { click } }, text);
}

// Asks whether to do it, does it, and shows what the workers have answered.
function change(title, text, label, path, body, told) {
  const note = el("p", { role: "status" });
  const act = async () => {
    try {
      note.className = "";
      setText(note, told(await post(path, body)));
    } catch (problem) {
      note.className = "error";
      setText(note, problem.message);
    }
    refresh();
    return false;
  };
  ask(title, [el("p", {}, text), note], [[label, act, true]]);
}

function answers({ answers: all }) {
  if (!all.length) return "Sent. No worker has answered.";
  return all.map(({ worker, result }) => {
    const text = result.Err ?? result.Ok?.ok ?? JSON.stringify(result.Ok);
    return `${worker}: ${text}`;
  }).join("\n");
}

const queueTable = new Table("queues", [
  { key: "name", title: "Queue", of: (queue) => queue.name, cell: (queue) => [el("span", { class: queue.is_paused ? "mark paused" : "" }, queue.name), queue.error ? el("span", { class: "error" }, ` ${queue.error}`) : ""] },
  { key: "ready", title: "Ready", of: (queue) => queue.ready, cell: (queue) => count(queue.ready), isNumber: true },
  { key: "taken", title: "Taken", of: (queue) => queue.taken, cell: (queue) => (queue.taken == null ? "–" : count(queue.taken)), isNumber: true },
  { key: "delayed", title: "Delayed", of: (queue) => queue.delayed, cell: (queue) => count(queue.delayed), isNumber: true },
  { key: "dead", title: "Dead", of: (queue) => queue.dead, cell: (queue) => (queue.dead ? el("a", { href: `#dead/${part(queue.name)}` }, count(queue.dead)) : "0"), isNumber: true },
  { key: "consumers", title: "Consumers", of: (queue) => queue.consumers, cell: (queue) => (queue.consumers == null ? "–" : count(queue.consumers)), isNumber: true },
  {
    key: "act", title: "", class: "actions",
    cell: (queue) => {
      const verb = queue.is_paused ? "Resume" : "Pause";
      const text = queue.is_paused
        ? "Workers take messages from this queue again."
        : "No worker takes messages from this queue until it is resumed. Running jobs go on.";
      return button(`${verb}…`, `queue ${queue.name}`, () =>
        change(`${verb} ${queue.name}?`, text, verb, `${verb.toLowerCase()}/${part(queue.name)}`, {}, answers));
    },
  },
], { key: "name" }, "There are no queues.");

// A worker that has sent no heartbeat for so long is shown as lost, in seconds.
const LOST_AFTER = 10;

const workerTable = new Table("workers", [
  {
    key: "name", title: "Worker", of: (worker) => worker.name,
    cell: (worker) => el("span", { class: now() - worker.heartbeat > LOST_AFTER ? "mark lost" : "" }, worker.name),
  },
  { key: "running", title: "Running", of: (worker) => worker.running, cell: (worker) => count(worker.running), isNumber: true },
  { key: "concurrency", title: "At most", of: (worker) => worker.concurrency, cell: (worker) => (worker.concurrency == null ? "–" : count(worker.concurrency)), isNumber: true },
  { key: "processed", title: "Processed", of: (worker) => worker.processed, cell: (worker) => count(worker.processed), isNumber: true },
  { key: "since", title: "Started", of: (worker) => worker.since, cell: (worker) => ago(worker.since), isNumber: true },
  { key: "heartbeat", title: "Heartbeat", of: (worker) => worker.heartbeat, cell: (worker) => ago(worker.heartbeat), isNumber: true },
  { key: "pid", title: "Process", of: (worker) => worker.pid, cell: (worker) => worker.pid ?? "", isNumber: true },
  { key: "queues", title: "Queues", cell: (worker) => worker.queues.join(", ") },
], { key: "name" }, "No worker answers.");

const nameTable = new Table("names", [
  { key: "name", title: "Job", class: "name", of: (job) => job.name, cell: (job) => job.name || "(unknown)" },
  { key: "succeeded", title: "Succeeded", of: (job) => job.succeeded, cell: (job) => count(job.succeeded), isNumber: true },
  { key: "failed", title: "Failed", of: (job) => job.failed, cell: (job) => count(job.failed), isNumber: true },
  { key: "retried", title: "Retried", of: (job) => job.retried, cell: (job) => count(job.retried), isNumber: true },
  { key: "revoked", title: "Revoked", of: (job) => job.revoked, cell: (job) => count(job.revoked), isNumber: true },
  { key: "p50", title: "Median", of: (job) => job.p50, cell: (job) => seconds(job.p50), isNumber: true },
  { key: "p99", title: "99 %", of: (job) => job.p99, cell: (job) => seconds(job.p99), isNumber: true },
  { key: "longest", title: "Longest", of: (job) => job.longest, cell: (job) => (job.p50 == null ? "" : seconds(job.longest)), isNumber: true },
], { key: "succeeded", isDescending: true }, "No job has ended since these workers began.");

function cancelButton(job) {
  return button("Cancel…", `cancel ${job.id}`, () => change(
    `Cancel ${job.name || "the job"}?`,
    `Job ${job.id} is revoked. If it runs, it is interrupted where it waits, and may clean up.`,
    "Cancel the job", `cancel/${part(job.id)}`, { terminate: true }, answers,
  ));
}

// What a job tells of its progress: `{"current": 3, "total": 10}` is 3/10.
function progressText(progress) {
  if (progress == null) return "";
  const { current, total } = progress;
  if (typeof current === "number" && typeof total === "number") return `${current}/${total}`;
  return typeof progress === "string" ? progress : JSON.stringify(progress);
}

const runningTable = new Table("running-table", [
  { key: "name", title: "Job", class: "name", of: (job) => job.name, cell: (job) => el("span", { class: `mark ${job.state === "running" ? "started" : "received"}` }, job.name) },
  { key: "arguments", title: "Arguments", cell: (job) => mono(job.arguments) },
  { key: "since", title: "For", of: (job) => job.since && -job.since, cell: (job) => (job.since == null ? "waits" : seconds(Math.max(0, now() - job.since))), isNumber: true },
  { key: "progress", title: "Progress", cell: (job) => mono(progressText(job.progress)) },
  { key: "queue", title: "Queue", of: (job) => job.queue, cell: (job) => job.queue },
  { key: "worker", title: "Worker", of: (job) => job.worker, cell: (job) => job.worker },
  { key: "id", title: "Id", of: (job) => job.id, cell: (job) => mono(job.id) },
  { key: "act", title: "", class: "actions", cell: cancelButton },
], { key: "since", isDescending: true }, "No job runs.");

const recentTable = new Table("recent-table", [
  {
    key: "name", title: "Job", class: "name", of: (job) => job.name,
    cell: (job) => el("button", { type: "button", class: `link mark ${job.state}`, "data-focus": `job ${job.id}`, on: { click: () => showJob(job) } }, job.name || "(unknown)"),
  },
  { key: "state", title: "State", of: (job) => job.state, cell: (job) => (job.retries ? `${job.state}, ${plural(job.retries, "retry").replace("retrys", "retries")}` : job.state) },
  { key: "arguments", title: "Arguments", cell: (job) => mono(job.arguments) },
  { key: "result", title: "Result", cell: (job) => mono(job.result) },
  { key: "runtime", title: "Took", of: (job) => job.runtime, cell: (job) => seconds(job.runtime), isNumber: true },
  { key: "ended", title: "Ended", of: (job) => job.ended, cell: (job) => ago(job.ended), isNumber: true },
  { key: "worker", title: "Worker", of: (job) => job.worker, cell: (job) => job.worker },
], { key: "none" }, "No such job has begun or ended while a page was open.");

function showJob(job) {
  const facts = [
    ["Id", mono(job.id)], ["State", job.state], ["Arguments", mono(job.arguments)], ["Worker", job.worker],
    ["Retries", count(job.retries)], ["Received", ago(job.received)], ["Started", ago(job.started)],
    ["Ended", ago(job.ended)], ["Took", seconds(job.runtime)], ["Result", mono(job.result)],
  ].filter(([, value]) => value);
  const body = [el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))];
  if (job.traceback) body.push(el("pre", {}, job.traceback));
  const isOver = ["succeeded", "failed", "revoked", "rejected"].includes(job.state);
  ask(job.name || job.id, body, isOver ? [] : [["Cancel…", () => { cancelButton(job).click(); return false; }, true]]);
}

const deadTable = new Table("dead-table", [
  { key: "name", title: "Job", class: "name", of: (job) => job.name, cell: (job) => job.name ?? "(no job)" },
  { key: "arguments", title: "Arguments", cell: (job) => mono([job.arguments, job.kwargs === "{}" ? "" : job.kwargs].filter(Boolean).join(" ")) },
  { key: "reason", title: "Why", cell: (job) => job.reason },
  { key: "since", title: "Since", of: (job) => job.since, cell: (job) => ago(job.since), isNumber: true },
  { key: "id", title: "Id", of: (job) => job.id, cell: (job) => mono(job.id) },
  {
    key: "act", title: "", class: "actions",
    cell: (job) => (job.id ? button("Replay…", `replay ${job.id}`, () => replay(job.id, `Job ${job.id} goes back into its queue.`)) : ""),
  },
], { key: "none" }, "This queue has no dead letters.");

function replay(job, text) {
  const queue = shown.queue;
  change(`Replay ${job ? "a job" : "all jobs"} of ${queue}?`, text, "Replay", `replay/${part(queue)}`, { job },
    ({ replayed }) => `${plural(replayed, "job")} went back into ${queue}.`);
}

byId("replay-all").addEventListener("click", () => replay(null, "All dead jobs of this queue go back into it."));

function scheduleButton(schedule, verb, path, text) {
  return button(`${verb}…`, `${path} ${schedule.name}`, () => change(
    `${verb} ${schedule.name}?`, text, verb, `${path}/${part(schedule.name)}`, {}, () => "Done.",
  ));
}

const scheduleTable = new Table("schedules-table", [
  { key: "name", title: "Schedule", class: "name", of: (schedule) => schedule.name, cell: (schedule) => el("span", { class: schedule.is_paused ? "mark paused" : "" }, schedule.name) },
  { key: "when", title: "When", cell: (schedule) => mono(schedule.when) },
  { key: "job", title: "Job", of: (schedule) => schedule.job, cell: (schedule) => schedule.job },
  { key: "arguments", title: "Arguments", cell: (schedule) => mono(schedule.arguments) },
  { key: "last", title: "Last", of: (schedule) => schedule.last, cell: (schedule) => ago(schedule.last), isNumber: true },
  {
    key: "next", title: "Next", of: (schedule) => schedule.next, isNumber: true,
    cell: (schedule) => (schedule.next == null ? "paused" : `in ${seconds(Math.max(0, Math.ceil(schedule.next - now())))}`.replace(/\.0+ s$/, " s").replace("in 0 ns", "now")),
  },
  { key: "missed", title: "Missed", of: (schedule) => schedule.missed_count, cell: (schedule) => count(schedule.missed_count), isNumber: true },
  {
    key: "act", title: "", class: "actions",
    cell: (schedule) => [
      scheduleButton(schedule, "Run now", "run-schedule", "A job of this schedule is sent now, also if the schedule is paused."),
      schedule.is_paused
        ? scheduleButton(schedule, "Resume", "resume-schedule", "Jobs of this schedule are sent again.")
        : scheduleButton(schedule, "Pause", "pause-schedule", "No jobs of this schedule are sent until it is resumed."),
    ],
  },
], { key: "name" }, "There are no schedules.");

function showOverview(answer) {
  shown.overview = answer;
  const { snapshot } = answer;
  setText(byId("broker"), `${snapshot.broker}, ${snapshot.state}`);
  document.title = `jobs of ${snapshot.broker} – pikake`;
  queueTable.show(snapshot.queues);
  workerTable.show(snapshot.workers);
  nameTable.show(answer.names);
  const plain = (value) => (Number.isInteger(value) ? count(value) : String(value));
  bars(byId("throughput"), answer.seconds, answer.now, ["succeeded", "failed", "retried"].map((name) => [name, (second) => second[name]]), plain);
  lines(byId("latency"), answer.seconds, answer.now, ["p50", "p99"].map((name) => [name, (second) => second[name]]), seconds);
  const { running, reserved, running_count: all, reserved_count: waiting } = snapshot;
  runningTable.show([...running, ...reserved]);
  const left = all + waiting - running.length - reserved.length;
  const text = `${plural(all, "job")} ${all === 1 ? "runs" : "run"}, ${count(waiting)} ${waiting === 1 ? "waits" : "wait"} at a worker`;
  setText(byId("running-count"), left ? `${text}; ${count(left)} of them are not shown` : text);
  const choice = byId("dead-queue");
  const names = snapshot.queues.map(({ name, dead }) => [name, dead]);
  shown.queue ??= (names.find(([, dead]) => dead) ?? names[0])?.[0] ?? null;
  const options = names.map(([name, dead]) => el("option", { value: name }, `${name} (${count(dead)})`));
  if (document.activeElement !== choice) {
    choice.replaceChildren(...options);
    choice.value = shown.queue ?? "";
  }
  byId("replay-all").disabled = !names.some(([name, dead]) => name === shown.queue && dead);
}

function showState() {
  const { overview, at, trouble, isHeld } = shown;
  const error = trouble?.message ?? overview?.snapshot.error;
  const age = at == null ? null : (performance.now() - at) / 1000;
  const isOld = age != null && age > (4 * INTERVAL_MS) / 1000;
  const link = byId("link");
  link.className = error ? "gone" : isHeld || isOld ? "old" : "";
  setText(link, error ? "no answer" : isHeld ? "held still" : at == null ? "connecting" : isOld ? `last look ${seconds(age)} ago` : "live");
  document.body.classList.toggle("stale", Boolean(error));
  const text = error ? `${error}. ${at == null ? "" : "What is shown is the last that was seen."}` : "";
  const banners = byId("banners");
  if (banners.textContent !== (error ? `No answer${text}` : "")) {
    banners.replaceChildren(...(error ? [el("div", { class: "banner bad" }, el("strong", {}, "No answer"), el("span", {}, text))] : []));
  }
}

async function look() {
  const { view } = shown;
  try {
    const answer = await get("overview");
    shown.at = performance.now();
    shown.trouble = null;
    showOverview(answer);
    if (view === "recent") {
      const query = `state=${part(byId("state").value)}&find=${part(byId("find").value)}`;
      const { jobs, count: all } = await get(`jobs?${query}`);
      recentTable.show(jobs);
      setText(byId("recent-count"), all > jobs.length ? `the newest ${count(jobs.length)} of ${plural(all, "job")}` : plural(all, "job"));
    }
    if (view === "dead" && shown.queue != null) {
      const { dead } = await get(`dead/${part(shown.queue)}`);
      deadTable.show(dead);
      const all = answer.snapshot.queues.find(({ name }) => name === shown.queue)?.dead ?? 0;
      setText(byId("dead-count"), all > dead.length ? `the oldest ${count(dead.length)} of ${plural(all, "dead letter")}` : plural(dead.length, "dead letter"));
    }
    if (view === "schedules") {
      const { schedules } = await get("schedules");
      scheduleTable.show(schedules);
      setText(byId("schedules-count"), plural(schedules.length, "schedule"));
    }
  } catch (problem) {
    shown.trouble = problem;
  }
  showState();
}

let wake = () => {};

// Looks at once.
function refresh() {
  wake();
}

function showView() {
  const [view, argument] = location.hash.slice(1).split("/");
  shown.view = VIEWS.includes(view) ? view : "overview";
  if (shown.view === "dead" && argument) {
    shown.queue = decodeURIComponent(argument);
    byId("dead-queue").value = shown.queue;
  }
  for (const name of VIEWS) byId(name).hidden = name !== shown.view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${shown.view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  refresh();
}

byId("pause").addEventListener("click", () => {
  shown.isHeld = !shown.isHeld;
  byId("pause").setAttribute("aria-pressed", shown.isHeld);
  setText(byId("pause"), shown.isHeld ? "Go on" : "Hold still");
  showState();
  refresh();
});
byId("dead-queue").addEventListener("change", (event) => {
  location.hash = `#dead/${part(event.target.value)}`;
});
for (const id of ["find", "state"]) byId(id).addEventListener("input", refresh);
addEventListener("hashchange", showView);
showView();

for (;;) {
  if (!shown.isHeld) await look();
  else showState();
  await new Promise((resolve) => {
    const timer = setTimeout(resolve, INTERVAL_MS);
    wake = () => { clearTimeout(timer); resolve(); };
  });
}
