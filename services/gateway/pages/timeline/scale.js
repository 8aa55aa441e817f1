// The time axis: which times are seen, where they are, and which of them get a label. Times are unix seconds.

const SHORTEST_S = 0.001; // what can be seen at most closely

export class Scale {
  /** width: pixels */
  constructor(from, to, width) {
    this.from = from;
    this.to = to;
    this.width = width;
  }

  x(time) {
    return ((time - this.from) / (this.to - this.from)) * this.width;
  }

  time(x) {
    return this.from + (x / this.width) * (this.to - this.from);
  }

  get secondsAPixel() {
    return (this.to - this.from) / this.width;
  }
}

/** [from, to] with `factor` times the span (less than 1 is closer), the time `around` staying in its place. */
export function zoomed([from, to], factor, around, limits) {
  const span = Math.min(Math.max((to - from) * factor, SHORTEST_S), limits[1] - limits[0]);
  const left = around - ((around - from) / (to - from)) * span;
  return within([left, left + span], limits);
}

export function panned([from, to], seconds, limits) {
  return within([from + seconds, to + seconds], limits);
}

/** The same span, moved into the limits. */
export function within([from, to], [first, last]) {
  const span = Math.min(to - from, last - first);
  const left = Math.min(Math.max(from, first), last - span);
  return [left, left + span];
}

/**
 * Where labels go: round times, so far apart that labels do not touch.
 * origin: unix seconds that count as 0; apart: the least pixels between two
 */
export function ticks(scale, origin, apart = 90) {
  const step = roundUp(apart * scale.secondsAPixel);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let n = Math.ceil((scale.from - origin) / step); n * step <= scale.to - origin; n += 1) {
    found.push({ x: scale.x(origin + n * step), label: `${(n * step || 0).toFixed(digits)} s` });
  }
  return found;
}

/** The next of 1, 2, 5, 10, … times a power of ten; above a minute, of what clocks have. */
export function roundUp(seconds) {
  if (seconds > 50) {
    const minutes = [60, 120, 300, 600, 1200, 1800].find((each) => each >= seconds);
    return minutes ?? Math.ceil(seconds / 3600) * 3600;
  }
  const power = 10 ** Math.floor(Math.log10(seconds));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= seconds * (1 - 1e-9));
}

/** A duration for people: "340 µs", "12.3 ms", "4.56 s", "2 min 5 s". */
export function duration(seconds) {
  const size = Math.abs(seconds);
  if (size >= 119.95) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (size >= 1) return `${seconds.toFixed(size < 9.995 ? 2 : 1)} s`;
  if (size >= 0.001 || size === 0) return `${(seconds * 1000).toFixed(size < 0.00995 ? 2 : size < 0.09995 ? 1 : 0)} ms`;
  return `${(seconds * 1e6).toFixed(0)} µs`;
}
