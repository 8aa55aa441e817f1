// The plot: what is seen of a model, which request is chosen, and the drawing of all parts on one time axis.

import { drawAxis, originText } from "./axis.js";
import { Counters, countersAt } from "./counters.js";
import { axisLeft } from "./gestures.js";
import { Lanes, readout } from "./lanes.js";
import { Legend } from "./legend.js";
import { segmentAt } from "./model.js";
import { panned, Scale, ticks, within, zoomed } from "./scale.js";
import { displacers } from "./summary.js";

export class Plot {
  #root;
  #list;
  #axis;
  #lanes;
  #counters;
  #legend;
  #origin = null; // unix seconds of 0 on the axis; stays while windows move on
  #model = null;
  #pipeline = null;
  #view = null; // [from, to] that the reader chose; null: the whole window
  #ahead = new Set();
  #drawing = false;
  chosen = null; // a lane of the model
  segment = null; // the one of it that was clicked, if any

  constructor(root) {
    this.#root = root;
    this.#list = root.querySelector("#lanes");
    this.#axis = root.querySelector("#axis");
    this.#lanes = new Lanes(this.#list, this.#list.querySelector("canvas"), () => this.draw());
    const ranges = Object.fromEntries(
      [...root.querySelectorAll("[data-strip]")].map((strip) => [strip.dataset.strip, strip.querySelector("span")]),
    );
    this.#counters = new Counters(root.querySelector("#counters canvas"), ranges);
    this.#legend = new Legend(root.querySelector("#legend"));
    new ResizeObserver(() => this.draw()).observe(root);
    new MutationObserver(() => this.draw()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    this.draw();
  }

  /** model: of model.js; pipeline: the one whose requests and samples are shown */
  show(model, pipeline) {
    const moved = this.#model ? model.end - this.#model.end : 0;
    const followed = this.#view && this.#model && this.#view[1] >= this.#model.end - 1e-6;
    if (this.#model?.alone !== model.alone) this.#view = null;
    else if (followed) this.#view = [this.#view[0] + moved, this.#view[1] + moved];
    this.#model = model;
    this.#pipeline = pipeline;
    this.#origin ??= Math.floor(model.start);
    if (Math.abs(model.start - this.#origin) > 36_000) this.#origin = Math.floor(model.start);
    const lane = this.lanes.find((each) => each.key === this.chosen?.key) ?? null;
    const segment = lane?.segments[this.chosen.segments.indexOf(this.segment)];
    this.choose(lane, segment?.state === this.segment?.state ? segment : null);
  }

  get lanes() {
    return this.#model?.lanes.filter((lane) => lane.pipeline === this.#pipeline) ?? [];
  }

  /** segment: the one whose displacers are marked; null: those of the whole request */
  choose(lane, segment = null) {
    this.chosen = lane;
    this.segment = segment;
    this.#ahead = new Set(segment ? segment.displacedBy : lane ? displacers(lane).map(({ id }) => id) : []);
    this.draw();
  }

  /** Brings a lane into sight, and its beginning if nothing of it is seen. */
  reveal(lane) {
    const [from, to] = this.#seen;
    if (lane.end < from || lane.start > to) this.#view = within([lane.start, lane.start + to - from], this.#limits);
    this.#lanes.lanes = this.#present;
    this.#lanes.reveal(lane);
    this.draw();
  }

  /** The lane so many below (above, if negative) the chosen one; from none, the first or last. */
  beside(steps) {
    const { lanes, chosen } = this;
    const from = chosen ? lanes.indexOf(chosen) : steps > 0 ? -1 : lanes.length;
    return lanes[Math.min(Math.max(from + steps, 0), lanes.length - 1)] ?? null;
  }

  /** Brings a lane's whole time into sight. */
  zoomTo(lane) {
    const margin = Math.max((lane.end - lane.start) * 0.05, 0.0005);
    this.#view = within([lane.start - margin, lane.end + margin], this.#limits);
    this.draw();
  }

  zoom(factor, x) {
    if (!this.#model) return;
    this.#view = zoomed(this.#seen, factor, this.#scale.time(x), this.#limits);
    this.draw();
  }

  pan(pixels) {
    if (!this.#model) return;
    this.#view = panned(this.#seen, pixels * this.#scale.secondsAPixel, this.#limits);
    this.draw();
  }

  scroll(pixels) {
    this.#lanes.scrollBy(pixels);
  }

  fit() {
    this.#view = null;
    this.draw();
  }

  /** {lane, segment} at a place of the lanes; both may be null. */
  hit(x, y) {
    const lane = this.#lanes.at(y);
    return { lane, segment: lane && x >= 0 ? segmentAt(lane, this.#scale.time(x)) : null };
  }

  /** Says what is at a place; x null: nothing. inLanes: the pointer is in them */
  point(x, y, inLanes) {
    const cross = this.#root.querySelector("#cross");
    const text = this.#root.querySelector("#readout");
    cross.hidden = !this.#model || x === null || x < 0 || x > this.#scale.width;
    text.textContent = "";
    if (cross.hidden) return;
    const at = this.#scale.time(x);
    const lane = inLanes ? this.#lanes.at(y) : null;
    const parts = [`${(at - this.#origin).toFixed(3)} s`];
    if (lane) parts.push(readout(lane, at));
    const counters = countersAt(this.#samples, at);
    if (counters) parts.push(counters);
    text.textContent = parts.join(" · ");
    cross.style.left = `${this.#list.offsetLeft + axisLeft(this.#list) + x}px`;
    cross.style.top = `${this.#list.offsetTop}px`;
    cross.style.height = `${this.#root.querySelector("#readout").offsetTop - this.#list.offsetTop}px`;
  }

  /** Once before the next frame, however often it is asked for. */
  draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      this.#legend.draw();
      if (this.#model) this.#draw();
    });
  }

  #draw() {
    const scale = this.#scale;
    const marks = ticks(scale, this.#origin);
    this.#lanes.lanes = this.#present;
    this.#axis.style.width = `${scale.width}px`;
    this.#root.querySelector("#origin").textContent = originText(this.#origin);
    drawAxis(this.#axis, marks);
    this.#lanes.draw(scale, marks, this.chosen, this.#ahead);
    this.#root.querySelector("#counters").hidden = this.#model.alone !== null;
    if (this.#model.alone === null) this.#counters.draw(scale, marks, this.#samples);
  }

  /** Lanes of which something is in the time that is seen: of a thousand, those that met. */
  get #present() {
    const [from, to] = this.#seen;
    return this.lanes.filter((lane) => (lane.end >= from && lane.start <= to) || lane === this.chosen);
  }

  get #samples() {
    return this.#model.samples.filter((sample) => sample.pipeline === this.#pipeline);
  }

  get #seen() {
    return this.#view ?? this.#whole;
  }

  /** The window, without what was before the first request in it. */
  get #whole() {
    const { start, end } = this.#model;
    const first = this.lanes[0]?.start ?? start;
    return [first < start || first >= end ? start : Math.max(start, first - (end - first) * 0.02), end];
  }

  get #scale() {
    return new Scale(...this.#seen, Math.max(1, this.#list.clientWidth - axisLeft(this.#list)));
  }

  /** Requests of a window may have come before it. */
  get #limits() {
    const { start, end, lanes } = this.#model;
    return [Math.min(start, ...lanes.slice(0, 1).map((lane) => lane.start)), Math.max(end, start + 0.001)];
  }
}
