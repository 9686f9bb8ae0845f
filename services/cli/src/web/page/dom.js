// Elements, and texts for figures. Texts of the process are only ever set as text, never as markup.

export const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value != null) {
      node.setAttribute(name, value);
    }
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

// An element of HTML. `on` has listeners; other attributes are set as they are.
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

// An element of SVG.
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

// Sets a text only if it differs, so that a selection by the mouse lasts.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value == null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

const NS = { us: 1e3, ms: 1e6, s: 1e9 };

// A length of time in nanoseconds: `1.25 ms`, `3 m 05 s`.
export function duration(ns) {
  if (ns == null) return "";
  if (ns < 0) return `−${duration(-ns)}`;
  if (ns < NS.us) return `${Math.round(ns)} ns`;
  if (ns < NS.ms) return `${digits(ns / NS.us)} µs`;
  if (ns < NS.s) return `${digits(ns / NS.ms)} ms`;
  const s = ns / NS.s;
  if (s < 60) return `${digits(s)} s`;
  const two = (count) => String(Math.floor(count)).padStart(2, "0");
  if (s < 3600) return `${Math.floor(s / 60)} m ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two((s / 60) % 60)} m`;
  return `${Math.floor(s / 86400)} d ${two((s / 3600) % 24)} h`;
}

// Three significant digits of a number from 1 to 999.
function digits(value) {
  return value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0);
}

const numbers = new Intl.NumberFormat("en");

export const count = (value) => (value == null ? "" : numbers.format(value));

export function bytes(value) {
  if (value == null) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : digits(value)} ${units[unit]}`;
}

export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

// The name of a future's type without what is the same for all: `shop::worker`.
export function shortFuture(future) {
  const short = future.replaceAll("::{{closure}}", "").replace(/^(core|alloc)::(\w+::)+/, "");
  return short || future;
}

// How a task is called: by its name, or else by its future's type.
export const taskName = (task) => task.name || shortFuture(task.future ?? "");

let onlyKernel = null;

// The kernels of the process. If there is one, tasks are called `17` and not `1.17`, as by the other commands.
export function setKernels(kernels) {
  onlyKernel = kernels.length === 1 ? `${kernels[0].id}.` : null;
}

// The number of a task, as people see it.
export const showId = (id) => (onlyKernel && id.startsWith(onlyKernel) ? id.slice(onlyKernel.length) : id);

// The name and the number of a task.
export const label = (id, name) => (name ? `${name} (${showId(id)})` : showId(id));

// The end of a place, for where room is scarce: `…/http/connection.rs:96:31`.
export function shortPlace(place) {
  const parts = place.split("/");
  return parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : place;
}

// A button that shows a task.
export function taskLink(id, name) {
  const open = () => { location.hash = `#tasks/${id}`; };
  return el("button", { type: "button", class: "link", on: { click: open } }, label(id, name));
}

// Sorts by `of`: undefined and null come last, whatever the direction.
export function sorted(rows, of, isDescending) {
  const sign = isDescending ? -1 : 1;
  const compare = (a, b) => {
    const [x, y] = [of(a), of(b)];
    if (x == null || y == null) return (x == null) - (y == null);
    if (typeof x === "string") return sign * x.localeCompare(y, "en", { numeric: true });
    return sign * (x - y);
  };
  return [...rows].sort(compare);
}

// A table's head, with columns that sort when clicked.
// A column: `{ key, title, of, isNumber, isWide }`; without `of`, it does not sort.
export class Head {
  constructor(row, columns, sort, changed) {
    this.columns = columns;
    this.sort = sort;
    this.cells = columns.map((column) => {
      const choose = () => {
        const isSame = this.sort.key === column.key;
        // Numbers: the greatest first.
        this.sort = {
          key: column.key,
          isDescending: isSame ? !this.sort.isDescending : Boolean(column.isNumber),
        };
        this.show();
        changed();
      };
      const title = column.of
        ? el("button", { type: "button", on: { click: choose } }, column.title)
        : column.title;
      const names = [column.isNumber && "number", column.isWide && "wide"].filter(Boolean);
      return el("th", { scope: "col", class: names.join(" ") || null }, title);
    });
    row.replaceChildren(...this.cells);
    this.show();
  }

  show() {
    this.columns.forEach((column, at) => {
      const direction = this.sort.isDescending ? "descending" : "ascending";
      setAttribute(this.cells[at], "aria-sort", column.key === this.sort.key ? direction : null);
    });
  }

  apply(rows) {
    const column = this.columns.find(({ key }) => key === this.sort.key);
    return column?.of ? sorted(rows, column.of, this.sort.isDescending) : rows;
  }
}

// Shows a dialog with buttons `[text, action, isDanger]`; Escape closes it.
export function ask(title, body, buttons) {
  const dialog = byId("dialog");
  byId("dialog-title").textContent = title;
  byId("dialog-body").replaceChildren(...body);
  const close = () => dialog.close();
  const made = buttons.map(([text, action, isDanger]) => {
    const click = async () => {
      if (await action() !== false) close();
    };
    const attributes = { type: "button", class: isDanger ? "danger" : null, on: { click } };
    return el("button", attributes, text);
  });
  const last = el("button", { type: "button", on: { click: close } }, buttons.length ? "Go back" : "Close");
  dialog.querySelector(".buttons").replaceChildren(...made, last);
  dialog.showModal();
  last.focus();
}
