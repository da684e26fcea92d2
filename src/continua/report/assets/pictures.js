/* Heat maps and paths: pictures that a slider moves. */
function drawHeat(spec, holder) {
  const values = decoded(spec.values), columns = decoded(spec.columns), rows = decoded(spec.rows), frames = decoded(spec.frames);
  const size = rows.length * columns.length, stops = spec.diverging ? STOPS.around : STOPS.forward;
  const state = { panel: 0, frame: 0 };
  const controls = node("div", { class: "controls" }, holder);
  if (spec.panels.length > 1) {
    const choice = node("select", { "aria-label": "panel" }, node("label", { class: "choice" }, controls));
    spec.panels.forEach((name, i) => node("option", { value: i }, choice, name));
    choice.addEventListener("change", () => { state.panel = +choice.value; render(); });
  }
  if (frames.length > 1) slider(controls, spec.slider, frames, 0, (index) => { state.frame = index; fill(); });
  const place = node("div", { class: "plot heat" }, holder), foot = node("div", {}, holder);
  let canvas = null, range = [0, 1];
  const start = (frame) => (state.panel * frames.length + frame) * size;

  function fill() {
    const context = canvas.getContext("2d"), image = context.createImageData(columns.length, rows.length), from = start(state.frame);
    for (let r = 0; r < rows.length; r++) for (let c = 0; c < columns.length; c++) {
      const v = values[from + r * columns.length + c], target = ((rows.length - 1 - r) * columns.length + c) * 4;
      if (v === null || !Number.isFinite(v)) continue;
      const rgb = paint((v - range[0]) / (range[1] - range[0]), stops);
      image.data.set([rgb[0], rgb[1], rgb[2], 255], target);
    }
    context.putImageData(image, 0, 0);
    canvas.dataset.frame = String(state.frame);
  }

  function render() {
    place.replaceChildren();
    foot.replaceChildren();
    const all = values.slice(start(0), start(0) + frames.length * size);
    range = extent([all], false);
    if (spec.diverging) { const far = Math.max(Math.abs(range[0]), Math.abs(range[1])); range = [-far, far]; } else if (range[0] >= 0 && range[0] < 0.2 * range[1]) range = [0, range[1]];
    const width = Math.max(place.clientWidth, 240), left = 58, right = 10, top = 24;
    const shape = Math.min(Math.max(rows.length / columns.length, 0.35), 1), wide = Math.min(width - left - right, 520), high = Math.round(wide * shape);
    const root = svg("svg", { viewBox: `0 0 ${width} ${top + high + 42}`, role: "img", "aria-label": spec.title }, place);
    canvas = node("canvas", { width: columns.length, height: rows.length }, place);
    const ratio = place.clientWidth / width;
    canvas.style.cssText = `left:${left * ratio}px;top:${top * ratio}px;width:${wide * ratio}px;height:${high * ratio}px`;
    marks(columns, wide / 70).filter((i) => Number.isFinite(columns[i])).forEach((i) => svg("text", { x: left + ((i + 0.5) * wide) / columns.length, y: top + high + 17, "text-anchor": "middle" }, root, shown(columns[i], 3)));
    marks(rows, high / 44).forEach((i) => svg("text", { x: left - 7, y: top + high - ((i + 0.5) * high) / rows.length + 4, "text-anchor": "end" }, root, shown(rows[i], 3)));
    svg("text", { class: "label", x: left + wide, y: top + high + 36, "text-anchor": "end" }, root, spec.x.label);
    svg("text", { class: "label", x: 0, y: 12 }, root, spec.y.label);
    colourKey(foot, range[0], range[1], stops, spec.value);
    const ring = svg("rect", { fill: "none", stroke: "var(--accent)", "stroke-width": 1.5, visibility: "hidden", width: wide / columns.length, height: high / rows.length }, null), tip = tooltip(place);
    const over = svg("svg", { viewBox: `0 0 ${width} ${top + high + 42}`, "aria-hidden": "true" }, place);
    over.style.cssText = "position:absolute;left:0;top:0;z-index:2";
    svg("rect", { width, height: top + high + 42, fill: "transparent" }, over);
    over.appendChild(ring);
    hover(over, width, (px, py) => {
      const c = Math.floor(((px - left) / wide) * columns.length), r = rows.length - 1 - Math.floor(((py - top) / high) * rows.length);
      if (c < 0 || c >= columns.length || r < 0 || r >= rows.length) { ring.setAttribute("visibility", "hidden"); return tip.hide(); }
      ring.setAttribute("x", left + (c * wide) / columns.length);
      ring.setAttribute("y", top + high - ((r + 1) * high) / rows.length);
      ring.setAttribute("visibility", "visible");
      tip.show(px, py, `${spec.value} ${shown(values[start(state.frame) + r * columns.length + c])}`, [[null, spec.x.label, shown(columns[c], 3)], [null, spec.y.label, shown(rows[r], 3)]]);
    }, () => { ring.setAttribute("visibility", "hidden"); tip.hide(); });
    fill();
  }
  return { place, render };
}

