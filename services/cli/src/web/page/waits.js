// The view of the waits: a graph of who waits for whom, and a table of the edges.

import { Head, byId, count, el, label, plural, setText, shortPlace, showId, svg, taskLink } from "./dom.js";

// More nodes make no picture that anybody can read.
const MOST_NODES = 150;
// More rows make no table that anybody reads.
const MOST_ROWS = 500;
// So many tasks that wait alike for one task are one node.
const MANY = 4;

const NODE_WIDTH = 280;
const NODE_HEIGHT = 42;
const GAP_X = 100;
const GAP_Y = 18;
const PADDING = 20;
// Room above a part for edges that close a cycle.
const ARC = 34;
// How far an edge to a farther column hangs down.
const SAG = 56;

let context;
let head;
// The tasks of the last answer, by number.
let tasks = new Map();
let graph = { edges: [], deadlocks: [], unpolled: [] };
let drawn = "";

export function start(given) {
  context = given;
  const columns = [
    { key: "from", title: "Task", of: (edge) => label(edge.from, context.name(edge.from)) },
    { key: "to", title: "waits for", of: (edge) => label(edge.to, context.name(edge.to)) },
    { key: "trap", title: "Trap", of: (edge) => edge.trap },
    { key: "place", title: "at", of: (edge) => edge.place },
    { key: "about", title: "What for", of: (edge) => edge.about },
  ];
  head = new Head(byId("waits-table").tHead.rows[0], columns, { key: "from" }, showTable);
}

export function show(answer) {
  graph = answer.graph ?? { edges: [], deadlocks: [], unpolled: [] };
  tasks = new Map(answer.tasks.map((task) => [task.id, task]));
  if (byId("waits").hidden) return;
  const waiting = answer.tasks.filter((task) => task.state === "waiting").length;
  const known = new Set(graph.edges.map((edge) => edge.from)).size;
  setText(
    byId("waits-count"),
    `${plural(waiting, "task")} of ${count(answer.tasks.length)} wait, ${count(known)} of them for other tasks`,
  );
  showTable();
  draw();
}

function showTable() {
  const rows = head.apply(graph.edges);
  const made = rows.slice(0, MOST_ROWS).map((edge) => el(
    "tr",
    {},
    el("td", {}, taskLink(edge.from, context.name(edge.from))),
    el("td", {}, taskLink(edge.to, context.name(edge.to))),
    el("td", {}, edge.trap),
    el("td", {}, el("code", {}, edge.place)),
    el("td", {}, edge.about ?? ""),
  ));
  if (rows.length > MOST_ROWS) {
    const text = `and ${count(rows.length - MOST_ROWS)} more`;
    made.push(el("tr", {}, el("td", { colspan: 5, class: "quiet" }, text)));
  }
  const body = byId("waits-table").tBodies[0];
  // The focus and a selection by the mouse stay while nothing changes.
  const isSame = body.textContent === made.map((row) => row.textContent).join("");
  if (!isSame) body.replaceChildren(...made);
}

