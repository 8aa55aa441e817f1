// From segments to rectangles: how many are drawn depends on the pixels, not on the segments.

import { firstEndingAfter } from "./model.js";

/**
 * What of a lane is seen, as [{state, level, x, end}] in whole pixels, in order, without overlaps.
 *
 * A pixel shows the state that takes most of it. Neighbours of one state and queue become one.
 */
export function runsOf(lane, scale) {
  const pixels = new Pixels();
  for (let i = firstEndingAfter(lane.segments, scale.from); i < lane.segments.length; i += 1) {
    const segment = lane.segments[i];
    if (segment.start >= scale.to) break;
    pixels.add(segment, Math.max(0, scale.x(segment.start)), Math.min(scale.width, scale.x(segment.end)));
  }
  pixels.settle();
  return pixels.runs;
}

class Pixels {
  runs = [];
  #at = -1; // the pixel that is being shared
  #spent = new Map(); // of it, by state: {state, level, pixels}

  add(segment, x, end) {
    const [first, last] = [Math.floor(x), Math.floor(end)];
    if (first === last) {
      this.#share(first, segment, end - x);
      return;
    }
    this.#share(first, segment, first + 1 - x);
    if (last > first + 1) {
      this.settle();
      this.#put(segment.state, segment.level, first + 1, last);
    }
    this.#share(last, segment, end - last);
  }

  /** No segment that is still to come is in the pixel that is being shared. */
  settle() {
    const [first, ...rest] = this.#spent.values();
    if (first) {
      const most = rest.reduce((a, b) => (b.pixels > a.pixels ? b : a), first);
      this.#put(most.state, most.level, this.#at, this.#at + 1);
    }
    this.#spent.clear();
  }

  #share(at, { state, level }, pixels) {
    if (pixels <= 0) return;
    if (at !== this.#at) this.settle();
    this.#at = at;
    const entry = this.#spent.get(state) ?? { state, level, pixels: 0 };
    entry.pixels += pixels;
    this.#spent.set(state, entry);
  }

  #put(state, level, x, end) {
    const last = this.runs.at(-1);
    if (last && last.state === state && last.level === level && last.end === x) last.end = end;
    else this.runs.push({ state, level, x, end });
  }
}