/* About `count` evenly spread places of a list, the ends included. */
function marks(list, count) {
  const n = Math.max(2, Math.min(Math.floor(count), list.length, 7));
  if (list.length < 2) return [0];
  return [...new Set(Array.from({ length: n }, (_, k) => Math.round((k * (list.length - 1)) / (n - 1))))];
}

function drawPaths(spec, holder) {
  const points = decoded(spec.points), tokens = decoded(spec.tokens), depths = decoded(spec.depths), count = tokens.length;
  const [early, late] = extent([tokens], false), stops = STOPS.forward.slice(1, 5);
  const paints = Array.from(tokens, (t) => css(paint(count > 1 ? (t - early) / (late - early) : 0.5, stops)));
  const state = { depth: depths.length - 1 };
  const controls = node("div", { class: "controls" }, holder);
  if (depths.length > 1) slider(controls, spec.slider, depths, state.depth, (index) => { state.depth = index; move(); });
  const place = node("div", { class: "plot paths" }, holder), foot = node("div", {}, holder);
  const at = (z, i) => [points[(z * count + i) * 2], points[(z * count + i) * 2 + 1]];
  let frame = null, trails = [], dots = [];

  function route(i, end) {
    let path = "";
    for (let z = 0; z <= end; z++) { const [a, b] = at(z, i); path += `${z ? "L" : "M"}${frame.x(a).toFixed(1)} ${frame.y(b).toFixed(1)}`; }
    return path;
  }

  function move() {
    for (let i = 0; i < count; i++) {
      const [a, b] = at(state.depth, i);
      trails[i].setAttribute("d", route(i, state.depth));
      dots[i].setAttribute("cx", frame.x(a));
      dots[i].setAttribute("cy", frame.y(b));
    }
    place.dataset.frame = String(state.depth);
  }

  function render() {
    place.replaceChildren();
    foot.replaceChildren();
    const even = (k) => extent([Array.from(points).filter((_, i) => i % 2 === k)], false);
    const wider = ([low, high]) => [low - (high - low) * 0.04, high + (high - low) * 0.04];
    frame = axes(place, spec, wider(even(0)), wider(even(1)), { label: spec.title, height: Math.round(Math.min(Math.max(place.clientWidth * 0.72, 260), 460)) });
    for (let i = 0; i < count; i++) svg("path", { d: route(i, depths.length - 1), fill: "none", stroke: paints[i], "stroke-width": 0.8, opacity: 0.35 }, frame.root);
    trails = paints.map((p) => svg("path", { fill: "none", stroke: p, "stroke-width": 1.7, "stroke-linejoin": "round" }, frame.root));
    for (let i = 0; i < count; i++) { const [a, b] = at(0, i); svg("circle", { cx: frame.x(a), cy: frame.y(b), r: 3, fill: "var(--card)", stroke: paints[i], "stroke-width": 1.2 }, frame.root); }
    dots = paints.map((p) => svg("circle", { class: "token", r: 4.2, fill: p, stroke: "var(--card)", "stroke-width": 1 }, frame.root));
    move();
    colourKey(foot, early, late, stops, spec.hue);
    const tip = tooltip(place);
    hover(frame.root, frame.width, (px, py) => {
      let best = -1, gap = 24;
      for (let i = 0; i < count; i++) { const [a, b] = at(state.depth, i), d = Math.hypot(frame.x(a) - px, frame.y(b) - py); if (d < gap) { gap = d; best = i; } }
      if (best < 0) return tip.hide();
      tip.show(px, py, `${spec.hue} ${shown(tokens[best], 3)}`, [[paints[best], spec.slider, shown(depths[state.depth], 3)]]);
    }, () => tip.hide());
  }
  return { place, render };
}
