// What the server did meanwhile, on the time axis of the lanes: blocks of both tiers, batch size, swap traffic.

import { sampleAt, stepsOf, within } from "./samples.js";
import { Surface } from "./surface.js";

const STRIP = 40; // pixels
const GAP = 10;

/**
 * lines: [colour in the palette, value of a sample]; the second of two points down
 * limit: of a sample; without one, a strip is as high as the highest that is seen
 * holds: the value stays until the next sample, else it is that of an iteration
 */
const STRIPS = [
  { id: "device", lines: [["device", (s) => s.device_used]], limit: (s) => s.device_total, holds: true },
  { id: "host", lines: [["host", (s) => s.host_used]], limit: (s) => s.host_total, holds: true },
  { id: "batch", lines: [["batch", (s) => s.batch]], limit: null, holds: false },
  {
    id: "swaps",
    lines: [["out", (s) => s.swap_out_blocks], ["in", (s) => s.swap_in_blocks]],
    limit: null,
    holds: false,
  },
];
const RANGES = {
  device: (most, total) => `max ${most} of ${total}`,
  host: (most, total) => `max ${most} of ${total}`,
  batch: (most) => `max ${most} jobs`,
  swaps: (most) => `▲out ▼in max ${most}`,
};

export class Counters {
  #surface;
  #ranges;

  /** ranges: the elements that say how high a strip is, by its id */
  constructor(canvas, ranges) {
    this.#surface = new Surface(canvas);
    this.#ranges = ranges;
  }

  get height() {
    return STRIPS.length * (STRIP + GAP);
  }

  draw(scale, marks, samples) {
    const palette = this.#surface.begin(scale.width, this.height);
    const context = this.#surface.context;
    context.fillStyle = palette.line;
    for (const { x } of marks) context.fillRect(Math.round(x), 0, 1, this.height);
    const seen = within(samples, scale);
    STRIPS.forEach((strip, i) => this.#strip(palette, scale, seen, strip, i * (STRIP + GAP) + GAP));
  }

  #strip(palette, scale, seen, strip, top) {
    const context = this.#surface.context;
    const most = Math.max(0, ...strip.lines.map(([, value]) => highest(seen, value)));
    const high = Math.max(1, strip.limit ? highest(seen, strip.limit) : most);
    const room = STRIP / strip.lines.length;
    const zero = top + room;
    strip.lines.forEach(([colour, value], down) => {
      context.fillStyle = palette[colour];
      for (const step of stepsOf(seen, scale, value, strip.holds)) {
        const size = (step.value / high) * room;
        context.fillRect(step.x, down ? zero : zero - size, step.end - step.x, size);
      }
    });
    context.fillStyle = palette.quiet;
    context.fillRect(0, zero, scale.width, 1);
    if (strip.limit) for (let x = 0; x < scale.width; x += 6) context.fillRect(x, top, 3, 1); // the total
    this.#ranges[strip.id].textContent = seen.length ? RANGES[strip.id](most, high) : "nothing recorded";
  }
}

function highest(samples, value) {
  return samples.reduce((most, sample) => Math.max(most, value(sample)), 0);
}

/** The counters at a time in words; "" where nothing is known. */
export function countersAt(samples, at) {
  const sample = sampleAt(samples, at);
  if (!sample) return "";
  const runs = at < sample.at_s + sample.seconds;
  return [
    `batch ${runs ? sample.batch : 0}`,
    `${sample.waiting} waiting`,
    `device ${sample.device_used} of ${sample.device_total}`,
    `host ${sample.host_used} of ${sample.host_total} blocks`,
  ].join(" · ");
}
