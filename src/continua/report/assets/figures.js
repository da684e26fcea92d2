"use strict";
/* Figures are drawn when the page is written. This fits them to their width, zooms, shows the numbers under the
   pointer, moves sliders and saves pictures; it draws nothing anew. */
const UNITS = 10000, RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const between = (x, low, high) => Math.min(Math.max(x, low), high);

function node(tag, attributes, parent, text) {
  const made = tag.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
}

/* A number as people write it: digits that count, powers of ten where they are shorter. */
function format(x, digits = 4) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  if (size > 0 && (size >= 1e6 || size < 1e-4)) {
    const [front, power] = x.toExponential(Math.max(digits - 2, 0)).split("e"), short = String(Number(front)).replace("-", "−");
    return `${short === "1" ? "" : short + "·"}10${[...String(Number(power))].map((sign) => RAISED[sign]).join("")}`;
  }
  if (Number.isInteger(x) || size >= 1e3) return Math.round(x).toLocaleString("en-GB").replace("-", "−");
  return String(Number(x.toPrecision(digits))).replace("-", "−");
}

function bytes(text) { return Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0)); }
const numbers = (array) => (array.base64 === undefined ? array.values : new Float32Array(bytes(array.base64).buffer));

function nearest(list, x) {
  let best = -1, gap = Infinity;
  list.forEach((value, i) => { if (value !== null && Math.abs(value - x) < gap) { gap = Math.abs(value - x); best = i; } });
  return best;
}

/* One figure: where its window is, what part of it is seen (`view`, in shares of the whole), and its pins around it. */
class Plot {
  constructor(figure) {
    this.data = JSON.parse(figure.querySelector("script.figure").textContent);
    this.figure = figure;
    this.place = figure.querySelector(".plot");
    this.root = this.place.querySelector("svg");
    this.window = this.root.querySelector(".window");
    [this.left, this.top, this.right, this.below, this.aspect] = this.root.dataset.box.split(" ").map(Number);
    this.pins = [...this.root.querySelectorAll("[data-u]")].map((g) => ({ g, u: +g.dataset.u, v: +g.dataset.v, moves: g.getAttribute("class") || "", words: g.querySelector("text")?.textContent }));
    this.hidden = new Set();
    this.view = { x: 0, y: 0, w: 1, h: 1 };
    this.fit();
    new ResizeObserver(() => { if (this.place.clientWidth !== this.width) this.fit(); }).observe(this.place);
  }
  get zoomed() { return this.view.w < 1 || this.view.h < 1; }

  fit() {
    this.width = this.place.clientWidth;
    const whole = Math.max(this.width, 240);
    this.wide = whole - this.left - this.right;
    this.high = between(this.wide * this.aspect, 150, 600 * this.aspect);
    this.top = 22 + 20 * this.keyRows(whole);
    this.root.setAttribute("viewBox", `0 0 ${whole} ${this.top + this.high + this.below}`);
    const place = { y: this.top, width: this.wide, height: this.high };
    for (const box of this.root.querySelectorAll(".box")) for (const [key, value] of Object.entries(place)) box.setAttribute(key, value);
    this.look();
  }

  /* Lays the names of the legend out in rows. */
  keyRows(whole) {
    let x = 0, row = 0;
    const keys = this.root.querySelectorAll(".key");
    for (const key of keys) {
      const wide = +key.querySelector(".room").getAttribute("width") + 10;
      if (x > 0 && x + wide > whole) { x = 0; row += 1; }
      key.setAttribute("transform", `translate(${x} ${9 + 20 * row})`);
      x += wide;
    }
    return keys.length ? row + 1 : 0;
  }

