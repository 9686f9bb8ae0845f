// Charts of the last minutes, drawn as SVG.

import { svg } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 130;
const LEFT = 56;
const BOTTOM = 18;
const TOP = 8;
const SECONDS = 300;

// A round number that is at least `value`: 1, 2 or 5 times a power of ten.
export function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((round) => round >= value * 0.999999);
}

// `share` is how high a value is between 0 and 1; `marks` are the values with a line.
function frame(host, now, share, marks, format, parts) {
  const x = (at) => LEFT + ((at - (now - SECONDS)) / SECONDS) * (WIDTH - LEFT);
  const y = (value) => TOP + (1 - share(value)) * (HEIGHT - TOP - BOTTOM);
  const line = (value) => svg("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value) });
  const label = (value) => svg("text", { class: "quiet", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value));
  const times = [[now - SECONDS, "5 min ago", "start"], [now, "now", "end"]].map(([at, text, anchor]) =>
    svg("text", { class: "quiet", x: x(at), y: HEIGHT - 4, "text-anchor": anchor }, text));
  host.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  host.replaceChildren(
    ...marks.flatMap((value) => [line(value), label(value)]),
    ...parts(x, y),
    ...times,
  );
}

// Bars, one upon the other: `[name, of]` for each part.
export function bars(host, seconds, now, parts, format) {
  const total = (second) => parts.reduce((sum, [, of]) => sum + of(second), 0);
  const most = ceiling(Math.max(2, ...seconds.map(total)));
  const width = (WIDTH - LEFT) / SECONDS;
  frame(host, now, (value) => value / most, [0, most / 2, most], format, (x, y) => seconds.flatMap((second) => {
    let below = 0;
    return parts.filter(([, of]) => of(second) > 0).map(([name, of]) => {
      const value = of(second);
      const bar = svg("rect", {
        class: name, x: x(second.at), width: Math.max(1, width * 0.85), y: y(below + value), height: y(below) - y(below + value),
      });
      below += value;
      return bar;
    });
  }));
}

// Lines through the seconds that have a value, on a logarithmic scale: `[name, of]` for each.
export function lines(host, seconds, now, parts, format) {
  const values = parts.flatMap(([, of]) => seconds.map(of)).filter((value) => value > 0);
  const least = Math.floor(Math.log10(Math.min(1e-3, ...values)));
  const most = Math.max(least + 2, Math.ceil(Math.log10(Math.max(1e-2, ...values))));
  const share = (value) => Math.max(0, (Math.log10(Math.max(value, 1e-9)) - least) / (most - least));
  const marks = [least, Math.round((least + most) / 2), most].map((power) => 10 ** power);
  frame(host, now, share, marks, format, (x, y) => parts.map(([name, of]) => {
    const known = seconds.filter((second) => of(second) != null);
    const points = known.map((second) => `${x(second.at + 0.5).toFixed(1)} ${y(of(second)).toFixed(1)}`);
    // A single point is drawn, too.
    const path = points.length === 1 ? `M${points[0]}h1` : points.length ? `M${points.join("L")}` : "";
    return svg("path", { class: name, d: path });
  }));
}
