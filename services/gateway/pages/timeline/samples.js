// Iterations as steps of a curve: as many as there are pixels, whatever was recorded.

/** Those that are seen, with the one before, whose values still hold. samples: by at_s */
export function within(samples, scale) {
  return samples.slice(Math.max(0, firstAfter(samples, scale.from) - 1), firstAfter(samples, scale.to));
}

/** The last that began before a time, or null. */
export function sampleAt(samples, at) {
  return samples[firstAfter(samples, at) - 1] ?? null;
}

/**
 * [{x, end, value}] in pixels, in order. Of samples that share a pixel the highest is kept, so that no peak is lost.
 * value: of a sample; holds: it stays until the next one, else as long as the sample's iteration. A sample of several
 * iterations (`iterations`) always does: they followed each other.
 */
export function stepsOf(samples, scale, value, holds) {
  const steps = [];
  samples.forEach((sample, i) => {
    const next = samples[i + 1]?.at_s ?? Infinity;
    const stays = holds || sample.iterations > 1;
    const until = Math.min(next, scale.to, stays ? Infinity : sample.at_s + sample.seconds);
    const x = Math.max(0, Math.floor(scale.x(sample.at_s)));
    const end = Math.min(scale.width, Math.max(x + 1, Math.round(scale.x(until))));
    const height = value(sample);
    const last = steps.at(-1);
    if (until < scale.from || end <= x) return;
    if (last && x < last.end && end <= last.end) last.value = Math.max(last.value, height);
    else if (last && height === last.value && x <= last.end) last.end = end;
    else steps.push({ x: Math.max(x, last?.end ?? 0), end, value: height });
  });
  return steps;
}

/** Index of the first sample after a time. */
function firstAfter(samples, at) {
  let [low, high] = [0, samples.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (samples[middle].at_s > at) high = middle;
    else low = middle + 1;
  }
  return low;
}