  look() {
    const { x, y, w, h } = this.view;
    this.window.setAttribute("viewBox", `${x * UNITS} ${y * UNITS} ${w * UNITS} ${h * UNITS}`);
    for (const { g, u, v, moves, words } of this.pins) {
      const a = moves.includes("mx") ? (u - x) / w : u, b = moves.includes("my") ? (v - y) / h : v;
      g.setAttribute("transform", `translate(${this.left + a * this.wide} ${this.top + b * this.high})`);
      g.setAttribute("visibility", a < -1e-6 || a > 1.000001 || b < -1e-6 || b > 1.000001 ? "hidden" : "visible");
      /* Ticks stay where they are and say what now stands there. */
      if (moves === "tx" || moves === "ty") g.querySelector("text").textContent = this.zoomed ? format(moves === "tx" ? this.value("x", x + u * w) : this.value("y", y + v * h)) : words;
    }
    this.place.dataset.zoomed = this.zoomed ? "yes" : "no";
  }

  /* The number at a share of the window, from the left or from the top. */
  value(name, share) {
    const { low, high, log } = this.data[name], at = name === "x" ? share : 1 - share;
    const cells = { x: this.columns, y: this.rows }[name];
    if (cells) return cells[between(Math.floor(at * cells.length), 0, cells.length - 1)];
    return log ? 10 ** (Math.log10(low) + at * (Math.log10(high) - Math.log10(low))) : low + at * (high - low);
  }
  pixel(x) {
    const { low, high, log } = this.data.x, f = log ? Math.log10 : Number;
    return this.left + (((f(x) - f(low)) / (f(high) - f(low)) - this.view.x) / this.view.w) * this.wide;
  }

  /* Zooms by a factor around a point given in shares of what is seen; never beyond the whole. */
  zoom(factor, u = 0.5, v = 0.5) {
    const { x, y, w, h } = this.view;
    this.show(x + u * w * (1 - 1 / factor), y + v * h * (1 - 1 / factor), w / factor, h / factor);
  }
  show(x, y, w, h) {
    w = between(w, 1e-3, 1); h = between(h, 1e-3, 1);
    this.view = { x: between(x, 0, 1 - w), y: between(y, 0, 1 - h), w, h };
    this.look();
  }
}

/* What is under the pointer, for each kind of figure: [title, lines of (colour, name, value)], or nothing. */
const finds = {
  lines(plot, u, v, px) {
    const x = plot.value("x", u), near = plot.series.filter((_, i) => !plot.hidden.has(i)).map((s) => [s, s.mark === "steps" ? s.x.findLastIndex((a) => a <= x) : nearest(s.x, x)]).filter(([, i]) => i >= 0);
    if (!near.length) return null;
    const gaps = near.map(([s, i]) => Math.abs(plot.pixel(s.x[i]) - px)), [first, index] = near[gaps.indexOf(Math.min(...gaps))], at = first.x[index];
    const close = (a) => Math.abs(plot.pixel(a) - plot.pixel(at)) < 12, line = (s, i) => [`var(--c${s.colour % 8})`, s.labels.length ? `${s.name}, ${s.labels[i]}` : s.name, format(s.y[i])];
    /* Of points with names all that stand here are told, of a curve the nearest. */
    const lines = near.flatMap(([s, i]) => (s.labels.length ? [...s.x.keys()].filter((k) => close(s.x[k])) : s.mark === "steps" || close(s.x[i]) ? [i] : []).map((k) => line(s, k)));
    return { title: `${plot.data.x.label} ${format(at)}`, lines, cursor: plot.pixel(at) };
  },
  bars(plot, u) {
    const { categories, names } = plot.data, g = between(Math.floor(u * categories.length), 0, categories.length - 1);
    const lines = names.map((name, i) => [`var(--c${i % 8})`, name, format(plot.values[i * categories.length + g])]).filter((_, i) => !plot.hidden.has(i));
    return { title: categories[g], lines };
  },
  heat(plot, u, v) {
    const n = plot.columns.length, m = plot.rows.length, c = between(Math.floor(u * n), 0, n - 1), r = m - 1 - between(Math.floor(v * m), 0, m - 1);
    const value = plot.values[((plot.panel * plot.frames.length + plot.frame) * m + r) * n + c];
    return { title: `${plot.data.value} ${format(value)}`, lines: [[null, plot.data.x.label, format(plot.columns[c], 3)], [null, plot.data.y.label, format(plot.rows[r], 3)]] };
  },
  paths(plot, u, v) {
    let best = -1, gap = 24;
    plot.routes.forEach((route, i) => {
      const [a, b] = route[plot.frame], d = Math.hypot(((a / UNITS - u) / plot.view.w) * plot.wide, ((b / UNITS - v) / plot.view.h) * plot.high);
      if (d < gap) { gap = d; best = i; }
    });
    return best < 0 ? null : { title: `${plot.data.hue} ${format(plot.tokens[best], 3)}`, lines: [[null, plot.data.slider, format(plot.depths[plot.frame], 3)]] };
  },
};

