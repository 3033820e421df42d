// What tests ask of an open page.
const within = (node, selector) => [
  ...node.querySelectorAll(selector),
  ...[...node.querySelectorAll("*")].filter(each => each.shadowRoot).flatMap(each => within(each.shadowRoot, selector)),
];

// The number of pixels with a colour on each plot: curves and marks have one, axes and grids are grey.
window.coloured = () => [...document.querySelectorAll(".card")].map(card => within(card, "canvas").reduce((sum, canvas) => {
  if (!canvas.width || !canvas.height) return sum;
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let place = 0; place < data.length; place += 4) {
    const [red, green, blue, alpha] = data.subarray(place, place + 4);
    found += alpha > 20 && Math.max(red, green, blue) - Math.min(red, green, blue) > 40;
  }
  return sum + found;
}, 0));

window.tooltips = () => within(document, ".bk-Tooltip").filter(each => each.offsetParent !== null || each.isConnected)
  .map(each => (each.shadowRoot || each).textContent).join(" ");

window.ranges = () => mpidl.figures().map(each => [each.x_range.start, each.x_range.end]);

// The colour of the first curve, and of the labels of its axis.
window.colours = () => {
  const [figure] = mpidl.figures();
  const line = figure.renderers.find(each => each.glyph.type === "Line");
  return [line.glyph.line_color.value, figure.below[0].major_label_text_color];
};
