"use strict";
/* What all figures share: elements, numbers, scales, axes, tooltips, controls. */
const NS = "http://www.w3.org/2000/svg";

function node(tag, attributes, parent, text) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
}

function svg(tag, attributes, parent, text) {
  const made = document.createElementNS(NS, tag);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
}

const colour = (index) => `var(--c${((index % 8) + 8) % 8})`;
const SUPER = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const raised = (whole) => String(whole).split("").map((sign) => SUPER[sign]).join("");

/* A number as people write it: four digits that count, powers of ten where they are shorter. */
function shown(x, digits = 4) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) {
    const power = Math.floor(Math.log10(size) + 1e-12);
    const front = Number((x / 10 ** power).toPrecision(Math.max(digits - 1, 1)));
    return `${front === 1 ? "" : String(front).replace("-", "−") + "·"}10${raised(power)}`;
  }
  if (Number.isInteger(x)) return x.toLocaleString("en-GB").replace("-", "−");
  if (size >= 1e3) return Math.round(x).toLocaleString("en-GB").replace("-", "−");
  return String(Number(x.toPrecision(digits))).replace("-", "−");
}

function decoded(array) {
  if (array.base64 === undefined) return array.values;
  const raw = atob(array.base64), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Float32Array(bytes.buffer);
}

function extent(lists, log) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const x of list) {
    if (x === null || !Number.isFinite(x) || (log && x <= 0)) continue;
    if (x < low) low = x;
    if (x > high) high = x;
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (low === high) return log ? [low / 2, Math.min(high * 2, 1e308)] : [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  return [low, high];
}

function linearTicks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high, count) {
  const decades = [], first = Math.floor(Math.log10(low) + 1e-9), last = Math.ceil(Math.log10(high) - 1e-9);
  const inside = (t) => t >= low * 0.9999 && t <= high * 1.0001;
  const stride = Math.max(1, Math.ceil((last - first) / Math.max(count, 1)));
  for (let p = first; p <= last; p += stride) decades.push(10 ** p);
  const whole = decades.filter(inside);
  if (whole.length >= 3 || (stride > 1 && whole.length >= 2)) return whole;
  for (const marks of [[1, 3], [1, 2, 5]]) {
    const ticks = decades.flatMap((d) => marks.map((m) => m * d)).filter(inside);
    if (ticks.length >= 3) return ticks;
  }
  return linearTicks(low, high, count).filter((t) => t > 0);
}

function scale(domain, range, log) {
  const f = log ? Math.log10 : (x) => x, [a, b] = domain.map(f), [p, q] = range;
  const to = (x) => (log && x <= 0 ? NaN : p + ((f(x) - a) / (b - a)) * (q - p));
  to.back = (pixel) => { const x = a + ((pixel - p) / (q - p)) * (b - a); return log ? 10 ** x : x; };
  return Object.assign(to, { domain, range, log });
}

/* Axes around an empty plot; x or y may be false where the drawing has its own. */
function axes(place, spec, xDomain, yDomain, options) {
  const width = Math.max(place.clientWidth, 240), height = options.height || Math.round(Math.min(Math.max(width * 0.52, 230), 380));
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.label }, place);
  const yTicks = spec.y.log ? logTicks(...yDomain, height / 48) : linearTicks(...yDomain, height / 48);
  const widest = Math.max(...yTicks.map((t) => shown(t).length), 1);
  const box = { left: Math.max(28, 12 + widest * 7.2), right: width - 10, top: 22, bottom: height - (options.below || 40) };
  const x = scale(xDomain, [box.left, box.right], spec.x && spec.x.log), y = scale(yDomain, [box.bottom, box.top], spec.y.log);
  for (const t of yTicks) {
    svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(t), y2: y(t) }, root);
    svg("text", { x: box.left - 7, y: y(t) + 4, "text-anchor": "end" }, root, shown(t));
  }
  if (options.xTicks !== false) {
    const xTicks = options.xAt ? options.xAt : spec.x.log ? logTicks(...xDomain, width / 90) : linearTicks(...xDomain, Math.min(width / 80, 9));
    for (const t of xTicks) {
      svg("line", { class: "axis", x1: x(t), x2: x(t), y1: box.bottom, y2: box.bottom + 4 }, root);
      svg("text", { x: x(t), y: box.bottom + 18, "text-anchor": "middle" }, root, shown(t));
    }
  }
  svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }, root);
  if (spec.x) svg("text", { class: "label", x: box.right, y: height - 5, "text-anchor": "end" }, root, spec.x.label);
  svg("text", { class: "label", x: 0, y: 12 }, root, spec.y.label);
  return { root, box, x, y, width, height };
}

function drawNotes(frame, notes) {
  const inside = (scaled, at) => scaled.domain[0] <= at && at <= scaled.domain[1];
  const said = new Set();
  let row = 0;
  for (const note of notes || []) {
    const { root, box, x, y } = frame;
    if (note.along === "x" && inside(x, note.at)) {
      svg("line", { class: "rule", x1: x(note.at), x2: x(note.at), y1: box.top, y2: box.bottom }, root);
      if (said.has(note.text)) continue;
      said.add(note.text);
      const late = x(note.at) > (box.left + box.right) / 2, shift = late ? -5 : 5;
      svg("text", { class: "note", x: x(note.at) + shift, y: box.top + 11 + 15 * (row++ % 3), "text-anchor": late ? "end" : "start" }, root, note.text);
    } else if (note.along === "y" && inside(y, note.at)) {
      svg("line", { class: "rule", x1: box.left, x2: box.right, y1: y(note.at), y2: y(note.at) }, root);
      svg("text", { class: "note", x: box.right, y: y(note.at) - 5, "text-anchor": "end" }, root, note.text);
    }
  }
}

