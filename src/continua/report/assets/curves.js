/* Lines, stairs and bars. */
function nearest(list, x) {
  let best = -1, gap = Infinity;
  for (let i = 0; i < list.length; i++) {
    if (list[i] === null) continue;
    const d = Math.abs(list[i] - x);
    if (d < gap) { gap = d; best = i; }
  }
  return best;
}

function trace(series, frame) {
  let path = "", drawing = false;
  for (let i = 0; i < series.x.length; i++) {
    const px = series.x[i] === null ? NaN : frame.x(series.x[i]), py = series.y[i] === null ? NaN : frame.y(series.y[i]);
    if (!Number.isFinite(px) || !Number.isFinite(py)) { drawing = false; continue; }
    path += `${drawing ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`;
    drawing = true;
  }
  return path;
}

function band(series, frame) {
  const up = [], down = [];
  for (let i = 0; i < series.low.length; i++) {
    if (series.low[i] === null || series.high[i] === null || series.x[i] === null) continue;
    const px = frame.x(series.x[i]), low = frame.y(Math.max(series.low[i], frame.y.domain[0])), high = frame.y(Math.min(series.high[i], frame.y.domain[1]));
    if (!Number.isFinite(px + low + high)) continue;
    up.push(`${px.toFixed(1)} ${high.toFixed(1)}`);
    down.unshift(`${px.toFixed(1)} ${low.toFixed(1)}`);
  }
  return up.length ? `M${up.concat(down).join("L")}Z` : "";
}

function padded([low, high], log) {
  if (log) {
    const [a, b] = [Math.log10(low), Math.log10(high)], r = (b - a) * 0.05;
    return [10 ** Math.max(a - r, -307), 10 ** Math.min(b + r, 308)];
  }
  const gap = (high - low) * 0.05;
  return [low >= 0 && low < 0.55 * high ? 0 : low - gap, high + gap];
}

/* The values themselves, where they are so few that each deserves a tick. */
function few(lists) {
  const values = [...new Set(lists.flatMap((list) => [...list]))].filter((x) => x > 0).sort((a, b) => a - b);
  return values.length <= 8 ? values : null;
}

function drawLines(spec, holder) {
  const all = spec.series.map((s, i) => ({ name: s.name, mark: s.mark, x: decoded(s.x), y: decoded(s.y), low: decoded(s.low), high: decoded(s.high), paint: colour(s.colour === null ? i : s.colour) }));
  const hidden = new Set();
  legend(holder, all, hidden, () => render());
  const place = node("div", { class: "plot" }, holder);
  function render() {
    place.replaceChildren();
    const seen = all.filter((_, i) => !hidden.has(i));
    const reach = spec.notes.filter((n) => n.along === "y").map((n) => [n.at]);
    const frame = axes(place, spec, extent(seen.map((s) => s.x), spec.x.log), padded(extent([...seen.flatMap((s) => [s.y, s.low, s.high]), ...reach], spec.y.log), spec.y.log), { label: spec.title, xAt: spec.x.log ? few(seen.map((s) => s.x)) : null });
    for (const s of seen) if (s.low.length) svg("path", { d: band(s, frame), fill: s.paint, opacity: 0.16 }, frame.root);
    for (const s of seen) {
      if (s.mark !== "points") svg("path", { d: trace(s, frame), fill: "none", stroke: s.paint, "stroke-width": s.mark === "faint" ? 1.1 : 2, opacity: s.mark === "faint" ? 0.6 : 1, "stroke-linejoin": "round", "stroke-linecap": "round", ...(s.mark === "dashed" ? { "stroke-dasharray": "6 4" } : {}) }, frame.root);
      if (s.mark === "points" || s.mark === "both") s.x.forEach((x, i) => {
        const px = frame.x(x), py = s.y[i] === null ? NaN : frame.y(s.y[i]);
        if (Number.isFinite(px + py)) svg("circle", { cx: px, cy: py, r: 3.6, fill: s.paint, stroke: "var(--card)", "stroke-width": 1.2 }, frame.root);
      });
    }
    drawNotes(frame, spec.notes);
    const cursor = svg("line", { class: "cursor", y1: frame.box.top, y2: frame.box.bottom, visibility: "hidden" }, frame.root), tip = tooltip(place);
    hover(frame.root, frame.width, (px, py) => {
      const bounded = Math.min(Math.max(px, frame.box.left), frame.box.right), x = frame.x.back(bounded);
      const near = seen.map((s) => [s, nearest(s.x, x)]).filter(([, i]) => i >= 0);
      if (!near.length) return;
      const gaps = near.map(([s, i]) => Math.abs(frame.x(s.x[i]) - bounded)), at = near[gaps.indexOf(Math.min(...gaps))], anchor = at[0].x[at[1]];
      const lines = near.filter(([s, i]) => Math.abs(frame.x(s.x[i]) - frame.x(anchor)) < 12).map(([s, i]) => [s.paint, s.name, shown(s.y[i])]);
      cursor.setAttribute("x1", frame.x(anchor)); cursor.setAttribute("x2", frame.x(anchor)); cursor.setAttribute("visibility", "visible");
      tip.show(frame.x(anchor), py, `${spec.x.label} ${shown(anchor)}`, lines);
    }, () => { cursor.setAttribute("visibility", "hidden"); tip.hide(); });
  }
  return { place, render };
}