function tooltip(plot) {
  const { place, root } = plot, tip = node("div", { class: "tip", role: "status" }, place), cursor = node("svg:line", { class: "cursor", visibility: "hidden" }, root);
  const hide = () => { tip.style.visibility = "hidden"; cursor.setAttribute("visibility", "hidden"); };
  const show = (px, py, { title, lines, cursor: x }) => {
    tip.replaceChildren();
    if (title) node("b", {}, tip, title);
    for (const [paint, name, value] of lines) {
      const line = node("div", {}, tip);
      if (paint) node("i", {}, line).style.background = paint;
      line.append(`${name}${name ? "  " : ""}${value}`);
    }
    const at = x ?? px, wide = tip.offsetWidth, room = place.clientWidth;
    tip.style.left = `${between(at + 14 + wide > room ? at - wide - 14 : at + 14, 0, Math.max(room - wide, 0))}px`;
    tip.style.top = `${Math.max(0, py - tip.offsetHeight - 8)}px`;
    tip.style.visibility = "visible";
    if (x !== undefined) for (const [key, value] of Object.entries({ x1: x, x2: x, y1: plot.top, y2: plot.top + plot.high, visibility: "visible" })) cursor.setAttribute(key, value);
  };
  return { show, hide };
}

/* Pointers: the numbers under them; a mouse that drags chooses what is seen, a finger moves it once zoomed. */
function answer(plot) {
  const { root, place } = plot, tip = tooltip(plot), chosen = node("svg:rect", { class: "chosen", visibility: "hidden" }, root);
  let from = null;
  const at = (event) => {
    const seen = root.getBoundingClientRect(), ratio = root.viewBox.baseVal.width / seen.width;
    const px = (event.clientX - seen.left) * ratio, py = (event.clientY - seen.top) * ratio;
    return { px, py, u: (px - plot.left) / plot.wide, v: (py - plot.top) / plot.high };
  };
  const inside = ({ u, v }) => u >= 0 && u <= 1 && v >= 0 && v <= 1;
  const end = () => { from = null; chosen.setAttribute("visibility", "hidden"); };
  root.addEventListener("pointerdown", (event) => {
    const here = at(event);
    if (event.button === 0 && inside(here)) from = { ...here, view: plot.view, touch: event.pointerType === "touch" };
  });
  root.addEventListener("pointermove", (event) => {
    const here = at(event), moved = from && Math.hypot(here.px - from.px, here.py - from.py) > 6;
    if (moved && from.touch && plot.zoomed) return plot.show(from.view.x - (here.u - from.u) * from.view.w, from.view.y - (here.v - from.v) * from.view.h, from.view.w, from.view.h);
    if (moved && !from.touch) {
      tip.hide();
      root.setPointerCapture(event.pointerId);
      const px = between(here.px, plot.left, plot.left + plot.wide), py = between(here.py, plot.top, plot.top + plot.high);
      const box = { x: Math.min(px, from.px), y: Math.min(py, from.py), width: Math.abs(px - from.px), height: Math.abs(py - from.py), visibility: "visible" };
      for (const [key, value] of Object.entries(box)) chosen.setAttribute(key, value);
      return;
    }
    const { x, y, w, h } = plot.view, found = inside(here) ? finds[plot.data.kind](plot, x + here.u * w, y + here.v * h, here.px) : null;
    if (found) tip.show(here.px, here.py, found); else tip.hide();
  });
  root.addEventListener("pointerup", (event) => {
    const here = at(event), { x, y, w, h } = plot.view;
    if (from && !from.touch && Math.hypot(here.px - from.px, here.py - from.py) > 6) {
      /* A drag that keeps to one direction leaves the other as it is. */
      const across = Math.abs(here.px - from.px) > 12, along = Math.abs(here.py - from.py) > 12;
      const [a, b] = [from.u, between(here.u, 0, 1)].sort((p, q) => p - q), [c, d] = [from.v, between(here.v, 0, 1)].sort((p, q) => p - q);
      plot.show(across ? x + a * w : x, along ? y + c * h : y, across ? (b - a) * w : w, along ? (d - c) * h : h);
    }
    end();
  });
  for (const name of ["pointercancel", "pointerleave"]) root.addEventListener(name, () => { if (name === "pointercancel") end(); tip.hide(); });
  root.addEventListener("dblclick", () => plot.show(0, 0, 1, 1));
  /* The wheel alone scrolls the page; with Ctrl, which is also what a pinch on a touchpad sends, it zooms. */
  root.addEventListener("wheel", (event) => {
    const here = at(event);
    if (!(event.ctrlKey || event.metaKey) || !inside(here)) return;
    event.preventDefault();
    plot.zoom(Math.exp(-between(event.deltaY, -60, 60) / 120), here.u, here.v);
  }, { passive: false });
}

