"use strict";
// Parts of a timeline: a row for each rank, a box for each span.
const timeline = {
  ROW: 22, LABEL: 150, AXIS: 22,

  draw(canvas, part) {
    const {ROW, LABEL, AXIS} = timeline;
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue("--" + name).trim();
    const scale = devicePixelRatio || 1;
    const width = canvas.parentElement.clientWidth, height = ROW * part.ranks.length + AXIS;
    Object.assign(canvas, {width: width * scale, height: height * scale});
    Object.assign(canvas.style, {width: width + "px", height: height + "px"});
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = "12px system-ui, sans-serif";
    const label = Math.min(LABEL, width / 3);
    const across = (width - label - 8) / part.milliseconds;
    part.across = {label, across};
    part.ranks.forEach((rank, row) => {
      context.save();
      context.beginPath();
      context.rect(0, row * ROW, label - 8, ROW);
      context.clip();
      context.fillStyle = colour("text");
      context.fillText(rank.label, 0, row * ROW + 15);
      context.restore();
      for (let place = 0; place < rank.spans.length; place += 3) {
        const [start, length, kind] = rank.spans.slice(place, place + 3);
        context.fillStyle = colour(part.kinds[kind][1]);
        context.fillRect(label + start * across, row * ROW + 2, Math.max(length * across, 0.7), ROW - 5);
      }
    });
    context.fillStyle = colour("muted");
    for (let step = 0; step <= 4; step += 1) {
      const at = part.milliseconds * step / 4;
      context.textAlign = step === 4 ? "right" : step ? "center" : "left";
      context.fillText((part.begin + at / 1000).toFixed(2) + " s", label + at * across, height - 5);
    }
  },

  // Say which span is under the mouse.
  point(event, part, output) {
    const {label, across} = part.across;
    const rank = part.ranks[Math.floor(event.offsetY / timeline.ROW)];
    const at = (event.offsetX - label) / across;
    output.textContent = "";
    if (!rank || at < 0) return;
    for (let place = 0; place < rank.spans.length; place += 3) {
      const [start, length, kind] = rank.spans.slice(place, place + 3);
      if (start <= at && at <= start + length) {
        const seconds = (part.begin + start / 1000).toFixed(4);
        output.textContent = `${rank.label}: ${part.kinds[kind][0]}, ${length.toFixed(2)} ms from ${seconds} s`;
      }
    }
  },

  begin() {
    const parts = JSON.parse(document.getElementById("timeline").textContent);
    const canvases = document.querySelectorAll("canvas[data-part]");
    const draw = () => canvases.forEach((canvas, place) => timeline.draw(canvas, parts[place]));
    canvases.forEach((canvas, place) => {
      const output = canvas.parentElement.querySelector("output");
      canvas.addEventListener("mousemove", event => timeline.point(event, parts[place], output));
    });
    draw();
    addEventListener("resize", draw);
    for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", draw);
  },
};

timeline.begin();