function drawSteps(spec, holder) {
  const all = spec.stairs.map((s, i) => ({ name: s.name, edges: decoded(s.edges), heights: decoded(s.heights), paint: colour(s.colour === null ? i : s.colour) }));
  const hidden = new Set();
  legend(holder, all, hidden, () => render());
  const place = node("div", { class: "plot" }, holder);
  function render() {
    place.replaceChildren();
    const seen = all.filter((_, i) => !hidden.has(i)), base = spec.y.log ? [] : [[0]];
    let high = extent([...seen.map((s) => s.heights), ...base], spec.y.log);
    if (!spec.y.log && high[0] >= 0) high = [0, high[1] * 1.12]; else high = padded(high, spec.y.log);
    const frame = axes(place, spec, extent(seen.map((s) => s.edges), spec.x.log), high, { label: spec.title, height: 240 });
    for (const s of seen) s.heights.forEach((h, i) => {
      if (h === null) return;
      const left = frame.x(s.edges[i]), right = frame.x(s.edges[i + 1]), top = frame.y(h), wide = Math.max(right - left - 1.5, 0.5);
      svg("rect", { x: left + 0.75, width: wide, y: top, height: Math.max(frame.box.bottom - top, 0), fill: s.paint, opacity: 0.2 }, frame.root);
      svg("line", { x1: left + 0.75, x2: left + 0.75 + wide, y1: top, y2: top, stroke: s.paint, "stroke-width": 2.2 }, frame.root);
    });
    drawNotes(frame, spec.notes);
    const tip = tooltip(place);
    hover(frame.root, frame.width, (px, py) => {
      const x = frame.x.back(px), lines = [];
      for (const s of seen) for (let i = 0; i < s.heights.length; i++) if (s.edges[i] <= x && x < s.edges[i + 1]) lines.push([s.paint, `${s.name} ${shown(s.edges[i], 3)} to ${shown(s.edges[i + 1], 3)}`, shown(s.heights[i])]);
      if (lines.length) tip.show(px, py, "", lines); else tip.hide();
    }, () => tip.hide());
  }
  return { place, render };
}

/* A name in lines of at most so many letters; a longer word is cut. */
function wrapped(name, letters) {
  const lines = [];
  for (const word of name.split(" ")) {
    const cut = word.length > letters ? `${word.slice(0, letters - 1)}…` : word;
    if (lines.length && lines[lines.length - 1].length + cut.length < letters) lines[lines.length - 1] += ` ${cut}`;
    else lines.push(cut);
  }
  return lines;
}

function drawBars(spec, holder) {
  const values = decoded(spec.values), groups = spec.categories.length, hidden = new Set();
  const entries = spec.names.map((name, i) => ({ name, mark: "bar", paint: colour(i) }));
  legend(holder, entries, hidden, () => render());
  const place = node("div", { class: "plot" }, holder);
  function render() {
    place.replaceChildren();
    const seen = entries.map((_, i) => i).filter((i) => !hidden.has(i));
    const used = seen.map((i) => Array.from(values).slice(i * groups, (i + 1) * groups));
    let domain = extent([...used, ...(spec.y.log ? [] : [[0]])], spec.y.log);
    domain = spec.y.log ? padded(domain, true) : [Math.min(domain[0], 0), domain[1] * 1.08];
    const letters = Math.max(4, Math.floor((Math.max(place.clientWidth, 240) - 60) / groups / 7));
    const words = spec.categories.map((name) => wrapped(name, letters)), most = Math.max(...words.map((lines) => lines.length));
    const frame = axes(place, { x: null, y: spec.y }, [0, groups], domain, { label: spec.title, xTicks: false, below: 14 + 15 * most }), tip = tooltip(place);
    const cell = (frame.box.right - frame.box.left) / groups, thick = Math.min((cell * 0.72) / seen.length, 46);
    spec.categories.forEach((_, g) => {
      const middle = frame.box.left + cell * (g + 0.5);
      words[g].forEach((line, k) => svg("text", { x: middle, y: frame.box.bottom + 17 + 15 * k, "text-anchor": "middle" }, frame.root, line));
      seen.forEach((i, k) => {
        const v = values[i * groups + g];
        if (v === null || !Number.isFinite(v)) return;
        const top = frame.y(v), floor = spec.y.log ? frame.box.bottom : frame.y(0);
        svg("rect", { x: middle + (k - seen.length / 2) * thick + 1, width: thick - 2, y: Math.min(top, floor), height: Math.max(Math.abs(floor - top), 1), rx: 2, fill: entries[i].paint }, frame.root);
      });
    });
    drawNotes(frame, spec.notes);
    hover(frame.root, frame.width, (px, py) => {
      const g = Math.floor((px - frame.box.left) / cell);
      if (g < 0 || g >= groups) return tip.hide();
      tip.show(px, py, spec.categories[g], seen.map((i) => [entries[i].paint, entries[i].name, shown(values[i * groups + g])]));
    }, () => tip.hide());
  }
  return { place, render };
}