/* A tooltip: lines of [colour or null, name, value]. */
function tooltip(place) {
  const tip = node("div", { class: "tip", role: "status" }, place);
  return {
    show(px, py, title, lines) {
      tip.replaceChildren();
      if (title) node("b", {}, tip, title);
      for (const [paint, name, value] of lines) {
        const line = node("div", {}, tip);
        if (paint) node("i", {}, line).style.background = paint;
        line.append(`${name}${name ? "  " : ""}${value}`);
      }
      const wide = tip.offsetWidth, room = place.clientWidth;
      tip.style.left = `${Math.max(0, Math.min(px + 14 + wide > room ? px - wide - 14 : px + 14, room - wide))}px`;
      tip.style.top = `${Math.max(0, py - tip.offsetHeight - 8)}px`;
      tip.style.visibility = "visible";
    },
    hide() { tip.style.visibility = "hidden"; },
  };
}

/* Calls over(x, y) in the units of the drawing while a pointer is on it. */
function hover(root, width, over, out) {
  const at = (event) => {
    const seen = root.getBoundingClientRect(), ratio = width / seen.width;
    over((event.clientX - seen.left) * ratio, (event.clientY - seen.top) * ratio);
  };
  root.addEventListener("pointermove", at);
  root.addEventListener("pointerdown", at);
  root.addEventListener("pointerleave", out);
}

function legend(holder, entries, hidden, changed) {
  if (entries.length < 2) return;
  const list = node("div", { class: "legend" }, holder);
  entries.forEach((entry, index) => {
    const button = node("button", { type: "button", "aria-pressed": String(!hidden.has(index)) }, list);
    const key = svg("svg", { width: 20, height: 10, "aria-hidden": "true" }, button);
    const paint = { stroke: entry.paint, "stroke-width": 2.4, x1: 0, x2: 20, y1: 5, y2: 5 };
    if (entry.mark === "dashed") paint["stroke-dasharray"] = "5 3";
    if (entry.mark === "faint") Object.assign(paint, { opacity: 0.55, "stroke-width": 1.2 });
    if (entry.mark === "both") svg("circle", { cx: 10, cy: 5, r: 3.4, fill: entry.paint }, key);
    if (entry.mark === "bar") svg("rect", { x: 4, y: 0, width: 10, height: 10, rx: 2, fill: entry.paint }, key);
    else if (entry.mark === "points") svg("circle", { cx: 10, cy: 5, r: 3.6, fill: entry.paint }, key);
    else svg("line", paint, key);
    button.append(entry.name);
    button.addEventListener("click", () => {
      if (!hidden.delete(index) && hidden.size < entries.length - 1) hidden.add(index);
      button.setAttribute("aria-pressed", String(!hidden.has(index)));
      changed();
    });
  });
}

/* A slider over numbered frames with a button that plays them; `changed` is told of every move. */
function slider(holder, label, frames, start, changed) {
  const named = node("label", {}, holder);
  node("span", {}, named, label);
  const input = node("input", { type: "range", min: 0, max: frames.length - 1, step: 1, value: start, "aria-label": label }, named);
  const told = node("output", {}, named, shown(frames[start], 3));
  const move = (index) => { input.value = index; told.textContent = shown(frames[index], 3); changed(index); };
  input.addEventListener("input", () => { told.textContent = shown(frames[+input.value], 3); changed(+input.value); });
  const button = node("button", { type: "button", "aria-label": `play ${label}` }, holder, "▶");
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; button.textContent = "▶"; };
  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    button.textContent = "❚❚";
    if (+input.value === frames.length - 1) move(0);
    timer = setInterval(() => (+input.value >= frames.length - 1 ? stop() : move(+input.value + 1)), Math.max(60, 2400 / frames.length));
  });
}

const STOPS = {
  forward: [[15, 34, 56], [27, 72, 104], [47, 127, 147], [134, 181, 140], [224, 178, 91], [251, 238, 194]],
  around: [[33, 92, 142], [130, 176, 206], [244, 243, 239], [226, 152, 127], [176, 62, 42]],
};

function paint(share, stops) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2), part = at - low;
  return stops[low].map((c, i) => Math.round(c + (stops[low + 1][i] - c) * part));
}
const css = (rgb) => `rgb(${rgb.join(",")})`;

/* The key of a colour range, below a drawing. */
function colourKey(holder, low, high, stops, label) {
  const row = node("div", { class: "controls" }, holder);
  row.style.marginTop = "6px";
  node("span", {}, row, label);
  node("span", {}, row, shown(low, 3));
  const bar = node("span", {}, row);
  bar.style.cssText = `flex:1 1 90px;max-width:220px;height:10px;border-radius:3px;background:linear-gradient(90deg,${stops.map(css).join(",")})`;
  node("span", {}, row, shown(high, 3));
}
