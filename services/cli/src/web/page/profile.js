// The view of the profile: a table of the tasks by place of spawn, and a flame graph of the processor time and of the
// steps that were blocked.

import { get } from "./api.js";
import { Head, byId, count, duration, el, plural, setText, svg } from "./dom.js";

const LINE = 18;
// Narrower boxes are not drawn.
const NARROWEST_PX = 0.6;
// About the width of a character.
const LETTER_PX = 7;

let head;
let rows = [];
let total = 0;
let samples = null;
// So many callers of the function that takes the whole width are shown.
const CALLERS = 3;
// The node that takes the whole width.
let zoomed = null;
let tree = null;

export function start() {
  const waits = (row) => row.waits.reduce((sum, [, number]) => sum + number, 0);
  const columns = [
    { key: "name", title: "Tasks", of: (row) => row.name || "(no name)" },
    { key: "place", title: "Spawned at", of: (row) => row.spawned_at },
    { key: "busy", title: "Busy", of: (row) => row.busy, isNumber: true },
    { key: "share", title: "Share", of: (row) => row.busy, isNumber: true },
    { key: "steps", title: "Steps", of: (row) => row.steps, isNumber: true },
    { key: "longest", title: "Longest", of: (row) => row.longest, isNumber: true },
    { key: "spawned", title: "Spawned", of: (row) => row.spawned, isNumber: true },
    { key: "waits", title: "Waits after steps", of: waits },
  ];
  const sort = { key: "busy", isDescending: true };
  head = new Head(byId("profile-table").tHead.rows[0], columns, sort, showTable);
  byId("profile-record").addEventListener("click", record);
  byId("profile-find").addEventListener("input", mark);
  byId("profile-reset").addEventListener("click", () => { zoomed = null; draw(); });
  new ResizeObserver(() => draw()).observe(byId("flame"));
  setText(byId("profile-note"), "Record to see where the time goes. Steps are timed meanwhile.");
  draw();
}

async function record() {
  const seconds = Number(byId("profile-seconds").value) || 5;
  const button = byId("profile-record");
  button.disabled = true;
  setText(byId("profile-note"), `recording for ${seconds} s`);
  try {
    const { answer } = await get(`profile?seconds=${seconds}`, seconds);
    rows = answer.profile;
    total = seconds * 1e9;
    samples = answer.samples;
    tree = samples ? treeOf(samples) : null;
    zoomed = tree?.value ? trunkOf(tree) : null;
    const taken = samples?.stacks.reduce((sum, { count }) => sum + count, 0) ?? 0;
    const blocked = samples?.blocked?.reduce((sum, { time }) => sum + time, 0) ?? 0;
    const blockedNote = blocked ? `; steps were blocked for ${duration(blocked)}` : "";
    setText(
      byId("profile-note"),
      samples && samples.none == null
        ? `${plural(taken, "sample")} at ${count(samples.frequency)} a second of processor time, in ${seconds} s${blockedNote}`
        : `recorded for ${seconds} s`,
    );
    showTable();
    draw();
  } catch (problem) {
    setText(byId("profile-note"), problem.message);
  } finally {
    button.disabled = false;
  }
}

function showTable() {
  const made = head.apply(rows).map((row) => el(
    "tr",
    {},
    el("td", {}, row.name || el("span", { class: "quiet" }, "(no name)")),
    el("td", {}, el("code", {}, row.spawned_at)),
    el("td", { class: "number" }, duration(row.busy)),
    el("td", { class: "number" }, total ? `${((100 * row.busy) / total).toFixed(1)} %` : ""),
    el("td", { class: "number" }, count(row.steps)),
    el("td", { class: "number" }, duration(row.longest)),
    el("td", { class: "number" }, count(row.spawned)),
    el("td", {}, row.waits.map(([trap, number]) => `${trap} ${count(number)}`).join(", ")),
  ));
  byId("profile-table").tBodies[0].replaceChildren(...made);
}

