/* Draws every figure, again when its width changes, and marks where the reader is. */
(() => {
  const draws = { lines: drawLines, steps: drawSteps, bars: drawBars, heat: drawHeat, paths: drawPaths };
  for (const source of document.querySelectorAll("script.figure")) {
    const spec = JSON.parse(source.textContent), holder = source.parentElement.querySelector(".drawing");
    const { place, render } = draws[spec.kind](spec, holder);
    let width = -1;
    const fit = () => { if (place.clientWidth > 0 && place.clientWidth !== width) { width = place.clientWidth; render(); } };
    new ResizeObserver(fit).observe(place);
    fit();
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
})();