// Nodes and edges of the picture. Tasks for which nobody waits, and which wait alike, are one node.
function pictureOf() {
  const isAwaited = new Set(graph.edges.map((edge) => edge.to));
  const targets = new Map();
  for (const edge of graph.edges) {
    targets.set(edge.from, (targets.get(edge.from) ?? 0) + 1);
  }
  const groups = new Map();
  for (const edge of graph.edges) {
    if (isAwaited.has(edge.from) || targets.get(edge.from) > 1) continue;
    const key = JSON.stringify([edge.to, edge.trap, edge.place, edge.about, context.name(edge.from)]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(edge.from);
  }
  const nodeOf = new Map();
  for (const [key, ids] of groups) {
    if (ids.length >= MANY) for (const id of ids) nodeOf.set(id, { key: `many ${key}`, ids });
  }
  const nodes = new Map();
  const node = (id) => {
    const { key, ids } = nodeOf.get(id) ?? { key: id, ids: [id] };
    if (!nodes.has(key)) nodes.set(key, { key, ids, abouts: [], out: new Set(), in: new Set(), rank: 0 });
    return nodes.get(key);
  };
  const bad = new Set(graph.unpolled);
  const badEdges = new Set();
  for (const cycle of graph.deadlocks) {
    cycle.forEach((id, at) => {
      bad.add(id);
      badEdges.add(`${id} ${cycle[(at + 1) % cycle.length]}`);
    });
  }
  const edges = new Map();
  let isCut = false;
  // What is bad comes first, lest it be cut off.
  const isBad = (edge) => badEdges.has(`${edge.from} ${edge.to}`);
  for (const edge of [...graph.edges].sort((a, b) => isBad(b) - isBad(a))) {
    if (nodes.size >= MOST_NODES) { isCut = true; break; }
    const [from, to] = [node(edge.from), node(edge.to)];
    const about = edge.about ?? edge.trap;
    if (!from.abouts.includes(about)) from.abouts.push(about);
    const key = `${from.key} ${to.key}`;
    if (edges.has(key)) continue;
    edges.set(key, { from, to, isBad: isBad(edge) });
    if (from !== to) { from.out.add(to); to.in.add(from); }
  }
  for (const id of graph.unpolled) if (nodes.size < MOST_NODES) node(id);
  for (const made of nodes.values()) made.isBad = made.ids.some((id) => bad.has(id));
  return { nodes: [...nodes.values()], edges: [...edges.values()], isCut };
}

// Ranks from the right: a node is left of all that it waits for, but for edges that close a cycle.
function rank(nodes) {
  const state = new Map();
  for (const root of nodes) {
    if (state.has(root)) continue;
    const stack = [[root, [...root.out].values()]];
    state.set(root, "open");
    while (stack.length) {
      const [node, rest] = stack.at(-1);
      const next = rest.next();
      if (next.done) {
        state.set(node, "done");
        stack.pop();
        const parent = stack.at(-1)?.[0];
        if (parent) parent.rank = Math.max(parent.rank, node.rank + 1);
      } else if (!state.has(next.value)) {
        state.set(next.value, "open");
        stack.push([next.value, [...next.value.out].values()]);
      } else if (state.get(next.value) === "done") {
        node.rank = Math.max(node.rank, next.value.rank + 1);
      }
    }
  }
}

// Places nodes: each connected part below the last one, ranks as columns, each node near those it waits for.
function place(nodes) {
  rank(nodes);
  const most = Math.max(0, ...nodes.map((node) => node.rank));
  const seen = new Set();
  let top = PADDING;
  for (const root of nodes) {
    if (seen.has(root)) continue;
    const part = [root];
    seen.add(root);
    for (let at = 0; at < part.length; at += 1) {
      for (const next of [...part[at].out, ...part[at].in]) {
        if (!seen.has(next)) { seen.add(next); part.push(next); }
      }
    }
    const columns = Array.from({ length: most + 1 }, () => []);
    for (const node of part) columns[node.rank].push(node);
    const height = Math.max(...columns.map((column) => column.length)) * (NODE_HEIGHT + GAP_Y);
    const hasCycle = part.some((node) => [...node.out].some((other) => other.rank >= node.rank));
    if (hasCycle) top += ARC;
    const least = Math.min(...part.map((node) => node.rank));
    for (let at = least; at <= most; at += 1) {
      const column = columns[at];
      const middle = (node) => {
        const placed = [...node.out].filter((other) => other.rank < at);
        if (!placed.length) return 0;
        return placed.reduce((sum, other) => sum + other.y, 0) / placed.length;
      };
      // What is bad is on top, where edges that close a cycle have room.
      column.sort((a, b) => b.isBad - a.isBad || middle(a) - middle(b));
      const free = height - column.length * (NODE_HEIGHT + GAP_Y);
      const begin = hasCycle ? top : top + free / 2;
      column.forEach((node, line) => {
        node.x = PADDING + (most - at) * (NODE_WIDTH + GAP_X);
        node.y = begin + line * (NODE_HEIGHT + GAP_Y);
      });
    }
    top += height + GAP_Y;
  }
  return { width: 2 * PADDING + most * (NODE_WIDTH + GAP_X) + NODE_WIDTH, height: top + PADDING };
}

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

// What a node waits for, in words, or what it does.
function waitText({ ids, abouts }) {
  if (abouts.length > 1) return `${abouts.length} waits for tasks`;
  if (abouts.length) return abouts[0];
  const task = tasks.get(ids[0]);
  const wait = task?.waits.at(-1);
  return wait ? `${wait.trap} at ${shortPlace(wait.place)}` : task?.state ?? "";
}

function drawNode(node) {
  const { ids, abouts, x, y, isBad } = node;
  const name = context.name(ids[0]);
  const isMany = ids.length > 1;
  const title = isMany ? `${plural(ids.length, "task")}${name ? ` ${name}` : ""}` : label(ids[0], name);
  const below = waitText(node);
  const open = () => { location.hash = `#tasks/${ids[0]}`; };
  const onKey = (event) => { if (event.key === "Enter") open(); };
  return svg(
    "g",
    {
      class: isBad ? "node bad" : "node",
      transform: `translate(${x} ${y})`,
      tabindex: 0,
      role: "link",
      "aria-label": `${title}, ${below}`,
      on: { click: open, keydown: onKey },
    },
    svg("title", {}, [title, isMany ? ids.map(showId).join(" ") : "", ...abouts].filter(Boolean).join("\n")),
    svg("rect", { width: NODE_WIDTH, height: NODE_HEIGHT, rx: 6 }),
    svg("text", { x: 10, y: 18 }, cut(title, 38)),
    svg("text", { x: 10, y: 34, class: "quiet" }, cut(below, 44)),
  );
}

function drawEdge({ from, to, isBad }) {
  const [y1, y2] = [from.y + NODE_HEIGHT / 2, to.y + NODE_HEIGHT / 2];
  let path;
  if (from.rank > to.rank) {
    const [x1, x2] = [from.x + NODE_WIDTH, to.x - 7];
    const bend = (x2 - x1) / 2;
    // Below the nodes between the two.
    const sag = from.rank - to.rank > 1 ? SAG : 0;
    path = `M${x1} ${y1}C${x1 + bend} ${y1 + sag} ${x2 - bend} ${y2 + sag} ${x2} ${y2}`;
  } else {
    // It closes a cycle: from the top, to the top.
    const [x1, x2] = [from.x + NODE_WIDTH / 2 + 20, to.x + NODE_WIDTH / 2 - 20];
    const high = Math.min(from.y, to.y) - ARC;
    path = `M${x1} ${from.y}C${x1} ${high} ${x2} ${high} ${x2} ${to.y - 7}`;
  }
  const head = isBad ? "url(#head-bad)" : "url(#head)";
  return svg("g", { class: isBad ? "edge bad" : "edge" }, svg("path", { d: path, "marker-end": head }));
}

const marker = (id, name) => svg(
  "marker",
  {
    id, viewBox: "0 0 8 8", refX: 1, refY: 4, markerWidth: 8, markerHeight: 8,
    orient: "auto", markerUnits: "userSpaceOnUse",
  },
  svg("path", { d: "M0 0L8 4L0 8z", class: name }),
);

function draw() {
  const { nodes, edges, isCut } = pictureOf();
  // The picture is left alone while it stays the same.
  const text = JSON.stringify([
    nodes.map((node) => [node.key, node.ids, node.isBad, context.name(node.ids[0]), waitText(node)]),
    edges.map(({ from, to, isBad }) => [from.key, to.key, isBad]),
  ]);
  if (text === drawn) return;
  drawn = text;
  if (!nodes.length) {
    byId("graph").replaceChildren(el("p", { class: "empty" }, "No task waits for a task that is known."));
    return;
  }
  const { width, height } = place(nodes);
  const picture = svg(
    "svg",
    { width, height, role: "img", "aria-label": "Who waits for whom; the table below has the same" },
    svg("defs", {}, marker("head", "head"), marker("head-bad", "head bad")),
    // What is bad lies on the others.
    ...edges.sort((a, b) => a.isBad - b.isBad).map(drawEdge),
    ...nodes.map(drawNode),
  );
  const note = isCut ? el("p", { class: "empty" }, "There are more tasks than the picture shows; the table has them all.") : null;
  byId("graph").replaceChildren(...[note, picture].filter(Boolean));
}