// Samples of both kinds are about as frequent: a hundred a second.
function treeOf({ stacks, blocked = [] }) {
  const root = { name: "all threads", value: 0, children: new Map(), parent: null };
  const all = stacks.map((stack) => [`thread ${stack.thread}`, stack]);
  for (const { name, spawned_at: place, stack } of blocked) all.push([`blocked in task ${name || place}`, stack]);
  for (const [under, { frames, count: value }] of all) {
    let node = root;
    root.value += value;
    for (const name of [under, ...frames]) {
      if (!node.children.has(name)) node.children.set(name, { name, value: 0, children: new Map(), parent: node });
      node = node.children.get(name);
      node.value += value;
    }
  }
  return root;
}

// Where the stacks part: the outermost functions are the same in all.
function trunkOf(root) {
  let node = root;
  while (node.children.size === 1) {
    const [only] = node.children.values();
    if (only.value < node.value) break;
    node = only;
  }
  return node;
}

// A warm colour, the same for the same function.
function colour(name) {
  let hash = 7;
  for (const letter of name.replace(/ \(.*$/, "")) hash = (hash * 31 + letter.codePointAt(0)) % 9973;
  return `hsl(${20 + (hash % 35)} ${70 + (hash % 20)}% ${58 + (hash % 13)}%)`;
}

function draw() {
  const place = byId("flame");
  if (!tree?.value) {
    const why = samples?.none ?? "the process used next to no processor time";
    const text = rows.length ? `There are no samples: ${why}.` : "Nothing is recorded yet.";
    place.replaceChildren(el("p", { class: "empty" }, text));
    byId("profile-reset").hidden = true;
    return;
  }
  const top = zoomed ?? tree;
  byId("profile-reset").hidden = top === tree;
  const width = Math.max(300, place.clientWidth - 2);
  const boxes = [];
  let depth = 0;
  // The callers of the zoomed function.
  const callers = [];
  for (let node = top.parent; node && callers.length < CALLERS; node = node.parent) callers.unshift(node);
  callers.forEach((node, line) => boxes.push(box(node, 0, width, line)));
  const rest = [[top, 0, width, callers.length]];
  while (rest.length) {
    const [node, x, wide, line] = rest.pop();
    depth = Math.max(depth, line);
    boxes.push(box(node, x, wide, line));
    let left = x;
    for (const child of [...node.children.values()].sort((a, b) => b.value - a.value)) {
      const share = (child.value / node.value) * wide;
      if (share >= NARROWEST_PX) rest.push([child, left, share, line + 1]);
      left += share;
    }
  }
  place.replaceChildren(svg("svg", { width, height: (depth + 1) * LINE + 2 }, ...boxes));
  mark();
}

function box(node, x, width, line) {
  const fits = Math.floor((width - 6) / LETTER_PX);
  const text = fits < 3 ? "" : node.name.length > fits ? `${node.name.slice(0, fits - 1)}…` : node.name;
  const percent = ((100 * node.value) / tree.value).toFixed(1);
  const zoom = () => { zoomed = node; draw(); };
  return svg(
    "g",
    {
      "data-name": node.name,
      tabindex: 0,
      role: "button",
      "aria-label": `${node.name}, ${percent} %`,
      on: { click: zoom, keydown: (event) => { if (event.key === "Enter") zoom(); } },
    },
    svg("title", {}, `${node.name}\n${plural(node.value, "sample")}, ${percent} %`),
    svg("rect", { x, y: line * LINE, width: Math.max(width - 0.5, 0.5), height: LINE - 1, rx: 2, fill: colour(node.name) }),
    text ? svg("text", { x: x + 4, y: line * LINE + 13 }, text) : null,
  );
}

function mark() {
  const words = byId("profile-find").value.toLowerCase();
  for (const group of byId("flame").querySelectorAll("g")) {
    group.classList.toggle("found", words !== "" && group.dataset.name.toLowerCase().includes(words));
  }
}