function legend(plot) {
  for (const key of plot.root.querySelectorAll(".key")) {
    const index = +key.dataset.series;
    for (const [name, value] of Object.entries({ role: "button", tabindex: 0, "aria-pressed": "true" })) key.setAttribute(name, value);
    const toggle = () => {
      if (!plot.hidden.delete(index) && plot.hidden.size < plot.root.querySelectorAll(".key").length - 1) plot.hidden.add(index);
      key.setAttribute("aria-pressed", String(!plot.hidden.has(index)));
      for (const part of plot.root.querySelectorAll(`.series[data-series="${index}"]`)) part.setAttribute("display", plot.hidden.has(index) ? "none" : "inline");
    };
    key.addEventListener("click", toggle);
    key.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); } });
  }
}

/* The picture as a file of its own: what is seen, in the light colours, which the style has as its second choice. */
function picture(plot) {
  const copy = plot.root.cloneNode(true), { width, height } = plot.root.viewBox.baseVal;
  copy.querySelectorAll(".cursor, .chosen").forEach((extra) => extra.remove());
  for (const [key, value] of Object.entries({ width, height })) copy.setAttribute(key, value);
  copy.prepend(node("svg:rect", { width: "100%", height: "100%", fill: "#fff" }));
  copy.prepend(node("svg:style", {}, null, document.querySelector("style.figures").textContent.replace(/var\(--[\w-]+, ([^)]+)\)/g, "$1")));
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

