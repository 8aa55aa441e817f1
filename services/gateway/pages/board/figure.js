// A number now, and a small line of how it was.

import { create } from "./dom.js";

const POINTS = 120; // two a second: the last minute
const WIDTH = 120;
const HEIGHT = 24;
const SVG = "http://www.w3.org/2000/svg";

export class Figure {
  constructor(name, unit) {
    this.value = create("p", "value", "–");
    this.line = document.createElementNS(SVG, "polyline");
    const drawing = document.createElementNS(SVG, "svg");
    drawing.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    drawing.setAttribute("preserveAspectRatio", "none");
    drawing.setAttribute("aria-hidden", "true");
    drawing.append(this.line);
    this.root = create("section", "figure panel");
    this.root.append(create("h3", "", name), this.value, create("p", "quiet", unit), drawing);
    this.points = [];
  }

  /** text: what is written; value: what is drawn, null where it is not known */
  update(text, value) {
    this.value.textContent = text;
    this.points.push(value);
    if (this.points.length > POINTS) this.points.shift();
    const most = 1.2 * Math.max(...this.points.map((each) => each ?? 0)) || 1;
    const first = POINTS - this.points.length;
    const x = (i) => ((first + i) * WIDTH) / (POINTS - 1);
    const y = (value) => HEIGHT - 1 - (value / most) * (HEIGHT - 2);
    const known = this.points.map((each, i) => [each, i]).filter(([each]) => each != null);
    const points = known.map(([each, i]) => `${x(i).toFixed(1)},${y(each).toFixed(1)}`);
    this.line.setAttribute("points", points.join(" "));
  }
}
