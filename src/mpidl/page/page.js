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

  // The plots over the run; parts of a timeline have axes of their own.
  figures() {
    return Bokeh.documents[0].roots().filter(each => !each.tags.includes("timeline"));
  },

  // Show everything over another axis.
  over(name) {
    const [label, , [start, end]] = mpidl.axes[name];
    for (const figure of mpidl.figures()) {
      for (const {glyph} of figure.renderers) {
        if (glyph.type === "Quad") {
          glyph.setv({left: {field: "begin " + name}, right: {field: "end " + name}});
        } else {
          glyph.x = {field: name};
        }
      }
      for (const each of figure.below) each.axis_label = label;
    }
    mpidl.figures()[0].x_range.setv({start, end, reset_start: start, reset_end: end});
  },

  // Draw losses and objectives, as far as they are positive, on an axis of that kind: "Log" or "Linear".
  scale(kind) {
    const made = (name, values) => new (Bokeh.Models.get(name))(values);
    for (const figure of mpidl.figures().filter(each => each.tags.includes("loss"))) {
      const drawn = figure.renderers.filter(each => each.glyph.type === "Line");
      const values = drawn.flatMap(each => [...each.data_source.data.y]);
      const fit = values.filter(value => Number.isFinite(value) && (kind === "Linear" || value > 0));
      if (!fit.length) continue;
      const low = fit.reduce((a, b) => Math.min(a, b)), high = fit.reduce((a, b) => Math.max(a, b));
      const margin = kind === "Linear" ? 0.05 * (high - low || 1) : 1.1;
      const [start, end] = kind === "Linear" ? [low - margin, high + margin] : [low / margin, high * margin];
      figure.y_range = made("Range1d", {start, end, reset_start: start, reset_end: end});
      figure.y_scale = made(kind + "Scale");
      figure.left[0].ticker = made(kind === "Log" ? "LogTicker" : "BasicTicker");
    }
  },

  // Give plots the colours of the page.
  paint() {
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue("--" + name).trim();
    for (const figure of Bokeh.documents[0].roots()) {
      for (const axis of [...figure.below, ...figure.left]) {
        axis.setv({major_label_text_color: colour("muted"), axis_label_text_color: colour("muted")});
      }
      for (const grid of figure.center) if ("grid_line_color" in grid) grid.grid_line_color = colour("grid");
      for (const {glyph} of figure.renderers) {
        const [name] = glyph.tags;
        if ("line_color" in glyph && glyph.type !== "Quad") glyph.line_color = colour(name);
        if ("fill_color" in glyph) glyph.fill_color = colour(name);
      }
    }
  },

  // Show or hide what the buttons of legends name: a run on all plots, or a kind of curve on its own.
  show() {
    const hidden = (node, name) =>
      [...node.querySelectorAll(`[data-${name}][aria-pressed=false]`)].map(each => Number(each.dataset[name]));
    const runs = hidden(document, "run");
    for (const figure of mpidl.figures()) {
      const styles = hidden(document.getElementById("plot-" + figure.name), "style");
      for (const renderer of figure.renderers) {
        const [, run, style] = renderer.glyph.tags;
        if (style >= 0) renderer.visible = !runs.includes(run) && !styles.includes(style);
      }
    }
  },

  // A button of a switch is pressed instead of the others; one of a legend goes up and down.
  press(button) {
    const {axis, scale} = button.dataset, up = button.getAttribute("aria-pressed") === "false";
    for (const each of axis || scale ? button.parentElement.children : []) each.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", String(Boolean(axis || scale || up)));
    if (axis) mpidl.over(axis);
    else if (scale) mpidl.scale(scale);
    else mpidl.show();
  },

  // Bokeh calls this once all plots are drawn.
  begin() {
    mpidl.axes = JSON.parse(document.getElementById("axes").textContent);
    for (const button of document.querySelectorAll("button[aria-pressed]")) {
      button.addEventListener("click", () => mpidl.press(button));
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