function save(plot, kind) {
  const { text, width, height } = picture(plot), name = plot.data.title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "figure";
  const give = (blob) => {
    const link = node("a", { download: `${name}.${kind}`, href: URL.createObjectURL(blob) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  if (kind === "svg") return give(new Blob([text], { type: "image/svg+xml" }));
  const image = new Image(), canvas = node("canvas", { width: 2 * width, height: 2 * height });
  image.addEventListener("load", () => { canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height); canvas.toBlob(give, "image/png"); });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

function tools(plot) {
  const row = node("div", { class: "tools" }, null);
  plot.place.after(row);
  const add = (text, label, act) => node("button", { type: "button", title: label, "aria-label": label }, row, text).addEventListener("click", act);
  add("+", "zoom in", () => plot.zoom(1.6));
  add("−", "zoom out", () => plot.zoom(1 / 1.6));
  add("whole", "show the whole figure", () => plot.show(0, 0, 1, 1));
  add("SVG", "save as SVG", () => save(plot, "svg"));
  add("PNG", "save as PNG", () => save(plot, "png"));
}

/* A slider over numbered frames with a button that plays them. */
function slider(holder, label, frames, start, changed) {
  const named = node("label", {}, holder);
  node("span", {}, named, label);
  const input = node("input", { type: "range", min: 0, max: frames.length - 1, step: 1, value: start, "aria-label": label }, named);
  const said = node("output", {}, named, format(frames[start], 3));
  const move = (index) => { input.value = index; said.textContent = format(frames[index], 3); changed(index); };
  input.addEventListener("input", () => move(+input.value));
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

function controls(plot) {
  const row = node("div", { class: "controls" });
  plot.place.before(row);
  return row;
}

/* What is peculiar to a kind: its numbers, and its controls. */
const begins = {
  lines(plot) { plot.series = plot.data.series.map((s) => ({ ...s, x: numbers(s.x), y: numbers(s.y) })); },
  bars(plot) { plot.values = numbers(plot.data.values); },
  heat(plot) {
    for (const name of ["columns", "rows", "frames", "values"]) plot[name] = numbers(plot.data[name]);
    const { panels, ranges, slider: label } = plot.data, palette = bytes(plot.data.palette), n = plot.columns.length, m = plot.rows.length;
    const image = plot.window.querySelector("image"), canvas = node("canvas", { width: n, height: m }), context = canvas.getContext("2d");
    Object.assign(plot, { panel: 0, frame: 0 });
    const fill = () => {
      const pixels = context.createImageData(n, m), [low, high] = ranges[plot.panel], from = (plot.panel * plot.frames.length + plot.frame) * n * m;
      for (let r = 0; r < m; r++) for (let c = 0; c < n; c++) {
        const value = plot.values[from + r * n + c];
        if (value === null || !Number.isFinite(value)) continue;
        const at = 3 * Math.round(255 * between((value - low) / (high - low), 0, 1));
        pixels.data.set([palette[at], palette[at + 1], palette[at + 2], 255], ((m - 1 - r) * n + c) * 4);
      }
      context.putImageData(pixels, 0, 0);
      image.setAttribute("href", canvas.toDataURL());
      plot.root.querySelector(".low").textContent = format(low);
      plot.root.querySelector(".high").textContent = format(high);
    };
    if (panels.length < 2 && plot.frames.length < 2) return;
    const row = controls(plot);
    if (panels.length > 1) {
      const choice = node("select", { "aria-label": "panel" }, node("label", { class: "choice" }, row));
      panels.forEach((name, i) => node("option", { value: i }, choice, name));
      choice.addEventListener("change", () => { plot.panel = +choice.value; fill(); });
    }
    if (plot.frames.length > 1) slider(row, label, plot.frames, 0, (index) => { plot.frame = index; fill(); });
    fill();
  },
  paths(plot) {
    for (const name of ["tokens", "depths"]) plot[name] = numbers(plot.data[name]);
    const routes = [...plot.window.querySelectorAll(".route")], tokens = [...plot.window.querySelectorAll(".token")];
    plot.routes = routes.map((route) => route.getAttribute("d").slice(1).split("L").map((pair) => pair.split(" ").map(Number)));
    plot.frame = plot.depths.length - 1;
    if (plot.depths.length < 2) return;
    const trails = routes.map((route) => { const trail = route.cloneNode(); trail.setAttribute("class", "trail"); route.after(trail); return trail; });
    const move = (index) => {
      plot.frame = index;
      plot.routes.forEach((route, i) => {
        trails[i].setAttribute("d", `M${route.slice(0, index + 1).map((pair) => pair.join(" ")).join("L")}`);
        tokens[i].setAttribute("d", `M${route[index].join(" ")}h0`);
      });
    };
    slider(controls(plot), plot.data.slider, plot.depths, plot.frame, move);
  },
};

for (const source of document.querySelectorAll("script.figure")) {
  const plot = new Plot(source.closest("figure"));
  begins[plot.data.kind](plot);
  legend(plot);
  answer(plot);
  tools(plot);
}
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.getAttribute("href").slice(1), link]));
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) {
    for (const link of links.values()) link.classList.remove("here");
    links.get(entry.target.id)?.classList.add("here");
  }
}, { rootMargin: "-10% 0px -70% 0px" });
for (const section of document.querySelectorAll("section[id]")) watch.observe(section);
document.documentElement.dataset.drawn = "yes";
