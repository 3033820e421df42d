"use strict";
// The switch of the axis, legends, and colours that follow the page's scheme.
const mpidl = {
  axes: {},

  // The width of a sheet of paper within its margins.
  SHEET: 710,

  // A number with four digits and a decimal prefix; very small ones with an exponent.
  number(value) {
    if (value === null || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
    const prefixes = ["", "k", "M", "G", "T", "P"];
    let power = size < 1e4 ? 0 : Math.min(Math.floor(Math.log10(size) / 3), prefixes.length - 1);
    return String(Number((value / 1000 ** power).toPrecision(4))) + (power ? " " + prefixes[power] : "");
  },

  figures() {
    return Bokeh.documents.flatMap(each => each.roots());
  },

  // Show everything over another axis.
  over(name) {
    const axis = mpidl.axes[name];
    const figures = mpidl.figures();
    for (const figure of figures) {
      for (const {glyph} of figure.renderers) {
        if (glyph.type === "Quad") {
          glyph.setv({left: {field: "begin " + name}, right: {field: "end " + name}});
        } else {
          glyph.x = {field: name};
        }
      }
      for (const each of figure.below) each.axis_label = axis.label;
    }
    const [start, end] = axis.range;
    if (figures.length) figures[0].x_range.setv({start, end, reset_start: start, reset_end: end});
    for (const button of document.querySelectorAll("[data-axis]")) {
      button.setAttribute("aria-pressed", String(button.dataset.axis === name));
    }
  },

  // Draw losses and objectives, as far as they are positive, on an axis of that kind: "Log" or "Linear".
  scale(kind) {
    const made = name => new (Bokeh.Models.get(name))();
    for (const figure of mpidl.figures().filter(each => each.tags.includes("loss"))) {
      const drawn = figure.renderers.filter(each => each.glyph.type === "Line");
      const values = drawn.flatMap(each => [...each.data_source.data.y]);
      const fit = values.filter(value => Number.isFinite(value) && (kind === "Linear" || value > 0));
      if (!fit.length) continue;
      const low = fit.reduce((a, b) => Math.min(a, b)), high = fit.reduce((a, b) => Math.max(a, b));
      const margin = kind === "Linear" ? 0.05 * (high - low || 1) : 1.1;
      const [start, end] = kind === "Linear" ? [low - margin, high + margin] : [low / margin, high * margin];
      figure.y_range = new (Bokeh.Models.get("Range1d"))({start, end, reset_start: start, reset_end: end});
      figure.y_scale = made(kind + "Scale");
      figure.left[0].ticker = made(kind === "Log" ? "LogTicker" : "BasicTicker");
    }
    for (const button of document.querySelectorAll("[data-scale]")) {
      button.setAttribute("aria-pressed", String(button.dataset.scale === kind));
    }
  },

  // Give plots the colours of the page.
  paint() {
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue("--" + name).trim();
    for (const figure of mpidl.figures()) {
      for (const axis of [...figure.below, ...figure.left]) {
        axis.setv({major_label_text_color: colour("muted"), axis_label_text_color: colour("muted")});
      }
      for (const grid of figure.center) if ("grid_line_color" in grid) grid.grid_line_color = colour("grid");
      for (const {glyph, tags} of figure.renderers) {
        const found = colour(tags[0]);
        if ("line_color" in glyph && glyph.type !== "Quad" && glyph.type !== "Scatter") glyph.line_color = found;
        if ("fill_color" in glyph) glyph.fill_color = found;
        if (glyph.type === "Scatter" && tags[2] >= 0) glyph.line_color = found;
      }
    }
  },

  // Show or hide what a button of a legend names: a run on all plots, or a kind of curve on its own.
  toggle(button) {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const figure of mpidl.figures()) {
      const card = document.getElementById("plot-" + figure.name);
      const hidden = button => button.getAttribute("aria-pressed") !== "true";
      const runs = [...document.querySelectorAll("[data-run]")].filter(hidden).map(each => Number(each.dataset.run));
      const styles = [...card.querySelectorAll("[data-style]")].filter(hidden).map(each => Number(each.dataset.style));
      for (const renderer of figure.renderers) {
        const [, run, style] = renderer.tags;
        if (style >= 0) renderer.visible = !runs.includes(run) && !styles.includes(style);
      }
    }
  },

  async begin() {
    const read = id => JSON.parse(document.getElementById(id).textContent);
    mpidl.axes = read("axes");
    const content = read("document");
    const places = content.roots.map(each => [each.id, "canvas-" + each.attributes.name]);
    const item = {docid: "page", roots: Object.fromEntries(places), root_ids: places.map(([id]) => id)};
    await Bokeh.embed.embed_items({page: content}, [item]);
    for (const button of document.querySelectorAll("[data-axis]")) {
      button.addEventListener("click", () => mpidl.over(button.dataset.axis));
    }
    for (const button of document.querySelectorAll("[data-scale]")) {
      button.addEventListener("click", () => mpidl.scale(button.dataset.scale));
    }
    for (const button of document.querySelectorAll("[data-run], [data-style]")) {
      button.addEventListener("click", () => mpidl.toggle(button));
    }
    mpidl.paint();
    for (const query of ["(prefers-color-scheme: dark)", "print"]) {
      matchMedia(query).addEventListener("change", mpidl.paint);
    }
    // On paper everything lies as on the screen, as large as the sheet: plots can't be drawn anew in time.
    const {style} = document.body;
    const print = (width, zoom) => Object.assign(style, {width, zoom});
    const wide = () => document.documentElement.clientWidth;
    addEventListener("beforeprint", () => print(wide() + "px", mpidl.SHEET / wide()));
    addEventListener("afterprint", () => print("", ""));
    document.body.dataset.drawn = "true";
    performance.mark("drawn");
  },
};

mpidl.begin();
